"""What an evaluation says besides scores: whether the map can be trusted, and where it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.config.schema import Config
from pipeline.evaluation.posterior import Posterior
from pipeline.evaluation.predictive_checks import predictive_checks
from pipeline.evaluation.prior_sensitivity import prior_sensitivity
from pipeline.prediction.support_shares import read_support


def trust(
    config: Config, stores: tuple[Any, Any], model: Any, posterior: Posterior, out: Path
) -> dict[str, Any]:
    """Return the keys of ``evaluation.json`` that ask whether to trust the map.

    Parameters
    ----------
    config : Config
    stores : tuple of BagStore
        The store that the model was fitted to, and the one of ``posterior``, which may be thinned.
    model : fitted model
    posterior : Posterior
    out : Path
        Output directory, where predict left the numbers of ``support``.

    Returns
    -------
    dict
        ``predictive_checks``, ``support`` (if the predict stage has run for this model) and
        ``prior_sensitivity``.
    """
    counts = config.response_kind.countable
    found: dict[str, Any] = {"predictive_checks": predictive_checks(posterior.areas, counts=counts)}
    whole, store = stores
    support = read_support(out, whole)
    if support is not None:
        found["support"] = support
    found["prior_sensitivity"] = prior_sensitivity(
        model, posterior, list(store.ids), config.output.rate_per
    )
    return found

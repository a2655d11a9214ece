"""What a record and its report say of a fitted model, after a fit and after each update."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

from pipeline.config.schema import Config
from pipeline.store.bag_store import BagStore
from pipeline.training.effects import input_names, told_effects
from pipeline.training.series import as_asked

Found = TypeVar("Found")
_PER_COVARIATE = re.compile(r"(\w+)_x(?:_\d+)?(\.\w+)\[(\d+)\]")


def told_model(
    model: Any, store: BagStore, ids: Sequence[str], config: Config
) -> dict[str, dict[str, Any]]:
    """Return what is told of a fitted model.

    Parameters
    ----------
    model : fitted model
        Of one period, or of a series: then its last period is told.
    store : BagStore
        Training areas, of that period.
    ids : sequence of str
        Areas in the order of their numbers.
    config : Config

    Returns
    -------
    dict
        ``hyperparameters`` by name; ``hyperparameter_intervals`` where they are integrated
        (``mean``, ``median``, ``lower`` and ``upper`` of the central 90 %); ``coefficients`` of the
        kernel's linear part with their posterior standard deviations; ``effects`` of the covariates
        (:func:`pipeline.training.effects.told_effects`).
    """
    one = model
    if config.series is not None:
        one = model.at(config.series.times[-1])
        store = as_asked(store, ids, one)
    return {
        "hyperparameters": _with_covariates(model.named_hyperparameters(), store.covariates),
        "hyperparameter_intervals": _with_covariates(_intervals(model), store.covariates),
        "coefficients": _coefficients(one, store.covariates),
        "effects": told_effects(one, store, config),
    }


def _coefficients(model: Any, covariates: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Return the slope of the linear part for a standard deviation of each covariate."""
    names = input_names(model, covariates)
    return {
        names[each.column]: {"mean": each.mean, "sd": each.sd}
        for each in getattr(model, "coefficients_", [])
    }


def _intervals(model: Any) -> dict[str, dict[str, float]]:
    """Return the posterior of each hyperparameter; none where they are not integrated."""
    table = model.hyperparameter_table() if hasattr(model, "hyperparameter_table") else {}
    return {
        name: {key: row[key] for key in ("mean", "median", "lower", "upper") if key in row}
        for name, row in table.items()
        if "mean" in row
    }


def _with_covariates(values: dict[str, Found], covariates: tuple[str, ...]) -> dict[str, Found]:
    """Replace the numbers of covariates by their names."""
    named = {}
    for name, value in values.items():
        found = _PER_COVARIATE.fullmatch(name)
        if found:
            name = f"{found[1]}{found[2]}[{covariates[int(found[3])]}]"
        named[name] = value
    return named

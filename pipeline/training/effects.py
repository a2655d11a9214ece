"""Effects of the covariates, as the record of a fit has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from geo.sources.align import INVERSES
from models.aggregate.effects import Effect, covariate_effects
from models.aggregate.vbagg import VBAgg
from pipeline.config.schema import Config
from pipeline.store.bag_store import BagStore
from pipeline.store.block_source import StoreBlockSource

TAILS = (0.05, 0.95)  # of the intervals: those of hyperparameters and slopes are of 90 % as well


def told_effects(model: Any, store: BagStore, config: Config) -> dict[str, dict[str, Any]]:
    """Return the effect of each covariate of a store; none of models that have no such functions.

    Parameters
    ----------
    model : fitted model
    store : BagStore
        Percentiles are those of a sample of its pixels, by their weights.
    config : Config
        With the transforms of the covariates.

    Returns
    -------
    dict of dict
        By covariate: ``at``, its values, before its transform, and ``rate``, the median of the rate
        per unit of weight at each; ``percentiles``, whether these are the 10th, 50th and 90th, else
        mean and one deviation above; ``linear``, whether the slope says everything; ``beside``,
        what else its effect differs with; of the change from the first value to the last
        ``median``, ``lower`` and ``upper`` (the central 90 %), a share of the rate where
        ``relative``, whether it is the same ``everywhere``, and by how much it ``varies`` over
        places (a standard deviation). With a middle value
        ``middle_above`` and ``middle_below``, the probabilities that the rate there is above, and
        below, those at both ends.
    """
    if not isinstance(model, VBAgg):
        return {}
    sample = StoreBlockSource(store).summary(np.random.default_rng(config.fit.seed))
    names = input_names(model, store.covariates)
    found = {}
    for effect in covariate_effects(model, sample.x, sample.coords, sample.pixel_weight):
        name = names[effect.column]
        own = config.covariates.get(name)
        found[name] = told(effect, names, "none" if own is None else own.transform)
    return found


def input_names(model: Any, covariates: Sequence[str]) -> tuple[str, ...]:
    """Return the name of each column of a model's inputs."""
    area = ("area",) if getattr(model, "numbers_areas", False) else ()
    return (*covariates, *area, "east", "north", "up")


def told(effect: Effect, names: tuple[str, ...], transform: str) -> dict[str, Any]:
    """Return an effect as :func:`told_effects` has it, of columns so named."""
    lower, median, upper = np.quantile(effect.change, (TAILS[0], 0.5, TAILS[1]))
    row: dict[str, Any] = {
        "at": INVERSES[transform](effect.at).tolist(),
        "rate": np.median(effect.rate, axis=0).tolist(),
        "percentiles": effect.percentiles,
        "linear": effect.linear,
        "beside": [names[column] for column in sorted(effect.beside)],
        "relative": effect.relative,
        "everywhere": effect.everywhere,
        "varies": _finite(effect.varies),
        "median": _finite(median),
        "lower": _finite(lower),
        "upper": _finite(upper),
    }
    if effect.at[0] < effect.at[1] < effect.at[-1]:
        ends, middle = effect.rate[:, [0, -1]], effect.rate[:, 1]
        row["middle_above"] = float((middle > ends.max(axis=1)).mean())
        row["middle_below"] = float((middle < ends.min(axis=1)).mean())
    return row


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None

"""Totals of the areas without a count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from pipeline.config.schema import Config
from pipeline.core.progress import Progress
from pipeline.products.areas import AreaDraws, count_ends
from pipeline.store.bag_store import BagStore

_SUMS = ("people", "expected", "lower", "upper", "count_lower", "count_upper")


def sum_draws(draws: AreaDraws, store: BagStore, interval: float) -> dict[str, Any]:
    """Sum the joint draws over the areas without a count.

    Returns
    -------
    dict
        ``n`` areas and their ``people``; ``expected`` cases with the ends ``lower`` and ``upper``
        of the central ``interval`` of the joint posterior; ``count_lower`` and ``count_upper``, the
        predictive interval of the count itself. Empty if every area has a count. The sums are None
        if the number tested is unknown in one.
    """
    chosen = ~store.in_training[draws.bag]
    if not chosen.any():
        return {}
    known_exposure = store.known_exposure[draws.bag[chosen]].all()
    if not (known_exposure and store.known_trials[draws.bag[chosen]].all()):
        people = float(draws.people[chosen].sum()) if known_exposure else None
        return {"n": int(chosen.sum()), **dict.fromkeys(_SUMS), "people": people}
    tails = [(1 - interval) / 2, (1 + interval) / 2]
    lower, upper = np.quantile(draws.expected[:, chosen].sum(axis=1), tails)
    count_lower, count_upper = count_ends(draws.counts[:, chosen].sum(axis=1), interval)
    return {
        "n": int(chosen.sum()),
        "people": float(draws.people[chosen].sum()),
        "expected": float(draws.mean[chosen].sum()),
        "lower": float(lower),
        "upper": float(upper),
        "count_lower": float(count_lower),
        "count_upper": float(count_upper),
    }


def sum_labels(table: pd.DataFrame) -> dict[str, Any]:
    """Return number ``n`` and ``expected`` positives of the areas without a label, if any."""
    rows = table[~table["in_training"]]
    return {"n": len(rows), "expected": float(rows["probability"].sum())} if len(rows) else {}


def log_without_counts(config: Config, found: dict[str, Any], progress: Progress) -> None:
    """Log the result of `sum_draws` or `sum_labels`."""
    if found:
        progress.log(f"predict: {config.response_kind.expected_elsewhere(found)}")

"""Points beside areas after a fit: what was found at each, and what the posterior expects there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from models.aggregate.aggregate_model import RateDraws
from models.core.block import BagBlock
from pipeline.core.plurals import count_text
from pipeline.store.point_store import PointStore, numbered

COLUMNS = ("source", "id", "lon", "lat", "area", "value", "tested")


def tabulate_points(
    model: Any, points: PointStore, functions: RateDraws, interval: float, seed: int
) -> pd.DataFrame:
    """Return a table of the points, which the model was fitted to.

    Parameters
    ----------
    model : VBAgg
    points : PointStore
    functions : RateDraws
        Whole surfaces drawn from the posterior.
    interval : float
        Probability of the central intervals.
    seed : int
        Of the places of displaced points, and of the responses.

    Returns
    -------
    DataFrame
        :data:`COLUMNS`, ``pixels`` where the point may be, ``expected`` value with the ends
        ``expected_lower`` and ``expected_upper`` of its interval, and ``value_lower`` and
        ``value_upper``, the ends of the predictive interval of the value.
    """
    store, about = points.store, points.about
    tails = [(1 - interval) / 2, (1 + interval) / 2]
    parts = []
    for number in range(store.n_block):
        rng = np.random.default_rng([seed, 8, number])
        block = numbered(store.read_block(number), points.source, 0)
        likelihood = model.resolved_likelihood
        data = likelihood.data_of(block)
        eta = aggregates(functions, block, likelihood.displaced(data), rng)
        expected = likelihood.expected(eta, functions.params, data)
        drawn = likelihood.draw(eta, functions.params, data, rng)
        lower, upper = np.quantile(expected, tails, axis=0)
        least, most = np.quantile(drawn, tails, axis=0)
        parts.append(
            pd.DataFrame(
                {
                    "pixels": np.diff(block.offsets),
                    "expected": expected.mean(axis=0),
                    "expected_lower": lower,
                    "expected_upper": upper,
                    "value_lower": least,
                    "value_upper": most,
                }
            )
        )
    trials = np.full(store.n_bag, np.nan) if store.trials is None else store.trials
    given = {
        "source": [points.names[k - 1] for k in points.source],
        **{key: about[key] for key in ("id", "lon", "lat", "area")},
        "value": store.y,
        "tested": trials,
    }
    return pd.concat([pd.DataFrame(given), pd.concat(parts, ignore_index=True)], axis=1)


def aggregates(
    functions: RateDraws, block: BagBlock, displaced: Any, rng: np.random.Generator
) -> np.ndarray:
    """Return drawn aggregates (n_draws, n_bag); of a displaced bag, the rate of a drawn pixel."""
    weight = block.weight.astype(np.float64)
    rate = functions.rate(block.x.astype(np.float64), block.coords)
    eta = np.add.reduceat(rate * weight, block.offsets[:-1], axis=1)
    for bag in () if displaced is None else np.flatnonzero(displaced).tolist():
        span = slice(*block.offsets[bag : bag + 2].tolist())
        total = weight[span].sum()
        at = rng.choice(weight[span].size, eta.shape[0], p=weight[span] / total)
        eta[:, bag] = total * rate[:, span][np.arange(eta.shape[0]), at]
    return eta


def summarise_points(table: pd.DataFrame, scales: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return what is told of each source.

    Parameters
    ----------
    table : DataFrame
        From :func:`tabulate_points`.
    scales : dict of dict
        Learnt parameters of the model, ``VBAgg.hyperparameter_table``.

    Returns
    -------
    dict
        By source: ``n``, ``value`` and ``tested`` in all, ``expected`` in all, ``correlation`` of
        values (per person tested) with what is expected, ``inside``: share of the values in their
        intervals, and ``parameters``: its own, with intervals.
    """
    found: dict[str, Any] = {}
    for source, own in table.groupby("source", sort=False):
        per = own["tested"].fillna(1.0)
        rates = own["value"] / per, own["expected"] / per
        varied = len(own) > 2 and all(each.std() > 0 for each in rates)
        suffix = f".{source}"
        found[str(source)] = {
            "n": len(own),
            "value": float(own["value"].sum()),
            "tested": float(own["tested"].sum()) if own["tested"].notna().any() else None,
            "expected": float(own["expected"].sum()),
            "correlation": float(np.corrcoef(*rates)[0, 1]) if varied else None,
            "inside": float(own["value"].between(own["value_lower"], own["value_upper"]).mean()),
            "parameters": {
                name.removesuffix(suffix): row
                for name, row in scales.items()
                if name.endswith(suffix)
            },
        }
    return found


def told_points(found: dict[str, Any]) -> list[str]:
    """Return a line of each source, from :func:`summarise_points`."""
    lines = []
    for source, row in found.items():
        scale = row["parameters"].get("scale", {})
        between = ""
        if "lower" in scale:
            # As the report has it: the median of a chain, the mean of other draws.
            middle = scale.get("median", scale["mean"])
            between = f"; scale {middle:.3g} ({scale['lower']:.3g} to {scale['upper']:.3g})"
        inside = f"{100 * row['inside']:.0f} % of the values in their intervals"
        if row["n"] == 1:
            inside = "inside its interval" if row["inside"] else "outside its interval"
        of = "" if row["tested"] is None else f" of {row['tested']:,.0f} tested"
        lines.append(
            f"points.{source}: {count_text(row['n'], 'value')}, {row['value']:,.0f}{of} observed, "
            f"{row['expected']:,.0f} expected; {inside}{between}"
        )
    return lines

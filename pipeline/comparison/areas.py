"""Compare two runs area by area, and in total, from joint draws or from tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri

from pipeline.comparison.probability import (
    larger_by_moments,
    larger_independent,
    larger_paired,
    ratio_interval,
)
from pipeline.comparison.sides import BAGS, Side
from pipeline.core.errors import StoreError
from pipeline.products.areas import predict_areas
from pipeline.products.arrays import AreaArrays
from pipeline.store.bag_store import BagStore
from pipeline.store.earlier_store import lacks_areas

SAME_PEOPLE = 1e-6  # relative difference of two sums of the same people
#: How far the total of the draws may be from that of a table: Monte Carlo errors, and a share.
N_ERRORS, AGREE = 6.0, 0.02


@dataclass(frozen=True)
class AreaRates(AreaArrays):
    """Joint draws of the rates of areas.

    Attributes
    ----------
    bag : (n_bag,) int64 array
    exposure : (n_bag,) float64 array
        What rates are per unit of; NaN where it is not known.
    rate : (n_draws, n_bag) float64 array
        Per unit of exposure.
    """

    bag: np.ndarray
    exposure: np.ndarray
    rate: np.ndarray


def open_areas(side: Side) -> BagStore:
    """Open the areas of a side, those without a count too."""
    store = BagStore.open(side.place(BAGS))
    if lacks_areas(store.pixels):
        found = f"{store.path}: of an earlier version; run `disagg migrate` on its configuration"
        raise StoreError(found)
    return store


def draw_area_rates(
    model: Any,
    draws: Any,
    areas: BagStore,
    published: pd.DataFrame,
    n_thread: int | None,
    advance: Callable[[int], None] | None = None,
) -> AreaRates:
    """Evaluate drawn surfaces at areas, block by block, given the counts that were published.

    Parameters
    ----------
    model : fitted model
    draws : draws of functions
    areas : BagStore
        Pixels of the areas. Their counts may be of another run than the model.
    published : DataFrame
        Table of the areas of the model's own run, indexed by id: ``observed``, ``people``,
        ``tested``. A model conditions its draws on the counts that it was fitted to.
    n_thread : int or None
    advance : callable, optional
        Called with the number of areas done after each block.
    """
    own = published.reindex(list(areas.ids))
    y, people = (own[name].to_numpy(np.float64) for name in ("observed", "people"))
    trials = own["tested"].to_numpy(np.float64) if "tested" in own else None

    def draw(_: int, part: Any) -> AreaRates:
        bag = np.asarray(part.bag, np.int64)
        weight = np.add.reduceat(part.weight.astype(np.float64), part.offsets[:-1])
        # Where a column of the counts gives the people, each run has its own.
        ratio = np.divide(people[bag], weight, out=np.ones(weight.shape), where=weight > 0)
        differs = np.isfinite(ratio) & (np.abs(ratio - 1.0) > SAME_PEOPLE)
        ratio = np.where(differs, ratio, 1.0)
        part = replace(part, y=y[bag], weight=part.weight * np.repeat(ratio, np.diff(part.offsets)))
        weight = weight * ratio
        if trials is not None:
            tested = trials[bag]
            part = replace(part, trials=np.where(tested > 0, tested, 1.0))
        prediction = predict_areas(model, part, draws, observed=True)
        if prediction.likelihood.needs_trials:  # its aggregate is a probability already
            return AreaRates(bag, tested, np.asarray(prediction.draws, np.float64))
        known = np.where(np.isfinite(people[bag]), weight, np.nan)
        per = np.divide(1.0, weight, out=np.full(weight.shape, np.nan), where=weight > 0)
        return AreaRates(bag, known, prediction.draws * per)

    return AreaRates.of_blocks(areas, draw, None, advance, n_thread)


@dataclass(frozen=True)
class AreaChange:
    """Change by area and in total.

    Attributes
    ----------
    table : DataFrame
        One row an area, indexed by id: see :func:`change_by_draws`.
    total : dict
        Expected cases of the areas that both have, and their rate.
    """

    table: pd.DataFrame
    total: dict[str, Any]


def change_by_draws(
    a: tuple[AreaRates, list[str]],
    b: tuple[AreaRates, list[str]],
    *,
    rate_per: float,
    interval: float,
    paired: bool,
) -> AreaChange:
    """Compare areas, matched by id, from draws.

    Parameters
    ----------
    a, b : (AreaRates, ids)
        Draws of each side, row by row, and the ids of its areas in the order of its store.
    rate_per : float
        Of all rates of the table.
    interval : float
        Central probability of the intervals.
    paired : bool
        Whether rows belong together.

    Returns
    -------
    AreaChange
        ``rate_a``, ``rate_b``, ``difference`` and ``ratio`` with ``_lower`` and ``_upper``,
        ``change_probability``: P(rate of B > rate of A); ``change_probability_independent``: the
        same if the errors of A and B had nothing in common; ``exposure_a``, ``exposure_b``,
        ``expected_a``, ``expected_b`` (counts). Rates and differences are means over the draws.
    """
    (of_a, ids_a), (of_b, ids_b) = a, b
    name_a, name_b = [ids_a[k] for k in of_a.bag], [ids_b[k] for k in of_b.bag]
    place = {name: k for k, name in enumerate(name_a)}
    common = [name for name in name_b if name in place]
    at_a = np.array([place[name] for name in common], np.int64)
    at_b = np.array([k for k, name in enumerate(name_b) if name in place], np.int64)
    one, other = of_a.select(at_a), of_b.select(at_b)
    larger = larger_paired if paired else larger_independent
    columns = _by_draws(rate_per * one.rate, rate_per * other.rate, interval)
    columns["change_probability"] = larger(one.rate, other.rate)
    columns["change_probability_independent"] = larger_independent(one.rate, other.rate)
    table = pd.DataFrame(columns, index=pd.Index(common, name="id"))
    names = [*name_b, *(name for name in name_a if name not in set(name_b))]
    table = table.reindex(names)
    for letter, side, owned in (("a", of_a, name_a), ("b", of_b, name_b)):
        mean = side.rate.mean(axis=0)
        table[f"rate_{letter}"] = pd.Series(rate_per * mean, owned).reindex(names)
        table[f"exposure_{letter}"] = pd.Series(side.exposure, owned).reindex(names)
        table[f"expected_{letter}"] = pd.Series(mean * side.exposure, owned).reindex(names)
    return AreaChange(table, _total(one, other, rate_per, interval, larger))


def _total(
    a: AreaRates, b: AreaRates, rate_per: float, interval: float, larger: Any
) -> dict[str, Any]:
    known = np.isfinite(a.exposure) & np.isfinite(b.exposure)
    if not known.any():
        return {}
    found: dict[str, Any] = {"n_areas": int(known.sum())}
    cases = [(s.rate[:, known] @ s.exposure[known])[:, None] for s in (a, b)]
    exposed = [float(s.exposure[known].sum()) for s in (a, b)]
    rates = [rate_per * c / max(e, 1e-300) for c, e in zip(cases, exposed, strict=True)]
    for name, (one, other) in (("expected", cases), ("rate", rates)):
        made = _by_draws(one, other, interval)
        found[name] = {
            "a": float(one.mean()),
            "b": float(other.mean()),
            **{key: float(value[0]) for key, value in made.items() if not key.startswith("rate")},
            "change_probability": float(larger(one, other)[0]),
            "change_probability_independent": float(larger_independent(one, other)[0]),
        }
    return found


def _by_draws(a: np.ndarray, b: np.ndarray, interval: float) -> dict[str, np.ndarray]:
    """Return means, differences and ratios with their intervals, from (n_draws, n) each."""
    tails = [(1 - interval) / 2, (1 + interval) / 2]
    lower, upper = np.quantile(b - a, tails, axis=0)
    mean_a, mean_b = a.mean(axis=0), b.mean(axis=0)
    nothing = np.full(a.shape[1], np.nan)
    ratio, below, above = nothing.copy(), nothing.copy(), nothing.copy()
    up = (a > 0).all(axis=0) & (b > 0).all(axis=0)
    if up.any():
        ratio[up] = mean_b[up] / mean_a[up]
        below[up], above[up] = np.quantile(b[:, up] / a[:, up], tails, axis=0)
    return {
        "rate_a": mean_a,
        "rate_b": mean_b,
        "difference": mean_b - mean_a,
        "difference_lower": lower,
        "difference_upper": upper,
        "ratio": ratio,
        "ratio_lower": below,
        "ratio_upper": above,
    }


def as_published(
    change: AreaChange,
    drawn: tuple[AreaRates, AreaRates],
    a: pd.DataFrame,
    b: pd.DataFrame,
    *,
    scale: float,
    rate_per: float,
) -> AreaChange | None:
    """Give a change by draws the means that both runs published; None where they disagree.

    Means of draws have a Monte Carlo error, and a reader adds up the tables: what a comparison says
    of levels is theirs. The draws say how sure a difference is. They are a second route to the same
    means: where their totals are further apart than chance allows, the draws are not of what was
    published.

    Parameters
    ----------
    change : AreaChange
        From :func:`change_by_draws`.
    drawn : (AreaRates, AreaRates)
        What it was made from.
    a, b : DataFrame
        Indexed by id: ``rate``, ``sd``, ``exposure``, ``expected``, as in the tables of each run.
    scale : float
        Factor from the unit of A's rates to that of B's.
    rate_per : float
        Of the rates of B.

    Returns
    -------
    AreaChange or None
    """
    table = change.table.copy()
    for letter, given, factor, own in (("a", a, scale, drawn[0]), ("b", b, 1.0, drawn[1])):
        side = given.reindex(table.index)
        said, by_draws = side["expected"], table[f"expected_{letter}"]
        both = (said.notna() & by_draws.notna()).to_numpy()
        apart = abs(float(by_draws[both].sum() - said[both].sum()))
        cases = own.rate * np.where(np.isfinite(own.exposure), own.exposure, 0.0)
        error = float(cases.sum(axis=1).std()) / np.sqrt(len(cases))
        if apart > N_ERRORS * error + AGREE * float(said[both].abs().sum()):
            return None
        table[f"rate_{letter}"] = factor * side["rate"]
        table[f"expected_{letter}"], table[f"exposure_{letter}"] = said, side["exposure"]
    shared = table["difference"].notna()
    table["difference"] = (table["rate_b"] - table["rate_a"]).where(shared)
    table["ratio"] = (table["rate_b"] / table["rate_a"]).where(table["ratio"].notna())
    total = {name: dict(found) if isinstance(found, dict) else found
             for name, found in change.total.items()}  # fmt: skip
    known = table[["expected_a", "expected_b", "exposure_a", "exposure_b"]].notna().all(axis=1)
    if total and known.any():
        sums = {x: float(table.loc[known, f"expected_{x}"].sum()) for x in "ab"}
        people = {x: float(table.loc[known, f"exposure_{x}"].sum()) for x in "ab"}
        rates = {x: rate_per * sums[x] / people[x] for x in "ab"}
        for name, means in (("expected", sums), ("rate", rates)):
            total[name] |= means | {"difference": means["b"] - means["a"]}
            if np.isfinite(total[name]["ratio"]):
                total[name]["ratio"] = means["b"] / means["a"]
    return AreaChange(table, total)


def change_by_tables(
    a: pd.DataFrame, b: pd.DataFrame, *, scale: float, interval: float, positive: bool
) -> AreaChange:
    """Compare areas from the means and standard deviations of two ``areas.csv``.

    Parameters
    ----------
    a, b : DataFrame
        Indexed by id: ``rate``, ``sd``, ``exposure``, ``expected``.
    scale : float
        Factor from the unit of A's rates to that of B's.
    interval : float
    positive : bool
        Whether rates are taken as log-normal (else as normal).

    Returns
    -------
    AreaChange
        The total has no probability: the tables do not say how the errors of areas go together.
    """
    names = [*b.index, *a.index.difference(b.index, sort=False)]
    one, other = a.reindex(names), b.reindex(names)
    rate_a, sd_a = scale * one["rate"].to_numpy(), scale * one["sd"].to_numpy()
    rate_b, sd_b = other["rate"].to_numpy(), other["sd"].to_numpy()
    half = ndtri(0.5 + 0.5 * interval) * np.hypot(sd_a, sd_b)
    up = (rate_a > 0) & (rate_b > 0)
    ratio = np.divide(rate_b, rate_a, out=np.full(len(names), np.nan), where=up)
    below = above = np.full(len(names), np.nan)
    if positive:
        below, above = ratio_interval((rate_a, sd_a), (rate_b, sd_b), interval)
    probability = larger_by_moments(
        (rate_a, sd_a), (rate_b, sd_b), "positive" if positive else "real"
    )
    table = pd.DataFrame(
        {
            "rate_a": rate_a,
            "rate_b": rate_b,
            "difference": rate_b - rate_a,
            "difference_lower": rate_b - rate_a - half,
            "difference_upper": rate_b - rate_a + half,
            "ratio": ratio,
            "ratio_lower": below,
            "ratio_upper": above,
            "change_probability": probability,
            "change_probability_independent": probability,
            "exposure_a": one["exposure"].to_numpy(),
            "exposure_b": other["exposure"].to_numpy(),
            "expected_a": one["expected"].to_numpy(),
            "expected_b": other["expected"].to_numpy(),
        },
        index=pd.Index(names, name="id"),
    )
    both = table[["expected_a", "expected_b"]].notna().all(axis=1)
    total: dict[str, Any] = {}
    if both.any():
        sums = [float(table.loc[both, f"expected_{letter}"].sum()) for letter in "ab"]
        total = {"n_areas": int(both.sum()), "expected": {
            "a": sums[0], "b": sums[1], "difference": sums[1] - sums[0],
            "ratio": sums[1] / sums[0] if sums[0] > 0 else None, "change_probability": None,
        }}  # fmt: skip
    return AreaChange(table, total)

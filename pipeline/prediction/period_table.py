"""The areas in every period, forecasts included: ``periods.csv`` and ``periods.parquet``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pipeline.prediction.seasons import NAMES, against_season, same_season
from pipeline.products.areas import AreaDraws, count_ends, draw_areas_over_times
from pipeline.products.suppressed import interval_columns
from pipeline.store.bag_store import BagStore

#: Parts that the draws are made in: functions of every period are in memory for one of them, and
#: each takes what is not known of a forecast's covariates from another past period.
BATCHES = 12


@dataclass(frozen=True)
class PeriodDraws:
    """Joint draws of the areas in several periods.

    Attributes
    ----------
    times : (n_period,) float64
    expected, counts : (n_draws, n_period, n_area) float64
        Expected counts, and counts with their noise.
    exposure, people, observed : (n_period, n_area) float64
        What a rate is per unit of; people at risk; observed counts, NaN where there is none.
    known : (n_period, n_area) bool
        Whether the exposure is known: else the draws are for one person tested, and rates alone
        mean something.
    least, most : (n_period, n_area) float64
        Ends of the interval of a suppressed count; the observed count, the default, of others.
    tested : (n_period, n_area) float64
        Number tested; NaN, the default, under a likelihood without trials.
    """

    times: np.ndarray
    expected: np.ndarray
    counts: np.ndarray
    exposure: np.ndarray
    people: np.ndarray
    observed: np.ndarray
    known: np.ndarray
    least: Any = None
    most: Any = None
    tested: Any = None

    def __post_init__(self) -> None:
        if self.tested is None:
            object.__setattr__(self, "tested", np.full(self.people.shape, np.nan))
        for name in ("least", "most"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, self.observed)

    @property
    def rate(self) -> np.ndarray:
        """Draws of the rate, per unit of exposure: (n_draws, n_period, n_area)."""
        found = np.full(self.expected.shape, np.nan)
        return np.divide(self.expected, self.exposure, out=found, where=self.exposure > 0)


def draw_periods(
    model: Any,
    stores: Sequence[Callable[[int], BagStore]],
    times: Sequence[float],
    n_draws: int,
    seed: int,
    *,
    moving: Sequence[int] | None = None,
    n_thread: int | None = None,
    advance: Any = None,
) -> PeriodDraws:
    """Draw the areas in several periods, jointly.

    Parameters
    ----------
    model : SpaceTime
        Fitted.
    stores : sequence of callable
        From the number of a part of the draws to all areas in each period, in one order, with the
        numbers of their areas.
    times : sequence of float
        Of the periods, rising.
    n_draws, seed : int
    moving : sequence of int, optional
        Columns of the covariates that differ by period; all if not given.
    n_thread : int, optional
    advance : callable, optional
        Called with the number of periods after each batch of draws.
    """
    models = [model.at(time) for time in times]
    counts_of = shares(n_draws)
    rng = np.random.default_rng([seed, 6])
    parts = model.posterior_.draws_in_parts(counts_of, rng, list(times), moving)
    batches: list[list[AreaDraws]] = []
    for batch, drawn in enumerate(parts):
        opened = [store(batch) for store in stores]
        # Of the counts' noise: another each period.
        seeds = [seed + batch * len(stores) + number for number in range(len(stores))]
        batches.append(draw_areas_over_times(models, opened, drawn, seeds, n_thread=n_thread))
        if advance is not None:
            advance(len(stores))
    about = batches[-1]
    return PeriodDraws(
        np.asarray(times, dtype=np.float64),
        _joined(batches, "expected"),
        _joined(batches, "counts"),
        np.stack([own.exposure for own in about]),
        np.stack([own.people for own in about]),
        np.stack([own.y for own in about]),
        np.stack([own.known_trials & own.known_exposure for own in (each(0) for each in stores)]),
        np.stack([own.least for own in about]),
        np.stack([own.most for own in about]),
        np.stack([own.tested for own in about]),
    )


def _joined(batches: Sequence[Sequence[AreaDraws]], name: str) -> np.ndarray:
    """Return an array of all draws and periods: (n_draws, n_period, n_area)."""
    return np.concatenate(
        [np.stack([getattr(own, name) for own in found], axis=1) for found in batches]
    )


def shares(n_draws: int) -> list[int]:
    """Return the number of draws of each part."""
    parts = min(BATCHES, n_draws)
    return [n_draws // parts + (k < n_draws % parts) for k in range(parts)]


def seasonal(draws: PeriodDraws, season: float | None) -> dict[str, np.ndarray]:
    """Return ``outbreak`` and ``anomaly`` of each area and period: (n_period, n_area) each.

    See :func:`pipeline.prediction.seasons.against_season`; NaN where no other year is known.
    """
    rate = draws.rate
    found = np.full((len(NAMES), *rate.shape[1:]), np.nan)
    known = np.isfinite(draws.least).any(axis=1)
    for period, others in enumerate(same_season(draws.times, known, season)):
        if others.size:
            found[:, period] = against_season(rate[:, period], rate[:, others])
    return dict(zip(NAMES, found, strict=True))


def tabulate_periods(
    draws: PeriodDraws,
    ids: Sequence[str],
    labels: Sequence[str],
    ahead: Mapping[str, bool],
    interval: float,
    rate_per: float,
    season: float | None,
) -> pd.DataFrame:
    """Return the long table, one row an area and period, periods by rising time.

    Parameters
    ----------
    draws : PeriodDraws
    ids, labels : sequence of str
        Of areas and periods.
    ahead : mapping of str to bool
        Whether a period is a forecast, by label.
    interval : float
        Central probability of the intervals.
    rate_per : float
        People in the denominator of rates.
    season : float or None

    Returns
    -------
    DataFrame
        ``id``, ``period``; ``observed``, with the columns of
        :func:`pipeline.products.suppressed.interval_columns`; ``mean``,
        ``lower``, ``upper`` of the expected count;
        ``rate``, ``rate_lower``, ``rate_upper``; ``count_lower``, ``count_upper``, the predictive
        interval of the count, empty where the number tested is not known, as the expected count
        is; ``people``; ``tested``, of positives; ``outbreak`` and ``anomaly``, of :func:`seasonal`;
        ``forecast``.
    """
    tails = [(1 - interval) / 2, (1 + interval) / 2]
    lower, upper = np.quantile(draws.expected, tails, axis=0)
    rate = rate_per * draws.rate
    rate_lower, rate_upper = np.quantile(rate, tails, axis=0)
    count_lower, count_upper = count_ends(draws.counts, interval)
    tested = np.where(draws.known, draws.tested, np.nan)
    columns = {
        "observed": draws.observed,
        **interval_columns(draws.observed, draws.least, draws.most),
        "mean": np.where(draws.known, draws.expected.mean(axis=0), np.nan),
        "lower": np.where(draws.known, lower, np.nan),
        "upper": np.where(draws.known, upper, np.nan),
        "rate": rate.mean(axis=0),
        "rate_lower": rate_lower,
        "rate_upper": rate_upper,
        "count_lower": np.where(draws.known, count_lower, np.nan),
        "count_upper": np.where(draws.known, count_upper, np.nan),
        "people": draws.people,
        **({"tested": tested} if np.isfinite(tested).any() else {}),
        **seasonal(draws, season),
    }
    n_area = len(ids)
    return pd.DataFrame(
        {
            "id": np.tile(np.asarray(ids, dtype=object), len(labels)),
            "period": np.repeat(np.asarray(labels, dtype=object), n_area),
            **{name: values.ravel() for name, values in columns.items()},
            "forecast": np.repeat([ahead[label] for label in labels], n_area),
        }
    )

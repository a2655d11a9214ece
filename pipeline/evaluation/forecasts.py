"""Forecasts of the past, scored: what was known then, against what came.

From each of the last periods the counts of the next ones are foreseen, with the hyperparameters of
all data, the counts up to that period and the covariates that were known by then. Beside them: the
last count of each area, and its counts in the same season, a month earlier to a month later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.temporal.at_period import known_until
from pipeline.cluster.local import n_thread
from pipeline.config.context import StageContext
from pipeline.config.schema import Config
from pipeline.core.progress import Progress
from pipeline.evaluation.scores import crps
from pipeline.products.areas import count_ends, draw_areas
from pipeline.store.series_store import NEAR, SeriesStore
from pipeline.training.series import open_series, stand_in

ORIGINS = 4  # last periods that forecasts are made from
PARTS = 6  # of the draws, each with covariates of a past period: whole rounds of 1, 2, 3 or 6
AHEAD = 3  # periods
LEAST_HISTORY = 3  # periods before the first of them
MIDDLE = 0.5


def score_forecasts(
    context: StageContext, config: Config, model: Any, progress: Progress
) -> dict[str, Any]:
    """Return the scores of forecasts by the number of periods ahead.

    Empty of a short series, and of positives among people tested.

    Parameters
    ----------
    context : StageContext
    config : Config
        Settled for the size.
    model : SpaceTime
        Of all periods.
    progress : Progress

    Returns
    -------
    dict
        ``step``, ``interval``, ``origins`` (labels) and ``by_ahead``: rows of ``ahead``, ``n``
        counts, ``crps`` of the model, ``crps_last`` and ``crps_season`` (None without an earlier
        season), cases, and the shares of counts inside the central 50 % (``coverage_50``) and the
        ``interval`` (``coverage``).
    """
    series = config.known_series
    store = open_series(context)
    observed = np.stack([_observed(store, label) for label in series.periods])
    known = [k for k in range(len(series.periods)) if np.isfinite(observed[k]).any()]
    last = max(known, default=0)  # of suppressed counts alone none is known
    origins = [k for k in range(LEAST_HISTORY - 1, last) if k in known][-ORIGINS:]
    if not origins:
        return {}
    if model.resolved_likelihood.needs_trials:  # nobody knows how many will be tested
        return {}
    found: dict[int, list[np.ndarray]] = {}
    times = np.array(series.times)
    with progress.task("forecasts", len(origins)) as task:
        for origin in origins:
            ahead = [h for h in range(1, AHEAD + 1) if origin + h in known]
            rows = _from(config, model, store, origin, ahead, observed, times)
            for h, row in zip(ahead, rows, strict=True):
                found.setdefault(h, []).append(row)
            task.advance(1)
    return {
        "step": series.calendar.step,
        "interval": config.output.interval,
        "origins": [series.periods[k] for k in origins],
        "by_ahead": [_row(h, np.concatenate(rows)) for h, rows in sorted(found.items())],
    }


def tell_forecasts(scores: Mapping[str, Any]) -> list[str]:
    """Return the scores of :func:`score_forecasts` in sentences."""
    found = []
    for row in scores.get("by_ahead", []):
        season = row["crps_season"]
        others = f"that of the last count {row['crps_last']:.3g}"
        if season is not None:
            others += f", of the same season before {season:.3g}"
        step = scores["step"] + ("s" if row["ahead"] > 1 else "")
        found.append(
            f"forecasts {row['ahead']} {step} ahead, of {row['n']:,} past counts: error (CRPS) "
            f"{row['crps']:.3g}, {others}; the {100 * scores['interval']:g} % interval covers "
            f"{100 * row['coverage']:.0f} %, the middle half {100 * row['coverage_50']:.0f} %"
        )
    return found


def _observed(store: SeriesStore, label: str) -> np.ndarray:
    """Return the counts of a period by the number of their area.

    NaN where there is none, or a suppressed one: it has no error.
    """
    bags = store.at(label)
    found: np.ndarray = np.where(bags.in_training, bags.observed, np.nan)
    return found


def _from(
    config: Config,
    model: Any,
    store: SeriesStore,
    origin: int,
    ahead: list[int],
    observed: np.ndarray,
    times: np.ndarray,
) -> list[np.ndarray]:
    """Return CRPS of the model, of last counts and of seasons, and what covers, of each count."""
    periods, n_draws = store.periods, config.output.draws
    then = SeriesStore(store.path, periods[: origin + 1], store.times[: origin + 1], store.season)
    past = known_until(model, times[origin])
    later = [float(times[origin + h]) for h in ahead]
    made: list[list[np.ndarray]] = [[] for _ in ahead]
    for part in range(PARTS):
        n, rng = -(-n_draws // PARTS), np.random.default_rng([config.fit.seed, 8, part])
        drawn = past.sample_functions(n, rng, later)
        for place, (h, time) in enumerate(zip(ahead, later, strict=True)):
            at = past.at(time, drawn)
            draws = draw_areas(
                at,
                stand_in(then, periods[origin + h], time, part, at),
                n,
                config.fit.seed + PARTS * h + part,
                n_thread=n_thread(config),
                functions=drawn.at(time),
            )
            made[place].append(draws.counts)
    rows = []
    for h, time, drawn_counts in zip(ahead, later, made, strict=True):
        y = observed[origin + h]
        seen = np.isfinite(y)
        counts, y = np.concatenate(drawn_counts)[:, seen], y[seen]
        before = observed[: origin + 1, seen]
        years = 0.0 if store.season is None else (time - times[: origin + 1]) / store.season
        near = np.abs(years - np.round(years)) < NEAR
        same = before[near & (np.abs(years) > MIDDLE)] if store.season is not None else before[:0]
        rows.append(
            np.stack(
                [
                    crps(counts, y),
                    _past_error(_last(before)[None], y),
                    _past_error(same, y),
                    _inside(counts, y, MIDDLE),
                    _inside(counts, y, config.output.interval),
                ],
                axis=1,
            )
        )
    return rows


def _last(before: np.ndarray) -> np.ndarray:
    """Return the last count of each area, (n_area,); NaN where there is none."""
    found = np.full(before.shape[1], np.nan)
    for row in before:
        found = np.where(np.isfinite(row), row, found)
    return found


def _past_error(values: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the CRPS of past counts (n_value, n_area), each as probable; NaN without any."""
    found = np.full(y.shape, np.nan)
    for area in range(y.size):
        own = values[np.isfinite(values[:, area]), area]
        if own.size:
            spread = np.abs(own[:, None] - own[None]).mean()
            found[area] = np.abs(own - y[area]).mean() - 0.5 * spread
    return found


def _inside(counts: np.ndarray, y: np.ndarray, level: float) -> np.ndarray:
    lower, upper = count_ends(counts, level)
    return ((lower <= y) & (y <= upper)).astype(float)


def _row(ahead: int, rows: np.ndarray) -> dict[str, Any]:
    known = np.isfinite(rows[:, 2])
    season = float(rows[known, 2].mean()) if known.all() else None
    return {
        "ahead": ahead,
        "n": len(rows),
        "crps": float(rows[:, 0].mean()),
        "crps_last": float(np.nanmean(rows[:, 1])),
        "crps_season": season,
        "coverage_50": float(rows[:, 3].mean()),
        "coverage": float(rows[:, 4].mean()),
    }

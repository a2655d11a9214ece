"""Suspicions about counts of earlier periods of a series: far from their area's other periods."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from geo.core.errors import name_first
from pipeline.config.schema import Config
from pipeline.config.series import Series
from pipeline.ingest.odd_counts import FEW, LARGE, N_NAMED
from pipeline.ingest.profile import PeriodCounts
from pipeline.ingest.raster_suspicions import Suspicion

N_PERIOD = 6  # with a count of an area, from which one can stand apart
# Times more, or less, than usual, and than before and after: an outbreak comes and goes by and by.
ALONE = 20.0
PRIOR = 10.0  # cases as usual besides: few cases say little of a period


def past_suspicions(
    config: Config, titles: np.ndarray, periods: Mapping[str, PeriodCounts]
) -> list[Suspicion]:
    """Return suspicions about counts of any period of a series that stand alone in their area.

    The count of an area is expected to be the median of its other periods, times how the counts of
    all other areas are in the period to their mean. It is suspicious if it is 20 times more or
    less than that and than the periods before and after, and the larger of both is at least 100
    cases. Numbers that are not whole among whole ones are told as well, periods without any count
    between others, and those in which all counts are 0 beside many cases before and after.

    Parameters
    ----------
    config : Config
    titles : (n_area,) array of str
    periods : mapping of str to PeriodCounts
        Of :func:`pipeline.ingest.profile.counts_of_periods`, by rising time.
    """
    response, spec = config.response_kind, config.response
    if config.series is None or len(periods) < 2:
        return []
    found = _without_counts(config.series, f"counts ({spec.path})", periods)
    if not response.countable:
        return found
    y = np.stack([counts.to_numpy(np.float64) for counts, _, _ in periods.values()], axis=1)
    labels, latest = np.array(list(map(config.series.label, periods))), str(config.period)
    place = f"counts ({spec.path})" if spec.path else "counts (column of the areas)"
    if nowhere := [str(label) for label in labels[_nowhere(y)]]:
        text = f"column {spec.value!r} has not one case in any area in {name_first(nowhere)}, "
        text += f"and {LARGE:.0f} and more in the periods beside"
        remedy = "if nobody reported, leave the cells empty: 0 says that nobody was ill"
        found.append(Suspicion("zeros", place, text, remedy))
    odd, expected = _alone(y)
    odd[:, labels == latest] = False  # of this one the areas around tell more
    if 0 < odd.sum() <= max(1.0, FEW * np.isfinite(y).sum()):
        each = [
            f"{labels[t]} ({titles[a]}: {y[a, t]:,.10g}, by its other periods about "
            f"{expected[a, t]:,.3g})"
            for a, t in zip(*np.nonzero(odd), strict=True)
        ]
        text = f"column {spec.value!r} is far from the area's other periods in "
        remedy = "correct the count, or leave the cell empty if it is unknown"
        found.append(Suspicion("count", place, text + name_first(each, N_NAMED), remedy))
    broken = (y % 1 > 0) & (labels != latest)
    if config.areas.changes is not None:  # a count of two areas of today is shared out
        return found
    if response.most > 1 and 0 < broken.sum() < FEW * (y > 0).sum():
        each = [
            f"{labels[t]} ({titles[a]}: {y[a, t]:.10g})"
            for a, t in zip(*np.nonzero(broken), strict=True)
        ]
        text = (
            f"column {spec.value!r} has numbers that are not whole in {name_first(each, N_NAMED)}"
        )
        remedy = "give cases; look for a point between thousands"
        found.append(Suspicion("fraction", place, text, remedy))
    return found


def _without_counts(
    series: Series, place: str, periods: Mapping[str, PeriodCounts]
) -> list[Suspicion]:
    """Return the suspicion that periods have no count at all, between others that have some."""
    known = {
        period
        for period, (counts, hidden, _) in periods.items()
        if np.isfinite(counts.to_numpy(np.float64)).any() or hidden.to_numpy().any()
    }
    has = np.array([series.text(label) in known for label in series.periods])
    inside = np.flatnonzero(has)
    if not inside.size:
        return []
    empty = [series.periods[k] for k in range(inside[0], inside[-1]) if not has[k]]
    if not empty:
        return []
    text = f"no area has a count in {name_first(empty, N_NAMED)}, between periods that have some"
    remedy = f"add the counts, or see how the table writes {'it' if len(empty) == 1 else 'them'}; "
    remedy += "else it is predicted from the others"
    return [Suspicion("periods", place, text, remedy)]


def _nowhere(y: np.ndarray) -> np.ndarray:
    """Return the periods of (n_area, n_period) counts that are all 0 between many, (n_period,)."""
    total = np.where(np.isfinite(y).any(axis=0), np.nansum(y, axis=0), np.nan)
    # Several such periods in a row are judged by those before and after all of them.
    some = pd.Series(np.where(total == 0, np.nan, total))
    beside = np.fmin(some.ffill(), some.bfill()).to_numpy()
    known = total[np.isfinite(total)]
    usual = np.median(known) if known.size else 0.0
    found: np.ndarray = (total == 0) & (beside >= LARGE) & bool(usual >= LARGE)
    return found


def _alone(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which counts (n_area, n_period) stand alone, and what is expected of each."""
    value = np.where(np.isfinite(y) & (y >= 0), y, np.nan)
    level = _levels(value)
    expected = np.full(y.shape, np.nan)
    for t in range(y.shape[1]):
        others = np.delete(value / level, t, axis=1)
        enough = np.isfinite(others).sum(axis=1) >= N_PERIOD
        if enough.any():
            expected[enough, t] = np.nanmedian(others[enough], axis=1) * level[enough, t]
    beside = np.pad(value, ((0, 0), (1, 1)), constant_values=np.nan)
    before, after = beside[:, :-2], beside[:, 2:]
    with np.errstate(invalid="ignore"):
        most, least = np.fmax(before, after), np.fmin(before, after)
        high = (value >= LARGE) & (value >= ALONE * np.maximum(expected, 0.5))
        high &= ~(value < ALONE * np.maximum(most, 0.5))
        low = (expected >= LARGE) & (value > 0) & (value * ALONE <= expected)
        low &= ~(value * ALONE > least)
    return (high | low) & np.isfinite(expected), expected


def _levels(value: np.ndarray) -> np.ndarray:
    """Return how the counts of the other areas of a period are to their mean, (n_area, n_period).

    A typed count has no part in what it is judged by. A second one of its period has little: each
    count is cut at 20 times the median of its area.
    """
    known = np.isfinite(value)
    some = known.any(axis=1)
    middle = np.zeros(len(value))
    middle[some] = np.nanmedian(value[some], axis=1)
    cut = np.where(known, np.minimum(value, ALONE * np.maximum(middle, 0.5)[:, None]), 0.0)
    mean = cut.sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    usual = np.where(known, mean[:, None], 0.0)
    above, below = cut.sum(axis=0) - cut, usual.sum(axis=0) - usual
    level: np.ndarray = (above + PRIOR) / (below + PRIOR)
    return level

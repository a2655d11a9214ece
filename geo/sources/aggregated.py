"""The steps of a source within a period as one value: the days of a month, say.

A step belongs to the period that its time is in, as the file has it. The step's length is told by
the times of the whole file, so that a period of which some steps are not there is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta

import numpy as np

from geo.core.calendar import days_of
from geo.core.errors import InputError, Problem
from geo.grids.grid import Tile
from geo.sources.derived import DerivedSource
from geo.sources.source import Band, Source

#: Longest and shortest month, days.
MONTH = (28.0, 31.0)
#: Steps may differ by this share: those of some axes are rounded.
UNEVEN = 0.1
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_REDUCED = {"max": np.fmax, "min": np.fmin}


class AggregatedSource(DerivedSource):
    """One value of all steps of a source within a period.

    Parameters
    ----------
    source : Source
        With a band of each time.
    days : str
        The period: see :func:`geo.core.calendar.days_of`.
    how : {"sum", "mean", "max", "min"}
        A mean, maximum or minimum is that of the steps which a pixel has; a sum is missing where
        a step is, for it would be too small.

    Raises
    ------
    InputError
        If the source has no times, or not all steps of the period.
    """

    def __init__(self, source: Source, days: str, how: str) -> None:
        super().__init__(source, None)
        self._how = how
        self._bands = steps_within(self.path, source.describe().bands, days)
        first = self._bands[0]
        band = Band(1, first.variable, "", f"{how} of {len(self._bands)} steps")
        self._about = replace(self._about, bands=(band,))

    @property
    def times(self) -> tuple[str, ...]:
        """Times of the steps, ISO text."""
        return tuple(each.time for each in self._bands)

    def read(self, window: Tile | None = None, time: str | None = None) -> np.ndarray:
        """Return the values of a window: see :meth:`geo.sources.source.Source.read`."""
        self.band_of(time)
        found, n = np.empty(0), np.empty(0)
        for k, step in enumerate(self._bands):
            values = self._source.read(window, step.time)
            if k == 0:
                found, n = values, np.isfinite(values).astype(np.float64)
            elif self._how in _REDUCED:
                found = _REDUCED[self._how](found, values)
            elif self._how == "sum":
                found = found + values
            else:
                known = np.isfinite(values)
                found = np.where(np.isfinite(found), found, 0.0) + np.where(known, values, 0.0)
                n += known
        if self._how == "mean":
            found = np.divide(found, n, out=np.full(found.shape, np.nan), where=n > 0)
        return found


def steps_within(path: str, bands: Sequence[Band], days: str) -> list[Band]:
    """Return the bands of a period, by rising time.

    Parameters
    ----------
    path : str
        For messages.
    bands : sequence of Band
        All of the source.
    days : str
        See :func:`geo.core.calendar.days_of`.

    Raises
    ------
    InputError
        If it is no period, the times are no dates, or a step of the period is missing.
    """
    span = days_of(days)
    if span is None:
        found = f"`time: {days}` is no period"
        raise InputError(Problem(path, found, "write it as 2024-02, or 2024-02-01/2024-02-29"))
    times = _dates(path, bands)
    order = np.argsort(times, kind="stable")
    start, stop = (np.datetime64(each, "m") for each in span)
    inside = [int(k) for k in order if start <= times[k] < stop]
    lacking = _lacking(times[order], span)
    if lacking is None:
        return [bands[k] for k in inside]
    have = f"it has {_day(times[order[0]])} to {_day(times[order[-1]])}"
    remedy = "give a file that has all of them, or periods that it has (time.from, time.to)"
    last = span[1] - timedelta(1)
    raise InputError(Problem(path, f"{lacking} {span[0]} to {last} ({have})", remedy))


def _dates(path: str, bands: Sequence[Band]) -> np.ndarray:
    """Return the times of the bands: (n,) datetime64[m]."""
    if not all(each.time for each in bands):
        found = "has no time axis, so that `aggregate` has no steps"
        raise InputError(Problem(path, found, "remove `aggregate`, or give a file with times"))
    if not all(_DAY.match(each.time) for each in bands):  # numbers of a calendar that is not ours
        found = f"has times that are no dates, such as {bands[0].time}"
        remedy = "convert its times: xarray.open_dataset(...).convert_calendar('standard', ...)"
        raise InputError(Problem(path, found, remedy))
    return np.array([np.datetime64(each.time, "m") for each in bands])


def _lacking(times: np.ndarray, span: tuple[date, date]) -> str | None:
    """Return how a file lacks steps of a period, None if it does not.

    Parameters
    ----------
    times : (n,) datetime64[m]
        Of the whole file, rising.
    span : (date, date)
        First day, day after the last.
    """
    start, stop = (np.datetime64(each, "m") for each in span)
    inside = times[(times >= start) & (times < stop)]
    if not inside.size:
        return "has no step in"
    if times.size == 1:  # nothing tells how long its step is
        return None
    minute = np.timedelta64(1, "m")
    gaps = np.diff(times) / minute / 1440.0
    if (gaps <= 0).any():
        return "has a time twice, so that its steps are not known, also not those of"
    step = float(np.median(gaps))
    length = float((stop - start) / minute / 1440.0)
    if MONTH[0] <= step <= MONTH[1]:
        return _lacking_months(inside, span, length)
    if step > length * (1.0 + UNEVEN):
        return f"has steps of {step:g} days, longer than"
    most = step * (1.0 + UNEVEN)
    before, after = times[times < start], times[times >= stop]
    # Steps of some days begin late in a period, after the last one of the period before.
    late, early = (float(gap / minute) / 1440.0 for gap in (inside[0] - start, stop - inside[-1]))
    late_ok = late <= step * (1.0 - UNEVEN) or (
        before.size > 0 and float((inside[0] - before[-1]) / minute) / 1440.0 <= most
    )
    early_ok = early <= most or (
        after.size > 0 and float((after[0] - inside[-1]) / minute) / 1440.0 <= most
    )
    within = np.diff(inside) / minute / 1440.0
    if not (late_ok and early_ok) or (within > most).any():
        return f"has {inside.size} of {round(length / step)} steps of {step:g} days in"
    return None


def _lacking_months(inside: np.ndarray, span: tuple[date, date], length: float) -> str | None:
    """Return how a file with steps of a month lacks some of a period."""
    if length < MONTH[0]:
        return "has steps of a month, longer than"
    first, last = np.datetime64(span[0], "M"), np.datetime64(span[1] - timedelta(1), "M")
    wanted = int((last - first).astype(int)) + 1
    there = np.unique(inside.astype("datetime64[M]")).size
    return None if there == wanted else f"has {there} of {wanted} months in"


def _day(time: np.datetime64) -> str:
    return str(time.astype("datetime64[D]"))

"""The steps of a source within a period as one value: the days of a month, say.

A step belongs to the period that its time is in: the middle of its bounds, or as the file has it.
The step's length is told by the times of the whole file, so that a period of which some steps are
not there is refused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta

import numpy as np

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
    span : (date, date)
        First day of the period, and the day after its last.
    how : {"sum", "mean", "max", "min"}
        A mean, maximum or minimum is that of the steps which a pixel has; a sum is missing where
        a step is, for it would be too small.

    Raises
    ------
    InputError
        If the source has no times, or not all steps of the period.
    """

    def __init__(self, source: Source, span: tuple[date, date], how: str) -> None:
        super().__init__(source, None)
        about, self._how = source.describe(), how
        if about.climatology:
            found = f"has climatological times ({about.climatology}): each is of many years"
            remedy = "give the values of the periods, or pick one time of it without `aggregate`"
            raise InputError(Problem(self.path, found, remedy))
        self._bands = steps_within(self.path, about.bands, span, about.calendar)
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
        for k, values in enumerate(self._source.steps(window, self.times)):
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


def steps_within(
    path: str, bands: Sequence[Band], span: tuple[date, date], calendar: str = "standard"
) -> list[Band]:
    """Return the bands of a period, by rising time.

    Parameters
    ----------
    path : str
        For messages.
    bands : sequence of Band
        All of the source.
    span : (date, date)
        First day, and the day after the last.
    calendar : str
        Of the times: a period has the days of it that the calendar has.

    Raises
    ------
    InputError
        If the times are no dates, or a step of the period is missing.
    """
    try:
        times = _day_numbers(tuple(each.time for each in bands), calendar)
    except InputError as error:
        raise InputError([replace(each, place=path) for each in error.problems]) from error
    order = np.argsort(times, kind="stable")
    start, stop = (day_number(each.isoformat(), calendar) for each in span)
    inside = [bands[int(k)] for k in order if start <= times[k] < stop]
    lacking = _lacking(times[order], inside, span, (start, stop))
    if lacking is None:
        return inside
    have = f"it has {bands[order[0]].time[:10]} to {bands[order[-1]].time[:10]}"
    remedy = "give a file that has all of them, or periods that it has (time.from, time.to)"
    last = span[1] - timedelta(1)
    raise InputError(Problem(path, f"{lacking} {span[0]} to {last} ({have})", remedy))


@functools.lru_cache(maxsize=16)  # each period of a run, and each year of a climatology, asks
def _day_numbers(times: tuple[str, ...], calendar: str) -> np.ndarray:
    """Return times as numbers of days; InputError unless all are dates."""
    if not all(times):
        found = "has no time axis, so that `aggregate` has no steps"
        raise InputError(Problem("", found, "remove `aggregate`, or give a file with times"))
    wrong = next((each for each in times if not _DAY.match(each)), None)
    if wrong is not None:  # a number that no calendar tells
        found = f"has times that are no dates, such as {wrong}"
        remedy = "write its times in days since a date, in a calendar of CF"
        raise InputError(Problem("", found, remedy))
    return np.array([day_number(each, calendar) for each in times])


def day_number(text: str, calendar: str = "standard") -> float:
    """Return a time of ISO text as a number of days, in a calendar of CF (section 4.4.1).

    A day that the calendar does not have is the beginning of the next one.
    """
    year, month, day = int(text[:4]), int(text[5:7]), int(text[8:10])
    minutes = 60 * int(text[11:13]) + int(text[14:16]) if len(text) > 11 else 0
    if calendar == "360_day":
        number = 360 * year + 30 * (month - 1) + min(day, 31) - 1
    elif calendar in ("noleap", "365_day"):
        number = 365 * year + date(1999, month, 1).timetuple().tm_yday - 2 + day
    elif calendar in ("all_leap", "366_day"):
        number = 366 * year + date(2000, month, 1).timetuple().tm_yday - 2 + day
    else:
        number = date(year, month, day).toordinal()
    return number + minutes / 1440.0


def _lacking(
    times: np.ndarray, inside: Sequence[Band], span: tuple[date, date], ends: tuple[float, float]
) -> str | None:
    """Return how a file lacks steps of a period, None if it does not.

    Parameters
    ----------
    times : (n,) float64 array
        Of the whole file, rising, days.
    inside : sequence of Band
        Those of the period.
    span : (date, date)
        First day, day after the last.
    ends : (float, float)
        The same, as `times`.
    """
    start, stop = ends
    if not inside:
        return "has no step in"
    if times.size == 1:  # nothing tells how long its step is
        return None
    gaps = np.diff(times)
    if (gaps <= 0).any():
        return "has a time twice, so that its steps are not known, also not those of"
    step, length = float(np.median(gaps)), stop - start
    if MONTH[0] <= step <= MONTH[1]:
        return _lacking_months(inside, span, length)
    if step > length * (1.0 + UNEVEN):
        return f"has steps of {step:g} days, longer than"
    most = step * (1.0 + UNEVEN)
    within = times[(times >= start) & (times < stop)]
    before, after = times[times < start], times[times >= stop]
    # Steps of some days begin late in a period, after the last one of the period before.
    late, early = float(within[0] - start), float(stop - within[-1])
    late_ok = late <= step * (1.0 - UNEVEN) or (before.size > 0 and within[0] - before[-1] <= most)
    early_ok = early <= most or (after.size > 0 and after[0] - within[-1] <= most)
    if not (late_ok and early_ok) or (np.diff(within) > most).any():
        return f"has {within.size} of {round(length / step)} steps of {step:g} days in"
    return None


def _lacking_months(inside: Sequence[Band], span: tuple[date, date], length: float) -> str | None:
    """Return how a file with steps of a month lacks some of a period."""
    if length < MONTH[0]:
        return "has steps of a month, longer than"
    first, last = np.datetime64(span[0], "M"), np.datetime64(span[1] - timedelta(1), "M")
    wanted = int((last - first).astype(int)) + 1
    there = len({each.time[:7] for each in inside})
    return None if there == wanted else f"has {there} of {wanted} months in"

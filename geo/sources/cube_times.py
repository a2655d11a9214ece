"""Times of a cube by the CF conventions (sections 4.4, 7.1 and 7.4): stamps, and their bounds.

A stamp may be the beginning, the middle or the end of its interval: models write the mean of
October as of 1 November. The bounds tell which, so that a value is of the middle of its interval.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

from geo.core.errors import InputError, Problem, name_first
from geo.sources.raster_bands import cf_times, iso_times, texts_of_times
from geo.sources.source import Band

#: Names of axes of times.
_NAMES = ("time", "valid_time", "date")
#: Stamps and bounds may differ by this: those of some files are rounded.
_ROUNDED = timedelta(minutes=1)


@dataclass(frozen=True)
class TimeAxis:
    """The axis of times of a variable.

    Attributes
    ----------
    name : str
        Of the dimension; "" for none.
    texts : tuple of str
        Its times, ISO text; numbers where no calendar tells them.
    calendar : str
        By its name in CF (section 4.4.1).
    climatology : str
        Variable of the bounds of climatological times, "" for none.
    """

    name: str = ""
    texts: tuple[str, ...] = ()
    calendar: str = "standard"
    climatology: str = ""


def time_axis(path: str, data: Any, own: Any, others: Sequence[str]) -> TimeAxis:
    """Return the axis of times of a variable.

    Parameters
    ----------
    path : str
        For messages.
    data : xarray.Dataset
        With nothing decoded.
    own : xarray.DataArray
        The variable.
    others : sequence of str
        Its dimensions besides rows and columns.

    Raises
    ------
    InputError
        If a time is outside its bounds.
    """
    for dim in others:
        if dim not in own.coords:
            continue
        axis = own[dim]
        units, values = str(axis.attrs.get("units", "")), axis.to_numpy()
        calendar = str(axis.attrs.get("calendar", "standard")).lower()
        bounds = str(axis.attrs.get("bounds", ""))
        edges = data[bounds].to_numpy() if bounds in data.variables else None
        if edges is not None and edges.shape != (values.size, 2):
            edges = None
        if values.dtype.kind == "M":
            texts = tuple(texts_of_times(values))
            if edges is not None and edges.dtype.kind == "M":
                middle = _middle(path, dim, bounds, values, edges)
                texts = texts if middle is None else tuple(texts_of_times(middle))
            return TimeAxis(dim, texts)
        if " since " in units:
            climatology = str(axis.attrs.get("climatology", ""))
            stamps = tuple(values.tolist())
            texts = _decoded(stamps, units, calendar)
            if edges is not None and not climatology:
                theirs = str(data[bounds].attrs.get("units", ""))
                theirs = theirs if " since " in theirs else units
                flat = tuple(edges.ravel().tolist())
                places = path, dim, bounds
                texts = _of_bounds(places, stamps, flat, units, theirs, calendar) or texts
            return TimeAxis(dim, texts, calendar, climatology)
    return TimeAxis()


@functools.lru_cache(maxsize=16)  # each period of a run opens its cube, of 40 years of days, say
def _decoded(values: tuple[float, ...], units: str, calendar: str) -> tuple[str, ...]:
    numbers = {str(k): str(value) for k, value in enumerate(values)}
    return tuple(iso_times(numbers, units, calendar).values())


@functools.lru_cache(maxsize=16)
def _of_bounds(
    places: tuple[str, str, str],
    stamps: tuple[float, ...],
    edges: tuple[float, ...],
    units: str,
    units_of_bounds: str,
    calendar: str,
) -> tuple[str, ...] | None:
    """Return the middles of the intervals, ISO text; None if the stamps are to be taken."""
    if not np.isfinite(edges).all():
        return None
    times = cf_times(stamps, units, calendar)
    ends = cf_times(edges, units_of_bounds, calendar)
    if times is None or ends is None or times.dtype.kind != ends.dtype.kind:
        return None
    middle = _middle(*places, times, ends.reshape(-1, 2))
    return None if middle is None else tuple(texts_of_times(middle))


def _middle(
    path: str, dim: str, bounds: str, times: np.ndarray, edges: np.ndarray
) -> np.ndarray | None:
    """Return the middles of intervals; None if these overlap, as running means do.

    Raises
    ------
    InputError
        If a time is outside its interval.
    """
    edges = np.sort(edges, axis=1)
    first, last = edges[:, 0], edges[:, 1]
    dates = times.dtype.kind != "M"  # cftime's, of other calendars
    rounded: Any = _ROUNDED if dates else np.timedelta64(_ROUNDED)
    outside = np.flatnonzero((times < first - rounded) | (times > last + rounded))
    if outside.size:
        k = outside[:1]
        when, start, stop = (texts_of_times(each[k])[0] for each in (times, first, last))
        found = f"has a {dim} of {when} outside its bounds ({bounds}: {start} to {stop})"
        remedy = f"correct {bounds}, or remove it: d.drop_vars({bounds!r})"
        raise InputError(Problem(path, found, remedy))
    order = np.argsort(first, kind="stable")
    if (first[order][1:] < last[order][:-1] - rounded).any():
        return None
    middle: np.ndarray = first + (last - first) / 2
    return middle


def check_times(path: str, own: Any, bands: Sequence[Band]) -> None:
    """Refuse several steps of an axis of times whose numbers CF does not tell, such as 202201.

    Raises
    ------
    InputError
        With what is needed.
    """
    for dim in dict.fromkeys(name for each in bands for name, _ in each.levels):
        values = list(dict.fromkeys(v for b in bands for name, v in b.levels if name == dim))
        attrs = own[dim].attrs if dim in own.coords else {}
        of_time = str(attrs.get("axis", "")) == "T" or attrs.get("standard_name") == "time"
        if len(values) < 2 or not (of_time or dim.lower() in _NAMES):
            continue
        units = str(attrs.get("units", ""))
        about = f"units {units!r}" if units else "no units"
        found = f"has times ({dim}) that are none of CF: {name_first(values, 3)}, of {about}"
        if " as " in units:  # absolute times of CDO
            remedy = "write them in days since a date (cdo -r copy in.nc out.nc)"
        else:
            form = {6: "%Y%m", 7: "%Y-%m", 8: "%Y%m%d"}.get(len(values[0]))
            text = f"d.{dim}.astype(int).astype(str)" if values[0].isdigit() else f"d.{dim}"
            given = "" if form is None else f", format={form!r}"
            remedy = (
                f"write them in days since a date (xarray: d[{dim!r}] = "
                f"pandas.to_datetime({text}{given}))"
            )
        remedy = f"{remedy}, or choose one: `level: {values[0]}`"
        raise InputError(Problem(path, found, remedy))

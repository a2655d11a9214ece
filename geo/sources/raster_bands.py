"""Which of the bands, variables and times of a raster to read: the only one, or one that is named.

A NetCDF file has a band for each time (and level) of a variable. GDAL tells what each band is in
its tags, see https://gdal.org/drivers/raster/netcdf.html and ``grib.html``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from rasterio.enums import ColorInterp

from geo.core.errors import Problem, VariablesError, name_first
from geo.sources.raster_header import BandChoice
from geo.sources.source import (
    N_NAMED,
    Band,
    check_band,
    names,
    of_level,
    of_time,
    one_band,
    unknown,
)

_EXTRA = "NETCDF_DIM_"


def choose_variable(path: str, variable: str | None, subdatasets: Sequence[str]) -> str:
    """Return which of the datasets of a file to open; raise InputError unless one is named."""
    by_name = {name.rpartition(":")[2].lstrip("/"): name for name in subdatasets}
    if variable is None:
        found = f"has {len(by_name)} variables ({name_first(list(by_name), N_NAMED)})"
        name, whole = next(iter(by_name.items()))
        remedy = f"choose one with the key `variable`, such as `variable: {name}`, or give {whole}"
        raise VariablesError(Problem(path, found, remedy), by_name)
    if variable not in by_name:
        raise unknown(path, "variable", variable, list(by_name))
    return by_name[variable]


def chosen_bands(path: str, source: Any, choice: BandChoice) -> list[Band]:
    """Return the bands that a user's words fit: one, or one of each time.

    Parameters
    ----------
    path : str
        Name of the raster in messages.
    source : rasterio.io.DatasetReader
    choice : BandChoice

    Raises
    ------
    InputError
        If no band fits, or several of a time do: names those that there are.
    """
    bands = _bands(source)
    if choice.band is not None:
        check_band(path, choice.band, len(bands))
    kept = [each for each in bands if choice.band in (None, each.number)]
    # A variable that is a dataset of its own has been opened as such.
    if choice.variable not in (None, source.name.rpartition(":")[2].lstrip("/")):
        named = names(kept, "variable")
        own = _without_group(source, choice.variable or "")
        kept = [each for each in kept if each.variable == own]
        if not kept:
            raise unknown(path, "variable", choice.variable or "", named)
    axes = re.findall(r"[^{},]+", source.tags().get(f"{_EXTRA}EXTRA", ""))
    # `time: valid_time` names the axis; the file may still have a single time.
    kept = of_time(path, kept, None if choice.time in axes else choice.time)
    kept = of_level(path, kept, choice.level)
    # A mask that is stored as a band is no choice.
    colours = source.colorinterp  # of all bands, each time that it is asked for
    data = [each for each in kept if colours[each.number - 1] != ColorInterp.alpha]
    kept = data or kept
    times = names(kept, "time")
    one_way = len({_packing(source, each) for each in kept}) == 1 or len(kept) == 1
    return kept if len(times) == len(kept) > 1 and one_way else [one_band(path, kept)]


def _without_group(source: Any, variable: str) -> str:
    """Return the name of a variable without its group, ``v`` of ``science/data/v``.

    GDAL opens a file of one variable as such; the tags of the file have the group.
    """
    name = variable.rpartition("/")[2]
    known = {key.partition("#")[0] for key in source.tags() if "#" in key}
    known = {key for key in known if key.rpartition("/")[2] == name}
    return name if f"/{variable.lstrip('/')}" in known else variable


def _packing(source: Any, band: Band) -> tuple[str, ...]:
    """Return how the values of a band are stored, as text: NaN is not itself."""
    every = (source.nodatavals, source.scales, source.offsets, source.dtypes, source.units)
    return tuple(str(each[band.number - 1]) for each in every)


def _bands(source: Any) -> list[Band]:
    tags = source.tags()
    found, stamps = list[Band](), dict[tuple[str, str], dict[str, str]]()
    for number, description in zip(source.indexes, source.descriptions, strict=True):
        own = source.tags(number)
        variable = own.get("NETCDF_VARNAME") or own.get("GRIB_ELEMENT") or description or ""
        axes = {key.removeprefix(_EXTRA): own[key] for key in own if key.startswith(_EXTRA)}
        time, rest, levels = "", [], []
        for axis, value in axes.items():
            units = tags.get(f"{axis}#units", "")
            if " since " in units:
                time = _stamp(stamps, value, units, tags.get(f"{axis}#calendar", "standard"))
            else:
                rest.append(f"{axis} {value}")
                levels.append((axis, value))
        if "GRIB_VALID_TIME" in own:
            seconds = own["GRIB_VALID_TIME"].split()[0]
            time = _stamp(stamps, seconds, "seconds since 1970-01-01", "standard")
            if "GRIB_SHORT_NAME" in own:  # 2-HTGL: two metres above the ground
                rest.append(own["GRIB_SHORT_NAME"])
                levels.append(("level", own["GRIB_SHORT_NAME"]))
        label = ", ".join(filter(None, rest)) or (description or "")
        found.append(Band(number, variable, time, label, tuple(levels)))
    read = {
        value: text
        for (units, calendar), values in stamps.items()
        for value, text in iso_times(values, units, calendar).items()
    }
    return [replace(each, time=read.get(each.time, "")) for each in found]


def _stamp(
    stamps: dict[tuple[str, str], dict[str, str]], value: str, units: str, calendar: str
) -> str:
    """Keep a number of a time axis for later: thousands are decoded at once."""
    name = f"{value} {units}"
    stamps.setdefault((units, calendar), {})[name] = value
    return name


def iso_times(values: Mapping[str, str], units: str, calendar: str) -> dict[str, str]:
    """Return times of the CF conventions as ISO text, by name.

    Parameters
    ----------
    values : mapping of str to str
        Numbers of the axis, by name.
    units, calendar : str

    Returns
    -------
    dict of str to str
        Days alone where all times are midnights; the number where it is of no real day.
    """
    times = cf_times([float(value) for value in values.values()], units, calendar)
    return dict(values) if times is None else dict(zip(values, texts_of_times(times), strict=True))


def cf_times(values: Sequence[float], units: str, calendar: str) -> np.ndarray | None:
    """Return times of the CF conventions; None where the units or the calendar tell none.

    Returns
    -------
    (n,) array or None
        Of datetime64, or of cftime's dates: of years without leap days, say.
    """
    import xarray as xr

    axis = ("t", list(values), {"units": units, "calendar": calendar})
    try:
        times: np.ndarray = xr.decode_cf(xr.Dataset({"t": axis}))["t"].to_numpy()
    except (ValueError, ImportError, OverflowError):  # months of any length
        return None
    return times


def texts_of_times(times: np.ndarray) -> list[str]:
    """Return times of :func:`cf_times` as ISO text: days alone where all are midnights."""
    if times.dtype.kind == "M":
        times = times.astype("datetime64[m]")
        days = times.astype("datetime64[D]")
        return [str(each) for each in (days if (days == times).all() else times)]
    # Of years without leap days, or of 360: the days are the calendar's own.
    texts = [each.isoformat()[:16] for each in times]
    return [text[:10] for text in texts] if all(t.endswith("T00:00") for t in texts) else texts

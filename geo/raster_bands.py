"""Which of the bands, variables and times of a raster to read: the only one, or one that is named.

A NetCDF file has a band for each time (and level) of a variable. GDAL tells what each band is in
its tags, see https://gdal.org/drivers/raster/netcdf.html and ``grib.html``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rasterio.enums import ColorInterp

from geo.columns import suggest
from geo.errors import InputError, Problem, name_first
from geo.raster_header import BandChoice

_EXTRA = "NETCDF_DIM_"
N_NAMED = 12


@dataclass(frozen=True)
class _Band:
    number: int
    variable: str
    time: str
    label: str


def choose_variable(path: str, variable: str | None, subdatasets: Sequence[str]) -> str:
    """Return which of the datasets of a file to open; raise InputError unless one is named."""
    by_name = {name.rpartition(":")[2].lstrip("/"): name for name in subdatasets}
    if variable is None:
        found = f"has {len(by_name)} variables ({name_first(list(by_name), N_NAMED)})"
        name, whole = next(iter(by_name.items()))
        remedy = f"choose one with the key `variable`, such as `variable: {name}`, or give {whole}"
        raise InputError(Problem(path, found, remedy))
    if variable not in by_name:
        raise _unknown(path, "variable", variable, list(by_name))
    return by_name[variable]


def choose_band(path: str, source: Any, choice: BandChoice) -> int:
    """Return the number of the band to read.

    Parameters
    ----------
    path : str
        Name of the raster in messages.
    source : rasterio.io.DatasetReader
    choice : BandChoice

    Raises
    ------
    InputError
        If no band fits, or several do: names those that there are.
    """
    bands = _bands(source)
    if choice.band is not None and not 1 <= choice.band <= len(bands):
        found = f"has {len(bands)} band(s), but band {choice.band} is requested"
        raise InputError(Problem(path, found, f"give a band from 1 to {len(bands)}"))
    kept = [each for each in bands if choice.band in (None, each.number)]
    # A variable that is a dataset of its own has been opened as such.
    if choice.variable not in (None, source.name.rpartition(":")[2].lstrip("/")):
        named = _of(kept, "variable")
        kept = [each for each in kept if each.variable == choice.variable]
        if not kept:
            raise _unknown(path, "variable", choice.variable or "", named)
    axes = re.findall(r"[^{},]+", source.tags().get(f"{_EXTRA}EXTRA", ""))
    # `time: valid_time` names the axis; the file may still have a single time.
    if choice.time is not None and choice.time not in axes:
        times = _of(kept, "time")
        start = re.escape(choice.time.strip().replace(" ", "T"))
        kept = [each for each in kept if re.match(rf"{start}(?!\d)", each.time)]
        if not kept:
            raise _unknown(path, "time", choice.time, times)
    # A mask that is stored as a band is no choice.
    data = [each for each in kept if source.colorinterp[each.number - 1] != ColorInterp.alpha]
    if len(data or kept) == 1:
        return (data or kept)[0].number
    raise InputError(Problem(path, *_ask(data or kept)))


def _ask(bands: list[_Band]) -> tuple[str, str]:
    """Tell what several bands differ in, and the key that chooses one."""
    for key in ("variable", "time"):
        values = _of(bands, key)
        if len(values) > 1:
            remedy = f"choose one with the key `{key}`, such as `{key}: {values[0]}`"
            return f"has {len(values)} {key}s ({name_first(values, N_NAMED)})", remedy
    labels = [f"{each.number}{each.label and ': '}{each.label}" for each in bands]
    found = f"has {len(bands)} bands ({name_first(labels, N_NAMED)})"
    return found, f"choose one with the key `band`, such as `band: {bands[0].number}`"


def _unknown(path: str, key: str, given: str, known: list[str]) -> InputError:
    remedy = suggest(given, known, key) if known else f"remove the key `{key}`: it names none"
    return InputError(Problem(path, f"has no {key} {given!r}", remedy))


def _of(bands: list[_Band], key: str) -> list[str]:
    return list(dict.fromkeys(value for each in bands if (value := getattr(each, key))))


def _bands(source: Any) -> list[_Band]:
    tags = source.tags()
    found = []
    for number, description in zip(source.indexes, source.descriptions, strict=True):
        own = source.tags(number)
        variable = own.get("NETCDF_VARNAME") or own.get("GRIB_ELEMENT") or description or ""
        axes = {key.removeprefix(_EXTRA): own[key] for key in own if key.startswith(_EXTRA)}
        time, rest = "", []
        for axis, value in axes.items():
            units = tags.get(f"{axis}#units", "")
            if " since " in units:
                time = _time(value, units, tags.get(f"{axis}#calendar", "standard"))
            else:
                rest.append(f"{axis} {value}")
        if "GRIB_VALID_TIME" in own:
            seconds = own["GRIB_VALID_TIME"].split()[0]
            time = _time(seconds, "seconds since 1970-01-01", "standard")
            rest.append(own.get("GRIB_SHORT_NAME", ""))
        label = ", ".join(filter(None, rest)) or (description or "")
        found.append(_Band(number, variable, time, label))
    return found


def _time(value: str, units: str, calendar: str) -> str:
    """Return a time of the CF conventions as ISO text; the number where it is of no real day."""
    import xarray as xr

    axis = ("t", [float(value)], {"units": units, "calendar": calendar})
    try:
        decoded = xr.decode_cf(xr.Dataset({"t": axis}))["t"].to_numpy().astype("datetime64[m]")[0]
    except (ValueError, ImportError, OverflowError):  # months of any length, years of 360 days
        return value
    return str(decoded).removesuffix("T00:00")

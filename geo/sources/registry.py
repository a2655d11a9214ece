"""The one door for sources of values on a grid: the suffix of a file selects its reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from geo.core.calendar import days_of
from geo.core.copies import current_copy
from geo.core.errors import InputError, Problem
from geo.core.formats import Formats
from geo.grids.grid import is_mappable
from geo.sources.aggregated import AggregatedSource
from geo.sources.anomaly import AnomalySource
from geo.sources.cube import Cube, netcdf_source
from geo.sources.derived import ClassShare
from geo.sources.icechunk_store import SUFFIX
from geo.sources.mosaic import is_pattern, tiles_source
from geo.sources.raster import RasterSource
from geo.sources.raster_header import ANY_BAND, AS_IT_IS, BandChoice, RasterHeader
from geo.sources.source import Source, crs_remedy
from geo.sources.stac_address import stac_of
from geo.sources.stac_source import stac_source
from geo.sources.terrain import TerrainSource

#: Readers of sources; a further one is a subclass of :class:`geo.sources.source.Source`.
SOURCES: Formats[Callable[[str, BandChoice, RasterHeader], Source]] = Formats(RasterSource)
SOURCES.register(Cube, ".zarr", ".zarr/", SUFFIX, f"{SUFFIX}/")
SOURCES.register(netcdf_source, ".nc", ".nc4")


def source_of(
    path: str | Path, choice: BandChoice = ANY_BAND, header: RasterHeader = AS_IT_IS
) -> Source:
    """Open a source with the reader of its format, without further checks.

    Parameters
    ----------
    path : str or Path
        File or URL; a pattern of files (:mod:`geo.sources.mosaic`); STAC items
        (:mod:`geo.sources.stac_source`).
    choice : BandChoice, optional
        Band, variable, time; by default the only one. With ``aggregate``, one value of all steps
        within the time; with ``share`` or ``terrain``, what is made of the values.
    header : RasterHeader, optional
        What replaces what the source says of itself.

    Raises
    ------
    InputError
        If it cannot be opened, or no band fits, or several that differ in more than their times.
    """
    if choice.aggregate is None:
        source = _of_any(str(path), choice, header)
    else:
        source = _of_steps(str(path), choice, choice.aggregate, header)
    if choice.share is not None:
        return ClassShare(source, choice.share)
    return source if choice.terrain is None else TerrainSource(source, choice.terrain)


def _of_steps(path: str, choice: BandChoice, how: str, header: RasterHeader) -> Source:
    """Open the aggregate of a period, or its anomaly."""
    every = replace(choice, time=None, aggregate=None, window=1, climatology=None)
    steps, text = _of_any(path, every, header), choice.time or ""
    span = days_of(text, choice.window)
    if span is None:
        found = f"`time: {text}` is no period"
        raise InputError(Problem(path, found, "write it as 2024-02, or 2024-02-01/2024-02-29"))
    if choice.climatology is None:
        return AggregatedSource(steps, span, how)
    first, last, standardised = choice.climatology
    return AnomalySource(steps, span, how, range(first, last + 1), standardised=standardised)


def _of_any(path: str, choice: BandChoice, header: RasterHeader) -> Source:
    """Open a file, the files of a pattern, or the assets of STAC items."""
    if stac_of(path) is not None:
        return stac_source(path, _of_file, choice, header)
    if is_pattern(path):
        return tiles_source(path, _of_file, choice, header)
    return _of_file(path, choice, header)


def _of_file(path: str, choice: BandChoice, header: RasterHeader) -> Source:
    if "://" in path:
        path = current_copy()(path)
    return SOURCES.of(path)(path, choice, header)


def open_source(
    path: str | Path,
    place: str,
    problems: list[Problem],
    choice: BandChoice = ANY_BAND,
    header: RasterHeader = AS_IT_IS,
) -> Source | None:
    """Open a source of one band, and check what it says of itself.

    Parameters
    ----------
    path, choice, header
        See :func:`source_of`.
    place : str
        Configuration key that problems name ("covariates.rainfall").
    problems : list of Problem
        Problems are appended: no such file, not a raster, truncated, no CRS, no georeferencing,
        several bands.

    Returns
    -------
    Source or None
        None if a problem was found.
    """
    name = f"{place} ({path})"
    try:
        source = source_of(path, choice, header)
        source.band_of()
    except InputError as error:
        for each in error.problems:
            # A mask beside the raster, or a VRT that this one refers to.
            other = "" if each.place in ("", str(path)) else f"{each.place} "
            problems.append(replace(each, place=name, found=f"{other}{each.found}"))
        return None
    n_before, about = len(problems), source.describe()
    if about.trouble is not None:
        problems.append(Problem(name, *about.trouble))
    elif about.crs is None:
        found = "has no coordinate reference system (CRS)"
        remedy = crs_remedy(about)
        if place.startswith("grid"):
            remedy = "give grid: {crs: EPSG:xxxx, resolution: ...} instead"
        problems.append(Problem(name, found, remedy))
    elif not is_mappable(about.crs):
        found = f"has a CRS that is neither geographic nor projected ({about.crs.name})"
        problems.append(Problem(name, found, "give a geographic or projected raster"))
    if about.trouble is None and (about.transform.is_identity or about.transform.is_degenerate):
        found = "has no georeferencing (no transform from pixels to coordinates)"
        problems.append(
            Problem(name, found, "give a GeoTIFF with its bounds (gdal_translate -a_ullr)")
        )
    if np.dtype(about.dtype).kind == "c":
        problems.append(Problem(name, "has complex numbers", "give a real-valued band"))
    damage = source.damage()
    if damage:
        problems.append(Problem(name, damage, "copy or download the file again"))
    if len(problems) > n_before:
        source.close()
        return None
    return source

"""The one door for sources of values on a grid: the suffix of a file selects its reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from geo.core.errors import InputError, Problem
from geo.core.formats import Formats
from geo.grids.grid import is_mappable
from geo.sources.aggregated import AggregatedSource
from geo.sources.derived import ClassShare
from geo.sources.raster import RasterSource
from geo.sources.raster_header import ANY_BAND, AS_IT_IS, BandChoice, RasterHeader
from geo.sources.source import CRS_REMEDY, Source
from geo.sources.terrain import TerrainSource
from geo.sources.zarr_cube import ZarrCube

#: Readers of sources; a further one is a subclass of :class:`geo.sources.source.Source`.
SOURCES: Formats[Callable[[str, BandChoice, RasterHeader], Source]] = Formats(RasterSource)
SOURCES.register(ZarrCube, ".zarr")


def source_of(
    path: str | Path, choice: BandChoice = ANY_BAND, header: RasterHeader = AS_IT_IS
) -> Source:
    """Open a source with the reader of its format, without further checks.

    Parameters
    ----------
    path : str or Path
        File or URL.
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
    reader = SOURCES.of(path)
    if choice.aggregate is None:
        source = reader(str(path), choice, header)
    else:
        every = reader(str(path), replace(choice, time=None, aggregate=None), header)
        source = AggregatedSource(every, choice.time or "", choice.aggregate)
    if choice.share is not None:
        return ClassShare(source, choice.share)
    return source if choice.terrain is None else TerrainSource(source, choice.terrain)


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
        remedy = CRS_REMEDY
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

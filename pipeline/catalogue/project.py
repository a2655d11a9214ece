"""The QGIS project of a run: all maps and the areas, styled, grouped and labelled."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path

import pyogrio
from pyproj import CRS

from geo.core.columns import name_column
from geo.core.errors import InputError, Problem
from geo.grids.grid import Bounds
from geo.writers.geopackage import layer_style, outline_style
from geo.writers.qgis_project import ProjectGroup, ProjectLayer, project_file
from geo.writers.raster_files import RasterFiles
from geo.writers.styles import raster_style
from pipeline.catalogue.dates import days_of
from pipeline.config.schema import Config
from pipeline.core.code import installed_version
from pipeline.prediction.area_description import column_aliases
from pipeline.products.level_products import LEVELS_GPKG
from pipeline.products.periods import rasters_over_time, window_folders, window_layers
from pipeline.products.products import (
    AREAS_GPKG,
    AREAS_LAYER,
    QGIS_PROJECT,
    Layer,
    layers,
)
from pipeline.storage.files import atomic_write


def write_project(config: Config, out: Path, files: RasterFiles, verdict: str = "") -> str | None:
    """Write the QGIS project of a run into its directory.

    Parameters
    ----------
    config : Config
    out : Path
        Directory with the finished maps; those that it lacks are left out.
    files : RasterFiles
        Open files.
    verdict : str, optional
        Whether the map is better than one rate: in the project's title, which QGIS shows above the
        map.

    Returns
    -------
    str or None
        Name of the file; None if the directory has neither maps nor areas.
    """
    wanted = [*layers(config), *layers(config, from_draws=True)]
    maps = [layer for layer in wanted if (out / f"{layer.name}.tif").is_file()]
    areas = (out / AREAS_GPKG.file).is_file()
    if not maps and not areas:
        (out / QGIS_PROJECT.file).unlink(missing_ok=True)
        return None
    crs, view = _frame(out / f"{maps[0].name}.tif" if maps else out / AREAS_GPKG.file, files)
    groups = [ProjectGroup("Areas", _areas(config, out, bool(maps)))] if areas else []
    if (out / LEVELS_GPKG.file).is_file():
        groups.append(ProjectGroup("Levels", _levels(config, out)))
    groups += _over_time(config, out, crs, files)  # ticked, they hide the maps of the latest period
    for name in dict.fromkeys(layer.product.group for layer in maps):
        members = [layer for layer in maps if layer.product.group == name]
        found = [_raster(layer, out, crs, shown=layer is maps[0]) for layer in members]
        groups.append(ProjectGroup(name, found))
    groups += _of_windows(config, out, crs)
    step = "" if config.time is None else config.time.step
    title = config.name if config.period is None else f"{config.name}, {config.period}"
    title += f" - {verdict}" if verdict else ""
    with atomic_write(out / QGIS_PROJECT.file) as file:
        file.write(project_file(title, groups, crs, view, _note(config), step))
    return QGIS_PROJECT.file


def label_column(columns: Iterable[str], id_column: str) -> str:
    """Return the column that labels areas: that of their names; without one, that of the ids."""
    given = list(columns)
    # write_areas renames an id column that GeoPackage reserves.
    return name_column(given) or (id_column if id_column in given else given[0])


def _frame(path: Path, files: RasterFiles) -> tuple[CRS, Bounds]:
    """Return the CRS and the extent of a file of the run."""
    if path.suffix == ".tif":
        with files.open(path) as source:
            return CRS.from_wkt(source.crs.to_wkt()), tuple(source.bounds)
    about = pyogrio.read_info(path, layer=AREAS_LAYER, force_total_bounds=True)
    return CRS.from_user_input(about["crs"]), tuple(about["total_bounds"])


def _raster(
    layer: Layer, out: Path, crs: CRS, *, shown: bool = False, below: str = ""
) -> ProjectLayer:
    """Return a raster of a run, or of the folder ``below`` in it."""
    unit = "" if layer.unit == "1" else f" ({layer.unit})"
    return ProjectLayer(
        id=_id(f"{below}{layer.name}"),
        name=f"{layer.description[:1].upper()}{layer.description[1:]}{unit}",
        source=f"./{below}{layer.name}.tif",
        kind="raster",
        crs=crs,
        style=_style(out / f"{below}{layer.name}.qml"),
        visible=shown,
        expanded=shown,
        about=f"{layer.name}.tif, disagg {installed_version('disagg')}",
    )


def _over_time(config: Config, out: Path, crs: CRS, files: RasterFiles) -> list[ProjectGroup]:
    """Return maps of several periods in one scale, each with its time, the latest on top."""
    series, groups = config.series, []
    if series is None:
        return []
    for layer, paths in rasters_over_time(config, out):
        product, unit = layer.product, "" if layer.unit == "1" else layer.unit
        scale = files.scale(
            list(paths.values()), low=product.low, high=product.high, ramp=product.ramp
        )
        past = [label for label in paths if label in series.periods]
        ahead = [label for label in paths if label not in past]
        found = [
            ProjectLayer(
                id=_id(f"{layer.name}_{label}"),
                name=label if label in past else f"{label} (forecast)",
                source=f"./{paths[label].relative_to(out).as_posix()}",
                kind="raster",
                crs=crs,
                style=raster_style(scale, unit),
                visible=True,
                when=days_of(label, series),
            )
            for label in (*past[::-1], *ahead)
        ]
        groups.append(ProjectGroup(f"Over time: {layer.description}", found, ticked=False))
    return groups


def _of_windows(config: Config, out: Path, crs: CRS) -> list[ProjectGroup]:
    """Return the maps of each window."""
    groups = []
    for window, folder in window_folders(config, out):
        below = f"{folder.relative_to(out).as_posix()}/"
        maps = [_raster(each, out, crs, below=below) for each in window_layers(config, window)]
        groups.append(ProjectGroup(f"{window.title[:1].upper()}{window.title[1:]}", maps))
    return groups


def _style(path: Path) -> str:
    """Return the text of a style, which users may have edited."""
    text = path.read_text(encoding="utf-8")
    try:
        ET.fromstring(text)
    except ET.ParseError as error:
        remedy = "delete it: the next run writes it again"
        raise InputError(Problem(str(path), f"no XML ({error})", remedy)) from None
    return text


def _areas(config: Config, out: Path, over_maps: bool) -> list[ProjectLayer]:
    """Return the borders with names, over the maps, and the areas coloured by their rate."""
    path = out / AREAS_GPKG.file
    told = pyogrio.read_info(path, layer=AREAS_LAYER)
    crs, columns = CRS.from_user_input(told["crs"]), list(told["fields"])
    label = '"' + label_column(columns, config.areas.id).replace('"', '""') + '"'
    value = config.response_kind.level
    about = column_aliases(config, columns).get(value, value)
    source = f"./{AREAS_GPKG.file}|layername={AREAS_LAYER}"
    borders = ProjectLayer(
        id="area_borders",
        name="Borders and names",
        source=source,
        kind="vector",
        crs=crs,
        style=outline_style(),
        label=label,
        visible=over_maps,
    )
    coloured = ProjectLayer(
        id="areas_fitted",
        name=f"Areas: {about}",
        source=source,
        kind="vector",
        crs=crs,
        style=layer_style(path, AREAS_LAYER) or outline_style(),
        label=label,
        visible=not over_maps,
        expanded=True,
    )
    return [borders, coloured]


def _levels(config: Config, out: Path) -> list[ProjectLayer]:
    """Return the areas of each level, coloured by their rate, in the order of the file."""
    path, words = out / LEVELS_GPKG.file, config.response_kind
    found = []
    # GDAL lists the table of the styles, too: it has no shapes.
    for level in (str(name) for name, shapes in pyogrio.list_layers(path) if shapes):
        about = pyogrio.read_info(path, layer=level)
        label = "name" if "name" in about["fields"] else "id"
        found.append(
            ProjectLayer(
                id=_id(f"level_{level}"),
                name=f"{level}: {words.quantity} ({words.rate_unit})",
                source=f"./{LEVELS_GPKG.file}|layername={level}",
                kind="vector",
                crs=CRS.from_user_input(about["crs"]),
                style=layer_style(path, level) or outline_style(),
                label=f'"{label}"',
            )
        )
    return found


def _note(config: Config) -> str:
    totals = config.response_kind.totals
    return (
        f"Estimates from the {totals} of areas; nothing was counted in a pixel. "
        f"{config.model.kind}, disagg {installed_version('disagg')}."
    )


def _id(name: str) -> str:
    # QGIS replaces an id of ten characters or fewer, and then does not find the layer.
    return "disagg_raster_" + "".join(c if c.isalnum() else "_" for c in name)

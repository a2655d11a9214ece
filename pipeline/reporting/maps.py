"""What the page's maps show: pictures of rasters, colours of areas, and the areas' numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from geo.core.text_safety import one_line_text
from geo.writers.colours import Scale
from geo.writers.raster_files import RasterFiles
from pipeline.config.schema import Config
from pipeline.products.colours import level_product, raster_scale
from pipeline.products.suppressed import count_texts
from pipeline.reporting.figures import RESIDUALS
from pipeline.reporting.over_time import time_layers
from pipeline.reporting.plane import WIDTH, Plane, rings
from pipeline.reporting.rasters import PIXELS, area_colours, legend, pictures
from pipeline.reporting.words import UNKNOWN, number, percent


def map_data(
    config: Config,
    out: Path,
    files: RasterFiles,
    areas: Any,
    names: list[str],
    plane: Plane,
    shapes: np.ndarray,
    periods: Any = None,
) -> dict[str, Any]:
    """Return what the script of the page draws maps from.

    Parameters
    ----------
    config : Config
    out : Path
        Output directory.
    files : RasterFiles
        Open files.
    areas : GeoDataFrame
        Layer of ``areas.gpkg``, (n_area,).
    names : list of str
        Name of each area.
    plane : Plane
    shapes : (n_area,) object array
        Areas on the plane.
    periods : DataFrame, optional
        The areas in every period.

    Returns
    -------
    dict
        JSON-able: ``width``, ``height``, ``metres``, ``rasters``, ``fills``, ``times``, ``areas``,
        ``left`` and ``right`` (names of the first layers).
    """
    ids = [str(each) for each in areas.iloc[:, 0]]
    times = time_layers(config, out, files, periods, ids, PIXELS // 2)
    rasters = [
        {
            "name": each.name,
            "title": each.title,
            "unit": each.unit,
            "uri": each.uri,
            "legend": each.legend,
            "palette": each.palette,
            "values": each.values,
            "side": each.shrunk,
        }
        for each in pictures(config, out, files, PIXELS // 2 if times else PIXELS)
    ]
    fills = area_layers(config, out, files, areas)
    shown = [each["name"] for each in rasters] + [each["name"] for each in fills]
    response = config.response_kind
    left = response.mean_map
    return {
        "width": WIDTH,
        "height": round(plane.height, 3),
        "metres": plane.metres if np.isfinite(plane.metres) else None,
        "rasters": rasters,
        "fills": fills,
        "times": times,
        "facts": facts_of(config, areas),
        "areas": [
            {"name": one_line_text(name), "rings": rings(shape)}
            for name, shape in zip(names, shapes, strict=True)
        ],
        "left": left if left in shown else fills[0]["name"],
        "right": next((n for n in response.spread_maps if n in shown), fills[-1]["name"]),
    }


def area_layers(config: Config, out: Path, files: RasterFiles, areas: Any) -> list[dict[str, Any]]:
    """Return the layers that colour areas: what was observed, what was fitted, what is left."""
    product = level_product(config)
    response = config.response_kind
    columns = [(name, response.fill(title)) for name, title in response.layers.items()]
    unit = response.in_unit("{}")
    scale = raster_scale(config, out, product, files)
    if scale is None:
        values = areas[columns[0][0]].to_numpy(np.float64)
        scale = Scale.of(values, low=product.low, high=product.high, ramp=product.ramp)
    found = [_fill(name, title, unit, areas[name], scale) for name, title in columns]
    if "residual" in areas:
        title = "Areas: residual (observed less fitted)"
        unit = "predictive standard deviations"
        found.append(_fill("residual", title, unit, areas["residual"], RESIDUALS))
    return found


def _fill(name: str, title: str, unit: str, values: Any, scale: Scale) -> dict[str, Any]:
    return {
        "name": f"area_{name}",
        "title": title,
        "unit": unit,
        "colours": area_colours(values, scale),
        "legend": legend(scale),
    }


def facts_of(config: Config, areas: Any) -> dict[str, list[Any]]:
    """Return the numbers of areas in words: ``labels``, and for each area as many texts."""
    response = config.response_kind
    level = percent(config.output.interval)

    def ends(name: str, low: str, high: str) -> list[str]:
        return [
            f"{number(value)} ({level}: {number(a)} to {number(b)})"
            if np.isfinite(value)
            else UNKNOWN
            for value, a, b in areas[[name, low, high]].to_numpy(np.float64)
        ]

    columns = {
        response.fill(title): ends(*names) if len(names) > 1 else _texts(areas, names[0])
        for title, names in response.facts.items()
    }
    if "people" in areas:
        unit = response.weight_unit
        columns[unit[:1].upper() + unit[1:]] = _texts(areas, "people")
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    return {"labels": list(columns), "rows": rows}


def _texts(areas: Any, name: str) -> list[str]:
    hidden = count_texts(areas) if name == "observed" else [None] * len(areas)
    return [
        number(float(each)) if text is None else text
        for each, text in zip(areas[name].to_numpy(np.float64), hidden, strict=True)
    ]

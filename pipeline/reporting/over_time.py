"""Periods on the page: maps that a slider runs through, and a small line of each area."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from geo.writers.colours import Scale
from geo.writers.raster_files import RasterFiles
from pipeline.config.schema import Config
from pipeline.products.periods import over_time, rasters_over_time
from pipeline.products.product_types import Layer
from pipeline.products.products import PERIODS_PARQUET
from pipeline.reporting.rasters import data_uri, key_of, read_limited, shade
from pipeline.reporting.tables import Cell
from pipeline.reporting.words import number

CELLS = 500_000  # areas times periods, at most: earlier periods are left out
SHOWN = 60  # last periods of a small line
LINES = 5_000  # areas, at most, that have one
WIDTH, HEIGHT, EDGE = 110, 24, 2  # of it, pixels


def read_periods(config: Config, out: Path) -> pd.DataFrame | None:
    """Read the areas in every period; None for a run of one period."""
    path = out / PERIODS_PARQUET.file
    return pd.read_parquet(path) if config.series is not None and path.is_file() else None


def time_layers(
    config: Config,
    out: Path,
    files: RasterFiles,
    table: pd.DataFrame | None,
    ids: Sequence[str],
    n_pixel: int,
) -> list[dict[str, Any]]:
    """Return the layers of the map over time, of two periods or more; those of most are first.

    Parameters
    ----------
    config : Config
    out : Path
        Output directory.
    files : RasterFiles
        Open files.
    table : DataFrame or None
        Of :func:`read_periods`.
    ids : sequence of str
        Areas in the order of the page.
    n_pixel : int
        Pixels of all pictures together.

    Returns
    -------
    list of dict
        JSON-able: ``name``, ``title``, ``unit``, the key of the colours, and ``frames``: ``label``,
        ``forecast``, and ``uri`` of a picture or ``at``, the place of each area among the colours.
    """
    if table is None:
        return []
    ahead = dict(zip(table["period"], table["forecast"].astype(bool), strict=True))
    of_areas = [
        _of_areas(layer, table, layer.name if layer.name in table else "rate", ids, ahead)
        for layer in over_time(config)
    ]
    rasters = rasters_over_time(config, out)
    n_picture = sum(len(paths) for _, paths in rasters)
    of_pixels = [_of_pixels(*each, ahead, files, n_pixel // n_picture) for each in rasters]
    known = [each for each in (*of_pixels, *of_areas) if len(each["frames"]) > 1]
    return sorted(known, key=lambda each: -len(each["frames"]))


def _layer(layer: Layer, what: str, scale: Scale, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": f"{what}_{layer.name}",
        "title": f"{what.capitalize()}: {layer.description}",
        "unit": "" if layer.unit == "1" else layer.unit,
        **key_of(scale),
        "frames": frames,
    }


def _of_pixels(
    layer: Layer,
    paths: dict[str, Path],
    ahead: dict[str, bool],
    files: RasterFiles,
    limit: int,
) -> dict[str, Any]:
    product = layer.product
    scale = files.scale(list(paths.values()), low=product.low, high=product.high, ramp=product.ramp)
    frames = [
        {
            "label": label,
            "forecast": ahead[label],
            "uri": data_uri(read_limited(files, path, limit)[0], scale),
        }
        for label, path in paths.items()
    ]
    return _layer(layer, "pixels", scale, frames)


def _of_areas(
    layer: Layer, table: pd.DataFrame, column: str, ids: Sequence[str], ahead: dict[str, bool]
) -> dict[str, Any]:
    product = layer.product
    values = table.pivot(index="period", columns="id", values=column).reindex(
        index=list(ahead), columns=list(ids)
    )
    values = values[values.notna().any(axis=1)].iloc[-max(2, CELLS // max(len(ids), 1)) :]
    known = values.to_numpy(np.float64)
    scale = Scale.of(known, low=product.low, high=product.high, ramp=product.ramp)
    frames = [
        {
            "label": label,
            "forecast": ahead[label],
            "at": [k if ok else None for k, ok in zip(at, np.isfinite(row), strict=True)],
        }
        for label, at, row in zip(values.index, shade(known, scale).tolist(), known, strict=True)
    ]
    return _layer(layer, "areas", scale, frames)


def area_lines(table: pd.DataFrame | None) -> dict[str, Cell]:
    """Return the rate of each area over time as a small line, by id; none of very many areas.

    It is sorted by the last known rate over the mean.
    """
    if table is None or table["id"].nunique() > LINES:
        return {}
    last = table["period"].unique()[-SHOWN:]
    shown = table[table["period"].isin(last)]
    return {str(area): _line(rows) for area, rows in shown.groupby("id", sort=False)}


def _line(rows: pd.DataFrame) -> Cell:
    rate, ahead = rows["rate"].to_numpy(np.float64), rows["forecast"].to_numpy(bool)
    known = np.flatnonzero(np.isfinite(rate))
    past = known[~ahead[known]]
    if known.size < 2 or not past.size or not rate[past].mean() > 0:
        return Cell("", "")
    x = EDGE + (WIDTH - 2 * EDGE) * np.arange(rate.size) / (rate.size - 1)
    y = HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * rate / rate[known].max()
    most, label = past[rate[past].argmax()], rows["period"].to_numpy()
    told = f"{number(rate[past[0]])} in {label[past[0]]}, {number(rate[past[-1]])} in "
    told += f"{label[past[-1]]}; most {number(rate[most])} in {label[most]}"
    parts = [("", past), ("ahead", known[known >= past[-1]])]
    lines = Markup("").join(
        Markup('<polyline class="{}" points="{}"/>').format(
            kind, " ".join(f"{x[k]:.0f},{y[k]:.1f}" for k in part)
        )
        for kind, part in parts
        if part.size > 1
    )
    # Without a <title>: the search of the table would find its words.
    drawn = Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
        'aria-label="{told}">{lines}</svg>'
    ).format(w=WIDTH, h=HEIGHT, told=told, lines=lines)
    return Cell(drawn, float(rate[past[-1]] / rate[past].mean()))

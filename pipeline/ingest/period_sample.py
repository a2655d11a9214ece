"""The values of what moves in the areas, by period: coarse reads of the files of all periods.

A series has hundreds of files. Of each, at most 256 x 256 pixels over the areas are read, and one
in each area that these leave out: enough to tell a wrong unit, or a raster that was cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import rasterio.features
import shapely

from geo.core.errors import GridError, InputError
from geo.grids.grid import Tile
from geo.sources.raster import bounded_cache
from geo.sources.registry import open_source
from geo.sources.source import Source
from pipeline.config.schema import Config
from pipeline.ingest.layer_keys import head_of, layers_of
from pipeline.ingest.raster_sample import in_pixels
from pipeline.storage.location import is_remote
from pipeline.storage.windows import copy_at

SIDE = 256  # pixels that are read along a side, at most


@dataclass(frozen=True)
class LayerPeriods:
    """A layer in each of its files, by rising time.

    Attributes
    ----------
    key : str
        ``population`` or ``covariates.<name>``.
    labels, paths : tuple of str
        Of each file: the first period that it is of, and its path.
    times : (n_file,) float64 array
        Of these periods, in steps.
    season_length : float or None
        Steps of a season.
    mean : (n_area, n_file) float64 array
        Of the pixels of each area that have a value; NaN if none has.
    known : (n_area, n_file) float64 array
        Share of the pixels of each area that have a value.
    """

    key: str
    labels: tuple[str, ...]
    paths: tuple[str, ...]
    times: np.ndarray
    season_length: float | None
    mean: np.ndarray
    known: np.ndarray

    def same_season(self, t: int) -> np.ndarray:
        """Return which files are of the season of file ``t`` in other years, (n_file,) bool."""
        length, steps = self.season_length, np.abs(self.times - self.times[t])
        if length is None:
            return np.zeros(steps.size, bool)
        beside: np.ndarray = np.abs((steps + length / 2) % length - length / 2) <= 0.5
        return beside & (steps > length / 2)


def sample_periods(config: Config, shapes: gpd.GeoSeries) -> list[LayerPeriods]:
    """Read the files of what moves, those of forecasts that are there included.

    Cubes, tables and files at addresses are left out, as are files that cannot be read: ingest
    tells of these.

    Parameters
    ----------
    config : Config
        With the inputs on this machine.
    shapes : (n_area,) GeoSeries
        Valid polygons with a CRS.
    """
    series = config.series
    if series is None or shapes.empty:
        return []
    sampler, read = _AreaSampler(shapes), dict[str, tuple[np.ndarray, np.ndarray] | None]()
    found = []
    for name in config.moving():
        each = dict[str, tuple[str, str]]()
        for label in (*series.periods, *series.following(config.output.forecast)):
            section = layers_of(config.at(label))[name]
            if _is_left_out(section):
                continue
            file = repr((section.path, section.choice, section.header))
            if file not in read:
                read[file] = _read(sampler, head_of(name), section)
            if read[file] is not None:
                each.setdefault(file, (label, section.path))
        sampled = [values for file in each if (values := read[file]) is not None]
        if sampled:
            labels, paths = zip(*each.values(), strict=True)
            mean, known = (np.stack(part, axis=1) for part in zip(*sampled, strict=True))
            times = np.array([series.time_of(label) for label in labels])
            length = series.season_length
            found.append(LayerPeriods(head_of(name), labels, paths, times, length, mean, known))
    return found


def _is_left_out(section: Any) -> bool:
    if getattr(section, "kind", "path") in ("table", "distance") or section.aggregate is not None:
        return True
    path = section.path
    return is_remote(path) or copy_at(path) is not None or not Path(path).exists()


def _read(sampler: _AreaSampler, key: str, section: Any) -> tuple[np.ndarray, np.ndarray] | None:
    source = open_source(section.path, key, [], section.choice, section.header)
    if source is None:
        return None
    try:
        return sampler.read(source)
    except (InputError, GridError):
        return None
    finally:
        source.close()


@dataclass(frozen=True)
class _Cells:
    """Equal parts of the bounds of the areas on a grid, and the area that each is in.

    Attributes
    ----------
    first : (int, int)
        Row and column where they begin; may lie outside the raster.
    step : (int, int)
        Pixels of a part.
    row, col, area : (n,) int64 arrays
        Parts by number, and the area of each.
    """

    first: tuple[int, int]
    step: tuple[int, int]
    row: np.ndarray
    col: np.ndarray
    area: np.ndarray


class _AreaSampler:
    """Reads one pixel of each of a few parts of the areas; the parts of a grid are found once."""

    def __init__(self, shapes: gpd.GeoSeries) -> None:
        self._shapes = shapes
        self._cells: dict[tuple[Any, ...], _Cells | None] = {}

    def read(self, source: Source) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of each area, and the share of its pixels that have a value."""
        if source.crs is None:
            message = f"{source.path}: has no CRS"
            raise GridError(message)
        key = source.crs.to_wkt(), tuple(source.transform), source.shape
        if key not in self._cells:
            self._cells[key] = _cells(in_pixels(self._shapes, source, source.crs))
        cells, n_area = self._cells[key], len(self._shapes)
        if cells is None:
            return np.full(n_area, np.nan), np.zeros(n_area)
        with bounded_cache():
            value = _values(source, cells)
        there = np.isfinite(value)
        n, some = (np.bincount(each, minlength=n_area) for each in (cells.area, cells.area[there]))
        total = np.bincount(cells.area[there], value[there], n_area)
        mean = np.divide(total, some, out=np.full(n_area, np.nan), where=some > 0)
        return mean, some / np.maximum(n, 1)


def _cells(polygons: np.ndarray) -> _Cells | None:
    bounds = shapely.bounds(polygons)
    whole = np.flatnonzero(np.isfinite(bounds).all(axis=1))
    if whole.size == 0:
        return None
    left, top = np.floor(bounds[whole, :2].min(axis=0)).astype(int).tolist()
    right, bottom = np.ceil(bounds[whole, 2:].max(axis=0)).astype(int).tolist()
    step_row, step_col = max(1, -(-(bottom - top) // SIDE)), max(1, -(-(right - left) // SIDE))
    n_row, n_col = max(1, -(-(bottom - top) // step_row)), max(1, -(-(right - left) // step_col))
    area = rasterio.features.rasterize(
        ((polygons[k], k + 1) for k in whole.tolist()),
        out_shape=(n_row, n_col),
        transform=rasterio.Affine(step_col, 0, left, 0, step_row, top),
        dtype="int32",
    )
    row, col = np.nonzero(area)
    inside = area[row, col].astype(np.int64) - 1
    few = np.setdiff1d(whole, inside)  # smaller than a part
    point = shapely.point_on_surface(polygons[few])
    at_row = ((shapely.get_y(point) - top) / step_row).astype(np.int64).clip(0, n_row - 1)
    at_col = ((shapely.get_x(point) - left) / step_col).astype(np.int64).clip(0, n_col - 1)
    return _Cells(
        (top, left),
        (step_row, step_col),
        np.append(row, at_row),
        np.append(col, at_col),
        np.append(inside, few),
    )


def _values(source: Source, cells: _Cells) -> np.ndarray:
    """Return a value of each part, NaN beyond the raster."""
    value = np.full(cells.row.size, np.nan)
    spans, inside = [], np.ones(value.size, bool)
    parts = cells.row, cells.col
    for own, first, step, n in zip(parts, cells.first, cells.step, source.shape, strict=True):
        # Parts whose middle pixel is on the raster: from the first to before the last of these.
        middle = first + step * np.arange(int(own.max()) + 1) + step // 2
        on = np.flatnonzero((middle >= 0) & (middle < n))
        if on.size == 0:
            return value
        begin, end = int(on[0]), int(on[-1]) + 1
        spans.append((begin, max(first + step * begin, 0), min(first + step * end, n), end - begin))
        inside &= (own >= begin) & (own < end)
    (row, top, bottom, n_row), (col, left, right, n_col) = spans
    window = Tile(top, left, bottom - top, right - left)
    read = source.coarse(window, (n_row, n_col))
    value[inside] = read[cells.row[inside] - row, cells.col[inside] - col]
    return value

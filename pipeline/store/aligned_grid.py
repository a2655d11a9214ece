"""The aligned grid: all rasters of a run on one grid, in ``work/grid.zarr``.

Threads write the grid tile by tile, one writer for each shard. The bag store's writer and the
predict stage read it. Tiles without areas are not written, and read as NaN, unless the maps show
all pixels (``mask: all``). ``docs/bag-store.md`` describes the format.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec

from geo.core.errors import InputError, Problem
from geo.grids.grid import Grid, Tile
from geo.grids.membership import Membership, summed_fractions
from geo.grids.positions import Positions, positions_about
from geo.sources.align import TRANSFORMS, aligned
from geo.sources.raster import bounded_cache
from geo.sources.source import Source
from pipeline.core.errors import StoreError
from pipeline.core.threads import run_tasks
from pipeline.storage.local_commit import read_marker
from pipeline.storage.location import Location, Place, StorageError
from pipeline.storage.object_commit import open_finished, zarr_at
from pipeline.store.labels import (
    GRID_DIMENSIONS,
    grid_attributes,
    grid_coordinates,
    label_group,
)
from pipeline.store.tile_index import TileIndex

FORMAT, VERSION = "disagg-grid", 1
TILE = 512  # side of a shard in pixels; one task writes one shard
CHUNK = 64  # side of a chunk in pixels, the unit of reading

# Why a pixel cannot be used, as bits.
NO_COVARIATE, NO_POPULATION, NOBODY = 1, 2, 4


@dataclass(frozen=True)
class Layer:
    """One raster and how to align it to the grid.

    Attributes
    ----------
    place : str
        Configuration key and file, for messages.
    source : Source
    resampling, transform : str
        See :mod:`geo.sources.align`.
    density : bool
        Whether values are per km2, to be converted to amounts per pixel.
    """

    place: str
    source: Source
    resampling: str
    transform: str = "none"
    density: bool = False

    def read(self, grid: Grid, tile: Tile) -> np.ndarray:
        """Return the layer on a tile: (n_row, n_col) float64, NaN where missing."""
        values = aligned(self.source, grid, tile, self.resampling, density=self.density)
        return TRANSFORMS[self.transform](values)


@dataclass(frozen=True)
class InputLayers:
    """The rasters of a run.

    Attributes
    ----------
    covariates : mapping of str to Layer
        In the order of the covariates.
    population : Layer or None
        People; without it the exposure of a pixel is its area, km2.
    """

    covariates: Mapping[str, Layer]
    population: Layer | None


@dataclass
class Range:
    """Extremes and count of the values of a layer inside the areas."""

    low: float = np.inf
    high: float = -np.inf
    n_value: int = 0
    n_missing: int = 0

    def add(self, values: np.ndarray) -> None:
        """Include the values of some pixels, NaN where missing."""
        finite = values[np.isfinite(values)]
        self.n_value += finite.size
        self.n_missing += values.size - finite.size
        if finite.size:
            self.low = min(self.low, float(finite.min()))
            self.high = max(self.high, float(finite.max()))


@dataclass
class GridSummary:
    """Statistics of an aligned grid.

    Attributes
    ----------
    path : Path or Location
    names : tuple of str
        Covariates, in the order of the array.
    state : (n,) uint8 array
        Of each pixel of each area, in the order of the membership: 0 if usable, else the bits of
        the reasons why not.
    ranges : dict of Range
        Of each covariate.
    people : Range
        Of the population, or of the pixels' area.
    covered : float
        Surface of the areas' union, pixels.
    lost : float
        Exposure inside the areas of the pixels that lack a covariate, people or km2.
    on_grid : float
        Exposure of all pixels of the grid; NaN unless ``outside`` is counted.
    inside : float
        Exposure inside the areas, each pixel once.
    twice : float
        Exposure that overlapping areas count again; ``lost`` contains its share of it.
    problems : list of Problem
        Rasters that could not be read.
    """

    path: Place
    names: tuple[str, ...]
    state: np.ndarray
    ranges: dict[str, Range]
    people: Range = field(default_factory=Range)
    covered: float = 0.0
    lost: float = 0.0
    on_grid: float = float("nan")
    inside: float = 0.0
    twice: float = 0.0
    problems: list[Problem] = field(default_factory=list)


def write_aligned_grid(
    path: Place,
    grid: Grid,
    layers: InputLayers,
    members: Membership | None,
    *,
    everywhere: bool,
    outside: bool = False,
    workers: int | None = None,
    advance: Callable[[int], object] | None = None,
) -> GridSummary:
    """Align all layers and write them.

    Parameters
    ----------
    path : Path or Location
        An empty directory, or a prefix on an object store.
    grid : Grid
    layers : InputLayers
    members : Membership or None
        Pixels of the areas; None if the areas are unusable and only the rasters are checked.
    everywhere : bool
        Whether to write pixels outside all areas, too.
    outside : bool, optional
        Whether to count the people of tiles without areas, too.
    workers : int, optional
        Threads.
    advance : callable, optional
        Called with 1 after each tile.

    Returns
    -------
    GridSummary
    """
    covariates, population = layers.covariates, layers.population
    names = tuple(covariates)
    group = zarr.create_group(zarr_at(path), zarr_format=3)
    exposure = "people" if population is not None else "km2"
    arrays = {
        name: _create(group, name, (*([len(names)] * (len(dims) - 2)), *grid.shape), exposure)
        for name, dims in GRID_DIMENSIONS.items()
    }
    group.attrs.update(
        {
            "format": FORMAT,
            "version": VERSION,
            "grid": grid.to_dict(),
            "covariates": list(names),
            "exposure": exposure,
            "tile": TILE,
            "coords_crs": positions_about(grid, _pixels_of(members)).crs.to_wkt(),
        }
    )
    units = [layer.source.describe().unit for layer in covariates.values()]
    label_group(group, grid_coordinates(grid, names, units), grid)
    summary = GridSummary(
        path,
        names,
        np.zeros(0 if members is None else members.pixel.size, np.uint8),
        {name: Range() for name in names},
    )
    lock = threading.Lock()
    broken: set[str] = set()

    def read(layer: Layer, tile: Tile) -> np.ndarray:
        missing = np.full(tile.shape, np.nan)
        if layer.place in broken:
            return missing
        try:
            return layer.read(grid, tile)
        except InputError as error:
            with lock:
                if layer.place not in broken:
                    broken.add(layer.place)
                    summary.problems.extend(replace(p, place=layer.place) for p in error.problems)
            return missing

    index = None if members is None else TileIndex.of(members, grid, TILE)

    def people_of(tile: Tile) -> float:
        """Count the people of a tile without areas; what cannot be read there is no problem."""
        try:
            return _total(population.read(grid, tile)) if population and outside else np.nan
        except InputError:
            return np.nan

    def write(tile: Tile) -> list[float]:
        if members is None or index is None:
            here, shares = np.empty(0, np.int64), np.ones(tile.shape)
        else:
            here = index.inside(tile)
            shares = summed_fractions(members.pixel[here], members.fraction[here], grid, tile)
        covered = np.minimum(shares, 1.0)
        again = shares - covered
        inside = covered > 0
        if not everywhere and not inside.any():
            if advance is not None:
                advance(1)
            return [0.0, 0.0, people_of(tile), 0.0, 0.0]
        x = np.empty((len(names), *tile.shape))
        for number, layer in enumerate(covariates.values()):
            x[number] = read(layer, tile)
        # Stored as float32: a value too large for it counts as missing from here on.
        with np.errstate(over="ignore"):
            x32 = x.astype(np.float32)
        x32[~np.isfinite(x32)] = np.nan
        people = grid.area_km2(tile) if population is None else read(population, tile)
        arrays["covariates"][(slice(None), *tile.slices)] = x32
        arrays["population"][tile.slices] = people
        arrays["coverage"][tile.slices] = covered
        if again.any():
            arrays["overlap"][tile.slices] = again
        state = np.where(np.isfinite(x32).all(axis=0), 0, NO_COVARIATE).astype(np.uint8)
        state |= np.where(np.isfinite(people), 0, NO_POPULATION).astype(np.uint8)
        state |= np.where(people > 0, 0, NOBODY).astype(np.uint8)
        if members is not None:
            row, col = grid.row_col(members.pixel[here])
            summary.state[here] = state[row - tile.row, col - tile.col]
        with lock:
            for number, name in enumerate(names):
                summary.ranges[name].add(x32[number][inside])
            summary.people.add(people[inside])
        if advance is not None:
            advance(1)
        lost = inside & (people > 0) & (state & NO_COVARIATE > 0)
        return [
            float(covered.sum()),
            float((people * shares)[lost].sum()),
            _total(people) if outside else np.nan,
            _total(people * covered),
            _total(people * again),
        ]

    with bounded_cache():
        sums = run_tasks(write, [(tile,) for tile in grid.tiles(TILE)], workers)
    # Summed in the order of the tiles: bit-identical on any number of threads.
    totals = (float(sum(part)) for part in zip(*sums, strict=True))
    summary.covered, summary.lost, summary.on_grid, summary.inside, summary.twice = totals
    return summary


def _total(people: np.ndarray) -> float:
    """Sum the people, without missing and negative numbers: these are a nodata value not set."""
    return float(people[people > 0].sum())


def positions_of(group: Any, grid: Grid) -> Positions:
    """Return the positions of the pixels of an aligned grid, as its attributes say."""
    return Positions.of(grid, group.attrs.get("coords_crs"))


def _pixels_of(members: Membership | None) -> np.ndarray:
    return np.empty(0, np.int64) if members is None else members.pixel


def open_aligned_grid(path: str | os.PathLike[str] | Location) -> Any:
    """Open a finished grid for reading; StoreError if absent, unfinished, damaged or not a grid."""
    read_marker(path, FORMAT, VERSION)
    return open_finished(path)


def read_part(group: Any, name: str, *part: slice) -> np.ndarray:
    """Read a part of an array of an aligned grid; StoreError if a chunk is damaged."""
    try:
        return np.asarray(group[name][part])
    except StorageError:  # the read failed: the chunk itself may be intact
        raise
    except Exception as error:  # zarr raises whatever its codecs raise
        where = ", ".join(f"{p.start}:{p.stop}" for p in part[-2:])
        place = getattr(group.store, "root", group.store)
        found = (
            f"{place}: array {name}, rows and columns {where}, is damaged ({error}); "
            "delete the store and ingest again"
        )
        raise StoreError(found) from error


def known_people(population: np.ndarray) -> np.ndarray:
    """Return the people of pixels, float64: 0 where unknown or negative, as in the bags."""
    return np.where(population > 0, population, 0.0).astype(np.float64)


def read_pixels(group: Any, pixel: np.ndarray, n_col: int) -> tuple[np.ndarray, np.ndarray]:
    """Read scattered pixels of an aligned grid, each chunk once.

    Parameters
    ----------
    group : zarr.Group
        An aligned grid.
    pixel : (n,) int64 array
        ``row * n_col + col``.

    Returns
    -------
    x : (n, n_feat) float32
    population : (n,) float64
    """
    covariates, population = group["covariates"], group["population"]
    row, col = np.divmod(pixel, n_col)
    x = np.empty((pixel.shape[0], covariates.shape[0]), np.float32)
    people = np.empty(pixel.shape[0])
    chunk = (row // CHUNK) * (n_col // CHUNK + 1) + col // CHUNK
    order = np.argsort(chunk, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(chunk[order])) + 1):
        if part.size == 0:
            continue
        r0, c0 = row[part[0]] // CHUNK * CHUNK, col[part[0]] // CHUNK * CHUNK
        window = (slice(r0, r0 + CHUNK), slice(c0, c0 + CHUNK))
        at = row[part] - r0, col[part] - c0
        x[part] = covariates[(slice(None), *window)][:, at[0], at[1]].T
        people[part] = population[window][at]
    return x, people


def _create(group: zarr.Group, name: str, shape: Sequence[int], exposure: str) -> Any:
    head = tuple(max(1, n) for n in shape[:-2])  # there may be no usable covariate
    return group.create_array(
        name,
        shape=tuple(shape),
        dtype="float64" if name == "population" else "float32",
        chunks=(*head, CHUNK, CHUNK),
        shards=(*head, TILE, TILE),
        serializer=BytesCodec(endian="little"),
        compressors=[ZstdCodec(level=1), Crc32cCodec()],
        fill_value=0.0 if name in ("coverage", "overlap") else np.nan,
        dimension_names=GRID_DIMENSIONS[name],
        attributes=grid_attributes(name, exposure),
    )

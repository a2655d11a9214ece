"""Estimate the size of a run from headers and borders: pixels, areas, steps, bytes on disk."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import shapely

from geo.core.errors import InputError, Problem
from geo.grids.estimate import estimate_pixels
from geo.grids.grid import Grid, Tile
from geo.grids.reproject import reproject
from geo.sources.align import alignment_method, source_windows
from geo.sources.registry import source_of
from models.core.block import cut_blocks
from models.training.schedule import plan_epoch
from pipeline.config.model_factory import new_model
from pipeline.config.schema import Config
from pipeline.config.windows import periods_to_map, windows_of
from pipeline.evaluation.forecasts import AHEAD, LEAST_HISTORY, ORIGINS
from pipeline.ingest.balance import counts_outside
from pipeline.ingest.inputs import Inputs, open_inputs
from pipeline.ingest.raster_sample import N_SAMPLED
from pipeline.plan.points import count_points
from pipeline.products.periods import MOST_MAPPED
from pipeline.products.products import layers
from pipeline.storage.location import is_remote
from pipeline.storage.windows import copy_at
from pipeline.store.aligned_grid import TILE, Layer
from pipeline.store.bag_writer import CHUNK_PIXELS, bag_order
from pipeline.store.series_store import SHARES

PIXEL_BYTES = 40  # of weight, coordinates and index in the bag store; a covariate adds 4
TABLE_CHUNK = 65536  # bags in a chunk of the store's tables, which are padded to whole chunks
METADATA_BYTES = 45_000  # JSON of the arrays and coordinates, and one copy of all of it
# What the aligned grid's compression (zstd 1) leaves of float32 values: measured on the simulated
# countries (`python -m benchmarks.plan`), that of a compressed GeoTIFF of the same values, 0.85 at
# most.
SQUEEZED = 0.85
A_YEAR = 3  # past periods that a forecast's covariates may be of: the season, a month to each side
MAP_BYTES = 4.0  # a pixel in an area, of a cloud-optimised map with its overviews; measured there


@dataclass(frozen=True)
class Passage:
    """What one pass over the areas reads, all pixels or those that represent large areas.

    Attributes
    ----------
    n_pixels, n_areas : int
    n_blocks, n_steps : int
    store_bytes : int
    """

    n_pixels: int
    n_areas: int
    n_blocks: int
    n_steps: int
    store_bytes: int

    def over(self, n_period: int) -> Passage:
        """Return a pass over as many periods, a step each."""
        return Passage(*(n_period * value for value in astuple(self)))


@dataclass(frozen=True)
class Periods:
    """How often a run does what it does once without ``time``.

    Attributes
    ----------
    fitted : int
        Periods of the series.
    mapped : int
        Periods that are mapped, forecasts among them.
    drawn : int
        Periods of ``periods.csv``.
    in_windows : int
        Periods of all windows together.
    windows : int
    scored : int
        Periods that past forecasts are made of.
    moving : int
        Layers that move.
    ahead, ahead_in_windows : int
        Forecasts that are mapped, and of windows.
    guesses : int
        Past periods whose covariates a map of a forecast is made with, each in turn.
    """

    fitted: int = 1
    mapped: int = 1
    drawn: int = 0
    in_windows: int = 0
    windows: int = 0
    scored: int = 0
    moving: int = 0
    ahead: int = 0
    ahead_in_windows: int = 0
    guesses: int = 1

    @classmethod
    def of(cls, config: Config) -> Periods:
        """Count those of a configuration."""
        series, output = config.series, config.output
        if series is None:
            return cls()
        n = len(series.periods)
        latest = str(config.period)
        mapped = {latest, *periods_to_map(series, output.periods, latest)[0]}
        windows, _ = windows_of(series, output.windows, output.forecast)
        moving, after = len(config.moving()), set(series.following(output.forecast))
        scored = sum(min(AHEAD, k) for k in range(1, min(ORIGINS, n - LEAST_HISTORY) + 1))
        return cls(
            n,
            len(mapped) + output.forecast,
            n + output.forecast,
            sum(len(each.labels) for each in windows),
            len(windows),
            max(scored, 0),
            moving,
            output.forecast,
            sum(len(after.intersection(each.labels)) for each in windows),
            _stand_ins(n, series.season_length) if moving else 1,
        )


def _stand_ins(n: int, season: float | None) -> int:
    """Return from how many past periods a forecast takes what moves."""
    if season is None or n >= season:
        return min(MOST_MAPPED, n if season is None else round(A_YEAR * n / season))
    return SHARES if n > 1 else 1


@dataclass(frozen=True)
class Sizes:
    """What a run consists of.

    Attributes
    ----------
    grid : Grid
    n_areas : int
        Areas with at least a part of a pixel.
    area_pixels : (n_areas,) float64 array
        Estimated pixels of each, those shared with neighbours counted in each.
    n_small : int
        Areas of less than a pixel's surface.
    n_covariates : int
    n_tile_pixels : int
        Pixels of the tiles that any area may meet: what is aligned and predicted from.
    n_blocks, n_steps : int
        Blocks of the store, and steps of an epoch.
    ways : dict of str to int
        Rasters by the way in which they reach the grid, see :func:`alignment_method`.
    n_maps : int
    bytes : dict of str to int
        On disk: of the inputs (``inputs``), the bag store (``bags.zarr``), the aligned grid
        (``grid.zarr``), the maps (``maps``), and for a while (``scratch``, ``drafts``); of inputs
        at addresses, see :func:`foresee_copies`.
    periods : Periods
    n_points, point_pixels : int
        Points beside the areas, and pixels that they may be of.
    """

    grid: Grid
    n_areas: int
    area_pixels: np.ndarray
    n_small: int
    n_covariates: int
    n_tile_pixels: int
    n_blocks: int
    n_steps: int
    ways: Mapping[str, int]
    n_maps: int
    bytes: Mapping[str, int]
    periods: Periods = Periods()
    n_points: int = 0
    point_pixels: int = 0

    @property
    def n_bags(self) -> int:
        """Areas, and points beside them."""
        return self.n_areas + self.n_points

    @property
    def n_pixels(self) -> int:
        """Pixels in areas, at most: those that lack a value are not known before ingest."""
        return round(float(self.area_pixels.sum()))

    @property
    def bag_pixels(self) -> np.ndarray:
        """Pixels of each area in each period: (n_areas * fitted,)."""
        return np.tile(self.area_pixels, self.periods.fitted)

    @property
    def n_layers(self) -> int:
        """Rasters that are aligned, each once a period where it moves; with the population."""
        return self.n_covariates + 1 + (self.periods.fitted - 1) * self.periods.moving


def measure_inputs(config: Config) -> Sizes:
    """Read headers, borders and tables; no pixel.

    Parameters
    ----------
    config : Config

    Raises
    ------
    InputError
        With everything that headers and tables show to be wrong.
    """
    problems: list[Problem] = []
    inputs = open_inputs(config, problems)
    grid, areas = inputs.grid, inputs.areas
    if problems or grid is None or areas is None:
        raise InputError(problems)
    geometry = reproject(areas.geometry, grid)
    pixels = estimate_pixels(geometry, grid)
    used = pixels > 0
    beside = count_points(config, grid, float(pixels.sum()))
    if not used.any():
        found = "does not overlap the areas"
        raise InputError([Problem("grid", found, "give the grid of a raster that covers them")])
    sizes = np.maximum(1, np.rint(pixels[used])).astype(np.int64)
    order = bag_order(np.ones(sizes.size, bool), config.fit.seed)
    cuts = cut_blocks(sizes[order])
    strips = _strips(geometry[used], grid)
    n_tile = sum(n for _, n in strips)
    surface = _surface(geometry, grid)
    n_inside = min(float(surface[used].sum()), n_tile)  # each pixel once, where areas share it
    rasters = [*inputs.covariates.values(), *([inputs.population] if inputs.population else [])]
    ways: dict[str, int] = {}
    periods, moving = Periods.of(config), set(config.moving())
    for layer in rasters:
        way = alignment_method(layer.source, grid, layer.resampling)
        moves = layer.place.removeprefix("covariates.") in moving
        ways[way] = ways.get(way, 0) + (periods.fitted if moves else 1)
    more = (periods.fitted - 1) * periods.moving  # layers of the other periods
    n_feat = len(inputs.covariates)
    n_maps = 0
    if "pixels" in new_model(config).predicts:
        n_maps = len(layers(config)) + len(layers(config, from_draws=True))
    n_mapped = n_tile if config.output.mask == "all" else n_inside
    return Sizes(
        grid=grid,
        n_areas=int(used.sum()),
        area_pixels=pixels[used],
        n_small=int((surface < 1.0).sum()),
        n_covariates=n_feat,
        n_tile_pixels=n_tile,
        n_blocks=cuts.size - 1,
        n_steps=_steps(config, np.diff(cuts)),
        ways=ways,
        n_maps=n_maps,
        bytes={
            "inputs": sum(_file_bytes(path) for path in set(config.input_paths().values())),
            **foresee_copies(config, inputs, [strip for strip, _ in strips]),
            "bags.zarr": store_bytes(int(sizes.sum()), sizes.size, n_feat)
            + int(sizes.sum()) * (4 * more + (8 * periods.fitted if more else 0)),
            "grid.zarr": _grid_bytes(inputs.covariates, inputs.population, n_tile, n_mapped)
            + round(4 * SQUEEZED * n_tile * more),
            "maps": round(n_maps * MAP_BYTES * n_mapped * (periods.mapped + periods.windows)),
            "scratch": int(sizes.sum()) * (4 * n_feat + 8),
            "drafts": 4 * n_maps * n_tile,
        },
        periods=periods,
        n_points=beside[0],
        point_pixels=beside[1],
    )


def passage(config: Config, sizes: Sizes, cap: int | str) -> Passage:
    """Return what a pass reads if areas keep ``cap`` pixels at most (``all``: every one)."""
    if cap == "all" or int(cap) >= float(sizes.area_pixels.max()):
        held = sizes.bytes["bags.zarr"]
        return Passage(sizes.n_pixels, sizes.n_areas, sizes.n_blocks, sizes.n_steps, held)
    kept = np.maximum(1, np.rint(np.minimum(sizes.area_pixels, int(cap)))).astype(np.int64)
    cuts = cut_blocks(kept[bag_order(np.ones(kept.size, bool), config.fit.seed)])
    n_pix = int(kept.sum())
    held = store_bytes(n_pix, kept.size, sizes.n_covariates)
    return Passage(n_pix, kept.size, cuts.size - 1, _steps(config, np.diff(cuts)), held)


def store_bytes(n_pix: int, n_bag: int, n_feat: int) -> int:
    """Bytes of a bag store: its format leaves nothing to guess.

    Parameters
    ----------
    n_pix, n_bag, n_feat : int
        Pixels, bags and covariates.
    """
    chunks = math.ceil(n_pix / CHUNK_PIXELS) * CHUNK_PIXELS
    table = min(n_bag, TABLE_CHUNK)
    rows = math.ceil(n_bag / table) * table
    # offsets, block offsets (a bag in four), y, weight, id offsets, ids of some 8 bytes.
    tables = rows * (16 * n_feat + 4 * 8 + 2 + 2 * 8)  # ids twice: as bytes, and as a coordinate
    return chunks * (4 * n_feat + PIXEL_BYTES) + tables + METADATA_BYTES


def _steps(config: Config, block_bags: np.ndarray) -> int:
    """Count the steps of an epoch; one where the model sweeps over everything."""
    model: Any = new_model(config)
    if model.sweep != "minibatch" or getattr(model, "by_terms", False):
        return 1
    return len(plan_epoch(block_bags, model.batch_bags, np.random.default_rng(0)))


def _strips(geometry: gpd.GeoSeries, grid: Grid) -> list[tuple[Tile, int]]:
    """Return the rows of tiles that the bounds of any area meet, and the pixels of these tiles."""
    t, (n_row, n_col) = grid.transform, grid.shape
    left, bottom, right, top = geometry.bounds.to_numpy().T
    first_col, last_col = (left - t.c) / t.a, (right - t.c) / t.a
    first_row, last_row = (top - t.f) / t.e, (bottom - t.f) / t.e
    met = np.zeros((-(-n_row // TILE), -(-n_col // TILE)), bool)
    at = [
        np.clip(np.floor(v / TILE).astype(np.int64), 0, n - 1)
        for v, n in zip(
            (first_row, last_row, first_col, last_col),
            (met.shape[0], met.shape[0], met.shape[1], met.shape[1]),
            strict=True,
        )
    ]
    for r0, r1, c0, c1 in zip(*(v.tolist() for v in at), strict=True):
        met[r0 : r1 + 1, c0 : c1 + 1] = True
    wide = np.minimum(TILE, n_col - TILE * np.arange(met.shape[1]))
    found = []
    for row in np.flatnonzero(met.any(axis=1)).tolist():
        high, col = min(TILE, n_row - row * TILE), np.flatnonzero(met[row])
        first, last = int(col[0]), int(col[-1])
        strip = Tile(row * TILE, first * TILE, high, int(wide[first : last + 1].sum()))
        found.append((strip, high * int(wide[col].sum())))
    return found


def _surface(geometry: gpd.GeoSeries, grid: Grid) -> np.ndarray:
    return shapely.area(np.asarray(geometry.array)) / (grid.res[0] * grid.res[1])


def _grid_bytes(
    covariates: Mapping[str, Layer], population: Layer | None, n_tile: int, n_inside: float
) -> int:
    each = sum(4 * _squeezed(layer) for layer in covariates.values())
    # Of float64 people that a file holds in float32, half the bytes are zeros.
    people = 8 * 0.5 * _squeezed(population) * n_tile if population else 8 * SQUEEZED * n_inside
    return round(each * n_tile + people)


def _squeezed(layer: Layer) -> float:
    """Return the compressed share of a raster's bytes: that of its file, if compressed."""
    return min(SQUEEZED, layer.source.squeezed() or SQUEEZED)


def _file_bytes(path: str) -> int:
    if copy_at(path) is not None:  # counted as what is fetched
        return 0
    return 0 if is_remote(path) or not Path(path).is_file() else Path(path).stat().st_size


def foresee_copies(config: Config, inputs: Inputs, strips: Sequence[Tile]) -> Mapping[str, int]:
    """Return bytes of copies, from the headers of rasters alone.

    Parameters
    ----------
    config : Config
        With local inputs (:func:`pipeline.config.local_inputs.local_inputs`).
    inputs : Inputs
    strips : sequence of Tile
        Of the grid: what the areas meet.

    Returns
    -------
    dict of str to int
        ``copies``: of all local copies after ingest and evaluation; ``fetched``: what is still to
        come. At most, as rasters by windows also have what other commands read.
    """
    paths = {path: Path(path) for path in config.input_paths().values()}
    grid, read = inputs.grid, dict[str, list[tuple[list[Tile], int]]]()
    layers = [*inputs.covariates.values(), *([inputs.population] if inputs.population else [])]
    if config.truth is not None and copy_at(config.truth.path):
        source = source_of(config.truth.path, config.truth.choice, config.truth.header)
        layers.append(Layer("truth", source, "auto"))
    for layer in layers:
        if grid is None or copy_at(layer.source.path) is None:
            continue
        whole = layer is inputs.population and counts_outside(layer, grid, inputs.areas)
        windows = [Tile(0, 0, *layer.source.shape)] if whole else _windows(layer, grid, strips)
        read.setdefault(layer.source.path, []).append((windows, layer.source.band_of().number))
    held = fetched = 0
    cache = (config.storage.open().scratch_dir / "inputs").resolve()
    for name, path in paths.items():
        copy = copy_at(name)
        if copy is not None:
            here, missing = copy.n_bytes(read.get(name, []))
            held, fetched = held + here, fetched + missing
        elif cache in path.resolve().parents:
            held += sum(each.stat().st_size for each in path.parent.iterdir())
    return {"copies": held, "fetched": fetched}


def _windows(layer: Layer, grid: Grid, strips: Sequence[Tile]) -> list[Tile]:
    """Return the windows of a raster that ingest and the check of its values read, at most."""
    found = [
        window
        for strip in strips
        for window in source_windows(layer.source, grid, strip, layer.resampling)
    ]
    if not found:
        return []
    top, left = min(w.row for w in found), min(w.col for w in found)
    bottom, right = max(w.row + w.n_row for w in found), max(w.col + w.n_col for w in found)
    around = Tile(top, left, bottom - top, right - left)
    # A sample of values is drawn from all of a small window (pipeline.ingest.raster_sample).
    return [around] if around.n_row * around.n_col <= N_SAMPLED else found

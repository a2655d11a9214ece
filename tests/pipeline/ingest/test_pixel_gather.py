"""Pixels of bags from an aligned grid: the same whichever way they are fetched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st

from geo.grids.grid import Grid
from pipeline.ingest.pixel_gather import PixelGatherer
from pipeline.store import tile_index
from pipeline.store.aligned_grid import TILE, read_pixels


@dataclass
class Areas:
    """Some areas' pixels, as ingest has them."""

    offsets: np.ndarray
    pixel: np.ndarray
    fraction: np.ndarray


def some_areas(rng: np.random.Generator, shape: tuple[int, int], n_area: int) -> Areas:
    """Areas of scattered pixels, some empty, some of neighbouring pixels, some all over."""
    pixels = []
    for number in range(n_area):
        if number % 3 == 0:
            row, col = (int(rng.integers(n)) for n in shape)
            box = np.ix_(
                np.arange(row, min(row + 30, shape[0])), np.arange(col, min(col + 30, shape[1]))
            )
            chosen = np.arange(shape[0] * shape[1]).reshape(shape)[box].ravel()
        else:
            size = int(rng.integers(0, 60))
            chosen = np.sort(rng.permutation(shape[0] * shape[1])[:size])
        pixels.append(chosen)
    offsets = np.concatenate([[0], np.cumsum([len(p) for p in pixels])])
    pixel = np.concatenate(pixels).astype(np.int32)
    return Areas(offsets, pixel, rng.uniform(0.1, 1, pixel.size).astype(np.float32))


def grid_of(shape: tuple[int, int]) -> Grid:
    return Grid("EPSG:32738", Affine(1000, 0, 5e5, 0, -1000, 8e6), shape)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(3, 40), st.integers(0, 5))
def test_a_tile_finds_its_pixels_and_no_others(seed: int, n_area: int, tile: int, few: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 90)), int(rng.integers(1, 90)))
    areas, grid = some_areas(rng, shape, n_area), grid_of(shape)
    with pytest.MonkeyPatch.context() as patch:
        runs = tile_index.runs_of_bags
        patch.setattr(tile_index, "runs_of_bags", lambda o: runs(o, 10**few))
        index = tile_index.TileIndex.of(areas, grid, tile)
    row, col = np.divmod(areas.pixel, shape[1])
    seen = 0
    for each in grid.tiles(tile):
        inside = (row >= each.row) & (row < each.row + each.n_row)
        inside &= (col >= each.col) & (col < each.col + each.n_col)
        np.testing.assert_array_equal(index.inside(each), np.flatnonzero(inside))
        seen += int(inside.sum())
    assert seen == areas.pixel.size


@pytest.fixture
def aligned(tmp_path: Path) -> Any:
    rng = np.random.default_rng(3)
    shape = (TILE + 90, TILE + 70)
    made = zarr.open_group(tmp_path / "cube", mode="w")
    made.create_array("covariates", data=rng.normal(size=(3, *shape)).astype(np.float32))
    made.create_array("population", data=rng.gamma(1.0, size=shape))
    return made


def test_rows_are_those_of_the_grid_and_each_tile_is_read_once(
    tmp_path: Path, aligned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    shape = aligned["population"].shape
    areas, grid = some_areas(rng, shape, 40), grid_of(shape)
    told: list[int] = []
    read: list[Any] = []
    (tmp_path / "scratch").mkdir()
    with PixelGatherer(areas, grid, tmp_path / "cube", tmp_path / "scratch") as gatherer:
        spread = gatherer._spread
        monkeypatch.setattr(gatherer, "_spread", lambda tile: read.append(tile) or spread(tile))
        gatherer.spread(3, told.append)
        assert sum(told) == areas.pixel.size
        bag = rng.permutation(np.flatnonzero(np.diff(areas.offsets) > 4))
        size = np.diff(areas.offsets)[bag]
        start = rng.integers(0, size // 2)
        got = gatherer.rows(bag, start, size - 1)
        assert list((tmp_path / "scratch").iterdir()) == []  # it has no name: it goes with us
    at = np.concatenate(
        [np.arange(areas.offsets[b] + i, areas.offsets[b] + s - 1)
         for b, i, s in zip(bag, start, size, strict=True)]
    )  # fmt: skip
    x, people = read_pixels(aligned, areas.pixel[at], shape[1])
    np.testing.assert_array_equal(got.x, x)
    np.testing.assert_array_equal(got.weight, areas.fraction[at] * people)
    np.testing.assert_array_equal(got.pixel, areas.pixel[at])
    centres = np.column_stack([axis.ravel()[got.pixel] for axis in grid.centres()])
    np.testing.assert_array_equal(got.coords, centres / 1000)
    assert got.pixel.dtype == np.int64
    tiles = sorted((tile.row, tile.col) for tile in read)
    assert tiles == [(row, col) for row in (0, TILE) for col in (0, TILE)]

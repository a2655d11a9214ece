"""One pass: each tile is read and evaluated once, for all who consume it, in the tiles' order."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
import rasterio

from pipeline.config.context import StageContext
from pipeline.prediction.stage import predict_stage
from pipeline.products import tile_pixels
from pipeline.products.products import layers
from pipeline.products.tile_pass import DRAWN_PIXELS, Consumer, Draws, Moments, run_pass
from pipeline.products.tile_pixels import TileReader


class Seen(Consumer):
    """Notes what it is handed."""

    def __init__(self) -> None:
        self.tiles: list[Any] = []
        self.threads: set[int] = set()
        self.drawn = 0
        self.ended = False

    def begin(self, pixels: Any) -> dict[str, Any]:
        self.threads.add(threading.get_ident())
        return {"parts": [], "of": pixels.tile}

    def draw(self, found: Any, pixels: Any, part: slice, rate: Any, counted: Any) -> None:
        assert rate.shape == counted.shape == (len(pixels.people[part]), 3)
        found["parts"].append(part)

    def add(self, pixels: Any, found: Any) -> None:
        assert found["of"] is pixels.tile
        assert threading.get_ident() == threading.main_thread().ident
        covered = sum(len(range(pixels.n_pix)[part]) for part in found["parts"])
        assert covered == pixels.n_pix
        self.tiles.append(pixels.tile)
        self.drawn += len(found["parts"])

    def finish(self) -> None:
        self.ended = True


@pytest.mark.parametrize("n_thread", [1, 4])
def test_every_consumer_sees_every_tile_once_and_in_order(world: Any, n_thread: int) -> None:
    reader = TileReader.open(world.config.output.dir / "work/grid.zarr", tile_size=6)
    one, other, done = Seen(), Seen(), []
    n_pix = run_pass(
        reader,
        [one, other],
        moments=Moments(world.model, layers(world.config, world.store)),
        draws=Draws(world.model.sample_functions(3, np.random.default_rng(1))),
        advance=done.append,
        n_thread=n_thread,
    )
    mapped = (world.coverage > 0) & np.isfinite(world.x).all(axis=0)
    assert n_pix == mapped.sum()
    inside = [tile for tile in reader.tiles if mapped[tile.slices].any()]
    for seen in (one, other):
        assert seen.tiles == inside
        assert seen.ended
        assert seen.drawn == sum(
            -(-int(mapped[tile.slices].sum()) // DRAWN_PIXELS) for tile in inside
        )
    assert len(done) == len(reader.tiles)
    assert threading.main_thread().ident not in one.threads


def test_a_pass_needs_neither_moments_nor_draws(world: Any) -> None:
    reader = TileReader.open(world.config.output.dir / "work/grid.zarr", tile_size=6)
    seen = Seen()
    known = np.zeros(world.grid.shape, bool)
    known[3:5, 4:9] = True
    n_pix = run_pass(reader, [Consumer()], known=lambda tile: known[tile.slices])
    assert n_pix == (known & np.isfinite(world.x).all(axis=0)).sum()
    assert not seen.tiles


def test_the_stage_reads_each_tile_once_and_no_raster_that_it_wrote(
    world: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(world.directory / "out", tmp_path / "out")
    config = world.with_config(output={"dir": str(tmp_path / "out"), "exceedance": [50]})
    reads: Counter[str] = Counter()
    read_part, open_raster = tile_pixels.read_part, rasterio.open

    def reading(group: Any, name: str, *part: slice) -> np.ndarray:
        reads[name] += 1
        return read_part(group, name, *part)

    def opening(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        reads[str(path).rsplit("/", 1)[-1]] += mode == "r"
        return open_raster(path, mode, *args, **options)

    monkeypatch.setattr(tile_pixels, "read_part", reading)
    monkeypatch.setattr(rasterio, "open", opening)
    predict_stage(StageContext(config))
    n_tile = len(TileReader.open(config.output.dir / "work/grid.zarr").tiles)
    assert reads["covariates"] == reads["population"] == reads["coverage"] == n_tile
    # The writer verifies its draft under another name; the scale of a style reads the overview and
    # its tags.
    named = {name: n for name, n in reads.items() if name.endswith(".tif") and name[0] != "."}
    assert {"rate_mean.tif", "cases_mean.tif"} <= set(named)
    assert max(named.values()) <= 2, named

"""A country of 12 areas, ingested and fitted, for the stages that come after."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
import yaml
import zarr
from affine import Affine
from shapely.geometry import box

from geo.grids.grid import Grid
from geo.grids.positions import Positions
from models import Bags, VBAgg
from pipeline.config.schema import Config
from pipeline.core.sources import own_sources
from pipeline.storage.local_commit import staged
from pipeline.store.aligned_grid import FORMAT, VERSION
from pipeline.store.bag_store import BagStore, StoreLayout
from tests.bands import write
from tests.pipeline.series_inputs import write_quarters
from tests.pipeline.stores import write_store
from tests.plain import plain
from tests.quick import shorten
from tests.typed import run_each

N_ROW, N_COL, SIDE = 21, 28, 6


@dataclass
class World:
    """What an ingested and fitted run has on disk, and the arrays it was made of."""

    directory: Path
    config: Config
    grid: Grid
    x: np.ndarray
    population: np.ndarray
    coverage: np.ndarray
    truth: np.ndarray
    store: BagStore
    model: Any

    def with_config(self, **sections: dict[str, Any]) -> Config:
        """Return the configuration with some values of some sections changed."""
        dump = self.config.model_dump(mode="json")
        for section, values in sections.items():
            dump[section] = {**(dump[section] or {}), **values}
        return Config.model_validate(dump, context={"base": self.directory})


def make_world(directory: Path) -> World:
    rng = np.random.default_rng(5)
    grid = Grid("EPSG:32738", Affine(1000, 0, 5e5, 0, -1000, 8e6), (N_ROW, N_COL))
    row, col = np.mgrid[:N_ROW, :N_COL]
    x = np.stack([np.sin(col / 5) + 0.1 * rng.normal(size=col.shape), row / 10.0])
    x = x.astype(np.float32)
    x[1, 4, 5] = np.nan  # a pixel in an area that lacks a covariate
    population = rng.gamma(1.0, 400, (N_ROW, N_COL))
    population[10, 10] = np.nan
    truth = 0.05 * np.exp(0.5 * np.nan_to_num(x[0]) - 0.4 * np.nan_to_num(x[1]))
    coverage = np.zeros((N_ROW, N_COL), dtype=np.float32)

    shapes, ids, pixels, y = [], [], [], []
    for number in range(12):
        r0, c0 = SIDE * (number // 4) + 1, SIDE * (number % 4) + 1
        part = (slice(r0, r0 + SIDE), slice(c0, c0 + SIDE))
        coverage[part] = 1
        left, top = 5e5 + 1000 * c0, 8e6 - 1000 * r0
        shapes.append(box(left, top - 1000 * SIDE, left + 1000 * SIDE, top))
        ids.append(f"{number:03d}")
        good = np.isfinite(x[:, part[0], part[1]]).all(axis=0) & np.isfinite(population[part])
        pixels.append(grid.pixel_index(row[part][good], col[part][good]))
        y.append(rng.poisson(np.nansum((truth * population)[part])))

    (directory / "out" / "work").mkdir(parents=True)
    areas = gpd.GeoDataFrame(
        {"code": ids, "name": [f"Área {i}" for i in ids]}, geometry=shapes, crs="EPSG:32738"
    )
    areas.to_file(directory / "areas.gpkg", layer="districts")
    place = {"crs": "EPSG:32738", "transform": grid.transform}
    write(directory / "truth.tif", truth, nodata=np.nan, **place)

    work = directory / "out" / "work"
    with staged(work / "grid.zarr", FORMAT, VERSION, "of-the-inputs") as staging:
        cube = zarr.open_group(staging, mode="w")
        cube.attrs["grid"] = grid.to_dict()
        cube.attrs["tile"] = 16
        cube.create_array("covariates", data=x, chunks=(2, 16, 16))
        cube.create_array("population", data=population, chunks=(16, 16))
        cube.create_array("coverage", data=coverage, chunks=(16, 16))

    pixel = np.concatenate(pixels)
    at = grid.row_col(pixel)
    store = write_store(
        work / "bags.zarr",
        np.array([p.shape[0] for p in pixels]),
        x[:, at[0], at[1]].T,
        np.array(y, dtype=float),
        population[at],
        Positions.of(grid, None).km(*at),
        pixel=pixel,
        seed=1,
        fingerprint="of-the-inputs",
        layout=StoreLayout(block_pixels=100, chunk_pixels=64, shard_pixels=128),
        ids=ids,
        covariates=["wave", "north"],
        grid=grid.to_dict(),
    )
    everything = store.read_rows(0, store.n_pix)
    bags = Bags(everything.x, store.offsets, store.y, everything.weight, everything.coords)
    model = plain(
        VBAgg, n_inducing=15, kernel="additive", link="exp", max_epochs=30, learning_rate=0.05
    )
    model.fit(bags, n_thread=1).save(work / "model")
    config = Config.model_validate(
        {
            "name": "little",
            "areas": {"path": "areas.gpkg", "id": "code"},
            "counts": {"path": "cases.csv", "value": "cases"},
            "population": {"path": "population.tif"},
            "covariates": {"wave": {"path": "w.tif"}, "north": {"path": "n.tif"}},
            "grid": {"like": "population.tif"},
            "model": {"kernel": "additive", "link": "exp", "inducing": 15},
            "fit": {"max_epochs": 5, "learning_rate": 0.05, "batch_areas": 4},
            "output": {"dir": str(directory / "out"), "draws": 60, "exceedance": [50, 62.5]},
            "evaluate": {"folds": 3},
        },
        context={"base": directory},
    )
    return World(directory, config, grid, x, population, coverage, truth, store, model)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Build the country once; tests must leave its files as they are."""
    with pytest.MonkeyPatch.context() as patch:  # else it is another one where a module asks late
        shorten(patch)
        return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def quarters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the output of a run of six quarters; tests must leave its files as they are.

    The processes of a parallel run share it: the first that asks makes it, others wait.
    """
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    made = root / "quarters"
    with (root / "quarters.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "made").exists():
            shutil.rmtree(made, ignore_errors=True)  # of a process that was killed here
            made.mkdir()
            config = write_quarters(made)
            with pytest.MonkeyPatch.context() as patch:  # a module's runs are shortened later
                shorten(patch)
                run_each(config, "ingest", "fit", "predict", "report")
            (made / "made").touch()
    return made / "out"


@pytest.fixture(scope="module")
def forked_workers() -> Iterator[None]:
    """Fork Dask's workers from a process with their imports, which cost each of them a second.

    What they share with workers that are spawned is all but those imports.
    """
    import dask
    import distributed.utils

    importlib.import_module("tests.command")  # which says what that process imports
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed.utils, "_forkserver_preload_set", True)
        with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
            yield


class Files:
    """Input files of a country of 3 x 3 areas, good until a test breaks one of them.

    Areas are 8 x 8 pixels of 1 km, shifted by a third of a pixel; ``x``, ``population`` and
    ``cases`` are what the files were written from.
    """

    n_side, size, shift = 3, 8, 1 / 3
    crs = "EPSG:32738"
    transform = Affine(1000, 0, 5e5, 0, -1000, 8e6)
    shape = (30, 34)

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        rng = np.random.default_rng(2)
        row, col = np.mgrid[: self.shape[0], : self.shape[1]]
        self.x = {"wave": np.sin(col / 5) + 0.1 * rng.normal(size=col.shape), "north": row / 10.0}
        self.population = rng.gamma(1.0, 400, self.shape) + 1
        self.cases = {f"M{k:02d}": str(10 + k) for k in range(self.n_side**2)}
        self.polygons = [self.square(*divmod(k, self.n_side)) for k in range(self.n_side**2)]
        self.ids = list(self.cases)
        self.options: dict[str, Any] = {}
        for name, values in self.x.items():
            self.raster(f"{name}.tif", values)
        self.raster("population.tif", self.population)
        self.areas()
        self.counts()

    def square(self, row: int, col: int) -> Any:
        left = 5e5 + 1000 * (2 + self.shift + self.size * col)
        top = 8e6 - 1000 * (2 + self.shift + self.size * row)
        return box(left, top - 1000 * self.size, left + 1000 * self.size, top)

    def pixels(self, area: int) -> tuple[slice, slice]:
        """Rows and columns of every pixel that an area touches."""
        row, col = (2 + self.size * k for k in divmod(area, self.n_side))
        return slice(row, row + self.size + 1), slice(col, col + self.size + 1)

    def raster(self, name: str, values: np.ndarray, **options: Any) -> Path:
        place = {"crs": self.crs, "transform": self.transform, "nodata": np.nan}
        return write(self.directory / name, values, **{"dtype": "float64", **place, **options})

    def areas(self, crs: str | None = crs) -> None:
        frame = gpd.GeoDataFrame({"code": self.ids}, geometry=self.polygons, crs=crs)
        (self.directory / "areas.gpkg").unlink(missing_ok=True)
        frame.to_file(self.directory / "areas.gpkg", layer="districts")

    def counts(self, rows: list[tuple[str, str]] | None = None) -> None:
        lines = [f"{i},{n}" for i, n in (self.cases.items() if rows is None else rows)]
        text = "\n".join(["code,cases", *lines]) + "\n"
        (self.directory / "cases.csv").write_text(text, encoding="utf-8")

    def mapping(self) -> dict[str, Any]:
        """Return the configuration as YAML would hold it."""
        return {
            "areas": {"path": "areas.gpkg", "layer": "districts", "id": "code"},
            "counts": {"path": "cases.csv", "value": "cases"},
            "population": {"path": "population.tif"},
            "covariates": {name: {"path": f"{name}.tif"} for name in self.x},
            "grid": {"like": "population.tif"},
            "fit": {"seed": 4},
            "output": {"dir": str(self.directory / "out")},
            **self.options,
        }

    def written(self, **sections: Any) -> Path:
        """Write the configuration, some of its sections others, and return its path."""
        path = self.directory / "map.yaml"
        path.write_text(yaml.safe_dump(self.mapping() | sections), encoding="utf-8")
        return path

    def config(self) -> Config:
        return Config.model_validate(self.mapping(), context={"base": self.directory})


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Write good input files; a test breaks what it is about."""
    return Files(tmp_path)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run an S3 server on loopback; give its address."""
    from tests.pipeline.storage.s3_server import KEYS, moto_server

    own_sources()  # seconds where the cache is empty, as the one below is
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with moto_server() as endpoint:
            yield endpoint


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a bucket, and have addresses without other options lead to it."""
    from tests.pipeline.storage.s3_server import new_bucket

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    return new_bucket(s3)

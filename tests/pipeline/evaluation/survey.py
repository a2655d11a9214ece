"""A simulated survey: positives among people tested, in areas with far more people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from affine import Affine
from scipy.special import ndtr, ndtri

from geo.grids.grid import Grid
from geo.grids.positions import Positions
from models import Bags, VBAgg
from pipeline.config.schema import Config
from pipeline.store.bag_store import BagStore, StoreLayout
from tests.pipeline.stores import write_store
from tests.plain import plain

SIDE = 3  # pixels along an area
N_ROW, N_COL = 8, 9  # areas
KERNEL = "linear(x) + matern32(space)"


@dataclass
class Survey:
    """An ingested and fitted survey: its configuration, store and areas."""

    config: Config
    store: BagStore
    people: np.ndarray
    tested: np.ndarray
    positive: np.ndarray


def simulate_survey(directory: Path, seed: int = 0, **sections: Any) -> Survey:
    """Write the bag store and the model of a survey of 72 areas in 12 regions.

    The mean prevalence is about 0.3; 50 to 400 are tested in an area of ten thousand to a million
    people. Prevalence differs by region, by more than the covariates say, and is beta-distributed
    within regions.
    """
    rng = np.random.default_rng(seed)
    shape = (N_ROW * SIDE, N_COL * SIDE)
    grid = Grid("EPSG:32631", Affine(5000, 0, 4e5, 0, -5000, 1.2e6), shape)
    row, col = np.mgrid[: shape[0], : shape[1]]
    x = np.stack([np.sin(row / 6 + rng.uniform(0, 6)), np.cos(col / 7 + rng.uniform(0, 6))])
    x = (x + 0.3 * rng.standard_normal(x.shape)).astype(np.float32)
    area = (row // SIDE) * N_COL + col // SIDE
    n_area = N_ROW * N_COL
    region = (np.arange(n_area) // N_COL // 2) * 3 + np.arange(n_area) % N_COL // 3
    pixels = [grid.pixel_index(*np.nonzero(area == k)) for k in range(n_area)]
    population = rng.gamma(1.0, 1.0, shape)
    people = np.exp(rng.uniform(np.log(1e4), np.log(1e6), n_area))
    total = np.bincount(area.ravel(), population.ravel())
    population *= (people / total)[area]

    level = ndtri(0.3) + 0.35 * rng.standard_normal(region.max() + 1)[region]
    mean = ndtr(level)
    tested = rng.integers(50, 401, n_area).astype(float)
    positive = rng.binomial(tested.astype(int), rng.beta(200 * mean, 200 * (1 - mean))).astype(
        float
    )

    work = directory / "out" / "work"
    work.mkdir(parents=True)
    pixel = np.concatenate(pixels)
    at = grid.row_col(pixel)
    store = write_store(
        work / "bags.zarr",
        np.array([len(each) for each in pixels]),
        x[:, at[0], at[1]].T,
        positive,
        population[at],
        Positions.of(grid, None).km(*at),
        pixel=pixel,
        seed=1,
        fingerprint="survey",
        layout=StoreLayout(block_pixels=400, chunk_pixels=256, shard_pixels=512),
        ids=[f"{k:02d}" for k in range(n_area)],
        covariates=["wave", "north"],
        grid=grid.to_dict(),
        trials=tested,
    )
    data = {
        "name": "survey",
        "areas": {"path": "areas.gpkg", "id": "code"},
        "counts": {"path": "survey.csv", "value": "positive", "tested": "tested"},
        "population": {"path": "population.tif"},
        "covariates": {"wave": {"path": "w.tif"}, "north": {"path": "n.tif"}},
        "model": {
            "likelihood": "binomial",
            "kernel": "linear(x) + matern32(space)",
            "inducing": 15,
        },
        "fit": {"max_epochs": 25, "batch_areas": 72, "learning_rate": 0.1},
        "output": {"dir": str(directory / "out"), "draws": 200},
        "evaluate": {"folds": 4, "leave_out": "refit"},
        **sections,
    }
    config = Config.model_validate(data, context={"base": directory})
    everything = store.read_rows(0, store.n_pix)
    bags = Bags(
        everything.x, store.offsets, store.y, everything.weight, everything.coords, store.trials
    )
    model = plain(VBAgg, likelihood="binomial", kernel=KERNEL, n_inducing=15, max_epochs=25)
    model.fit(bags, n_thread=1).save(work / "model")
    return Survey(config, store, people, tested, positive)

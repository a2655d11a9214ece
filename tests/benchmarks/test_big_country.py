"""The country written window by window, and the stages that run on it, tiny."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import shapely

from benchmarks import big_country, hundred_million
from benchmarks.big_country import log_rate, make_areas, make_country, make_waves
from pipeline.store.bag_store import BagStore
from tests.bands import read

SIDE = 150


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("big")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(big_country, "WINDOW", 64)
        make_country(directory, SIDE, pixels_an_area=500, n_covariate=5, inducing=20, batch_areas=8)
    return directory


def test_areas_are_crooked_and_leave_no_gap() -> None:
    areas = make_areas(300, 9, np.random.default_rng(0)).geometry
    assert areas.is_valid.all()
    assert len(areas) == 81
    square = (300 * big_country.RES_M) ** 2
    assert areas.area.sum() == pytest.approx(square)
    assert areas.union_all().area == pytest.approx(square)
    assert shapely.get_num_coordinates(np.asarray(areas)).min() == 9
    assert areas.area.std() > 0.05 * areas.area.mean()


def test_windows_are_those_of_the_whole() -> None:
    waves = make_waves(90, np.random.default_rng(1))
    whole = waves.window(slice(0, 90), slice(0, 90))
    part = waves.window(slice(7, 30), slice(60, 90))
    np.testing.assert_allclose(part, whole[7:30, 60:90], rtol=1e-5, atol=1e-6)


def test_counts_follow_the_rate(directory: Path) -> None:
    layers = []
    for name in ("x00", "x01", "x02", "x03", "population"):
        layers.append(read(directory / f"{name}.tif"))
    cases = pd.read_csv(directory / "counts.csv")["cases"]
    across = round(len(cases) ** 0.5)
    expected = layers[-1] * np.exp(log_rate(layers[:4]))
    assert cases.sum() == pytest.approx(expected.sum(), rel=5 / np.sqrt(expected.sum()))
    at = np.arange(SIDE) * across // SIDE
    by_cell = np.zeros((across, across))
    np.add.at(by_cell, (at[:, None], at[None, :]), expected)
    noise = (cases.to_numpy().reshape(across, across) - by_cell) / np.sqrt(by_cell)
    assert abs(noise).max() < 5
    assert 0.5 < noise.std() < 1.5


def test_every_stage_runs_and_says_what_it_did(directory: Path) -> None:
    told = {
        name: hundred_million.stage(name, directory, SIDE, 2)
        for name in ("ingest", "fit", "predict")
    }
    store = BagStore.open(directory / "out/work/bags.zarr")
    assert told["ingest"]["n_pixels"] == store.n_pix > SIDE**2
    assert told["fit"]["epochs"] == 1
    assert told["predict"]["n_pixels"] == SIDE**2
    assert -1 <= told["predict"]["correlation_of_log_rate_with_truth"] <= 1
    for name in ("rate_mean", "rate_sd"):
        assert (read(directory / f"out/{name}.tif") > 0).all()
    assert not (directory / "out/rate_lower.tif").exists()

"""A file in another unit is told with its period and by how much; seasons and noise are not."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.config.context import StageContext
from pipeline.config.reader import load_config
from pipeline.demo import months
from pipeline.demo.months import simulate_months
from pipeline.ingest.period_coverage import cut_suspicions
from pipeline.ingest.period_layers import layer_suspicions
from pipeline.ingest.period_sample import LayerPeriods, sample_periods
from pipeline.ingest.period_values import value_suspicions
from pipeline.ingest.stage import check_inputs, ingest
from pipeline.store.level_areas import training_areas
from tests.pipeline import series_inputs
from tests.pipeline.series_inputs import rain, write_inputs, write_raster
from tests.progress import Notes

N_AREA, N_PERIOD = 30, 36


def layer(mean: np.ndarray) -> LayerPeriods:
    """Return a layer of months with these means of the areas."""
    labels = tuple(f"{2021 + t // 12}-{1 + t % 12:02d}" for t in range(mean.shape[1]))
    times = np.arange(mean.shape[1], dtype=float)
    paths = tuple(f"rain_{label}.tif" for label in labels)
    known = np.isfinite(mean).astype(float)
    return LayerPeriods("covariates.rain", labels, paths, times, 12.0, mean, known)


def noise(rng: np.random.Generator) -> np.ndarray:
    """Draw noise of the months, and of the areas in them."""
    return 0.8 * rng.normal(size=N_PERIOD) + 0.5 * rng.normal(size=(N_AREA, N_PERIOD))


def season(rng: np.random.Generator) -> np.ndarray:
    return np.sin(2 * np.pi * (np.arange(N_PERIOD) / 12 + rng.random()))


def monsoon(rng: np.random.Generator) -> np.ndarray:
    """Rain with months that are dry, and years that differ twofold."""
    mean = 40.0 * np.exp(3.0 * season(rng) + 0.7 * noise(rng)) * rng.gamma(3.0, 0.3, (N_AREA, 1))
    return np.where(mean < 2.0, 0.0, mean)


def desert(rng: np.random.Generator) -> np.ndarray:
    """Almost no rain, and a storm now and then."""
    return rng.gamma(0.15, 10.0, N_PERIOD) * rng.gamma(1.0, 1.0, (N_AREA, N_PERIOD))


def celsius(rng: np.random.Generator) -> np.ndarray:
    """Temperatures around zero."""
    return 3.0 + rng.normal(0, 4, (N_AREA, 1)) + 15.0 * season(rng) + 2.0 * noise(rng)


def people(rng: np.random.Generator) -> np.ndarray:
    """People that grow, and are estimated anew each month."""
    growth = 0.003 * np.arange(N_PERIOD) + 0.05 * noise(rng)
    return rng.lognormal(6.0, 2.0, (N_AREA, 1)) * np.exp(growth)


def greenness(rng: np.random.Generator) -> np.ndarray:
    """Return an index with a season."""
    return np.clip(0.4 + 0.15 * rng.normal(size=(N_AREA, 1)) + 0.2 * season(rng), 0.02, 0.95)


def nets(rng: np.random.Generator) -> np.ndarray:
    """Shares that rise at once, by a campaign, and stay."""
    return np.where(np.arange(N_PERIOD) < 17, 0.02, 0.8) * rng.uniform(0.7, 1.2, (N_AREA, 1))


DRAWN = (monsoon, desert, celsius, people, greenness, nets)


@pytest.mark.parametrize("draw", DRAWN)
def test_noisy_but_right_series_have_none(
    draw: Callable[[np.random.Generator], np.ndarray],
) -> None:
    for seed in range(12):
        assert value_suspicions([layer(draw(np.random.default_rng(seed)))]) == [], seed


@pytest.mark.parametrize("month", [0, 17, N_PERIOD - 1])
@pytest.mark.parametrize(
    ("draw", "change", "told"),
    [
        (celsius, lambda v: v + 273.15, "kelvin[?]"),
        (people, lambda v: v / 1000.0, "([89][0-9]{2}|1,[0-2]00|1,000) times less"),
        (people, lambda v: v * 1000.0, "([89][0-9]{2}|1,[0-2]00|1,000) times more"),
        (greenness, lambda v: v * 10_000.0, "(9,[0-9]00|1[0-2],000) times more"),
    ],
)
def test_a_month_in_another_unit_is_told(
    draw: Callable[[np.random.Generator], np.ndarray],
    change: Callable[[np.ndarray], np.ndarray],
    told: str,
    month: int,
) -> None:
    mean = draw(np.random.default_rng(month))
    mean[:, month] = change(mean[:, month])
    own = layer(mean)
    (found,) = value_suspicions([own])
    assert found.code == "scale"
    assert found.place == f"covariates.rain ({own.paths[month]})"
    assert f"in {own.labels[month]} (" in found.found
    assert re.search(f": {told}[)]$", found.found), found.found
    assert found.found.count("by other periods") == 1
    assert "bring the file to the unit" in found.remedy


def test_two_months_side_by_side_are_both_told() -> None:
    mean = celsius(np.random.default_rng(2))
    mean[:, 8:10] += 273.15
    (found,) = value_suspicions([layer(mean)])
    assert "2021-09 (" in found.found
    assert "2021-10 (" in found.found


def test_a_wet_month_in_another_unit_is_told() -> None:
    mean = monsoon(np.random.default_rng(4))
    wet = int(np.argmax(np.median(mean, axis=0)))
    mean[:, wet] *= 1000.0
    (found,) = value_suspicions([layer(mean)])
    assert layer(mean).labels[wet] in found.found


def looked_at(directory: Path) -> tuple[list[LayerPeriods], list[str]]:
    """Return what is read of the files, and what is said of them."""
    config = load_config(directory / "disagg.yaml")
    shapes = training_areas(config).geometry
    return sample_periods(config, shapes), [str(each) for each in layer_suspicions(config, shapes)]


def test_the_means_of_areas_are_those_of_their_pixels(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    (own,), told = looked_at(tmp_path)
    blocks = rain(2).reshape(4, 4, 4, 4).mean(axis=(1, 3)).ravel()
    np.testing.assert_allclose(own.mean[:, 2], blocks)
    assert own.known.min() == 1.0
    assert own.labels == tuple(f"2024-{m:02d}" for m in range(1, 7))
    assert told == []


def test_files_of_any_period_are_told_by_check(tmp_path: Path) -> None:
    config = write_inputs(tmp_path)
    write_raster(tmp_path / "rain_2024-02.tif", 1000.0 * rain(1))
    cut = rain(3)
    cut[:, 8:] = np.nan
    write_raster(tmp_path / "rain_2024-04.tif", cut)
    examined = check_inputs(load_config(config)).examined
    assert examined is not None
    scale, coverage = (each for each in examined.suspicions if "rain" in each.place)
    assert (scale.code, coverage.code) == ("scale", "coverage")
    assert "rain_2024-02.tif" in scale.place
    assert "2024-02 (" in scale.found
    assert "0 times more" in scale.found
    assert "rain_2024-04.tif" in coverage.place
    assert "2024-04 (8 of 16 areas)" in coverage.found
    accepted = "check: {accept: ['scale:covariates.rain', 'coverage:covariates.rain']}\n"
    config.write_text(config.read_text() + accepted)
    examined = check_inputs(load_config(config)).examined
    assert examined is not None
    assert [each for each in examined.suspicions if "rain" in each.place] == []


def test_a_raster_that_ends_within_the_areas_is_told(tmp_path: Path) -> None:
    """It has another grid than those of the other months."""
    write_inputs(tmp_path)
    write_raster(tmp_path / "rain_2024-03.tif", rain(2)[:8])
    (own,), (told,) = looked_at(tmp_path)
    assert "2024-03 (8 of 16 areas)" in told
    np.testing.assert_array_equal(own.known[:, 2], np.repeat([1.0, 0.0], 8))


def test_large_rasters_are_read_coarsely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_inputs(tmp_path)
    monkeypatch.setattr("pipeline.ingest.period_sample.SIDE", 3)
    (own,), told = looked_at(tmp_path)
    assert told == []
    assert np.isfinite(own.mean).all()  # also of areas that no part is in
    low, high = rain(2).min(), rain(2).max()
    assert ((own.mean[:, 2] >= low) & (own.mean[:, 2] <= high)).all()


def test_the_demo_with_months_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(months.SPECS["small"], shape=(18, 20), n_land=180, n_area=12, n_town=4)
    monkeypatch.setitem(months.SPECS, "small", small)
    for seed in range(2):
        simulate_months(tmp_path / str(seed), 24, seed=seed)
        (own,), told = looked_at(tmp_path / str(seed))
        assert len(own.labels) == 24
        assert told == []


def test_clouds_of_a_season_are_not_cut() -> None:
    rng = np.random.default_rng(5)
    cloud = 1.0 / (1.0 + np.exp(2.0 - 3.0 * season(rng) - noise(rng)))
    known = np.where(cloud > 0.95, 0.0, 1.0 - cloud)
    own = replace(layer(np.ones(known.shape)), known=known)
    assert cut_suspicions([own]) == []
    every = np.ones(known.shape)
    every[:10, [6, 18, 30]] = 0.0  # each July
    assert cut_suspicions([replace(own, known=every)]) == []
    every[:, [18, 30]] = 1.0
    (found,) = cut_suspicions([replace(own, known=every)])
    assert "2021-07 (20 of 30 areas)" in found.found


def test_rates_are_those_of_one_month_not_of_all(tmp_path):
    """Six months of four cases to ten people are no 2.4 cases for each person."""
    path = write_inputs(tmp_path)
    cases = pd.read_csv(tmp_path / "cases.csv")
    n_people = series_inputs.people().sum() / cases["id"].nunique()
    cases["cases"] = np.rint(0.4 * n_people * (1 + 0.1 * np.sin(np.arange(len(cases))))).astype(int)
    cases.to_csv(tmp_path / "cases.csv", index=False)
    path.write_text(path.read_text().replace("{dir: out,", "{dir: out, exceedance: [400],"))
    log = Notes()
    ingest(StageContext(load_config(path), log))
    assert not [line for line in log.lines if "suspicion" in line]

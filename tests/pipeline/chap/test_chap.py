"""Tables in CHAP's form: a model trained, updated and asked for forecasts."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from geo.core.errors import InputError
from models import Bags, SpaceTime
from pipeline.chap.configuration import Settings, read_settings
from pipeline.chap.covariates import Climate, season_of
from pipeline.chap.forecasting import Trained, predict, train
from pipeline.chap.positions import read_positions
from pipeline.chap.tables import period_number, read_table
from pipeline.cli.main import main

EXAMPLE = Path(__file__).parents[3] / "examples/chap"
CONFIG = {
    "user_option_values": {"integrate": "none", "n_moving": 4, "harmonics": 1, "max_epochs": 3}
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = importlib.util.spec_from_file_location("example_data", EXAMPLE / "example_data.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    folder: Path = tmp_path_factory.mktemp("chap")
    example.write(folder)
    # Sixteen months and a coarse fit are enough here.
    table = pd.read_csv(folder / "train.csv", index_col=0)
    table[table["time_period"] >= "2021-09"].reset_index(drop=True).to_csv(folder / "train.csv")
    kernel = "ridge(x) + area * time(matern12) + season"
    options = {**CONFIG["user_option_values"], "kernel": kernel}
    (folder / "config.yaml").write_text(yaml.safe_dump({"user_option_values": options}))
    return folder


@pytest.fixture(scope="module")
def model(data: Path) -> Path:
    given = ["--polygons", str(data / "polygons.geojson"), "--config", str(data / "config.yaml")]
    assert main(["chap", "train", str(data / "train.csv"), str(data / "model"), *given, "-q"]) == 0
    return data / "model"


def _predict(data: Path, model: Path, out: Path) -> int:
    tables = [str(data / name) for name in ("historic.csv", "future.csv")]
    return main(["chap", "predict", *tables, str(model), str(out), "--quiet"])


def test_samples_have_the_columns_and_rows_that_chap_reads(data: Path, model: Path) -> None:
    assert _predict(data, model, data / "out.csv") == 0
    found = pd.read_csv(data / "out.csv")
    assert list(found) == ["time_period", "location", *(f"sample_{k}" for k in range(100))]
    future = pd.read_csv(data / "future.csv", index_col=0)
    keys = ["time_period", "location"]
    assert set(map(tuple, found[keys].values)) == set(map(tuple, future[keys].values))
    samples = found.filter(like="sample_")
    assert (samples.to_numpy() >= 0).all()
    assert (samples.dtypes == np.int64).all()
    assert _predict(data, model, data / "again.csv") == 0
    assert (data / "again.csv").read_bytes() == (data / "out.csv").read_bytes()


def test_counts_after_the_training_change_the_forecast(data: Path, model: Path) -> None:
    trained = Trained.load(model)
    historic = read_table(data / "historic.csv")
    future = read_table(data / "future.csv", future=True)
    high = historic.cases.copy()
    high[-2:] *= 6
    usual, raised = (
        predict(trained, replace(historic, cases=cases), future) for cases in (historic.cases, high)
    )
    assert np.median(raised[0]) > 1.5 * np.median(usual[0])


def test_mean_of_samples_is_that_of_the_posterior(data: Path, model: Path) -> None:
    """By a second route: the rate of a pixel at a time, times its people."""
    trained = Trained.load(model)
    historic = read_table(data / "train.csv")
    future = read_table(data / "future.csv", future=True)
    draws = predict(trained, historic, future, n_draws=4000)
    x = trained.climate.inputs([historic, future], future.times)
    n = len(trained.locations)
    for row, time in enumerate(future.times.astype(float)):
        rate = trained.model.predict_pixels(x[row], trained.places, time, np.arange(n))
        expected = rate.mean * future.people[row]
        np.testing.assert_allclose(draws[row].mean(axis=1), expected, rtol=0.25)


def test_samples_are_calibrated(data: Path, model: Path) -> None:
    """Counts simulated from the posterior itself have uniform ranks among the samples."""
    trained = Trained.load(model)
    historic = read_table(data / "train.csv")
    future = read_table(data / "future.csv", future=True)
    draws = predict(trained, historic, future, n_draws=3000)
    x, n = trained.climate.inputs([historic, future], future.times), len(trained.locations)
    ranks = []
    rng = np.random.default_rng(5)
    for row, time in enumerate(future.times.astype(float)):
        bags = Bags(x[row], np.arange(n + 1), np.zeros(n), future.people[row], trained.places)
        own = trained.model.predict_bags(
            bags, period=time, area=np.arange(n), n_draws=3000, rng=rng
        )
        seen = own.observed(rng).draws[:400]  # (n_draws, n_location)
        below = (draws[row][None] < seen[:, :, None]).mean(axis=2)
        same = (draws[row][None] == seen[:, :, None]).mean(axis=2)
        ranks.append(below + same * rng.random(below.shape))
    inside = (np.abs(np.concatenate(ranks) - 0.5) < 0.45).mean()
    assert inside == pytest.approx(0.9, abs=0.02)


def test_lags_read_the_periods_before(data: Path) -> None:
    table = read_table(data / "historic.csv")
    climate = Climate.of(table, ["rainfall"], (1, 3))
    found = climate.inputs([table], table.times)
    rain = table.covariates["rainfall"]
    np.testing.assert_array_equal(found[3:, :, 0], rain[2:-1])
    np.testing.assert_array_equal(found[3:, :, 1], rain[:-3])
    december = rain[table.times % 12 == 11].mean(axis=0)  # stands in before the data
    np.testing.assert_allclose(found[0, :, 0], december)


def test_positions_are_km_apart(data: Path) -> None:
    places = read_positions(data / "polygons.geojson", ["area-1", "area-0", "area-3"])
    east, north = places[0] - places[1], places[2] - places[1]
    np.testing.assert_allclose(np.abs([east[0], north[1]]), [55.6, 55.3], atol=0.3)
    np.testing.assert_allclose([east[1], north[0]], 0, atol=0.3)


def test_heights_that_chap_writes_as_null_are_left_out(data: Path, tmp_path: Path) -> None:
    said = json.loads((data / "polygons.geojson").read_text())
    for feature in said["features"]:
        feature["bbox"] = feature["geometry"]["bbox"] = None
        rings = feature["geometry"]["coordinates"]
        feature["geometry"]["coordinates"] = [[[*at, None] for at in ring] for ring in rings]
    (tmp_path / "chap.geojson").write_text(json.dumps(said))
    names = ["area-0", "area-4"]
    found = read_positions(tmp_path / "chap.geojson", names)
    np.testing.assert_array_equal(found, read_positions(data / "polygons.geojson", names))


@pytest.mark.parametrize("text", ["2024", "2024-13", "2024-W54", "2023-W53", "Jan 2024"])
def test_other_periods_are_refused(text: str) -> None:
    assert period_number(text) is None


def test_weeks_follow_each_other_over_the_turn_of_a_year() -> None:
    number = [period_number(text) for text in ("2020-W53", "2021-W01", "2021-W02")]
    assert [each[1] - number[0][1] for each in number] == [0, 1, 2]  # type: ignore[index]
    assert set(season_of(np.arange(2000, 2110), "week")) == set(range(52))


def test_weeks_without_polygons(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    weeks = [f"2023-W{week:02d}" for week in range(1, 13)]
    rows = [
        {"time_period": week, "location": place, "disease_cases": rng.poisson(5)}
        | {"population": 1000.0, "rain": rng.random()}
        for week in weeks
        for place in "ab"
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "train.csv")
    table = read_table(tmp_path / "train.csv")
    settings = Settings(model={**CONFIG["user_option_values"], "n_inducing": 4})
    trained = train(table, settings)
    ahead = replace(table, times=table.times + 12, cases=np.full_like(table.cases, np.nan))
    draws = predict(trained, table, ahead)
    assert 2 < draws.mean() < 12


def _changed(table: pd.DataFrame, **columns: object) -> pd.DataFrame:
    return table.assign(**columns)


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda t: t.drop(columns="population"), "no column population"),
        (lambda t: t.iloc[1:], "no row for"),
        (lambda t: pd.concat([t, t.iloc[:1]]), "twice"),
        (lambda t: _changed(t, rainfall=t["rainfall"].where(t.index > 3)), "empty"),
        (lambda t: _changed(t, disease_cases="many"), "no number"),
        (lambda t: _changed(t, population=0), "people are needed"),
        (lambda t: _changed(t, time_period="2020"), "no period"),
        (lambda t: _changed(t, disease_cases=""), "no case in any row"),
    ],
)
def test_a_bad_table_is_one_line(
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: object,
    found: str,
) -> None:
    table = pd.read_csv(data / "train.csv", index_col=0)
    spoil(table).reset_index(drop=True).to_csv(tmp_path / "bad.csv")  # type: ignore[operator]
    assert main(["chap", "train", str(tmp_path / "bad.csv"), str(tmp_path / "model"), "-q"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert found in said[0]
    assert not (tmp_path / "model").exists()


def test_a_result_without_a_folder_is_refused_before_the_work(
    data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _predict(data, model, tmp_path / "absent/out.csv") == 2
    assert "there is no folder" in capsys.readouterr().err


def test_other_locations_and_a_future_that_is_past_are_refused(data: Path, model: Path) -> None:
    trained = Trained.load(model)
    historic, future = (
        read_table(data / "historic.csv"),
        read_table(data / "future.csv", future=True),
    )
    with pytest.raises(InputError, match="its locations are others"):
        predict(trained, replace(historic, locations=[*historic.locations[:-1], "new"]), future)
    with pytest.raises(InputError, match="after the historic"):
        predict(trained, historic, replace(future, times=future.times - 12))
    with pytest.raises(InputError, match="is no trained model"):
        Trained.load(data)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("user_option_values: {colour: red}", "colour"),
        ("user_option_values: {lags: [-1]}", "lags"),
        ("user_option_values: {threads: 0}", "threads"),
        ("[1]", "no keys"),
    ],
)
def test_bad_configurations(tmp_path: Path, said: str, found: str) -> None:
    (tmp_path / "config.yaml").write_text(said)
    with pytest.raises(InputError, match=found):
        read_settings(tmp_path / "config.yaml")


def test_mlproject_is_one_of_chap() -> None:
    project = yaml.safe_load((EXAMPLE / "MLproject").read_text())
    known = {"name", "supported_period_type", "allow_free_additional_continuous_covariates"}
    assert set(project) == known | {"meta_data", "user_options", "entry_points"}
    entries = project["entry_points"]
    assert list(entries["train"]["parameters"]) == ["train_data", "model", "model_config"]
    wanted = ["historic_data", "future_data", "model", "out_file", "model_config"]
    assert list(entries["predict"]["parameters"]) == wanted
    defaults = {name: option["default"] for name, option in project["user_options"].items()}
    assert defaults.pop("lags") == []
    assert defaults.items() <= SpaceTime().get_params().items()


@pytest.mark.parametrize(
    "said",
    ["{}", "additional_continuous_covariates: []\nuser_option_values: {lags: []}"],
)
def test_without_choices_the_configuration_of_chap_is_the_default(
    tmp_path: Path, said: str
) -> None:
    (tmp_path / "config.yaml").write_text(said)
    assert read_settings(tmp_path / "config.yaml") == Settings()

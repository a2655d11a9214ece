"""A run of several months, typed as users type it: ingest, fit, maps, an update, a correction."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import models
from geo.core.errors import InputError
from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.core.progress import Silent
from pipeline.prediction.series import OF_MAP
from pipeline.run.runner import run_stages
from pipeline.store.bag_store import BagStore
from pipeline.training.fit import fit
from tests.bands import read
from tests.pipeline.series_inputs import (
    GOOD,
    MONTHS,
    RES,
    SIDE,
    SMALL_OPTIONS,
    area_of_pixel,
    areas,
    counts,
    elevation,
    people,
    rain,
    store_of,
    true_rate,
    write_inputs,
    write_months,
    write_raster,
)
from tests.typed import edit, run_each, take_in

pytestmark = pytest.mark.ci

EVALUATE = "evaluate:    {folds: 2, schemes: [area], calibration: none}\n"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the configuration of a run of the first three months."""
    config = write_inputs(tmp_path_factory.mktemp("three"), 3, more=EVALUATE, fit=GOOD)
    assert main(["run", str(config), "--quiet"]) == 0
    return config


@pytest.fixture(scope="module")
def rough(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the configuration of a fit of the first three months that has not converged."""
    config = write_inputs(tmp_path_factory.mktemp("rough"), 3)
    run_each(config, "ingest", "fit")
    return config


@pytest.fixture(scope="module")
def updated(three: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same, with the fourth month taken in."""
    directory = tmp_path_factory.mktemp("updated") / "run"
    shutil.copytree(three.parent, directory)
    write_months(directory, 4)
    edit(directory / three.name, {"[area]": "[]"})
    assert main(["update", str(directory / three.name), "--quiet"]) == 0
    return directory / three.name


def test_the_store_holds_what_the_inputs_say(three: Path) -> None:
    table = counts(3).set_index(["month", "id"])["cases"].replace("", np.nan).astype(float)
    for month, label in enumerate(MONTHS[:3]):
        store = BagStore.open(three.parent / "out/work/bags.zarr", period=label)
        assert store.covariates == ("elevation", "rain")
        rows = store.read_rows(0, store.n_pix)
        given = np.stack([elevation(), rain(month)])
        np.testing.assert_allclose(rows.x, given.reshape(2, -1)[:, rows.pixel].T, rtol=1e-6)
        np.testing.assert_allclose(rows.weight, people().ravel()[rows.pixel], rtol=1e-6)
        own = np.array([f"A{k:02d}" for k in area_of_pixel().ravel()])[rows.pixel]
        assert (own == np.repeat(store.ids, store.sizes)).all()
        np.testing.assert_array_equal(store.y, table[label][list(store.ids)].to_numpy())
        assert list(store.in_training) == list(np.isfinite(store.y))


def test_maps_are_those_of_the_model_at_each_period(updated: Path) -> None:
    out, store = updated.parent / "out", store_of(updated)
    model: Any = models.load(out / "work/model")
    numbers = np.array([store.ids.index(f"A{k:02d}") for k in area_of_pixel().ravel()])
    rows = store.at(MONTHS[0]).read_rows(0, store.at(MONTHS[0]).n_pix)
    coords = rows.coords[np.argsort(rows.pixel)]
    # The rain of May is not known: April's stands in five draws of six, January's in one.
    for label, directory, rains in (
        ("2024-04", out, (3,)),
        ("2024-01", out / "periods/2024-01", (0,)),
        ("2024-05", out / "periods/2024-05", (3, 3, 3, 3, 3, 0)),
    ):
        time, each = 12.0 * 2024 + int(label[-2:]) - 1, []
        for month in rains:
            x = np.stack([elevation().ravel(), rain(month).ravel()], axis=1).astype(np.float32)
            each.append(np.asarray(model.predict_pixels(x, coords, time, numbers).mean))
        mapped = read(directory / "rate_mean.tif").ravel()
        np.testing.assert_allclose(mapped, 1000 * np.mean(each, axis=0), rtol=1e-4)
    known = true_rate(3).ravel()
    assert np.corrcoef(np.log(read(out / "rate_mean.tif").ravel()), np.log(known))[0, 1] > 0.98


def test_tables_cube_and_maps_say_the_same(updated: Path) -> None:
    out = updated.parent / "out"
    table = pd.read_csv(out / "periods.csv")
    assert list(table["period"].unique()) == list(MONTHS[:5])
    assert (table["forecast"] == (table["period"] == "2024-05")).all()
    whole = pd.read_parquet(out / "periods.parquet")
    np.testing.assert_array_equal(whole["mean"], table["mean"])
    cube = xr.open_zarr(out / "rates.zarr")
    assert [str(day)[:7] for day in cube["time"].values] == ["2024-01", "2024-04", "2024-05"]
    assert cube["forecast"].values.tolist() == [False, False, True]
    for place, directory in enumerate((out / "periods/2024-01", out, out / "periods/2024-05")):
        for name in ("rate_mean", "rate_upper", "cases_mean"):
            band = read(directory / f"{name}.tif")
            np.testing.assert_array_equal(cube[name].values[place], band.astype(np.float32))
        areas = pd.read_csv(directory / "areas.csv").set_index("id")
        label = str(cube["time"].values[place])[:7]
        own = table[table["period"] == label].set_index("id")
        assert list(own.index) == list(areas.index)
        for name, given in OF_MAP.items():
            np.testing.assert_allclose(own[name], areas[given], rtol=1e-9)
        cases = np.bincount(area_of_pixel().ravel(), read(directory / "cases_mean.tif").ravel())
        np.testing.assert_allclose(cases, own["mean"], rtol=1e-3)
    seen = table[table["observed"].notna()]
    assert len(seen) == 4 * 16 - 1
    inside = (seen["count_lower"] <= seen["observed"]) & (seen["observed"] <= seen["count_upper"])
    assert 0.8 < inside.mean() <= 1.0
    assert not (table[["count_lower", "count_upper"]].to_numpy() % 1).any()
    width = (table["upper"] - table["lower"]) / table["mean"]
    assert width[table["forecast"]].mean() > width[~table["forecast"]].mean()


def test_an_update_is_near_a_fit_of_all_and_a_run_after_it_has_nothing_to_do(
    three: Path, updated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((updated.parent / "out/work/stages.json").read_text())["fit"]["summary"]
    assert list(record["updated"]) == ["2024-04"]
    assert record["updated"]["2024-04"]["n_areas"] == 16
    assert record["refit"] == ""
    assert record["far"] == {}
    # What is told of the model is of the update: other weights of its draws, rain of its month.
    now = models.load(updated.parent / "out/work/model").named_hyperparameters()
    assert list(record["hyperparameters"].values()) == pytest.approx(list(now.values()))
    order = np.argsort(rain(3).ravel())
    share = np.cumsum(people().ravel()[order]) / people().sum()
    ends = rain(3).ravel()[order][np.searchsorted(share, [0.1, 0.5, 0.9])]
    np.testing.assert_allclose(record["effects"]["rain"]["at"], ends, rtol=0.02)
    before = json.loads((three.parent / "out/work/stages.json").read_text())["fit"]["summary"]
    for name in ("hyperparameter_intervals", "coefficients", "effects"):
        assert record[name] != before[name]
    capsys.readouterr()
    assert main(["run", str(updated), "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    assert all(stage["skipped"] for stage in stages)
    afresh = write_inputs(tmp_path, 4, fit=GOOD)
    run_each(afresh, "ingest", "fit", "predict")
    at = "out/periods/2024-01", "out"
    for directory in at:
        mean, sd = (
            read(updated.parent / directory / f"rate_{name}.tif") for name in ("mean", "sd")
        )
        other = read(afresh.parent / directory / "rate_mean.tif")
        assert (np.abs(mean - other) / sd).max() < 1.0


def test_a_correction_touches_its_month_alone(
    updated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(updated.parent, directory)
    work = directory / "out/work"

    def written() -> dict[str, int]:
        marks = [*work.glob("*/complete.json"), *work.glob("periods/*/grid.zarr/complete.json")]
        return {str(path.relative_to(work)): path.stat().st_mtime_ns for path in marks}

    before, said = written(), json.loads((work / "series.json").read_text())
    table = pd.read_csv(directory / "cases.csv", dtype=str)
    table.loc[(table["id"] == "A05") & (table["month"] == "2024-02"), "cases"] = "400"
    table.to_csv(directory / "cases.csv", index=False)
    capsys.readouterr()
    assert main(["update", str(directory / updated.name)]) == 0
    told = " ".join("".join(capsys.readouterr()).split())
    assert "warning: 2024-02: A05 has 400, where" in told
    assert "were foreseen: look at this count" in told
    now = json.loads((work / "series.json").read_text())
    changed = [k for k, v in now["responses"].items() if v != said["responses"][k]]
    assert changed == ["2024-02"]
    after = written()
    assert {name for name in after if after[name] != before.get(name)} <= {"model/complete.json"}
    revised = json.loads((work / "stages.json").read_text())["predict"]["summary"]["revised"]
    assert "2024-02" in revised  # three times what neighbours and months say
    assert (directory / "out/periods/2024-02/rate_mean.tif").is_file()
    # A file of corrections alone takes the other counts out.
    capsys.readouterr()
    few = (table["month"] != "2024-02") | table["id"].isin(["A05", "A07"])
    n_gone = int((~few & table["cases"].notna()).sum())
    table[few].to_csv(directory / "cases.csv", index=False)
    assert main(["update", str(directory / updated.name)]) == 0
    told = " ".join("".join(capsys.readouterr()).split())
    assert f"warning: 2024-02 had {n_gone + 2} responses and has {n_gone} fewer" in told


def test_what_cannot_be_updated_is_said(
    rough: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(rough.parent, directory)
    config = directory / rough.name
    whole = config.read_text(encoding="utf-8")
    for old, new, said in (
        ("time:        {step: month}\n", "", "output.forecast: given without `time`"),
        ("inducing: 6", "inducing: 5", "another section model"),
        ("{step: month}", "{step: week}", "no week"),
        (
            "{step: month}",
            "{step: month, from: 2024-03, to: 2024-02}",
            "2024-03, the first period, is after 2024-02, the last",
        ),
        ("forecast: 1", "forecast: 1, windows: last12", "'last12' is no window of periods"),
        ("forecast: 1", "forecast: 1, periods: [2024-13]", "'2024-13' is no month (time.step)"),
        ("forecast: 1", 'windows: ["2024-03..2024-01"]', 'write "2024-03..2024-08"'),
        ('rain_{period}.tif"', 'rian_{period}.tif"', "rian_2024-01.tif"),
    ):
        assert old in whole
        text = whole.replace(old, new) if new else whole.replace(old, "").replace(SMALL_OPTIONS, "")
        config.write_text(text, encoding="utf-8")
        assert main(["update", str(config), "--quiet"]) == 2
        told = capsys.readouterr().err
        assert said in told
        assert "Traceback" not in told


class _Lines(Silent):
    """Progress that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, message: str) -> None:
        self.lines.append(message)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("settings", "another section model"),
        ("outbreak", "2024-04 are further off than the fit foresaw"),
        ("earlier", "counts of 2024-03, which this run does not have"),
        ("none", "no fit of several periods"),
    ],
)
def test_a_scheduled_run_fits_anew_where_an_update_does_not_do(
    rough: Path, tmp_path: Path, case: str, said: str
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(rough.parent, directory)
    write_months(directory, 4)
    changes: dict[str, Any] = {"model": {"inducing": 5}} if case == "settings" else {}
    if case == "none":
        shutil.rmtree(directory / "out")
    if case == "outbreak":
        table = pd.read_csv(directory / "cases.csv", dtype=str)
        april = table["month"] == "2024-04"
        table.loc[april, "cases"] = [str(4 * int(n)) for n in table.loc[april, "cases"]]
        table.to_csv(directory / "cases.csv", index=False)
    config = load_config(directory / rough.name, "2024-02" if case == "earlier" else None, changes)
    progress = _Lines()
    if case in ("settings", "earlier"):
        with pytest.raises(InputError, match=said):
            run_stages(config, ("ingest", "fit"), progress, update="only")
    _, fitted = run_stages(config, ("ingest", "fit"), progress, update="first")
    assert any("a new fit" in line and said in line for line in progress.lines)
    assert "updated" not in fitted.summary
    known = load_config(directory / rough.name, str(config.period)).series
    assert known is not None
    assert list(fitted.summary["series"]["responses"]) == list(known.periods)


def test_workers_and_threads_give_the_same_bits(three: Path) -> None:
    from distributed import Client, LocalCluster

    store = store_of(three)
    source = store.source([store.at(label).training for label in store.periods])
    settings = models.load(three.parent / "out/work/model").get_params() | {
        "max_epochs": 1,
        "integrate": "none",
    }
    here = models.SpaceTime(**settings)
    fit(here, source, n_thread=1)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", processes=False
        ) as c,
        Client(c) as client,
    ):
        there = models.SpaceTime(**settings)
        fit(there, source, client)
    for name, value in here.state_.params.items():
        np.testing.assert_array_equal(value, there.state_.params[name], err_msg=name)


def test_a_series_needs_no_effects_of_areas(tmp_path: Path) -> None:
    config = write_inputs(tmp_path, 3, more=EVALUATE)
    own = '  kernel: "smooth(x) + matern12(space) * time(matern12)"\n'
    edit(config, {"model:\n": f"model:\n{own}"})
    run_each(config, "ingest", "fit")
    write_months(tmp_path, 4)
    take_in(config)
    told = json.loads((tmp_path / "out/run.json").read_text(encoding="utf-8"))
    named = told["stages"]["fit"]["summary"]["hyperparameters"]
    assert "smooth.variance[rain]" in named
    assert "area.variance" not in named


def test_an_area_whose_pixels_others_share_has_its_own_mean(tmp_path: Path) -> None:
    """A pixel of a border has the mean of its areas; what an area's count says is its own."""
    config = write_inputs(tmp_path, 3)
    moved = areas()
    moved["geometry"] = moved.geometry.translate(RES / 2, -RES / 2)
    moved.to_file(tmp_path / "areas.gpkg", driver="GPKG")
    table = counts(3)
    busy = (table["id"].str[1:].astype(int) % 2 == 0) & (table["cases"] != "")
    table.loc[busy, "cases"] = (4 * table.loc[busy, "cases"].astype(int)).astype(str)
    table.to_csv(tmp_path / "cases.csv", index=False)
    edit(config, {"draws: 40": "draws: 400", "max_epochs: 3": "max_epochs: 100"})
    run_each(config, "ingest", "fit", "predict")
    out = tmp_path / "out"
    for place in (out, out / "periods/2024-01"):
        drawn = pd.read_parquet(place / "areas_draws.parquet")
        areas_csv = pd.read_csv(place / "areas.csv").set_index("id")
        by_area = drawn.reset_index().groupby("id", observed=True)["expected"]
        error = by_area.std() / 20.0
        off = (areas_csv["fitted"] - by_area.mean()).abs() / error
        assert off.max() < 4.01


def test_a_dry_month_and_counts_that_are_all_suppressed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No rain anywhere is a value, and no known count is no error of a forecast."""
    config = write_inputs(tmp_path, 4, more=EVALUATE)
    write_raster(tmp_path / "rain_2024-04.tif", np.zeros((SIDE, SIDE)))
    counts(4).assign(cases="<5").to_csv(tmp_path / "cases.csv", index=False)
    assert main(["check", str(config), "--quiet"]) == 0
    assert main(["run", str(config), "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    found = json.loads((tmp_path / "out/evaluation.json").read_text(encoding="utf-8"))
    assert found["forecasts"] == {}


def test_each_month_adds_up_to_its_own_totals_and_a_forecast_to_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_inputs(tmp_path, 3)
    frame = areas()
    for number, month in enumerate(MONTHS[:3]):
        frame[f"total_{month}"] = 100.0 * (number + 1) + np.arange(16)
    frame.to_file(tmp_path / "areas.gpkg", driver="GPKG")
    edit(config, {"draws: 40": "draws: 40, reconcile: {to: total}"})
    assert main(["check", str(config)]) == 2
    told = " ".join("".join(capsys.readouterr()).split())
    assert "column 'total' has one total of an area, and output.periods maps several" in told
    assert "such as total_{period}, or give counts" in told
    edit(config, {"reconcile: {to: total}": 'reconcile: {to: "total_{period}"}'})
    run_each(config, "ingest", "fit", "predict")
    out = tmp_path / "out"
    for number, directory in ((0, out / "periods/2024-01"), (2, out)):
        cases = read(directory / "cases_reconciled_mean.tif").ravel()
        sums = np.bincount(area_of_pixel().ravel(), cases)
        np.testing.assert_allclose(sums, 100.0 * (number + 1) + np.arange(16), rtol=1e-5)
    ahead = out / "periods/2024-04"
    assert (ahead / "rate_mean.tif").is_file()
    assert not list(ahead.glob("*reconciled*"))
    assert "reconciled_cases" not in pd.read_csv(ahead / "levels_training.csv")

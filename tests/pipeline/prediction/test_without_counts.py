"""Predictions of areas without a count: positives among tested people, labels, periods."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pyogrio
import pytest
import yaml
from shapely.geometry import box

from pipeline.cli.main import main
from pipeline.config.periods import periods_of
from pipeline.storage.location import Storage
from tests.bands import read

SMALL = {
    "fit": {"max_epochs": 5, "seed": 1},
    "evaluate": {"folds": 2, "schemes": ["area"]},
}
ONE = {"variance": 1.0, "lengthscale": 1.0, "calibrate": "none"}  # one fit
PREDICT = ("ingest", "fit", "predict")


def run(
    files: Any, *options: str, stages: tuple[str, ...] = PREDICT, **sections: Any
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Run stages; return the table by area and the summary of the prediction."""
    out = files.directory / "out"
    mapping = {**files.mapping(), **SMALL, "output": {"dir": str(out), "draws": 50}, **sections}
    mapping = {key: value for key, value in mapping.items() if value is not None}
    path = files.directory / "run.yaml"
    path.write_text(yaml.safe_dump(mapping))
    for stage in stages:
        assert main([stage, str(path), "--quiet", *options]) == 0
    record = json.loads((out / "work/stages.json").read_text())
    table = pd.read_csv(out / "areas.csv").set_index("code")
    return table, record["predict"]["summary"]


@pytest.mark.ci
def test_positives_among_an_unknown_number_tested_have_a_rate_alone(files: Any) -> None:
    rows = ["code,cases,n", *(f"{area},{k + 1},{10 * k + 20}" for k, area in enumerate(files.ids))]
    rows[3], rows[4], rows[5] = "M02,2,", "M03,,30", "M04,0,0"
    (files.directory / "cases.csv").write_text("\n".join(rows) + "\n")
    table, summary = run(
        files,
        counts={"path": "cases.csv", "value": "cases", "tested": "n"},
        model={"likelihood": "binomial", "inducing": 5},
        output={"dir": str(files.directory / "out"), "draws": 2000},
        stages=(*PREDICT, "evaluate"),
    )
    assert list(table.index[~table["in_training"]]) == ["M02", "M03", "M04"]
    numbers = table.columns.drop("in_training")
    known = ["fitted_rate", "fitted_rate_lower", "fitted_rate_upper", "people"]
    for area in ("M02", "M04"):
        row = table.loc[area, numbers]
        assert sorted(row.index[row.notna()]) == known
        # Per 1,000 tested: the mean probability of its people.
        rates = read(files.directory / "out/rate_mean.tif")[files.pixels(int(area[1:]))]
        assert np.nanmin(rates) < row["fitted_rate"] < np.nanmax(rates)
    full = table.loc["M03"]  # 30 tested, the positives unknown
    assert full["tested"] == 30
    assert full["fitted"] == pytest.approx(0.03 * full["fitted_rate"], rel=1e-5)
    assert full[["observed", "observed_rate", "residual"]].isna().all()
    assert summary["areas_without_counts"]["n"] == 3
    assert summary["areas_without_counts"]["expected"] is None


@pytest.mark.ci
def test_an_area_without_a_label_has_a_probability(files: Any) -> None:
    labels = dict(zip(files.ids, "10011001", strict=False))  # the last has none
    lines = ["code,outbreak", *(f"{area},{value}" for area, value in labels.items())]
    (files.directory / "labels.csv").write_text("\n".join(lines) + "\n")
    table, summary = run(
        files,
        counts=None,
        labels={"path": "labels.csv", "value": "outbreak"},
        model={"kind": "vwsgp", "inducing": 10, "options": ONE},
        stages=(*PREDICT, "evaluate"),
    )
    assert list(table.index[~table["in_training"]]) == ["M08"]
    row = table.loc["M08"]
    assert np.isnan(row["observed"])
    assert 0 < row["probability_lower"] < row["probability"] < row["probability_upper"] <= 1
    assert summary["areas_without_counts"] == {
        "n": 1,
        "expected": pytest.approx(row["probability"], rel=1e-5),
    }
    assert summary["observed_positive"] == 4
    trained = table[table["in_training"]]
    assert summary["expected_positive"] == pytest.approx(trained["probability"].sum(), rel=1e-4)
    assert np.isfinite(read(files.directory / "out/probability_mean.tif")[files.pixels(8)]).any()


@pytest.mark.ci
def test_a_period_has_the_areas_that_reported_in_it(files: Any) -> None:
    lines = ["code,cases,month"]
    lines += [f"{area},{10 + k},01" for k, area in enumerate(files.ids)]
    lines += [f"{area},{12 + k},02" for k, area in enumerate(files.ids) if area != "M05"]
    lines += [f"{area},,03" for area in files.ids]  # a template for what is to come
    (files.directory / "cases.csv").write_text("\n".join(lines) + "\n")
    counts = {"path": "cases.csv", "value": "cases", "period": "month"}
    assert periods_of({"counts": counts}, files.directory, Storage()) == ["01", "02"]
    table, _ = run(files, counts=counts, model={"kind": "constant"})
    assert list(table.index[~table["in_training"]]) == ["M05"]
    assert table.loc["M04", "observed"] == 16
    table, summary = run(files, "--period", "01", counts=counts, model={"kind": "constant"})
    assert table["in_training"].all()
    assert "areas_without_counts" not in summary


@pytest.mark.ci
def test_baselines_predict_them_too(files: Any) -> None:
    del files.cases["M05"]
    files.counts()
    for model in ("constant", "bag_pixel", "nystrom"):
        options = {"kind": model} if model == "constant" else {"kind": model, "inducing": 8}
        table, _ = run(files, model=options)
        found = table.loc["M05", ["fitted", "count_lower", "count_upper"]]
        assert found.notna().all(), model


@pytest.mark.parametrize("count", ["0", ""])
def test_totals_miss_nothing_where_nobody_lives(files: Any, count: str) -> None:
    """M04 has no people: a count of 0 is one, and without any the country's is known, too."""
    files.population[files.pixels(4)] = 0.0
    files.raster("population.tif", files.population)
    files.cases["M04"] = count
    files.counts()
    table, _ = run(files, stages=(*PREDICT, "report"))
    row = table.loc["M04"]
    assert not row["in_training"]
    assert np.isnan(row["fitted_rate"])
    assert (row["observed"] == 0) == (count == "0")
    out = files.directory / "out"
    level = pd.read_csv(out / "levels_training.csv").set_index("id").loc["M04"]
    assert (level["observed"] == 0) == (count == "0")
    reported = sum(float(value) for value in files.cases.values() if value != "")
    (country,) = pd.read_csv(out / "levels_country.csv").to_dict("records")
    assert country["observed"] == reported
    text = (out / "report.html").read_text(encoding="utf-8")
    assert "more area is predicted" not in text
    assert "the others in" not in text
    # One that lives somewhere and reports nothing leaves the country's total unknown.
    files.cases["M07"] = ""
    files.counts()
    run(files)
    (country,) = pd.read_csv(out / "levels_country.csv").to_dict("records")
    assert np.isnan(country["observed"])
    assert country["observed_why"] == "no count: M07"


def test_numbers_tested_where_nobody_lives_are_not_taken_for_0(files: Any) -> None:
    """Their positives are known, and how many were tested is not in the store."""
    files.population[files.pixels(4)] = 0.0
    files.raster("population.tif", files.population)
    rows = ["code,cases,n", *(f"{area},{k + 1},{10 * k + 20}" for k, area in enumerate(files.ids))]
    rows[5] = "M04,0,5000"
    (files.directory / "cases.csv").write_text("\n".join(rows) + "\n")
    run(
        files,
        counts={"path": "cases.csv", "value": "cases", "tested": "n"},
        model={"likelihood": "binomial", "inducing": 5},
    )
    (country,) = pd.read_csv(files.directory / "out/levels_country.csv").to_dict("records")
    assert country["observed"] == 45 - 5
    assert np.isnan(country["tested"])
    assert np.isnan(country["observed_rate"])


def test_repaired_areas_are_those_of_the_table(files: Any) -> None:
    west, south, east, north = files.polygons[4].bounds
    middle = (west + east) / 2
    parts = [box(west, south, middle, north), box(middle, south, east, north)]
    files.polygons[4:5], files.ids[4:5] = parts, ["M04", "M04"]
    files.areas()
    areas = {"path": "areas.gpkg", "layer": "districts", "id": "code", "repair": True}
    table, _ = run(files, areas=areas, model={"kind": "constant"})
    assert list(table.index) == sorted(files.cases)
    frame = pyogrio.read_dataframe(files.directory / "out/areas.gpkg", layer="areas").set_index(
        "code"
    )
    assert frame.geometry["M04"].equals(box(west, south, east, north))

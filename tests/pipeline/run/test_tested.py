"""Positives among people tested: numbers of those tested, and of everybody, are told apart."""

from __future__ import annotations

import json

import exactextract
import geopandas as gpd
import pandas as pd
import pytest
import yaml
from shapely.geometry import box

from pipeline.cli.main import main
from tests.pipeline.conftest import Files
from tests.typed import run_each


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    files = Files(tmp_path_factory.mktemp("tested"))
    names = [f"District {i}" for i in files.ids]
    frame = gpd.GeoDataFrame(
        {"code": files.ids, "name": names}, geometry=files.polygons, crs=files.crs
    )
    frame.to_file(files.directory / "areas.gpkg", layer="districts")
    rows = [f"{i},{k % 4 + 3},{30 + k}" for k, i in enumerate(files.ids) if i != "M04"]
    text = "\n".join(["code,cases,n", *rows]) + "\n"
    (files.directory / "cases.csv").write_text(text, encoding="utf-8")
    left, bottom, right, top = frame.total_bounds
    x, y = files.polygons[1].bounds[0], (bottom + top) / 2
    shapes = [box(left, bottom, x, top), box(x, bottom, right, y), box(right + 9, 0, right + 99, 9)]
    zones = gpd.GeoDataFrame({"key": list("abc")}, geometry=shapes, crs=files.crs)
    zones.to_file(files.directory / "zones.gpkg")
    files.options = {
        "counts": {"path": "cases.csv", "value": "cases", "tested": "n"},
        "model": {"likelihood": "beta_binomial", "kernel": "ard", "inducing": 8},
        "fit": {"max_epochs": 10, "seed": 4},
        "output": {
            "dir": "out", "draws": 60,
            "areas": [{"path": "zones.gpkg", "id": "key", "level": "zone"}],
        },
        "evaluate": {"schemes": []},
    }  # fmt: skip
    path = files.directory / "run.yaml"
    path.write_text(yaml.safe_dump(files.mapping()), encoding="utf-8")
    run_each(path, "ingest", "fit", "predict")
    return path, frame


def level(path, name):
    return pd.read_csv(path.parent / f"out/levels_{name}.csv").set_index("id")


def test_cases_if_everybody_were_tested_are_everybodys(ran):
    path, frame = ran
    out = path.parent / "out"
    country, areas = level(path, "country"), pd.read_csv(out / "areas.csv")
    # Second route: prevalence times people of each pixel, summed over the polygons.
    rate, people = str(out / "rate_mean.tif"), str(out / "population.tif")
    found = exactextract.exact_extract(
        rate, frame, ["weighted_sum"], weights=people, output="pandas"
    )
    everybody = found.iloc[:, 0].sum() / 1000
    # Totals have what the counts add to the surface; the difference is small, but for a factor.
    assert country["cases"].iloc[0] == pytest.approx(everybody, rel=0.1)
    assert country["people"].iloc[0] > 100 * areas["tested"].sum()
    assert areas["fitted"].sum() < areas["tested"].sum() < country["cases"].iloc[0]


def test_what_is_compared_is_said_to_be_of_those_tested(ran, capsys):
    path, _ = ran
    out = path.parent / "out"
    assert main(["compare", str(out), str(out), "--out", str(path.parent / "c")]) == 0
    fitted = pd.read_csv(out / "areas.csv")["fitted"].sum()
    report = json.loads((path.parent / "c/compare.json").read_text(encoding="utf-8"))
    assert report["words"]["expected"] == "expected positives among those tested"
    assert (
        f"expected positives among those tested {report['total']['expected']['a']:,.0f}"
        in (report["headline"])
    )
    assert report["total"]["expected"]["a"] < 9 * 38
    assert report["total"]["expected"]["a"] == pytest.approx(fitted, rel=0.1)
    assert "everybody" not in capsys.readouterr().out


def test_levels_have_the_tested_and_why_a_total_is_not_known(ran):
    path, _ = ran
    training, zone, country = (level(path, name) for name in ("training", "zone", "country"))
    for table in (training, zone, country):
        assert "tested" in table
        unknown = table["observed"].isna()
        assert (table["observed_why"].notna() == unknown).all()
        assert table["tested"].isna().equals(unknown)
    assert zone.loc["a", "tested"] == 30 + 33 + 36
    assert training.loc["M04", "observed_why"] == "no count was given"
    assert country["observed_why"].iloc[0] == "no count: M04 (District M04)"
    assert zone.loc["b", "observed_why"].startswith("in part only: M04 (District M04), M05")
    assert zone.loc["c", "observed_why"] == "no area with counts lies inside"
    # The column of names was not asked for: ids alone say little.
    assert training["name"].tolist() == [f"District {i}" for i in training.index]

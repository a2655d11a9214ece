"""Levels of a whole run whose areas cut pixels: everything adds up, inside and outside."""

from __future__ import annotations

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
from shapely.geometry import box

from pipeline.core.progress import Silent
from pipeline.run.runner import run_stages
from tests.bands import read


@pytest.fixture
def run(files):
    left, bottom, right, top = gpd.GeoSeries(files.polygons).total_bounds
    first = files.polygons[1].bounds[0]
    shapes = [box(left, bottom, first, top), box(first, bottom, right, top)]
    shapes.append(box(right, bottom, right + 3400, top))  # no counts are known here
    zones = gpd.GeoDataFrame({"key": list("abc")}, geometry=shapes, crs=files.crs)
    zones.to_file(files.directory / "zones.gpkg")
    files.cases = {i: str(40 * int(n)) for i, n in files.cases.items()}
    files.counts([(i, n) for i, n in files.cases.items() if i != "M04"])
    files.options |= {
        "model": {"kernel": "ridge + matern32(space)", "inducing": 12, "link": "exp"},
        "fit": {"max_epochs": 5, "seed": 4},
        "output": {
            "dir": str(files.directory / "out"), "mask": "all", "draws": 40, "exceedance": [20],
            "areas": [{"path": "zones.gpkg", "id": "key", "level": "zone"}],
            "reconcile": {"to": "counts", "levels": ["zone", "training"]},
        },
    }  # fmt: skip
    run_stages(files.config(), ["ingest", "fit", "predict"], Silent())
    return files, files.directory / "out"


@pytest.mark.ci
def test_inside_and_outside_add_up_and_totals_are_kept(run):
    files, out = run
    tables = {n: pd.read_csv(out / f"levels_{n}.csv") for n in ("training", "zone", "country")}
    training, zone, country = (tables[n].set_index("id") for n in ("training", "zone", "country"))
    whole, covered = read(out / "cases_mean.tif"), read(out / "coverage.tif")
    total = country.loc["country", "cases"]
    np.testing.assert_allclose(np.nansum(whole * covered), total, rtol=1e-7)
    np.testing.assert_allclose(training["cases"].sum(), total, rtol=1e-7)
    np.testing.assert_allclose(zone.loc[["a", "b"], "cases"].sum(), total, rtol=1e-7)
    # The zone beyond the training: its pixels by exact shares; a third of the first column is in.
    assert zone.loc["c", "mapped"] == pytest.approx(1, abs=1e-6)
    rows = np.full(25, 1.0)
    rows[[0, 24]] = 2 / 3, 1 / 3
    found = rows @ (whole[2:27, 26:30] @ np.array([2 / 3, 1, 1, 1 - 4 / 15]))
    np.testing.assert_allclose(zone.loc["c", "cases"], found, rtol=1e-6)

    areas = pd.read_csv(out / "areas.csv").set_index("code")
    same = {"people": "people", "cases_lower": "fitted_lower", "cases_upper": "fitted_upper"}
    for own, theirs in same.items():
        np.testing.assert_allclose(training[own], areas.loc[training.index, theirs], rtol=1e-6)
    for own, theirs in {"cases": "fitted", "rate": "fitted_rate"}.items():
        np.testing.assert_allclose(training[own], areas.loc[training.index, theirs], rtol=1e-9)

    # M04 has no count: the zone around it has no known total, the one beside it has.
    assert np.isnan(training.loc["M04", "observed"])
    known = sum(float(files.cases[i]) for i in ("M00", "M03", "M06"))
    np.testing.assert_array_equal(zone["observed"], [known, np.nan, np.nan])
    counted = training.drop("M04")
    np.testing.assert_allclose(counted["reconciled_cases_upper"], counted["observed"], rtol=1e-9)
    unchanged = training.loc["M04"]
    assert unchanged["reconciled_factor"] == 1
    for name in ("cases", "cases_lower", "cases_upper", "rate"):
        assert unchanged[f"reconciled_{name}"] == pytest.approx(unchanged[name], rel=1e-12)
    np.testing.assert_allclose(zone.loc["a", "reconciled_cases_lower"], known, rtol=1e-9)
    np.testing.assert_allclose(
        zone.loc["b", "reconciled_cases"], training["reconciled_cases"][~training.index.isin(
            ["M00", "M03", "M06"])].sum(), rtol=1e-6,
    )  # fmt: skip
    raster = read(out / "cases_reconciled_mean.tif")
    np.testing.assert_allclose(
        np.nansum(raster * covered), country.loc["country", "reconciled_cases"], rtol=1e-6
    )
    np.testing.assert_allclose(
        training["reconciled_cases"].sum(), country.loc["country", "reconciled_cases"], rtol=1e-6
    )

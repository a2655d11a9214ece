"""What others compute of a run: plain zonal sums by exactextract equal the tables."""

from __future__ import annotations

from itertools import pairwise

import exactextract
import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
from shapely.geometry import Point, box

from pipeline.core.progress import Silent
from pipeline.run.runner import run_stages
from tests.bands import read
from tests.pipeline.conftest import Files

pytestmark = pytest.mark.ci


def round_country(files: Files) -> None:
    """Cut a disc into nine areas whose borders cross pixels; the last is smaller than a pixel."""
    centre = Point(5e5 + 15_300, 8e6 - 14_600)
    disc, city = centre.buffer(12_400), box(512_300, 7_989_700, 513_000, 7_990_300)
    edges = [-15_000, -4_321, 3_777, 15_000]
    tiles = [
        box(centre.x + a, centre.y + c, centre.x + b, centre.y + d).intersection(disc)
        for a, b in pairwise(edges)
        for c, d in pairwise(edges)
    ]
    middle = max(tiles, key=lambda shape: shape.intersection(city).area)
    tiles = [tile for tile in tiles if tile is not middle] + [middle.difference(city), city]
    files.polygons, files.ids = tiles, [f"A{n}" for n in range(len(tiles))]
    files.cases = {i: str(60 + 37 * n) for n, i in enumerate(files.ids)} | {files.ids[-1]: "9"}
    files.population[13:16, 20] = np.nan  # nobody knows who lives there
    files.raster("population.tif", files.population)
    files.areas()
    files.counts([row for row in files.cases.items() if row[0] != "A3"])


@pytest.fixture(scope="module", params=["areas", "all"])
def ran(tmp_path_factory, request):
    files = Files(tmp_path_factory.mktemp("round"))
    round_country(files)
    files.options = {
        "model": {"kernel": "additive", "inducing": 12, "link": "exp"},
        "fit": {"max_epochs": 30, "seed": 4},
        "output": {
            "dir": str(files.directory / "out"), "draws": 80, "mask": request.param,
            "exceedance": [20],
            "reconcile": {"to": "counts", "levels": ["training"]},
        },
    }  # fmt: skip
    run_stages(files.config(), ["ingest", "fit", "predict"], Silent())
    return files, files.directory / "out"


def zonal(out, name, areas):
    frame = exactextract.exact_extract(
        str(out / name), areas, ["sum"], include_cols=["code"], output="pandas"
    )
    return frame.set_index("code")["sum"]


def test_zonal_sums_of_cases_and_people_are_the_tables(ran):
    files, out = ran
    shapes = gpd.read_file(files.directory / "areas.gpkg")
    areas = pd.read_csv(out / "areas.csv").set_index("code").loc[shapes["code"]]
    level = pd.read_csv(out / "levels_training.csv").set_index("id").loc[shapes["code"]]
    cases, people = (zonal(out, f"{name}.tif", shapes) for name in ("cases_mean", "population"))
    np.testing.assert_allclose(cases, areas["fitted"], rtol=2e-6)
    np.testing.assert_allclose(cases, level["cases"], rtol=2e-6)
    np.testing.assert_allclose(people, areas["people"], rtol=2e-6)
    # The country is one polygon: coverage turns its whole pixels into those inside.
    country = pd.read_csv(out / "levels_country.csv")
    whole = gpd.GeoDataFrame({"code": ["c"]}, geometry=[shapes.union_all()], crs=shapes.crs)
    np.testing.assert_allclose(zonal(out, "cases_mean.tif", whole), country["cases"], rtol=2e-6)
    np.testing.assert_allclose(
        np.nansum(read(out / "cases_mean.tif") * read(out / "coverage.tif")),
        country["cases"], rtol=2e-6,
    )  # fmt: skip


def test_zonal_sums_of_reconciled_cases_are_the_official_totals(ran):
    files, out = ran
    shapes = gpd.read_file(files.directory / "areas.gpkg")
    level = pd.read_csv(out / "levels_training.csv").set_index("id").loc[shapes["code"]]
    official = pd.Series(files.cases).astype(float).drop("A3")
    found = zonal(out, "cases_reconciled_mean.tif", shapes)
    np.testing.assert_allclose(found[official.index], official, rtol=2e-6)
    np.testing.assert_allclose(found, level["reconciled_cases"], rtol=2e-6)
    country = pd.read_csv(out / "levels_country.csv")
    np.testing.assert_allclose(found.sum(), country["reconciled_cases"], rtol=2e-6)
    mean, low, high = (
        read(out / f"cases_reconciled_{end}.tif") for end in ("mean", "lower", "upper")
    )
    known = np.isfinite(mean)
    assert (low[known] <= mean[known]).all()
    assert (mean[known] <= high[known]).all()
    rate = read(out / "rate_reconciled_mean.tif")[known] / 1000
    np.testing.assert_allclose(mean[known], rate * read(out / "population.tif")[known], rtol=2e-6)


def test_all_rasters_have_values_in_the_same_pixels(ran):
    _, out = ran
    known = {path.name: np.isfinite(read(path)) for path in out.glob("*.tif")}
    assert {"coverage.tif", "population.tif", "targeting_rank.tif"} <= set(known)
    assert [n for n, k in known.items() if (k != known["rate_mean.tif"]).any()] == []

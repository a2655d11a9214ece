"""The balance of people and cases: every number by another route than ingest's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import rasterio
import shapely
import zarr
from affine import Affine

from geo.core.errors import InputError
from geo.grids.membership import Membership
from pipeline.config.context import StageContext
from pipeline.config.schema import Config
from pipeline.ingest import balance, prepare
from pipeline.ingest.stage import check, ingest
from pipeline.store.bag_store import BagStore
from tests.pipeline.ingest.conftest import extracted, shares
from tests.progress import Notes
from tests.real_data import MADAGASCAR, real


def balanced(files: Any) -> tuple[dict[str, Any], str]:
    notes = Notes()
    summary = ingest(StageContext(files.config(), notes))
    return summary["balance"], "\n".join(notes.lines)


def test_people_are_followed_from_the_raster_into_the_bags(files: Any) -> None:
    files.polygons[4] = files.polygons[4].buffer(700, join_style="mitre")  # overlaps all others
    files.areas()
    files.x["wave"][10:13, 11] = np.nan
    files.raster("wave.tif", files.x["wave"])
    files.population[4, 4] = np.nan
    files.population[20, 20] = 0.0
    files.raster("population.tif", files.population)
    found, said = balanced(files)
    people = found["people"]

    share = shares(files)
    known = np.nan_to_num(files.population)
    lacks = np.isnan(files.x["wave"])
    once = np.minimum(share.sum(axis=0), 1)
    assert people["raster"] == pytest.approx(known.sum(), rel=1e-12)
    assert people["outside_grid"] == 0
    assert people["outside_areas"] == pytest.approx((known * (1 - once)).sum(), rel=1e-6)
    assert people["inside_areas"] == pytest.approx((known * once).sum(), rel=1e-6)
    twice = (known * (share.sum(axis=0) - once)).sum()
    assert twice > 1000
    assert people["counted_twice"] == pytest.approx(twice, rel=1e-5)
    assert people["no_covariate"] == pytest.approx((share * known)[:, lacks].sum(), rel=1e-6)
    # The same by exactextract on the files themselves.
    by_area = extracted(files.directory / "population.tif", files.directory / "areas.gpkg")
    assert people["inside_areas"] + people["counted_twice"] == pytest.approx(
        by_area.sum(), rel=1e-6
    )
    assert people["in_bags"] == pytest.approx(by_area.sum() - people["no_covariate"], rel=1e-6)
    assert people["other_areas"] == 0
    assert found["unit"] == "people"
    total = sum(int(cases) for cases in files.cases.values())
    cases = {"unit": "cases", "noun": "count", "given": total, "in_bags": total, "left_out": 0}
    assert found["cases"] == cases
    for key, words in (
        ("raster", "in the raster"),
        ("counted_twice", "counted twice: areas overlap"),
        ("no_covariate", "left out: a covariate is missing"),
        ("in_bags", "in bags"),
    ):
        assert re.search(rf"{words} +{people[key]:,.0f}\b", said), words
    assert "outside the grid" not in said  # nobody is

    cube: Any = zarr.open_group(files.directory / "out/work/grid.zarr", mode="r")
    np.testing.assert_allclose(cube["overlap"][:], share.sum(axis=0) - once, atol=2e-6)


def test_people_past_the_grid_have_a_row_of_their_own(files: Any) -> None:
    window = slice(1, 28), slice(1, 27)
    files.raster(
        "north.tif", files.x["north"][window],
        transform=files.transform @ Affine.translation(1, 1),
    )  # fmt: skip
    files.options = {
        "grid": {"like": "north.tif"},
        "output": {"mask": "all", "dir": str(files.directory / "out")},
    }
    files.population[0, :] = -9999.0  # a nodata value that the file does not name: nobody
    files.raster("population.tif", files.population, nodata=None)
    files.population[0, :] = 0.0
    found, said = balanced(files)
    people = found["people"]
    inside = extracted(files.directory / "population.tif", files.directory / "areas.gpkg").sum()
    on_grid = files.population[window].sum()
    assert people["raster"] == pytest.approx(files.population.sum(), rel=1e-12)
    assert people["outside_grid"] == pytest.approx(files.population.sum() - on_grid, rel=1e-9)
    assert people["outside_areas"] == pytest.approx(on_grid - inside, rel=1e-5)
    assert people["in_bags"] == pytest.approx(inside, rel=1e-6)
    assert re.search(rf"outside the grid +{people['outside_grid']:,.0f}\b", said)


def test_a_density_of_another_crs_keeps_its_people(files: Any) -> None:
    """People per km2 in degrees: the file's total is what each of its pixels holds."""
    lon, lat = 44.9 + 0.02 * np.arange(25), -17.9 - 0.02 * np.arange(30)
    degrees = Affine(0.02, 0, lon[0] - 0.01, 0, -0.02, lat[0] + 0.01)
    density = np.random.default_rng(1).gamma(1.0, 400, (30, 25))
    files.raster("density.tif", density, crs="EPSG:4326", transform=degrees)
    files.options = {
        "population": {"path": "density.tif", "density": True},
        "grid": {"like": "wave.tif"},
    }
    people = balanced(files)[0]["people"]
    edges = np.sin(np.radians(np.r_[lat + 0.01, lat[-1] - 0.01]))
    km2 = 6371.0072**2 * np.radians(0.02) * -np.diff(edges)  # on the sphere of equal surface
    assert people["raster"] == pytest.approx((density * km2[:, None]).sum(), rel=5e-3)
    assert people["outside_grid"] > 0
    assert people["outside_areas"] > 0
    parts = [people[key] for key in ("outside_grid", "outside_areas", "inside_areas")]
    assert sum(parts) == pytest.approx(people["raster"], rel=1e-12)
    assert people["in_bags"] == pytest.approx(people["inside_areas"], rel=1e-6)


def test_a_raster_far_larger_than_the_areas_is_not_read_whole(files: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(balance, "SHARE_COUNTED", 0.7)  # the areas are 0.6 of it
    whole = balanced(files)[0]["people"]  # of few pixels
    unknown = ("raster", "outside_grid", "outside_areas")
    assert all(whole[key] is not None for key in unknown)
    for name, value in (("N_PIX_FEW", 100), ("N_PIX_COUNTED", 100)):
        with monkeypatch.context() as patch:
            patch.setattr(balance, name, value)
            found, said = balanced(files)
            assert found["people"] == whole | dict.fromkeys(unknown)
            assert "in the raster" not in said
            if name == "N_PIX_FEW":
                patch.setattr(balance, "SHARE_COUNTED", 0.5)
                assert balanced(files)[0]["people"] == whole


def test_pixels_that_do_not_add_up_to_an_area_are_refused(files: Any, monkeypatch: Any) -> None:
    measure = prepare.membership

    def loses(*arguments: Any) -> Membership:
        found = measure(*arguments)
        fraction = found.fraction.copy()
        fraction[found.offsets[4] : found.offsets[5]] *= 0.9
        return Membership(found.offsets, found.pixel, fraction)

    assert check(files.config()) == []
    monkeypatch.setattr(prepare, "membership", loses)
    (problem,) = check(files.config())
    assert problem.place.startswith("areas (")
    assert "the pixels of M04 (polygon 64.1 km2, pixels 57.6 km2) do not add up" in problem.found
    assert "180 degrees" in problem.remedy
    with pytest.raises(InputError, match="do not add up"):
        ingest(StageContext(files.config()))
    assert not list((files.directory / "out").glob("work/*.zarr"))


@pytest.mark.ci
@real
def test_madagascar_as_exactextract_and_every_intersection_say(tmp_path: Path) -> None:
    """By GDAL, exactextract, pandas and GEOS on the original files, district by district."""
    base = MADAGASCAR
    names = ("elevation", "evi", "lst_mean")
    config = Config.model_validate(
        {
            "areas": {"path": "districts.gpkg", "layer": "districts", "id": "district_id"},
            "counts": {"path": "cases.csv", "value": "cases"},
            "population": {"path": "population.tif"},
            "covariates": {name: {"path": f"{name}.tif"} for name in names},
            "grid": {"like": "population.tif"},
            "output": {"dir": str(tmp_path)},
        },
        context={"base": base},
    )
    summary = ingest(StageContext(config))
    found, store = summary["balance"], BagStore.open(tmp_path / "work/bags.zarr")
    people = found["people"]

    def band(name: str) -> np.ndarray:
        with rasterio.open(base / f"{name}.tif") as file:
            values = file.read(1, masked=True).astype(np.float64).filled(np.nan)
        return np.where(
            np.abs(values) > 1e30, np.nan, values
        )  # a nodata that equals itself no more

    with rasterio.open(base / "population.tif") as file:
        profile, t = file.profile, file.transform
    whole = np.nan_to_num(band("population"))
    usable = np.isfinite([band(name) for name in names]).all(axis=0)
    assert people["raster"] == pytest.approx(whole.sum(), rel=1e-9)
    assert people["raster"] == pytest.approx(23_764_992, abs=1)
    by_area = extracted(base / "population.tif", base / "districts.gpkg", layer="districts")
    everything = people["inside_areas"] + people["counted_twice"]
    assert everything == pytest.approx(by_area.sum(), rel=1e-6)
    assert everything == pytest.approx(21_357_332, rel=5e-3)  # by another rule for border pixels
    with rasterio.open(tmp_path / "usable.tif", "w", **{**profile, "dtype": "float64"}) as file:
        file.write(np.where(usable, whole, 0.0), 1)
    in_bags = extracted(tmp_path / "usable.tif", base / "districts.gpkg", layer="districts")
    districts = gpd.read_file(base / "districts.gpkg", layer="districts")
    at = [store.ids.index(str(number)) for number in districts["district_id"]]
    np.testing.assert_allclose(store.bag_weight[at], in_bags, rtol=2e-6)
    assert people["in_bags"] == pytest.approx(in_bags.sum(), rel=1e-6)
    assert people["no_covariate"] == pytest.approx(by_area.sum() - in_bags.sum(), rel=1e-3)
    outside = people["raster"] - people["inside_areas"]
    assert people["outside_areas"] == pytest.approx(outside, rel=1e-9)
    cases = pd.read_csv(base / "cases.csv")["cases"].sum()
    assert found["cases"]["given"] == found["cases"]["in_bags"] == pytest.approx(cases, rel=1e-12)
    assert summary["cases_total"] == pytest.approx(1_237_811, abs=1)
    assert summary["left_out"]["by_covariate"]["lst_mean"] >= 2

    x, y = (t.c + t.a * np.arange(whole.shape[1] + 1), t.f + t.e * np.arange(whole.shape[0] + 1))
    for k, polygon in zip(at, districts.geometry, strict=True):
        west, south, east, north = polygon.bounds
        cols = np.flatnonzero((x[1:] > west) & (x[:-1] < east))
        rows = np.flatnonzero((y[1:] < north) & (y[:-1] > south))
        row, col = (a.ravel() for a in np.meshgrid(rows, cols, indexing="ij"))
        pixel = shapely.box(x[col], y[row + 1], x[col + 1], y[row])
        shapely.prepare(polygon)
        share = shapely.contains_properly(polygon, pixel).astype(float)
        rim = np.flatnonzero((share == 0) & shapely.intersects(polygon, pixel))
        share[rim] = shapely.area(shapely.intersection(polygon, pixel[rim])) / abs(t.a * t.e)
        used = (share > 1e-9) & usable[row, col] & (whole[row, col] > 0)
        assert store.sizes[k] == used.sum()
        weight = (share * whole[row, col])[used].sum()
        assert store.bag_weight[k] == pytest.approx(weight, rel=1e-5)
    assert (store.n_bag, store.n_pix) == (109, 34_103)
    assert summary["exposure_total"] == pytest.approx(21_411_899, abs=1)

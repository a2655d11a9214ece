"""Shares of classes, distances, slopes: from the configuration to the grid and to check."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pystac
import pytest
import shapely
import xarray as xr
import yaml
from affine import Affine

from geo.core.calendar import Calendar
from geo.core.errors import InputError, Problem
from pipeline.cli.main import main
from pipeline.config.moving import spread
from pipeline.config.reader import load_config
from pipeline.config.series import Series
from pipeline.ingest.stage import check_inputs
from tests.bands import read
from tests.pipeline.conftest import Files

NAMES = """<PAMDataset><PAMRasterBand band="1"><CategoryNames><Category/><Category>Forest</Category>
<Category>Open forest</Category><Category>Town (dense)</Category></CategoryNames></PAMRasterBand>
</PAMDataset>"""
FINE = {"transform": Affine(250, 0, 5e5, 0, -250, 8e6)}


@pytest.fixture
def derived(files: Files) -> Files:
    """A country with land cover of 250 m, an elevation and roads beside its own covariates."""
    rng = np.random.default_rng(5)
    cover = rng.choice([0, 1, 2, 3], (120, 136), p=[0.05, 0.5, 0.3, 0.15]).astype(np.uint8)
    files.raster("land.tif", cover, dtype="uint8", nodata=0, **FINE)
    (files.directory / "land.tif.aux.xml").write_text(NAMES, encoding="utf-8")
    south, east = np.mgrid[:40, :44] * 1.0  # km; 5 pixels more on each side than the grid
    height = south**2 + 0.5 * south * east
    at = {"transform": Affine(1000, 0, 4.95e5, 0, -1000, 8.005e6)}
    files.raster("height.tif", height, **at)
    road = gpd.GeoDataFrame(
        {"kind": ["road", "path"]},
        geometry=[
            shapely.LineString([(5.1e5, 7.9e6), (5.1e5, 8.1e6)]),
            shapely.Point(5.2e5, 7.99e6),
        ],
        crs=files.crs,
    )
    road.to_file(files.directory / "roads.gpkg", layer="roads")
    files.x = {"wave": files.x["wave"]}
    return files


def written(files: Files, **covariates: Any) -> Any:
    """Write the configuration; return its path."""
    mapping = files.mapping()
    mapping["covariates"] = {**mapping["covariates"], **covariates}
    path = files.directory / "disagg.yaml"
    path.write_text(yaml.safe_dump(mapping, sort_keys=False), encoding="utf-8")
    return path


ALL = {
    "land": {"path": "land.tif", "classes": {"wood": [1, 2], "town": 3}},
    "to_roads": {"distance": "roads.gpkg", "where": {"kind": "road"}},
    "slope": {"slope": "height.tif"},
    "aspect": {"aspect": "height.tif"},
}


def test_derived_covariates_are_on_the_grid_as_others(derived: Files) -> None:
    path = written(derived, **ALL)
    assert main(["ingest", str(path), "--quiet"]) == 0
    found = xr.open_zarr(derived.directory / "out" / "work" / "grid.zarr")
    names = ["wave", "land_wood", "land_town", "to_roads", "slope", "aspect_northness"]
    assert list(found.covariate.to_numpy()) == [*names, "aspect_eastness"]
    assert list(found.covariate_unit.to_numpy())[1:5] == ["share", "share", "km", "degrees"]
    x = found.covariates.sel(covariate="to_roads")
    inside = found.coverage.to_numpy() > 0
    plane = np.abs(found.x.to_numpy() - 5.1e5)[None, :] / 1e3 * np.ones(inside.shape)
    # In UTM a kilometre of the plane is 0.9996 km or a little more.
    np.testing.assert_allclose(x.to_numpy()[inside], plane[inside], rtol=1e-3, atol=0.01)
    wood, town = (
        found.covariates.sel(covariate=name).to_numpy()[inside]
        for name in ("land_wood", "land_town")
    )
    np.testing.assert_allclose(wood + town, 1.0, rtol=1e-6)
    assert 0.7 < wood.mean() < 0.95
    slope, north, east = (
        found.covariates.sel(covariate=name).to_numpy()[inside]
        for name in ("slope", "aspect_northness", "aspect_eastness")
    )
    row, col = np.nonzero(inside)
    by_south, by_east = 2e-3 * (row + 5) + 5e-4 * (col + 5), 5e-4 * (row + 5)
    steep = np.hypot(by_south, by_east)
    np.testing.assert_allclose(slope, np.degrees(np.arctan(steep)), rtol=1e-3)  # 0.9996 of UTM
    np.testing.assert_allclose(north, by_south / steep, rtol=1e-5)
    np.testing.assert_allclose(east, -by_east / steep, rtol=1e-5)


def test_a_recorded_configuration_has_the_same_covariates(derived: Files) -> None:
    config = load_config(written(derived, **ALL))
    again = derived.directory / "again.yaml"
    recorded = config.model_dump(mode="json", exclude_defaults=True)
    given = {"areas", "counts", "population", "covariates", "grid"}
    kept = {name: recorded[name] for name in given}
    again.write_text(yaml.safe_dump(kept), encoding="utf-8")
    assert load_config(again).covariates == config.covariates
    paths = config.input_paths()
    assert paths["covariates.to_roads.distance"].endswith("roads.gpkg")
    assert paths["covariates.slope.slope"] == paths["covariates.aspect_eastness.aspect"]


@pytest.mark.parametrize(
    ("classes", "names"),
    [
        ("all", {"forest": (1,), "open_forest": (2,), "town_dense": (3,)}),
        (["Forest", "town (dense)"], {"forest": (1,), "town_dense": (3,)}),
        ([2], {"open_forest": (2,)}),
    ],
)
def test_names_of_classes_come_from_the_raster(derived: Files, classes: Any, names: Any) -> None:
    config = load_config(written(derived, land={"path": "land.tif", "classes": classes}))
    found = {name: each.choice.share for name, each in config.covariates.items() if each.classes}
    assert found == {f"land_{name}": values for name, values in names.items()}


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"path": "land.tif", "classes": ["Forst"]}, "no class named 'Forst'; did you mean forest"),
        ({"path": "wave.tif", "classes": "all"}, "no table that names its classes.*write them out"),
        ({"path": "nil.tif", "classes": "all"}, r"land\.classes: no file .*nil\.tif"),
        (
            {"path": "land.tif", "classes": {f"c{k}": k for k in range(21)}},
            "21 classes, each .*; give 20 at most",
        ),
        (
            {"path": "land.tif", "classes": {"a": 1}, "aggregate": "mean", "time": "2024"},
            "aggregate: given with classes; remove it, and choose a step with `time`",
        ),
        ({"stac": {"path": "s.json"}, "classes": "all"}, "stac is no local file.*write them out"),
        ({"path": "l*d.tif", "classes": ["Forst"]}, "no class named 'Forst'; did you mean forest"),
        ({"stac": {"path": "s.json"}, "slope": "a.tif"}, "stac: given with a slope; write slope: "),
        (
            {"slope": "height.tif", "anomaly": {"from": 1991, "to": 2020}},
            "anomaly: given with a slope; remove it",
        ),
        ({"path": "land.tif", "classes": {"a": "x"}}, "give the number of the class"),
        ({"path": "land.tif", "classes": {"a": 1}, "resampling": "mode"}, "given with classes"),
        ({"distance": "roads.gpkg", "band": 2}, "band: given with a distance; remove it"),
        ({"slope": "height.tif", "where": {"a": 1}}, "where: given with a slope"),
        ({"path": "land.tif", "slope": "height.tif"}, "a path and a slope; give one of them"),
        ({"path": "land.tif", "layer": "a"}, "layer: given without a distance"),
        ({"aspect": "height.tif", "component": "up"}, "northness"),
        ({"slope": "heigth.tif"}, r"land\.slope: no file .*did you mean height\.tif"),
    ],
)
def test_what_does_not_go_together_is_said(derived: Files, section: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_config(written(derived, land=section))


def test_two_covariates_of_one_name_are_refused(derived: Files) -> None:
    land = {"path": "land.tif", "classes": {"town": 3}}
    with pytest.raises(InputError, match="'land_town' is a covariate already"):
        load_config(written(derived, land=land, land_town={"path": "wave.tif"}))


def test_check_lists_the_classes_and_doubts_them(derived: Files, capsys: Any) -> None:
    land = {"path": "land.tif", "classes": {"wood": [1, 2, 9], "town": 3}}
    path = written(derived, land=land, raw={"path": "land.tif"})
    assert main(["check", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (classes,) = told["profile"]["classes"]
    # A second way: the share of the pixels of each class whose centre lies in an area.
    values = read(derived.directory / "land.tif")
    x, y = np.meshgrid(5e5 + 125 + 250 * np.arange(136.0), 8e6 - 125 - 250 * np.arange(120.0))
    union = shapely.union_all(derived.polygons)
    known = values[shapely.contains_xy(union, x, y) & (values > 0)]
    assert [each["value"] for each in classes["each"]] == [1, 2, 3]
    shares = [each["share"] for each in classes["each"]]
    np.testing.assert_allclose(shares, [(known == k).mean() for k in (1, 2, 3)], rtol=1e-12)
    names = [each["covariate"] for each in classes["each"]]
    assert names == ["land_wood", "land_wood", "land_town"]
    found = [each["found"] for each in told["suspicions"] if each["code"] == "classes"]
    assert len(found) == 2
    assert "table of 3 classes (Forest, Open forest, Town (dense))" in found[0]
    assert "the shares of land_wood, land_town sum to 1" in found[1]
    assert main(["check", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"classes land.tif: 1 (land_wood) {100 * shares[0]:.1f} %, 2 (land_wood)" in shown


def test_a_layer_that_cannot_be_read_is_one_line(derived: Files) -> None:
    config = load_config(written(derived, to_roads={"distance": "roads.gpkg", "layer": "rods"}))
    (problem,) = check_inputs(config).problems
    assert problem.place.startswith("covariates.to_roads (")
    assert "has no layer 'rods'" in problem.found


def test_tiles_and_items_are_as_the_raster(derived: Files) -> None:
    item = pystac.Item("i", None, None, datetime(2024, 1, 1), {})
    item.add_asset("map", pystac.Asset("land.tif", media_type=pystac.MediaType.COG))
    item.add_asset("dem", pystac.Asset("height.tif", media_type=pystac.MediaType.COG))
    item.save_object(dest_href=str(derived.directory / "i.json"), include_self_link=False)
    several = {
        "one": {"path": "land.tif", "classes": "all"},
        "tiles": {"path": "lan[d].tif", "classes": "all"},
        "items": {"stac": {"path": "i.json", "asset": "map"}, "classes": {"forest": 1}},
        "slope": {"slope": "height.tif"},
        "steep": {"slope": "STAC:i.json:dem"},
    }
    path = written(derived, **several)
    assert main(["check", str(path), "--quiet"]) == 0
    assert main(["ingest", str(path), "--quiet"]) == 0
    found = xr.open_zarr(derived.directory / "out" / "work" / "grid.zarr").covariates
    one, other = (
        [found.sel(covariate=name).to_numpy() for name in names]
        for names in (
            ("one_forest", "one_forest", "slope"),
            ("tiles_forest", "items_forest", "steep"),
        )
    )
    np.testing.assert_array_equal(one, other)


def test_those_that_move_are_of_each_period(tmp_path: Path) -> None:
    problems: list[Problem] = []
    land = {"path": "land_{year}.tif", "classes": {"wood": [1, 2], "town": 3}, "lag": [0, 12]}
    given = {
        "time": {"step": "month"},
        "covariates": {"land": land, "to_roads": {"distance": "roads_{year}.gpkg"}},
    }
    found = spread(given, problems, "disagg.yaml", tmp_path)
    months = Calendar("month")
    series = Series(months, months.number("2023-01") or 0, months.number("2024-06") or 0)
    own = series.of(found, "2024-02")["covariates"]
    assert problems == []
    assert {name: each.get("path", each.get("distance")) for name, each in own.items()} == {
        "land_wood": "land_2024.tif", "land_wood_lag12": "land_2023.tif",
        "land_town": "land_2024.tif", "land_town_lag12": "land_2023.tif",
        "to_roads": "roads_2024.gpkg",
    }  # fmt: skip

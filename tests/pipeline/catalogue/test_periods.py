"""The catalogue of a run of several periods: their times in STAC and in the QGIS project."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pystac
import xarray as xr

from geo.core.calendar import Calendar
from pipeline.catalogue.dates import days_of
from pipeline.catalogue.write import write_catalogue
from pipeline.config.reader import load_config
from pipeline.config.series import Series
from tests.bands import read
from tests.pipeline.catalogue.conftest import read_project

OF_WINDOWS = {
    "item_window_2022-Q1.json": ("2022-01-01T00:00:00Z", "2022-03-31T23:59:59Z"),
    "item_window_last_4.json": ("2022-07-01T00:00:00Z", "2023-06-30T23:59:59Z"),
    "item_window_2022-Q4_2023-Q3.json": ("2022-10-01T00:00:00Z", "2023-09-30T23:59:59Z"),
}


def test_weeks_begin_on_the_day_of_their_calendar():
    weeks = Series(Calendar("week", "sunday"), 0, 9)
    start, end = days_of("2024-W02", weeks)
    assert (start.isoformat()[:10], end.isoformat()[:10]) == ("2024-01-07", "2024-01-13")


def read_items(out: Path) -> dict[str, pystac.Item]:
    collection = pystac.Collection.from_file(str(out / "stac/collection.json"))
    return {Path(each.self_href).name: each for each in collection.get_items()}


def test_each_mapped_period_is_an_item_with_its_time(quarters, validator):
    collection = pystac.Collection.from_file(str(quarters / "stac/collection.json"))
    assert collection.validate(validator)
    items = read_items(quarters)
    days = {
        name: (each.properties["start_datetime"], each.properties["end_datetime"])
        for name, each in items.items()
    }
    assert days == {
        "item.json": ("2023-04-01T00:00:00Z", "2023-06-30T23:59:59Z"),
        "item_2022-Q1.json": ("2022-01-01T00:00:00Z", "2022-03-31T23:59:59Z"),
        "item_2023-Q3.json": ("2023-07-01T00:00:00Z", "2023-09-30T23:59:59Z"),
        **OF_WINDOWS,
    }
    extent = collection.extent.temporal.to_dict()["interval"]
    assert extent == [["2022-01-01T00:00:00Z", "2023-09-30T23:59:59Z"]]
    assert len({each.id for each in items.values()}) == 6
    cube = xr.open_zarr(items["item.json"].assets["rates.zarr"].get_absolute_href())
    for name, item in items.items():
        assert item.validate(validator)
        forecast = name in ("item_2023-Q3.json", "item_window_2022-Q4_2023-Q3.json")
        assert item.properties["disagg:forecast"] == forecast
        for asset in item.assets.values():
            assert Path(asset.get_absolute_href()).exists() or asset.href == "../run.json"
        if name in OF_WINDOWS:
            assert "mean of " in item.properties["title"]
            assert {"rate_mean", "rate_sd", "areas.csv"} <= set(item.assets)
            continue
        # The time of the item, and that of the cube, which is other code, say the same map.
        there = cube.sel(time=item.properties["start_datetime"][:10]).squeeze()
        assert item.properties["disagg:forecast"] == bool(there["forecast"])
        for key in ("rate_mean", "cases_mean", "outbreak"):
            np.testing.assert_array_equal(
                read(item.assets[key].get_absolute_href()), there[key].values, name
            )


def test_items_of_periods_that_are_mapped_no_more_go(quarters, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(quarters, out, ignore=shutil.ignore_patterns("work"))
    config = load_config(quarters.parent / "disagg.yaml")
    shutil.rmtree(out / "periods/2022-Q1")
    shutil.rmtree(out / "windows")
    write_catalogue(config, out)
    assert set(read_items(out)) == {"item.json", "item_2023-Q3.json"}
    assert not (out / "stac/item_2022-Q1.json").exists()


def test_the_project_has_maps_over_time_for_the_temporal_controller(quarters):
    root = read_project(quarters)
    groups = root.find("layer-tree-group").findall("layer-tree-group")
    names = [each.get("name") for each in groups]
    over = [each for each in groups if each.get("name").startswith("Over time: ")]
    assert len(over) == 3
    # Below the borders, on top of the maps of one period; one tick shows them.
    assert names.index("Areas") < names.index("Over time: mean rate") < names.index("Rates")
    days = {
        "2023-Q2": ["2023-04-01T00:00:00Z", "2023-06-30T23:59:59Z"],
        "2022-Q1": ["2022-01-01T00:00:00Z", "2022-03-31T23:59:59Z"],
        "2023-Q3 (forecast)": ["2023-07-01T00:00:00Z", "2023-09-30T23:59:59Z"],
    }
    timed = {}
    for group in over:
        assert group.get("checked") == "Qt::Unchecked"
        assert {each.get("checked") for each in group} == {"Qt::Checked"}
        assert [each.get("name") for each in group] == list(days)
        timed |= {each.get("id"): each.get("name") for each in group}
    styles = {}
    for layer in root.findall("projectlayers/maplayer"):
        name, temporal = timed.get(layer.find("id").text), layer.find("temporal")
        if name is None:
            assert temporal is None
            continue
        # As QGIS reads them: mode 0 is a range of the layer's own.
        assert (temporal.get("enabled"), temporal.get("mode")) == ("1", "0")
        assert [temporal.find(f"fixedRange/{k}").text for k in ("start", "end")] == days[name]
        source = layer.find("datasource").text
        assert (quarters / source).is_file()
        assert source.startswith("./" if name == "2023-Q2" else f"./periods/{name[:7]}/")
        items = tuple((x.get("value"), x.get("color")) for x in layer.iter("item"))
        styles.setdefault(Path(source).name, set()).add(items)
    # In all periods one colour is one value.
    assert {name: len(each) for name, each in styles.items()} == dict.fromkeys(
        ("rate_mean.tif", "outbreak.tif", "anomaly.tif"), 1
    )
    settings = root.find("ProjectTimeSettings")
    assert (settings.get("timeStep"), settings.get("timeStepUnit")) == ("3", "mon")
    ends = [settings.find(f"TemporalRange/{k}").text for k in ("start", "end")]
    assert ends == ["2022-01-01T00:00:00Z", "2023-09-30T23:59:59Z"]
    assert not timed.keys() & {x.get("id") for x in root.find("Layouts").iter("layer-tree-layer")}


def test_the_project_has_the_maps_of_windows(quarters):
    root = read_project(quarters)
    tree = root.find("layer-tree-group").findall("layer-tree-group")
    groups = {each.get("name"): each for each in tree}
    group = groups["Mean of the last 4 (2022-Q3 to 2023-Q2)"]
    assert {each.get("checked") for each in group} == {"Qt::Unchecked"}
    named = {each.get("id"): each.get("name") for each in group}
    sources = {
        layer.find("datasource").text
        for layer in root.findall("projectlayers/maplayer")
        if layer.find("id").text in named
    }
    kinds = ("mean", "sd", "relative_sd", "lower", "upper", "median")
    assert sources == {f"./windows/last_4/rate_{kind}.tif" for kind in kinds}
    period = "mean of the last 4 (2022-Q3 to 2023-Q2)"
    assert f"Mean rate, {period} (cases per 1,000 people a quarter)" in named.values()

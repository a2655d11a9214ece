"""Areas without a count: in the store, and not in its training."""

from __future__ import annotations

import json
import pickle
import warnings
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import shapely
from scipy.spatial.distance import pdist

from geo.core.errors import InputError
from pipeline.config.context import StageContext
from pipeline.ingest.inputs import describe_inputs, open_inputs
from pipeline.ingest.stage import check, ingest
from pipeline.run.record import stage_inputs
from pipeline.run.stages import STAGES
from pipeline.storage.fingerprint import fingerprint_value
from pipeline.store.bag_store import BagStore
from tests.progress import Notes

ARRAYS = ("x", "weight", "coords", "pixel")


def run(files: Any, out: str = "out") -> tuple[BagStore, list[str], dict[str, Any], str]:
    """Ingest; return the store, the areas without a count, the summary and the log."""
    files.options = {**files.options, "output": {"dir": str(files.directory / out)}}
    config, notes = files.config(), Notes()
    key = fingerprint_value(stage_inputs(STAGES["ingest"], config))
    summary = ingest(StageContext(config, notes, key))
    store = BagStore.open(files.directory / out / "work" / "bags.zarr")
    others = sorted(store.ids[k] for k in np.flatnonzero(~store.in_training))
    return store, others, json.loads(json.dumps(summary)), "\n".join(notes.lines)


def same(one: BagStore, other: BagStore) -> None:
    assert one.ids == other.ids
    for name in ("y", "offsets", "block_offsets", "bag_weight"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    a, b = one.read_rows(0, one.n_pix), other.read_rows(0, other.n_pix)
    for name in ARRAYS:
        if name != "coords":
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    # Positions are about all areas, those without counts too: of one period as of the next.
    np.testing.assert_allclose(pdist(a.coords), pdist(b.coords), rtol=1e-9, atol=1e-9)
    for a, b in zip(one.scaling(), other.scaling(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_training_is_that_of_the_counted_areas_alone(files: Any) -> None:
    whole, none, summary, _ = run(files, "whole")
    assert none == []
    assert "areas_without_counts" not in summary
    files.cases["M04"] = ""
    del files.cases["M07"]
    files.counts()
    store, others, summary, log = run(files, "some")
    assert others == ["M04", "M07"]
    np.testing.assert_array_equal(np.isnan(store.y), ~store.in_training)
    np.testing.assert_array_equal(store.in_training, [True] * 7 + [False] * 2)
    table = pd.read_parquet(store.path / "responses.parquet")
    assert sorted(table["area"]) == sorted(
        store.training.ids
    )  # a missing row is an area to predict
    assert summary["n_areas"] == 7
    people = sum(
        float(whole.bag_weight[whole.ids.index(area)]) for area in ("M04", "M07")
    )  # of the run that had their counts
    assert summary["areas_without_counts"] == {
        "n": 2,
        "share": pytest.approx(2 / 9),
        "exposure": pytest.approx(people, rel=1e-12),
        "unpredicted": [],
    }
    assert "warning: 2 of 9 areas (22.2 %) have no count" in log
    assert "predicted only: M04, M07" in log
    assert f"9 areas, {store.n_pix:,} pixels in them" in log
    assert f"in the fit, 7 areas with {store.training.n_pix:,} pixels" in log
    # The same, from files that know nothing of the two.
    keep = [k for k, area in enumerate(files.ids) if area not in ("M04", "M07")]
    files.ids, files.polygons = ([row[k] for k in keep] for row in (files.ids, files.polygons))
    files.areas()
    del files.cases["M04"]
    files.counts()
    alone, none, _, _ = run(files, "alone")
    assert none == []
    same(store.training, alone)


def test_few_missing_counts_are_no_warning_and_come_after_the_training(files: Any) -> None:
    files.cases["M01"] = "NA"
    files.counts()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of numpy
        store, others, _, log = run(files)
    assert others == ["M01"]
    assert "ingest: 1 of 9 areas (11.1 %)" in log
    assert "warning" not in log
    inputs = open_inputs(files.config(), [])
    assert "1 of 9 areas (11.1 %)" in describe_inputs(files.config(), inputs)["counts"]
    training = store.training
    assert training is store.training
    assert store.ids[: training.n_bag] == training.ids
    blocks = [store.read_block(k) for k in range(store.n_block)]
    np.testing.assert_array_equal(np.concatenate([b.bag for b in blocks]), np.arange(9))
    np.testing.assert_array_equal(store.block_offsets, np.cumsum([0, *(b.n_bag for b in blocks)]))
    for number in range(training.n_block):
        np.testing.assert_array_equal(blocks[number].x, training.read_block(number).x)
    again = pickle.loads(pickle.dumps(training))
    assert again.ids == training.ids
    np.testing.assert_array_equal(again.y, training.y)


def test_an_area_without_count_and_pixel_is_named_and_no_error(files: Any) -> None:
    at = files.pixels(4)
    files.population[at] = np.nan
    files.raster("population.tif", files.population)
    with pytest.raises(InputError, match="M04: cases, but no people"):
        ingest(StageContext(files.config()))
    files.cases["M04"] = ""
    files.counts()
    store, others, summary, log = run(files)
    assert others == []
    assert store.n_bag == 8
    assert summary["areas_without_counts"]["unpredicted"] == ["M04"]
    assert summary["areas_without_counts"]["share"] == pytest.approx(1 / 9)  # of all areas
    assert "not predicted, for want of a pixel with all values: M04" in log


def test_some_counted_area_must_be_usable(files: Any) -> None:
    files.population[files.pixels(0)] = np.nan
    files.raster("population.tif", files.population)
    for cases, said in (
        ({"M00": "0"}, "no area with a count has a usable pixel"),
        (dict.fromkeys(files.ids, ""), "has no count for any area"),
    ):
        files.cases = cases
        files.counts()
        with pytest.raises(InputError, match=said):
            ingest(StageContext(files.config()))


def test_nobody_tested_is_no_count(files: Any) -> None:
    rows = ["code,cases,n"]
    rows += [f"{area},{k},{10 * k}" for k, area in enumerate(files.ids)]
    rows[3], rows[4], rows[5] = "M02,2,", "M03,,30", "M04,4,40"
    (files.directory / "cases.csv").write_text("\n".join(rows) + "\n")
    files.options = {
        "counts": {"path": "cases.csv", "value": "cases", "tested": "n"},
        "model": {"likelihood": "binomial", "area_effect": False, "link": "probit"},
    }
    store, others, _, _ = run(files)
    assert others == ["M00", "M02", "M03"]  # 0 of 0, 2 of unknown, unknown of 30
    found = dict(zip(store.ids, store.trials, strict=True))
    assert found["M00"] == 0
    assert np.isnan(found["M02"])
    assert found["M03"] == 30
    known = dict(zip(store.ids, store.known_trials, strict=True))
    assert [area for area in files.ids if not known[area]] == ["M00", "M02"]
    trials = np.concatenate([store.read_block(k).trials for k in range(store.n_block)])
    assert dict(zip(store.ids, trials, strict=True))["M02"] == 1


def test_counts_may_be_the_areas_own_file_a_sheet_or_a_layer(files: Any) -> None:
    """It was refused as 'not UTF-8 text'."""
    path = files.directory / "areas.gpkg"
    frame = gpd.read_file(path)
    frame["cases"] = wanted = np.array([float(files.cases[area]) for area in frame["code"]])
    path.unlink()
    frame.to_file(path, layer="districts")
    frame.drop(columns="geometry").to_excel(files.directory / "c.xlsx", sheet_name="c", index=False)
    frame.to_file(files.directory / "points.gpkg", layer="all")
    for given in (
        {"path": "areas.gpkg"},
        {"path": "c.xlsx", "sheet": "c"},
        {"path": "points.gpkg", "layer": "all"},
    ):
        files.options = {"counts": {**given, "value": "cases"}}
        problems: list[Any] = []
        np.testing.assert_array_equal(
            open_inputs(files.config(), problems).responses.counts, wanted
        )
        assert problems == []


def test_islands_that_share_an_id_are_merged_on_request(files: Any) -> None:
    expected, _, _, _ = run(files, "before")
    west, south, east, north = files.polygons[4].bounds
    halves = [
        shapely.box(west, south, west + 4000, north),
        shapely.box(west + 4000, south, east, north),
    ]
    files.polygons[4:5], files.ids[4:5] = halves, ["M04", "M04"]
    files.areas()
    (problem,) = check(files.config())
    assert "1 id(s) are repeated: M04 (feature 5 and 6)" in problem.found
    assert "set `areas: {repair: true}`, which merges them" in problem.remedy
    files.options = {
        "areas": {"path": "areas.gpkg", "layer": "districts", "id": "code", "repair": True}
    }
    store, _, summary, log = run(files, "after")
    same(expected, store)
    assert summary["repairs"]["merged"] == {"M04": 2}
    assert "areas.repair: merged 2 features into 1 area (M04 (2))" in log
    found = describe_inputs(files.config(), open_inputs(files.config(), []))
    assert "merged 2 features" in found["areas.repair"]


def test_parts_with_counts_of_their_own_are_refused(files: Any) -> None:
    """The first part's count must not be taken for that of the whole area."""
    frame = gpd.read_file(files.directory / "areas.gpkg")
    frame["cases"] = np.arange(9.0) + 1
    frame.loc[8, "code"] = "M07"
    path = files.directory / "areas.gpkg"
    path.unlink()
    frame.to_file(path, layer="districts")
    files.options = {
        "areas": {"path": "areas.gpkg", "layer": "districts", "id": "code", "repair": True},
        "counts": {"value": "cases"},
    }
    (problem,) = check(files.config())
    assert "column 'cases' differs between the merged features of M07" in problem.found
    frame.loc[8, "cases"] = frame.loc[7, "cases"]
    path.unlink()
    frame.to_file(path, layer="districts")
    assert check(files.config()) == []


def test_pixels_that_are_left_out_add_up_with_those_that_are_not(files: Any) -> None:
    """Of all areas, those without a count too, and those that are left out as a whole."""
    files.population[10:14, 10:14] = 0.0
    files.raster("population.tif", files.population)
    files.cases["M04"] = ""
    files.counts()
    store, _, summary, log = run(files)
    left = summary["left_out"]
    assert left["pixels"] > 0
    assert left["pixels"] + store.n_pix == left["of_pixels"]
    line = (
        f"ingest: 9 areas, {store.n_pix:,} pixels in them, those of borders in each; left out "
        f"{left['pixels']:,} of {left['of_pixels']:,}: {left['nobody']:,} have no people; in the "
        f"fit, 8 areas with {store.training.n_pix:,} pixels"
    )
    assert line in log.splitlines()

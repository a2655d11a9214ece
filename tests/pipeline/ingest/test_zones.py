"""Counts of zones beside those of areas: the rest is that of the areas without a count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import yaml

from geo.core.errors import InputError
from pipeline.cli.main import main
from pipeline.ingest.stage import check
from tests.pipeline.ingest.test_points import ingested
from tests.typed import run_each

ZONES = {"name": "regions", "path": "regions.csv", "id": "region", "value": "n", "zone": "region"}
COUNTED = {"M00": 10, "M01": 11, "M03": 0, "M04": 14, "M07": 17, "M08": 18}  # not M02, M05, M06
ROWS = [("north", 30), ("centre", 20), ("south", 35)]


def _write(files: Any, rows: Any = ROWS, cases: Any = None, **zones: Any) -> None:
    regions = [name for name in ("north", "centre", "south") for _ in range(3)]
    frame = gpd.GeoDataFrame(
        {"code": files.ids, "region": regions}, geometry=files.polygons, crs=files.crs
    )
    (files.directory / "areas.gpkg").unlink()
    frame.to_file(files.directory / "areas.gpkg", layer="districts")
    files.counts([*(COUNTED if cases is None else cases).items()])
    text = "\n".join(["region;n", *(f"{name};{n}" for name, n in rows)]) + "\n"
    (files.directory / "regions.csv").write_text(text)
    files.options = {"points": [{**ZONES, **zones}]}


def test_the_rest_is_a_count_of_the_people_without_one(files: Any) -> None:
    _write(files)
    assert check(files.config()) == []
    areas, zones = ingested(files)
    assert dict(zip(zones.about["id"], zones.store.y, strict=True)) == {
        "north": 30 - 21, "centre": 20 - 14, "south": 35 - 35
    }  # fmt: skip
    at = {name: k for k, name in enumerate(areas.ids)}
    for k, members in enumerate((["M02"], ["M05"], ["M06"])):
        span = slice(*zones.store.offsets[k : k + 2].tolist())
        rows = zones.store.read_rows(span.start, span.stop)
        people = areas.bag_weight[[at[m] for m in members]].sum()
        assert rows.weight.sum() == pytest.approx(people, rel=1e-5)
    # The middle of the first is that of its square.
    square = gpd.GeoSeries([files.polygons[2].centroid], crs=files.crs).to_crs("EPSG:4326")[0]
    np.testing.assert_allclose([zones.about["lon"][0], zones.about["lat"][0]],
                               [square.x, square.y], atol=2e-3)  # fmt: skip
    assert areas.in_training.sum() == 6


def test_several_areas_and_a_suppressed_one_are_one_bag(files: Any) -> None:
    _write(files, cases={"M00": 10, "M01": "<5", "M03": 1, "M04": 2, "M05": 3, "M06": 1, "M07": 1},
           rows=[("north", 30), ("centre", 9), ("south", "")])  # fmt: skip
    areas, zones = ingested(files)
    assert zones.about["id"] == ["north"]  # the centre has counts of all
    assert zones.about["left_out"]["regions"] == {
        "all_counted": 1, "lacking_pixels": 0, "outside": 0, "without_value_or_place": 1
    }  # fmt: skip
    assert zones.store.y.tolist() == [20.0]
    at = {name: k for k, name in enumerate(areas.ids)}
    both = areas.bag_weight[[at["M01"], at["M02"]]].sum()
    np.testing.assert_allclose(zones.store.bag_weight, [both], rtol=1e-5)
    pixel = zones.store.read_rows(0, zones.store.n_pix).pixel
    assert np.unique(pixel).size == pixel.size  # those that a border cuts are once in it


@pytest.mark.parametrize(
    ("rows", "cases", "zones", "found"),
    [
        ([("north", 20)], None, {}, r"row 2: 20 in the zone, and 21 in its areas that have"),
        ([("North", 30)], None, {}, r"no area has region 'North'; did you mean 'north'"),
        ([("north", 30), ("north", 31)], None, {}, r"row 3: repeats the id 'north'"),
        (
            [("north", "1.400")],
            None,
            {},
            r"column 'n' has '1.400' \(row 2\), which may be thousand",
        ),
        ([("north", "1,4,0")], None, {}, r"column 'n' has '1,4,0' \(row 2\), which is no number"),
        ([("north", 10**9)], None, {}, r"more cases than people: north: 1,000,000,000 of \d"),
        (ROWS, None, {"zone": "province"}, r"has no column 'province', which points.regions.zone"),
    ],
)
def test_what_does_not_fit_is_one_line(
    files: Any, rows: Any, cases: Any, zones: Any, found: str
) -> None:
    _write(files, rows, cases, **zones)
    with pytest.raises(InputError, match=found) as caught:
        ingested(files)
    assert len(caught.value.problems) == 1
    assert not (files.directory / "out/work/points.zarr").exists()


def _levels(files: Any, halves: list[str], rows: Any) -> None:
    """Add totals of two halves of the country, ``halves`` being that of each area."""
    _write(files)
    frame = gpd.read_file(files.directory / "areas.gpkg").assign(half=halves)
    frame.to_file(files.directory / "areas.gpkg", layer="districts")
    text = "\n".join(["half,n", *(f"{name},{n}" for name, n in rows)]) + "\n"
    (files.directory / "halves.csv").write_text(text)
    half = {"name": "halves", "path": "halves.csv", "id": "half", "value": "n", "zone": "half"}
    files.options = {"points": [half, ZONES]}  # the order does not matter


def test_of_a_larger_zone_the_rests_of_smaller_ones_are_taken_off(files: Any) -> None:
    """Of M02 and M05 the regions' totals tell; the half lacks M06, whose region gives none."""
    _levels(files, ["all"] * 9, [("all", 120)])
    text = "\n".join(["region,n", "north,30", "centre,20"]) + "\n"
    (files.directory / "regions.csv").write_text(text)
    _, zones = ingested(files)
    found = dict(zip(zones.store.ids, zones.store.y, strict=True))
    whole = 120 - sum(COUNTED.values()) - (30 - 21) - (20 - 14)
    assert found == {"halves/all": whole, "regions/north": 9, "regions/centre": 6}
    sizes = dict(zip(zones.store.ids, np.diff(zones.store.offsets), strict=True))
    pixels = {
        name: set(zones.store.read_rows(*zones.store.offsets[k : k + 2].tolist()).pixel.tolist())
        for k, name in enumerate(zones.store.ids)
    }
    assert all(sizes.values())
    assert not pixels["halves/all"] & pixels["regions/north"]


@pytest.mark.parametrize(
    ("halves", "rows", "found"),
    [
        (
            ["a", "a", "b"] * 3,
            [("a", 90)],
            r"row 2: a has some of the areas of north \(points.regions\), not all",
        ),
        (
            ["a"] * 3 + ["b"] * 6,
            [("a", 40)],
            r"row 2: a has the areas of north \(points.regions\): one of both",
        ),
        (["a"] * 9, [("a", 60)], r"row 2: 60 in the zone, and 8\d in its areas that have"),
    ],
)
def test_zones_that_cross_or_say_the_same_twice(
    files: Any, halves: list[str], rows: Any, found: str
) -> None:
    _levels(files, halves, rows)
    with pytest.raises(InputError, match=found):
        ingested(files)


def test_keys_that_do_not_go_together(files: Any) -> None:
    _write(files, catchment=3)
    with pytest.raises(ValueError, match="given with a zone"):
        files.config()
    _write(files, tested="n")  # positives less counts of cases would be neither
    with pytest.raises(ValueError, match="one has numbers tested"):
        files.config()
    _write(files)
    files.options["counts"] = {"path": "cases.csv", "value": "cases", "weight": "cases"}
    with pytest.raises(ValueError, match=r"counts\.weight is given"):
        files.config()


def test_of_a_zone_whose_areas_all_have_a_count_nothing_is_left(files: Any, capsys: Any) -> None:
    _write(files, cases={name: 10 + k for k, name in enumerate(files.ids)}, rows=[("north", 40)])
    path: Path = files.directory / "disagg.yaml"
    path.write_text(yaml.safe_dump(files.mapping()))
    assert main(["ingest", str(path)]) == 0
    assert not (files.directory / "out/work/points.zarr").exists()


@pytest.mark.slow
def test_a_zone_tells_of_its_areas(files: Any) -> None:
    """The same counts: a rest of many cases raises the map of the areas that it is of."""
    fitted = {}
    for total in (30, 200):
        _write(files, rows=[("north", total)])
        files.options |= {
            "model": {"kernel": "linear + matern32(space)", "integrate": "none"},
            "output": {"dir": str(files.directory / f"out{total}"), "draws": 100},
        }
        path = files.directory / "disagg.yaml"
        path.write_text(yaml.safe_dump(files.mapping()))
        run_each(path, "ingest", "fit", "predict")
        out = files.directory / f"out{total}"
        fitted[total] = pd.read_csv(out / "areas.csv", index_col="code")["fitted"]["M02"]
        (row,) = pd.read_csv(out / "points.csv").to_dict("records")
        assert (row["id"], row["value"]) == ("north", total - 21)
        assert row["value_lower"] <= row["value"] <= row["value_upper"]
    assert fitted[200] > 2 * fitted[30]

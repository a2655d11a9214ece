"""The numbers that check shows, each against another way to compute it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
import rasterio
import shapely
import yaml
from affine import Affine
from pyproj import Geod
from rasterio.features import geometry_mask

from geo.sources.raster import RasterSource
from geo.sources.raster_header import RasterHeader
from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.ingest import raster_sample
from pipeline.ingest.profile import Profile, surface_km2
from pipeline.ingest.raster_sample import RasterSampler
from pipeline.ingest.stage import check_inputs
from pipeline.inspection.words import profile_lines
from tests.pipeline.ingest.conftest import extracted


def profile_of(files: Any, *, good: bool = True) -> Profile:
    checked = check_inputs(files.config())
    assert checked.problems == [] or not good
    assert checked.examined is not None
    return checked.examined.profile


def areas_of(files: Any) -> gpd.GeoDataFrame:
    return gpd.read_file(files.directory / "areas.gpkg")


def test_people_and_rates_are_those_of_exactextract(files: Any) -> None:
    files.population[10:14, 10:14] = np.nan
    files.raster("population.tif", files.population)
    profile = profile_of(files)
    each = extracted(files.directory / "population.tif", files.directory / "areas.gpkg")
    cases = np.array([float(n) for n in files.cases.values()])
    people, counts = profile.people, profile.counts
    assert people is not None
    assert people.each is not None
    assert counts is not None
    assert counts.rates is not None
    assert people.total == pytest.approx(each.sum(), rel=1e-6)
    assert (people.each.low, people.each.high) == pytest.approx((each.min(), each.max()), rel=1e-6)
    assert people.each.low_id == files.ids[int(each.argmin())]
    assert counts.total == cases.sum()
    assert counts.rate == pytest.approx(1000 * cases.sum() / each.sum(), rel=1e-6)
    rates, found = 1000 * cases / each, counts.rates
    assert (found.low, found.high) == pytest.approx((rates.min(), rates.max()), rel=1e-6)
    assert found.high_id == files.ids[int(rates.argmax())]


def test_without_people_rates_are_per_km2(files: Any) -> None:
    files.options = {"population": None, "grid": {"like": "wave.tif"}}
    profile = profile_of(files)
    assert profile.people is None
    assert profile.exposure == "km2"
    assert profile.areas is not None
    assert profile.counts is not None
    assert profile.counts.rate == pytest.approx(1000 * 126 / profile.areas.km2, rel=1e-3)


def test_a_survey_has_rates_of_people_tested(files: Any) -> None:
    rows = "\n".join(f"{area},{n},{50 + n}" for n, area in enumerate(files.cases))
    (files.directory / "cases.csv").write_text(f"code,cases,tested\n{rows}\n")
    files.options = {
        "counts": {"path": "cases.csv", "value": "cases", "tested": "tested"},
        "model": {"likelihood": "binomial"},
    }
    counts = profile_of(files).counts
    assert counts is not None
    assert (counts.total, counts.tested) == (36, 486)
    assert counts.rate == pytest.approx(1000 * 36 / 486)


@pytest.mark.parametrize("crs", ["EPSG:32738", "EPSG:4326"])
def test_surface_is_that_on_the_ellipsoid(files: Any, crs: str) -> None:
    frame = areas_of(files).to_crs(crs)
    geod = Geod(ellps="WGS84")
    dense = frame.geometry.segmentize(500 if crs != "EPSG:4326" else 0.005).to_crs("EPSG:4326")
    exact = [abs(geod.geometry_area_perimeter(shape)[0]) / 1e6 for shape in dense]
    np.testing.assert_allclose(surface_km2(frame), exact, rtol=1e-6)


def brute_force(path: Path, frame: gpd.GeoDataFrame) -> tuple[np.ndarray, int]:
    """Return the values inside the areas, and the number of pixels there, by rasterio."""
    with rasterio.open(path) as raster:
        inside = ~geometry_mask(frame.to_crs(raster.crs).geometry, raster.shape, raster.transform)
        values = raster.read(1).astype(float)[inside]
    return values[np.isfinite(values)], int(inside.sum())


def test_a_raster_is_described_inside_the_areas(files: Any) -> None:
    files.x["wave"][5:9, 5:9] = np.nan
    files.x["wave"][:2] = 100  # outside
    path = files.raster("wave.tif", files.x["wave"])
    values, n = brute_force(path, areas_of(files))
    population, wave, _ = profile_of(files).rasters
    assert population.key == "population"
    assert (wave.low, wave.median, wave.high) == (values.min(), np.median(values), values.max())
    assert wave.n_pixel == n
    assert wave.missing == pytest.approx(1 - values.size / n)
    assert wave.missing > 0
    assert (wave.crs, wave.resolution, wave.resolution_unit) == (files.crs, (1000, 1000), "metre")
    assert not wave.sampled


def test_what_a_raster_does_not_reach_is_missing(files: Any) -> None:
    files.raster("wave.tif", files.x["wave"][:, :12])
    wave = next(r for r in profile_of(files, good=False).rasters if r.key == "covariates.wave")
    _, n = brute_force(files.raster("all.tif", files.population), areas_of(files))
    values, _ = brute_force(files.directory / "wave.tif", areas_of(files))
    assert wave.n_pixel == n
    assert wave.missing == pytest.approx(1 - values.size / n)
    assert wave.missing > 0.4


def test_a_south_up_and_a_reprojected_raster(files: Any, tmp_path: Path) -> None:
    frame = areas_of(files)
    path = files.raster("wave.tif", files.x["wave"])
    values, n = brute_force(path, frame)
    t = files.transform
    south_up = Affine(t.a, 0, t.c, 0, -t.e, t.f + t.e * files.shape[0])
    flipped = files.raster("flipped.tif", files.x["wave"][::-1], transform=south_up)
    found = RasterSampler(frame.geometry).sample(RasterSource(flipped))
    assert found.n_inside == n
    np.testing.assert_array_equal(np.sort(found.inside), np.sort(values))
    there = RasterSampler(frame.to_crs("EPSG:4326").geometry).sample(RasterSource(path))
    assert there.n_inside == pytest.approx(n, abs=2)


def test_areas_smaller_than_a_pixel_have_values(files: Any) -> None:
    corner = shapely.box(5e5 + 5100, 8e6 - 5300, 5e5 + 5200, 8e6 - 5200)
    sampler = RasterSampler(gpd.GeoSeries([corner], crs=files.crs))
    found = sampler.sample(RasterSource(files.directory / "wave.tif"))
    assert found.inside.tolist() == [files.x["wave"][5, 5]]
    assert found.missing == 0


def test_a_large_raster_is_sampled(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raster_sample, "BLOCK", 4)
    frame = areas_of(files)
    source = RasterSource(files.directory / "wave.tif")
    everything = RasterSampler(frame.geometry).sample(source)
    reads: list[int] = []
    read = RasterSource.read

    def counted(self: RasterSource, window: Any = None) -> np.ndarray:
        values = read(self, window)
        reads.append(values.size)
        return values

    monkeypatch.setattr(RasterSource, "read", counted)
    some = RasterSampler(frame.geometry, limit=160).sample(source)
    assert some.sampled
    assert not everything.sampled
    assert sum(reads) <= 160
    assert set(some.inside) < set(everything.inside)
    assert some.inside.size > 50
    # Pixels of areas are found once for a grid, and are the same again.
    sampler = RasterSampler(frame.geometry, limit=160)
    again = sampler.sample(source)
    np.testing.assert_array_equal(some.inside, again.inside)
    monkeypatch.setattr(raster_sample, "_masked", lambda *_: pytest.fail("found again"))
    other = sampler.sample(RasterSource(files.directory / "north.tif"))
    assert other.n_inside == again.n_inside


def periods(files: Any) -> list[str]:
    months = ["2026-2", "2026-10"]
    return [f"{m},{a},{10 * k + n}" for k, m in enumerate(months) for n, a in enumerate(files.ids)]


def test_each_period_has_a_line(files: Any) -> None:
    (files.directory / "cases.csv").write_text("\n".join(["month,code,cases", *periods(files)]))
    files.options = {
        "counts": {"path": "cases.csv", "value": "cases", "period": "month"},
        "period": "2026-10",
    }
    profile = profile_of(files)
    found = [(p.period, p.n_area, p.total) for p in profile.periods]
    assert found == [("2026-2", 9, 36.0), ("2026-10", 9, 126.0)]
    assert profile.counts is not None
    assert profile.periods[1].rate == profile.counts.rate
    assert profile.periods[0].rate == pytest.approx(profile.counts.rate * 36 / 126)


def test_json_has_all_of_it_also_where_there_are_problems(files: Any, capsys: Any) -> None:
    for month in (1, 2):  # in files of their own
        rows = [f"{area},{month * n}" for n, area in enumerate(files.ids)]
        text = "code,cases\n" + "\n".join(rows) + "\n"
        (files.directory / f"cases_2026-0{month}.csv").write_text(text)
    path = files.directory / "map.yaml"
    counts = {"path": "cases_{period}.csv", "value": "cases"}
    path.write_text(yaml.safe_dump({**files.mapping(), "counts": counts}))
    assert main(["check", str(path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    profile = result["profile"]
    found = [(p["period"], p["total"]) for p in profile["periods"]]
    assert found == [("2026-01", 36.0), ("2026-02", 72.0)]
    assert profile["counts"]["period"] == "2026-02"
    assert (result["ok"], result["problems"], result["suspicions"]) == (True, [], [])
    assert profile["areas"]["n"] == 9
    keys = {"population", "covariates.wave", "covariates.north"}
    assert {r["key"] for r in profile["rasters"]} == keys
    files.raster("north.tif", np.full(files.shape, 3.0))
    assert main(["check", str(path), "--json"]) == 2
    result = json.loads(capsys.readouterr().out)
    assert not result["ok"]
    assert len(result["problems"]) == 1
    north = next(r for r in result["profile"]["rasters"] if r["key"] == "covariates.north")
    assert north["low"] == north["high"] == 3.0


def test_the_text_fits_the_terminal(
    files: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = files.directory / "map.yaml"
    path.write_text(yaml.safe_dump(files.mapping()))
    assert main(["check", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if str(path) not in line) <= 80
    heading = next(line.split() for line in lines if "median" in line)
    wanted = "raster min median max missing nodata pixel CRS unit"
    assert heading == wanted.split()


def test_declared_properties_reach_every_number(files: Any) -> None:
    """The rasters are stored in thousands and tenths, with an undeclared -9999 and a wrong CRS."""
    good = profile_of(files)
    stored = np.rint(1000 * files.x["wave"])
    stored[:2] = -9999
    files.raster("wave.tif", stored, dtype="int16", nodata=0, crs=None)
    files.raster("population.tif", files.population / 1000, crs="EPSG:32638", nodata=None)
    files.options = {
        "population": {"path": "population.tif", "scale": 1000, "crs": files.crs,
                       "units": "people"},
        "covariates": {
            "wave": {"path": "wave.tif", "nodata": -9999, "scale": 0.001, "offset": 5,
                     "crs": files.crs, "units": "m"},
            "north": {"path": "north.tif"},
        },
    }  # fmt: skip
    found = profile_of(files)
    assert found.people is not None
    assert good.people is not None
    assert found.people.total == pytest.approx(good.people.total, rel=1e-12)
    population, wave, _ = found.rasters
    assert (population.unit, population.crs) == ("people", "EPSG:32738")
    assert (wave.unit, wave.nodata, wave.scale) == ("m", (-9999.0,), 0.001)
    assert wave.low == pytest.approx(good.rasters[1].low + 5, abs=5e-4)
    assert wave.median == pytest.approx(good.rasters[1].median + 5, abs=5e-4)
    assert wave.missing == 0  # 0 is a value now, and -9999 lies outside the areas


@pytest.mark.parametrize(
    "header", [RasterHeader(nodata=()), RasterHeader(nodata=(7.0, 9.0), scale=2.0, offset=1.0)]
)
def test_a_declared_header_against_numpy(files: Any, header: RasterHeader) -> None:
    values = np.arange(30 * 34).reshape(30, 34) % 11
    path = files.raster("a.tif", values, dtype="uint8", nodata=5)
    source = RasterSource(path, header=header)
    expected = values * (header.scale or 1.0) + (header.offset or 0.0)
    expected = np.where(np.isin(values, header.nodata), np.nan, expected)
    np.testing.assert_array_equal(source.read(), expected)


@pytest.mark.parametrize("factor", [(1e-9, 1e-9), (1e-18, 1e3), (1e3, 1e-18)])
def test_absurdly_small_pixels_do_not_fill_the_memory(files, factor, monkeypatch):
    monkeypatch.setattr(raster_sample, "N_START", 40)
    few = files.transform @ Affine.scale(*factor)
    path = files.raster("tiny.tif", files.x["wave"], transform=few)
    found = RasterSampler(areas_of(files).geometry, limit=10**6).sample(RasterSource(path))
    assert found.inside.size == 0
    if factor == (1e-9, 1e-9):
        assert found.sampled
        assert found.missing == 1.0


def test_repairs_and_areas_without_counts_are_told(files: Any, capsys: Any) -> None:
    last = files.polygons[-1]
    west, south, east, north = last.bounds
    middle = (west + east) / 2
    files.polygons[-1] = shapely.box(west, south, middle, north)
    files.polygons.append(shapely.box(middle, south, east, north))
    files.ids.append(files.ids[-1])
    files.areas()
    files.counts(list(files.cases.items())[1:])
    mapping = files.mapping()
    mapping["areas"]["repair"] = True
    path = files.directory / "map.yaml"
    path.write_text(yaml.safe_dump(mapping))
    assert main(["check", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"repair merged 2 features into 1 area ({files.ids[-1]} (2))" in said
    assert "in 8 of 9 areas;" in said


@pytest.mark.parametrize("left", [-180.0, 0.0])
def test_longitudes_of_the_raster_may_run_from_0(files, left):
    """The same values, whichever turn the raster is in."""
    values = np.arange(360.0 * 20).reshape(20, 360)
    rolled = np.roll(values, int(left + 180) % 360, axis=1)
    path = files.raster(
        "turn.tif", rolled, crs="EPSG:4326", transform=Affine(1, 0, left, 0, -1, 10)
    )
    areas = gpd.GeoSeries([shapely.box(-63, -4, -58, 3), shapely.box(-3, 0, 2, 5)], crs=4326)
    found = RasterSampler(areas).sample(RasterSource(path))
    assert found.missing == 0
    row, col = np.mgrid[:20, :360]
    lon, lat = col - 179.5, 9.5 - row
    wanted = ((lon > -63) & (lon < -58) & (lat > -4) & (lat < 3)) | (
        (lon > -3) & (lon < 2) & (lat > 0) & (lat < 5)
    )
    np.testing.assert_array_equal(np.sort(found.inside), np.sort(values[wanted]))


def test_nobody_tested_is_no_count_in_any_period(files: Any) -> None:
    tested = {("2026-2", "M01"): 0, ("2026-10", "M02"): 0, ("2026-10", "M03"): 0}
    rows = [
        f"{month},{area},{0 if (month, area) in tested else 3},{tested.get((month, area), 20)}"
        for month in ("2026-2", "2026-10")
        for area in files.ids
    ]
    (files.directory / "cases.csv").write_text("\n".join(["month,code,cases,n", *rows]))
    counts = {"path": "cases.csv", "value": "cases", "period": "month", "tested": "n"}
    files.options = {"counts": counts, "period": "2026-10", "model": {"likelihood": "binomial"}}
    profile = profile_of(files)
    found = [(p.n_area, p.total, p.tested, p.rate) for p in profile.periods]
    assert found == [(8, 24.0, 160.0, 150.0), (7, 21.0, 140.0, 150.0)]
    counts_of_run = profile.counts
    assert counts_of_run is not None
    assert replace(counts_of_run, rates=None, period="") == replace(
        profile.periods[1], rates=None, period=""
    )


@pytest.mark.parametrize(
    ("rate_per", "denominator"), [(1, "per person"), (100000, "per 100,000 people")]
)
def test_rates_are_per_what_the_report_says(files: Any, rate_per: int, denominator: str) -> None:
    files.options = {"output": {"dir": "out", "rate_per": rate_per}}
    profile = profile_of(files)
    assert profile.rate == denominator
    assert f" {denominator}, " in dict(profile_lines(profile))["counts"]


def test_a_model_without_uncertainty_is_told_before_the_run(files: Any) -> None:
    assert "output" not in dict(profile_lines(profile_of(files)))
    files.options = {"model": {"kind": "constant"}}
    told = dict(profile_lines(profile_of(files)))
    assert told["output"].startswith("constant has no uncertainty: ")


def test_labels_are_counted_of_the_areas_that_have_one(files: Any) -> None:
    files.cases = {area: str(int(n < 3)) for n, area in enumerate(files.ids)}
    files.cases["M07"] = files.cases["M08"] = ""
    files.counts()
    mapping = {key: value for key, value in files.mapping().items() if key != "counts"}
    labels = {"path": "cases.csv", "id": "code", "value": "cases"}
    path = files.directory / "labels.yaml"
    path.write_text(yaml.safe_dump({**mapping, "labels": labels, "model": {"kind": "psi_vgpmil"}}))
    checked = check_inputs(load_config(path))
    assert checked.problems == []
    assert checked.examined is not None
    told = dict(profile_lines(checked.examined.profile))
    assert told["labels"] == "3 of 7 positive, 2 areas without a label"

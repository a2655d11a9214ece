"""Ingest: every usable pixel in its bag, with its people, nothing invented, nothing lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
import rasterio
import rasterio.features
import shapely
import zarr
from affine import Affine
from pyproj import Geod, Transformer
from rasterio.enums import MergeAlg
from shapely.geometry import box

from geo.core.errors import InputError
from geo.sources.raster import RasterSource
from geo.sources.registry import SOURCES
from pipeline.config.context import StageContext
from pipeline.config.schema import Config
from pipeline.core.progress import Silent
from pipeline.ingest.stage import check, ingest
from pipeline.run.record import stage_inputs
from pipeline.run.stages import STAGES
from pipeline.storage.fingerprint import fingerprint_value
from pipeline.store.aligned_grid import TILE, read_pixels
from pipeline.store.bag_store import BagStore
from tests.array_source import ArraySource, write_arrays
from tests.progress import Notes
from tests.real_data import MADAGASCAR, real


def run(files: Any, progress: Silent | None = None) -> tuple[BagStore, dict[str, Any]]:
    config = files.config()
    key = fingerprint_value(stage_inputs(STAGES["ingest"], config))
    summary = ingest(StageContext(config, progress or Silent(), key))
    return BagStore.open(files.directory / "out/work/bags.zarr"), summary


def bag_of(store: BagStore, area: str) -> dict[str, np.ndarray]:
    k = store.ids.index(area)
    rows = store.read_rows(int(store.offsets[k]), int(store.offsets[k + 1]))
    return {"x": rows.x, "weight": rows.weight, "pixel": rows.pixel, "coords": rows.coords}


def share(polygon: Any, row: int, col: int) -> float:
    """Share of a pixel inside a polygon, by the intersection of the two: the second route."""
    left, top = 5e5 + 1000 * col, 8e6 - 1000 * row
    return float(polygon.intersection(box(left, top - 1000, left + 1000, top)).area / 1e6)


def test_a_source_from_outside_is_a_covariate_as_any_raster(
    files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wave = np.where(files.x["north"] == 2.0, np.nan, files.x["wave"])
    files.raster("wave.tif", wave)
    raster, _ = run(files)
    before = [bag_of(raster, area) for area in files.ids]
    months = {"2023-01": np.nan_to_num(wave, nan=-1.0), "2023-02": files.x["wave"]}
    path = write_arrays(files.directory / "wave.npz", files.crs, files.transform, **months)
    (files.directory / "wave.tif").unlink()
    monkeypatch.setitem(SOURCES.by_suffix, ".npz", ArraySource)
    choices = {"wave": {"path": path.name}, "north": {"path": "north.tif"}}
    files.options = {"covariates": choices}
    with pytest.raises(InputError, match=r"wave.npz\).*has 2 times \(2023-01, 2023-02\); choose"):
        run(files)
    choices["wave"]["time"] = "2023-01"
    store, _ = run(files)
    for expected, area in zip(before, files.ids, strict=True):
        for name, values in bag_of(store, area).items():
            np.testing.assert_array_equal(values, expected[name])


def test_every_bag_has_its_pixels_people_and_covariates(files: Any) -> None:
    store, _ = run(files)
    grid = store.grid
    assert grid == RasterSource(files.directory / "population.tif").grid
    assert store.covariates == ("wave", "north")
    for k, area in enumerate(files.ids):
        bag = bag_of(store, area)
        shares = {
            (row, col): share(files.polygons[k], row, col)
            for row in range(files.shape[0])
            for col in range(files.shape[1])
        }
        expected = [at for at, s in shares.items() if s > 1e-9]
        got = [tuple(map(int, divmod(p, files.shape[1]))) for p in bag["pixel"]]
        assert got == expected
        weight = [shares[at] * files.population[at] for at in expected]
        # Shares of a pixel are measured in single precision.
        np.testing.assert_allclose(bag["weight"], weight, rtol=1e-6)
        for j, name in enumerate(files.x):
            values = np.array([files.x[name][at] for at in expected])
            np.testing.assert_array_equal(bag["x"][:, j], values.astype(np.float32))
        centres = [(5e5 + 1000 * (c + 0.5), 8e6 - 1000 * (r + 0.5)) for r, c in got]
        back = Transformer.from_crs(store.attrs["coords_crs"], files.crs, always_xy=True)
        found = back.transform(*(1000 * bag["coords"].T))[:2]
        np.testing.assert_allclose(np.transpose(found), centres, atol=0.01)
        assert store.y[store.ids.index(area)] == float(files.cases[area])


def test_pixels_without_a_value_are_left_out_and_counted(files: Any) -> None:
    at = files.pixels(4)
    inner = slice(at[0].start + 2, at[0].start + 5), slice(at[1].start + 3, at[1].start + 4)
    files.x["wave"][inner] = np.nan  # 3 pixels
    files.x["north"][inner[0].start, inner[1].start] = np.nan  # one of them
    files.population[at[0].start + 6, at[1].start + 6] = np.nan
    files.population[at[0].start + 6, at[1].start + 5] = 0.0
    for name, values in files.x.items():
        files.raster(f"{name}.tif", values)
    files.raster("population.tif", files.population)
    notes = Notes()
    store, summary = run(files, notes)
    left = store.attrs["left_out"]
    assert left["no_covariate"] == 3
    assert left["no_population"] == 1
    assert left["nobody"] == 1
    assert left["pixels"] == 5
    assert left["of_pixels"] == store.n_pix + 5
    assert left["by_covariate"] == {"wave": 3, "north": 1}
    assert left["weight"] == pytest.approx(files.population[inner].sum(), rel=1e-12)
    assert store.attrs["weight_unit"] == "people"
    assert summary["left_out"] == left
    assert len(bag_of(store, "M04")["pixel"]) == 81 - 5
    said = "\n".join(notes.lines)
    for words in ("left out 5 of", "3 lack a covariate", "1 lack population", "1 have no people"):
        assert words in said
    assert "wave 3, north 1" in said


def test_an_area_without_people_or_cases_is_left_out_and_named(files: Any) -> None:
    files.population[files.pixels(8)] = 0.0
    files.raster("population.tif", files.population)
    files.cases["M08"] = "0"
    files.counts()
    notes = Notes()
    store, _ = run(files, notes)
    assert store.n_bag == 8
    assert store.attrs["left_out"]["areas"] == ["M08"]
    assert any("M08" in line for line in notes.lines)


def test_people_are_conserved(files: Any) -> None:
    store, summary = run(files)
    inside = sum(
        share(polygon, row, col) * files.population[row, col]
        for polygon in files.polygons
        for row in range(files.shape[0])
        for col in range(files.shape[1])
    )
    assert summary["exposure_total"] == pytest.approx(inside, rel=1e-7)
    assert store.bag_weight.sum() == pytest.approx(inside, rel=1e-7)


def test_the_stores_are_written_anew_for_the_same_and_for_another_input(files: Any) -> None:
    first, _ = run(files)
    markers = [files.directory / f"out/work/{name}.zarr/complete.json" for name in ("grid", "bags")]
    before = [marker.stat().st_mtime_ns for marker in markers]
    run(files)  # who runs the stage has decided that it is stale, or forces it
    assert not set(before) & {marker.stat().st_mtime_ns for marker in markers}
    files.cases["M03"] = "77"
    files.counts()
    second, _ = run(files)
    assert second.fingerprint != first.fingerprint
    assert second.y[second.ids.index("M03")] == 77.0


def test_the_number_of_workers_changes_nothing(files: Any) -> None:
    contents = []
    for workers in (1, 4):
        files.options = {
            "compute": {"workers": workers},
            "output": {"dir": str(files.directory / f"out{workers}")},
        }
        ingest(StageContext(files.config()))
        work = files.directory / f"out{workers}/work"
        contents.append(
            {p.relative_to(work): p.read_bytes() for p in work.rglob("*") if p.is_file()}
        )
    assert contents[0] == contents[1]
    assert len(contents[0]) > 10


def test_the_cube_is_what_the_rasters_hold(files: Any) -> None:
    run(files)
    cube: Any = zarr.open_group(files.directory / "out/work/grid.zarr", mode="r")
    inside = cube["coverage"][:] > 0
    assert 0 < inside.sum() < inside.size
    np.testing.assert_array_equal(
        cube["covariates"][0][inside], files.x["wave"].astype(np.float32)[inside]
    )
    np.testing.assert_array_equal(cube["population"][:][inside], files.population[inside])
    expected = np.zeros(files.shape)
    for polygon in files.polygons:
        for at in np.ndindex(files.shape):
            expected[at] += share(polygon, *at)
    np.testing.assert_allclose(cube["coverage"][:], expected, atol=1e-6)


def test_scattered_pixels_of_a_cube_come_in_the_order_asked_for(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n_row, n_col = 130, 200
    x = rng.normal(size=(2, n_row, n_col)).astype(np.float32)
    people = rng.normal(size=(n_row, n_col))
    cube = zarr.open_group(tmp_path / "c", mode="w")
    cube.create_array("covariates", data=x)
    cube.create_array("population", data=people)
    pixel = rng.permutation(n_row * n_col)[:3000]
    got, exposure = read_pixels(cube, pixel, n_col)
    np.testing.assert_array_equal(got, x.reshape(2, -1)[:, pixel].T)
    np.testing.assert_array_equal(exposure, people.ravel()[pixel])


def test_areas_on_several_tiles_lose_nothing_at_the_seams(files: Any, tmp_path: Path) -> None:
    """A grid of several tiles: totals by GDAL's own rasterisation of whole pixels."""
    shape = (TILE + 40, TILE + 60)
    rng = np.random.default_rng(1)
    people = rng.gamma(1.0, 10, shape)
    for name in files.x:
        files.raster(f"{name}.tif", rng.normal(size=shape))
    files.raster("population.tif", people)
    polygon = box(5e5 + 400e3, 8e6 - 540e3, 5e5 + 560e3, 8e6 - 490e3)
    files.polygons, files.ids, files.cases = [polygon], ["whole"], {"whole": "5"}
    files.areas()
    files.counts()
    store, _ = run(files)
    mask = rasterio.features.geometry_mask([polygon], shape, files.transform, invert=True)
    assert store.n_pix == mask.sum() == 160 * 50
    assert store.bag_weight[0] == pytest.approx(people[mask].sum(), rel=1e-12)
    assert (tmp_path / "out/work/grid.zarr/covariates/c/0/1/1").is_file()


@pytest.mark.parametrize("mask", ["areas", "all"])
def test_tiles_without_any_area_are_kept_for_maps_of_everything(files: Any, mask: str) -> None:
    shape = (20, TILE + 40)
    rng = np.random.default_rng(1)
    for name in files.x:
        files.raster(f"{name}.tif", rng.normal(size=shape))
    files.raster("population.tif", rng.gamma(1.0, 10, shape))
    left, top = 5e5 + 1000 * (TILE + 5), 8e6 - 2000
    files.polygons, files.ids, files.cases = (
        [box(left, top - 9e3, left + 9e3, top)],
        ["a"],
        {"a": "5"},
    )
    files.areas()
    files.counts()
    files.options = {"output": {"mask": mask, "dir": str(files.directory / "out")}}
    run(files)
    cube: Any = zarr.open_group(files.directory / "out/work/grid.zarr", mode="r")
    written = np.isfinite(cube["covariates"][:]).all(axis=0) & np.isfinite(cube["population"][:])
    assert written[:, TILE:].all()
    assert written[:, :TILE].all() if mask == "all" else not written[:, :TILE].any()
    assert cube["coverage"][:].sum() == pytest.approx(81)


def test_without_a_population_the_exposure_is_area(files: Any) -> None:
    files.options = {"population": None}
    store, _ = run(files)
    assert store.attrs["weight_unit"] == "km2"
    on_earth = gpd.GeoSeries(files.polygons, crs=files.crs).segmentize(100).to_crs(4326)
    for area, polygon in zip(files.ids, on_earth, strict=True):
        m2, _ = Geod(ellps="WGS84").geometry_area_perimeter(polygon)
        weight = store.bag_weight[store.ids.index(area)]
        assert weight == pytest.approx(abs(m2) / 1e6, rel=1e-7)


def test_an_area_smaller_than_a_pixel_has_its_share(files: Any) -> None:
    row, col = 5, 7
    left, top = 5e5 + 1000 * col, 8e6 - 1000 * row
    files.polygons[0] = box(left + 100, top - 600, left + 400, top - 200)  # 0.3 x 0.4 km
    files.areas()
    store, _ = run(files)
    bag = bag_of(store, "M00")
    assert bag["pixel"].tolist() == [row * files.shape[1] + col]
    assert bag["weight"] == pytest.approx([0.12 * files.population[row, col]], rel=1e-6)


def test_a_pixel_on_a_border_is_shared(files: Any) -> None:
    store, _ = run(files)
    west, east = bag_of(store, "M00"), bag_of(store, "M01")
    common, i, j = np.intersect1d(west["pixel"], east["pixel"], return_indices=True)
    assert common.size == files.size + 1
    rows, cols = np.divmod(common, files.shape[1])
    inner = slice(1, -1)  # the first and the last are shared with the areas north and south too
    total = (west["weight"][i] + east["weight"][j])[inner]
    np.testing.assert_allclose(total, files.population[rows, cols][inner], rtol=1e-6)


def test_a_covariate_of_another_crs_and_pixel_size(files: Any) -> None:
    """A field linear in longitude and latitude, coarser and in degrees, comes back in place."""
    lon, lat = 44.9 + 0.02 * np.arange(25), -17.9 - 0.02 * np.arange(30)
    degrees = Affine(0.02, 0, lon[0] - 0.01, 0, -0.02, lat[0] + 0.01)
    values = 100 * lon[None, :] + 37 * lat[:, None]
    files.raster("north.tif", values, crs="EPSG:4326", transform=degrees)
    fine = np.kron(files.x["wave"], np.ones((4, 4))) + np.tile([-1.0, 1.0], (120, 68))
    files.raster("wave.tif", fine, transform=files.transform @ Affine.scale(0.25))
    store, _ = run(files)
    assert store.attrs["left_out"]["pixels"] == 0
    to_degrees = Transformer.from_crs(store.attrs["coords_crs"], 4326, always_xy=True)
    for area in files.ids:
        bag = bag_of(store, area)
        x, y, _ = to_degrees.transform(*(1000 * bag["coords"].T))
        np.testing.assert_allclose(bag["x"][:, 1], 100 * x + 37 * y, atol=0.02)
        at = np.divmod(bag["pixel"], files.shape[1])
        # Sixteen pixels to one: their mean, and what alternates between them is gone.
        np.testing.assert_allclose(bag["x"][:, 0], files.x["wave"][at], atol=1e-6)


@pytest.mark.parametrize("name", ["areas.geojson", "areas.shp", "areas.parquet"])
def test_counts_in_a_column_of_the_areas_of_any_format(files: Any, name: str) -> None:
    frame = gpd.read_file(files.directory / "areas.gpkg")
    frame["cases"] = [float(files.cases[area]) for area in frame["code"]]
    path = files.directory / name
    if name.endswith("parquet"):
        frame.to_parquet(path)
    else:
        frame.to_file(path)
    expected, _ = run(files)
    files.options = {
        "areas": {"path": name, "id": "code"},
        "counts": {"value": "cases"},
        "output": {"dir": str(files.directory / "other")},
    }
    ingest(StageContext(files.config()))
    store = BagStore.open(files.directory / "other/work/bags.zarr")
    assert store.ids == expected.ids
    np.testing.assert_array_equal(store.y, expected.y)
    np.testing.assert_allclose(store.bag_weight, expected.bag_weight, rtol=1e-6)


def test_people_may_be_a_covariate_too(files: Any) -> None:
    """A covariate named as the population is: neither takes the other's place."""
    files.population[files.pixels(4)][1, 1] = 0.0  # log has no value there
    files.raster("population.tif", files.population)
    people = {"path": "population.tif", "transform": "log"}
    files.options = {"covariates": {"population": people, "north": {"path": "north.tif"}}}
    store, _ = run(files)
    assert store.covariates == ("population", "north")
    assert store.attrs["left_out"]["by_covariate"] == {"population": 1, "north": 0}
    bag = bag_of(store, "M03")
    at = np.divmod(bag["pixel"], files.shape[1])
    np.testing.assert_allclose(bag["x"][:, 0], np.log(files.population[at]), rtol=1e-6)


def test_an_area_that_reaches_past_the_grid_is_told(files: Any) -> None:
    files.polygons[0] = box(5e5 - 3000, 8e6 - 8000, 5e5 + 9000, 8e6 - 2000)  # a quarter outside
    files.areas()
    notes = Notes()
    store, _ = run(files, notes)
    assert any("past the grid" in line and "M00 25 %" in line for line in notes.lines)
    assert not any("M01" in line for line in notes.lines)
    assert store.n_bag == 9
    assert store.bag_weight[store.ids.index("M00")] == pytest.approx(
        files.population[2:8, :9].sum(), rel=1e-6
    )


def test_a_grid_by_crs_and_resolution(files: Any) -> None:
    files.options = {"grid": {"crs": files.crs, "resolution": 2000}}
    store, summary = run(files)
    assert store.grid is not None
    assert store.grid.res == (2000.0, 2000.0)
    fine = run_total(files)
    # People of a 2 km pixel count by its share: the totals agree up to the rim.
    assert summary["exposure_total"] == pytest.approx(fine, rel=0.05)


def run_total(files: Any) -> float:
    files.options = {"output": {"dir": str(files.directory / "fine")}}
    return float(ingest(StageContext(files.config()))["exposure_total"])


def test_check_of_good_inputs_finds_and_leaves_nothing(files: Any) -> None:
    before = sorted(files.directory.iterdir())
    assert check(files.config()) == []
    assert sorted(files.directory.iterdir()) == before


def madagascar(directory: Path, covariates: dict[str, Any]) -> tuple[BagStore, dict[str, Any]]:
    config = Config.model_validate(
        {
            "areas": {"path": "districts.gpkg", "layer": "districts", "id": "district_id"},
            "counts": {"path": "cases.csv", "value": "cases"},
            "population": {"path": "population.tif"},
            "covariates": covariates,
            "grid": {"like": "population.tif"},
            "output": {"dir": str(directory)},
        },
        context={"base": MADAGASCAR},
    )
    summary = ingest(StageContext(config))
    return BagStore.open(directory / "work/bags.zarr"), summary


@real
def test_madagascar_as_every_intersection_says(tmp_path: Path) -> None:
    """Each pixel cut with each district by GEOS: pixels, people and cases, district by district."""
    base = MADAGASCAR
    names = ("elevation", "evi", "lst_mean")
    store, summary = madagascar(tmp_path, {n: {"path": f"{n}.tif"} for n in names})

    def band(name: str) -> tuple[np.ndarray, Any]:
        with rasterio.open(base / f"{name}.tif") as file:
            values = file.read(1, masked=True).astype(np.float64)
            missing = np.abs(values.filled(np.nan)) > 1e30  # a nodata that equals itself no more
            return np.where(missing, np.nan, values.filled(np.nan)), file.transform

    people, t = band("population")
    covariates = np.stack([band(name)[0] for name in names])
    good = (people > 0) & np.isfinite(covariates).all(axis=0)
    edges = [t.c + t.a * np.arange(people.shape[1] + 1), t.f + t.e * np.arange(people.shape[0] + 1)]
    districts = gpd.read_file(base / "districts.gpkg").set_index("district_id")
    total, n_pix = 0.0, 0
    for number, polygon in districts.geometry.items():
        west, south, east, north = polygon.bounds
        cols = np.flatnonzero((edges[0][1:] > west) & (edges[0][:-1] < east))
        rows = np.flatnonzero((edges[1][1:] < north) & (edges[1][:-1] > south))
        row, col = (a.ravel() for a in np.meshgrid(rows, cols, indexing="ij"))
        pixel = shapely.box(edges[0][col], edges[1][row + 1], edges[0][col + 1], edges[1][row])
        shapely.prepare(polygon)
        share = shapely.contains_properly(polygon, pixel).astype(float)
        rim = np.flatnonzero((share == 0) & shapely.intersects(polygon, pixel))
        share[rim] = shapely.area(shapely.intersection(polygon, pixel[rim])) / abs(t.a * t.e)
        used = (share > 1e-9) & good[row, col]
        k = store.ids.index(str(number))
        assert store.sizes[k] == used.sum()
        weight = (share * people[row, col])[used].sum()
        assert store.bag_weight[k] == pytest.approx(weight, rel=1e-5)
        total, n_pix = total + weight, n_pix + int(used.sum())
    assert store.n_bag == len(districts) == 109
    assert store.n_pix == n_pix == 34_103
    assert summary["exposure_total"] == pytest.approx(total, rel=1e-7)
    assert summary["exposure_total"] == pytest.approx(21_411_899, abs=1)


@real
def test_madagascar_as_a_plain_sum_says(tmp_path: Path) -> None:
    base = MADAGASCAR
    names = ("elevation", "evi", "lst_mean")
    rain = {"path": "precipitation.tif", "transform": "log1p"}
    store, summary = madagascar(
        tmp_path, {**{n: {"path": f"{n}.tif"} for n in names}, "rain": rain}
    )
    assert store.n_bag == 109
    assert summary["cases_total"] == pytest.approx(1_237_811, abs=1)
    with rasterio.open(base / "population.tif") as file:
        people = file.read(1, masked=True).filled(0).astype(np.float64)
        transform, shape = file.transform, file.shape
    # The second route: each pixel in 10 x 10 points, asked of the polygons by GDAL; borders that
    # were simplified one by one overlap here and there, and people there count in both.
    fine = rasterio.features.rasterize(
        gpd.read_file(base / "districts.gpkg").geometry,
        (shape[0] * 10, shape[1] * 10),
        transform=transform @ transform.scale(0.1),
        merge_alg=MergeAlg.add,
        dtype="uint8",
    )
    covered = fine.reshape(shape[0], 10, shape[1], 10).mean(axis=(1, 3))
    inside = (people * covered).sum()
    total = summary["exposure_total"] + summary["left_out"]["weight"]
    assert total == pytest.approx(inside, rel=5e-4)
    # Given as 21,357,332 by another rule for pixels on a border; a tenth of the raster's people
    # stand where the simplified coast cuts pixels off.
    assert total == pytest.approx(21_357_332, rel=5e-3)
    assert 0.85 < total / people.sum() < 0.95
    assert 0 < summary["left_out"]["weight"] < 0.005 * total
    assert summary["left_out"]["by_covariate"]["lst_mean"] >= 2
    assert store.sizes.min() >= 1

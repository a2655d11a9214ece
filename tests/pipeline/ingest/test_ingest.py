"""Ingest: every usable pixel in its bag, with its people, nothing invented, nothing lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
import rasterio
import rasterio.features
import zarr
from affine import Affine
from pyproj import Geod, Transformer
from shapely.geometry import box

from geo.core.errors import InputError
from geo.sources.raster import RasterSource
from geo.sources.registry import SOURCES
from pipeline.config.context import StageContext
from pipeline.core.progress import Silent
from pipeline.ingest.stage import check, ingest
from pipeline.run.record import stage_inputs
from pipeline.run.stages import STAGES
from pipeline.storage.fingerprint import fingerprint_value
from pipeline.store.aligned_grid import TILE, read_pixels
from pipeline.store.bag_store import BagStore
from tests.array_source import ArraySource, write_arrays
from tests.pipeline.ingest.conftest import extracted, shares
from tests.progress import Notes


def run(files: Any, progress: Silent | None = None) -> tuple[BagStore, dict[str, Any]]:
    config = files.config()
    key = fingerprint_value(stage_inputs(STAGES["ingest"], config))
    summary = ingest(StageContext(config, progress or Silent(), key))
    return BagStore.open(config.output.dir / "work/bags.zarr"), summary


def bag_of(store: BagStore, area: str) -> dict[str, np.ndarray]:
    k = store.ids.index(area)
    rows = store.read_rows(int(store.offsets[k]), int(store.offsets[k + 1]))
    return {"x": rows.x, "weight": rows.weight, "pixel": rows.pixel, "coords": rows.coords}


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


def test_every_pixel_is_in_its_bags_with_its_people_and_covariates(files: Any) -> None:
    before = sorted(files.directory.iterdir())
    assert check(files.config()) == []
    assert sorted(files.directory.iterdir()) == before  # a check leaves nothing
    store, summary = run(files)
    assert store.grid == RasterSource(files.directory / "population.tif").grid
    assert store.covariates == ("wave", "north")
    every = shares(files)  # by GEOS: the second route
    for k, area in enumerate(files.ids):
        bag = bag_of(store, area)
        at = np.nonzero(every[k] > 1e-9)
        np.testing.assert_array_equal(bag["pixel"], np.ravel_multi_index(at, files.shape))
        # Shares of a pixel are measured in single precision; on a border they are less than one.
        np.testing.assert_allclose(bag["weight"], (every[k] * files.population)[at], rtol=1e-6)
        for j, values in enumerate(files.x.values()):
            np.testing.assert_array_equal(bag["x"][:, j], values[at].astype(np.float32))
        centres = 5e5 + 1000 * (at[1] + 0.5), 8e6 - 1000 * (at[0] + 0.5)
        back = Transformer.from_crs(store.attrs["coords_crs"], files.crs, always_xy=True)
        np.testing.assert_allclose(
            back.transform(*(1000 * bag["coords"].T))[:2], centres, atol=0.01
        )
        assert store.y[store.ids.index(area)] == float(files.cases[area])
    inside = (every * files.population).sum()
    assert summary["exposure_total"] == pytest.approx(inside, rel=1e-7)
    assert store.bag_weight.sum() == pytest.approx(inside, rel=1e-7)

    cube: Any = zarr.open_group(files.directory / "out/work/grid.zarr", mode="r")
    covered = cube["coverage"][:]
    np.testing.assert_allclose(covered, every.sum(axis=0), atol=1e-6)
    wave = files.x["wave"].astype(np.float32)
    np.testing.assert_array_equal(cube["covariates"][0][covered > 0], wave[covered > 0])
    people = cube["population"][:]
    np.testing.assert_array_equal(people[covered > 0], files.population[covered > 0])

    # Who runs the stage has decided that it is stale, or forces it: all is written anew.
    markers = [files.directory / f"out/work/{name}.zarr/complete.json" for name in ("grid", "bags")]
    written = {marker.stat().st_mtime_ns for marker in markers}
    files.cases["M03"] = "77"
    files.counts()
    again, _ = run(files)
    assert not written & {marker.stat().st_mtime_ns for marker in markers}
    assert again.fingerprint != store.fingerprint
    assert again.y[again.ids.index("M03")] == 77.0


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
    wanted = {
        **{"no_covariate": 3, "no_population": 1, "nobody": 1, "pixels": 5},
        "of_pixels": store.n_pix + 5,
        "by_covariate": {"wave": 3, "north": 1},
    }
    assert {key: left[key] for key in wanted} == wanted
    assert left["weight"] == pytest.approx(files.population[inner].sum(), rel=1e-12)
    assert store.attrs["weight_unit"] == "people"
    assert summary["left_out"] == left
    assert len(bag_of(store, "M04")["pixel"]) == 81 - 5
    said = "\n".join(notes.lines)
    for words in ("left out 5 of", "3 lack a covariate", "1 lack population", "1 have no people"):
        assert words in said
    assert "wave 3, north 1" in said


def test_areas_without_people_past_the_grid_or_smaller_than_a_pixel(files: Any) -> None:
    files.population[files.pixels(8)] = 0.0
    files.raster("population.tif", files.population)
    files.cases["M08"] = "0"
    files.counts()
    files.polygons[0] = box(5e5 - 3000, 8e6 - 8000, 5e5 + 9000, 8e6 - 2000)  # a quarter outside
    row, col = 15, 13
    left, top = 5e5 + 1000 * col, 8e6 - 1000 * row
    files.polygons[4] = box(left + 100, top - 600, left + 400, top - 200)  # 0.3 x 0.4 km
    files.areas()
    notes = Notes()
    store, _ = run(files, notes)
    assert store.n_bag == 8
    assert store.attrs["left_out"]["areas"] == ["M08"]
    assert any("M08" in line for line in notes.lines)
    (told,) = (line for line in notes.lines if "past the grid" in line)
    assert "M00 25 %" in told
    assert "M01" not in told
    weight = files.population[2:8, :9].sum()
    assert store.bag_weight[store.ids.index("M00")] == pytest.approx(weight, rel=1e-6)
    bag = bag_of(store, "M04")
    assert bag["pixel"].tolist() == [row * files.shape[1] + col]
    assert bag["weight"] == pytest.approx([0.12 * files.population[row, col]], rel=1e-6)


def test_the_number_of_workers_changes_nothing(files: Any) -> None:
    contents = []
    for workers in (1, 4):
        out = files.directory / f"out{workers}"
        files.options = {"compute": {"workers": workers}, "output": {"dir": str(out)}}
        ingest(StageContext(files.config()))
        found = (path for path in (out / "work").rglob("*") if path.is_file())
        contents.append({path.relative_to(out): path.read_bytes() for path in found})
    assert contents[0] == contents[1]
    assert len(contents[0]) > 10


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


@pytest.mark.parametrize("mask", ["areas", "all"])
def test_areas_on_several_tiles_lose_nothing_at_the_seams(files: Any, mask: str) -> None:
    """A grid of several tiles: totals by GDAL's own rasterisation of whole pixels."""
    shape = (20, 2 * TILE + 40)
    rng = np.random.default_rng(1)
    people = rng.gamma(1.0, 10, shape)
    for name in files.x:
        files.raster(f"{name}.tif", rng.normal(size=shape))
    files.raster("population.tif", people)
    left, top = 5e5 + 1000 * (2 * TILE - 30), 8e6 - 2000
    polygon = box(left, top - 9e3, left + 50e3, top)
    files.polygons, files.ids, files.cases = [polygon], ["whole"], {"whole": "5"}
    files.areas()
    files.counts()
    files.options = {"output": {"mask": mask, "dir": str(files.directory / "out")}}
    store, _ = run(files)
    inside = rasterio.features.geometry_mask([polygon], shape, files.transform, invert=True)
    assert store.n_pix == inside.sum() == 50 * 9
    assert store.bag_weight[0] == pytest.approx(people[inside].sum(), rel=1e-12)
    cube: Any = zarr.open_group(files.directory / "out/work/grid.zarr", mode="r")
    written = np.isfinite(cube["covariates"][:]).all(axis=0) & np.isfinite(cube["population"][:])
    # Tiles without any area are kept for maps of everything.
    assert written[:, TILE:].all()
    assert written[:, :TILE].all() if mask == "all" else not written[:, :TILE].any()
    assert cube["coverage"][:].sum() == pytest.approx(50 * 9)


def test_without_a_population_the_exposure_is_area(files: Any) -> None:
    files.options = {"population": None}
    notes = Notes()
    store, summary = run(files, notes)
    assert store.attrs["weight_unit"] == summary["balance"]["unit"] == "km2"
    on_earth = gpd.GeoSeries(files.polygons, crs=files.crs).segmentize(100).to_crs(4326)
    for area, polygon in zip(files.ids, on_earth, strict=True):
        m2, _ = Geod(ellps="WGS84").geometry_area_perimeter(polygon)
        weight = store.bag_weight[store.ids.index(area)]
        assert weight == pytest.approx(abs(m2) / 1e6, rel=1e-7)
    people = summary["balance"]["people"]
    assert people["raster"] is None
    assert people["inside_areas"] == pytest.approx(store.bag_weight.sum(), rel=1e-6)
    assert "km2" in "\n".join(notes.lines)


def test_a_covariate_of_another_crs_and_pixel_size(files: Any) -> None:
    """A field linear in longitude and latitude, coarser and in degrees, comes back in place."""
    lon, lat = 44.9 + 0.02 * np.arange(25), -17.9 - 0.02 * np.arange(30)
    degrees = Affine(0.02, 0, lon[0] - 0.01, 0, -0.02, lat[0] + 0.01)
    values = 100 * lon[None, :] + 37 * lat[:, None]
    files.raster("north.tif", values, crs="EPSG:4326", transform=degrees)
    fine = np.kron(files.x["wave"], np.ones((4, 4))) + np.tile([-1.0, 1.0], (120, 68))
    files.raster("wave.tif", fine, transform=files.transform @ Affine.scale(0.25))
    # People may be a covariate too: one named as the population is takes not its place.
    files.population[files.pixels(4)][1, 1] = 0.0  # log has no value there
    files.raster("population.tif", files.population)
    people = {"population": {"path": "population.tif", "transform": "log"}}
    files.options = {"covariates": {n: {"path": f"{n}.tif"} for n in files.x} | people}
    store, _ = run(files)
    assert store.covariates == ("wave", "north", "population")
    lacking = {"wave": 0, "north": 0, "population": 1}
    assert store.attrs["left_out"]["by_covariate"] == lacking
    to_degrees = Transformer.from_crs(store.attrs["coords_crs"], 4326, always_xy=True)
    for area in files.ids:
        bag = bag_of(store, area)
        x, y, _ = to_degrees.transform(*(1000 * bag["coords"].T))
        np.testing.assert_allclose(bag["x"][:, 1], 100 * x + 37 * y, atol=0.02)
        at = np.divmod(bag["pixel"], files.shape[1])
        # Sixteen pixels to one: their mean, and what alternates between them is gone.
        np.testing.assert_allclose(bag["x"][:, 0], files.x["wave"][at], atol=1e-6)
        np.testing.assert_allclose(bag["x"][:, 2], np.log(files.population[at]), rtol=1e-6)


@pytest.mark.parametrize("name", ["areas.geojson", "areas.shp", "areas.parquet"])
def test_counts_in_a_column_of_the_areas_of_any_format(files: Any, name: str) -> None:
    frame = gpd.read_file(files.directory / "areas.gpkg")
    frame["cases"] = [float(files.cases[area]) for area in frame["code"]]
    write = frame.to_parquet if name.endswith("parquet") else frame.to_file
    write(files.directory / name)
    files.options = {"areas": {"path": name, "id": "code"}, "counts": {"value": "cases"}}
    store, _ = run(files)
    assert dict(zip(store.ids, store.y.astype(int).astype(str), strict=True)) == files.cases
    wanted = extracted(files.directory / "population.tif", files.directory / "areas.gpkg")
    by_id = dict(zip(frame["code"], wanted, strict=True))
    np.testing.assert_allclose(store.bag_weight, [by_id[i] for i in store.ids], rtol=1e-6)


def test_a_grid_by_crs_and_resolution(files: Any) -> None:
    files.options = {"grid": {"crs": files.crs, "resolution": 2000}}
    store, summary = run(files)
    assert store.grid is not None
    assert store.grid.res == (2000.0, 2000.0)
    fine = (shares(files) * files.population).sum()
    # People of a 2 km pixel count by its share: the totals agree up to the rim.
    assert summary["exposure_total"] == pytest.approx(fine, rel=0.05)

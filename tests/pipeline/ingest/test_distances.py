"""From files to maps wherever the areas lie: people, positions and predictions."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
import rasterio
import shapely
import zarr
from affine import Affine
from pyproj import Geod, Transformer

from models import VBAgg
from pipeline import BagStore, fit
from pipeline.config.context import StageContext
from pipeline.config.schema import Config
from pipeline.core.progress import Silent
from pipeline.ingest.stage import check, ingest
from pipeline.prediction.raster import predict_raster
from pipeline.products.products import layers
from tests.bands import read, write
from tests.plain import plain

GEOD = Geod(ellps="WGS84")


def write_raster(path: Path, values: np.ndarray, bounds: tuple, crs: str = "EPSG:4326") -> Path:
    left, bottom, right, top = bounds
    n_row, n_col = values.shape
    transform = Affine((right - left) / n_col, 0, left, 0, (bottom - top) / n_row, top)
    return write(path, values, dtype="float64", crs=crs, transform=transform, nodata=np.nan)


def whole_earth(first: float, res: float = 1.0, seed: int = 0) -> tuple[np.ndarray, tuple]:
    """Return people of the Earth by pixel, the same whatever longitude the raster begins at."""
    people = np.random.default_rng(seed).gamma(1.0, 100.0, (round(180 / res), round(360 / res)))
    shift = round((first + 180) / res)
    return np.roll(people, -shift, axis=1), (first, -90.0, first + 360.0, 90.0)


def slices(shape: Any, west: float, east: float, n: int = 4) -> list[Any]:
    """Cut a polygon along meridians."""
    cuts = np.linspace(west, east, n + 1)
    return [
        shapely.intersection(shape, shapely.box(a, -90, b, 90)) for a, b in itertools.pairwise(cuts)
    ]


def areas_over_180(numbering: str) -> list[Any]:
    """Four areas between 170 and 190 degrees; the border between two of them is at 177, say."""
    parts = [shapely.box(a, -20, a + 6.5, -14) for a in (168.0, 174.5, 181.0, 187.5)]
    if numbering == "past 180":
        return parts
    if numbering == "below -180":
        return [shapely.transform(p, lambda xy: xy - [360, 0]) for p in parts]
    west = [p.intersection(shapely.box(0, -90, 180, 90)) for p in parts]
    east = [p.intersection(shapely.box(180, -90, 360, 90)) for p in parts]
    east = [shapely.transform(p, lambda xy: xy - [360, 0]) for p in east]
    return [
        shapely.MultiPolygon([q for q in pair if q.area > 0])
        for pair in zip(west, east, strict=True)
    ]


def run(
    directory: Path, shapes: list[Any], people: Path, grid: Any, crs: str = "EPSG:4326"
) -> tuple[BagStore, dict[str, Any]]:
    """Ingest, fit for a few epochs and predict; return the store and what came of it."""
    ids = [f"A{k}" for k in range(len(shapes))]
    gpd.GeoDataFrame({"code": ids}, geometry=shapes, crs=crs).to_file(directory / "areas.gpkg")
    rows = "\n".join(f"{i},{10 + 7 * k}" for k, i in enumerate(ids))
    (directory / "cases.csv").write_text(f"code,cases\n{rows}\n")
    with rasterio.open(people) as source:
        bounds, own, shape = source.bounds, source.crs.to_string(), source.shape
    other = np.random.default_rng(5).normal(size=shape)
    wave = write_raster(directory / "wave.tif", other, tuple(bounds), own)
    config = Config.model_validate(
        {
            "areas": {"path": "areas.gpkg", "id": "code"},
            "counts": {"path": "cases.csv", "value": "cases"},
            "population": {"path": people.name},
            "check": {"accept": ["thousands:population"]},  # one in a hundred km2
            "covariates": {"wave": {"path": wave.name, "resampling": "bilinear"}},
            "grid": grid,
            "output": {"dir": str(directory / "out")},
        },
        context={"base": directory},
    )
    assert check(config) == []
    (directory / "out" / "work").mkdir(parents=True)
    ingest(StageContext(config, Silent(), ""))
    store = BagStore.open(directory / "out" / "work" / "bags.zarr")
    model = plain(VBAgg, n_inducing=8, kernel="additive", link="exp", max_epochs=2, seed=1)
    fit(model, store, client=None, n_thread=1)
    maps = directory / "maps"
    maps.mkdir()
    cube = directory / "out" / "work" / "grid.zarr"
    n_pix = predict_raster(model, cube, maps, layers(config)[:1], n_thread=1)
    mapped = read(maps / "rate_mean.tif")
    # The map has the model's number at the store's positions: predict takes the same ones.
    block = store.read_block(0)
    pixel = store.read_pixel(0)
    expected = np.asarray(model.predict_pixels(block.x, block.coords).mean) * 1000
    np.testing.assert_allclose(mapped.ravel()[pixel], expected, rtol=1e-5)
    return store, {"n_pix": n_pix, "cube": zarr.open_group(cube, mode="r"), "model": model}


def positions(store: BagStore) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return coordinates, longitude and latitude of the pixels of the store."""
    assert store.grid is not None
    rows = store.read_rows(0, store.n_pix)
    row, col = store.grid.row_col(rows.pixel)
    x, y = store.grid.centres()
    to_degrees = Transformer.from_crs(store.grid.crs, 4326, always_xy=True)
    return rows.coords, *to_degrees.transform(x[row, col], y[row, col])


def distances_are_true(store: BagStore, rel: float) -> float:
    """Compare distances of the store's pixels with those along the ellipsoid; return the largest.

    A chord is shorter than the arc by the share (d / R)^2 / 24; ``rel`` allows for the flattening.
    """
    coords, lon, lat = positions(store)
    assert coords.shape[1] == 3
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, lon.size, (2, 4000))
    a, b = a[a != b], b[a != b]
    true = GEOD.inv(lon[a], lat[a], lon[b], lat[b])[2] / 1000
    found = np.linalg.norm(coords[a] - coords[b], axis=1)
    arc = 2 * 6371.0 * np.arcsin(found / (2 * 6371.0))
    different = true > 0
    np.testing.assert_allclose(arc[different], true[different], rtol=rel)
    np.testing.assert_allclose(
        found[different], true[different], rtol=rel + (true.max() / 6371) ** 2 / 24
    )
    return float(true.max())


GRIDS = {
    **{key: {"like": "grid.tif"} for key in ("-180", "0", "past 180")},
    "crs": {"crs": "EPSG:4326", "resolution": 1.0},
    "mercator": {"crs": "EPSG:3832", "resolution": 100_000},
}


@pytest.mark.parametrize(
    ("numbering", "first", "grid"),
    [
        ("split", 0.0, "crs"),
        ("past 180", 0.0, "-180"),
        ("split", -180.0, "0"),
        ("below -180", 0.0, "past 180"),
        ("below -180", -180.0, "mercator"),
    ],
)
def test_areas_across_180(tmp_path: Path, numbering: str, first: float, grid: str) -> None:
    people, bounds = whole_earth(first)
    file = write_raster(tmp_path / "people.tif", people, bounds)
    if grid == "past 180":
        write_raster(tmp_path / "grid.tif", np.ones((30, 40)), (160, -30, 200, 0))
    elif grid in ("-180", "0"):
        left = float(grid)
        write_raster(tmp_path / "grid.tif", np.ones((180, 360)), (left, -90, left + 360, 90))
    store, _ = run(tmp_path, areas_over_180(numbering), file, GRIDS[grid])
    # 26 x 6 degrees, whole pixels but for the border at 174.5 and the one at 187.5.
    earth, _ = whole_earth(-180.0)
    row = slice(90 + 14, 90 + 20)
    true = earth[row, 180 + 168 :].sum() + earth[row, : 194 - 180].sum()
    found = float(store.bag_weight.sum())
    assert found == pytest.approx(true, rel=1e-6 if grid != "mercator" else 0.05)
    assert 2600 < distances_are_true(store, 0.004) < 2900
    _, lon, _ = positions(store)
    assert ((lon % 360 > 166) & (lon % 360 < 196)).all()
    assert store.grid is not None
    if grid == "crs":  # around the areas, and not around the Earth
        assert store.grid.shape == (6, 26)


@pytest.mark.parametrize(("first", "left"), [(-180.0, 0.0), (0.0, -20.0)])
def test_areas_across_greenwich(tmp_path: Path, first: float, left: float) -> None:
    people, bounds = whole_earth(first, seed=3)
    file = write_raster(tmp_path / "people.tif", people, bounds)
    width = 40 if left == -20 else 360
    write_raster(tmp_path / "grid.tif", np.ones((40, width)), (left, 0, left + width, 40))
    shapes = slices(shapely.box(-10, 10, 12, 30), -10, 12, 3)
    store, found = run(tmp_path, shapes, file, {"like": "grid.tif"})
    earth, _ = whole_earth(-180.0, seed=3)
    assert store.bag_weight.sum() == pytest.approx(earth[60:80, 170:192].sum(), rel=1e-6)
    distances_are_true(store, 0.004)
    # A field interpolated across the seam of a 0-360 raster has no gap.
    x = store.read_rows(0, store.n_pix).x
    assert np.isfinite(x).all()
    assert found["n_pix"] == 20 * 22
    assert store.n_pix == 20 * 22 + 2 * 20  # two borders are inside pixels


def test_a_country_on_a_global_grid(tmp_path: Path) -> None:
    """Indonesia measured 167 x 454 km between neighbours 278 km apart."""
    people, bounds = whole_earth(-180.0, 2.5)
    file = write_raster(tmp_path / "people.tif", people, bounds)
    shapes = slices(shapely.box(95, -10, 140, 5), 95, 140)
    store, _ = run(tmp_path, shapes, file, {"like": "people.tif"})
    assert distances_are_true(store, 0.004) > 4900
    coords, lon, lat = positions(store)
    east = np.flatnonzero((lat == -1.25) & (np.abs(lon - 117.5) < 1.3))
    north = np.flatnonzero((np.abs(lat + 2.5) < 1.3) & (lon == 116.25))
    for pair in (east[:2], north[:2]):
        assert np.linalg.norm(np.diff(coords[pair], axis=0)) == pytest.approx(277, abs=2)


def test_web_mercator_far_north(tmp_path: Path) -> None:
    """Pixels of 300 km of Web Mercator are 105 km at 69 degrees north."""
    there = Transformer.from_crs(4326, 3857, always_xy=True)
    left, bottom = there.transform(15.0, 66.0)
    n = 12
    bounds = (left, bottom, left + n * 50_000, bottom + n * 50_000)
    people = np.random.default_rng(1).gamma(1, 100, (n, n))
    file = write_raster(tmp_path / "people.tif", people, bounds, "EPSG:3857")
    shapes = [
        shapely.box(left + k * 150_000, bottom, left + (k + 1) * 150_000, bounds[3])
        for k in range(4)
    ]
    store, _ = run(tmp_path, shapes, file, {"like": "people.tif"}, "EPSG:3857")
    assert store.bag_weight.sum() == pytest.approx(people.sum(), rel=1e-6)
    assert distances_are_true(store, 0.006) < 400  # 850 km in the plane


@pytest.mark.parametrize(("crs", "first"), [("EPSG:3995", 0.0), ("EPSG:3031", -180.0)])
def test_areas_around_a_pole(tmp_path: Path, crs: str, first: float) -> None:
    """Rings and quarters in degrees, on a polar grid; everyone up to the pole counts."""
    south = crs == "EPSG:3031"
    rng = np.random.default_rng(2)
    people = rng.gamma(1, 10, (30, 360))
    lat = (-90.0, -60.0) if south else (60.0, 90.0)
    file = write_raster(tmp_path / "people.tif", people, (first, lat[0], first + 360, lat[1]))
    cap, ring = ((-90, -84), (-84, -75)) if south else ((84, 90), (75, 84))
    shapes = [
        shapely.box(-180, cap[0], 180, cap[1]),
        shapely.box(-90, ring[0], 90, ring[1]),
        shapely.box(90, ring[0], 270, ring[1]),
    ]
    store, _ = run(tmp_path, shapes, file, {"crs": crs, "resolution": 50_000})
    wanted = people[15:].sum() if south else people[:15].sum()
    # At the outer parallel pixels are shared by area.
    assert store.bag_weight.sum() == pytest.approx(wanted, rel=0.01)
    assert distances_are_true(store, 0.005) > 3000

"""A map with areas of more levels, and every draw of every pixel of it at once."""

from __future__ import annotations

import shutil

import exactextract
import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import rasterio
from shapely.geometry import box

from geo.grids.positions import Positions
from pipeline.config.context import StageContext
from pipeline.config.schema import Config
from pipeline.levels.level_files import write_joint_files
from pipeline.prediction.stage import predict_stage
from tests.pipeline.levels.factors import area_factors

LEVELS = ("training", "province", "catchment", "country")


def write_level_files(world, directory):
    """Provinces of six districts, and catchments whose borders cross pixels and districts."""
    districts = gpd.read_file(world.directory / "areas.gpkg")
    province = np.array(["west", "west", "east", "east"] * 3)
    frame = districts.assign(key=province).dissolve("key").reset_index()[["key", "geometry"]]
    frame["title"], frame["official"] = ["=East", "West"], [9000.0, 4000.0]
    frame.to_file(directory / "provinces.gpkg")
    left, bottom, right, top = districts.total_bounds
    x, y = np.linspace(left - 300, right - 3700, 4), np.linspace(bottom + 450, top, 3)
    shapes = [box(x[i], y[j], x[i + 1], y[j + 1]) for i in range(3) for j in range(2)]
    shapes.append(box(right + 5000, bottom, right + 8000, top))  # beyond the map
    catchments = gpd.GeoDataFrame({"no": range(7)}, geometry=shapes, crs=districts.crs)
    catchments.to_parquet(directory / "catchments.parquet")


def _level_config(world, out, **more):
    areas = [
        {"path": "provinces.gpkg", "id": "key", "name": "title", "level": "province"},
        {"path": "catchments.parquet", "id": "no", "level": "catchment"},
    ]
    dump = world.config.model_dump(mode="json")
    dump["output"] |= {"dir": str(out), "areas": areas, **more}
    return Config.model_validate(dump, context={"base": out.parent})


@pytest.fixture(scope="session")
def made(world, tmp_path_factory):
    directory = tmp_path_factory.mktemp("levels")
    write_level_files(world, directory)
    shutil.copytree(world.directory / "out", directory / "out")
    config = _level_config(world, directory / "out")
    summary = predict_stage(StageContext(config))
    write_joint_files(config, directory / "out", "better than one rate: by area yes")
    tables = {
        name: pd.read_csv(directory / f"out/levels_{name}.csv", dtype={"id": str})
        for name in LEVELS
    }
    return config, tables, summary


def fractions_of(shapes, path):
    """Fractions by exactextract itself on the raster: (n_area, n_row, n_col)."""
    with rasterio.open(path) as source:
        size, crs = source.shape, source.crs
    frame = gpd.GeoDataFrame({"n": range(len(shapes))}, geometry=list(shapes), crs=shapes.crs)
    moved = frame.to_crs(crs)
    found = exactextract.exact_extract(str(path), moved, ["cell_id", "coverage"], output="pandas")
    result = np.zeros((len(shapes), size[0] * size[1]))
    for n, (cell, share) in enumerate(zip(found["cell_id"], found["coverage"], strict=True)):
        result[n, np.asarray(cell, int)] = share
    return result.reshape(len(shapes), *size)


def _geometry(config, name):
    if name == "training":
        return gpd.read_file(config.areas.path).geometry
    if name == "country":
        whole = gpd.read_file(config.areas.path).geometry
        return gpd.GeoSeries([whole.union_all()], crs=whole.crs)
    path = next(spec.path for spec in config.output.areas if spec.level == name)
    return (gpd.read_parquet if path.endswith("parquet") else gpd.read_file)(path).geometry


@pytest.fixture(scope="session")
def level_config():
    return _level_config


@pytest.fixture(scope="session")
def geometry_of():
    return _geometry


@pytest.fixture(scope="session")
def dense(world, made):
    """Every draw of every mapped pixel at once, and the exact fractions of every level."""
    config, _, _ = made
    inside = (world.coverage > 0) & np.isfinite(world.x).all(axis=0)
    row, col = np.nonzero(inside)
    coords = Positions.of(world.grid, None).km(row, col)
    functions = world.model.sample_functions(60, np.random.default_rng([0, 1]))
    rate = functions.rate(world.x[:, row, col].T, coords)
    people = np.nan_to_num(world.population[row, col])
    raster = config.output.dir / "rate_mean.tif"
    shares = {n: fractions_of(_geometry(config, n), raster)[:, row, col] for n in LEVELS}
    return rate, people, shares, (row, col)


@pytest.fixture(scope="session")
def counted(world, dense):
    """The drawn rates, with what the counts of the areas add to their cases."""
    rate, _, shares, _ = dense
    factors, _ = area_factors(world.model, world.store, 60, 0)
    codes = gpd.read_file(world.directory / "areas.gpkg")["code"].astype(str)
    order = [list(world.store.ids).index(code) for code in codes]
    share = shares["training"]
    return rate * ((factors[:, order] @ share) / share.sum(axis=0))

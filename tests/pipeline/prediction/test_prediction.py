"""The predict stage: maps equal to the model's own numbers, areas to the sum of drawn pixels."""

from __future__ import annotations

import csv
from copy import copy

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import rasterio
from rio_cogeo import cog_validate

from geo.core.columns import AREA_ID
from geo.grids.grid import Tile
from geo.grids.positions import Positions
from geo.sources.boundary import read_areas
from models.aggregate.posterior import member_states
from pipeline.config.context import StageContext
from pipeline.prediction import one_map
from pipeline.prediction.stage import predict_stage
from pipeline.products import tile_pass, tile_pixels
from pipeline.products.areas import AreaDraws, draw_areas, tabulate_areas, write_areas
from pipeline.products.products import layers
from tests.bands import read
from tests.pipeline.levels.factors import pixel_factors

NAMES = ["rate_mean", "rate_sd", "rate_lower", "rate_upper", "rate_median",
         "rate_relative_sd", "cases_mean",
         "population", "coverage", "data_support", "exceedance_50", "exceedance_62.5"]  # fmt: skip


def expected_pixels(world):
    inside = (world.coverage > 0) & np.isfinite(world.x).all(axis=0)
    row, col = np.nonzero(inside)
    coords = Positions.of(world.grid, None).km(row, col)
    prediction = world.model.predict_pixels(world.x[:, row, col].T, coords)
    return inside, prediction


def test_maps_are_the_models_numbers_pixel_by_pixel(world, predicted):
    inside, p = expected_pixels(world)
    people = np.nan_to_num(world.population[inside])
    factor = pixel_factors(world.model, world.store, 60, 0, inside.size).reshape(inside.shape)
    support = np.zeros(inside.sum())
    for state, part, weight in zip(
        member_states(world.model.fitted_state()), p.parts, p.weights, strict=True
    ):
        own = copy(world.model)
        own.state_, own.params_ = state, own.prediction_params(state)
        named = own.named_hyperparameters()
        prior = sum(value for name, value in named.items() if name.endswith(".variance"))
        support += weight * np.clip(1 - part.s / max(prior, 0.01), 0, 1)
    for name, values in {
        "data_support": support,
        "rate_mean": 1000 * p.mean,
        "rate_sd": 1000 * p.sd,
        "rate_relative_sd": 100 * p.sd / p.mean,
        "rate_lower": 1000 * p.quantile(0.05),
        "rate_upper": 1000 * p.quantile(0.95),
        "rate_median": 1000 * p.quantile(0.5),
        "cases_mean": p.mean * people * factor[inside],
        "population": people,
        "coverage": world.coverage[inside],
        "exceedance_50": p.exceed(0.05),
        "exceedance_62.5": p.exceed(0.0625),
    }.items():
        found = read(predicted[0] / f"{name}.tif")
        np.testing.assert_allclose(found[inside], values, rtol=2e-6, atol=1e-30, err_msg=name)
        assert np.isnan(found[~inside]).all(), name
    np.testing.assert_allclose(p.exceed(p.quantile(0.9)), 0.1, atol=1e-9)


def test_relative_deviations_are_those_of_joint_draws(world, predicted):
    inside, _ = expected_pixels(world)
    row, col = np.nonzero(inside)
    functions = world.model.sample_functions(4000, np.random.default_rng(8))
    rate = functions.rate(world.x[:, row, col].T, Positions.of(world.grid, None).km(row, col))
    found = read(predicted[0] / "rate_relative_sd.tif")[inside]
    with rasterio.open(predicted[0] / "rate_relative_sd.tif") as source:
        assert source.units == ("%",)
    # Of 4,000 draws a deviation of a skewed rate is known to a few per cent.
    np.testing.assert_allclose(found, 100 * rate.std(axis=0) / rate.mean(axis=0), rtol=0.12)


def test_maps_are_cogs_that_say_what_they_are(predicted):
    for name in NAMES:
        path = predicted[0] / f"{name}.tif"
        assert cog_validate(path, quiet=True)[0], name
        assert path.with_suffix(".qml").is_file()
        with rasterio.open(path) as source:
            assert np.isnan(source.nodata)
            assert source.descriptions[0]
            tags = source.tags()
            assert tags["fingerprint"] == "of-the-inputs"
            assert tags["interval"] == "0.9"
            assert tags["link"] == "exp"
            assert tags["TIFFTAG_SOFTWARE"].startswith("disagg ")
    with rasterio.open(predicted[0] / "rate_mean.tif") as source:
        assert source.units[0] == "cases per 1,000 people"
    with rasterio.open(predicted[0] / "exceedance_62.5.tif") as source:
        assert source.descriptions[0] == (
            "probability that the rate is above 62.5 cases per 1,000 people"
        )


def test_everything_appears_and_nothing_of_older_runs_stays(predicted):
    out, summary = predicted
    names = {path.name for path in out.iterdir()}
    wanted = {f"{name}{end}" for name in NAMES for end in (".tif", ".qml", ".sld")}
    levels = {"targeting.csv"}
    levels |= {f"targeting_rank{end}" for end in (".tif", ".qml", ".sld")}
    levels |= {f"levels_{n}.{end}" for n in ("training", "country") for end in ("csv", "parquet")}
    assert names == wanted | levels | {"areas.gpkg", "areas.csv", "areas_draws.parquet", "work"}
    assert set(summary["files"]) == names - {"work"}
    assert summary["n_areas"] == 12


def test_areas_are_the_sums_of_drawn_pixels(world, predicted):
    # Second route: every pixel of every area at once, no blocks, and the table read from disk.
    rows = world.store.read_rows(0, world.store.n_pix)
    functions = world.model.sample_functions(60, np.random.default_rng([0, 1]))
    draws = functions.rate(rows.x, rows.coords) * rows.weight
    sums = np.add.reduceat(draws, world.store.offsets[:-1], axis=1)
    # Each area's draws are conditioned on its own count, by the store's blocks.
    blocks = list(world.store.blocks())
    bag = np.concatenate([block.bag for block in blocks])
    assert sorted(bag) == list(range(12))
    before = sums.mean(axis=0)
    for block in blocks:
        sums[:, block.bag] *= functions.observed_factors(block, sums[:, block.bag])
    table = (
        gpd.read_file(predicted[0] / "areas.gpkg", layer="areas")
        .set_index("code")
        .loc[list(world.store.ids)]
    )
    # The mean has no Monte Carlo error but that of the factor: the maps' rates, float32, summed.
    rate = world.model.predict_pixels(rows.x, rows.coords).mean * rows.weight
    mean = np.add.reduceat(rate, world.store.offsets[:-1]) * sums.mean(axis=0) / before
    np.testing.assert_allclose(table["fitted"], mean, rtol=1e-6)
    error = sums.std(axis=0) / np.sqrt(60)
    assert (np.abs(table["fitted"] - sums.mean(axis=0)) < 4 * error).all()
    np.testing.assert_allclose(table["fitted_upper"], np.quantile(sums, 0.95, axis=0), rtol=1e-9)
    np.testing.assert_allclose(table["observed"], world.store.y)
    people = np.add.reduceat(rows.weight, world.store.offsets[:-1])
    np.testing.assert_allclose(table["people"], people)
    np.testing.assert_allclose(table["fitted_rate"], 1000 * table["fitted"] / people)
    spread = table["count_upper"] - table["count_lower"]
    assert (spread > table["fitted_upper"] - table["fitted_lower"]).all()


def test_the_tables_keep_the_areas_own_columns_and_order(predicted):
    with (predicted[0] / "areas.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["code"] for row in rows] == [f"{n:03d}" for n in range(12)]
    assert rows[3]["name"] == "Área 003"
    frame = gpd.read_file(predicted[0] / "areas.gpkg", layer="areas")
    assert frame.crs.to_epsg() == 32738
    assert frame["observed"].tolist() == [float(row["observed"]) for row in rows]


def test_a_failure_leaves_the_last_results_standing(world, predicted, monkeypatch):
    out, _ = predicted
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    config = world.with_config(output={"dir": str(out), "rate_per": 10})

    def fail(*_, **__):
        msg = "no style"
        raise RuntimeError(msg)

    monkeypatch.setattr(one_map, "describe_areas", fail)
    with pytest.raises(RuntimeError, match="no style"):
        predict_stage(StageContext(config))
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert not list(out.glob(".*"))


def predict_tile(world, cube, tile, mask):
    """Return the bands of all layers of a tile, (n_layer, n_row, n_col)."""
    wanted = layers(world.config)
    reader = tile_pixels.TileReader(
        cube, Positions.of(world.grid, None), world.grid, max(tile.shape), mask=mask
    )
    pixels = tile_pass.Moments(world.model, wanted).of(reader.read(tile))
    return np.stack([pixels.band(pixels.values[layer.name]) for layer in wanted])


def test_mask_all_maps_what_lies_outside_the_areas(world):
    cube = {"covariates": world.x, "population": world.population, "coverage": world.coverage}
    tile = Tile(3, 0, 9, 28)
    whole, masked = (predict_tile(world, cube, tile, mask) for mask in ("all", "areas"))
    complete = np.isfinite(world.x).all(axis=0)[3:12]
    np.testing.assert_array_equal(np.isfinite(whole[0]), complete)
    inside = np.isfinite(masked[0])
    assert 0 < inside.sum() < complete.sum()
    np.testing.assert_array_equal(whole[0][inside], masked[0][inside])
    # Nobody knows the people of one pixel: a rate all the same, and no case, as in the tables.
    assert np.isfinite(masked[0][7, 10])
    assert masked[NAMES.index("cases_mean")][7, 10] == 0
    # Outside the areas a pixel has the cases of all its people; the coverage tells it apart.
    covered = whole[NAMES.index("coverage")][complete]
    np.testing.assert_array_equal(covered, world.coverage[3:12][complete])
    assert (np.isfinite(whole) == complete).all()


def test_tiles_and_chunks_change_nothing(world, monkeypatch):
    cube = {"covariates": world.x, "population": world.population, "coverage": world.coverage}
    whole = predict_tile(world, cube, world.grid.whole, "areas")
    monkeypatch.setattr(tile_pass, "CHUNK_PIXELS", 37)
    for tile in world.grid.tiles(11):
        part = predict_tile(world, cube, tile, "areas")
        rows, cols = tile.slices
        np.testing.assert_allclose(part, whole[:, rows, cols], rtol=1e-6)


def test_draws_of_some_areas_are_those_of_all(world):
    everything = draw_areas(world.model, world.store, 20, 3)
    keep = np.zeros(world.store.n_bag, dtype=bool)
    keep[[1, 4, 5]] = True
    some = draw_areas(world.model, world.store, 20, 3, keep)
    assert some.bag.tolist() == [1, 4, 5]
    np.testing.assert_allclose(some.expected, everything.expected[:, keep], rtol=1e-12)
    assert (some.counts == np.round(some.counts)).all()


def test_saved_draws_come_back(world, tmp_path):
    draws = draw_areas(world.model, world.store, 5, 0)
    draws.save(tmp_path / "draws.npz")
    again = AreaDraws.load(tmp_path / "draws.npz")
    for name in AreaDraws.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(again, name), getattr(draws, name))
    assert [path.name for path in tmp_path.iterdir()] == ["draws.npz"]


def hand_draws(y, people):
    n = len(y)
    expected = np.repeat(np.array([[1.0], [2.0], [3.0]]), n, axis=1)
    return AreaDraws(
        np.arange(n), np.array(y, float), np.array(people, float), np.full(n, 2.0), expected,
        expected + np.array([[-1.0], [0], [1]]), np.zeros(n),
    )  # fmt: skip


def test_the_table_by_hand_and_an_area_without_people():
    table = tabulate_areas(hand_draws([4, 0], [100, 0]), ["a", "b"], 0.5, 1000)
    a = table.loc["a"]
    assert a["fitted_lower"] == 1.5
    assert a["observed_rate"] == 40
    assert a["fitted_rate_upper"] == 25
    assert a["residual"] == pytest.approx((4 - 2) / np.std([0, 2, 4]))
    assert np.isnan(table.loc["b", "fitted_rate"])


def test_areas_that_were_left_out_stay_empty_and_a_column_fid_is_no_trouble(tmp_path):
    areas = gpd.GeoDataFrame(
        {"fid": [7, 9], AREA_ID: ["7", "9"], "observed": ["x", "y"]},
        geometry=gpd.points_from_xy([0, 1], [0, 1]).buffer(0.3),
        crs="EPSG:4326",
    )
    table = tabulate_areas(hand_draws([4], [100]), ["9"], 0.9, 1000)
    write_areas(areas, table, "fid", tmp_path)
    back = gpd.read_file(tmp_path / "areas.gpkg").set_index("area_id")
    assert np.isnan(back.loc["7", "fitted"])
    assert back.loc["9", "observed"] == 4
    assert back["observed_given"].tolist() == ["x", "y"]


def test_attributes_stay_as_they_are_beside_any_id_column(tmp_path):
    given = {"id": [70, 90], "code": ["a", "b"], "Observed": ["x", "y"], "people": [1.5, 2.5]}
    frame = gpd.GeoDataFrame(
        given, geometry=gpd.points_from_xy([0, 1], [0, 1]).buffer(0.3), crs="EPSG:4326"
    )
    frame.to_parquet(tmp_path / "given.parquet")
    table = tabulate_areas(hand_draws([4, 5], [100, 200]), ["a", "b"], 0.9, 1000)
    areas = read_areas(tmp_path / "given.parquet", None, "code", "areas", [])
    write_areas(areas, table, "code", tmp_path)
    for back in (gpd.read_file(tmp_path / "areas.gpkg"), pd.read_csv(tmp_path / "areas.csv")):
        assert back.columns[:4].tolist() == ["code", "id", "Observed_given", "people_given"]
        assert back["code"].tolist() == ["a", "b"]
        assert back["id"].tolist() == [70, 90]
        assert back["Observed_given"].tolist() == ["x", "y"]
        assert back["people_given"].tolist() == [1.5, 2.5]
        assert back["observed"].tolist() == [4, 5]
        assert back["people"].tolist() == [100, 200]
    # Ids with the name of a number of ours are the column area_id.
    areas = read_areas(tmp_path / "given.parquet", None, "people", "areas", [])
    write_areas(areas, table.set_axis(["1.5", "2.5"]), "people", tmp_path)
    back = pd.read_csv(tmp_path / "areas.csv")
    assert back["area_id"].tolist() == [1.5, 2.5]
    assert back["people"].tolist() == [100, 200]

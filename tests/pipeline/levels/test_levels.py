"""Areas of every level: equal to dense draws over all pixels, and they add up to the map."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import zipfile
from dataclasses import replace

import geopandas as gpd
import numpy as np
import openpyxl
import pandas as pd
import pytest
import shapely
from shapely.geometry import box

from geo.core.columns import AREA_ID
from geo.core.errors import InputError, Problem
from pipeline.config.check_schema import Check
from pipeline.config.context import StageContext
from pipeline.levels.area_sums import AreaSums, LevelDraws
from pipeline.levels.level_files import GLOSSARY
from pipeline.levels.level_tables import Observed, Summary, tabulate_level
from pipeline.levels.levels import grid_of, log_overlaps, log_unmapped, open_levels, share_on_map
from pipeline.prediction.stage import predict_stage
from pipeline.prediction.support_shares import covariate_range
from pipeline.products.products import layers
from pipeline.products.tile_pass import Draws, Moments, run_pass
from pipeline.products.tile_pixels import TileReader
from pipeline.run.record import stage_inputs
from pipeline.run.stages import STAGES
from pipeline.store.level_areas import Level, Overlaps, read_level_frames
from tests.bands import read
from tests.progress import Notes

LEVELS = ("training", "province", "catchment", "country")


@pytest.mark.parametrize("name", LEVELS)
def test_means_are_the_sums_of_the_raster_by_exact_fractions(made, dense, name):
    config, tables, _ = made
    _, people, shares, at = dense
    cases = np.nan_to_num(read(config.output.dir / "cases_mean.tif")[at])
    table = tables[name]
    np.testing.assert_allclose(table["cases"].fillna(0), shares[name] @ cases, rtol=1e-9)
    np.testing.assert_allclose(table["people"], shares[name] @ people, rtol=1e-9)
    above = read(config.output.dir / "exceedance_50.tif")[at] * people
    np.testing.assert_allclose(table["people_above_50"].fillna(0), shares[name] @ above, rtol=1e-9)


@pytest.mark.parametrize("name", LEVELS)
def test_intervals_are_those_of_dense_draws(made, dense, counted, name):
    _, tables, _ = made
    rate, people, shares, _ = dense
    keep = shares[name] @ people > 0
    mass, table = shares[name][keep] * people, tables[name][keep]
    cases = counted @ mass.T
    own = 1000 * cases / mass.sum(axis=1)
    for draws, column in ((cases, "cases"), (own, "rate")):
        np.testing.assert_allclose(
            table[f"{column}_lower"], np.quantile(draws, 0.05, axis=0), rtol=1e-9
        )
        np.testing.assert_allclose(
            table[f"{column}_upper"], np.quantile(draws, 0.95, axis=0), rtol=1e-9
        )
    np.testing.assert_allclose(table["p_above_62.5"], (own > 62.5).mean(axis=0))
    above = (rate > 0.0625) @ mass.T
    np.testing.assert_allclose(
        table["people_above_62.5_upper"], np.quantile(above, 0.95, axis=0), rtol=1e-9
    )
    if keep.sum() > 1:
        ranks = 1 + (own[:, :, None] < own[:, None, :]).sum(axis=2)
        middle = np.sort(ranks, axis=0)[[2, 56]]  # of 60: the smallest with 5 %, 95 % at or below
        assert table["rank_lower"].tolist() == middle[0].tolist()
        assert table["rank_upper"].tolist() == middle[1].tolist()
        assert sorted(table["rank"]) == list(range(1, keep.sum() + 1))
        assert table.sort_values("rank")["rate"].is_monotonic_decreasing


def test_levels_add_up(made):
    config, tables, summary = made
    total = tables["country"]["cases"][0]
    for name in ("training", "province"):
        np.testing.assert_allclose(tables[name]["cases"].sum(), total, rtol=1e-9)
        np.testing.assert_allclose(tables[name]["people"].sum(), tables["country"]["people"][0])
    raster, covered = (read(config.output.dir / f"{n}.tif") for n in ("cases_mean", "coverage"))
    np.testing.assert_allclose(np.nansum(raster * covered), total, rtol=1e-9)
    assert summary["levels"] == {"training": 12, "province": 2, "catchment": 7, "country": 1}


def test_observed_is_known_only_where_whole_training_areas_lieshare_on_map(world, made):
    _, tables, _ = made
    y = dict(zip(world.store.ids, world.store.y, strict=True))
    training = tables["training"]
    assert training["observed"].tolist() == [y[i] for i in training["id"]]
    west = sum(v for i, v in y.items() if int(i) % 4 < 2)
    assert tables["province"].set_index("id").loc["west", "observed"] == west
    assert tables["country"]["observed"][0] == world.store.y.sum()
    assert tables["catchment"]["observed"].isna().all()
    assert tables["province"]["name"].tolist() == ["'=East", "West"]  # harmless in a spreadsheet


def test_areas_outside_the_map_have_no_numbers_and_are_named_before_those_that_reach_past_it(made):
    config, tables, _ = made
    log = Notes()
    log_unmapped(tables, config, log)
    first, second = log.lines
    assert first == (
        f"predict: warning: output.areas[1] ({config.output.areas[1].path}): 1 of 7 areas lie "
        "outside the map and have no numbers: 6; check their coordinates and the CRS of the file, "
        "or leave them out"
    )
    assert "of 7 areas of the level catchment have a rate in a part of their surface" in second
    assert " 0 %" not in second
    beyond = tables["catchment"].iloc[6]
    assert beyond["people"] == beyond["mapped"] == 0
    assert beyond[["cases", "rate", "rank", "p_above_50", "people_above_50_lower"]].isna().all()


def test_every_format_holds_the_same_table(made, geometry_of):
    config, tables, _ = made
    out = config.output.dir
    book = openpyxl.load_workbook(out / "levels.xlsx")
    assert book.sheetnames == [*LEVELS, GLOSSARY]
    explained = {row[0]: row[1:] for row in book[GLOSSARY].iter_rows(min_row=2, values_only=True)}
    for name in LEVELS:
        package = gpd.read_file(out / "levels.gpkg", layer=name)
        parquet = gpd.read_parquet(out / f"levels_{name}.parquet")
        sheet = pd.read_excel(out / "levels.xlsx", sheet_name=name, dtype={"id": str})
        for frame in (package, parquet, sheet):
            assert frame["id"].tolist() == tables[name]["id"].tolist()
            numbers = tables[name].select_dtypes("number").columns
            np.testing.assert_allclose(
                frame[numbers].astype(float), tables[name][numbers], rtol=1e-14
            )
        own = geometry_of(config, name)
        assert parquet.crs == own.crs
        assert shapely.equals(package.geometry.to_crs(own.crs).array, own.array).all()
        assert set(tables[name].columns) <= set(explained)
    assert all(meaning for meaning, _ in explained.values())
    assert explained["(the map)"][0] == "better than one rate: by area yes"
    with sqlite3.connect(out / "levels.gpkg") as package:
        query = "SELECT description FROM gpkg_contents WHERE data_type = 'features'"
        said = [text for (text,) in package.execute(query)]
    assert all(text.endswith("the map: better than one rate: by area yes") for text in said)
    assert explained["rate"][1] == "cases per 1,000 people"
    with zipfile.ZipFile(out / "levels.xlsx") as archive:
        assert {entry.date_time[0] for entry in archive.infolist()} == {1980}


def test_libreoffice_opens_the_workbook_and_prints_it_on_few_pages(made, tmp_path):
    office = shutil.which("soffice")
    if office is None:
        pytest.skip("no LibreOffice; apt-get install libreoffice-calc")
    book = made[0].output.dir / "levels.xlsx"

    def convert(*options):
        home = f"-env:UserInstallation={(tmp_path / 'home').as_uri()}"
        command = [office, home, "--headless", *options, "--outdir", str(tmp_path), str(book)]
        subprocess.run(command, check=True, capture_output=True, timeout=100)

    # The sheet of catchments, as LibreOffice reads it: numbers in full, by the table.
    convert("--convert-to", "csv:Text - txt - csv (StarCalc):44,34,76,1,,0,false,false,false,,,3")
    (sheet,) = tmp_path.glob("*.csv")
    read_again = pd.read_csv(sheet, dtype={"id": str})
    table = made[1]["catchment"]
    assert list(read_again.columns) == list(table.columns)
    assert read_again["id"].tolist() == table["id"].tolist()
    numbers = table.select_dtypes("number").columns
    np.testing.assert_allclose(read_again[numbers].astype(float), table[numbers], rtol=1e-12)
    convert("--convert-to", "pdf")
    printed = (tmp_path / "levels.pdf").read_bytes()
    n_page = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert len(LEVELS) + 1 <= n_page <= 3 * len(LEVELS) + 1  # each at most three pages across


def draws_of(world, made, *, n_draws=40, tile_size=None, n_thread=1, limits=None):
    config, _, _ = made
    cube = config.output.dir / "work/grid.zarr"
    frame = gpd.read_file(config.areas.path).assign(**{AREA_ID: lambda f: f["code"]})
    levels = open_levels(config, frame, grid_of(cube))
    reader = TileReader.open(cube, levels, tile_size=tile_size)
    functions = world.model.sample_functions(n_draws, np.random.default_rng(3))
    limits = covariate_range(world.store) if limits is None else limits
    sums = AreaSums(reader, n_draws, 1000, (50.0,), limits)
    moments = Moments(world.model, layers(config, world.store))
    run_pass(reader, [sums], moments=moments, draws=Draws(functions), n_thread=n_thread)
    return sums.result


def test_neither_tiles_nor_threads_change_anything(world, made):
    one, four = draws_of(world, made), draws_of(world, made, n_thread=4)
    other = draws_of(world, made, tile_size=12)
    for name, value in one.__dict__.items():
        np.testing.assert_array_equal(value, getattr(four, name), err_msg=name)
        np.testing.assert_allclose(value, getattr(other, name), rtol=1e-12, atol=1e-9, err_msg=name)


def test_pixels_outside_the_range_of_the_training_extrapolate(world, made):
    limits = np.array([[-9.0, 0.5], [9.0, 9.0]])  # the second covariate is row / 10
    draws = draws_of(world, made, n_draws=2, limits=limits)
    row, _ = np.mgrid[: world.grid.shape[0], : world.grid.shape[1]]
    good = (world.coverage > 0) & np.isfinite(world.x).all(axis=0)
    people = np.nan_to_num(np.where(good, world.population, 0.0))
    np.testing.assert_allclose(draws.extrapolating[-1], people[row / 10 < 0.5].sum())


def test_what_lies_inside_what():
    def level(name, shapes):
        ids = np.array([str(n) for n in range(len(shapes))], object)
        series = gpd.GeoSeries(shapes, crs="EPSG:32738")
        return Level(name, ids, None, series, np.array(shapes, object), None)

    fine = level("training", [box(0, 0, 10, 10), box(10, 0, 20, 10), box(20, 0, 30, 10)])
    coarse = level("zone", [box(0, 0, 20.05, 10), box(20.05, 0, 25, 10), box(-9, -9, -5, -5)])
    pairs = Overlaps.of(fine, coarse)
    assert pairs.parent(3).tolist() == [0, 0, -1]
    total = pairs.total(np.array([1.0, 2.0, 4.0]), 3)
    np.testing.assert_array_equal(total, [3.0, np.nan, np.nan])
    unknown = pairs.total(np.array([1.0, np.nan, 4.0]), 3)
    assert np.isnan(unknown[0])


def test_the_stage_says_once_which_areas_of_a_level_overlap(world, level_config, tmp_path):
    shutil.copytree(world.directory / "out", tmp_path / "out")
    left, bottom, right, top = gpd.read_file(world.directory / "areas.gpkg").total_bounds
    middle, quarter = (left + right) / 2, (right - left) / 4
    shapes = [box(left, bottom, middle + quarter, top), box(middle, bottom, right, top)]
    wide = gpd.GeoDataFrame({"key": ["a", "b"]}, geometry=shapes, crs="EPSG:32738")
    wide.to_file(tmp_path / "wide.gpkg")
    areas = [{"path": "wide.gpkg", "id": "key", "level": "wide"}]
    config = level_config(world, tmp_path / "out", areas=areas)
    log = Notes()
    predict_stage(StageContext(config, log))
    said = [line for line in log.lines if "overlap" in line]
    assert len(said) == 1
    assert said[0].startswith("predict: suspicion: output.areas[0] (")
    assert "a and b (50 %); what they share counts in each" in said[0]
    # The country has everybody once, the curve of the level those in both areas twice.
    tables = {n: pd.read_csv(tmp_path / f"out/levels_{n}.csv") for n in ("wide", "country")}
    both = tables["wide"].set_index("id")["people"]
    assert both.sum() > 1.1 * tables["country"]["people"][0]
    first = tables["wide"].sort_values("target_order").iloc[0]
    assert first["target_people"] == pytest.approx(first["people"] / both.sum())
    accepted = config.model_copy(update={"check": Check(accept=("overlap",))})
    levels = [Level("wide", np.array(["a", "b"]), None, wide.geometry, np.array(shapes), None)]
    log_overlaps(levels, accepted, log)
    assert len([line for line in log.lines if "overlap" in line]) == 1


def problems_of(config):
    problems: list[Problem] = []
    read_level_frames(config, problems)
    return "\n".join(map(str, problems))


def test_a_file_that_cannot_be_used_is_one_clear_line(world, made):
    config, _, _ = made
    first, second = config.output.areas

    def with_area(**values):
        areas = (first.model_copy(update=values), second)
        return config.model_copy(
            update={"output": config.output.model_copy(update={"areas": areas})}
        )

    assert "output.areas[0] (" in (text := problems_of(with_area(id="kye")))
    assert "has no column 'kye'" in text
    assert "did you mean 'key'?" in text
    assert "which output.areas[0].name names" in problems_of(with_area(name="titel"))
    assert "no layer 'x'" in problems_of(with_area(layer="x"))
    frame = gpd.read_file(config.areas.path).assign(**{AREA_ID: lambda f: f["code"]})
    with pytest.raises(InputError, match=r"output\.areas\[0\].*did you mean 'key'"):
        open_levels(with_area(id="kye"), frame, world.grid)


def test_names_of_the_training_areas_are_in_their_table(made):
    config, _, _ = made
    frame = gpd.read_file(config.areas.path).assign(**{AREA_ID: lambda f: f["code"]})
    named = config.model_copy(update={"areas": config.areas.model_copy(update={"name": "name"})})
    grid = grid_of(config.output.dir / "work/grid.zarr")
    assert open_levels(named, frame, grid)[0].names.tolist() == frame["name"].tolist()
    wrong = config.model_copy(update={"areas": config.areas.model_copy(update={"name": "nme"})})
    with pytest.raises(InputError, match=r"which areas\.name names; did you mean 'name'"):
        open_levels(wrong, frame, grid)
    before, after = (stage_inputs(STAGES["ingest"], each) for each in (config, named))
    assert before == after  # for texts alone


def test_a_map_without_cases_has_rates_alone():
    ids, shapes = np.array(["a", "b"], object), np.array([box(0, 0, 2, 1), box(2, 0, 4, 1)])
    level = Level("zone", ids, None, gpd.GeoSeries(shapes), shapes, None)
    drawn = np.array([[2.0, 9.0], [4.0, 3.0]])
    draws = LevelDraws(
        *(np.array([2.0, 3.0]) for _ in range(6)), np.empty((0, 2)), drawn,
        np.empty((0, 2, 2)),
    )  # fmt: skip
    observed = Observed(np.array([1.0, 2.0]), np.full(2, np.nan))
    table = tabulate_level(level, draws, slice(0, 2), observed, Summary(0.5, 1, (), False), 1.0)
    assert not {"cases", "observed", "observed_rate", "tested"} & set(table)
    assert table["rate"].tolist() == [1.0, 1.0]
    np.testing.assert_allclose(table["rate_upper"], [1.75, 2.5])


def test_an_area_mostly_outside_the_country_has_no_rank():
    """The level has a sliver of a neighbour, of a high rate, and an area that is mostly a lake."""
    shapes = np.array([box(0, 0, 4, 4), box(4, 0, 8, 4), box(-3, 0, 0.5, 4)])
    ids = np.array(["home", "lake", "neighbour"], object)
    level = Level("zone", ids, None, gpd.GeoSeries(shapes), shapes, None)
    home = Level("training", ids[:2], None, gpd.GeoSeries(shapes[:2]), shapes[:2], None)
    mapped, nobody = np.array([16.0, 1.0, 2.0]), np.zeros(3)
    inside = share_on_map(level, home, mapped, nobody, None)
    np.testing.assert_allclose(inside, [1.0, 1.0, 1 / 7])
    assert share_on_map(home, home, np.ones(2), np.ones(2), None) is None
    people, drawn = np.array([100.0, 50.0, 1.0]), np.array([[20.0, 5.0, 1.0]])
    draws = LevelDraws(
        people, people, people, np.array([16.0, 1.0, 2.0]), np.zeros(3), drawn[0], np.empty((0, 3)),
        drawn, np.empty((0, 1, 3)),
    )  # fmt: skip
    blank = Observed(np.full(3, np.nan), np.full(3, np.nan))
    table = tabulate_level(level, draws, slice(0, 3), blank, Summary(0.9, 1, (), True), 1.0, inside)
    np.testing.assert_array_equal(table["rank"], [1, 2, np.nan])
    assert table["rate"][2] == 1.0  # flagged, not hidden


def test_people_decide_on_the_rank_and_the_sea_has_none():
    """One box reaches far over the sea; another has most of its people in the next country."""
    home, next_to = box(0, 0, 1, 1), box(1, 0, 2, 1)
    boxes = box(-4, 0, 1, 1), box(0, 0, 2, 1)
    shapes = np.array(boxes, object)
    level = Level("zone", np.array(["sea", "land"]), None, gpd.GeoSeries(shapes), shapes, None)
    own = np.array([home], object)
    training = Level("training", np.array(["c"]), None, gpd.GeoSeries(own), own, None)

    def living(polygons):
        there = (shapely.area(shapely.intersection(polygons, each)) for each in (home, next_to))
        return 1000.0 * next(there) + 9000.0 * next(there)

    given = level, training, np.ones(2), np.full(2, 1000.0)
    np.testing.assert_allclose(share_on_map(*given, living), [1.0, 0.1])
    np.testing.assert_allclose(share_on_map(*given, None), [1 / 5, 1 / 2])
    # A population that ends at the border knows nobody else of a neighbour.
    level = replace(level, shapes=np.array([boxes[0], box(0.99, 0, 3, 1)], object))
    people = np.array([1000.0, 10.0])
    share = share_on_map(level, training, np.array([1.0, 0.01]), people, lambda _: people)
    np.testing.assert_allclose(share, [1.0, 0.01 / 2.01])


def test_prevalences_are_per_person_tested():
    ids, shapes = np.array(["a", "b"], object), np.array([box(0, 0, 2, 1), box(2, 0, 4, 1)])
    level = Level("training", ids, None, gpd.GeoSeries(shapes), shapes, None)
    given = pd.DataFrame(
        {"observed": [5.0, 8.0], "tested": [50.0, 20.0], "in_training": [True, False]},
        index=["a", "b"],
    )
    own = Observed.of(given, level)
    np.testing.assert_array_equal(own.cases, [5, np.nan])
    draws = LevelDraws(
        *(np.array([200.0, 300.0]) for _ in range(6)), np.empty((0, 2)), np.ones((2, 2)),
        np.empty((0, 2, 2)),
    )  # fmt: skip
    table = tabulate_level(level, draws, slice(0, 2), own, Summary(0.9, 100, (), True), 1.0)
    assert table["tested"][0] == 50
    assert table["observed_rate"][0] == 10
    whole = Level("zone", ids[:1], None, gpd.GeoSeries(shapes[:1]), shapes[:1], None)
    pairs = Overlaps(np.array([0, 1]), np.array([0, 0]), np.array([True, True]))
    found = own.totals(whole, pairs, np.ones(1), ids)
    assert np.isnan(found.cases[0])
    assert found.why[0] == "no count: b"
    hidden = given.assign(observed=[5.0, np.nan], in_training=True, observed_lower=[np.nan, 0.0])
    own = Observed.of(hidden, level)
    assert own.why.tolist() == ["", "suppressed"]
    assert own.totals(whole, pairs, np.ones(1), ids).why[0] == "suppressed: b"
    known = Observed(np.array([5.0, 8.0]), np.array([50.0, 20.0]))
    assert known.totals(whole, pairs, np.ones(1), ids).tested[0] == 70
    short = known.totals(whole, pairs, np.array([0.98]), ids)
    assert np.isnan(short.cases[0])
    assert short.why[0] == "the training areas hold 98 % of its people"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"areas": [{"path": "a", "id": "i", "level": "country"}]}, "a name of the run's own"),
        ({"areas": [{"path": "a", "id": "i", "level": "a/b"}]}, "part of a file's name"),
        ({"areas": [{"path": "a", "id": "i", "level": z} for z in "bB"]}, "a level of its own"),
        ({"areas": [{"path": "a", "id": "i"}]}, "level"),
        ({"reconcile": {"to": "counts", "levels": ["x"]}}, "there is no level 'x'"),
        ({"reconcile": {"to": "n", "levels": ["country"]}}, "of the country"),
        ({"reconcile": {"to": "counts", "levels": ["training"] * 2}}, "give each once"),
    ],
)
def test_keys_that_do_not_fit_are_refused(world, output, message):
    with pytest.raises(ValueError, match=message):
        world.with_config(output=output)


def test_the_files_are_inputs_of_the_predict_stage_alone(made, tmp_path):
    config, _, _ = made
    before = {name: stage_inputs(STAGES[name], config) for name in ("ingest", "predict")}
    assert "output.areas.0.path" in before["predict"]
    moved = tmp_path / "elsewhere.gpkg"
    shutil.copy(config.output.areas[0].path, moved)
    areas = (config.output.areas[0].model_copy(update={"path": str(moved)}), config.output.areas[1])
    there = config.model_copy(update={"output": config.output.model_copy(update={"areas": areas})})
    assert stage_inputs(STAGES["predict"], there) == before["predict"]
    frame = gpd.read_file(moved)
    frame.iloc[::-1].to_file(moved)
    after = {name: stage_inputs(STAGES[name], there) for name in ("ingest", "predict")}
    assert after["ingest"] == before["ingest"]
    assert after["predict"] != before["predict"]

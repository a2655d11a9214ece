"""Reconciled maps: each draw has the totals, and is what iterative proportional fitting gives."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import rasterio
from scipy.sparse import csr_matrix

from geo.core.columns import AREA_ID
from geo.core.errors import InputError, Problem
from pipeline.config.context import StageContext
from pipeline.config.level_schema import Reconcile
from pipeline.levels.kept_totals import kept_totals, not_kept, tag_text
from pipeline.levels.reconcile import LEAST, Conflict, Raked, Tier, mean_totals, rake
from pipeline.levels.reconciled import Nodes, _report, misses
from pipeline.prediction.stage import predict_stage
from pipeline.store.level_areas import Level, bare_level, nested_order, read_level_frames
from tests.bands import read
from tests.progress import Notes

NAN = np.nan
PARENT = np.array([0, 0, 0, 1, 1, 2])  # six districts in three regions, these in one country


def level(name, n):
    ids = np.array([f"{name[0]}{k}" for k in range(n)], object)
    return Level(name, ids, None, gpd.GeoSeries([None] * n), np.empty(n, object), None)


def tree(region, district, *, country=(NAN,), order=("country", "region", "district"), rest=None):
    """Random draws of a country, with a part of some regions outside their districts."""
    rng = np.random.default_rng(4)
    drawn = rng.gamma(5.0, 20.0, (9, 6))
    extra = rng.gamma(5.0, 4.0, (9, 3)) * (np.zeros(3) if rest is None else np.array(rest))
    regions = np.stack([drawn[:, k == PARENT].sum(axis=1) for k in range(3)], axis=1) + extra
    tiers = [
        Tier(level("country", 1), regions.sum(axis=1, keepdims=True), np.array(country, float),
             np.array([-1]), order.index("country")),
        Tier(level("region", 3), regions, np.array(region, float), np.zeros(3, int),
             order.index("region")),
        Tier(level("district", 6), drawn, np.array(district, float), PARENT,
             order.index("district")),
    ]  # fmt: skip
    people = [np.array([300.0]), np.full(3, 100.0), np.full(6, 50.0)]
    people[1] = np.bincount(PARENT, people[2]) + (0 if rest is None else 20.0 * np.array(rest))
    people[0] = people[1].sum(keepdims=True)
    return tiers, people, drawn, extra


def fitted(drawn, extra, country, region, district, n_sweep=20000):
    """Iterative proportional fitting of the cells, one draw at a time, sweep by sweep."""
    cells = np.concatenate([drawn, extra], axis=1)
    of_region = np.concatenate([PARENT, [0, 1, 2]])
    groups = [([k], t) for k, t in enumerate(district)]
    groups += [(np.flatnonzero(of_region == k), t) for k, t in enumerate(region)]
    groups += [(np.arange(9), country[0])]
    groups = [(at, t) for at, t in groups if np.isfinite(t)]
    result = cells.copy()
    for each in result:
        for _ in range(n_sweep):
            before = each.copy()
            for at, total in groups:
                if each[at].sum() > 0:
                    each[at] *= total / each[at].sum()
            if np.allclose(each, before, rtol=1e-14, atol=0):
                break
    return result


@pytest.mark.parametrize(
    ("country", "region", "district", "rest"),
    [
        ([NAN], [NAN, NAN, NAN], [90, 110, 0, 150, 60, 130], None),
        ([NAN], [400, NAN, 90], [90, NAN, NAN, 150, NAN, NAN], None),
        ([700], [400, NAN, 90], [90, 110, NAN, 120, 60, NAN], [1, 1, 0]),
        ([700], [300, 180, 220], [NAN] * 6, None),
        ([900], [NAN, 180, NAN], [NAN, 40, NAN, 100, 80, NAN], [0, 0, 1]),
    ],
)
def test_the_closed_form_is_the_limit_of_proportional_fitting(country, region, district, rest):
    tiers, people, drawn, extra = tree(region, district, country=country, rest=rest)
    raked = rake(tiers, people)
    assert raked.conflicts == []
    exact = fitted(drawn, extra, country, region, district)
    top, middle, low = raked.tiers
    np.testing.assert_allclose(low.total, exact[:, :6], rtol=1e-8)
    np.testing.assert_allclose(middle.rest * middle.factor, exact[:, 6:], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(top.total[:, 0], exact.sum(axis=1), rtol=1e-9)
    for tier, target in ((low, district), (middle, region), (top, country)):
        given = np.isfinite(target)
        wanted = np.broadcast_to(np.array(target, float)[given], tier.total[:, given].shape)
        np.testing.assert_allclose(tier.total[:, given], wanted, rtol=1e-9)


def test_of_totals_that_contradict_the_level_listed_first_holds():
    district = [90, 110, 50, 150, 60, 130]
    tiers, people, *_ = tree([300, 210, NAN], district)
    raked = rake(tiers, people)
    assert raked.conflicts == [Conflict("region", "r0", 300.0, 250.0, kept=True)]
    assert str(raked.conflicts[0]).startswith("region r0: 300, but its parts add up to 250 (-17 %)")
    np.testing.assert_allclose(raked.tiers[1].total[:, 0], 300, rtol=1e-9)
    np.testing.assert_allclose(raked.tiers[2].total[0], [108, 132, 60, 150, 60, 130], rtol=1e-9)
    other, people, *_ = tree([300, 210, NAN], district, order=("district", "region", "country"))
    raked = rake(other, people)
    assert [c.kept for c in raked.conflicts] == [False]
    np.testing.assert_allclose(raked.tiers[2].total[0], district, rtol=1e-9)
    np.testing.assert_allclose(raked.tiers[1].total[0], [250, 210, 130], rtol=1e-9)


def test_totals_that_are_kept_are_told_from_those_that_are_not():
    """What is dropped or scaled for other totals is neither missing nor added up to."""
    district, levels = [90, 110, 50, 150, 60, 130], ("region", "district", "country")
    tiers, people, *_ = tree([300, 210, NAN], district)
    raked = rake(tiers, people)
    kept = kept_totals(raked.tiers, levels)
    assert kept == {"region": [2, 2], "district": [3, 6], "country": [0, 0]}
    assert list(not_kept(raked.tiers, "tot")) == [
        "no area of the level country has a total in tot",
        "3 of 6 totals of the level district are scaled: those of areas around contradict and hold",
    ]
    assert tag_text("tot", kept) == "to tot of region, district (3 of 6); not of country"
    other, people, *_ = tree(
        [NAN] * 3, district, country=[9000], rest=[0] * 3, order=("district", "region", "country")
    )
    raked = rake(other, people)
    kept = kept_totals(raked.tiers, ("district", "country"))
    assert kept == {"district": [6, 6], "country": [0, 1]}
    assert next(not_kept(raked.tiers, "tot")) == (
        "the only total of the level country is dropped: those of the parts contradict and hold"
    )
    assert tag_text("tot", kept) == "to tot of district; not of country"
    assert tag_text("tot", {"country": [0, 1]}) == "to no total of tot"


def test_what_no_total_changes_keeps_the_mean_of_the_map():
    """The mean of its draws has a Monte Carlo error, and would be a second number."""
    district = [90, 110, NAN, NAN, 60, NAN]
    tiers, people, drawn, extra = tree([300, NAN, NAN], district, rest=[1, 0, 0])
    exact = 1.02 * drawn.mean(axis=0)
    region = np.bincount(PARENT, exact) + np.append(1.02 * extra.mean(axis=0)[:1], [0, 0])
    raked = rake(tiers, people)
    country, regions, districts = mean_totals(
        raked.tiers, [region.sum(keepdims=True), region, exact]
    )
    drawn_mean = raked.tiers[2].total.mean(axis=0)
    np.testing.assert_allclose(districts[[0, 1, 2, 4]], drawn_mean[[0, 1, 2, 4]], rtol=1e-12)
    np.testing.assert_array_equal(districts[[3, 5]], exact[[3, 5]])
    np.testing.assert_allclose(regions, [300, 60 + exact[3], exact[5]], rtol=1e-12)
    np.testing.assert_allclose(country, regions.sum(), rtol=1e-12)


def test_a_total_of_nought_is_met_by_next_to_nothing():
    """No sum of pixels that a neighbour shares is exactly 0."""
    fitted, totals = np.array([1e-9, 0.5, 100.0, 100.2]), np.array([0.0, 0.0, 100.0, 100.0])
    assert misses(fitted, totals).tolist() == [False, True, False, True]


def test_parts_that_already_exceed_the_total_leave_something_to_the_others():
    tiers, people, *_ = tree([100, NAN, NAN], [90, 110, NAN, NAN, NAN, NAN])
    raked = rake(tiers, people)
    assert [c.kept for c in raked.conflicts] == [True]
    low, middle = raked.tiers[2].total, raked.tiers[1].total
    np.testing.assert_allclose(middle[:, 0], 100, rtol=1e-9)
    np.testing.assert_allclose(low[:, 0] / low[:, 1], 90 / 110)
    assert (low[:, 2] > 0).all()


def test_a_total_of_an_area_where_nobody_lives_is_dropped_and_named():
    tiers, people, *_ = tree([NAN] * 3, [NAN] * 5 + [70])
    tiers[2].drawn[:, 5] = 0.0
    raked = rake(tiers, people)
    assert str(raked.conflicts[0]) == "district d5: 70, but nobody lives in mapped pixels"
    assert np.isfinite(raked.tiers[2].total).all()


def test_parts_whose_totals_are_all_0_are_no_empty_land():
    """Totals of districts are 0, where people live; that of their region is dropped."""
    tiers, people, *_ = tree([5, NAN, NAN], [0, 0, 0, NAN, NAN, NAN],
                             order=("region", "district", "country"))  # fmt: skip
    raked = rake(tiers, people)
    assert str(raked.conflicts[0]).startswith("region r0: 5, but its parts add up to 0 (-100 %)")
    said = list(not_kept(raked.tiers, "tot"))
    text = "the only total of the level region is dropped: those of the parts contradict and hold"
    assert text in said


def test_factors_of_nought_and_draws_that_cannot_be_scaled_are_told(world):
    district = [0.0, 90.0, 400.0, NAN, NAN, NAN]
    tiers, people, *_ = tree([NAN] * 3, district)
    drawn = tiers[2].drawn
    drawn[:3, 1] = 0.0  # three of nine draws have nobody ill there
    drawn[3, 1] = 1e-310  # and one has next to nobody
    raked = rake(tiers, people)
    factor = np.divide(raked.tiers[2].total, drawn, out=np.full((9, 6), NAN), where=drawn > LEAST)
    columns = {
        tier.level.name: pd.DataFrame(
            {"reconciled_factor": factor.mean(axis=0) if n == 2 else np.ones(len(tier.level))}
        )
        for n, tier in enumerate(raked.tiers)
    }
    log = Notes()
    made = SimpleNamespace(config=world.config)
    spec = Reconcile(to="counts", levels=("district",))
    report = _report(made, spec, Raked(raked.tiers[2:], raked.conflicts), columns, log)
    zero, short, change = log.lines
    assert "1 of 6 areas of the level district have no cases on the reconciled maps" in zero
    assert "is 0, or all of that of the area around them is in others: d0; leave" in zero
    assert "district fall short of their totals" in short
    assert short.endswith("no cases there to scale: d1 (44 % of the draws)")
    assert "factors of 1 in d3 to " in change
    assert "inf" not in change
    assert report["factors"]["district"]["least"] == ["d3", 1.0]


@pytest.fixture(scope="module")
def raked_run(world, made, level_config, tmp_path_factory):
    directory = tmp_path_factory.mktemp("reconciled")
    for name in ("provinces.gpkg", "catchments.parquet"):
        shutil.copy(made[0].output.dir.parent / name, directory)
    shutil.copytree(world.directory / "out", directory / "out")
    spec = {"to": "counts", "levels": ["training", "province"]}
    config = level_config(world, directory / "out", reconcile=spec)
    summary = predict_stage(StageContext(config))
    return config, summary


def test_draws_pixels_and_tables_agree_with_a_dense_computation(world, raked_run, dense, counted):
    config, summary = raked_run
    _, people, shares, at = dense
    rate = counted
    cases = rate * people
    y = dict(zip(world.store.ids, world.store.y, strict=True))
    table = pd.read_csv(config.output.dir / "levels_training.csv", dtype={"id": str})
    target = np.array([y[i] for i in table["id"]])
    factor = target / (cases @ shares["training"].T)
    scaled = rate * (factor @ shares["training"]) / shares["training"].sum(axis=0)
    for name, values in {
        "mean": scaled.mean(axis=0),
        "lower": np.quantile(scaled, 0.05, axis=0),
        "upper": np.quantile(scaled, 0.95, axis=0),
    }.items():
        found = read(config.output.dir / f"rate_reconciled_{name}.tif")[at]
        np.testing.assert_allclose(found, 1000 * values, rtol=1e-6)
        found = read(config.output.dir / f"cases_reconciled_{name}.tif")[at]
        np.testing.assert_allclose(found, values * people, rtol=1e-6)
    for end in ("", "_lower", "_upper"):
        np.testing.assert_allclose(table[f"reconciled_cases{end}"], target, rtol=1e-9)
    np.testing.assert_allclose(table["target_total"], target)
    np.testing.assert_allclose(table["reconciled_factor"], factor.mean(axis=0), rtol=1e-9)
    for name in ("catchment", "country", "province"):
        other = pd.read_csv(config.output.dir / f"levels_{name}.csv")
        totals = (scaled * people) @ shares[name].T
        known = totals.any(axis=0)
        found = other["reconciled_cases_upper"][known]
        # Means are those of the raster, in single precision.
        np.testing.assert_allclose(found, np.quantile(totals, 0.95, axis=0)[known], rtol=1e-7)
    assert summary["reconciled"]["miss"] < 1e-9
    assert summary["reconciled"]["conflicts"] == []
    least, largest = (summary["reconciled"]["factors"]["training"][k] for k in ("least", "largest"))
    titles = table["id"] + " (" + table["name"] + ")"
    means = dict(zip(titles, factor.mean(axis=0), strict=True))
    assert least == [min(means, key=means.get), pytest.approx(min(means.values()))]
    assert largest == [max(means, key=means.get), pytest.approx(max(means.values()))]


def test_reconciled_files_say_so_and_the_others_do_not_change(raked_run, made):
    config, _ = raked_run
    out, plain = config.output.dir, made[0].output.dir
    assert not list(plain.glob("*reconciled*"))
    assert len(list(out.glob("*reconciled*.tif"))) == 6
    for path in out.glob("*reconciled*.tif"):
        with rasterio.open(path) as source:
            assert source.tags()["reconciled"] == "to counts of training, province"
            assert "reconciled" in source.descriptions[0]
        assert path.with_suffix(".qml").is_file()
    np.testing.assert_array_equal(read(out / "rate_mean.tif"), read(plain / "rate_mean.tif"))
    one, other = (pd.read_csv(d / "levels_province.csv") for d in (out, plain))
    assert not any("reconciled" in name for name in other.columns)
    pd.testing.assert_frame_equal(one[other.columns], other)
    with rasterio.open(plain / "rate_mean.tif") as source:
        assert "reconciled" not in source.tags()


@pytest.mark.ci
def test_threads_do_not_change_reconciled_maps(raked_run, tmp_path):
    config, _ = raked_run
    shutil.copytree(config.output.dir, tmp_path / "out")
    output = config.output.model_copy(
        update={
            "dir": tmp_path / "out",
            "reconcile": config.output.reconcile.model_copy(
                update={"to": "official", "levels": ("province",)}
            ),
        }
    )
    tables = []
    for workers in (1, 4):
        compute = config.compute.model_copy(update={"workers": workers})
        again = config.model_copy(update={"output": output, "compute": compute})
        summary = predict_stage(StageContext(again))
        tables.append((tmp_path / "out/levels_training.csv").read_bytes())
        tables.append((tmp_path / "out/rate_reconciled_upper.tif").read_bytes())
    assert tables[:2] == tables[2:]
    table = pd.read_csv(tmp_path / "out/levels_province.csv").set_index("id")
    np.testing.assert_allclose(table.loc["east", "reconciled_cases"], 9000, rtol=1e-9)
    np.testing.assert_allclose(table.loc["west", "reconciled_cases_lower"], 4000, rtol=1e-9)
    districts = pd.read_csv(tmp_path / "out/levels_training.csv", dtype={"id": str})
    west = districts["id"].astype(int) % 4 < 2
    np.testing.assert_allclose(districts["reconciled_cases"][west].sum(), 4000, rtol=1e-7)
    assert (districts["reconciled_cases_upper"] > districts["reconciled_cases_lower"]).all()
    assert summary["reconciled"]["to"] == "official"


def test_levels_that_cross_are_refused(made):
    config, _, _ = made
    training = gpd.read_file(config.areas.path).assign(**{AREA_ID: lambda f: f["code"]})
    other = gpd.read_parquet(config.output.areas[1].path).assign(
        **{AREA_ID: lambda f: f["no"].astype(str)}
    )
    levels = [bare_level("training", training, 32738), bare_level("catchment", other, 32738)]
    with pytest.raises(InputError, match="areas of training cross the borders of catchment"):
        nested_order(levels)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("offical", [1.0, 2.0], "did you mean 'official'"),
        ("official", [-1.0, 2.0], "no totals: east (-1.0)"),
        ("official", ["x", "2"], "no totals: east (x)"),
        ("official", [None, None], "is empty"),
    ],
)
def test_columns_without_totals_are_refused(made, tmp_path, column, values, message):
    config, _, _ = made
    spec = config.output.areas[0]
    frame = gpd.read_file(spec.path)
    frame["official"] = values
    frame.to_file(tmp_path / "p.gpkg")
    areas = (spec.model_copy(update={"path": str(tmp_path / "p.gpkg")}),)
    dump = config.output.model_dump() | {
        "areas": areas, "reconcile": {"to": column, "levels": ["province"]},
    }  # fmt: skip
    output = type(config.output).model_validate(dump)
    problems: list[Problem] = []
    read_level_frames(config.model_copy(update={"output": output}), problems)
    assert message in "\n".join(map(str, problems))


def test_a_border_pixel_has_the_factors_of_its_parts_by_their_shares():
    # Areas: a region of two districts, and a catchment whose level is not scaled.
    # The region reaches beyond the training areas in the last pixel, where it is 0.4 alone.
    shares = np.array([[1.0, 0.7, 0.0, 0.7], [0.6, 0.5, 0.0, 0.3], [0.4, 0.0, 0.0, 0.0], [1] * 4])
    covered = np.array([1.0, 0.9, 0.0, 0.3])
    pixels = SimpleNamespace(area=np.arange(4), fraction=csr_matrix(shares), covered=covered)
    nodes = Nodes(
        parent=np.array([-1, 0, 0, -1]),
        raked=np.array([True, True, True, False]),
        has_rest=np.array([True, True, True, False]),
        finest=np.array([False, True, True, False]),
        factor=np.array([[2.0, 3.0, 5.0, 9.0], [1.0, 1.0, 1.0, 9.0]]),
    )
    found = nodes.of_pixels(pixels, slice(0, 4))
    mixed = (0.5 * 3 + 0.2 * 2 + 0.2 * 1) / 0.9  # a district, the region's rest, and no region
    np.testing.assert_allclose(found[0], [0.6 * 3 + 0.4 * 5, mixed, 1.0, 3.0])
    np.testing.assert_allclose(found[1], 1.0)
    np.testing.assert_array_equal(nodes.of_pixels(pixels, slice(1, 3)), found[:, 1:3])

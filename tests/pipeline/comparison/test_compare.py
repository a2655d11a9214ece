"""Two runs compared: against dense draws, with itself, on other grids, and between versions."""

import json
import shutil
from dataclasses import replace

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import rasterio
from rio_cogeo import cog_validate

import models
from geo.core.errors import InputError
from geo.grids.grid import Grid
from geo.grids.positions import Positions
from models.aggregate.paired import draw_pair, what_differs
from pipeline.cli.main import main
from pipeline.comparison import compare, pixels
from pipeline.comparison.areas import change_by_tables
from pipeline.comparison.compare import compare_sides
from pipeline.comparison.differences import in_words, what_differed
from pipeline.comparison.outputs import FILES, LAYER, PACKAGE, read_areas_layer
from pipeline.comparison.periods import PERIODS_CHANGE
from pipeline.comparison.report import described_table, moments
from pipeline.comparison.sides import basis_of, find_data, open_side
from pipeline.comparison.words import headline
from pipeline.config.input_schema import TimeSpec
from pipeline.core.progress import Silent
from pipeline.store.aligned_grid import open_aligned_grid, read_part
from pipeline.store.bag_store import BagStore
from tests.bands import read
from tests.pipeline.comparison.conftest import DOUBLED, make


def sides(runs):
    return open_side(runs / "out-a"), open_side(runs / "out-b")


@pytest.fixture(scope="module")
def compared(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("change") / "change"
    return out, compare_sides(*sides(runs), out, Silent())


def test_the_files_are_whole_and_styled(compared):
    out, report = compared
    assert sorted(path.name for path in out.iterdir()) == sorted(set(FILES) - {PERIODS_CHANGE})
    for path in out.glob("*.tif"):
        assert cog_validate(path)[0]
        with rasterio.open(path) as file:
            assert file.descriptions[0]
            assert np.isnan(file.nodata)
            assert file.tags()["probability_by"] == "paired draws"
    assert json.loads((out / "compare.json").read_text()) == report
    layer = gpd.read_file(out / PACKAGE, layer=LAYER)
    table = pd.read_csv(out / "change.csv", dtype={"code": str})
    layer = pd.DataFrame(layer.drop(columns="geometry"))
    pd.testing.assert_frame_equal(layer, table, check_dtype=False)


def test_pixels_against_dense_draws(runs, compared):
    out, _ = compared
    a, b = sides(runs)
    pair = [models.load(side.model) for side in (a, b)]
    assert what_differs(*pair) is None
    draws = draw_pair(*pair, 40, 4, paired=True)
    group = open_aligned_grid(a.place("work/grid.zarr"))
    grid = Grid.from_dict(group.attrs["grid"])
    row, col = np.nonzero(np.isfinite(read(a.level)))
    x = read_part(group, "covariates", slice(None), slice(None), slice(None))[:, row, col].T
    coords = Positions.of(grid, group.attrs.get("coords_crs")).km(row, col)
    one, other = (each.rate(x, coords) for each in draws)
    wanted = (other > one).mean(0) + 0.5 * (other == one).mean(0)
    found = read(out / "change_probability.tif")
    np.testing.assert_allclose(found[row, col], wanted, atol=1e-6)
    assert np.isfinite(found).sum() == row.size
    mean_a, mean_b = read(a.level), read(b.level)
    np.testing.assert_allclose(read(out / "difference_mean.tif"), mean_b - mean_a, rtol=1e-5)
    np.testing.assert_allclose(read(out / "ratio.tif"), mean_b / mean_a, rtol=1e-6)
    # Pairing leaves each posterior as it is: the means of the draws are those of the map. Rates are
    # skewed, and the mean of 40 is too.
    many = [each.rate(x, coords) for each in draw_pair(*pair, 400, 4, paired=True)]
    for drawn, mean, sd in zip(many, (mean_a, mean_b), (a, b), strict=True):
        error = 1000 * drawn.mean(0) - mean[row, col]
        assert np.abs(error / read(sd.spread)[row, col]).max() < 5 / np.sqrt(400)


def test_areas_and_total_against_dense_draws(runs, compared):
    out, report = compared
    a, b = sides(runs)
    pair = [models.load(side.model) for side in (a, b)]
    draws = draw_pair(*pair, 40, 4, paired=True)
    store = BagStore.open(a.place("work/bags.zarr"))
    rows = store.read_rows(0, store.n_pix)
    sums, people = [], np.add.reduceat(rows.weight, store.offsets[:-1])
    for side, each in zip((a, b), draws, strict=True):
        # Every draw of every pixel, which the comparison never holds; then each area's own count.
        dense = each.rate(rows.x, rows.coords) * rows.weight
        total = np.add.reduceat(dense, store.offsets[:-1], axis=1)
        for block in BagStore.open(side.place("work/bags.zarr")).blocks():
            total[:, block.bag] *= each.observed_factors(block, total[:, block.bag])
        sums.append(total)
    rate_a, rate_b = (1000 * total / people for total in sums)
    table = pd.read_csv(out / "change.csv", dtype={"code": str}).set_index("code")
    table = table.loc[list(store.ids)]
    tails = [0.05, 0.95]
    # Levels are those that each run published; the draws say how sure their difference is.
    told = [pd.read_csv(s.table, dtype={"code": str}).set_index("code") for s in (a, b)]
    told_a, told_b = (each.loc[list(store.ids)] for each in told)
    np.testing.assert_allclose(told_a["fitted_rate"], rate_a.mean(0), rtol=0.05)
    for column, wanted in {
        "rate_a": told_a["fitted_rate"],
        "difference": told_b["fitted_rate"] - told_a["fitted_rate"],
        "difference_lower": np.quantile(rate_b - rate_a, tails[0], axis=0),
        "difference_upper": np.quantile(rate_b - rate_a, tails[1], axis=0),
        "ratio": told_b["fitted_rate"] / told_a["fitted_rate"],
        "ratio_upper": np.quantile(rate_b / rate_a, tails[1], axis=0),
        "change_probability": (rate_b > rate_a).mean(0),
        "change_probability_independent": (rate_b[None] > rate_a[:, None]).mean((0, 1)),
        "expected_b": told_b["fitted"],
        "people_a": people,
    }.items():
        np.testing.assert_allclose(table[column], wanted, rtol=1e-6, err_msg=column)
    before, after = (total.sum(1) for total in sums)
    total = report["total"]["expected"]
    assert total["a"] == pytest.approx(told_a["fitted"].sum(), rel=1e-8)
    assert total["b"] == pytest.approx(told_b["fitted"].sum(), rel=1e-8)
    assert report["total"]["observed"]["b"] == told_b["observed"].sum()
    assert total["difference_upper"] == pytest.approx(np.quantile(after - before, 0.95), rel=1e-6)
    assert total["change_probability"] == (after > before).mean()
    assert report["total"]["rate"]["b"] == pytest.approx(
        1000 * told_b["fitted"].sum() / people.sum()
    )


def test_an_area_of_doubled_cases_is_found(compared):
    out, report = compared
    table = pd.read_csv(out / "change.csv", dtype={"code": str}).set_index("code")
    assert dict(table["changed"].value_counts()) == {"no": 8, "rose": 1}
    assert table.loc[DOUBLED, "changed"] == "rose"
    assert "of 9 areas: 1 rose (M04) and 0 fell by more than chance;" in report["headline"]
    first = report["areas"]["largest_rises"][0]
    assert first["id"] == DOUBLED
    assert first["probability"] > 0.95
    assert report["method"]["areas"] == "paired draws"
    assert report["differed"]["data"] == ["counts.path"]
    assert report["differed"]["configuration"] == {}


@pytest.mark.parametrize("independent", [False, True])
def test_a_run_compared_with_itself(runs, tmp_path, monkeypatch, independent):
    monkeypatch.setattr(pixels, "ROWS", 50)
    seen, rates = [], pixels._Cube.rates

    def spy(self, x, tile, row, col):
        seen.append(row.size)
        return rates(self, x, tile, row, col)

    monkeypatch.setattr(pixels._Cube, "rates", spy)
    side = sides(runs)[0]
    out = tmp_path / "same"
    report = compare_sides(side, side, out, Silent(), independent=independent)
    inside = np.isfinite(read(side.level))
    assert (max(seen), sum(seen)) == (50, 2 * inside.sum())  # never all draws of all pixels
    assert (read(out / "difference_mean.tif")[inside] == 0).all()
    assert (read(out / "ratio.tif")[inside] == 1).all()
    table = pd.read_csv(out / "change.csv")
    probability = read(out / "change_probability.tif")[inside]
    assert in_words(report["differed"]).startswith("nothing")
    if independent:  # other draws of the same posterior
        assert np.abs(probability - 0.5).max() < 6 * np.sqrt(0.25 / 40)
        assert report["notes"] == ["draws are independent: as asked for by --independent"]
    else:
        assert (probability == 0.5).all()
        assert (table["change_probability"] == 0.5).all()
        assert (table["difference"] == 0).all()
        assert (table[["ratio", "ratio_lower", "ratio_upper"]] == 1).all().all()
        assert report["total"]["expected"]["change_probability"] == 0.5
        assert report["pixels"]["n_rose"] == report["pixels"]["n_fell"] == 0


def test_grids_and_areas_that_differ_are_said_and_grids_apart_refused(runs, tmp_path, capsys):
    shutil.copytree(runs, tmp_path / "c", ignore=shutil.ignore_patterns("out-*"))
    areas = gpd.read_file(runs / "areas.gpkg", layer="districts")
    areas["code"] = areas["code"].replace({"M08": "new"})
    areas.to_file(tmp_path / "c" / "areas.gpkg", layer="districts")
    text = (runs / "cases.csv").read_text().replace("M08", "new")
    (tmp_path / "c" / "cases.csv").write_text(text)
    coarse = {"like": None, "crs": "EPSG:32738", "resolution": 2000}
    make(tmp_path / "c", "a", grid=coarse)
    fine, other = str(runs / "out-a"), str(tmp_path / "c" / "out-a")
    out = tmp_path / "change"
    assert main(["compare", fine, other, "--out", str(out)]) == 0
    told = capsys.readouterr()
    (line,) = (line for line in told.err.splitlines() if "the grids differ" in line)
    assert "is resampled to the grid of" in line
    report = json.loads((out / "compare.json").read_text())
    assert report["method"]["pixels"] == "means and deviations"
    assert report["method"]["areas"] == "independent draws"
    assert abs(np.nanmedian(read(out / "ratio.tif")) - 1) < 0.2
    assert "Only in A: M08" in told.out
    assert "Only in B: new" in told.out
    layer = gpd.read_file(out / PACKAGE, layer=LAYER).set_index("code")
    assert layer.loc["M08", "in_maps"] == "A"
    assert np.isnan(layer.loc["new", "rate_a"])
    assert layer.loc["new", "rate_b"] > 0
    assert layer.loc["M08"].geometry.equals(layer.loc["new"].geometry)
    assert (report["areas"]["only_in_a"], report["areas"]["only_in_b"]) == (["M08"], ["new"])
    assert report["total"]["n_areas"] == 8
    # Moved far away, the same map has no pixel in common.
    far = tmp_path / "far"
    shutil.copytree(tmp_path / "c" / "out-a", far)
    for path in far.glob("*.tif"):
        with rasterio.open(path, "r+", IGNORE_COG_LAYOUT_BREAK="YES") as file:
            file.transform = rasterio.Affine.translation(2e5, 0) @ file.transform
    gone = tmp_path / "gone"
    assert main(["compare", fine, str(far), "--out", str(gone)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: {far}: its map does not overlap that of {fine}; compare two maps of one country"
    )
    assert not gone.exists()
    assert not list(tmp_path.glob(".gone*"))


def test_another_kernel_is_compared_by_independent_draws(runs):
    model = models.load(runs / "out-a" / "work" / "model")
    other = models.load(runs / "out-a" / "work" / "model")
    other.kernel = "linear"
    assert what_differs(model, other) == "the kernel"
    other = models.load(runs / "out-b" / "work" / "model")
    other.state_.params["w"][0, 0] += 1e-9
    assert what_differs(model, other) == "the inducing points"


def test_what_keeps_draws_from_being_paired_is_a_sentence(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "what_differs", lambda *_: "the inducing points")
    report = compare_sides(*sides(runs), tmp_path / "change", Silent())
    assert "draws are independent: A and B differ in the inducing points" in report["notes"]


def test_messages_of_what_cannot_be_compared(runs, tmp_path, capsys):
    good = str(runs / "out-a")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for arguments, told in (
        (["nothing", good], "error: nothing: no file or directory nothing; give output.dir"),
        ([good, str(tmp_path)], f"error: {tmp_path}: no finished run in {tmp_path} (run.json is"),
        ([f"{runs / 'a.yaml'}@v0003", good], f"error: {runs / 'a.yaml'}@v0003: no version v0003"),
        ([good, good, "--out", str(tmp_path / "mine")], "has files that are not of a comparison"),
    ):
        assert main(["compare", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("step", [None, "week"])
def test_a_rate_of_a_month_is_compared_with_none_of_a_week(runs, tmp_path, step):
    a, b = sides(runs)
    steps = (step, "month")
    a, b = (
        replace(side, config=side.config.model_copy(update={"time": each and TimeSpec(step=each)}))
        for side, each in zip((a, b), steps, strict=True)
    )
    of = "cases per person" + (" a week" if step else "")
    with pytest.raises(InputError, match=rf"cases per person a month, but .* maps rate, {of};"):
        compare_sides(a, b, tmp_path / "change", Silent())


def test_what_differed_names_data_configuration_and_code():
    def run(**changes):
        return {
            "config": {"fit": {"seed": 1}, "counts": {"path": "/a.csv"}, "publish": {"keep": 1}},
            "fingerprints": {"counts.path": "1"},
            "versions": {"disagg": "1.0", "numpy": "2.0", "platform": "x"},
            "code": {"geo": "1"},
            **changes,
        }

    other = run(
        config={"fit": {"seed": 2}, "counts": {"path": "/b.csv"}, "publish": {"keep": 2}},
        fingerprints={"counts.path": "2"},
        versions={"disagg": "1.0", "numpy": "2.1", "platform": "y"},
        code={"geo": "2"},
    )
    found = what_differed(run(), other)
    assert found == {
        "data": ["counts.path"],
        "new": [],
        "gone": [],
        "configuration": {"fit.seed": [1, 2]},
        "code": {"disagg": ["1.0", "1.0"], "numpy": ["2.0", "2.1"]},
    }
    told = in_words(found)
    assert (
        told
        == "the content of counts.path, fit.seed (1 -> 2), the code of disagg, numpy 2.0 -> 2.1"
    )


def test_a_month_that_is_no_longer_the_latest_has_not_changed():
    """The latest month of a series has keys without it: those of the months before have it."""
    before = {"covariates.rain.2023-06.path": "1", "covariates.rain.path": "2", "areas.path": "3"}
    after = {f"covariates.rain.2023-0{k}.path": str(k - 5) for k in (6, 7)}
    after |= {"covariates.rain.path": "4", "areas.path": "3"}
    runs = [
        {"config": {"period": label}, "fingerprints": files}
        for label, files in (("2023-07", before), ("2023-08", after))
    ]
    found = what_differed(*runs)
    assert (found["data"], found["gone"]) == ([], [])
    assert found["new"] == ["covariates.rain.2023-08.path"]
    told = in_words(found)
    assert told == "new covariates.rain.2023-08.path, period (2023-07 -> 2023-08)"
    after["covariates.rain.2023-07.path"] = "corrected"
    assert what_differed(*runs)["data"] == ["covariates.rain.2023-07.path"]


def test_the_headline_counts_the_areas_with_a_count_in_both_and_names_each_way():
    areas = {"n_common": 90, "n_counts": 73, "n_counts_rose": 1, "n_counts_fell": 2}
    areas |= {"counts_rose": ["050"], "counts_fell": ["002", "004 (Lomé)"]}
    report = {"areas": areas, "total": {}, "method": {"areas": "means and deviations"}}
    report["words"] = {"rates": "rates", "noun": "count"}
    assert headline(report) == (
        "observed rates of 73 areas with a count in both (17 lack one, or have no people): 1 rose "
        "(050) and 2 fell (002, 004 (Lomé)) by more than chance; by means and deviations"
    )
    # Totals are of all areas that both have: the sentence is of fewer, and says so.
    report["total"] = {"n_areas": 90, "expected": {"a": 2072.0, "b": 1858.0}}
    report["words"]["expected"] = "expected cases"
    assert "; in all 90 areas, expected cases 2,072 -> 1,858; by" in headline(report)
    areas["n_counts"] = 90
    assert "; in all, expected cases 2,072 -> 1,858; by" in headline(report)


def test_the_table_of_areas_has_the_ends_of_suppressed_counts(runs):
    a, b = sides(runs)
    layers = [read_areas_layer(side) for side in (a, b)]
    number = layers[1].index[0]
    layers[1]["observed_lower"] = layers[1]["observed_upper"] = np.nan
    layers[1].loc[number, ["observed", "observed_lower", "observed_upper"]] = np.nan, 0, 4
    change = change_by_tables(
        *(moments(layer, b.response) for layer in layers), scale=1, interval=0.9, positive=True
    )
    table, _ = described_table(change.table, layers, a, b)
    ends = [f"observed_{end}_{side}" for side in "ab" for end in ("lower", "upper")]
    np.testing.assert_array_equal(table.loc[number, ends].astype(float), [np.nan, np.nan, 0, 4])
    assert table[ends].notna().sum().tolist() == [0, 0, 1, 1]


def test_a_version_finds_the_grid_of_a_run_by_its_digest(runs, tmp_path):
    side = open_side(runs / "out-a")
    with pytest.raises(InputError, match="no such directory"):
        open_side(tmp_path / "absent")
    basis = basis_of(runs / "out-a")
    assert basis == basis_of(runs / "out-b")  # the counts are not in it
    kept = replace(side, data=None, basis=basis)
    assert find_data(kept, [tmp_path, runs / "out-b"]).data == runs / "out-b"
    assert find_data(replace(kept, basis={**basis, "grid": "other"}), [runs / "out-b"]).data is None

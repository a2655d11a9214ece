"""The exposure of areas from a column: totals and averages, and what their likelihood is."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import rasterio
import yaml
from scipy.sparse import csr_matrix

from geo.core.errors import InputError
from models.likelihoods.registry import find_likelihood
from pipeline.cli.main import main
from pipeline.config.context import StageContext
from pipeline.config.reader import load_config
from pipeline.ingest.exposure import pixel_sums
from pipeline.ingest.stage import check_inputs, ingest
from pipeline.products.area_factors import TileFactors
from pipeline.products.exposures import Exposures
from pipeline.products.tile_pixels import TilePixels
from pipeline.store.bag_store import BagStore
from pipeline.store.balance import balance_of
from tests.pipeline.ingest.conftest import shares
from tests.pipeline.series_inputs import MONTHS, store_of, write_inputs
from tests.progress import Notes

HECTARES = {f"M{k:02d}": 10.0 ** (k % 4) for k in range(9)}


def _table(files: Any, value: dict[str, float], weight: dict[str, float] | None = None) -> None:
    weight = HECTARES if weight is None else weight
    rows = [f"{i},{value[i]!r},{weight[i]!r}" for i in files.ids]
    (files.directory / "cases.csv").write_text("\n".join(["code,crop,ha", *rows]) + "\n")


def _config(files: Any, counts: dict[str, Any], likelihood: str = "normal", **more: Any) -> Any:
    mapping = {
        **files.mapping(),
        "counts": {"path": "cases.csv", "value": "crop", **counts},
        "model": {"likelihood": likelihood, "inducing": 5, "integrate": "none"},
        "fit": {"max_epochs": 3, "seed": 4},
        "evaluate": {"folds": 2, "schemes": ["area"], "calibration": "none"},
        **more,
    }
    path = files.directory / "run.yaml"
    path.write_text(yaml.safe_dump(mapping))
    return path


def _store(files: Any, counts: dict[str, Any], likelihood: str = "normal") -> BagStore:
    config = load_config(_config(files, counts, likelihood))
    ingest(StageContext(config))
    return BagStore.open(config.output.dir / "work/bags.zarr")


def _people(files: Any) -> dict[str, float]:
    """Add up the population over each square, by its overlap with every pixel: no raster code."""
    return dict(zip(files.ids, (shares(files) * files.population).sum(axis=(1, 2)), strict=True))


def test_pixels_share_out_the_weight_and_an_average_is_the_total_over_it(files):
    yields = {i: 1.0 + k / 10 for k, i in enumerate(files.ids)}
    _table(files, yields)
    people = _people(files)
    of_people = _store(files, {"of": "average"}, "exponential")
    ids = list(of_people.ids)
    rows = of_people.read_rows(0, of_people.n_pix).weight
    np.testing.assert_allclose(of_people.bag_weight, [people[i] for i in ids], rtol=1e-6)
    np.testing.assert_allclose(of_people.y, [yields[i] * people[i] for i in ids], rtol=1e-6)

    averages = _store(files, {"weight": "ha"})  # of: average, as values with a weight are
    _table(files, {i: yields[i] * HECTARES[i] for i in yields})
    totals = _store(files, {"weight": "ha", "of": "total"})
    np.testing.assert_allclose(averages.y, totals.y, rtol=1e-12)
    np.testing.assert_allclose(totals.y, [yields[i] * HECTARES[i] for i in ids])
    np.testing.assert_array_equal(averages.bag_weight, totals.bag_weight)
    np.testing.assert_allclose(totals.bag_weight, [HECTARES[i] for i in ids], rtol=1e-9)
    assert totals.attrs["weight_unit"] == "ha"
    factor = np.repeat([HECTARES[i] / people[i] for i in ids], np.diff(totals.offsets))
    found = totals.read_rows(0, totals.n_pix).weight
    np.testing.assert_allclose(found, rows * factor, rtol=1e-6)


def test_the_balance_has_the_people_of_areas_without_a_value(files):
    """Weights of areas are hectares; people are of the pixels all the same."""
    yields = {name: 2.0 + k for k, name in enumerate(files.ids)}
    _table(files, yields)
    rows = (files.directory / "cases.csv").read_text().replace("M03,5.0,", "M03,,")
    (files.directory / "cases.csv").write_text(rows)
    store = BagStore.open(_store(files, {"weight": "ha"}).path)
    assert list(np.array(store.ids)[~store.in_training]) == ["M03"]
    people = _people(files)
    found = balance_of(store)["people"]
    assert found["without_counts"] == pytest.approx(people["M03"], rel=1e-6)
    assert found["in_bags"] == pytest.approx(sum(people.values()) - people["M03"], rel=1e-6)
    assert found["other_areas"] == 0.0


def test_counts_with_a_weight_stay_totals(files):
    _table(files, dict.fromkeys(files.ids, 7.0))
    store = _store(files, {"weight": "ha"}, "poisson")
    assert set(store.y) == {7.0}


@pytest.mark.parametrize("effect", [False, True])
@pytest.mark.parametrize("name", ["normal", "exponential"])
def test_the_likelihood_of_an_average_is_that_of_its_total(name, effect):
    # p(total) d total = p(average) d average: the densities differ by the weight alone, wherever
    # the mean is, so that a fit to totals is one to averages.
    likelihood = find_likelihood(name, area_effect=effect)
    params = dict.fromkeys(likelihood.parameters, 0.3)
    weight, offsets = np.array([1.0, 2.0, 5.0, 0.5]), np.array([0, 3, 4])
    mean, y = np.array([2.0, 0.7]), np.array([2.5, 0.4])
    sums = np.add.reduceat(weight, offsets[:-1])
    for exposure in (np.array([3.0, 1000.0]), np.array([0.01, 7.0])):
        scaled = weight * np.repeat(exposure / sums, np.diff(offsets))
        shares = weight / np.repeat(sums, np.diff(offsets))
        total = likelihood.terms(
            y * exposure, mean * exposure, params, likelihood.bag_data(scaled, offsets, None)
        )
        average = likelihood.terms(y, mean, params, likelihood.bag_data(shares, offsets, None))
        np.testing.assert_allclose(total.value + np.log(exposure), average.value, rtol=1e-12)


@pytest.mark.ci
def test_averages_become_maps_and_tables_in_their_unit(files, capsys):
    yields = {i: 20.0 + k for k, i in enumerate(files.ids)}
    _table(files, yields)
    counts = {"weight": "ha", "unit": "t/ha"}
    path = _config(files, counts, output={"dir": str(files.directory / "out"), "draws": 20})
    assert main(["run", str(path)]) == 0
    out = files.directory / "out"
    with rasterio.open(out / "rate_mean.tif") as tif:
        assert tif.units == ("t/ha",)
        assert tif.descriptions == ("mean value",)
        assert tif.tags()["rate_unit"] == "t/ha"
        assert 15 < np.nanmean(tif.read(1)) < 35
    table = pd.read_csv(out / "areas.csv").set_index("code")
    np.testing.assert_allclose(table["observed_rate"], pd.Series(yields)[table.index], rtol=1e-5)
    np.testing.assert_allclose(table["people"], pd.Series(HECTARES)[table.index], rtol=1e-5)
    # Levels have the hectares as well: their averages are not those of people.
    fine = pd.read_csv(out / "levels_training.csv", dtype={"id": str}).set_index("id")
    hectares = pd.Series(HECTARES)[fine.index]
    np.testing.assert_allclose(fine["people"], hectares, rtol=1e-5)
    np.testing.assert_allclose(fine["rate"], table["fitted_rate"][fine.index], rtol=1e-5)
    country = pd.read_csv(out / "levels_country.csv").iloc[0]
    np.testing.assert_allclose(country["people"], hectares.sum(), rtol=1e-5)
    wanted = (fine["rate"] * hectares).sum() / hectares.sum()
    np.testing.assert_allclose(country["rate"], wanted, rtol=1e-7)
    assert abs(country["rate"] / fine["rate"].mean() - 1) > 0.01
    report = json.loads((out / "evaluation.json").read_text())
    assert report["response"]["area_total"] == "t/ha x ha"
    # The balance adds up totals, not averages.
    cases = report["balance"]["cases"]
    assert cases["unit"] == "t/ha x ha"
    wanted = sum(yields[i] * HECTARES[i] for i in yields)
    np.testing.assert_allclose([cases["given"], cases["in_bags"]], wanted, rtol=1e-9)
    assert cases["left_out"] == 0
    said = capsys.readouterr().err
    assert "averages: RMSE" in said
    assert "cases" not in said


def test_pixels_outside_and_areas_without_a_weight_have_the_usual_exposure():
    """Areas a and b share the second pixel; c has no weight; the fourth pixel is in none."""
    store = SimpleNamespace(
        ids=["a", "b", "c"], exposure_factor=np.array([2.0, 6.0, 1.0]),
        bag_weight=np.array([20.0, 180.0, 7.0]), known_exposure=np.array([True, True, False]),
    )  # fmt: skip
    found = Exposures.of(store, ["b", "a", "c", "left out"])
    assert found.known.tolist() == [True, True, False, True]
    assert found.factor.tolist() == [6.0, 2.0, 5.0, 0.0]  # 200 over 10 + 30 people
    found = Exposures.of(store, ["b", "a", "c"])
    assert Exposures.of(SimpleNamespace(exposure_factor=None, bag_weight=None), []) is None
    share = np.array(
        [[0, 0.25, 0, 0, 0], [1, 0.5, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0.75, 1, 1, 0.0]]
    )  # of b, a, c, and of a zone
    people = np.array([10.0, 12.0, 3.0, 4.0, 5.0])
    pixels = TilePixels(
        None, np.zeros(5, int), np.arange(5), None, None, people, share[:3].sum(axis=0),
        np.zeros(5), area=np.array([0, 1, 2, 3]), fraction=csr_matrix(share),
    )  # fmt: skip
    shared = 12 * (0.25 * 6 + 0.5 * 2) / 0.75
    np.testing.assert_allclose(found.of_pixels(pixels), [20, shared, 15, 20, 25])
    wanted = [
        [0, 0.25 * 72, 0, 0, 0],
        [20, 0.5 * 24, 0, 0, 0],
        [0, 0, 15, 0, 0],
        [0, 0.75 * shared, 15, 20, 0],
    ]
    np.testing.assert_allclose(found.of_areas(pixels).toarray(), wanted)
    # What the values add: so that the exposure times it is the sum of both areas'.
    counted = TileFactors(np.array([[3.0, 1.0, 1.0]]), np.array([1.5, 1.0, 1.0]), found.factor)
    mixed = counted.of_means(pixels)[1] * shared
    np.testing.assert_allclose(mixed, 12 * (0.25 * 6 * 1.5 + 0.5 * 2) / 0.75)
    np.testing.assert_allclose(counted(pixels, slice(1, 2))[0], (0.25 * 6 * 3 + 0.5 * 2) / 2.5)


def test_areas_without_a_weight_are_left_out_or_refused(files):
    weight = HECTARES | {"M02": 0.0}
    yields = {name: 2.0 + k for k, name in enumerate(files.ids)}
    _table(files, yields)
    store = _store(files, {"weight": "ha"})
    pixels = store.read_rows(0, store.n_pix).pixel
    each = dict(zip(store.ids, np.split(pixels, store.offsets[1:-1]), strict=True))
    _table(files, yields, weight)
    store = _store(files, {"weight": "ha"})
    assert "M02" not in store.ids
    # Its pixels go with it: those of the areas after it were another's.
    pixels = store.read_rows(0, store.n_pix).pixel
    for name, own in zip(store.ids, np.split(pixels, store.offsets[1:-1]), strict=True):
        np.testing.assert_array_equal(own, each[name], err_msg=name)
    assert store.attrs["left_out"]["areas"] == ["M02"]
    alike = dict.fromkeys(files.ids, 2.0)
    for value, of, counts, says in (
        (yields, weight, {"of": "total"}, r"row 4 \(id M02\): column 'crop' has a value, but"),
        (yields, dict.fromkeys(files.ids, 0.0), {}, "column 'ha' is 0 or missing for every area"),
        (yields, HECTARES | {"M05": -1.0}, {}, r"\(id M05: -1\): column 'ha' is negative"),
        (alike, HECTARES, {}, "column 'crop' is 2 for every area; give the column"),
        (yields, HECTARES, {"weight": "acre"}, "acre"),
    ):
        _table(files, value, of)
        with pytest.raises(InputError, match=says):
            _store(files, {"weight": "ha", **counts})


def test_a_weight_of_0_in_a_month_is_a_month_without_a_value(tmp_path):
    """Nothing was sown in A05 in February; A06 has no weight in any month but the first."""
    config = write_inputs(tmp_path, 3)
    table = pd.read_csv(tmp_path / "cases.csv", dtype={"id": str})
    table["ha"] = 100.0 + np.arange(len(table))
    january, february = (table["month"] == f"2024-0{k}" for k in (1, 2))
    table.loc[(table["id"] == "A05") & february, "ha"] = 0.0
    table.loc[(table["id"] == "A06") & ~january, "ha"] = 0.0
    table["cases"] = pd.to_numeric(table["cases"], errors="coerce").fillna(3.0) + 0.5
    table.to_csv(tmp_path / "cases.csv", index=False)
    text = config.read_text().replace("period: month}", "period: month, weight: ha, of: average}")
    config.write_text(text.replace("model:", "model:\n  likelihood: gamma"))
    log = Notes()
    ingest(StageContext(load_config(config), log))
    (line,) = (each for each in log.lines if "2024-02" in each and "weight of 0" in each)
    assert line.startswith("ingest: 2024-02: 2 areas have a weight of 0")
    series, given = store_of(config), table.set_index(["month", "id"])["ha"]
    for month in MONTHS[:3]:
        store = series.at(month)
        at = list(store.ids).index("A05")
        assert store.in_training[at] == (month != "2024-02")
        wanted = given["2024-01" if month == "2024-02" else month, "A05"]
        assert store.bag_weight[at] == pytest.approx(wanted)
        at = list(store.ids).index("A06")
        assert store.in_training[at] == (month == "2024-01")
        assert store.bag_weight[at] == pytest.approx(given["2024-01", "A06"])


def test_a_weight_may_be_a_column_of_the_areas(files, monkeypatch):
    frame = gpd.read_file(files.directory / "areas.gpkg")
    frame["crop"], frame["ha"] = 2.0 + np.arange(9), [HECTARES[i] for i in frame["code"]]
    (files.directory / "areas.gpkg").unlink()
    frame.to_file(files.directory / "areas.gpkg", layer="districts")
    store = _store(files, {"path": None, "weight": "ha"})
    np.testing.assert_allclose(store.bag_weight, [HECTARES[i] for i in store.ids])

    def rows(bag, start, stop):
        assert (stop - start <= 7).all()
        first = store.offsets[bag] + start
        return store.read_rows(int(first[0]), int(first[0] + stop[0] - start[0]))

    # Large bags are added up in parts.
    monkeypatch.setattr("pipeline.ingest.exposure.CHUNK_PIXELS", 7)
    np.testing.assert_allclose(pixel_sums(rows, np.diff(store.offsets)), store.bag_weight)


def test_check_tells_rates_of_the_weight(files):
    # 6 to 14 cases of each unit of the weight, whose areas have 40 to 90 people a square km.
    cases = {name: (6.0 + k) * HECTARES[name] for k, name in enumerate(files.ids)}
    _table(files, cases)
    counts = {"weight": "ha", "unit": "cases"}
    path = _config(files, counts, "poisson", output={"dir": "out", "exceedance": [5, 10]})
    examined = check_inputs(load_config(path)).examined
    profile = examined.profile
    assert profile.exposure == "ha"
    total = sum(HECTARES[name] for name in files.ids)
    assert profile.counts.total == pytest.approx(sum(cases.values()))
    assert profile.counts.rate == pytest.approx(sum(cases.values()) / total)
    assert (profile.counts.rates.low, profile.counts.rates.high) == pytest.approx((6, 14))
    # Thresholds are per unit of the weight, too.
    assert "threshold" not in {each.code for each in examined.suspicions}
    path = _config(files, counts, "poisson", output={"dir": "out", "exceedance": [0.5]})
    examined = check_inputs(load_config(path)).examined
    assert "threshold" in {each.code for each in examined.suspicions}


@pytest.mark.parametrize("weight", ["ha", None])
def test_check_tells_averages_as_they_are_given(files, weight):
    yields = {name: 2.0 + k for k, name in enumerate(files.ids)}
    _table(files, yields)
    counts = {"of": "average", "unit": "t/ha"} | ({"weight": weight} if weight else {})
    counts = check_inputs(load_config(_config(files, counts))).examined.profile.counts
    exposure = HECTARES if weight else _people(files)
    assert (counts.rates.low, counts.rates.high) == pytest.approx((2, 10))
    total = sum(yields[name] * exposure[name] for name in files.ids)
    assert counts.total == pytest.approx(total, rel=1e-5)
    assert counts.rate == pytest.approx(total / sum(exposure.values()), rel=1e-5)

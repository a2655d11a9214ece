"""Areas without a count, through every stage: predicted jointly with the others, and no more."""

from __future__ import annotations

import json

import geopandas as gpd
import numpy as np
import pandas as pd
import pyogrio
import pytest
import rasterio
import shapely
import yaml

import models
from models import Bags
from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.demo.country import simulate_country
from pipeline.demo.country_spec import CountrySpec
from pipeline.products.areas import draw_areas
from pipeline.publishing.gates import check_gates
from pipeline.store.bag_store import BagStore
from tests.typed import run_each

WHOLE_RUNS = True  # of what tests shorten elsewhere

SPEC = CountrySpec(
    (48, 52), 1 / 12, 1400, 40, 8, 8e5, covariates=("elevation", "temperature"), n_inducing=30
)
N_ABSENT, N_MANY, INTERVAL = 6, 4000, 0.9
pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run a country without some counts, and the same country without these areas."""
    directory = tmp_path_factory.mktemp("absent")
    config = simulate_country(directory, SPEC, seed=3)
    table, areas = pd.read_csv(directory / "cases.csv"), gpd.read_file(directory / "areas.gpkg")
    absent = sorted(np.random.default_rng(1).choice(table["area_id"], N_ABSENT, replace=False))
    known = table[~table["area_id"].isin(absent)]
    # Half of them have an empty cell, half no row at all.
    empty = table[table["area_id"].isin(absent[::2])].assign(cases="")
    pd.concat([known, empty]).to_csv(directory / "some.csv", index=False)
    known.to_csv(directory / "known.csv", index=False)
    areas[~areas["area_id"].isin(absent)].to_file(directory / "fewer.gpkg", layer="areas")
    mapping = yaml.safe_load(config.read_text())
    # Two fits that differ by rounding end as far apart as they may end from their optimum.
    mapping["fit"] |= {"max_epochs": 100, "nats_left": 0.002}
    mapping["model"]["integrate"] = "none"  # a few draws are near another few, no nearer
    mapping["output"] |= {"draws": 400, "interval": INTERVAL}
    own = {"leave_out": "refit", "calibration": "none"}  # no draws are chosen anew
    mapping["evaluate"] = {"folds": 2, "schemes": ["area"], "seed": 1, **own}
    for name, sections in (
        ("some", {}),
        ("fewer", {"areas": {**mapping["areas"], "path": "fewer.gpkg"}}),
    ):
        mapping["counts"]["path"] = "some.csv" if name == "some" else "known.csv"
        mapping["output"]["dir"] = name
        (directory / f"{name}.yaml").write_text(yaml.safe_dump({**mapping, **sections}))
    assert main(["run", str(directory / "some.yaml"), "--quiet"]) == 0
    run_each(directory / "fewer.yaml", "ingest", "fit", "predict", "evaluate")  # no page is asked
    return directory, absent, table.set_index("area_id")["cases"]


def read(directory, name="areas.csv"):
    return pd.read_csv(directory / name, dtype={"area_id": str}).set_index("area_id")


# Positions are about the middle of all areas, to a whole degree, which is the same without some of
# them. Before, another reference drew other surfaces: `fitted` moved by 1e-4 of itself, its
# deviation by 2e-3, at hyperparameters that were the same to 1e-11.
ROUNDING = {"rel": 1e-6, "abs": 1e-9}


def test_the_fit_knows_nothing_of_them(ran):
    directory, _, _ = ran
    one, other = (
        models.load(directory / name / "work/model").named_hyperparameters()
        for name in ("some", "fewer")
    )
    assert one
    assert one == pytest.approx(other, **ROUNDING)


def test_the_other_rows_and_the_scores_are_those_of_a_run_without_them(ran):
    directory, absent, _ = ran
    table, fewer = read(directory / "some"), read(directory / "fewer")
    assert list(fewer.index) == [area for area in table.index if area not in absent]
    # Blocks have noise of their own; with areas of two stores they are others.
    noisy = ["count_lower", "count_upper", "residual"]
    # Border pixels of the maps have the average factor of the areas that share them, and so have
    # the means of areas: without some areas there are fewer to share with.
    shared = ["fitted", "fitted_rate"]
    pd.testing.assert_frame_equal(
        table.loc[fewer.index].drop(columns=[*noisy, *shared]),
        fewer.drop(columns=[*noisy, *shared]),
        check_dtype=False,
        rtol=1e-6,
        atol=1e-9,
    )
    ratio = table.loc[fewer.index, shared] / fewer[shared]
    assert (np.abs(ratio - 1) < 5e-3).to_numpy().all()
    assert (np.abs(ratio - 1) < 1e-6).to_numpy().mean() > 0.2  # those with no such neighbour
    one, other = (
        json.loads((directory / name / "evaluation.json").read_text()) for name in ("some", "fewer")
    )
    assert one["n_areas"] == SPEC.n_area - N_ABSENT
    # Scores that no single draw of noise decides.
    for name in ("nll", "rates", "log_counts"):
        for place in (("in_sample",), ("held_out", "area", "model")):
            scores = []
            for report in (one, other):
                for key in (*place, name):
                    report = report[key]
                # mae is of the median of noisy counts.
                if isinstance(report, dict):
                    report = {key: value for key, value in report.items() if key != "mae"}
                scores.append(report)
            assert scores[0] == pytest.approx(scores[1], **ROUNDING)
    truths = [each["truth"]["pixels"]["log_rate"] for each in (one, other)]
    assert truths[0] == pytest.approx(truths[1], **ROUNDING)


def test_their_rows_are_marked_and_near_the_truth(ran):
    directory, absent, cases = ran
    table = read(directory / "some")
    assert len(table) == SPEC.n_area
    assert sorted(table.index[~table["in_training"]]) == absent
    rows = table.loc[absent]
    assert rows[["observed", "observed_rate", "residual"]].isna().all().all()
    wanted = ["fitted", "fitted_sd", "people", "fitted_rate", "count_lower", "count_upper"]
    assert rows[wanted].notna().all().all()
    truth = cases.loc[absent]
    inside = (rows["count_lower"] <= truth) & (truth <= rows["count_upper"])
    # Of six with a chance of 0.9 each, fewer than four are inside once in sixty times.
    assert inside.sum() >= 4
    assert (rows["count_upper"] < 20 * truth).all()  # intervals that say something
    frame = pyogrio.read_dataframe(directory / "some/areas.gpkg", layer="areas").set_index(
        "area_id"
    )
    assert frame["in_training"].dtype == bool
    assert sorted(frame.index[~frame["in_training"]]) == absent
    assert (directory / "some/preview.png").stat().st_size > 10_000


def test_their_pixels_add_up_to_their_rows(ran):
    """Two ways to the same number: the raster, cut by the polygons, and the joint draws."""
    directory, absent, _ = ran
    table = read(directory / "some")
    with rasterio.open(directory / "some/cases_mean.tif") as tif:
        cases, transform, crs = tif.read(1).astype(float), tif.transform, tif.crs
    areas = gpd.read_file(directory / "areas.gpkg").set_index("area_id").to_crs(crs)
    row, col = np.nonzero(np.isfinite(cases))
    left, top = transform.c + transform.a * col, transform.f + transform.e * row
    boxes = shapely.box(left, top + transform.e, left + transform.a, top)
    for area in absent:
        share = shapely.area(shapely.intersection(boxes, areas.geometry[area])) / shapely.area(
            boxes
        )
        assert (share > 0.999).any()
        mapped = float(share @ cases[row, col])
        # The map has exact means, the table those of 400 draws.
        error = table.loc[area, "fitted_sd"] / np.sqrt(400)
        assert abs(mapped - table.loc[area, "fitted"]) < 4 * error


def test_the_total_is_of_the_joint_posterior(ran):
    """The sum over areas, and one area that has the pixels of all."""
    directory, absent, _ = ran
    out = directory / "some"
    summary = json.loads((out / "work/stages.json").read_text())["predict"]["summary"]
    total = summary["areas_without_counts"]
    store = BagStore.open(out / "work/bags.zarr")
    store = store.select(~store.in_training)
    assert sorted(store.ids) == absent
    rows = store.read_rows(0, store.n_pix)
    whole = Bags(rows.x, [0, store.n_pix], [0.0], weight=rows.weight, coords=rows.coords)
    model = models.load(out / "work/model")
    seed = load_config(directory / "some.yaml").fit.seed
    functions = model.sample_functions(400, np.random.default_rng([seed, 1]))
    draws = model.predict_bags(whole, draws=functions).draws[:, 0]
    assert total["n"] == N_ABSENT
    assert total["people"] == pytest.approx(rows.weight.sum())
    low, high = np.quantile(draws, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])
    assert total["lower"] == pytest.approx(low, rel=1e-9)
    assert total["upper"] == pytest.approx(high, rel=1e-9)
    table = read(out).loc[absent]
    assert total["expected"] == pytest.approx(table["fitted"].sum(), rel=1e-5)
    assert summary["observed_total"] == read(directory / "some")["observed"].sum()
    trained = read(out).query("in_training")
    assert summary["fitted_total"] == pytest.approx(trained["fitted"].sum(), rel=1e-5)
    # Counts scatter around the same draws as Poisson counts do whose means differ between areas by
    # a lognormal factor of mean one; blocks have noise of their own.
    joint = draw_areas(model, store, N_MANY, seed)
    counts, expected = joint.counts.sum(axis=1), joint.expected.sum(axis=1)
    between = np.expm1(model.named_hyperparameters()["area_sd"] ** 2)
    scatter = np.sqrt((joint.expected + between * joint.expected**2).sum(axis=1).mean())
    assert abs((counts - expected).mean()) < 4 * scatter / np.sqrt(N_MANY)
    assert (counts - expected).std() == pytest.approx(scatter, rel=0.1)
    ends = np.quantile(counts, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])
    error = 2 * (ends[1] - ends[0]) / np.sqrt(400)  # of quantiles of the run's 400 draws
    assert [total["count_lower"], total["count_upper"]] == pytest.approx(ends, abs=2 * error)
    # Areas near each other err together: not the root of the sum of squares.
    apart = np.sqrt((table["fitted_sd"] ** 2).sum())
    assert total["upper"] - total["lower"] > 2 * apart


def test_an_incomplete_period_is_not_published_by_itself(ran):
    directory, _, _ = ran
    config = load_config(directory / "some.yaml")

    def counted(config):
        return [each for each in check_gates(config, None) if each.gate == "areas with counts"]

    (check,) = counted(config)
    assert check.value == pytest.approx(1 - N_ABSENT / SPEC.n_area)
    assert check.passed
    strict = config.model_copy(
        update={"gates": config.gates.model_copy(update={"min_counted": 0.9})}
    )
    (check,) = counted(strict)
    assert not check.passed
    assert "0.85 of the areas have a count, at least 0.9 required" in check.reason
    assert counted(load_config(directory / "fewer.yaml")) == []

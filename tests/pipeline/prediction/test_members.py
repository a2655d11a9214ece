"""A run whose fit has draws of hyperparameters: every file holds the mixture, by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
from scipy.special import ndtr

import models
from models.aggregate.posterior import member_states
from pipeline.config.context import StageContext
from pipeline.evaluation.stage import evaluate_stage
from pipeline.ingest.stage import ingest
from pipeline.prediction.stage import predict_stage
from pipeline.store.bag_store import BagStore
from pipeline.training.stage import fit_stage
from tests.bands import read
from tests.models.aggregate.test_members import with_members
from tests.pipeline.conftest import Files
from tests.progress import Notes

WEIGHT = np.array([0.45, 0.35, 0.2])


@pytest.fixture(scope="module")
def run(tmp_path_factory: Any) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Run every stage; the fit gets members before it is saved."""
    files = Files(tmp_path_factory.mktemp("country"))
    out = files.directory / "out"
    files.options = {
        "model": {
            "kernel": "linear + matern32(space)",
            "inducing": 10,
            "likelihood": "poisson",
            "link": "exp",
            "area_effect": True,
        },
        "fit": {"max_epochs": 20, "seed": 4},
        "output": {"dir": str(out), "draws": 300, "exceedance": [40.0]},
        "evaluate": {"schemes": ["area"], "folds": 2},
    }
    stage = sys.modules["pipeline.training.stage"]
    plain_fit = stage.fit

    def fit(model: Any, *args: Any, **options: Any) -> Any:
        training = plain_fit(model, *args, **options)
        pooled = with_members(model, WEIGHT, size=0.4)
        model.state_, model.params_ = pooled.state_, pooled.params_
        return training

    context = StageContext(files.config(), Notes())
    ingest(context)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "fit", fit)
        summaries = {"fit": fit_stage(context)}
    summaries["predict"] = predict_stage(context)
    summaries["evaluate"] = evaluate_stage(context)
    return out, summaries


def _members(out: Path) -> list[Any]:
    """Return each member as a model of its own."""
    whole = models.load(out / "work/model")
    result = []
    for state in member_states(whole.state_):
        each = models.VBAgg(**whole.get_params())
        each.state_, each.params_ = state, each.prediction_params(state)
        result.append(each)
    return result


def test_every_map_is_the_mixture(run: Any) -> None:
    out, _ = run
    store = BagStore.open(out / "work/bags.zarr")
    rows = store.read_rows(0, store.n_pix)
    parts = [each.predict_pixels(rows.x, rows.coords) for each in _members(out)]
    pixel = np.concatenate([store.read_pixel(block) for block in range(store.n_block)])
    row, col = store.grid.row_col(pixel)

    def band(name: str) -> np.ndarray:
        return read(out / f"{name}.tif")[row, col]

    mean = sum(w * 1000 * part.mean for w, part in zip(WEIGHT, parts, strict=True))
    square = sum(
        w * 1e6 * (part.sd**2 + part.mean**2) for w, part in zip(WEIGHT, parts, strict=True)
    )
    np.testing.assert_allclose(band("rate_mean"), mean, rtol=1e-6)
    np.testing.assert_allclose(band("rate_sd"), np.sqrt(square - mean**2), rtol=1e-5)

    def below(rate: np.ndarray) -> np.ndarray:
        f = np.log(rate / 1000 / parts[0].scale)
        each = [ndtr((f - part.m) / np.sqrt(part.s)) for part in parts]
        return np.asarray(WEIGHT @ np.array(each))

    for name, q in (("rate_lower", 0.05), ("rate_median", 0.5), ("rate_upper", 0.95)):
        np.testing.assert_allclose(below(band(name)), q, atol=1e-6)
    above = 1 - below(np.full(mean.shape, 40.0))
    np.testing.assert_allclose(band("exceedance_40"), above, atol=1e-6)


def test_the_table_pools_the_members_draws(run: Any) -> None:
    out, _ = run
    store = BagStore.open(out / "work/bags.zarr")
    rows = store.read_rows(0, store.n_pix)
    table = gpd.read_file(out / "areas.gpkg", layer="areas")
    table = table.set_index(table.columns[0]).loc[list(store.ids)]
    n = 4000
    draws = []
    for each, weight in zip(_members(out), WEIGHT, strict=True):
        rate = each.sample_functions(int(weight * n), np.random.default_rng(8))
        rate = rate.rate(rows.x, rows.coords) * rows.weight
        draws.append(np.add.reduceat(rate, store.offsets[:-1], axis=1))
    pooled = np.concatenate(draws)
    error = pooled.std(axis=0) / np.sqrt(300)

    def agrees(mean: Any, sd: Any) -> bool:
        near = bool((np.abs(mean - pooled.mean(axis=0)) < 4.5 * error).all())
        return near and abs(float(np.mean(sd / pooled.std(axis=0))) - 1) < 0.1

    assert agrees(table["fitted"], table["fitted_sd"])
    # The check tells members apart: none of them alone would pass it.
    assert not any(agrees(one.mean(axis=0), one.std(axis=0)) for one in draws)


def test_the_fits_summary_gives_each_parameter_with_its_interval(run: Any) -> None:
    out, summaries = run
    fit = summaries["fit"]
    assert fit["hyperparameter_intervals"].keys() == fit["hyperparameters"].keys()
    for name, value in fit["hyperparameter_intervals"].items():
        assert value["lower"] <= value["mean"] <= value["upper"], name
    each = [member.named_hyperparameters() for member in _members(out)]
    spread = fit["hyperparameter_intervals"]["area_sd"]
    assert spread["mean"] == pytest.approx(WEIGHT @ [one["area_sd"] for one in each])
    model = models.load(out / "work/model")
    mode = model.named_hyperparameters()
    assert fit["hyperparameters"]["area_sd"] == mode["area_sd"]
    assert {each["sd"] for each in fit["coefficients"].values()} == {
        one.sd for one in model.coefficients_
    }


def test_the_evaluation_runs_on_the_mixture(run: Any) -> None:
    _, summaries = run
    assert np.isfinite(summaries["evaluate"]["area_nll"])

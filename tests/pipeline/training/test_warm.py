"""Fits of thinned areas, and fits that begin at another's kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

import models
from models import Bags, VBAgg
from models.training.executor import BagsSource
from models.training.loop import Training, start_training
from pipeline.cli.main import main
from pipeline.demo.country import CountrySpec, simulate_country
from pipeline.store.bag_store import BagStore
from pipeline.training.fit import fit
from pipeline.training.warm import start_key, warm_training
from tests.pipeline.stores import write_store
from tests.plain import plain

SPEC = CountrySpec(
    (36, 40), 1 / 12, 700, 16, 6, 4e5, covariates=("elevation", "temperature"), n_inducing=8
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> BagStore:
    """Thirty areas of 8 to 20 pixels, their counts around a smooth rate."""
    rng = np.random.default_rng(4)
    sizes = rng.integers(8, 21, 30)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    x = rng.standard_normal((offsets[-1], 2)).astype(np.float32)
    x += np.repeat(rng.standard_normal((30, 2)), sizes, axis=0).astype(np.float32)
    weight = rng.uniform(10, 100, offsets[-1])
    mean = np.add.reduceat(0.05 * weight * np.exp(0.6 * np.sin(x[:, 0])), offsets[:-1])
    y = rng.poisson(mean * rng.gamma(10, 0.1, 30)).astype(float)
    coords = np.repeat(np.arange(offsets[-1])[:, None], 2, 1).astype(float)
    path = tmp_path_factory.mktemp("store") / "bags.zarr"
    return write_store(path, sizes, x, y, weight, coords, seed=1)


def model(**params: Any) -> VBAgg:
    settings = {"kernel": "ard(x)", "link": "exp", "n_inducing": 12, "area_effect": True}
    return plain(VBAgg, **{**settings, "priors": "weak", "batch_bags": 8, **params})


@pytest.fixture(scope="module")
def fitted(store: BagStore) -> VBAgg:
    found = model()
    fit(found, store)
    return found


def _warm(store: BagStore, fitted: VBAgg, **settings: Any) -> tuple[Training, Training]:
    block = store.read_block(0)
    bags = Bags(block.x, block.offsets, block.y, block.weight, block.coords)
    start = model(**settings).loop_params("start")
    cold = start_training(model(n_inducing=7, **settings), BagsSource(bags, 0), **start)
    return cold, warm_training(cold, fitted)


def test_a_warm_fit_to_the_optimum_takes_everything(store: BagStore, fitted: VBAgg) -> None:
    _, warm = _warm(store, fitted)
    own, start = fitted.fitted_state().params, warm.state.params
    for name in ("theta", "w", "mean", "v_mean", "root"):
        assert (start[name] == own[name]).all()
        assert start[name] is not own[name]
    assert not warm.history


def test_a_warm_fit_by_mini_batches_takes_all_but_the_surface(store: BagStore) -> None:
    batches = {"posterior_steps": "adam"}
    fitted = model(max_epochs=5, **batches)
    fit(fitted, store)
    cold, warm = _warm(store, fitted, **batches)
    own, start = fitted.fitted_state().params, warm.state.params
    for name in ("theta", "w", "mean"):
        assert (start[name] == own[name]).all()
    assert (start["v_mean"] == 0).all()
    assert start["v_mean"].shape == own["v_mean"].shape
    assert start["root"].shape == own["root"].shape
    assert warm.state.rate == pytest.approx(cold.state.rate / 3)


def _elsewhere(fitted: VBAgg) -> VBAgg:
    """Return the model with another surface: one that other counts would have left."""
    changed = VBAgg(**fitted.get_params())
    state = fitted.fitted_state()
    surface = {"v_mean": state.params["v_mean"] + 0.5, "root": state.params["root"] * 1.3}
    changed.state_ = type(state)({**state.params, **surface}, state.fixed, state.memory)
    return changed


def test_a_fold_ends_at_its_own_surface_wherever_it_begins(store: BagStore) -> None:
    fitted = model(max_epochs=200, integrate="none", priors="weak")
    fit(fitted, store)
    train = np.arange(store.n_bag) % 5 != 0
    one, other = (model(max_epochs=200, integrate="none", priors="weak") for _ in range(2))
    fit(one, store, bags=train, start=fitted)
    fit(other, store, bags=train, start=_elsewhere(fitted))
    assert one.converged_
    assert other.converged_
    assert one.bound_ == pytest.approx(other.bound_, abs=2 * one.nats_left)
    rows = store.read_rows(0, store.n_pix)
    at, beside = (m.predict_pixels(rows.x, rows.coords) for m in (one, other))
    assert (np.abs(at.m - beside.m) < 0.3 * np.sqrt(beside.s)).all()


def test_a_fold_by_mini_batches_does_not_see_its_counts_but_through_the_start(
    store: BagStore,
) -> None:
    batches = {"posterior_steps": "adam", "max_epochs": 3}
    fitted = model(**batches)
    fit(fitted, store)
    train = np.arange(store.n_bag) % 5 != 0
    one, other, changed = model(**batches), model(**batches), _elsewhere(fitted)
    fit(one, store, bags=train, start=fitted)
    fit(other, store, bags=train, start=changed)
    for name, value in one.fitted_state().params.items():
        assert (value == other.fitted_state().params[name]).all(), name
    assert start_key(fitted) == start_key(changed)


def test_a_warm_fit_resumes_and_is_no_cold_one(
    store: BagStore, fitted: VBAgg, tmp_path: Path
) -> None:
    straight, stopped = model(max_epochs=4), model(max_epochs=2)
    fit(straight, store, start=fitted)
    fit(stopped, store, start=fitted, checkpoint=tmp_path)
    again = model(max_epochs=4)
    fit(again, store, start=fitted, checkpoint=tmp_path)
    assert again.bound_ == straight.bound_
    cold = model(max_epochs=4)
    fit(cold, store, checkpoint=tmp_path)  # its checkpoint is another's
    assert cold.history_[0]["bound"] != again.history_[0]["bound"]


@pytest.mark.ci
def test_a_thinned_run_is_recorded_and_its_settings_repeat_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = simulate_country(tmp_path, SPEC, seed=3)
    text = path.read_text().replace("link: exp", "link: exp, integrate: none")
    text = text.replace("fit:         {", "fit:         {area_pixels: 20, ")
    text = text.replace("max_epochs: 200", "max_epochs: 4").replace("draws: 500", "draws: 100")
    quick = "evaluate:    {start: warm, epochs: 3, leave_out: importance, folds: 2, "
    quick += "calibration: none, "
    path.write_text(text.replace("evaluate:    {folds: 5, ", quick))
    assert main(["run", str(path), "--quiet"]) == 0
    out = tmp_path / "out"
    run = json.loads((out / "run.json").read_text())
    assert run["settings"]["fit"]["area_pixels"] == 20
    assert run["settings"]["evaluate"]["area_pixels"] == 20
    thinned = BagStore.open(out / "work/thinned-fit.zarr")
    whole = BagStore.open(out / "work/bags.zarr")
    assert thinned.n_pix == run["stages"]["fit"]["summary"]["n_pixels"] <= 20 * whole.n_bag
    report = json.loads((out / "evaluation.json").read_text())
    assert report["thinned"]["of"] == whole.n_pix
    by_area = report["held_out"]["area"]
    assert by_area["leave_out"]["refits"] >= 0
    assert by_area["model"]["n_areas"] == whole.n_bag
    by_region = report["held_out"]["block"]
    made = [row["how"] for row in by_region["by_fold"]]
    assert by_region["leave_out"]["refits"] == made.count("refit")
    with rasterio.open(out / "rate_mean.tif") as raster:
        assert raster.tags()["area_pixels"] == "20"
    first = (out / "rate_mean.tif").read_bytes()
    # The settings of the record, given as a configuration, change nothing.
    capsys.readouterr()
    before = models.load(out / "work/model").fitted_state().params
    path.write_text(_with(path, run["settings"]))
    for stage in ("fit", "predict"):
        assert main([stage, str(path), "--quiet", "--force"]) == 0
    after = models.load(out / "work/model").fitted_state().params
    assert all((before[name] == after[name]).all() for name in before)
    assert (out / "rate_mean.tif").read_bytes() == first


def _with(path: Path, settings: dict[str, Any]) -> str:
    import yaml

    values = yaml.safe_load(path.read_text())
    for name, keys in settings.items():
        values[name] = {**values.get(name, {}), **keys}
    return yaml.safe_dump(values, sort_keys=False)  # covariates stay in their order

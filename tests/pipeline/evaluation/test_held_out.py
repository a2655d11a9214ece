"""Regions left out by weights, against a closed form; buffers; what the stage reports."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from geo.core.errors import InputError
from models import VBAgg
from models.likelihoods.registry import find_likelihood
from pipeline.config.context import StageContext
from pipeline.core.progress import Silent
from pipeline.evaluation import fold_fits as module
from pipeline.evaluation.folds import area_centres, block_folds, buffered
from pipeline.evaluation.held_out import learnt_range, pit_uniformity
from pipeline.evaluation.leave_out import (
    leave_region_out,
    leave_regions_out,
)
from pipeline.evaluation.posterior import Posterior, PosteriorDraws, draw_posterior
from pipeline.evaluation.psis import trusted
from pipeline.evaluation.stage import evaluate_stage
from pipeline.products.areas import AreaDraws, draw_areas
from pipeline.store.bag_store import BagStore
from pipeline.training.fit import fit
from tests.pipeline.stores import write_store

WHOLE_RUNS = True  # of what tests shorten elsewhere

N_AREA, N_PIXEL = 48, 6
SIDE = 8  # areas along a row


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> BagStore:
    """A country of 8 x 6 areas of six pixels, with few cases each."""
    rng = np.random.default_rng(11)
    offsets = np.arange(0, N_AREA * N_PIXEL + 1, N_PIXEL)
    centre = 10.0 * np.stack(np.divmod(np.arange(N_AREA), SIDE), axis=1)
    coords = np.repeat(centre, N_PIXEL, axis=0) + rng.uniform(-5, 5, (offsets[-1], 2))
    x = rng.standard_normal((offsets[-1], 1)).astype(np.float32)
    x += np.repeat(rng.standard_normal((N_AREA, 1)), N_PIXEL, axis=0).astype(np.float32)
    weight = rng.uniform(10, 100, offsets[-1])
    mean = np.add.reduceat(0.01 * weight * np.exp(0.4 * x[:, 0]), offsets[:-1])
    y = rng.poisson(mean * np.exp(0.2 * rng.standard_normal(N_AREA))).astype(float)
    path = tmp_path_factory.mktemp("store") / "bags.zarr"
    return write_store(path, np.diff(offsets), x, y, weight, coords, seed=1)


def model() -> VBAgg:
    return VBAgg(
        kernel="linear(x) + matern32(space)", link="exp", area_effect=True, priors="weak",
        max_epochs=80,
    )  # fmt: skip


def test_the_posterior_is_what_draw_areas_draws(store: BagStore) -> None:
    fitted = model().set_params(max_epochs=5)
    fit(fitted, store)
    one = draw_posterior(fitted, store, 50, 7).areas
    two = draw_areas(fitted, store, 50, 7, observed=True)
    for name in ("bag", "y", "people", "mean", "expected", "counts", "log_density"):
        assert getattr(one, name) == pytest.approx(getattr(two, name), rel=1e-12), name
    np.testing.assert_allclose(one.centre.T, area_centres(store))
    assert logsumexp(one.log_lik, axis=0) - np.log(50) == pytest.approx(two.log_density)


def normal_world(n_draws: int, noise: float = 1.0) -> tuple[Posterior, np.ndarray]:
    """y_a ~ N(mu, noise^2) with a flat prior on mu: everything is known in closed form."""
    rng = np.random.default_rng(8)
    y = rng.normal(2.0, noise, 40)
    mu = rng.normal(y.mean(), noise / np.sqrt(40), n_draws)
    expected = np.repeat(mu[:, None], 40, axis=1)
    one = np.ones(40)
    areas = PosteriorDraws(
        bag=np.arange(40), y=y, people=one, mean=expected.mean(axis=0), expected=expected,
        counts=expected + noise * rng.standard_normal(expected.shape), log_density=0 * one,
        log_lik=norm.logpdf(y, expected, noise), bag_data=one, centre=np.zeros((2, 40)),
    )  # fmt: skip
    params = {"log_noise": np.full((n_draws, 1), 2 * np.log(noise))}
    functions = SimpleNamespace(clusters=np.zeros((n_draws, 2), np.int64))
    return Posterior(areas, find_likelihood("normal", area_effect=False), params, functions), y


def test_a_region_and_its_buffer_are_those_of_the_closed_form() -> None:
    posterior, y = normal_world(20_000)
    posterior = Posterior(
        posterior.areas, posterior.likelihood, {"log_noise": 0.0}, posterior.functions
    )
    region, unseen = np.arange(40) < 3, np.arange(40) < 6
    found, k = leave_region_out(posterior, region, unseen, 0)
    mean, sd = y[6:].mean(), np.sqrt(1 / 34)
    assert k < 0.5
    assert found.bag.tolist() == [0, 1, 2]
    assert found.mean == pytest.approx(mean, abs=0.02)
    assert found.expected.std(axis=0) == pytest.approx(sd, rel=0.05)
    exact = norm.logpdf(y[:3], mean, np.sqrt(1 + sd**2))
    assert found.log_density == pytest.approx(exact, abs=0.02)
    # Draws of a region are joint: one function for all of its areas.
    assert np.ptp(found.expected, axis=1).max() < 1e-12
    assert found.counts.std(axis=0) == pytest.approx(np.sqrt(1 + sd**2), rel=0.05)


def test_regions_whose_weights_fail_are_refitted_and_the_others_are_not() -> None:
    posterior, y = normal_world(400)
    posterior.areas.log_lik[:, 30:] *= 40  # areas that say far more
    fold, asked = np.arange(40) // 10, []

    def refit(of: np.ndarray) -> tuple[AreaDraws, np.ndarray]:
        asked.append(of)
        bag = np.flatnonzero(of >= 0)
        one, draws = np.ones(bag.size), np.ones((400, bag.size))
        return AreaDraws(bag, y[bag], one, 5 * one, draws, draws, -one), of[bag]

    unseen = fold == np.arange(4)[:, None]
    found, fold_of, made = leave_regions_out(posterior, fold, unseen, refit, 0)
    how = [each["how"] for each in made]
    assert how[3] == "refit"
    assert "weights" in how
    assert all((each["k"] <= trusted(400)) == (each["how"] == "weights") for each in made)
    refitted = np.array(how)[fold] == "refit"
    assert ((asked[0] >= 0) == refitted).all()
    assert found.bag.tolist() == list(range(40))
    assert (fold_of == fold).all()
    assert ((found.mean == 5) == refitted).all()


def test_a_buffer_is_the_areas_near_the_region() -> None:
    rng = np.random.default_rng(0)
    centres = rng.uniform(0, 100, (60, 2))
    fold = block_folds(centres, 4)
    unseen = buffered(centres, fold, 15.0, shrink=False)
    for number in range(4):
        far = np.linalg.norm(centres[:, None] - centres[fold == number], axis=2).min(axis=1)
        assert (unseen[number] == (far < 15)).all()  # of the region itself: 0 km
    assert (buffered(centres, fold, 0.0, shrink=True) == (fold == np.arange(4)[:, None])).all()
    # Too wide: shrunk to half of the other areas, or refused.
    wide = buffered(centres, fold, 500.0, shrink=True)
    for number in range(4):
        outside = fold != number
        assert 0.45 <= (~wide[number])[outside].mean() <= 0.55
    with pytest.raises(InputError, match=r"evaluate\.buffer.*0 areas to train on"):
        buffered(centres, fold, 500.0, shrink=False)


def test_the_learnt_range_is_that_of_space() -> None:
    named = {"matern32_space.lengthscale": 40.0, "rbf.lengthscale": 9.0, "mean": 1.0}
    assert learnt_range(SimpleNamespace(named_hyperparameters=lambda: named)) == 40.0
    assert learnt_range(SimpleNamespace(named_hyperparameters=lambda: {"mean": 1.0})) == 0.0


def test_transforms_of_a_calibrated_prediction_are_uniform() -> None:
    rng = np.random.default_rng(4)
    p, off = [], []
    for seed in range(200):
        mean = rng.gamma(1.0, 3.0, 30)
        counts = rng.poisson(mean, (100, 30)).astype(float)
        one = np.ones(30)
        y = rng.poisson(mean).astype(float)
        p.append(pit_uniformity(AreaDraws(np.arange(30), y, one, mean, counts, counts, one), seed))
        wide = rng.poisson(mean * rng.gamma(0.3, 1 / 0.3, 30)).astype(float)
        found = AreaDraws(np.arange(30), wide, one, mean, counts, counts, one)
        off.append(pit_uniformity(found, seed))
    assert np.mean(np.array(p) < 0.1) == pytest.approx(0.1, abs=3 * np.sqrt(0.09 / 200))
    assert np.mean(np.array(off) < 0.1) > 0.5


@pytest.mark.ci
def test_the_stage_says_how_each_fold_was_made(world: Any, tmp_path: Any, monkeypatch: Any) -> None:
    import shutil

    shutil.copytree(world.directory / "out", tmp_path / "out")
    config = world.with_config(
        output={"dir": str(tmp_path / "out")},
        evaluate={"folds": 4, "buffer": 7.0, "calibration": "none"},
        model={"area_effect": False},
    )
    begun = []
    original = module.fit_model

    def spy(model: Any, store: Any, client: Any = None, **options: Any) -> Any:
        begun.append((options["start"] is not None, options["bags"]))
        return original(model, store, client, **options)

    monkeypatch.setattr(module, "fit_model", spy)
    monkeypatch.setattr(module, "shares", lambda *_: 1)  # this process sees them
    said: list[str] = []
    progress = Silent()
    progress.log = said.append  # type: ignore[method-assign]
    evaluate_stage(StageContext(config, progress))
    report = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    area, block = report["held_out"]["area"], report["held_out"]["block"]
    about = area["leave_out"]
    if not about["by_folds"]:
        assert about["above"] == about["refitted"] + about["unreliable"]
    assert len(about["unreliable_areas"]) == about["unreliable"]
    assert set(about["unreliable_areas"]) <= set(world.store.ids)
    if about["by_folds"]:
        assert (about["refits"], about["refitted"]) == (4, 12)
    else:
        assert about["above"] <= 1  # a tenth of twelve
    assert 0 <= area["pit_p"] <= 1
    assert area["buffer_km"] == 0.0
    assert block["buffer_km"] == 7.0
    n_refit = sum(row["how"] == "refit" for row in block["by_fold"])
    assert len(begun) == about["refits"] + n_refit
    assert all(warm for warm, _ in begun)
    for row in block["by_fold"]:
        assert row["n_buffer"] > 0
        assert (row["how"] == "weights") == (
            row["k"] is not None and row["k"] <= block["leave_out"]["limit"]
        )
    assert block["model"]["n_areas"] == 12
    for _, bags in begun[about["refits"] :]:
        assert (~bags).sum() > 12 / 4  # the region and its buffer
    checks = report["predictive_checks"]
    assert set(checks) >= {"zeros", "dispersion", "largest", "sentences"}
    assert "no priors" in report["prior_sensitivity"]["absent"]  # as its model was made
    assert "predictive checks" in said[0]


@pytest.mark.parametrize(
    ("evaluate", "warm"), [({}, True), ({"start": "cold"}, False), ({"leave_out": "refit"}, False)]
)
def test_folds_of_a_file_begin_at_the_map_unless_told_otherwise(
    world: Any, tmp_path: Any, monkeypatch: Any, evaluate: dict[str, str], warm: bool
) -> None:
    path = tmp_path / "folds.csv"
    rows = [f"{name},{number % 3}\n" for number, name in enumerate(world.store.ids)]
    path.write_text("area,fold\n" + "".join(rows))
    folds = {"path": str(path), "id": "area", "fold": "fold"}
    given = {"folds": folds, "schemes": ["area"], **evaluate}
    begun = []

    class Seen(Exception):
        pass

    def spy(config: Any, store: Any, client: Any, start: Any) -> Any:
        begun.append(start is not None)
        raise Seen

    monkeypatch.setattr(module, "fit_areas", spy)
    with pytest.raises(Seen):
        evaluate_stage(StageContext(world.with_config(evaluate=given)))
    assert begun == [warm]

"""Data support and extrapolation: against a dense Gaussian process, and by plain counting."""

from __future__ import annotations

import json
import shutil
from copy import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rasterio

from models import Bags, VBAgg
from models.aggregate.posterior import member_states
from models.gp.kernel_terms import TermKernel
from models.gp.scaling import kernel_of, scaled_inputs
from models.likelihoods.prediction import Prediction
from pipeline.config.context import StageContext
from pipeline.prediction.stage import predict_stage
from pipeline.prediction.support_shares import (
    RULED,
    SupportShares,
    covariate_range,
    read_support,
)
from pipeline.products.support import data_support, rough_variance
from tests.plain import plain

ENDS = ("lower", "upper")


@pytest.fixture(scope="module")
def fitted() -> tuple[VBAgg, Bags]:
    rng = np.random.default_rng(0)
    offsets = np.arange(0, 301, 10)
    x, coords = rng.standard_normal((300, 2)), rng.uniform(0, 50, (300, 2))
    y = rng.normal(20.0, 2.0, 30)
    bags = Bags(x, offsets, y, np.ones(300), coords)
    model = plain(VBAgg,
        likelihood="normal", kernel="linear(x) + rbf(x) + matern32(space)", n_inducing=30,
        max_epochs=20, priors="weak",
    )  # fmt: skip
    return model.fit(bags, n_thread=1), bags


def members_of(model: VBAgg) -> list[VBAgg]:
    """Return a model of each draw of the hyperparameters, without draws."""
    found = []
    for state in member_states(model.fitted_state()):
        own = copy(model)
        own.state_, own.params_ = state, model.prediction_params(state)
        found.append(own)
    return found


def _with_parts(kernel: Any, fixed: dict[str, np.ndarray], *thetas: np.ndarray) -> Any:
    """Return what has a posterior of these hyperparameters."""
    parts = [SimpleNamespace(kernel=kernel, params={**fixed, "theta": each}) for each in thetas]
    return SimpleNamespace(posterior_=SimpleNamespace(parts=parts))


def test_support_is_the_variance_that_is_gone(fitted: tuple[VBAgg, Bags]) -> None:
    model, bags = fitted
    p = model.predict_pixels(bags.x, bags.coords)
    found = data_support(model, p, bags.x, bags.coords)
    # By each draw of the hyperparameters, from the variances that it names.
    rough = [
        sum(
            value
            for name, value in each.named_hyperparameters().items()
            if name.endswith(".variance") and name.startswith(("rbf", "matern32"))
        )
        for each in members_of(model)
    ]
    assert len(rough) > 2
    assert min(rough) > 0
    fixed = model.fitted_state().fixed
    kernel = kernel_of(model.kernel_text(fixed), fixed)
    assert isinstance(kernel, TermKernel)  # each term has inducing variables of its own
    floor = (0.1 * 3.0) ** 2  # of the identity link
    expected = sum(
        weight * np.clip(1 - part.s / max(prior, floor), 0, 1)
        for weight, part, prior in zip(p.weights, p.parts, rough, strict=True)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    # Far from all areas nothing of the prior is gone.
    far = np.full_like(bags.coords, 1e5)
    wild = bags.x + 3000
    none = data_support(model, model.predict_pixels(wild, far), wild, far)
    assert none.max() < 1e-6


def test_support_of_a_dense_process_given_exact_points() -> None:
    """Known points: support 1 there, and k(x, X) K^-1 k(X, x) / k(x, x) elsewhere."""
    rng = np.random.default_rng(1)
    fixed = {"x_mean": np.zeros(1), "x_sd": np.ones(1), "base_rate": np.ones(1)}
    kernel = kernel_of("linear(x) + rbf(x)", fixed)
    theta = np.log(np.array([1e-12, 2.0, 0.7]))  # no slope
    x, known = rng.uniform(-3, 3, (40, 1)), np.array([[-1.0], [0.5], [2.0]])
    z = scaled_inputs(fixed, x, None, np.float64)
    k = 2.0 * np.exp(-0.5 * ((known - known.T) / 0.7) ** 2)
    cross = 2.0 * np.exp(-0.5 * ((x - known.T) / 0.7) ** 2)
    gone = np.einsum("ij,ij->i", cross, np.linalg.solve(k, cross.T).T)
    assert rough_variance(kernel, theta, z) == pytest.approx(2.0)
    p = Prediction("exp", np.zeros(40), 2.0 - gone, 1.0)
    one = _with_parts(kernel, fixed, theta)
    np.testing.assert_allclose(data_support(one, p, x, None), gone / 2.0, atol=1e-10)
    # Over draws of the hyperparameters: the average.
    half = np.log(np.array([1e-12, 4.0, 0.7]))
    mixed = _with_parts(kernel, fixed, theta, half)
    parts = SimpleNamespace(link="exp", parts=(p, p), weights=np.array([0.25, 0.75]))
    exact = 0.25 * gone / 2 + 0.75 * np.clip(1 - (2 - gone) / 4, 0, 1)
    np.testing.assert_allclose(data_support(mixed, parts, x, None), exact, atol=1e-10)


@pytest.mark.parametrize(
    ("text", "theta", "exact"),
    [
        ("linear(x)", [3.0], 3.0 * 2.0**2),  # nothing but slopes: all of it
        ("constant + rbf(x)", [5.0, 2.0, 1.0], 2.0),
        ("rbf(x) + linear(x) + matern32(x)", [2.0, 1.0, 9.0, 0.5, 1.0], 2.5),
        ("linear(x) * rbf(x)", [3.0, 2.0, 1.0], 3.0 * 2.0**2 * 2.0),
        ("ridge(x)", [3.0], 3.0 * 2.0**2),
        ("ridge(x) + smooth(x) + constant", [3.0, 2.0, 1.0, 7.0], 2.0),
    ],
)
def test_the_rough_part_is_all_but_slopes_and_intercept(
    text: str, theta: list[float], exact: float
) -> None:
    fixed = {"x_mean": np.zeros(1), "x_sd": np.ones(1), "base_rate": np.ones(1)}
    z = np.full((3, 1), 2.0)
    found = rough_variance(kernel_of(text, fixed), np.log(np.array(theta)), z)
    assert found == pytest.approx(exact)


def test_a_rough_part_that_has_vanished_rules_nothing() -> None:
    fixed = {"x_mean": np.zeros(1), "x_sd": np.ones(1), "base_rate": np.ones(1)}
    theta = np.log(np.array([1.0, 1e-5, 1.0]))
    model = _with_parts(kernel_of("linear(x) + rbf(x)", fixed), fixed, theta)
    p = Prediction("exp", np.zeros(4), np.full(4, 5e-4), 1.0)
    assert data_support(model, p, np.zeros((4, 1)), None) == pytest.approx(1 - 5e-4 / 0.01)


def test_the_range_is_of_pixels_with_people() -> None:
    x = np.array([[0.0], [9.0], [2.0], [-5.0], [1.0], [np.nan]])
    weight = np.array([1.0, 0.0, 3.0, 0.0, 2.0, 1.0])
    blocks = [
        SimpleNamespace(x=x[:3], weight=weight[:3]), SimpleNamespace(x=x[3:], weight=weight[3:])
    ]  # fmt: skip
    store = SimpleNamespace(n_block=2, read_block=lambda k: blocks[k])
    assert covariate_range(store).tolist() == [[0.0], [2.0]]
    for block in blocks:
        block.weight = block.weight * 0
    assert covariate_range(store).tolist() == [[-5.0], [9.0]]


@pytest.mark.parametrize("mask", ["areas", "all"])
def test_shares_are_those_of_plain_counting(
    world: Any, predicted: Any, tmp_path: Any, mask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, summary = predicted
    if mask == "all":
        monkeypatch.setattr("pipeline.prediction.support_shares.WIDE", 1.2)
        out = tmp_path / "out"
        shutil.copytree(world.directory / "out", out)
        config = world.with_config(output={"dir": str(out), "mask": mask})
        summary = predict_stage(StageContext(config))
    found = read_support(out, world.store)
    assert found is not None
    with rasterio.open(out / "data_support.tif") as raster:
        support = raster.read(1)
        assert raster.units == ("1",)
    known = np.isfinite(support)
    assert found["n_pixels"] == known.sum() == summary["n_pix"]
    rows = world.store.read_rows(0, world.store.n_pix)
    low, high = rows.x[rows.weight > 0].min(axis=0), rows.x[rows.weight > 0].max(axis=0)
    x = world.x[:, known]
    outside = ((x < low[:, None]) | (x > high[:, None])).any(axis=0)
    people = np.nan_to_num(world.population[known])
    if mask == "areas":
        people = people * world.coverage[known]
        assert not outside.any()  # every pixel is one of the fit
    else:
        assert outside.any()
        north = world.x[1][known]
        share = ((north < low[1]) | (north > high[1])).mean()
        assert found["covariates"]["north"] == pytest.approx(share)
    ruled = support[known] < RULED
    assert found["pixels_extrapolating"] == pytest.approx(outside.mean())
    assert found["people_extrapolating"] == pytest.approx(people[outside].sum() / people.sum())
    assert found["pixels_prior"] == pytest.approx(ruled.mean())
    assert found["people_prior"] == pytest.approx(people[ruled].sum() / people.sum())
    lower, upper = (rasterio.open(out / f"rate_{end}.tif").read(1)[known] for end in ENDS)
    wide = upper > found["times"] * lower
    assert mask == "areas" or 0 < wide.mean() < 1
    assert found["pixels_wide"] == pytest.approx(wide.mean())
    assert found["people_wide"] == pytest.approx(people[wide].sum() / people.sum())


def test_shares_of_another_model_are_not_read(world: Any, predicted: Any, tmp_path: Any) -> None:
    assert read_support(world.directory / "out", world.store) is None
    shutil.copytree(predicted[0], tmp_path / "out")
    path = tmp_path / "out/work/support.json"
    found = read_support(tmp_path / "out", world.store)
    assert found == json.loads(path.read_text())["support"]
    path.write_text(path.read_text().replace('"store": "', '"store": "x'))
    assert read_support(tmp_path / "out", world.store) is None


@pytest.mark.parametrize(("low", "wide"), [([1.0, 2.0], 0.5), ([-1.0, 2.0], None)])
def test_intervals_of_either_sign_are_not_told_by_the_ratio_of_their_ends(low, wide):
    shares = SupportShares(np.array([[0.0], [1.0]]), ("x",), "all")
    tile: Any = SimpleNamespace(
        values={
            "data_support": np.ones(2),
            "rate_lower": np.array(low),
            "rate_upper": np.array([9.0, 3.0]),
        },
        people=np.ones(2),
        x=np.full((1, 2), 0.5),
    )
    shares.add(tile, shares.begin(tile))
    assert shares.result.get("pixels_wide") == wide
    assert shares.result["covariates"] == {}

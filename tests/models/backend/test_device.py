"""Every pass over pixels on a strict stand-in for a GPU, against the same pass on the host.

``strict_cupy`` refuses what CuPy would refuse; the numbers must be NumPy's to rounding.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import models
from models import Bags, VBAgg
from models.aggregate.bag_pixel import BagPixel, Dasymetric
from models.backend import arrays as xp
from models.core.block import BagBlock
from models.core.errors import NumericalError
from models.core.protocol import Stats
from models.gp import bag_variance, evidence_pass, pathwise, pixel_pass
from models.training.executor import BagsSource
from models.training.loop import start_training
from tests.models.backend import strict_cupy as strict
from tests.models.differences import KERNELS
from tests.plain import plain

ON = ["strict", *([pytest.param("real", marks=pytest.mark.gpu)] if xp.count_devices() else [])]


@pytest.fixture(params=ON)
def cupy(request, monkeypatch):
    """The stand-in, or CuPy where there is a GPU; and tiles so small that there are several."""
    for module, name, value in (
        (pixel_pass, "DEVICE_BYTES", 8 * 350),
        (pixel_pass, "DEVICE_SQUARED", 50),
        (evidence_pass, "DEVICE_ROWS", 20),
        (bag_variance, "PAIRS", 8),
        (pathwise, "ROWS", 40),
        (xp, "CHUNK", 4),
    ):
        monkeypatch.setattr(module, name, value)
    return pytest.importorskip("cupy") if request.param == "real" else strict.install(monkeypatch)


def _on(cupy, block: BagBlock) -> BagBlock:
    """Bring a block to the device: offsets and numbers of bags stay."""
    names = ("x", "weight", "coords", "y", "trials", "margin")
    there = {
        name: cupy.asarray(getattr(block, name))
        for name in names
        if getattr(block, name) is not None
    }
    return BagBlock(
        there["x"], there["weight"], there.get("coords"), block.offsets, there["y"], block.bag,
        there.get("trials"), margin=there.get("margin"),
    )  # fmt: skip


def _disturbed(model, bags, seed=1):
    rng = np.random.default_rng(seed)
    state = start_training(
        model, BagsSource(bags, 0), seed=0, learning_rate=0.1, tolerance=1e-3
    ).state
    return replace(
        state,
        params={k: v + 0.1 * rng.normal(size=v.shape) for k, v in state.params.items()},
    )


def _assert_same(here: Stats, there: Stats, tolerance: float) -> None:
    assert there.n_bag == here.n_bag
    assert type(there.bound) is float
    assert there.bound == pytest.approx(here.bound, rel=tolerance)
    assert set(there.sums) == set(here.sums)
    for name, value in here.sums.items():
        found = xp.to_host(there.sums[name])
        assert found.dtype == np.float64, name
        assert found.shape == value.shape, name
        scale = np.abs(value).max(initial=1e-300)
        assert np.abs(found - value).max(initial=0.0) <= tolerance * scale, name


def _check(cupy, model, bags, tolerance=1e-10, state=None):
    state = state or _disturbed(model, bags)
    params = model.block_params(state)
    here, kept = model.block_stats(params, bags, None)
    there, kept_there = model.block_stats(params, _on(cupy, bags), None)
    _assert_same(here, there, tolerance)
    for name in kept or ():
        np.testing.assert_allclose(kept_there[name], kept[name], atol=1e-6)
    return params


@pytest.mark.parametrize(
    ("text", "dtype", "estimator"),
    [
        *((text, "float64", "log_normal") for text in KERNELS),
        ("additive", "float32", "log_normal"),
        ("matern52(x) * rbf(space) + ard", "float32", "bound"),
    ],
)
def test_value_and_gradients_of_every_kernel(text, dtype, estimator, cupy, make_bags):
    model = plain(VBAgg, link="exp", estimator=estimator, kernel=text, n_inducing=7, dtype=dtype)
    _check(cupy, model, make_bags(largest=40), 1e-10 if dtype == "float64" else 1e-3)


@pytest.mark.parametrize(
    ("likelihood", "link", "estimator"),
    [
        ("poisson", "exp", "log_normal"),
        ("poisson", "exp", "bound"),
        ("negative_binomial", "square", "second_order"),
        ("beta_binomial", "probit", "second_order"),
    ],
)
def test_suppressed_counts(likelihood, link, estimator, cupy, make_bags):
    binomial = likelihood == "beta_binomial"
    bags = make_bags(awkward=not binomial)
    y = np.where(bags.y < 5, 2.0, bags.y)
    margin = np.where(bags.y < 5, 2.0, 0.0)
    trials = y + margin + 3.0 if binomial else None
    bags = Bags(bags.x, bags.offsets, y, bags.weight, bags.coords, trials=trials, margin=margin)
    assert 0 < (margin > 0).sum() < bags.n_bag
    effect = estimator == "log_normal"
    model = plain(
        VBAgg, link=link, estimator=estimator, likelihood=likelihood, n_inducing=7,
        area_effect=effect,
    )  # fmt: skip
    _check(cupy, model, bags, 1e-8)


@pytest.mark.parametrize(
    ("likelihood", "link", "estimator", "area_effect"),
    [
        ("poisson", "exp", "bound", False),
        ("poisson", "exp", "log_normal", True),
        ("poisson", "square", "bound", False),
        ("poisson", "square", "second_order", False),
        ("poisson", "square", "monte_carlo", True),
        ("negative_binomial", "exp", "bound", False),
        ("negative_binomial", "exp", "log_normal", True),
        ("negative_binomial", "exp", "monte_carlo", False),
        ("normal", "identity", "second_order", True),
        ("normal", "identity", "monte_carlo", False),
        ("exponential", "exp", "log_normal", True),
        ("exponential", "square", "monte_carlo", False),
        ("binomial", "probit", "second_order", False),
        ("binomial", "probit", "monte_carlo", False),
        ("beta_binomial", "probit", "second_order", False),
        ("beta_binomial", "probit", "monte_carlo", False),
    ],
)
def test_every_law_link_and_estimator(likelihood, link, estimator, area_effect, cupy, make_bags):
    how = {"kernel": "additive", "n_inducing": 6, "pair_pixels": 9, "n_features": 32}
    law = {"likelihood": likelihood, "link": link, "area_effect": area_effect}
    _check(cupy, plain(VBAgg, estimator=estimator, **law, **how), make_bags())


@pytest.mark.parametrize(
    ("likelihood", "link"),
    [("poisson", "exp"), ("poisson", "square"), ("normal", "identity"), ("binomial", "probit")],
)
@pytest.mark.parametrize(("dtype", "members"), [("float64", True), ("float32", False)])
def test_predictions_stay_on_the_device_and_are_the_hosts(
    likelihood, link, dtype, members, cupy, make_bags
):
    bags = make_bags()
    how = {"n_inducing": 6, "kernel": "additive", "dtype": dtype}
    model = plain(VBAgg, likelihood=likelihood, link=link, **how)
    state = _disturbed(model, bags)
    if members:
        moved = {
            name: np.stack([array, array + 0.05, array - 0.1])
            for name, array in state.params.items()
            if name != "w"
        }
        state = replace(state, members={**moved, "weight": np.array([0.7, 0.3, 0.0])})
    params = model.prediction_params(state)
    here = model.predict_block(params, bags.x, bags.coords)
    there = model.predict_block(params, cupy.asarray(bags.x), cupy.asarray(bags.coords))
    for say in (
        lambda p: p.mean,
        lambda p: p.sd,
        lambda p: p.quantile(0.05),
        lambda p: p.quantile(0.9),
        lambda p: p.exceed(0.3 * p.scale),
        lambda p: p.exceed(-1.0),
    ):
        found, wanted = say(there), say(here)
        assert isinstance(found, cupy.ndarray)
        np.testing.assert_allclose(found.get(), wanted, rtol=1e-9 if dtype == "float64" else 1e-3)
    drawn = there.sample(3, np.random.default_rng(0))
    assert drawn.shape == (3, bags.n_pix)


POINT = {
    "constant": lambda **k: plain(models.Constant, **k),
    "nystrom": lambda **k: plain(models.Nystrom, n_inducing=6, kernel="additive", **k),
    "nystrom that moves": lambda **k: plain(models.Nystrom, n_inducing=6, learn_inducing=True, **k),
    "nystrom, smooth": lambda **k: plain(
        models.Nystrom, n_inducing=6, manifold=0.5, bag_manifold=0.3, **k
    ),
    "network": lambda **k: plain(models.Network, learning_rate=0.01, n_hidden=5, **k),
    "network, smooth": lambda **k: plain(
        models.Network, learning_rate=0.01, n_hidden=5, manifold=0.5, bag_manifold=0.3, **k
    ),
    "bag_pixel": lambda **k: plain(BagPixel, n_inducing=6, **k),
    "dasymetric": lambda **k: plain(Dasymetric, n_inducing=6, **k),
}


@pytest.mark.parametrize(
    ("name", "likelihood"),
    [
        *((name, "poisson") for name in POINT),
        *(("constant", law) for law in ("negative_binomial", "normal", "binomial")),
        *(("bag_pixel", law) for law in ("normal", "binomial")),
    ],
)
def test_baselines(name, likelihood, cupy, make_bags):
    bags = make_bags()
    model = POINT[name](likelihood=likelihood)
    params = _check(cupy, model, bags)
    here = model.predict_block(params, bags.x, bags.coords)
    there = model.predict_block(params, cupy.asarray(bags.x), cupy.asarray(bags.coords))
    np.testing.assert_allclose(there.mean.get(), here.mean, rtol=1e-9)


def _labelled(seed=0, n_bag=30):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 10, n_bag))])
    x = rng.normal(size=(offsets[-1], 3))
    y = np.maximum.reduceat((x[:, 0] > 1.0).astype(float), offsets[:-1])
    return models.Bags(x, offsets, y, coords=100 * rng.normal(size=(offsets[-1], 2)))


CLOSED = {
    "psi": lambda **k: models.PsiVGPMIL(**k),
    "psi, gamma": lambda **k: models.PsiVGPMIL(density="gamma", **k),
    "psi, student": lambda **k: models.PsiVGPMIL(density="student_t", intercept_sd=0.0, **k),
    "psi by batches": lambda **k: models.PsiVGPMILSVI(**k),
    "vwsgp": lambda **k: models.VWSGP(**k),
    "vwsgp, mean": lambda **k: models.VWSGP(aggregate="mean", **k),
    "vwsgp by batches": lambda **k: models.VWSGPSVI(**k),
}


@pytest.mark.parametrize(
    ("name", "dtype", "learn"),
    [
        *((name, "float64", True) for name in CLOSED),
        *((name, "float32", False) for name in ("psi, gamma", "vwsgp")),
    ],
)
def test_closed_forms_sweep_by_sweep(name, dtype, learn, cupy):
    bags = _labelled()
    model = CLOSED[name](n_inducing=8, learn_kernel=learn and name != "psi by batches", dtype=dtype)
    device = _on(cupy, bags)
    state = start_training(
        model, BagsSource(bags, 0), seed=0, learning_rate=0.1, tolerance=1e-3
    ).state
    tolerance = 1e-9 if dtype == "float64" else 2e-3
    kept = kept_there = None
    for sweep in range(4):
        if learn and sweep == 2 and "settled" in state.memory:  # the kernel may move now
            state = replace(state, memory={**state.memory, "settled": np.ones(1)})
        params = model.block_params(state)
        here, kept = model.block_stats(params, bags, kept)
        block = device if model.needs_block(params, kept_there) else None
        there, kept_there = model.block_stats(params, block, kept_there)
        _assert_same(here, there, tolerance)
        for each in kept or ():
            assert type(kept_there[each]) is np.ndarray  # checkpoints hold it
        kept_there = kept
        state, _ = model.update(state, here, bags.n_bag)
    params = model.block_params(state)
    wanted = model.predict_block(params, bags.x, bags.coords)
    found = model.predict_block(params, cupy.asarray(bags.x), cupy.asarray(bags.coords))
    np.testing.assert_allclose(found.m, wanted.m, atol=1e-9 if dtype == "float64" else 1e-3)
    np.testing.assert_allclose(found.s, wanted.s, atol=1e-9 if dtype == "float64" else 1e-3)


# -- the stand-in itself, and what xp does on a device ---------------------------------------------


def test_the_stand_in_refuses_what_cupy_refuses(monkeypatch):
    cupy = strict.install(monkeypatch)
    there, here = cupy.asarray([1.0, 2.0]), np.array([1.0, 2.0])
    for wrong in (
        lambda: there + here,
        lambda: here + there,
        lambda: np.asarray(there),
        lambda: np.concatenate([there, here]),
        lambda: there[here > 1],
        lambda: there.__setitem__(slice(None), here),
        lambda: here.__setitem__(slice(None), there),
        lambda: cupy.repeat(there, cupy.asarray([1, 2])),
        lambda: np.add.reduceat(there, [0, 1]),
        lambda: np.add.at(there, [0], 1.0),
        lambda: np.vecdot(there, there),
        lambda: cupy.matmul(there, here),
        lambda: xp.fused(lambda _, a: a.sum())(there),
        lambda: xp.fused(lambda _, a: np.exp(a))(there),
        lambda: xp.fused(lambda _, a: a[0])(there),
    ):
        with pytest.raises((TypeError, AttributeError, ValueError)):
            wrong()
    assert np.sqrt(there).get().tolist() == np.sqrt(here).tolist()  # NumPy's own dispatch


@pytest.mark.parametrize("chunk", [3, 256])
def test_sums_and_maxima_of_segments(chunk, cupy, monkeypatch):
    monkeypatch.setattr(xp, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 60, 17))])
    values = rng.normal(size=(3, offsets[-1])) - 5.0
    there = cupy.asarray(values)
    by_bag = np.stack([values[:, a:b].sum(axis=1) for a, b in pairwise(offsets)], axis=1)
    np.testing.assert_allclose(xp.segment_sum(there, offsets).get(), by_bag, rtol=1e-13)
    largest = [values[0, a:b].max() for a, b in pairwise(offsets)]
    np.testing.assert_array_equal(xp.segment_max(there[0], offsets).get(), largest)
    again = xp.spread(cupy.asarray(largest), offsets).get()
    np.testing.assert_array_equal(again, np.repeat(largest, np.diff(offsets)))
    # A small bag beside a large one loses nothing, as differences of a running sum would.
    wide = np.array([1e16, 1.0, 1.0, 1.0])
    assert xp.segment_sum(cupy.asarray(wide), np.array([0, 1, 4])).get().tolist() == [1e16, 3.0]


def test_layouts_of_segments_go_with_their_offsets(cupy):
    offsets = np.array([0, 2, 5])
    xp.segment_sum(cupy.asarray(np.ones(5)), offsets)
    assert id(offsets) in xp._layouts
    key = id(offsets)
    del offsets
    assert key not in xp._layouts


def test_fused_results_keep_their_precision(cupy):
    low = cupy.asarray(np.linspace(0.1, 2, 7, dtype=np.float32))
    twice = xp.fused(lambda space, a, b: (space.exp(a * b), a > b))
    value, _ = twice(low, 1.5)
    assert value.dtype == np.float32
    np.testing.assert_allclose(value.get(), np.exp(low.get() * 1.5), rtol=1e-6)


def test_a_matrix_that_is_not_positive_definite_is_noticed(cupy):
    with pytest.raises(np.linalg.LinAlgError):
        xp.cholesky(cupy.asarray(np.array([[1.0, 2.0], [2.0, 1.0]])))
    np.testing.assert_allclose(xp.cholesky(cupy.asarray(4 * np.eye(2))).get(), 2 * np.eye(2))


def test_a_fit_that_diverged_is_noticed(cupy, make_bags):
    bags = make_bags()
    model = plain(VBAgg, link="exp", estimator="bound", n_inducing=5)
    state = _disturbed(model, bags)
    state = replace(state, params={**state.params, "mean": np.array([1e4])})
    with np.errstate(all="ignore"), pytest.raises(NumericalError, match="diverged"):
        model.block_stats(model.block_params(state), _on(cupy, bags), None)


def test_nothing_but_xp_knows_cupy():
    root = Path(__file__).parents[3]
    for folder in ("models", "pipeline", "geo", "flows", "benchmarks", "examples"):
        for path in (root / folder).glob("**/*.py"):
            if path.relative_to(root) != Path("models/backend/arrays.py"):
                assert "cupy" not in path.read_text().lower(), path
    assert "cupy" not in sys.modules or hasattr(sys.modules["cupy"], "__version__")

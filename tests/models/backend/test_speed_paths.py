"""The pass's ways to be fast (tiles, kept buffers, half products) against plain formulas."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import speed
from models import VBAgg
from models.backend import arrays as xp
from models.backend.arena import Arena
from models.gp import pixel_pass
from models.gp.kernel_text import parse_kernel
from models.training.executor import BagsSource, ThreadExecutor
from models.training.loop import start_training
from tests.models.differences import KERNELS
from tests.plain import plain


def _setting(text="additive", n_pix=61, n_ind=17, seed=0):
    rng = np.random.default_rng(seed)
    kernel = parse_kernel(text, 3, has_coords=True)
    q = rng.normal(size=(n_ind, n_ind))
    params = {
        "theta": kernel.start(1.0) + 0.1 * rng.normal(size=kernel.n_theta),
        "w": rng.normal(size=(n_ind, 5)),
        "mean": np.array([0.3]),
        "alpha": rng.normal(size=n_ind),
        "q": 0.01 * (q + q.T),  # neither positive nor negative definite
    }
    return kernel, params, rng.normal(size=(n_pix, 5))


def _poisoned():
    """An arena whose memory holds NaN: what is read before it is written shows."""
    arena = Arena()
    arena.allocate((1 << 23,), np.float64)[:] = np.nan
    arena.start()
    return arena


@pytest.mark.parametrize("strip", [1, 5, 17, 128])
def test_variance_by_half_of_the_product_is_the_quadratic_form(strip, monkeypatch):
    monkeypatch.setattr(pixel_pass, "STRIP", strip)
    kernel, params, z = _setting()
    found = pixel_pass.forward(kernel, params, z, learn=False)
    k = kernel.matrix(params["theta"], z, params["w"])
    by_pixel = [float(row @ params["q"] @ row) for row in k]
    prior = kernel.diag(params["theta"], z)
    assert (prior - by_pixel).min() > 0  # else the cut at zero would hide a difference
    np.testing.assert_allclose(found.s, prior - by_pixel, rtol=1e-12)
    np.testing.assert_allclose(found.m, 0.3 + k @ params["alpha"], rtol=1e-12)


@pytest.mark.parametrize(
    "weight",
    [np.full(23, 2.0), np.full(23, -0.5), np.zeros(23), np.linspace(-1, 2, 23).round(1)],
    ids=["positive", "negative", "none", "mixed with zeros"],
)
@pytest.mark.parametrize("squared", [1, 8, 23, 4096])
def test_weighted_square_by_signs_is_the_sum_over_pixels(weight, squared, monkeypatch):
    monkeypatch.setattr(pixel_pass, "SQUARED", squared)
    k = np.random.default_rng(0).normal(size=(23, 6))
    found = pixel_pass.squares(k, weight, _poisoned().allocate)
    wanted = sum(w * np.outer(row, row) for w, row in zip(weight, k, strict=True))
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    np.testing.assert_array_equal(found, found.T)


def _pass(text, *, rows, keep, arena, dtype, monkeypatch):
    monkeypatch.setattr(pixel_pass, "ROWS", rows)
    monkeypatch.setattr(pixel_pass, "KEEP", keep)
    kernel, params, z = _setting(text)
    low = {name: params[name].astype(dtype) for name in ("w", "alpha", "q")}
    found = pixel_pass.forward(kernel, {**params, **low}, z.astype(dtype), arena=arena)
    rng = np.random.default_rng(3)
    sums = found.backward(rng.normal(size=z.shape[0]), rng.normal(size=z.shape[0]))
    return {**sums, "m": found.m, "s": found.s}


@pytest.mark.parametrize(
    ("text", "dtype"), [*((text, np.float64) for text in KERNELS), ("additive", np.float32)]
)
def test_tiles_change_rounding_alone_and_buffers_nothing(text, dtype, monkeypatch):
    def run(rows, keep, arena):
        return _pass(text, rows=rows, keep=keep, arena=arena, dtype=dtype, monkeypatch=monkeypatch)

    whole = run(512, 1000, None)
    tolerance = 1e-12 if dtype is np.float64 else 2e-5
    for rows in (1, 7, 61):
        fresh = run(rows, 1000, None)
        for name, value in whole.items():
            assert np.abs(fresh[name] - value).max() <= tolerance * np.abs(value).max(), name
        for keep in (0, 1000):  # by-products made again, or kept
            held = run(rows, keep, _poisoned())
            for name, value in fresh.items():
                np.testing.assert_array_equal(held[name], value, err_msg=name)


def test_predictions_on_kept_buffers_equal_those_on_new_ones(monkeypatch):
    monkeypatch.setattr(pixel_pass, "ROWS", 16)
    kernel, params, z = _setting("matern52(x) * rbf(space) + ard")
    fresh = pixel_pass.forward(kernel, params, z, learn=False)
    held = pixel_pass.forward(kernel, params, z, learn=False, arena=_poisoned())
    np.testing.assert_array_equal(held.m, fresh.m)
    np.testing.assert_array_equal(held.s, fresh.s)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_blocks_on_any_number_of_threads_give_the_same_bits(dtype, make_bags):
    bags = make_bags(n_bag=40, largest=60)
    model = plain(
        VBAgg, link="exp", estimator="bound", kernel="additive", n_inducing=25, dtype=dtype
    )
    source = BagsSource(bags, 0, block_pixels=150)
    n_block = len(source.block_bags)
    assert n_block > 4
    state = start_training(model, source, seed=0, learning_rate=0.1, tolerance=1.0).state
    params = model.block_params(state)
    found = []
    for n_thread in (1, 2, 5):
        with ThreadExecutor(model, source, n_thread) as executor:
            found.append(list(executor.map(params, range(n_block))))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert a.bound == b.bound
            for name, value in a.sums.items():
                np.testing.assert_array_equal(b.sums[name], value, err_msg=name)


def test_arena_hands_out_apart_what_is_not_released():
    arena = Arena()
    first = arena.allocate((3, 5), np.float32)
    mark = arena.mark()
    second = arena.allocate((7,), np.float64)
    large = arena.allocate((1 << 24,), np.float64)  # more than a buffer holds
    assert not any(
        np.shares_memory(a, b) for a, b in [(first, second), (first, large), (second, large)]
    )
    arena.release(mark)
    again = arena.allocate((7,), np.float64)
    assert np.shares_memory(again, second)
    assert not np.shares_memory(again, first)
    arena.start()
    assert np.shares_memory(arena.allocate((3, 5), np.float32), first)


def test_half_products_of_the_driver_equal_whole_ones():
    rng = np.random.default_rng(0)
    lower = np.tril(rng.normal(size=(9, 9))) + 5 * np.eye(9)
    b = rng.normal(size=(9, 9))
    eye = np.eye(9)
    np.testing.assert_allclose(xp.inverse_lower(lower) @ lower, eye, atol=1e-13)
    np.testing.assert_allclose(xp.times_lower(lower, b), lower @ b, atol=1e-13)
    np.testing.assert_allclose(
        xp.times_lower(lower, b, transposed=True), np.einsum("ki,kj->ij", lower, b), atol=1e-13
    )
    for a in (b, b.T, b[:5]):
        found = xp.gram(a)
        np.testing.assert_allclose(found, np.einsum("ki,kj->ij", a, a), atol=1e-13)
        np.testing.assert_array_equal(found, found.T)
    with pytest.raises(np.linalg.LinAlgError, match="singular"):
        xp.inverse_lower(np.tril(np.ones((3, 3)), -1))


def test_pass_of_the_benchmark_agrees_with_automatic_differentiation():
    pytest.importorskip("torch", reason="PyTorch is no dependency")
    ours = speed.Ours(speed.make_bags(700), 15, "float64", 2)
    try:
        assert speed.agreement(ours, speed.Torch(ours, "float64", 1)) < 1e-8
    finally:
        ours.executor.__exit__()

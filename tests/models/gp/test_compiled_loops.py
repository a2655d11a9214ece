"""Compiled exponentials, kernels and adjoints beside the same in NumPy."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from models.gp import compiled_loops as loops
from models.gp.shapes import SHAPES


@numba.njit
def _exp(x, out):
    for i in range(x.size):
        out[i] = loops.exp(x[i])


@numba.njit
def _expm1(x, out):
    for i in range(x.size):
        out[i] = loops.expm1(x[i])


@pytest.mark.parametrize(("loop", "numpy"), [(_exp, np.exp), (_expm1, np.expm1)])
def test_all_digits_where_numpy_has_them(loop, numpy):
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [
            rng.uniform(-700, 700, 20_000),
            *(rng.normal(size=(4, 5000)).T * 10.0 ** -np.arange(0, 16, 4)).T,
        ]
    )
    found = np.empty_like(x)
    loop(x, found)
    np.testing.assert_allclose(found, numpy(x), rtol=3 * np.finfo(float).eps)


@pytest.mark.parametrize(("loop", "numpy"), [(_exp, np.exp), (_expm1, np.expm1)])
def test_beyond_the_numbers(loop, numpy):
    x = np.array([0.0, -0.0, -800.0, -np.inf, 800.0, np.inf, np.nan])
    found = np.empty_like(x)
    loop(x, found)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, numpy(x))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52"])
def test_kernels_of_distances_and_of_a_line(name, dtype):
    rng, shape = np.random.default_rng(0), SHAPES[name]
    z, w = rng.normal(size=23).astype(dtype), 3 * rng.normal(size=11).astype(dtype)
    w[3] = z[5]  # one pixel is a node
    d2 = (shape.scale * (z[:, None] - w) ** 2).astype(dtype)
    if shape.holds_variance:
        d2 += np.asarray(0.3, dtype)
    wanted = shape.on_device(np, d2.astype("float64"), 0.3)  # not compiled
    close = {"rtol": 1e-13 if dtype == "float64" else 3e-6, "atol": 1e-30}
    for found in (shape.on_host(np, d2, 0.3, np.empty), shape.on_line(z, w, 0.3, np.empty)):
        for own, right in zip(found, wanted, strict=True):
            assert own.dtype == dtype
            np.testing.assert_allclose(own, right, **close)


def test_adjoints_of_a_line():
    rng = np.random.default_rng(1)
    adjoint, value, u = rng.normal(size=(3, 17, 5))
    z, w, by_w = rng.normal(size=17), rng.normal(size=5), np.zeros(5)
    by_variance, by_scale = loops.line_adjoints(adjoint, value, u, z, w, by_w)
    apart = z[:, None] - w
    assert by_variance == pytest.approx((adjoint * value).sum(), rel=1e-12)
    assert by_scale == pytest.approx((adjoint * u * apart**2).sum(), rel=1e-12)
    np.testing.assert_allclose(by_w, (adjoint * u * apart).sum(axis=0), rtol=1e-12)


def test_weighed_adjoints_and_averages():
    rng = np.random.default_rng(2)
    adjoint, value, u = rng.normal(size=(3, 17, 6))
    g, rows = np.empty_like(u), np.empty(17)
    assert loops.weighed(adjoint, value, u, g, rows) == pytest.approx((adjoint * value).sum())
    np.testing.assert_array_equal(g, adjoint * u)
    np.testing.assert_allclose(rows, g.sum(axis=1), rtol=1e-12)
    share, out = rng.random((2, 3)), np.empty((17, 2))
    loops.averaged(value, share, out)
    np.testing.assert_allclose(out, (value.reshape(17, 2, 3) * share).sum(axis=2), rtol=1e-12)

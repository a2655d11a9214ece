"""Posterior predictive checks: second routes, uniform p-values, and models that are found out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from pipeline.evaluation.posterior import PosteriorDraws
from pipeline.evaluation.predictive_checks import (
    compare,
    moran,
    neighbours,
    predictive_checks,
)

SIDE = 12
PLACES = np.stack([a.ravel() for a in np.mgrid[:SIDE, :SIDE]]).astype(float)


def draws(y: np.ndarray, expected: np.ndarray, counts: np.ndarray, **changes: Any) -> Any:
    n = y.size
    values: dict[str, Any] = {
        "bag": np.arange(n),
        "y": y,
        "people": np.full(n, 100.0),
        "mean": expected.mean(axis=0),
        "expected": expected,
        "counts": counts,
        "log_density": np.zeros(n),
        "log_lik": np.zeros_like(expected),
        "bag_data": np.ones(n),
        "centre": PLACES[:, :n],
    }
    return PosteriorDraws(**{**values, **changes})


def by_loops(values: np.ndarray, near: np.ndarray) -> float:
    """Moran's I as Moran (1950) writes it: two loops over a matrix of weights."""
    n = values.size
    weight = np.zeros((n, n))
    for a in range(n):
        for b in near[a]:
            weight[a, b] = 1 / len(near[a])
    mean = sum(values) / n
    top = below = total = 0.0
    for a in range(n):
        below += (values[a] - mean) ** 2
        for b in range(n):
            total += weight[a, b]
            top += weight[a, b] * (values[a] - mean) * (values[b] - mean)
    return n / total * top / below


def test_morans_i_is_that_of_two_loops() -> None:
    rng = np.random.default_rng(0)
    near = neighbours(rng.random((30, 2)), 4)
    values = rng.standard_normal((3, 30)) + 5
    found = moran(values, near)
    assert found == pytest.approx([by_loops(row, near) for row in values], abs=1e-12)
    # Under independence its expectation is -1 / (n - 1).
    many = moran(rng.standard_normal((20_000, 30)), near)
    error = many.std() / np.sqrt(many.size)
    assert many.mean() == pytest.approx(-1 / 29, abs=4 * error)


def test_neighbours_are_the_nearest_and_never_the_area_itself() -> None:
    rng = np.random.default_rng(1)
    centres = rng.random((40, 2))
    centres[5] = centres[6] = centres[7]  # of one centre
    near = neighbours(centres, 3)
    for a in range(40):
        far = np.linalg.norm(centres - centres[a], axis=1)
        far[a] = np.inf
        assert a not in near[a]
        assert np.sort(far[near[a]]) == pytest.approx(np.sort(far)[:3])
    assert neighbours(centres[:4], 6).shape == (4, 3)


def test_replicated_data_have_uniform_p_values() -> None:
    """Data that are one more draw of the model's own: each discrepancy of the data alone."""
    rng = np.random.default_rng(2)
    n_set, n_draws, n = 500, 99, 60
    p: dict[str, list[float]] = {"zeros": [], "largest": [], "moran": [], "dispersion": []}
    mean = rng.uniform(0.5, 6, n)
    for _ in range(n_set):
        # Known function: the noise alone is drawn, and residuals have no posterior around them.
        expected = np.broadcast_to(mean, (n_draws, n))
        made = rng.poisson(mean, (n_draws + 1, n)).astype(float)
        found = predictive_checks(draws(made[0], expected, made[1:], centre=PLACES[:, :n]))
        for name, values in p.items():
            values.append(found[name]["p"])
    for name in ("moran", "dispersion"):
        counts = np.histogram(p[name], bins=10, range=(0, 1))[0]
        assert chisquare(counts).pvalue > 0.001, name
    for name in ("zeros", "largest"):  # discrete: ties count half, and the middle is fuller
        assert np.mean(np.array(p[name]) < 0.05) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / n_set), name
        assert np.mean(np.array(p[name]) < 0.5) == pytest.approx(0.5, abs=0.15), name


def test_p_is_twice_the_smaller_tail() -> None:
    replicated = np.arange(99.0)
    assert compare(94.5, replicated)["p"] == pytest.approx(2 * 4.5 / 100)
    assert compare(3.5, replicated)["p"] == pytest.approx(2 * 4.5 / 100)
    assert compare(1.0, np.ones(50))["p"] == pytest.approx(1.0)
    found = compare(np.full(99, 200.0), replicated)  # one a draw
    assert found["p"] == pytest.approx(0.01)
    assert found["interval"] == pytest.approx([4.9, 93.1])


def test_data_that_the_fit_followed_are_not_called_too_even() -> None:
    """A conjugate posterior of each area's own mean: exact, and as flexible as can be."""
    rng = np.random.default_rng(3)
    n, n_draws, low = 144, 200, []
    for _ in range(60):
        truth = rng.gamma(2.0, 5.0, n)
        y = rng.poisson(truth).astype(float)
        expected = rng.gamma(2.0 + y, 1 / (1 / 5.0 + 1), (n_draws, n))
        found = predictive_checks(draws(y, expected, rng.poisson(expected).astype(float)))
        low.append([found[name]["p"] < 0.05 for name in ("dispersion", "moran", "zeros")])
    assert (np.mean(low, axis=0) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 60)).all()


def test_what_the_model_lacks_is_found_and_said() -> None:
    rng = np.random.default_rng(4)
    n, n_draws = 144, 300
    expected = np.full((n_draws, n), 20.0) * np.exp(0.01 * rng.standard_normal((n_draws, 1)))
    made = rng.poisson(expected).astype(float)
    row, col = PLACES
    wave = 20 * np.exp(0.5 * np.sin(row / 2) * np.cos(col / 2))
    y = rng.poisson(wave).astype(float)
    found = predictive_checks(draws(y, expected, made))
    assert found["moran"]["p"] < 0.02
    assert found["moran"]["observed"] > found["moran"]["interval"][1]
    assert "something that varies in space" in found["moran"]["sentence"]
    assert "intervals are too short" in found["dispersion"]["sentence"]
    said = predictive_checks(draws(y, expected, made), freer="beta_binomial")
    assert "; likelihood: beta_binomial learns" in said["dispersion"]["sentence"]
    y = np.where(rng.random(n) < 0.2, 0.0, rng.poisson(20.0, n))
    found = predictive_checks(draws(y, expected, made))
    assert found["zeros"]["observed"] == pytest.approx((y == 0).mean())
    assert "more areas without a case" in found["zeros"]["sentence"]
    assert found["sentences"][0] == found["zeros"]["sentence"]
    good = predictive_checks(draws(made[0], expected, made))
    assert all(0 < good[name]["p"] <= 1 for name in ("zeros", "dispersion", "largest", "moran"))


def test_values_and_areas_without_positions_or_people() -> None:
    rng = np.random.default_rng(5)
    expected = np.ones((50, 20))
    made = expected + rng.standard_normal((50, 20))
    found = predictive_checks(
        draws(made[0], expected, made, centre=np.empty((0, 20))), counts=False
    )
    assert set(found) == {"dispersion", "largest", "sentences"}
    made[:, 3] = expected[:, 3] = 0.0
    found = predictive_checks(draws(made[0], expected, made))
    assert np.isfinite(found["dispersion"]["observed"])

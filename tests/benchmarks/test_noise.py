"""Worlds of noisy counts are what they say, and their yardstick is exact where that is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import designs, noise
from benchmarks.exact_areas import ExactAreas
from benchmarks.grids import Design, area_factors, simulate

SMALL = Design("linear", 12, cases=200.0, n_side=10)


@pytest.mark.parametrize("law", ["log_normal", "gamma"])
@pytest.mark.parametrize("sd", [0.8])
def test_factors_have_mean_one_and_the_same_variance_under_both_laws(law, sd):
    design = replace(SMALL, n_area=1, area_sd=sd, law=law)
    rng = np.random.default_rng(0)
    drawn = np.concatenate([area_factors(design, rng) for _ in range(60_000)])
    assert drawn.mean() == pytest.approx(1.0, abs=0.02)
    assert drawn.var() == pytest.approx(np.expm1(sd**2), rel=0.12)


def test_a_fit_that_fails_is_a_record(monkeypatch):
    def fails(task, design):
        raise ZeroDivisionError("of a fit")

    monkeypatch.setattr(designs, "measure", fails)
    task = designs.Task("now", "linear-20-gamma-0.2", 3)
    record = noise.measure(task)
    assert record["error"].startswith("ZeroDivisionError: of a fit (test_noise.py:")
    text = noise.table([record])
    assert "| linear-20-gamma-0.2 | now | 1 | 1 |" in text


def test_with_a_pixel_an_area_the_yardstick_is_gaussian_regression():
    """Log counts of single pixels are linear in the field: its formulas by hand."""
    grid = simulate(replace(SMALL, n_area=100), 0)
    sd, length, tau = 0.4, 6.0, 0.3
    exact = ExactAreas(grid, (sd, length, tau))
    gap = np.hypot(*(grid.coords[:, None] - grid.coords).transpose(2, 0, 1)) * np.sqrt(3) / length
    prior = 100.0 + grid.x @ grid.x.T + sd**2 * (1 + gap) * np.exp(-gap)
    # Laplace's method by Newton steps: of a pixel alone its area's sum is linear in its logarithm.
    latent = np.zeros(100)
    people = grid.people * grid.cases.sum() / grid.people.sum()
    for _ in range(50):
        eta = people * np.exp(latent)
        noisy = prior + np.diag(1 / eta + tau**2)
        seen = latent + (grid.cases - eta) / eta + 0.5 * tau**2
        latent = seen - 0.5 * tau**2 - np.linalg.solve(noisy, seen) / eta
    mean = prior @ np.linalg.solve(noisy, seen)
    cov = prior - prior @ np.linalg.solve(noisy, prior)
    assert exact.mean[0] == pytest.approx(mean, abs=2e-3)
    assert exact.sd[0] == pytest.approx(np.sqrt(np.diag(cov)), rel=2e-3)


def test_integrated_hyperparameters_widen_what_known_ones_say():
    grid = simulate(replace(SMALL, area_sd=0.3), 1)
    known, open_ = ExactAreas(grid, (0.4, grid.length, 0.3)), ExactAreas(grid)
    assert open_.weight.sum() == pytest.approx(1.0)
    assert open_.weight.size > 20
    assert set(known.scores()) == {"coverage", "coverage_people", "correlation", "width"}

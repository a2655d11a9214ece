"""The convention of the area effect: a rate is the mean over areas, not their median."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

from models.likelihoods.registry import find_likelihood

EFFECT = find_likelihood("poisson", area_effect=True)


@pytest.mark.parametrize("tau", [0.2, 0.8])
def test_the_aggregate_is_the_mean_of_the_counts_and_not_their_median(tau):
    people = np.linspace(500.0, 5000.0, 20_000)
    own = {"log_area_sd": np.log(tau)}
    y = EFFECT.draw(0.1 * people, own, np.ones(people.size), np.random.default_rng(1))
    error = np.sqrt(np.expm1(tau**2) / people.size)
    assert y.sum() / (0.1 * people).sum() == pytest.approx(1.0, abs=5 * error)
    assert np.median(y / (0.1 * people)) == pytest.approx(np.exp(-0.5 * tau**2), abs=6 * error)
    # The density has the same convention: its best rate is the one that the counts add up to.
    best = minimize_scalar(
        lambda log_rate: (
            -EFFECT.terms(y, np.exp(log_rate) * people, own, np.ones(people.size)).value.sum()
        ),
        bounds=(-4.0, -1.0),
        method="bounded",
    )
    assert np.exp(best.x) == pytest.approx(0.1, rel=5 * error)
    # Centred on the log scale (an effect of median one) the rate is that of the median area.
    median_rate = np.exp(np.log((y + 0.5) / people).mean())
    assert median_rate * np.exp(0.5 * tau**2) == pytest.approx(np.exp(best.x), rel=0.01)


@pytest.mark.parametrize("tau", [0.1, 0.6])
@pytest.mark.parametrize(("y", "eta"), [(0.0, 2.0), (9.0, 3.0), (900.0, 700.0), (400.0, 700.0)])
def test_an_areas_mean_with_its_own_effect_is_robbins(y, eta, tau):
    """``(y + 1) p(y + 1) / p(y)`` of the density against the integral over the factor."""
    own, one = {"log_area_sd": np.log(tau)}, np.ones(1)
    up, at = (EFFECT.terms(np.array([v]), np.array([eta]), own, one).value[0] for v in (y + 1, y))
    found = (y + 1) * np.exp(up - at)
    centre, noise = np.log(eta) - 0.5 * tau**2, 1 / np.sqrt(y + 1)
    near = centre + (np.log(y + 0.5) - centre) * tau**2 / (tau**2 + noise**2)
    width = 1 / np.sqrt(1 / tau**2 + 1 / noise**2)

    def integral(power):
        def each(u):
            log = stats.poisson.logpmf(y, np.exp(u)) + stats.norm.logpdf(u, centre, tau)
            return np.exp(log + power * u)

        return quad(each, near - 14 * width, near + 14 * width, limit=400, epsabs=0)[0]

    assert found == pytest.approx(integral(1) / integral(0), rel=1e-5)
    # It is shrunk from the observed count to what the map says, the less the larger the count.
    assert min(y, eta) < found < max(y + 1, eta)

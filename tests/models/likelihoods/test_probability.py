"""Laws of a probability against numerical integration and draws."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit, ndtr

from models.core.block import check_labels
from models.core.errors import BagsError, ParameterError
from models.likelihoods.probability import Probability, ProbabilityDraws

SIGMA = {"logistic": expit, "probit": ndtr}


@pytest.mark.parametrize("link", SIGMA)
@pytest.mark.parametrize("sd", [0.1, 0.99, 1.01, 5.0, 30.0])
@pytest.mark.parametrize("m", [1.3, -6.0])
def test_mean_and_deviation_by_integration(link, sd, m):
    def moment(power):
        # In pieces as wide as the steeper of the two curves.
        edges = np.unique(np.concatenate([np.linspace(-10, 10, 41), (np.arange(-9, 10) - m) / sd]))
        edges = edges[np.abs(edges) <= 10]
        parts = [
            quad(
                lambda z: SIGMA[link](m + sd * z) ** power * math.exp(-z * z / 2),
                a,
                b,
                epsabs=1e-14,
            )[0]
            for a, b in pairwise(edges)
        ]
        return sum(parts) / math.sqrt(2 * math.pi)

    predicted = Probability(link, np.array([m]), np.array([sd**2]))
    assert predicted.mean[0] == pytest.approx(moment(1), abs=2e-11)
    assert predicted.sd[0] ** 2 + predicted.mean[0] ** 2 == pytest.approx(moment(2), abs=2e-11)


@pytest.mark.parametrize("link", SIGMA)
def test_quantiles_and_exceedance_agree_with_draws(link):
    predicted = Probability(link, np.array([-1.0, 0.2, 0.4]), np.array([0.5, 4.0, 0.0]))
    drawn = predicted.sample(200_000, np.random.default_rng(0))
    for q in (0.05, 0.5, 0.9):
        np.testing.assert_allclose(predicted.quantile(q), np.quantile(drawn, q, axis=0), atol=4e-3)
        edge = float(predicted.quantile(q)[0])
        assert predicted.exceed(edge)[0] == pytest.approx(1 - q)
    np.testing.assert_allclose(predicted.exceed(0.45), (drawn > 0.45).mean(axis=0), atol=4e-3)
    np.testing.assert_array_equal(predicted.exceed(0.0), 1.0)
    np.testing.assert_array_equal(predicted.exceed(1.0), 0.0)
    by_draws = ProbabilityDraws(drawn)
    np.testing.assert_allclose(by_draws.mean, predicted.mean, atol=3e-3)
    np.testing.assert_allclose(by_draws.sd, predicted.sd, atol=3e-3)
    np.testing.assert_allclose(
        by_draws.log_density([1, 0, 1]), predicted.log_density([1, 0, 1]), atol=0.02
    )
    with pytest.raises(ParameterError, match="between 0 and 1"):
        predicted.quantile(1.0)


@pytest.mark.parametrize(
    ("y", "says"),
    [
        ([0, 1, 2], "y of bag 2 is 2"),
        ([0.5, 1], "y of bag 0 is 0.5"),
        ([1, 1], "all labels are 1"),
        ([], "there are no bags"),
    ],
)
def test_labels_that_teach_nothing_are_refused(y, says):
    with pytest.raises(BagsError, match=says):
        check_labels(np.array(y, dtype=float))
    check_labels(np.array([0.0, 1.0]))

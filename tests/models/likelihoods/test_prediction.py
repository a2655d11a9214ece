"""Closed-form distributions against scipy's; joint draws against the model's own moments."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from models import BagBlock, Bags, VBAgg
from models.core.errors import ParameterError
from models.gp.bag_variance import bag_variance
from models.likelihoods.links import find_link
from models.likelihoods.prediction import BagPrediction, Prediction
from models.likelihoods.registry import LIKELIHOODS
from tests.plain import plain

M = np.array([0.0, 0.3, 1.0, -1.2, 3.0])
S = np.array([0.5, 0.04, 1e-6, 0.3, 2.0])


def _exact(link):
    if link == "exp":
        return stats.lognorm(np.sqrt(S), scale=0.2 * np.exp(M))
    return stats.ncx2(1, M**2 / S, scale=0.2 * S)


@pytest.mark.parametrize("link", ["square", "exp"])
@pytest.mark.parametrize("q", [0.05, 0.5, 0.95])
def test_closed_forms_equal_scipys_laws(link, q):
    p, exact = Prediction(link, M, S, 0.2), _exact(link)
    np.testing.assert_allclose(p.mean, exact.mean(), rtol=1e-10)
    np.testing.assert_allclose(p.sd, exact.std(), rtol=1e-9)
    np.testing.assert_allclose(exact.cdf(p.quantile(q)), q, rtol=1e-7)
    np.testing.assert_allclose(p.exceed(0.3), exact.sf(0.3), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(p.exceed(np.full(5, 0.1)), exact.sf(0.1), rtol=1e-9, atol=1e-14)


def test_a_certain_pixel_has_a_point_law():
    p = Prediction("square", np.array([2.0, -2.0]), np.zeros(2), 1.0)
    assert p.quantile(0.9).tolist() == [4.0, 4.0]
    assert p.exceed(3.9).tolist() == [1.0, 1.0]
    assert p.exceed(4.1).tolist() == [0.0, 0.0]


def test_a_quantile_outside_0_1_is_refused():
    with pytest.raises(ParameterError, match="between 0 and 1"):
        Prediction("exp", M, S, 1.0).quantile(1.0)


@pytest.fixture(scope="module")
def fitted(make_bags):
    bags = make_bags(n_bag=20, awkward=False)
    # One state: mixtures over hyperparameters have their own tests.
    settings = {"kernel": "additive", "n_inducing": 12, "link": "exp", "integrate": "none"}
    return plain(VBAgg, max_epochs=60, **settings).fit(bags), bags


def test_draws_have_the_moments_of_the_pixels(fitted):
    model, bags = fitted
    draws = model.sample_functions(4000, np.random.default_rng(0))
    rate = draws.rate(bags.x, bags.coords)
    p = model.predict_pixels(bags.x, bags.coords)
    f = np.log(rate / p.scale)
    np.testing.assert_allclose(f.mean(axis=0), p.m, atol=5 * np.sqrt(p.s.max() / 4000))
    # 1024 random features: the prior part of the variance is right to some per cent.
    np.testing.assert_allclose(f.var(axis=0), p.s, rtol=0.25)
    assert np.mean(f.var(axis=0) / p.s) == pytest.approx(1, abs=0.04)


def test_joint_draws_have_the_variance_of_the_sum(fitted):
    model, bags = fitted
    joint = model.predict_bags(bags, n_draws=4000).draws.var(axis=0)
    params = model.params_
    fwd = model._pass(params, model._scaled(params, bags.x, bags.coords), learn=True)
    p = bags.weight * float(params["base_rate"][0])
    exact = bag_variance(fwd, find_link("exp"), p, bags.offsets, bags.bag, 10**6).value
    # 1024 random features and 4000 draws: some per cent a bag, less on average.
    np.testing.assert_allclose(joint, exact, rtol=0.35)
    assert np.mean(joint / exact) == pytest.approx(1, abs=0.05)


def test_log_density_of_counts_is_a_mixture_of_poissons():
    p = BagPrediction(np.array([[4.0, 9.0], [6.0, 9.0]]))
    expected = np.log(0.5 * (stats.poisson.pmf(5, 4) + stats.poisson.pmf(5, 6)))
    found = p.log_density(np.array([5.0, 9.0]))
    assert found[0] == pytest.approx(expected)
    assert found[1] == pytest.approx(stats.poisson.logpmf(9, 9))


def test_negative_binomial_counts_have_its_density_and_moments():
    p = BagPrediction(
        np.full((200_000, 1), 30.0), LIKELIHOODS["negative_binomial"], {"log_size": np.log(5.0)}
    )
    exact = stats.nbinom(5.0, 5.0 / 35.0)
    assert p.log_density(np.array([17.0]))[0] == pytest.approx(exact.logpmf(17))
    counts = p.observed(np.random.default_rng(0)).draws
    assert counts.mean() == pytest.approx(exact.mean(), rel=0.01)
    assert counts.var() == pytest.approx(exact.var(), rel=0.03)


def test_rearranged_draws_keep_their_own_parameters():
    size = np.array([[0.0], [1.0], [2.0]])
    p = BagPrediction(
        np.arange(6.0).reshape(3, 2) + 1,
        LIKELIHOODS["negative_binomial"],
        {"log_size": size, "alike": 0.5},
    )
    chosen = np.array([[2, 0], [2, 1], [0, 0], [1, 2]])
    found = p.rearranged(chosen)
    assert found.draws.tolist() == [[5, 2], [5, 4], [1, 2], [3, 6]]
    assert found.params["log_size"].tolist() == chosen.tolist()
    assert found.params["alike"] == 0.5
    whole = found.log_density(np.array([3.0, 4.0]))
    by_hand = [
        [
            stats.nbinom.logpmf(y, np.exp(k), np.exp(k) / (np.exp(k) + p.draws[k, bag]))
            for k in chosen[:, bag]
        ]
        for bag, y in enumerate((3, 4))
    ]
    np.testing.assert_allclose(whole, np.log(np.exp(by_hand).mean(axis=1)), rtol=1e-10)


def test_draws_of_bags_that_are_a_plain_block(fitted):
    model, bags = fitted
    block = BagBlock(bags.x, bags.weight, bags.coords, bags.offsets, bags.y, bags.bag)
    assert isinstance(bags, Bags)
    np.testing.assert_array_equal(
        model.predict_bags(block, n_draws=5).draws, model.predict_bags(bags, n_draws=5).draws
    )

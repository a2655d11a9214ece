"""The control variate of sampled pairs: no bias, less variance, the right derivatives."""

from dataclasses import replace

import numpy as np

from models import VBAgg
from models.gp import bag_variance
from models.training.executor import BagsSource
from tests.models.aggregate.country import country, widened
from tests.plain import plain


def _bounds(model, bags, most, n):
    model.pair_pixels = most
    params = model.block_params(model.state_)
    found = []
    for seed in range(n):
        block = replace(bags.at(np.arange(bags.n_bag)), bag=bags.bag + 100 * seed)
        found.append(model.block_stats(params, block, None)[0].bound)
    return np.array(found)


def test_few_nodes_are_near_all_pairs_and_without_the_variate_they_are_not(monkeypatch):
    bags = country(side=20, n_area=4, cases=60.0, range_=4.0)
    model = plain(
        VBAgg, kernel="ridge + matern32(space)", link="exp", integrate="none", nats_left=1e-3
    )
    model.fit(bags)
    exact = _bounds(model, bags, 10**6, 1)[0]
    error = _bounds(model, bags, 16, 40) - exact
    assert abs(error.mean()) < 4 * error.std() / np.sqrt(40) + 0.01
    assert error.std() < 0.05  # nats, of four bags of a hundred pixels
    real = bag_variance.bag_variance

    def without(*args):
        found = real(*args)
        found.drawn = None
        return found

    monkeypatch.setattr("models.aggregate.objective.bag_variance", without)
    assert (_bounds(model, bags, 16, 20) - exact).std() > 3 * error.std()


def test_derivatives_are_those_of_finite_differences():
    bags = country(side=12, n_area=3, cases=40.0, range_=4.0)
    model = plain(
        VBAgg,
        kernel="ridge + matern32(space)",
        link="exp",
        integrate="none",
        pair_pixels=7,
        priors="none",
    )
    rng = np.random.default_rng(0)
    state = model.init(BagsSource(bags, 0).summary(rng), rng)
    params = model.block_params(widened(state))
    n = params["alpha"].size
    root = 0.3 * rng.standard_normal((n, n)) / np.sqrt(n)
    params["alpha"] = 0.3 * rng.standard_normal(n)
    params["cov"], params["q"] = params["cov"] + root @ root.T, params["q"] - root @ root.T
    stats, _ = model.block_stats(params, bags, None)
    for name in ("alpha", "cov", "q", "theta", "mean"):
        away = rng.standard_normal(params[name].shape)
        if away.ndim == 2:
            away = 0.5 * (away + away.T)
        ends = []
        for sign in (1, -1):
            moved = {**params, name: params[name] + sign * 1e-5 * away}
            ends.append(model.block_stats(moved, bags, None)[0].bound)
        slope = float((stats.sums[name] * away).sum())
        assert abs((ends[0] - ends[1]) / 2e-5 - slope) < 1e-5 * max(1.0, abs(slope)), name

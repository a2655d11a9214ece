"""The control variate of sampled pairs: no bias, less variance, the right derivatives."""

from dataclasses import replace

import numpy as np
import pytest

from models import Bags, VBAgg
from models.aggregate import objective
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


def rough(likelihood: str) -> Bags:
    """Areas of 80 pixels, of a function that changes within each, in pixels of any order."""
    rng = np.random.default_rng(3)
    n_bag, n = 40, 80
    x = rng.uniform(0.0, 6.0, (n_bag * n, 2))
    x = x[np.argsort(x[:, 0], kind="stable")]
    f = np.sin(1.5 * x[:, 0]) + np.cos(2.0 * x[:, 1])
    offsets = np.arange(0, n_bag * n + 1, n)
    total = np.add.reduceat(f, offsets[:-1])
    if likelihood == "normal":
        return Bags(x, offsets, total + rng.normal(0.0, np.sqrt(0.1 * n), n_bag))
    tested = np.full(n_bag, 400.0)
    share = 0.5 + 0.2 * total / n
    return Bags(x, offsets, rng.binomial(400, share).astype(float), trials=tested)


@pytest.mark.parametrize("likelihood", ["normal", "binomial"])
@pytest.mark.parametrize("points", ["auto", 30])
def test_a_fit_by_nodes_is_a_fit_by_all_pairs(likelihood, points):
    # Without the control variate and its floor the variance of a total was estimated to be
    # negative: these fits did not converge, or ended 8 to 10 nats above the bound of all pairs.
    bags = rough(likelihood)
    how = {"likelihood": likelihood, "kernel": "rbf", "n_inducing": points, "integrate": "none"}
    few, all_pairs = (
        VBAgg(**how, pair_pixels=pairs).fit(bags, n_thread=1) for pairs in (24, 10**6)
    )
    assert few.converged_
    assert abs(few.bound_ - all_pairs.bound_) < 0.5
    mean, exact = (np.asarray(each.predict_pixels(bags.x).mean) for each in (few, all_pairs))
    assert np.sqrt(np.mean((mean - exact) ** 2)) < 0.05 * exact.std()


def test_the_variance_of_a_total_is_no_less_than_its_linear_part(monkeypatch):
    bags = rough("normal")
    model = plain(VBAgg, likelihood="normal", kernel="rbf", n_inducing=30, pair_pixels=24)
    rng = np.random.default_rng(0)
    state = model.init(BagsSource(bags, 0).summary(rng), rng)
    seen = []
    real = objective.moment_matching.second_order

    def spy(of, mean, value):
        seen.append(value)
        return real(of, mean, value)

    monkeypatch.setattr(objective.moment_matching, "second_order", spy)
    for scale in (0.0, 4.0, 8.0):  # of the variance: far from the data
        state.params["theta"][0] = scale
        model.block_stats(model.block_params(state), bags, None)
    assert all((value >= 0.0).all() for value in seen)


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

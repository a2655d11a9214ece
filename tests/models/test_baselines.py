"""Baselines: gradients, penalties, optima; tuning and splits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from models import Bags, Constant, Network, Nystrom, VBAgg
from models.bag_pixel import collapse
from models.errors import ParameterError
from models.point import manifold_penalty
from models.training import BagsSource, start_training
from models.tuning import four_way_split, log_score, tune

PAIRS = [
    ("poisson", "exp"),
    ("poisson", "square"),
    ("negative_binomial", "exp"),
    ("normal", "identity"),
    ("binomial", "probit"),
    ("exponential", "exp"),
]
MODELS = {
    "constant": lambda **k: Constant(**k),
    "network": lambda **k: Network(n_hidden=4, manifold=3.0, bag_manifold=2.0, **k),
    "nystrom": lambda **k: Nystrom(
        n_inducing=5, kernel="additive", learn_inducing=True, manifold=3.0, bag_manifold=2.0, **k
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("likelihood", "link"), PAIRS)
def test_gradients_agree_with_finite_differences(name, likelihood, link, make_bags):
    bags = make_bags(n_bag=8, largest=9)
    model = MODELS[name](likelihood=likelihood, link=link)
    source = BagsSource(bags, 0)
    state = start_training(model, source, seed=0, learning_rate=0.1, tolerance=1.0).state
    rng = np.random.default_rng(1)
    params = {k: v + 0.1 * rng.normal(size=v.shape) for k, v in state.params.items()}
    state = replace(state, params=params)

    def objective(at):
        stats, _ = model.block_stats(model.block_params(at), bags, None)
        return model.objective(at, stats, 2 * bags.n_bag)

    grad = objective(state)[1]
    assert set(grad) == set(params)
    for key, value in params.items():
        numeric = np.zeros_like(value)
        for index in np.ndindex(value.shape):
            ends = []
            for step in (1, -1, 2, -2):
                moved = value.copy()
                moved[index] += 1e-5 * step
                ends.append(objective(replace(state, params={**params, key: moved}))[0])
            numeric[index] = (8 * (ends[0] - ends[1]) - (ends[2] - ends[3])) / 12e-5
        assert np.abs(numeric - grad[key]).max() < 2e-6 * np.abs(numeric).max(), key


def test_manifold_penalty_is_the_laplacians():
    rng = np.random.default_rng(0)
    phi, f = rng.normal(size=(20, 6)), rng.normal(size=20)
    similar = phi @ phi.T
    dense = f @ (np.diag(similar.sum(axis=1)) - similar) @ f
    pairs = 0.5 * ((f[:, None] - f) ** 2 * similar).sum()  # eq. (29) is twice f'Lf
    value, grad = manifold_penalty(phi, f)
    assert value == pytest.approx(dense)
    assert value == pytest.approx(pairs)
    moved = [manifold_penalty(phi, f + h * (np.arange(20) == 3))[0] for h in (1e-6, -1e-6)]
    assert grad[3] == pytest.approx((moved[0] - moved[1]) / 2e-6, rel=1e-6)


def test_constant_is_the_rate_and_size_of_highest_likelihood(make_bags):
    bags = make_bags(n_bag=40)
    people = np.add.reduceat(bags.weight, bags.offsets[:-1])
    poisson = Constant(link="exp", tolerance=1e-6, batch_bags=40).fit(bags)
    rate = poisson.predict_pixels(bags.x, bags.coords).mean
    np.testing.assert_allclose(rate, bags.y.sum() / people.sum(), rtol=2e-3)
    model = Constant(likelihood="negative_binomial", tolerance=1e-6, batch_bags=40).fit(bags)
    law, mean = model.law, model.predict_pixels(bags.x, bags.coords).mean[0] * people
    best = minimize_scalar(
        lambda t: -law.terms(bags.y, mean, {"log_size": t}, np.ones(40)).value.sum(),
        bounds=(-5, 8),
        method="bounded",
    )
    assert model.named_hyperparameters()["size"] == pytest.approx(np.exp(best.x), rel=0.02)


def test_collapsed_bags_are_weighted_means(bags):
    one = collapse(bags)
    rows = slice(*bags.offsets[4:6])
    mean = np.average(bags.x[rows], axis=0, weights=bags.weight[rows])
    np.testing.assert_allclose(one.x[4], mean)
    assert one.weight[4] == pytest.approx(bags.weight[rows].sum())
    assert one.n_pix == one.n_bag == bags.n_bag


def test_baselines_learn_a_surface_that_a_constant_cannot(make_bags):
    bags = make_bags(n_bag=60, awkward=False, rate=2.0)
    constant = log_score(Constant().fit(bags), bags)
    for model in (
        Network(n_hidden=8, weight_decay=0.1, max_epochs=150),
        Nystrom(n_inducing=20, kernel="ard(x)", max_epochs=150),
    ):
        assert log_score(model.fit(bags), bags) > constant + 1.0


def test_a_split_deals_every_bag_once():
    split = four_way_split(50, (30, 5, 5, 10), seed=3)
    parts = np.stack([split.train, split.early_stop, split.validation, split.test])
    np.testing.assert_array_equal(parts.sum(axis=0), 1)
    np.testing.assert_array_equal(parts.sum(axis=1), [30, 5, 5, 10])
    with pytest.raises(ParameterError, match="not four parts of 50 bags"):
        four_way_split(50, (30, 5, 5, 11), seed=3)


def test_tuning_prefers_what_predicts_better(make_bags):
    bags = make_bags(n_bag=60, awkward=False, rate=2.0)
    split = four_way_split(60, (36, 8, 8, 8), seed=0)
    candidates = [
        VBAgg(kernel="rbf(x)", n_inducing=10, max_epochs=20),
        Constant(),
    ]
    found = tune(candidates, bags, "validation", split=split)
    assert found.best == 0
    assert found.scores[0] > found.scores[1]
    assert not hasattr(candidates[0], "state_")
    by_bound = tune([candidates[0]], bags, n_starts=2)
    alone = [VBAgg(kernel="rbf(x)", n_inducing=10, max_epochs=20, seed=s) for s in (0, 1)]
    assert by_bound.scores[0] == max(model.fit(bags).bound_ for model in alone)
    with pytest.raises(ParameterError, match="needs a split"):
        tune(candidates, bags, "validation")


def test_proportions_need_the_numbers_tested(make_bags):
    bags = make_bags()
    bare = Bags(bags.x, bags.offsets, bags.y, bags.weight, bags.coords)
    with pytest.raises(ValueError, match="number tested"):
        VBAgg(likelihood="binomial").fit(bare)
    with pytest.raises(ValueError, match="positives of"):
        Bags(bags.x, bags.offsets, bags.y, bags.weight, trials=bags.y - 1)

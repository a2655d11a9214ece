"""Fits without some areas by regression between them: dense processes, and fits of the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from models import Bags, VBAgg
from models.aggregate.area_evidence import AreaEvidence
from models.aggregate.area_refit import AreaRefit
from tests.models.aggregate.country import country, matern32

WHOLE_RUNS = True

KERNEL = "ridge + matern32(space)"
LAWS = {
    "poisson": {},
    "poisson, area effect": {"area_effect": True},
    "square": {"link": "square", "area_effect": True},
    "negative binomial": {"likelihood": "negative_binomial"},
    "normal": {"likelihood": "normal", "link": "identity"},
}


def _fitted(bags, **settings):
    given = {"kernel": KERNEL, "link": "exp", "area_effect": False}
    return VBAgg(**{**given, **settings}).fit(bags, n_thread=1)


def _unseen(bags, every=4):
    return np.arange(bags.n_bag) % every == 0


def _values(bags, noise=0.1, seed=1):
    """Averages of areas with normal noise, whose aggregates are linear."""
    rng, total = np.random.default_rng(seed), np.add.reduceat(bags.weight, bags.offsets[:-1])
    y = np.log((bags.y + 0.5) / total) + noise * rng.standard_normal(bags.n_bag)
    share = bags.weight / np.repeat(total, np.diff(bags.offsets))
    return Bags(bags.x, bags.offsets, y, share, bags.coords)


def test_what_is_left_out_has_the_normal_distribution_of_the_dense_process():
    bags = _values(country(n_area=24))
    model = _fitted(bags, likelihood="normal", link="identity", integrate="none")
    state, unseen = model.state_, _unseen(bags)
    fixed, params = state.fixed, state.params
    evidence = AreaEvidence(model, state, bags).without(unseen)
    own = [params[name] for name in model.resolved_likelihood.parameters]
    x = np.concatenate([params["theta"], *own])
    found = evidence.given(x, np.flatnonzero(unseen))

    z = (bags.x - fixed["x_mean"]) / fixed["x_sd"]
    distance = cdist(bags.coords, bags.coords) / float(fixed["coord_scale"][0])
    slope, variance, length = np.exp(params["theta"])
    prior = variance * matern32(distance, length) + slope * z @ z.T + 1e4  # a flat mean
    share = np.zeros((bags.n_bag, bags.n_pix))
    bag = np.repeat(np.arange(bags.n_bag), np.diff(bags.offsets))
    share[bag, np.arange(bags.n_pix)] = float(fixed["base_rate"][0]) * bags.weight
    cov, seen = share @ prior @ share.T, ~unseen
    noise = np.exp(float(params["log_noise"][0])) * (bags.weight**2 @ (share > 0).T)
    gain = np.linalg.solve(
        cov[np.ix_(seen, seen)] + np.diag(noise[seen]), cov[np.ix_(seen, unseen)]
    )
    mean, left = gain.T @ bags.y[seen], cov[np.ix_(unseen, unseen)]
    wanted = left - gain.T @ cov[np.ix_(seen, unseen)]
    made = evidence.aggregate(found.mean, np.flatnonzero(unseen))
    sd = np.sqrt(np.diag(wanted))
    assert np.abs(made - mean).max() < 0.1 * sd.min()
    # Nodes stand for pixels, and length-scales are interpolated.
    base = float(fixed["base_rate"][0])
    assert np.abs(base**2 * found.cov - wanted).max() < 0.05 * sd.max() ** 2
    drawn = evidence.aggregate(
        found.sample(20_000, np.random.default_rng(0)), np.flatnonzero(unseen)
    )
    assert np.cov(drawn.T) == pytest.approx(base**2 * found.cov, abs=0.05 * sd.max() ** 2)
    assert drawn.mean(axis=0) == pytest.approx(made, abs=0.03 * sd.max())


@pytest.mark.parametrize("law", ["poisson", "poisson, area effect", "negative binomial"])
def test_responses_that_are_left_out_are_not_seen(law):
    bags = country(n_area=24)
    model, unseen = _fitted(bags, integrate="none", **LAWS[law]), _unseen(bags)
    others = Bags(
        bags.x, bags.offsets, np.where(unseen, 7 * bags.y + 50, bags.y), bags.weight, bags.coords
    )
    params, rows = model.state_.params, np.flatnonzero(unseen)
    own = [params[name] for name in model.resolved_likelihood.parameters]
    x = np.concatenate([params["theta"], *own])
    values, means = [], []
    for each in (bags, others):
        evidence = AreaEvidence(model, model.state_, each).without(unseen)
        values.append([evidence.at(x + by).value for by in (0.0, 0.4, -0.4)])
        means.append(evidence.given(x, rows).mean)
    # A Newton search ends a little beside the mode, elsewhere from another start.
    assert values[0] == pytest.approx(values[1], abs=1e-6)
    assert means[0] == pytest.approx(means[1], abs=1e-4)


@pytest.mark.ci
@pytest.mark.parametrize("law", ["poisson", "poisson, area effect"])
def test_a_map_of_other_counts_says_the_same_of_them(law):
    """Of counts that are left out the expansion is all that is left: its place, to first order."""
    bags = country(n_area=24)
    unseen = _unseen(bags)
    y = np.where(unseen, np.round(2.5 * bags.y), bags.y)
    others = Bags(bags.x, bags.offsets, y, bags.weight, bags.coords)
    drawn = []
    for each in (bags, others):
        model = _fitted(each, **LAWS[law])
        refit = model.area_refits([each], each.n_bag).without(unseen, 0)
        drawn.append(np.log(refit.sample_functions(4000, np.random.default_rng(1)).draws))
    sd = drawn[0].std(axis=0)
    assert np.abs(np.mean((drawn[1].mean(axis=0) - drawn[0].mean(axis=0)) / sd)) < 0.15
    assert drawn[1].std(axis=0) / sd == pytest.approx(1.0, abs=0.2)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("law", "countries"),
    [("poisson, area effect", 1), *(pytest.param(law, 3, marks=pytest.mark.slow) for law in LAWS)],
)
def test_predictions_are_those_of_a_fit_without_the_areas(law, countries):
    """Log densities and widths, by two ways that share the model's definition alone."""
    off, width = [], []
    for seed in range(countries):
        bags = country(seed, n_area=36)
        bags = _values(bags, seed=seed) if law == "normal" else bags
        model = _fitted(bags, **LAWS[law])
        for first in (0, 2):
            unseen = np.roll(_unseen(bags), first)
            again = _fitted(bags.select(~unseen), **LAWS[law])
            part, draws = bags.select(unseen), []
            for each in (model.area_refits([bags], bags.n_bag).without(unseen, seed), again):
                functions = each.sample_functions(1500, np.random.default_rng(5))
                draws.append(each.predict_bags(part, draws=functions))
            regressed, fitted = draws
            off.append(np.mean(regressed.log_density(part.y) - fitted.log_density(part.y)))
            spread = [np.subtract(*np.quantile(d.draws, [0.9, 0.1], axis=0)) for d in draws]
            width.append(np.mean(spread[0] / spread[1]))
    assert np.mean(off) > -0.06
    assert np.abs(np.mean(off)) < 0.12
    assert np.mean(width) == pytest.approx(1.0, abs=0.12)


@pytest.mark.ci
def test_a_fit_whose_draws_are_of_another_law_is_not_regressed():
    bags = country(n_area=16)
    assert _fitted(bags, integrate="none").area_refits([bags], bags.n_bag) is None
    model = _fitted(bags)
    assert isinstance(model.area_refits([bags], bags.n_bag).without(_unseen(bags), 0), AreaRefit)
    block = bags.at(np.arange(bags.n_bag))
    two_sources = replace(block, source=np.arange(bags.n_bag) % 2)
    assert model.area_refits([two_sources], bags.n_bag) is None
    assert _fitted(bags, link="square").area_refits([bags], bags.n_bag) is None
    all_but_one = np.arange(bags.n_bag) > 0
    assert model.area_refits([bags], bags.n_bag).without(all_but_one, 0) is None

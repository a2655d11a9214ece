"""Effects of covariates against slopes in closed form, predicted pixels and drawn functions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtri

from models import Bags, VBAgg
from models.aggregate.effects import N_DRAWS, N_PLACES, PERCENTILES, covariate_effects
from tests.models.aggregate.test_members import adopted, alone, with_members

TAILS = np.array([0.05, 0.5, 0.95])
LINKS = {
    "exp": {"link": "exp"},
    "square": {"link": "square"},
    "identity": {"likelihood": "normal"},
    "probit": {"likelihood": "binomial"},
}


def _fitted(make_bags, kernel, **given):
    bags = make_bags(n_bag=14, awkward=False)
    model = VBAgg(kernel=kernel, n_inducing=10, max_epochs=8, integrate="none", **given)
    return model.fit(bags, n_thread=1), bags


def _quantile_error(draws, q=TAILS):
    """Standard errors of quantiles of draws, from the distance of quantiles beside them."""
    n = draws.size
    width = np.sqrt(q * (1 - q) / n)
    low, high = np.quantile(draws, np.clip(q - 2 * width, 0, 1)), np.quantile(draws, q + 2 * width)
    return (high - low) / 4


@pytest.mark.parametrize("link", LINKS)
def test_a_slope_alone_is_told_as_the_link_has_it(link, make_bags):
    """Rates at both ends are those that pixels there are predicted to have; the change is exact."""
    model, bags = _fitted(make_bags, "linear", **LINKS[link])
    mean, sd = model.params_["x_mean"], model.params_["x_sd"]
    found = covariate_effects(model, bags.x, bags.coords)
    for effect, slope in zip(found, model.coefficients_, strict=True):
        assert effect.linear
        assert not effect.percentiles
        k = effect.column
        ends = np.tile(mean, (2, 1))
        ends[1, k] += sd[k]
        np.testing.assert_allclose(effect.at, ends[:, k])
        known = model.predict_pixels(ends, bags.coords[:2])
        for q in TAILS:
            wanted = known.quantile(q)
            for end in range(2):
                error = _quantile_error(effect.rate[:, end], np.array([q]))
                off = abs(np.quantile(effect.rate[:, end], q) - wanted[end])
                assert off <= 5 * error + 1e-12 * abs(wanted[end])  # the mean itself is no draw
        if link in ("exp", "identity"):
            assert effect.everywhere
            own = slope.mean + ndtri(TAILS) * slope.sd
            wanted = np.expm1(own) if link == "exp" else known.scale * own
            error = _quantile_error(effect.change)
            assert (np.abs(np.quantile(effect.change, TAILS) - wanted) < 5 * error).all()
        else:
            assert not effect.everywhere


def test_the_sign_of_f_changes_slopes_and_no_effect_under_the_square_link(make_bags):
    model, bags = _fitted(make_bags, "linear", link="square")
    params = model.state_.params
    turned = adopted(model, {})
    flipped = {name: -params[name] for name in ("mean", "v_mean")}
    turned.state_ = replace(model.state_, params={**params, **flipped})
    turned.params_ = turned.prediction_params(turned.state_)
    assert turned.coefficients_[0].mean == -model.coefficients_[0].mean
    found = [covariate_effects(each, bags.x, bags.coords) for each in (model, turned)]
    for one, other in zip(*found, strict=True):
        spread = _quantile_error(one.change) + _quantile_error(other.change)
        off = np.quantile(one.change, TAILS) - np.quantile(other.change, TAILS)
        assert (np.abs(off) < 5 * spread).all()


@pytest.fixture(scope="module")
def bent(make_bags):
    """A model whose kernel holds covariates in lines, smooths and interactions; with members."""
    kernel = "ridge + smooth + ard * matern32(space) + matern32(space)"
    model, bags = _fitted(make_bags, kernel, link="exp")
    return with_members(model, np.array([0.7, 0.2, 0.1]), size=0.3), bags


@pytest.mark.ci
def test_whole_effects_are_those_of_drawn_functions(bent):
    """Draws of each member, at the ends and at all places, averaged by hand."""
    model, bags = bent
    found = covariate_effects(model, bags.x, bags.coords, bags.weight)
    places = bags.coords[np.linspace(0, bags.n_pix - 1, N_PLACES).astype(int)]
    n, rng = 3000, np.random.default_rng(1)
    effect = found[0]
    assert effect.percentiles
    assert effect.beside == {1, 2, 3, 4}
    assert not effect.everywhere
    x = np.tile(model.params_["x_mean"], (3 * N_PLACES, 1))
    x[:, 0] = np.repeat(effect.at, N_PLACES)
    drawn = []
    for member, weight in zip(alone(model), (0.7, 0.2, 0.1), strict=True):
        functions = member.posterior_.draws(int(weight * n), rng, 4096)
        f = np.log(functions.rate(x, np.tile(places, (3, 1))))
        drawn.append(np.exp(f.reshape(-1, 3, N_PLACES).mean(axis=2)))
    by_hand = np.concatenate(drawn)
    for ours, other in (
        (effect.change, by_hand[:, 2] / by_hand[:, 0] - 1),
        (effect.rate[:, 1] / effect.rate[:, 0], by_hand[:, 1] / by_hand[:, 0]),
    ):
        wanted, error = np.quantile(other, TAILS), _quantile_error(other)
        assert (np.abs(np.quantile(ours, TAILS) - wanted) < 4 * error).all()
    # The linear part alone says something else.
    slope = model.coefficients_[0].mean
    z = (effect.at[[0, -1]] - model.params_["x_mean"][0]) / model.params_["x_sd"][0]
    alone_it_says = np.expm1(slope * (z[1] - z[0]))
    assert abs(alone_it_says - np.median(by_hand[:, 2] / by_hand[:, 0] - 1)) > 8 * error[1]


def test_percentiles_are_by_weight(bent):
    model, bags = bent
    effect = covariate_effects(model, bags.x, bags.coords, bags.weight)[1]
    order = np.argsort(bags.x[:, 1])
    share = np.cumsum(bags.weight[order]) / bags.weight.sum()
    below = np.interp(effect.at, bags.x[order, 1], share)
    np.testing.assert_allclose(below, PERCENTILES, atol=bags.weight.max() / bags.weight.sum())


def test_a_covariate_of_one_value_for_most_is_told_by_its_deviation(make_bags):
    bags = make_bags(n_bag=14, awkward=False)
    x = bags.x.copy()
    x[:, 2] = (np.arange(bags.n_pix) % 20 == 0) * 1.0
    few = Bags(x, bags.offsets, bags.y, bags.weight, bags.coords)
    model = VBAgg(kernel="smooth", n_inducing=10, max_epochs=3, integrate="none", link="exp")
    effect = covariate_effects(model.fit(few, n_thread=1), x, bags.coords)[2]
    assert not effect.percentiles
    assert not effect.linear
    np.testing.assert_allclose(effect.at, [x[:, 2].mean(), x[:, 2].mean() + x[:, 2].std()])
    assert effect.rate.shape == (N_DRAWS, 2)


def test_covariates_that_the_kernel_does_not_hold_have_no_effect(make_bags):
    model, bags = _fitted(make_bags, "matern32(space)", link="exp")
    assert covariate_effects(model, bags.x, bags.coords) == []


@pytest.mark.parametrize("link", ["exp", "identity"])
def test_how_much_an_effect_varies_is_that_of_predicted_pixels(link, make_bags):
    model, bags = _fitted(make_bags, "rbf(x) + matern32(space)", **LINKS[link])
    found = covariate_effects(model, bags.x, bags.coords)
    rows = np.linspace(0, bags.n_pix - 1, min(N_PLACES, bags.n_pix)).astype(int)
    for effect in found:
        ends = []
        for value in effect.at[[0, -1]]:
            x = bags.x[rows].copy()
            x[:, effect.column] = value
            # The median rate is that of the median of f, which is its mean.
            ends.append(model.predict_pixels(x, bags.coords[rows]).quantile(0.5))
        change = ends[1] / ends[0] - 1 if link == "exp" else ends[1] - ends[0]
        assert effect.varies == pytest.approx(change.std(), rel=1e-3)
        assert effect.varies > 0
    alone, _ = _fitted(make_bags, "smooth + matern32(space)", **LINKS[link])
    assert all(each.varies == 0.0 for each in covariate_effects(alone, bags.x, bags.coords))

"""Noise between areas beside that of pixels: evidence, coverage, and a ridge between the two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import cdist

from models import Bags, VBAgg
from models.core.block import BagBlock
from models.core.thinning import thinned_block
from models.gp.priors import LARGE_SHARE, TAIL, log_prior_noise, unit_of
from models.likelihoods.registry import find_likelihood
from models.training.executor import BagsSource
from tests.models.aggregate.country import matern32, profile_of

KERNEL = "linear(x) + matern32(space)"
SD_PIXEL, SD_AREA = 0.8, 0.5


def values(seed=0, n_area=40, largest=6, *, sizes=None, field=1.0):
    """Averages of areas with noise of both kinds: bags, and the surface without noise."""
    rng = np.random.default_rng([3, seed])
    sizes = rng.integers(2, largest + 1, n_area) if sizes is None else sizes
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    at = np.repeat(rng.uniform(0, 100, (n_area, 2)), sizes, axis=0)
    at = at + rng.uniform(-4, 4, at.shape)
    x = rng.standard_normal((at.shape[0], 1))
    f = 2.0 + 0.5 * x[:, 0]
    if field:
        near = matern32(cdist(at, at), 40.0) + 1e-8 * np.eye(at.shape[0])
        f = f + field * (np.linalg.cholesky(near) @ rng.standard_normal(at.shape[0]))
    w = 1.0 / np.repeat(sizes, sizes)
    y = np.add.reduceat(w * (f + SD_PIXEL * rng.standard_normal(f.shape)), offsets[:-1])
    y = y + SD_AREA * rng.standard_normal(n_area)
    return Bags(x, offsets, y, w, at), f


def start(bags, **settings):
    model = VBAgg(likelihood="normal", kernel=KERNEL, **settings)
    rng = np.random.default_rng(0)
    return model, model.init(BagsSource(bags, 0).summary(rng), rng)


def test_the_default_has_it_and_false_is_the_model_before():
    names = {key: set(VBAgg(likelihood="normal", **given).resolved_likelihood.parameters)
             for key, given in (("auto", {}), ("off", {"area_effect": False}))}  # fmt: skip
    assert names == {"auto": {"log_noise", "log_area_noise"}, "off": {"log_noise"}}
    assert "log_area_sd" in VBAgg(likelihood="exponential").resolved_likelihood.parameters


@pytest.mark.parametrize("shift", [(0.0, 0.0), (-2.0, 1.0)])
def test_the_best_bound_is_the_evidence_of_the_dense_process(shift):
    bags, _ = values()
    model, state = start(bags, pair_pixels=10**6, priors="none", n_inducing=bags.n_pix)
    noise = {name: state.params[name] + by
             for name, by in zip(("log_noise", "log_area_noise"), shift, strict=True)}  # fmt: skip
    state = replace(state, params={**state.params, **noise})
    profile = profile_of(model, bags)
    point = profile.at(state, 1e-9)
    fixed, theta = state.fixed, np.exp(state.params["theta"])
    base, scale = float(fixed["base_rate"][0]), float(fixed["coord_scale"][0])
    z = (bags.x - fixed["x_mean"]) / fixed["x_sd"]
    k = theta[1] * matern32(cdist(bags.coords, bags.coords), theta[2] * scale) + theta[0] * z @ z.T
    a = np.zeros((bags.n_bag, bags.n_pix))
    a[np.repeat(np.arange(bags.n_bag), np.diff(bags.offsets)), np.arange(bags.n_pix)] = bags.weight
    squares, total = (a**2).sum(axis=1), a.sum(axis=1)
    own = np.exp(noise["log_noise"]) * squares + np.exp(2 * noise["log_area_noise"]) * total**2
    cov = base**2 * a @ k @ a.T + np.diag(own)
    mean = base * float(state.params["mean"][0]) * total
    evidence = stats.multivariate_normal(mean, cov).logpdf(bags.y)
    assert point.value == pytest.approx(evidence, abs=2e-4)
    # Quadratic in f: the second natural step finds nothing left.
    assert point.passes <= 3


def test_priors_are_penalised_complexity_in_units_of_the_responses():
    bags, _ = values()
    model, state = start(bags)
    deviation = (bags.y / np.add.reduceat(bags.weight, bags.offsets[:-1])).std()
    likelihood = model.resolved_likelihood
    own = {name: state.params[name] for name in likelihood.parameters}
    value = log_prior_noise(likelihood, own, state.fixed)[0]
    typical = bags.n_pix / bags.n_bag
    shares = (
        np.sqrt(np.exp(own["log_noise"][0]) / typical) / deviation,
        np.exp(own["log_area_noise"][0]) / deviation,
    )
    rate = -np.log(TAIL) / LARGE_SHARE
    # An exponential density of each deviation, by its own logarithm.
    assert value == pytest.approx(sum(np.log(s) - rate * s for s in shares))
    # They start with an eighth of the variance each.
    np.testing.assert_allclose(np.square(shares), 0.125)
    kept = {name: array for name, array in state.fixed.items() if not name.startswith(unit_of(""))}
    assert log_prior_noise(likelihood, own, kept) == (0.0, {})  # fitted before there was one


def test_intervals_of_areas_not_seen_are_right_and_were_too_short():
    """Noise of pixels alone averages out over the pixels of a large area."""
    bags, _ = values(1, 200, sizes=np.where(np.arange(200) % 2, 24, 2), field=0.0)
    few = np.arange(200) % 4 > 1
    train, test = bags.select(few), bags.select(~few)
    cover, density = {}, {}
    for effect in (False, "auto"):
        model = VBAgg(
            likelihood="normal", kernel="linear(x)", area_effect=effect, integrate="none"
        ).fit(train, n_thread=1)
        found = model.predict_bags(test, n_draws=1000)
        drawn = found.observed(np.random.default_rng(2)).draws
        low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
        large = np.diff(test.offsets) == 24
        cover[effect] = ((test.y > low) & (test.y < high))[large].mean()
        density[effect] = found.log_density(test.y).mean()
        # No map has it: the deviation of a pixel is that of the surface.
        pixels = model.predict_pixels(test.x, test.coords)
        functions = model.sample_functions(400, np.random.default_rng(3))
        spread = functions.rate(test.x, test.coords).std(axis=0)
        assert spread.mean() == pytest.approx(pixels.sd.mean(), rel=0.1)
    learnt = model.named_hyperparameters()
    assert learnt["area_noise"] == pytest.approx(SD_AREA, rel=0.35)
    assert density["auto"] > density[False] + 0.02
    assert 0.8 <= cover["auto"] <= 1.0


def test_noises_that_cannot_be_told_apart_share_out_and_the_fit_ends():
    """Areas of one size: a flat ridge of the likelihood, on which the priors decide."""
    bags, _ = values(2, 60, sizes=np.full(60, 6))
    model = VBAgg(likelihood="normal", kernel=KERNEL).fit(bags, n_thread=1)
    assert model.converged_
    assert model.convergence_["nats_left"] < model.nats_left
    found = model.named_hyperparameters()
    total = found["noise"] / 6 + found["area_noise"] ** 2
    assert total == pytest.approx(SD_PIXEL**2 / 6 + SD_AREA**2, rel=0.5)
    # Along the ridge the priors alone differ: by no more than the fit may leave.
    likelihood, fixed = model.resolved_likelihood, model.state_.fixed

    def density(share):
        logs = {
            "log_noise": np.log(6 * share * total),
            "log_area_noise": 0.5 * np.log((1 - share) * total),
        }
        return float(
            log_prior_noise(likelihood, {k: np.array([v]) for k, v in logs.items()}, fixed)[0]
        )

    own = density(found["noise"] / 6 / total)
    assert max(map(density, np.linspace(0.02, 0.98, 97))) - own < model.nats_left
    each = [np.exp(model.state_.members[f"log_{name}"][:, 0]) for name in ("noise", "area_noise")]
    sums = each[0] / 6 + each[1] ** 2
    # The draws lie along the ridge: parts vary by more than their sum.
    assert np.log(sums).std() < 0.6 * np.log(each[0]).std()


def test_an_area_effect_of_exponential_values_widens_intervals():
    law = find_likelihood("exponential", area_effect=True)
    own = {"log_area_sd": np.log(0.5)}
    drawn = law.draw(np.full(200_000, 3.0), own, np.ones(1), np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(3.0, rel=0.01)
    assert drawn.var() == pytest.approx(9.0 * (2 * np.exp(0.25) - 1), rel=0.03)


@pytest.mark.ci
def test_pixels_that_stand_for_many_learn_the_noise_of_all():
    """Of some pixels the squared weights add up to more: their noise was told of all pixels."""
    bags, _ = values(seed=4, n_area=30, sizes=np.full(30, 60), field=0.3)
    noise = []
    for few in (False, True):
        model = VBAgg(likelihood="normal", kernel=KERNEL, integrate="none", few_pixels=few)
        told = model.fit(bags, n_thread=1).named_hyperparameters()
        noise.append(told["noise"] / 60 + told["area_noise"] ** 2)
    assert noise[1] == pytest.approx(noise[0], rel=0.1)
    thinned = thinned_block(bags, 30, bags.x.mean(axis=0), bags.x.std(axis=0), 0)
    assert thinned.n_pix < bags.n_pix
    np.testing.assert_allclose(thinned.squares, 1 / 60)
    again = BagBlock.join([thinned.at(np.array([3, 1])), thinned.at(np.array([0]))])
    np.testing.assert_allclose(again.squares, 1 / 60)

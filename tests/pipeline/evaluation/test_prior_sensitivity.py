"""Power-scaling of priors, against closed forms and a model whose draws are known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from models import Bags, VBAgg
from models.core.protocol import State
from models.gp.priors import log_prior
from models.gp.scaling import kernel_of
from pipeline.evaluation.posterior import Posterior, PosteriorDraws
from pipeline.evaluation.prior_sensitivity import (
    POWERS,
    Figure,
    prior_densities,
    prior_sensitivity,
    scaled_weights,
)

N_MEMBER, N_DRAWS = 12, 120


def test_a_scaled_normal_prior_gives_the_closed_form() -> None:
    # phi ~ N(0, 1), y ~ N(phi, 0.5^2), y = 1.5: the posterior of any power of the prior is normal.
    rng = np.random.default_rng(0)
    n = 200_000
    mean, variance = 1.5 * 4 / (4 + 1), 1 / (4 + 1)
    phi = rng.normal(mean, np.sqrt(variance), n)
    figure = Figure("phi", phi, np.full(n, 1 / n), np.arange(n))
    for power in POWERS:
        exact = 1.5 * 4 / (4 + power)
        assert figure.mean((power - 1) * (-0.5 * phi**2)) == pytest.approx(exact, abs=0.005)
    assert figure.sd == pytest.approx(np.sqrt(variance), rel=0.01)
    # Weights that come with draws: the same posterior, from draws of the prior.
    prior = rng.standard_normal(n)
    likelihood = np.exp(-0.5 * ((1.5 - prior) / 0.5) ** 2)
    figure = Figure("phi", prior, likelihood / likelihood.sum(), np.arange(n))
    assert figure.mean(np.zeros(n)) == pytest.approx(mean, abs=0.01)
    assert figure.mean(0.25 * (-0.5 * prior**2)) == pytest.approx(1.5 * 4 / 5.25, abs=0.01)


def test_weights_survive_densities_far_apart() -> None:
    weight = scaled_weights(np.array([0.5, 0.5]), np.array([-2000.0, -1000.0]))
    assert weight == pytest.approx([0.0, 1.0])


@pytest.fixture(scope="module")
def model() -> VBAgg:
    rng = np.random.default_rng(1)
    offsets = np.arange(0, 201, 10)
    x, coords = rng.standard_normal((200, 2)), rng.uniform(0, 100, (200, 2))
    y = rng.poisson(20 * np.exp(x.reshape(20, 10, 2)[..., 0].mean(axis=1))).astype(float)
    bags = Bags(x, offsets, y, np.ones(200), coords)
    found = VBAgg(
        kernel="linear(x) + matern32(space)", link="exp", area_effect=True, priors="weak",
        n_inducing=15, max_epochs=20,
    )  # fmt: skip
    found.fit(bags, n_thread=1)
    state = found.fitted_state()
    spread = 0.4 * rng.standard_normal((N_MEMBER, state.params["theta"].size))
    members = {
        name: np.repeat(np.asarray(value)[None], N_MEMBER, axis=0)
        for name, value in state.params.items()
        if name != "w"
    }
    members["theta"] = members["theta"] + spread
    members["log_area_sd"] = members["log_area_sd"] + 0.5 * rng.standard_normal((N_MEMBER, 1))
    members["weight"] = rng.dirichlet(np.full(N_MEMBER, 5.0))
    return _holding(found, State(state.params, state.fixed, members=members))


def _holding(model: VBAgg, state: State) -> VBAgg:
    model.state_, model.params_ = state, model.prediction_params(state)
    return model


def posterior_of(model: Any, expected: np.ndarray, member: np.ndarray) -> Posterior:
    n = expected.shape[1]
    areas = PosteriorDraws(
        bag=np.arange(n), y=np.ones(n), people=np.full(n, 50.0), mean=expected.mean(axis=0),
        expected=expected, counts=expected, log_density=np.zeros(n), log_lik=expected,
        bag_data=np.ones(n), centre=np.zeros((2, n)),
    )  # fmt: skip
    return Posterior(
        areas,
        model.resolved_likelihood,
        {},
        SimpleNamespace(clusters=np.stack([member, np.arange(member.size)], axis=1)),
    )


def test_densities_of_the_priors_add_up_to_the_models_own(model: VBAgg) -> None:
    found = prior_densities(model)
    assert set(found) == {"range", "slopes", "size", "area_effect"}
    state: Any = model.fitted_state()
    kernel = kernel_of(model.kernel, state.fixed)
    side = float(state.fixed["area_side"][0])
    priors = [log_prior(kernel, t, model.link_name, side)[0] for t in state.members["theta"]]
    whole = np.array(priors)
    parts = found["range"] + found["slopes"] + found["size"]
    assert np.ptp(parts - whole) < 1e-10 * np.abs(whole).max()
    # That of the area effect: exponential in its deviation, P(sd > 0.5) = 0.1, by its logarithm.
    log_sd = state.members["log_area_sd"][:, 0]
    exact = log_sd + np.log(0.1) / 0.5 * np.exp(log_sd)
    assert np.ptp(found["area_effect"] - exact) < 1e-9


def test_figures_shift_with_the_draws_that_a_prior_favours(model: VBAgg) -> None:
    rng = np.random.default_rng(2)
    member = rng.permutation(np.arange(N_DRAWS) % N_MEMBER)
    range_density = prior_densities(model)["range"]
    # The total follows the prior of the range; the last area's rate follows nothing.
    level = (range_density - range_density.mean())[member]
    expected = np.exp(0.02 * rng.standard_normal((N_DRAWS, 5)))
    expected[:, 0] += 4 * (1 + 0.1 * level)
    ids = list("abcde")
    found = prior_sensitivity(
        model, posterior_of(model, expected, member), ids, 1000.0, ["rain", "height"]
    )
    assert found["powers"] == [0.8, 1.25]
    row = found["priors"]["range"]["total"]
    total = expected.sum(axis=1)
    for key, power in (("weaker", 0.8), ("stronger", 1.25)):
        weight = np.exp((power - 1) * range_density[member])
        assert row[key] == pytest.approx(weight @ total / weight.sum())
    doublings = np.log(1.25 / 0.8) / np.log(2)
    exact = (row["stronger"] - row["weaker"]) / total.std() / doublings
    assert row["shift"] == pytest.approx(exact)
    assert row["strong"] == (abs(exact) > 0.3)
    assert row["shift"] > 0
    state: Any = model.fitted_state()
    area_sd = np.exp(state.members["log_area_sd"][:, 0])
    weight = state.members["weight"]
    assert found["figures"]["area_sd"]["mean"] == pytest.approx(weight @ area_sd)
    stronger = weight * np.exp(0.25 * prior_densities(model)["area_effect"])
    stronger /= stronger.sum()
    assert found["priors"]["area_effect"]["area_sd"]["stronger"] == pytest.approx(
        stronger @ area_sd
    )
    assert found["priors"]["area_effect"]["n_effective"] <= 1 / (weight**2).sum() * 1.2
    names = set(found["figures"])
    assert {"total", "rate of a", "area_sd", "slope[rain]", "slope[height]"} <= names
    assert any("lengthscale" in name for name in names)
    strong = [
        name
        for name, rows in found["priors"].items()
        if any(r["strong"] for key, r in rows.items() if key != "n_effective")
    ]
    assert len(found["sentences"]) == len(strong)


def test_without_draws_of_hyperparameters_it_says_why(model: VBAgg) -> None:
    state = model.fitted_state()
    plain = _holding(VBAgg(**model.get_params()), State(state.params, state.fixed))
    posterior = posterior_of(model, np.ones((N_DRAWS, 4)), np.zeros(N_DRAWS, int))
    assert "not integrated" in prior_sensitivity(plain, posterior, list("abcd"), 1.0, [])["absent"]
    flat = _holding(VBAgg(**{**model.get_params(), "priors": "none"}), state)
    assert "no priors" in prior_sensitivity(flat, posterior, list("abcd"), 1.0, [])["absent"]
    weight = np.full(N_MEMBER, 1e-9)
    weight[3] = 1.0  # of an update whose counts one draw suits
    left = State(state.params, state.fixed, members={**state.members, "weight": weight})
    told = prior_sensitivity(
        _holding(VBAgg(**model.get_params()), left), posterior, list("abcd"), 1.0, []
    )
    assert "few draws of the hyperparameters suit the counts (1.0 of 12)" in told["absent"]

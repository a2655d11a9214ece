"""Effects of areas kept apart from shared inducing values, against all values together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models import Period, SpaceTime
from models.core.protocol import State
from models.core.unions import OWN, union_bags
from models.temporal import near as near_areas
from models.temporal import placing
from models.temporal.marginal import MarginalPath
from models.temporal.posterior import path_posterior
from models.temporal.profile import HeldSites
from models.temporal.state_space import StateSpace
from tests.models.temporal.world import Held, model_of, months

TEXT = "ridge(x) + area * time(matern12) + matern32(space) + constant * season"


@pytest.fixture(autouse=True)
def few_areas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut blocks of sixteen areas in parts."""
    monkeypatch.setattr(near_areas, "AREAS", 5)


def _pair(**settings: Any) -> tuple[Held, Held]:
    """Return the model with effects apart, and together: in the same place."""
    model = model_of(kernel=TEXT, **settings)
    periods = months(3, likelihood=model.likelihood)
    apart = Held(model, periods)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "own_values", lambda *_: {})
        together = Held(model_of(kernel=TEXT, **settings), periods)
    for name, value in apart.start.params.items():
        if "site" not in name:
            np.testing.assert_array_equal(value, together.start.params[name])
    assert "own" in apart.start.fixed
    return apart, together


@pytest.fixture(scope="module")
def best() -> tuple[Held, Held, State, State]:
    """Both with their best sites."""
    apart, together = _pair()
    return apart, together, apart.best(), together.best()


def test_under_the_normal_law_both_are_the_same() -> None:
    """No period asks to be wider than the prior: nothing is cut off, here or there."""
    apart, together = _pair(likelihood="normal")
    ours, other = (held.profile.at(held.best(), 1e-9) for held in (apart, together))
    assert ours.value == pytest.approx(other.value, abs=1e-4)
    np.testing.assert_allclose(ours.grad, other.grad, atol=1e-4 * np.abs(other.grad).max())


def test_the_bound_and_its_gradient_are_those_of_all_values_together(best: Any) -> None:
    apart, together, mine, theirs = best
    ours, other = apart.profile.at(mine, 1e-8), together.profile.at(theirs, 1e-8)
    assert ours.value == pytest.approx(other.value, abs=2e-3)
    np.testing.assert_allclose(ours.grad, other.grad, atol=2e-3 * np.abs(other.grad).max())
    phi = [mine.params[name] for name in ("mean", "theta", "time")]
    gradients = [
        HeldSites(held.model, state).gradient(float(phi[0][0]) + 0.1, phi[1] + 0.05, phi[2])
        for held, state in ((apart, mine), (together, theirs))
    ]
    np.testing.assert_allclose(*gradients, atol=2e-3 * np.abs(gradients[1]).max())


def test_the_hessian_of_held_sites_is_that_of_central_differences(best: Any) -> None:
    apart, _, mine, _ = best
    held, params = HeldSites(apart.model, mine), mine.params
    found, n = held.hessian(), params["theta"].size
    phi = np.concatenate([params["mean"], params["theta"], params["time"]])

    def gradient(at: np.ndarray) -> np.ndarray:
        return held.gradient(at[0], at[1 : 1 + n], at[1 + n :])

    by = 1e-3 * np.eye(phi.size)
    expected = [(gradient(phi + away) - gradient(phi - away)) / 2e-3 for away in by]
    np.testing.assert_allclose(found, expected, atol=1e-3 * np.abs(found).max())


def test_the_slope_by_the_likelihoods_parameter_with_q_held_is_a_difference(best: Any) -> None:
    apart, _, mine, _ = best
    names, by = apart.model.resolved_likelihood.parameters, 1e-4
    assert names
    own = {name: mine.params[name] for name in names}
    found = apart.profile.slopes_with_q_held(mine, own)
    for k, name in enumerate(names, start=found.size - len(names)):
        ends = []
        for sign in (1.0, -1.0):
            params = {**mine.params, name: mine.params[name] + sign * by}
            ends.append(apart.profile._found(replace(mine, params=params), slopes=False).bound)
        assert found[k] == pytest.approx((ends[0] - ends[1]) / (2 * by), rel=1e-4)
    assert not found[: found.size - len(names)].any()


def test_pixels_and_averages_are_those_of_all_values_together(best: Any) -> None:
    apart, together, mine, theirs = best
    bags = apart.model.with_area(apart.start.fixed, apart.source.read(1))
    outside = np.array(bags.x)
    outside[::3, -1] = -1
    for time in (1.0, 4.0):
        ours, other = (
            path_posterior(held.model, state).at(time)
            for held, state in ((apart, mine), (together, theirs))
        )
        for x in (bags.x, outside):
            for name in ("m", "s"):
                at, expected = (
                    getattr(each.moments(x, bags.coords).parts[0], name) for each in (ours, other)
                )
                np.testing.assert_allclose(at, expected, rtol=5e-3, atol=2e-3)
        z = apart.model._scaled(ours.params, bags.x, bags.coords).reshape(16, 4, -1)
        for at, expected in zip(ours.averages(z)[:1], other.averages(z)[:1], strict=True):
            np.testing.assert_allclose(at, expected, atol=2e-3)
        np.testing.assert_allclose(ours.mean(z), other.mean(z), atol=2e-3)
        for at, expected in zip(ours.coefficients(), other.coefficients(), strict=True):
            assert (at.mean, at.sd) == pytest.approx((expected.mean, expected.sd), abs=1e-3)


def test_draws_have_the_moments_of_the_posterior_and_hang_together(best: Any) -> None:
    apart, _, mine, _ = best
    posterior, n = path_posterior(apart.model, mine), 4000
    bags = apart.model.with_area(apart.start.fixed, apart.source.read(1))
    drawn = posterior.draws(n, np.random.default_rng(3), [1.0, 2.0, 5.0])
    alone = posterior.at(5.0).draws(n, np.random.default_rng(5)).rate(bags.x, bags.coords)
    each = [(time, drawn.rate(bags.x, bags.coords, period=time)) for time in (1.0, 5.0)]
    for time, rates in [*each, (5.0, alone)]:
        f = np.log(rates)
        at = posterior.at(time).moments(bags.x, bags.coords).parts[0]
        off = f.mean(axis=0) - (at.m + np.log(at.scale))
        assert (np.abs(off) / np.sqrt(at.s)).max() < 5.0 / np.sqrt(n)
        np.testing.assert_allclose(f.var(axis=0), at.s, rtol=0.35)
    # An area's effect of one month is like that of the next.
    effects = np.stack([drawn.at(time).functions.table for time in (1.0, 2.0)])
    alike = [np.corrcoef(effects[0, a], effects[1, a])[0, 1] for a in range(16)]
    assert np.min(alike) > 0.3


def test_conditioned_totals_are_those_of_all_values_together(best: Any) -> None:
    """Draws differ; their means and spreads are those of the same posterior."""
    found = []
    apart, together, mine, theirs = best
    for held, state in ((apart, mine), (together, theirs)):
        bags = held.model.with_area(held.start.fixed, held.source.read(1))
        drawn = path_posterior(held.model, state).draws(3000, np.random.default_rng(4), [1.0])
        counts = drawn.bag_counts(bags, period=1.0)
        found.append(counts * drawn.at(1.0).observed_factors(bags, counts))
    mean, sd = found[1].mean(axis=0), found[1].std(axis=0)
    np.testing.assert_allclose(found[0].mean(axis=0), mean, atol=6.0 * (sd / np.sqrt(3000)).max())
    np.testing.assert_allclose(found[0].std(axis=0) / sd, 1.0, atol=0.12)


def test_few_periods_of_many_areas_are_not_filtered(best: Any) -> None:
    apart, together, mine, theirs = best
    assert isinstance(apart.model.state_space(mine), MarginalPath)
    assert isinstance(together.model.state_space(theirs), StateSpace)
    many = replace(mine, fixed={**mine.fixed, "times": np.arange(300.0)})
    assert isinstance(apart.model.state_space(many), StateSpace)


def test_filtered_and_marginal_fits_are_the_same(
    best: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart, _, mine, _ = best
    first = apart.profile.at(mine, 1e-8)
    monkeypatch.setattr("models.temporal.smoother.marginal_is_cheaper", lambda *_: False)
    again = apart.profile_of([0, 1, 2]).at(mine, 1e-8)
    assert again.value == pytest.approx(first.value, abs=1e-9)
    np.testing.assert_allclose(again.grad, first.grad, atol=1e-7)


def test_a_saved_fit_of_all_values_together_opens(best: Any) -> None:
    _, together, _, theirs = best
    model = SpaceTime(**together.model.get_params())
    old = {name: value.copy() for name, value in path_posterior(model, theirs).pack().items()}
    assert not {"own", "site_load"} & old.keys()
    at = model.unpacked(old).at(2.0)
    bags = model.with_area(theirs.fixed, together.source.read(2))
    expected = path_posterior(together.model, theirs).at(2.0).moments(bags.x, bags.coords)
    np.testing.assert_allclose(at.moments(bags.x, bags.coords).mean, expected.mean, rtol=1e-12)


def test_an_update_with_a_union_of_areas_has_all_values_together(best: Any) -> None:
    """In a union areas meet: what stands between their effects counts there."""
    apart, together, mine, theirs = best
    new = months(4)[3]
    assert new.bags is not None
    union = np.full(16, OWN)
    union[[2, 3, 9]] = 0
    period = Period(3.0, union_bags(new.bags, union, np.arange(16)))
    found = []
    for held, state in ((apart, mine), (together, theirs)):
        members = {name: np.stack([each] * 2) for name, each in state.params.items()}
        model = SpaceTime(**held.model.get_params())
        model.state_ = replace(state, members={**members, "weight": np.full(2, 0.5)})
        model.history_, model.converged_ = [{"bound": 0.0}], True
        updated = model.with_periods(period, n_thread=1)
        state = updated.fitted_state()
        assert "own" not in state.fixed
        at = updated.posterior_.at(3.0)
        x = updated.inputs(new.bags.x, np.repeat(np.arange(16), 4))
        found.append(at.moments(x, new.bags.coords).mean)
    np.testing.assert_allclose(*found, rtol=5e-3)

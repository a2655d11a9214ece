"""The profile bound, its gradient, what carries q over, and the Hessian with the site held."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from models import Bags, VBAgg
from models.aggregate import profile_bound
from models.aggregate.profile_bound import constant_values
from models.aggregate.site_evidence import SiteEvidence
from models.core.errors import NumericalError
from models.gp.kernel_model import whitened
from models.gp.priors import log_prior, log_prior_level
from models.gp.sparse_gp import factor_of
from models.training.executor import BagsSource
from tests.models.aggregate.country import country, profile_of
from tests.plain import plain

SETTINGS = {
    "area effect": {"kernel": "ridge + matern32(space)", "area_effect": True},
    "points": {"kernel": "matern32(space) + rbf(x)", "n_inducing": 16},
    "square": {"kernel": "matern32(space)", "link": "square"},
}
EXACT = 1e-12  # nats left to q: a gradient errs by the root of it
MOST_STEPS = 40  # so exact a q takes more steps than a fit gives it


@pytest.fixture(autouse=True, scope="module")
def _enough_steps():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile_bound, "MOST_STEPS", MOST_STEPS)
        yield


def _profile(bags=None, **settings):
    bags = bags or country(side=12, n_area=9, cases=40.0, range_=4.0)
    model = plain(VBAgg, **{"link": "exp", "priors": "weak", "integrate": "none", **settings})
    source, rng = BagsSource(bags, 0), np.random.default_rng(0)
    state = model.init(source.summary(rng), rng)
    profile = profile_of(model, bags)
    return model, state, profile


@pytest.fixture(scope="module", params=SETTINGS)
def setting(request):
    model, state, profile = _profile(**SETTINGS[request.param])
    away = 0.2 * np.random.default_rng(1).standard_normal(profile.pack(state.params).size)
    point = profile.at(profile.unpack(state, profile.pack(state.params) + away), EXACT)
    return request.param, model, profile, point


def test_the_gradient_is_that_of_the_profile(setting):
    """The envelope theorem, by differences of the best bound."""
    _, _, profile, point = setting
    phi, h = profile.pack(point.state.params), 0.01
    for k in range(phi.size):
        ends = []
        for factor in (1, -1, 2, -2):
            moved = phi.copy()
            moved[k] += factor * h
            ends.append(profile.at(profile.unpack(point.state, moved), EXACT).value)
        numeric = (8 * (ends[0] - ends[1]) - (ends[2] - ends[3])) / (12 * h)
        assert point.grad[k] == pytest.approx(numeric, rel=2e-4, abs=2e-5), k


def test_a_step_of_q_needs_no_slopes_by_the_kernel(setting):
    """The bound and the step are the same without them, and from factors kept or made anew."""
    _, model, profile, point = setting
    state, n_bag = point.state, profile._n_bag
    stats = profile._evaluate(state, True)
    with_slopes, without = (
        model.objective(state, stats, n_bag, slopes=slopes) for slopes in (True, False)
    )
    assert with_slopes.grad
    assert not without.grad
    assert without.bound == with_slopes.bound
    for name in ("d_mean", "d_cov"):
        np.testing.assert_array_equal(getattr(without, name), getattr(with_slopes, name))
    stepped = profile._stepped(state, without, 0.5, 1.0)  # other q, the kernel's parameters held
    kept = model.block_params(stepped)
    del model._kept
    for name, made in model.block_params(stepped).items():
        np.testing.assert_array_equal(kept[name], made)


def test_constants_of_another_fit_are_another_kernel():
    """Of the same parameters: what was kept of the first must not serve the second."""
    model, state, _ = _profile(kernel="matern32(space)")
    first = model.block_params(state)
    fixed = {**state.fixed, "term_values": state.fixed["term_values"]}
    model.set_params(kernel="matern12(space)")
    other = replace(state, params=dict(state.params), fixed=fixed)
    found = model.block_params(other)
    del model._kept
    np.testing.assert_array_equal(found["q"], model.block_params(other)["q"])
    assert np.abs(found["q"] - first["q"]).max() > 1e-3


def test_pack_and_unpack_undo_each_other(setting):
    _, _, profile, point = setting
    phi = profile.pack(point.state.params) + 0.1
    np.testing.assert_array_equal(profile.pack(profile.unpack(point.state, phi).params), phi)
    same = profile.unpack(point.state, profile.pack(point.state.params))
    q, carried = whitened(point.state.params), whitened(same.params)
    np.testing.assert_allclose(carried.v_mean, q.v_mean, atol=1e-8)
    np.testing.assert_allclose(carried.factor(), q.factor(), atol=1e-8)


def test_a_carried_posterior_is_nearly_the_best_one(setting):
    """Hyperparameters move by 0.3, one at a time and together: the bound falls by little."""
    _, model, profile, point = setting
    phi = profile.pack(point.state.params)
    lost, stale = [], []
    for away in (*0.3 * np.eye(phi.size), np.full(phi.size, 0.3), np.full(phi.size, -0.3)):
        moved = profile.unpack(point.state, phi + away)
        best = profile.at(moved, EXACT).value
        kept = {name: point.state.params[name] for name in ("v_mean", "root")}
        for state, losses in (
            (moved, lost),
            (replace(moved, params={**moved.params, **kept}), stale),
        ):
            stats = profile._evaluate(state, False)
            losses.append(best - model.objective(state, stats, profile._n_bag).bound)
    assert min(lost) > -1e-6
    assert max(lost) < 1.0
    # By the mean alone the whitened q would be off by all of it.
    assert lost[0] < 0.1 * stale[0]


def test_the_site_evidence_is_that_of_the_regression_it_stands_for(setting):
    """The gradient, by differences of ``log Z`` written down with plain inverses."""
    _, model, _, point = setting
    state = point.state
    site = SiteEvidence(model, state)
    kernel, params = model._kernel(state.fixed), state.params
    ones, side = (
        constant_values(model._kernel(state.fixed), state),
        float(state.fixed["area_side"][0]),
    )

    def log_z(theta, shift):
        low = factor_of(model._kernel(state.fixed).inducing(theta, params["w"])[0])
        k = low @ low.T
        h = site._linear - shift * (site._precision @ ones)
        inner = np.eye(k.shape[0]) + k @ site._precision
        value = 0.5 * h @ np.linalg.solve(inner, k @ h) - 0.5 * np.linalg.slogdet(inner)[1]
        # What of the site is constant in u.
        value += shift * (ones @ site._linear) - 0.5 * shift**2 * (ones @ site._precision @ ones)
        mean = float(params["mean"][0]) + shift
        value += log_prior_level(model.link_name, mean, state.fixed)[0]
        return value + log_prior(kernel, theta, model.link_name, side)[0]

    theta = params["theta"] + 0.1
    by_theta, by_mean = site.gradient(theta, 0.05)
    h = 1e-4
    for k in range(theta.size):
        away = h * np.eye(theta.size)[k]
        numeric = (log_z(theta + away, 0.05) - log_z(theta - away, 0.05)) / (2 * h)
        assert by_theta[k] == pytest.approx(numeric, rel=1e-4, abs=1e-4)
    numeric = (log_z(theta, 0.05 + h) - log_z(theta, 0.05 - h)) / (2 * h)
    assert by_mean == pytest.approx(numeric, rel=1e-4, abs=1e-4)


def test_the_held_sites_hessian_is_near_that_of_the_profile(setting):
    """At the optimum, where members are drawn from it: within 30 %, by its own size.

    The site moves with the hyperparameters as well, which the held one does not know.
    """
    _, model, profile, point = setting
    phi = profile.pack(point.state.params)
    last = [point.state]

    def minus(at):
        found = profile.at(profile.unpack(last[0], at), 1e-6)
        last[0] = found.state
        return -found.value, -found.grad

    mode = minimize(minus, phi, jac=True, method="L-BFGS-B").x
    state = profile.at(profile.unpack(last[0], mode), EXACT).state
    n, h = 1 + state.params["theta"].size, 0.05
    found = SiteEvidence(model, state).hessian()
    np.testing.assert_array_equal(found, found.T)
    exact = np.empty((n, n))
    for k in range(n):
        ends = []
        for sign in (1, -1):
            moved = mode.copy()
            moved[k] += sign * h
            ends.append(profile.at(profile.unpack(state, moved), EXACT).grad[:n])
        exact[k] = (ends[0] - ends[1]) / (2 * h)
    np.testing.assert_allclose(np.diag(found), np.diag(exact), rtol=0.3, atol=0.15)


def test_a_site_says_where_it_does_not_know_the_curvature_by_the_mean():
    """No slope can carry a constant: the fit then takes differences by the mean."""
    model, state, profile = _profile(kernel="ridge")
    assert not SiteEvidence(model, profile.at(state, EXACT).state).knows_mean


@pytest.mark.parametrize("kernel", ["matern32(space) + constant", "constant + ridge"])
def test_a_higher_mean_is_carried_by_the_term_that_can(kernel):
    model, state, profile = _profile(kernel=kernel)
    point = profile.at(state, EXACT)
    phi, h = profile.pack(point.state.params), 0.02
    found = SiteEvidence(model, point.state).hessian()[0, 0]
    ends = []
    for sign in (1, -1):
        moved = phi.copy()
        moved[0] += sign * h
        ends.append(profile.at(profile.unpack(point.state, moved), EXACT).grad[0])
    exact = (ends[0] - ends[1]) / (2 * h)
    assert found == pytest.approx(exact, rel=0.3)


def test_away_from_the_best_surface_value_and_gradient_err_by_little(setting):
    name, _, profile, best = setting
    phi = profile.pack(best.state.params)
    site, held = [], []
    for seed in range(4):
        away = 0.3 * np.random.default_rng(seed).standard_normal(phi.size)
        near = profile.at(profile.unpack(best.state, phi + away), 0.3)
        exact = profile.at(near.state, EXACT)
        assert abs(near.value - exact.value) < 0.5 * near.left + 1e-6, name
        own = profile.pack(profile._found(near.state, slopes=True).grad)
        site.append(np.linalg.norm(near.grad - exact.grad))
        held.append(np.linalg.norm(own - exact.grad))
    # With q held the gradient errs by more than with its site held.
    assert np.sum(site) < 0.7 * np.sum(held), name


def test_no_slopes_no_gradient_and_the_same_bound(setting):
    _, _, profile, best = setting
    without = profile.at(best.state, 0.05, slopes=False)
    assert without.grad.size == 0
    assert without.value == pytest.approx(best.value, abs=1e-7)
    assert without.passes == 1


def test_a_climb_that_is_cut_short_promises_no_more_than_its_tolerance(setting, monkeypatch):
    _, _, profile, best = setting
    far = profile.unpack(best.state, profile.pack(best.state.params) + 1.0)
    far = replace(far, params={**far.params, "v_mean": 0.0 * far.params["v_mean"] + 2.0})
    monkeypatch.setattr("models.aggregate.profile_bound.MOST_STEPS", 1)
    at = profile.at(far, 0.01)
    assert at.left > 0.1
    assert at.value <= profile._found(far, slopes=False).bound + 0.01


def test_a_step_without_a_bound_is_a_step_too_long():
    """The climb comes back from it; it went on from there with slopes of another place."""
    _, state, profile = _profile(kernel="ridge + matern32(space)")
    whole, evaluate, passes = profile.at(state, EXACT), profile._evaluate, []

    def failing(at, slopes):
        passes.append(at)
        if len(passes) in (2, 3):
            raise NumericalError("too far")
        return evaluate(at, slopes)

    profile._evaluate = failing
    found = profile.at(state, EXACT)
    assert found.value == pytest.approx(whole.value, abs=1e-6)
    assert found.passes < MOST_STEPS


@pytest.mark.parametrize("link", ["exp", "square"])
def test_the_data_widen_no_direction(link):
    """Counts with more noise than the model has: a wide q would stand for it, and swing."""
    bags = country(side=14, n_area=10, cases=400.0, range_=4.0)
    noise = np.random.default_rng(3).gamma(2.0, 0.5, bags.n_bag)
    y = np.rint(bags.y * noise)
    bags = Bags(bags.x, bags.offsets, y, bags.weight, bags.coords)
    _, state, profile = _profile(bags, kernel="ridge + matern32(space)", link=link)
    phi = profile.pack(state.params)
    held = 0.0
    for away in (0.0, 0.5, -0.5):
        point = profile.at(profile.unpack(state, phi + away), EXACT)
        assert point.passes < MOST_STEPS
        assert point.left < EXACT
        root = whitened(point.state.params).factor()
        values = np.linalg.eigvalsh(root @ root.T)
        assert values.max() < 1.0 + 1e-9
        # The best of those: what the bound still asks for would widen what is as wide as the prior.
        at = profile._model.objective(
            point.state, profile._evaluate(point.state, False), bags.n_bag
        )
        excess = np.linalg.inv(root @ root.T) - np.eye(values.size) + at.d_cov + at.d_cov.T
        assert np.linalg.eigvalsh(excess).min() > -1e-3
        held = max(held, float(np.linalg.eigvalsh(excess).max()))
    assert held > 0.05

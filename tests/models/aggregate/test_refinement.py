"""The fit's own steps: they end at the optimum of the profile bound, wherever they begin."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from models import Bags, VBAgg
from models.aggregate import refinement, vbagg
from models.aggregate.fit_memory import CLIMB, MEMBERS, Memory
from models.aggregate.profile_bound import Point, ProfileBound
from models.aggregate.quasi_newton import (
    MOST_DEVIATION,
    bfgs,
    bounded_inverse,
    member_offsets,
)
from models.aggregate.refinement import Curvature
from models.core.errors import NumericalError
from models.core.persist import state_arrays, state_from
from models.core.protocol import State
from models.training.executor import BagsSource, ThreadExecutor
from models.training.loop import Training, start_training, train
from models.training.optim import Plateau
from tests.models.aggregate.country import country, profile_of
from tests.plain import plain

WHOLE_RUNS = True

KERNEL = "ridge + matern32(space)"


@pytest.fixture(scope="module")
def bags():
    return country(side=16, n_area=12, cases=40.0, range_=4.0)


def _model(**settings):
    fixed = {"kernel": KERNEL, "link": "exp", "priors": "weak", "integrate": "none"}
    return plain(VBAgg, **{**fixed, **settings})


def _fitted_from(model, bags, state, max_epochs=300, n_thread=1):
    source = BagsSource(bags, 0, block_bags=3)
    training = Training(state, Plateau(0.01))
    with ThreadExecutor(model, source, n_thread) as executor:
        train(
            model,
            source,
            executor,
            training,
            seed=0,
            learning_rate=0.05,
            batch_bags=5,
            max_epochs=max_epochs,
        )
    return training


def _start(model, bags):
    source = BagsSource(bags, 0, block_bags=3)
    return start_training(model, source, seed=0, learning_rate=0.05, tolerance=0.01).state


def test_a_fit_ends_at_the_optimum_that_another_optimiser_finds(bags):
    model = _model(area_effect=True)
    start = _start(model, bags)
    profile = profile_of(model, bags)
    phi = profile.pack(start.params)
    last = [start]

    def minus(at):
        point = profile.at(profile.unpack(last[0], at), 1e-6)
        last[0] = point.state
        return -point.value, -point.grad

    best = -minimize(minus, phi, jac=True, method="L-BFGS-B", options={"ftol": 1e-10}).fun
    moved = profile.unpack(start, phi + 0.7 * np.resize([1.0, -1.0], phi.size))
    for state in (start, moved):
        training = _fitted_from(model, bags, state)
        assert training.converged
        found = training.history[-1]["bound"]
        left = training.history[-1]["nats_left"]
        assert left < model.nats_left
        # nats_left is honest: an estimate to second order.
        assert -1e-3 < best - found < 1.5 * left + 0.01


@pytest.mark.parametrize("priors", ["weak", "none"])
def test_members_stand_where_hyperparameters_were_drawn(priors, bags):
    model = _model(integrate=6, priors=priors)
    training = _fitted_from(model, bags, _start(model, bags))
    members, memory = training.state.members, training.state.memory
    assert members["weight"] == pytest.approx(np.full(6, 1 / 6))
    profile = profile_of(model, bags)
    mode = profile.pack(training.state.params)
    rows = [
        profile.pack({**training.state.params, **{k: v[n] for k, v in members.items()}})
        for n in range(6)
    ]
    if priors == "none":  # without a posterior that integrates: by the curvature alone
        wanted = mode + member_offsets(memory["inverse"], 6, model.seed)
        np.testing.assert_array_equal(memory["draws"], wanted)
    for own, draw in zip(np.array(rows) - mode, memory["draws"] - mode, strict=True):
        # There, or nearer where the bound falls faster than was promised.
        share = (own @ draw) / (draw @ draw)
        np.testing.assert_allclose(own, share * draw, atol=1e-10)
        assert 0.0 < share <= 1.0 + 1e-10
    for number in range(6):
        params = {name: members[name][number] for name in members if name != "weight"}
        state = replace(training.state, params={**training.state.params, **params})
        own = model.objective(state, profile._evaluate(state, False), bags.n_bag).bound
        assert profile.at(state, 1e-6).value - own < 0.05  # each q is at its best


@pytest.mark.parametrize("fails", ["no bound", "no q"])
def test_members_are_drawn_in_to_where_their_q_is_found(fails, bags, monkeypatch):
    """A draw of which the climb of q ends nowhere gave counts without limit."""
    right, optimum = ProfileBound.at, []

    def limited(self, state, tolerance, least=-np.inf, *, slopes=True):
        phi = self.pack(state.params)
        if slopes:
            optimum[:] = [phi]
        elif np.abs(phi - optimum[0]).max() > 0.1:
            if fails == "no bound":
                raise NumericalError("too far")
            return Point(state, -1e6, phi, 1e4, 40)
        return right(self, state, tolerance, least, slopes=slopes)

    monkeypatch.setattr(ProfileBound, "at", limited)
    model = _model(integrate=4).fit(bags, n_thread=1)
    away = model.state_.members["theta"] - model.state_.params["theta"]
    assert away.shape[0] == 4
    assert np.abs(away).max() < 0.1


def test_offsets_have_the_covariance_asked_for_and_are_antithetic():
    rng = np.random.default_rng(0)
    root = rng.standard_normal((4, 4))
    covariance = root @ root.T
    offsets = member_offsets(covariance, 40_000, 3)
    np.testing.assert_array_equal(offsets[::2], -offsets[1::2])
    found = offsets.T @ offsets / offsets.shape[0]
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    assert (np.abs(found - covariance) < 0.05 * scale).all()
    np.testing.assert_array_equal(member_offsets(covariance, 6, 3), offsets[:6])
    # Whatever their number: the first frame's directions are orthogonal under the precision.
    few = member_offsets(covariance, 8, 3)[::2]
    inner = few @ np.linalg.inv(covariance) @ few.T
    np.testing.assert_allclose(inner - np.diag(np.diag(inner)), 0.0, atol=1e-8)


def test_updates_find_the_inverse_hessian_of_a_parabola():
    rng = np.random.default_rng(1)
    root = rng.standard_normal((5, 5))
    hessian = root @ root.T + np.eye(5)
    inverse, x = np.eye(5), rng.standard_normal(5)
    for _ in range(60):
        grad = hessian @ x
        if np.abs(grad).max() < 1e-7:
            break
        direction = -inverse @ grad
        step = -(grad @ direction) / (direction @ hessian @ direction) * direction
        inverse, x = bfgs(inverse, step, hessian @ step), x + step
    np.testing.assert_allclose(inverse, np.linalg.inv(hessian), rtol=1e-4, atol=1e-5)
    same = bfgs(inverse, np.ones(5), -np.ones(5))  # no curvature: nothing is learnt
    np.testing.assert_array_equal(same, inverse)


def test_the_inverse_is_bounded_where_the_curvature_is_small_or_has_the_wrong_sign():
    rng = np.random.default_rng(2)
    frame, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    found = bounded_inverse((frame * [25.0, 1e-3, -4.0]) @ frame.T)
    expected = (frame * [1 / 25.0, MOST_DEVIATION**2, MOST_DEVIATION**2]) @ frame.T
    np.testing.assert_allclose(found, expected, atol=1e-12)


def _same(one, other):
    assert set(one) == set(other)
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.ci
@pytest.mark.parametrize("cap", [0, 8])
def test_a_fit_taken_up_after_any_step_is_the_same_to_the_bit(cap, bags, monkeypatch, tmp_path):
    monkeypatch.setattr(vbagg, "LEAST_CLIMB", cap or 10**6)
    monkeypatch.setattr(vbagg, "CLIMB_PIXELS", 0)
    model = _model(integrate=4, area_effect=True)
    start = _start(model, bags)
    assert int(start.fixed["climb_pixels"][0]) == cap
    whole = _fitted_from(model, bags, start, n_thread=4)
    assert whole.epoch > 6
    state, epochs = start, 0
    while epochs < whole.epoch:
        # A new model, and a state that has been on disk.
        training = _fitted_from(_model(integrate=4, area_effect=True), bags, state, max_epochs=1)
        np.savez(tmp_path / "at.npz", **state_arrays(training.state))
        with np.load(tmp_path / "at.npz", allow_pickle=False) as file:
            state = state_from({name: file[name] for name in file.files})
        epochs += 1
    assert training.converged
    _same(state_arrays(whole.state), state_arrays(state))


@pytest.mark.ci
def test_a_climb_on_few_pixels_ends_at_the_optimum_of_all(bags, monkeypatch):
    model = _model(integrate=4)
    exact = _fitted_from(model, bags, _start(model, bags))
    monkeypatch.setattr(vbagg, "LEAST_CLIMB", 12)
    monkeypatch.setattr(vbagg, "CLIMB_PIXELS", 0)
    start = _start(model, bags)
    assert int(start.fixed["climb_pixels"][0]) == 12
    thinned = _fitted_from(model, bags, start)
    assert thinned.converged
    assert thinned.history[-1]["bound"] == pytest.approx(exact.history[-1]["bound"], abs=0.1)
    # Members: each q is at its best on all pixels.
    profile = profile_of(model, bags)
    for number in range(4):
        own = {k: v[number] for k, v in thinned.state.members.items() if k != "weight"}
        state = replace(thinned.state, params={**thinned.state.params, **own})
        best = profile.at(state, 1e-6)
        bound = model.objective(state, profile._evaluate(state, False), bags.n_bag).bound
        assert 0 <= best.value - bound + 1e-6 < 0.05
        at, top = (
            model.predict_block(model.block_params(each), bags.x, bags.coords)
            for each in (state, best.state)
        )
        # A divergence of 0.5 nats is a mean within one deviation; they are nearer.
        assert (np.abs(at.m - top.m) < 0.5 * np.sqrt(top.s)).all()


def test_a_fit_that_is_stuck_says_so(bags, monkeypatch):
    """No step against the gradient gains: it must not be taken for an optimum."""
    right = VBAgg.objective

    def wrong(self, state, stats, n_bag, *, slopes):
        at = right(self, state, stats, n_bag, slopes=slopes)
        turned = {name: -at.grad[name] for name in ("mean", "theta") if slopes}
        return replace(at, grad={**at.grad, **turned})

    monkeypatch.setattr(VBAgg, "objective", wrong)
    model = _model().fit(bags, n_thread=1)
    assert not model.converged_
    assert len(model.history_) < 60  # it gave up by itself
    assert model.convergence_["nats_left"] > model.nats_left


def test_a_fit_that_finds_no_optimum_is_given_up_and_says_so(bags, monkeypatch):
    """A count of 0 where thousands are expected: no q settles, at any of its hyperparameters."""
    monkeypatch.setattr(refinement, "MOST_PASSES", 60)
    y = bags.y * 300
    y[5] = 0.0
    wrong = Bags(bags.x, bags.offsets, y, bags.weight * 300, bags.coords)
    model = _model(integrate=4, area_effect=True)
    training = _fitted_from(model, wrong, _start(model, wrong))
    assert not training.converged
    assert training.stopped.endswith(
        "nats may be left to gain, and draws of the hyperparameters are missing; a count that is "
        "far off may be why"
    )
    passes = sum(row["passes"] for row in training.history)
    assert 60 <= passes < 60 + 6 * 42  # the step that was under way has its end
    assert not training.state.members
    model.adopt(training)
    assert np.isfinite(model.predict_pixels(wrong.x, wrong.coords).mean).all()


@pytest.mark.ci
def test_every_pass_of_a_fit_is_reported(bags):
    model, seen = _model(integrate=4), []
    source = BagsSource(bags, 0, block_bags=3)
    training = Training(_start(model, bags), Plateau(0.01))
    with ThreadExecutor(model, source, 1) as executor:
        train(
            model, source, executor, training, seed=0, learning_rate=0.05, batch_bags=5,
            max_epochs=300, on_step=seen.append,
        )  # fmt: skip
    total = int(sum(row["passes"] for row in training.history))
    assert [each.n_pass for each in seen if each.step == 0] == list(range(1, total + 1))
    assert [each.epoch for each in seen if each.step == 1] == list(range(1, training.epoch + 1))
    phases = list(dict.fromkeys(each.phase for each in seen if each.step == 0))
    assert phases == [
        "climb", "curvature", "hyperparameter draw 1 of 4", "hyperparameter draw 3 of 4"
    ]  # fmt: skip
    assert seen[-1].nats_left < model.nats_left


@pytest.mark.parametrize(
    ("gained", "failed", "following"),
    [(0.01, 0, MEMBERS), (0.2, 0, CLIMB), (0.01, 2, CLIMB), (None, 0, CLIMB)],
)
def test_what_a_whole_climb_did_not_gain_is_not_left(
    gained: float | None, failed: int, following: int
) -> None:
    """A curvature that promises .36 nats sends a fit back, unless a climb just had nothing."""
    at = Point(State({"phi": np.zeros(2)}, {}), -3.0, np.full(2, 0.6), 0.0, 1)
    few = SimpleNamespace(pack=lambda params: params["phi"])
    search: Any = SimpleNamespace(
        few=few,
        cap=0,
        tolerance=0.05,
        after_curvature=MEMBERS,
        point=lambda *_: at,
        site_hessian=lambda *_: -np.eye(2),
        unknown=lambda *_: [],
    )
    memory = Memory(failed=failed, tries=1, curved_at=None if gained is None else -3.0 - gained)
    stage = Curvature(search)
    state = stage.step(memory.into(at.state))
    assert stage.terminate(state) == following
    assert Memory.of(state).left == pytest.approx(0.01 if following == MEMBERS else 0.36)

"""Weights of the draws of the hyperparameters after an update: each count is in them once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import models
from models import Bags, Period
from models.aggregate.posterior import member_states
from models.core.protocol import State
from models.temporal.sites import (
    LEVEL,
    SITE,
    Arrow,
    Split,
    carried,
    filled,
    together,
    unpacked,
)
from models.temporal.update import _reweighted, updated
from tests.models.temporal.world import Held, dense_evidence, dense_regression, model_of, months

EXACT = 1e-7  # nats that sites are away from their best
SPREAD = 0.3  # of draws, in logarithms
NEAR = 1e-4  # of weights, in logarithms, where nothing but such tolerances lies between


def _mixed(held: Held, n_draw: int = 3) -> State:
    """Return a state with its best sites, and draws of equal weights with theirs."""
    rng, profile, mode = np.random.default_rng(3), held.profile, held.best(tolerance=EXACT)
    at = profile.pack(mode.params)
    phi = at + SPREAD * rng.standard_normal((n_draw, at.size))
    draws = [held.best(profile.unpack(mode, each), EXACT).params for each in phi]
    rank = max(each["site_root"].shape[1] for each in draws)
    rows = [{**each, "site_root": filled(each["site_root"][None], rank)[0]} for each in draws]
    names = [name for name in (*profile.names, *SITE) if name in mode.params]
    members = {name: np.stack([row[name] for row in rows]) for name in names}
    return replace(mode, members={**members, "weight": np.full(n_draw, 1.0 / n_draw)})


def _updated(held: Held, state: State, *periods: Period) -> State:
    return updated(held.model, state, periods, n_thread=1, tolerance=EXACT).state


def _weights(state: State) -> np.ndarray:
    """Return the logarithms of the weights."""
    return _centred(np.log(state.members["weight"]))


def _centred(nats: np.ndarray | Sequence[float]) -> np.ndarray:
    return np.asarray(nats - np.mean(nats))


def _changed(
    period: Period, more: Mapping[int, float], only: Sequence[int] | None = None
) -> Period:
    """Return a period with other responses, or with some of its areas alone."""
    assert period.bags is not None
    area = np.arange(period.bags.n_bag) if only is None else np.asarray(only)
    y = period.bags.y[area] + [more.get(int(each), 0.0) for each in area]
    return replace(period, bags=replace(period.bags.at(area), y=y))


@dataclass(frozen=True)
class Series:
    """Four months, a model of them, and its state with draws of the hyperparameters."""

    periods: list[Period]
    held: Held
    state: State

    def fitted_anew(self, period: Period) -> np.ndarray:
        """Return the weights of the same draws where a month was another from the start.

        By what the bound of all months gains: no update is in it.
        """
        others = [period if each.time == period.time else each for each in self.periods]
        held = Held(self.held.model, others)
        return _centred(
            [
                held.profile.at(draw, EXACT, slopes=False).value
                - self.held.profile.at(draw, EXACT, slopes=False).value
                for draw in member_states(self.state)
            ]
        )


@pytest.fixture(scope="module", params=["poisson", "negative_binomial"])
def series(request: pytest.FixtureRequest) -> Series:
    periods = months(4, likelihood=request.param)
    held = Held(model_of(likelihood=request.param, n_inducing=9), periods)
    return Series(periods, held, _mixed(held))


def test_the_same_counts_again_change_no_weight(series: Series) -> None:
    """To the tolerance of the sites, month after month, the last and earlier ones."""
    state = series.state
    for t in (3, 3, 1, 0):
        state = _updated(series.held, state, series.periods[t])
    state = _updated(series.held, state, *series.periods[1:])
    np.testing.assert_allclose(_weights(state), 0.0, atol=NEAR)


@pytest.mark.parametrize("t", [3, 1])
def test_a_correction_gives_the_weights_of_a_fit_that_had_it(series: Series, t: int) -> None:
    one = _changed(series.periods[t], {2: 1.0})
    first = _updated(series.held, series.state, one)
    np.testing.assert_allclose(_weights(first), series.fitted_anew(one), atol=NEAR)
    # Three cases, one after the other: not thrice the counts of the month.
    third = first
    for n in (2.0, 3.0):
        third = _updated(series.held, third, _changed(series.periods[t], {2: n}))
    three = series.fitted_anew(_changed(series.periods[t], {2: 3.0}))
    np.testing.assert_allclose(_weights(third), three, atol=5 * NEAR)
    assert np.abs(three).max() < 0.1
    # A digit too many, and areas that are taken out: other months' sites stay as they are.
    for other in (
        _changed(series.periods[t], {2: 1.0, 9: 40.0}),
        _changed(series.periods[t], {}, range(8)),
    ):
        wrong = _updated(series.held, first, other)
        told = series.fitted_anew(other)
        assert np.abs(told).max() > 0.01
        np.testing.assert_allclose(_weights(wrong), told, atol=0.03)
        back = _updated(series.held, wrong, series.periods[t])
        np.testing.assert_allclose(_weights(back), 0.0, atol=NEAR)


def test_a_month_that_trickles_in_ends_where_it_would_have_begun(series: Series) -> None:
    known, last = series.periods[:3], series.periods[3]
    held = Held(series.held.model, known)
    state = _mixed(held)
    at_once = _updated(held, state, last)
    assert np.ptp(_weights(at_once)) > 0.5
    for parts in ([range(8)], [range(5), range(11), range(16)], [range(8, 16)]):
        some = state
        for areas in parts:
            some = _updated(held, some, _changed(last, {}, areas))
        whole = _updated(held, some, last)
        np.testing.assert_allclose(_weights(whole), _weights(at_once), atol=NEAR)


def test_models_of_before_keep_their_weights_where_nothing_changed(series: Series) -> None:
    """They have no levels: the counts of the update tell them, at the sites that are there."""
    state = replace(
        series.state,
        params={k: v for k, v in series.state.params.items() if k != LEVEL},
        members={k: v for k, v in series.state.members.items() if k != LEVEL},
    )
    again = _updated(series.held, state, *series.periods[2:])
    np.testing.assert_allclose(_weights(again), 0.0, atol=NEAR)
    assert np.isnan(again.params[LEVEL]).tolist() == [True, True, False, False]
    # What was taken in since is known.
    one = _changed(series.periods[3], {2: 5.0})
    np.testing.assert_allclose(
        _weights(_updated(series.held, again, one)), series.fitted_anew(one), atol=10 * NEAR
    )
    # Of a month whose counts nobody knows, a correction changes weights by what sites gain.
    assert np.abs(_weights(_updated(series.held, state, one))).max() < 0.1


def test_weights_are_those_of_dense_regression() -> None:
    """Normal responses of bags of one pixel: all evidence is that of one Gaussian."""
    case = dense_regression()
    held, n = case.held, case.inputs.shape[0]
    y = np.concatenate([held.source.read(t).y for t in range(3)]).reshape(3, n)

    def period(t: int, areas: np.ndarray) -> Period:
        bags = Bags(
            np.zeros((areas.size, 1)),
            np.arange(areas.size + 1),
            y[t, areas],
            None,
            case.coords[areas],
        )
        return Period(case.times[t], bags, areas)

    def dense(draw: State, known: np.ndarray) -> float:
        return dense_evidence(held.model, draw, case.inputs, case.coords, case.times, known.ravel())

    state, before = _mixed(held), y.copy()
    draws = member_states(state)
    fitted = [dense(draw, before) for draw in draws]
    some, every = np.arange(4, n), np.arange(n)
    y[1, 3] += 3.0
    for t, areas in ((1, every), (2, some), (0, some), (2, every)):
        state = _updated(held, state, period(t, areas))
        before[t] = np.nan
        before[t, areas] = y[t, areas]
        now = [dense(draw, before) for draw in draws]
        gained = np.subtract(now, fitted)
        assert np.ptp(gained) > 0.1
        np.testing.assert_allclose(_weights(state), _centred(gained), atol=0.01)


def test_levels_are_those_of_the_fit_and_are_saved(tmp_path: Path) -> None:
    periods = months(3)
    model = model_of(integrate=2, n_inducing=6, kernel="ridge(x) + area * time(matern12)")
    model.fit(periods, n_thread=1).save(tmp_path / "model")
    state = models.load(tmp_path / "model").fitted_state()
    held = Held(model, periods)
    for own in (state, *member_states(state)):
        told = held.profile.levelled(own).params[LEVEL]
        np.testing.assert_allclose(own.params[LEVEL], told, atol=1e-9)
        assert Split.of(own.fixed).n_own
        np.testing.assert_array_equal(together(own).params[LEVEL], own.params[LEVEL])
    np.testing.assert_array_equal(together(state).members[LEVEL], state.members[LEVEL])
    # What the sites of the draws had left to gain, and no more, moves their weights.
    again = model.with_periods(periods[2], n_thread=1).fitted_state()
    np.testing.assert_allclose(again.members["weight"], state.members["weight"], rtol=0.03)


def test_a_site_that_is_carried_is_as_high_at_the_same_rates() -> None:
    held = Held(model_of(n_inducing=6), months(2))
    state = held.best()
    split = Split.of(state.fixed)
    rng = np.random.default_rng(0)
    turn = np.eye(split.shared.size) + 0.1 * rng.standard_normal((split.shared.size,) * 2)
    raised, v = rng.standard_normal((2, split.n_value))
    shared, own = split.parts(v)
    old_v = split.join(turn @ shared, 1.3 * own) + raised
    old = unpacked(state.params, split)
    none = Arrow(
        np.zeros_like(turn), np.zeros((split.shared.size, split.n_own)), np.zeros_like(own)
    )
    for before, after in zip(old, carried(old, turn, 1.3, raised), strict=True):
        was = before.level + before.expected(old_v, none)
        assert after.level + after.expected(v, none) == pytest.approx(was, rel=1e-9)


def test_draws_that_no_count_suits_stay_out() -> None:
    found = _reweighted(np.array([0.5, 0.5, 0.0]), np.array([-900.0, -903.0, 1e4]))
    np.testing.assert_allclose(found, [1 / (1 + np.exp(-3.0)), 1 / (1 + np.exp(3.0)), 0.0])

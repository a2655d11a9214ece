"""The evidence of several periods without inducing variables, and what the fit does with it."""

from __future__ import annotations

import numpy as np
import pytest

from models import Bags, Period
from models.aggregate import hyperparameter_chain
from models.aggregate.area_evidence import Evidence
from models.core.protocol import State
from models.core.unions import OWN, union_bags
from models.gp import average_covariance
from models.temporal import search
from models.temporal.series_evidence import SeriesEvidence, find_series_places
from tests.models.temporal.world import Held, model_of, months

KERNEL = "ridge(x) + matern32(space) + matern12(space) * time(matern12) + area * time(matern12)"


def _evidence(held: Held, state: State) -> SeriesEvidence:
    model, shared = held.model, held.model.shared_params(state)
    basis, now = held.profile.smoothed(state)
    periods = {}
    for k, t in enumerate(held.source.block_period.tolist()):
        bags = model.with_area(shared, held.source.read(k))
        periods[t] = ({**shared, **basis.block_arrays(now.mean[t], now.cov[t])}, bags)
    return SeriesEvidence(model, state, periods)


def _phi(held: Held, state: State) -> np.ndarray:
    names = ("theta", "time", *held.model.resolved_likelihood.parameters)
    return np.concatenate([state.params[name] for name in names])


def _dense(held: Held, state: State, x: np.ndarray) -> tuple[float, float]:
    """Return the evidence of normal responses by all pixels, the mean integrated; and the mean."""
    model, fixed = held.model, state.fixed
    params = held.profile.unpack(state, np.append(0.0, x)).params
    blocks = [model.with_area(fixed, held.source.read(k)) for k in range(3)]
    z = np.concatenate([model._scaled(params | fixed, each.x, each.coords) for each in blocks])
    weight = np.concatenate([each.weight for each in blocks]) * float(fixed["base_rate"][0])
    sizes = np.concatenate([np.diff(each.offsets) for each in blocks])
    bag = np.repeat(np.arange(sizes.size), sizes)
    times = np.repeat(fixed["times"], [each.x.shape[0] for each in blocks])
    lag = (times[:, None] - times).ravel()
    whole, text = model._whole(fixed), model.text(fixed)
    parts = [whole.left.left.left, whole.left.left.right, whole.left.right, whole.right]
    ends = np.cumsum([0, *(each.n_theta for each in parts)])
    k, time = np.zeros((z.shape[0], z.shape[0])), text.split(params["time"])
    for number, part in enumerate(parts):
        own = np.asarray(part.matrix(params["theta"][ends[number] : ends[number + 1]], z, z))
        if text.time_of[number] >= 0:
            alike = text.times[text.time_of[number]].covariance(time[text.time_of[number]], lag)
            own = own * np.asarray(alike).reshape(own.shape)
        k += own
    spread = np.zeros((sizes.size, z.shape[0]))
    spread[bag, np.arange(bag.size)] = weight
    own = weight / float(fixed["base_rate"][0])
    noise = np.bincount(bag, own**2) * np.exp(params["log_noise"][0])
    noise += (np.bincount(bag, own) * np.exp(params["log_area_noise"][0])) ** 2
    cov = spread @ k @ spread.T + np.diag(noise)
    ones, y = spread.sum(axis=1), np.concatenate([each.y for each in blocks])
    white = np.linalg.solve(cov, np.stack([y, ones], axis=1))
    precision = ones @ white[:, 1]
    mean = (ones @ white[:, 0]) / precision
    value = -0.5 * (y @ white[:, 0] - precision * mean**2) - 0.5 * np.linalg.slogdet(cov)[1]
    return value - 0.5 * np.log(precision), mean


#: Areas that are one bag in the first period, as districts are that were split after it.
UNIONS = (
    np.full(16, OWN),
    np.where(np.isin(np.arange(16), (5, 6, 9)), 1, np.where(np.arange(16) < 2, 0, OWN)),
)


@pytest.fixture(scope="module", params=UNIONS, ids=["areas", "unions"])
def normal(request: pytest.FixtureRequest) -> tuple[Held, State]:
    model = model_of(kernel=KERNEL, likelihood="normal", n_moving=16, priors="none")
    periods, found = months(3, likelihood="normal"), []
    for each in periods:  # people stay where they are: averages of all periods are those of each
        assert each.bags is not None
        assert periods[0].bags is not None
        bags = Bags(
            each.bags.x,
            each.bags.offsets,
            each.bags.y,
            periods[0].bags.weight,
            each.bags.coords,
        )
        union = request.param if each.time == 0.0 else np.full(16, OWN)
        found.append(Period(each.time, union_bags(bags, union, np.arange(16))))
    held = Held(model, found)
    return held, held.best()


@pytest.mark.ci
def test_the_evidence_of_normal_responses_is_that_of_all_pixels(
    normal: tuple[Held, State], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(average_covariance, "STEP", 0.02)  # of what is interpolated
    held, state = normal
    evidence, start = _evidence(held, state), _phi(held, state)
    rng = np.random.default_rng(3)
    first, exact = evidence.at(start), _dense(held, state, start)[0]
    assert first is not None
    for _ in range(3):
        x = start + 0.4 * rng.standard_normal(start.size)
        there, (value, mean) = evidence.at(x), _dense(held, state, x)
        assert there is not None
        fell = value - exact
        assert there.value - first.value == pytest.approx(fell, abs=0.005 + 0.002 * abs(fell))
        assert there.mean == pytest.approx(mean, abs=0.01)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("likelihood", "near"),
    # Sites of a law without a factor follow the mode: both routes are approximate.
    [("poisson", 0.05), ("beta_binomial", 0.15)],
)
def test_the_bound_follows_the_evidence_of_counts(likelihood: str, near: float) -> None:
    """A second route to both."""
    given = {"likelihood": likelihood, "n_inducing": 16, "n_moving": 16, "priors": "none"}
    held = Held(model_of(kernel=KERNEL, **given), months(4, likelihood=likelihood))
    state = held.best(tolerance=1e-6)
    evidence, start = _evidence(held, state), _phi(held, state)
    here, lowest = evidence.at(start), held.profile.at(state, 1e-6, slopes=False).value
    assert here is not None
    names = [*held.model._kernel(state.fixed).names, *held.model.text(state.fixed).time_names]
    for name in ("matern12_space.lengthscale", "area.variance", "time[1].matern12.scale"):
        for by in (-0.7, 0.7):
            x = start.copy()
            x[names.index(name)] += by
            there = evidence.at(x)
            assert there is not None
            away = held.profile.unpack(state, np.append(state.params["mean"], x))
            fell = held.profile.at(away, 1e-6, slopes=False).value - lowest
            assert there.value - here.value == pytest.approx(fell, abs=near + 0.02 * abs(fell))


def test_terms_of_space_have_averages_of_areas_or_of_groups_of_them() -> None:
    for n_moving, groups, nodes in ((16, 16, 8), (5, 5, 8)):
        held = Held(model_of(kernel=KERNEL, n_inducing=16, n_moving=n_moving), months(2))
        fixed, w = held.start.fixed, held.start.params["w"]
        assert fixed["term_values"].tolist()[1:3] == [16, groups]
        assert fixed["term_nodes"].tolist()[1:3] == [8, nodes]
        ends = np.cumsum(fixed["term_values"] * fixed["term_nodes"])
        own = slice(ends[1], ends[2])
        share = fixed["node_share"][own].reshape(groups, nodes)
        np.testing.assert_allclose(share.sum(axis=1), 1.0)
        assert (w[own, :3] == 0.0).all()  # covariates, and the area's number
        if groups == 16:  # one to each area: 2 x 2 pixels
            spread = np.ptp(w[own, 3:].reshape(16, nodes, 2), axis=1)
            assert (spread < np.ptp(w[own, 3:], axis=0) / 3).all()


@pytest.mark.ci
def test_draws_are_those_of_the_evidence_where_bags_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mode that the optimum does not see gets its share of the draws."""
    monkeypatch.setattr(hyperparameter_chain, "KEPT", 900)
    asked = []

    def explored(self: SeriesEvidence, x: np.ndarray) -> Evidence:
        asked.append(x)
        step = x - asked[0]
        far = np.logaddexp(-0.5 * step[0] ** 2, -0.5 * (step[0] - 4.0) ** 2)
        return Evidence(float(far - 0.5 * step[1:] @ step[1:]), -0.5, 100.0)

    monkeypatch.setattr(SeriesEvidence, "at", explored)
    settings = {"integrate": 8, "kernel": "matern32(space) + area * time(matern12)"}
    fitted = model_of(**settings).fit(months(3), n_thread=1)
    members, start = fitted.state_.members, fitted.state_.params["theta"]
    assert len(asked) > 900
    assert members["theta"].shape[0] == 8
    away = members["theta"][:, 0] - start[0]
    assert away.min() < 2.0 < away.max()
    asked.clear()
    monkeypatch.setattr(search, "MOST_CHAINED", 10)
    model_of(**settings).fit(months(3), n_thread=1)
    assert not asked


def test_draws_of_a_chain_stay_where_the_bound_falls_by_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hyperparameter_chain, "KEPT", 300)
    start = []

    def explored(self: SeriesEvidence, x: np.ndarray) -> Evidence:
        start.append(x)
        return Evidence(float(-0.5 * (((x - start[0]) / 2.0) ** 2).sum()), 0.0, 100.0)

    monkeypatch.setattr(SeriesEvidence, "at", explored)
    settings = {"integrate": 6, "kernel": "matern32(space) + area * time(matern12)"}
    fitted = model_of(**settings).fit(months(3), n_thread=1)
    drawn, theta = fitted.state_.memory["draws"], fitted.state_.members["theta"]
    np.testing.assert_allclose(theta, drawn[:, 1 : 1 + theta.shape[1]], rtol=1e-12)
    assert fitted.hyperparameter_draws_["nearer"] == 0
    assert np.ptp(theta, axis=0).min() > 1.0


def test_places_are_the_areas_own_effect_and_what_stays_in_space() -> None:
    held = Held(model_of(kernel=KERNEL), months(2))
    places = find_series_places(held.model, held.start)
    names = ["mean", *held.model._kernel(held.start.fixed).names]
    assert places is not None
    assert [names[at] for at in (places.noise, places.variance, places.length)] == [
        "area.variance",
        "matern32_space.variance",
        "matern32_space.lengthscale",
    ]
    without = Held(model_of(kernel="ridge(x) + matern32(space)"), months(2))
    assert find_series_places(without.model, without.start) is None


def test_noise_takes_its_share_of_what_differs_between_neighbours(
    normal: tuple[Held, State],
) -> None:
    held, state = normal
    evidence, x = _evidence(held, state), _phi(held, state)
    shares = []
    for step in (-8.0, 0.0, 8.0):
        at = x.copy()
        at[held.model._kernel(state.fixed).names.index("area.variance")] += step
        shares.append(evidence.noise_share(at, 0.0))
    assert shares[0] < 0.01 < shares[1] < 0.99 < shares[2]

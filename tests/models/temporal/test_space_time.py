"""Models of several periods, each fact by a second route."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import models
from models import Period, SpaceTime, VBAgg
from models.aggregate.posterior import posterior_of
from models.aggregate.profile_bound import ProfileBound
from models.core.block import BagBlock
from models.core.errors import BagsError, ParameterError
from models.core.protocol import State, override
from models.gp.kernel_terms import term_kernel
from models.gp.kernel_text import parse_kernel
from models.gp.kernels import Kernel
from models.temporal.posterior import PathPosterior, PeriodDraws, path_posterior
from models.temporal.profile import HeldSites
from models.temporal.sites import Split, unpacked
from models.training.executor import ThreadExecutor
from tests.models.temporal.world import Held, dense_regression, model_of, months

STILL = "ridge(x) + matern32(space)"
LIKELIHOODS = ["poisson", "negative_binomial", "beta_binomial", "normal"]


class OnePeriod(VBAgg):
    """The one-period model with the inducing points of another."""

    @override
    def _kernel(self, fixed: dict[str, np.ndarray]) -> Kernel:
        whole = parse_kernel(self.kernel, fixed["x_mean"].size, has_coords=True)
        return term_kernel(whole, fixed)


def _one_period(held: Held, **settings: object) -> tuple[VBAgg, State]:
    """Return the one-period model at the same hyperparameters, ``q`` narrow."""
    model = OnePeriod(kernel=STILL, link=held.model.link_name, **settings)  # type: ignore[arg-type]
    params = {k: v for k, v in held.start.params.items() if "site" not in k and k != "time"}
    n = int(held.start.fixed["term_values"].sum())
    params |= {"v_mean": np.zeros(n), "root": np.diag(np.full(n, np.log(1e-3)))}
    return model, State(params, held.start.fixed)


def _profile(model: VBAgg, bags: BagBlock) -> ProfileBound:
    def evaluate(state: State, slopes: bool) -> models.core.protocol.Stats:  # type: ignore[name-defined]
        params = {**model.block_params(state), "slopes": np.array([slopes])}
        return model.block_stats(params, bags, None)[0]

    return ProfileBound(model, evaluate, bags.n_bag)


@pytest.fixture
def _no_precision_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.temporal.sites.LEAST", 1e-9)


@pytest.mark.usefixtures("_no_precision_left_out")
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_one_period_is_the_one_period_model(likelihood: str) -> None:
    periods = months(1, likelihood=likelihood)
    held = Held(model_of(kernel=STILL, likelihood=likelihood), periods)
    for name in held.model.resolved_likelihood.parameters:  # where no count asks for a wider q
        held.start.params[name] = np.array([-2.0])
    other, state = _one_period(held, likelihood=likelihood)
    mine = held.profile.at(held.start, 1e-9)
    theirs = _profile(other, held.source.read(0)).at(state, 1e-9)
    # Where responses vary by more than the law allows both climbs are slow.
    near = 1e-3 if likelihood == "negative_binomial" else 1e-6
    assert mine.value == pytest.approx(theirs.value, abs=near)
    most = np.abs(theirs.grad).max()
    np.testing.assert_allclose(mine.grad, theirs.grad, atol=(2e-4 + 2 * near) * most)
    bags = periods[0].bags
    assert bags is not None
    at = path_posterior(held.model, mine.state).at(0.0).moments(bags.x, bags.coords)
    same = posterior_of(other, theirs.state).moments(bags.x, bags.coords)
    np.testing.assert_allclose(at.parts[0].m, same.parts[0].m, atol=1e-4 + near)
    np.testing.assert_allclose(at.parts[0].s, same.parts[0].s, rtol=1e-3 + 5 * near, atol=1e-6)


@pytest.mark.usefixtures("_no_precision_left_out")
@pytest.mark.parametrize(("likelihood", "near"), [("normal", 1e-6), ("poisson", 0.01)])
def test_what_holds_still_is_one_process_for_all_periods(likelihood: str, near: float) -> None:
    """Of counts, no period widens what another narrows: a little is lost where one would."""
    held = Held(model_of(kernel=STILL, likelihood=likelihood), months(3, likelihood=likelihood))
    other, state = _one_period(held, likelihood=likelihood)
    joined = BagBlock.join([held.source.read(k) for k in range(3)])
    mine = held.profile.at(held.start, 1e-8)
    theirs = _profile(other, joined).at(state, 1e-8)
    assert mine.value == pytest.approx(theirs.value, abs=near)
    most = np.abs(theirs.grad).max()
    np.testing.assert_allclose(mine.grad, theirs.grad, atol=(1e-4 + 2 * near) * most)
    mean, _ = path_posterior(held.model, mine.state).mode.moments_of_values([2.0])[0]
    np.testing.assert_allclose(mean, theirs.state.params["v_mean"], atol=1e-4 + 2 * near)


def test_normal_responses_are_dense_regression_in_space_and_time() -> None:
    """Bags of one pixel, inducing points at all of them: nothing is left to approximate."""
    case = dense_regression()
    held, state, n = case.held, case.state, case.inputs.shape[0]
    assert held.profile.at(state, 1e-6).value == pytest.approx(case.evidence, abs=2e-3)
    posterior = path_posterior(held.model, state)
    for t, time in enumerate(case.times):
        at, own = (
            posterior.at(time).moments(case.inputs, case.coords).parts[0],
            slice(t * n, t * n + n),
        )
        np.testing.assert_allclose(at.m, case.mean[own], atol=1e-4)
        np.testing.assert_allclose(at.s, np.diag(case.cov)[own], atol=1e-4)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("kernel", "likelihood"),
    [
        ("ridge(x) + matern32(space) * time(matern32) + area * season", "binomial"),
        ("(linear + matern12(space)) * time(constant + matern12) + season", "negative_binomial"),
        ("area + constant * season + ridge(x)", "normal"),
    ],
)
def test_the_gradient_is_that_of_differences(kernel: str, likelihood: str) -> None:
    model = model_of(kernel=kernel, likelihood=likelihood, n_inducing=6, n_moving=5, harmonics=1)
    held = Held(model, months(3, likelihood=likelihood))
    at = held.profile.at(held.start, 1e-7)
    phi, by = held.profile.pack(at.state.params), 1e-2
    # Sites are held at nothing where counts that vary by more than their law would widen ``q``:
    # the slopes of the normal law alone are exact.
    near = 1e-3 if likelihood == "normal" else 2e-3 * float(np.abs(at.grad).max())
    for k in range(phi.size):
        ends = []
        for sign in (1.0, -1.0):
            away = phi.copy()
            away[k] += sign * by
            state = held.profile.unpack(at.state, away)
            ends.append(held.profile.at(state, 1e-6, slopes=False).value)
        slope = (ends[0] - ends[1]) / (2 * by)
        assert at.grad[k] == pytest.approx(slope, abs=near + 5e-3 * abs(slope))


def test_blocks_do_not_matter() -> None:
    whole, cut = (Held(model_of(), months(3), pixels) for pixels in (8192, 16))
    assert len(cut.source.block_bags) > 3 * len(whole.source.block_bags)
    one, many = (held.profile.at(held.start, 1e-3) for held in (whole, cut))
    assert one.value == pytest.approx(many.value, abs=1e-8)
    np.testing.assert_allclose(one.grad, many.grad, atol=1e-6)


@pytest.fixture(scope="module")
def fitted() -> SpaceTime:
    model = model_of(integrate=2, n_inducing=9)
    return model.fit(months(5), n_thread=1)


def test_threads_give_the_same_bits(fitted: SpaceTime) -> None:
    source = models.PeriodSource(months(5), block_pixels=16)
    state = fitted.fitted_state()
    params = {**fitted.posterior_.mode.params_at(2.0), "slopes": np.array([True])}
    assert state.step > 0
    found = []
    for n_thread in (1, 3):
        with ThreadExecutor(fitted, source, n_thread) as executor:  # type: ignore[arg-type]
            blocks = np.flatnonzero(source.block_period == 2).tolist()
            found.append(executor.sum(params, blocks))
    assert found[0].bound == found[1].bound
    for name, value in found[0].sums.items():
        np.testing.assert_array_equal(value, found[1].sums[name])


def test_a_fit_ends_at_its_optimum_and_is_saved_whole(fitted: SpaceTime, tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert fitted.converged_
    assert fitted.convergence_["nats_left"] < 0.05
    assert {
        "time[0].matern12.scale",
        "area_sd",
        "area.variance",
    } <= fitted.named_hyperparameters().keys()
    fitted.save(tmp_path / "model")
    again = models.load(tmp_path / "model")
    assert isinstance(again, SpaceTime)
    bags = months(5)[3].bags
    assert bags is not None
    area = np.repeat(np.arange(16), 4)
    for time in (3.0, 8.5):
        mine = fitted.predict_pixels(bags.x, bags.coords, time, area)
        other = again.predict_pixels(bags.x, bags.coords, time, area)
        np.testing.assert_array_equal(mine.mean, other.mean)
        packed = PathPosterior.unpacked(fitted, fitted.posterior_.pack()).at(time)
        np.testing.assert_array_equal(
            packed.moments(again.inputs(bags.x, area), bags.coords).mean, mine.mean
        )
        # What travels to who predicts tiles: the arrays of one period.
        arrays = fitted.posterior_.at(time).pack()
        tile = fitted.predict_block(arrays, fitted.inputs(bags.x, area), bags.coords)
        np.testing.assert_array_equal(tile.mean, mine.mean)
    assert len(fitted.posterior_.parts) == 2
    assert set(fitted.hyperparameter_table()["time[0].matern12.scale"]) >= {"mode", "mean"}


def test_the_climb_on_few_pixels_ends_on_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.temporal.placing.CLIMB_PIXELS", 0)
    monkeypatch.setattr("models.temporal.placing.LEAST_CLIMB", 2)
    kernel, whole = "ridge(x) + area * time(matern12)", months(3)
    few = model_of(kernel=kernel).fit(whole, n_thread=1)
    assert {row["stage"] for row in few.history_} == {0, 1, 2}
    assert few.converged_
    held = Held(model_of(kernel=kernel), whole)  # of all pixels, whatever the fit read
    at = held.profile.at(few.fitted_state(), 1e-3)
    assert few.bound_ == pytest.approx(at.value, abs=0.05)
    assert np.abs(at.grad).max() < 0.5
    precision = -HeldSites(held.model, at.state).hessian()
    told = at.grad[: len(precision)]
    assert 0.5 * told @ np.linalg.solve(precision, told) < 0.05  # nats


def test_drawn_functions_have_the_moments_of_all_periods(fitted: SpaceTime) -> None:
    """Single times, and a difference between times, forecasts among them."""
    bags = months(5)[3].bags
    assert bags is not None
    model = SpaceTime(**{**fitted.get_params(), "integrate": "none"})
    model.state_ = replace(fitted.fitted_state(), members={})
    area, n, times = np.repeat(np.arange(16), 4), 1500, [2.0, 4.0, 6.0]
    x = model.inputs(bags.x, area)
    draws = model.posterior_.draws(n, np.random.default_rng(8), times)
    f = {time: np.log(draws.rate(x, bags.coords, period=time)) for time in times}
    for time in times:
        at = model.posterior_.at(time).moments(x, bags.coords).parts[0]
        m = at.m + np.log(at.scale)
        assert (np.abs(f[time].mean(axis=0) - m) / np.sqrt(at.s)).max() < 5.0 / np.sqrt(n)
        np.testing.assert_allclose(f[time].var(axis=0), at.s, rtol=0.35)
    # What holds still cancels in differences: they vary by less than if periods were independent.
    for first, second in pairwise(times):
        apart = (f[second] - f[first]).var(axis=0)
        assert (apart < 0.8 * (f[first].var(axis=0) + f[second].var(axis=0))).mean() > 0.9


def test_far_forecasts_go_to_the_prior_of_what_moves(fitted: SpaceTime) -> None:
    fitted.posterior_.prepare([1e5, 5.0])
    part = fitted.posterior_.mode
    moves = part.arrays["value_time"] == 0
    (far, near) = part.moments_of_values([1e5, 5.0])
    np.testing.assert_allclose(far[0][moves], 0.0, atol=1e-6)
    split = part.split
    np.testing.assert_allclose(far[1].diagonal(split)[moves], 1.0, atol=1e-6)
    np.testing.assert_allclose(far[1].cross[:, moves[split.own]], 0.0, atol=1e-6)
    assert near[1].diagonal(split)[moves].max() < 1.0


def test_a_new_period_is_close_to_a_refit_with_the_same_hyperparameters() -> None:
    periods = months(5)
    held = Held(model_of(), periods)
    model = held.model
    before = Held(model_of(), periods[:4])
    start = {k: v for k, v in held.start.params.items() if "site" not in k}
    state = replace(
        before.start,
        params={**before.start.params, **start},
        fixed={**held.start.fixed, "times": np.arange(4.0)},
    )
    model.state_ = before.best(state)
    model.history_, model.converged_ = [{"bound": 0.0}], True
    updated = model.with_periods(periods[4], n_thread=1)
    refit = path_posterior(model, held.best())
    for time in (0.0, 4.0):
        mine = updated.posterior_.mode.moments_of_values([time])[0]
        other = refit.mode.moments_of_values([time])[0]
        sd, own = (np.sqrt(at[1].diagonal(refit.mode.split)) for at in (other, mine))
        assert np.abs((mine[0] - other[0]) / sd).max() < 0.15
        np.testing.assert_allclose(own / sd, 1.0, atol=0.05)
    # A correction that changes nothing changes little; then all sites are the refit's.
    again = updated.with_periods(*periods, n_thread=1).posterior_.mode.moments_of_values([0.0])[0]
    exact = refit.mode.moments_of_values([0.0])[0]
    np.testing.assert_allclose(again[0], exact[0], atol=0.02 * np.sqrt(exact[1].shared.max()))


def test_an_update_weighs_the_draws_of_the_hyperparameters(fitted: SpaceTime) -> None:
    new = fitted.with_periods(months(6)[5], n_thread=1)
    assert new.posterior_.times.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    weight = new.fitted_state().members["weight"]
    assert weight.sum() == pytest.approx(1.0)
    assert weight.std() > 0
    assert fitted.posterior_.times.size == 5
    bags = months(6)[5].bags
    assert bags is not None
    counts = new.predict_bags(bags, n_draws=200, observed=True).draws.mean(axis=0)
    assert np.corrcoef(counts, bags.y)[0, 1] > 0.75


def test_an_area_without_counts_and_a_period_without_any_need_nothing() -> None:
    periods = months(4)
    some = periods[2].bags
    assert some is not None
    periods[1] = Period(1.0, None)
    periods[2] = Period(2.0, some.at(np.arange(5, 16)))
    held = Held(model_of(), periods)
    state = held.best(tolerance=1e-3)
    sites = unpacked(state.params, Split.of(state.fixed))
    assert [site.empty for site in sites] == [False, True, False, False]
    at = path_posterior(held.model, state).at(1.0)
    x = held.model.with_area(held.start.fixed, held.source.read(0))
    assert np.isfinite(at.moments(x.x, x.coords).mean).all()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda p: [p[1], p[0]], "do not rise"),
        (lambda p: [Period(0.0, None)], "without any bag"),
        (lambda p: [Period(0.0, p[0].bags, np.zeros(16, int))], "two bags of one area"),
        (lambda p: [Period(0.0, p[0].bags, np.zeros(3, int))], "has 3 areas for 16 bags"),
    ],
)
def test_periods_that_do_not_fit_are_refused(change, found: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BagsError, match=found):
        model_of().fit(change(months(2)), n_thread=1)


def test_what_cannot_be_is_refused(fitted: SpaceTime) -> None:
    with pytest.raises(ParameterError, match="posterior_steps"):
        model_of(posterior_steps="adam").fit(months(2), n_thread=1)
    bags = months(6)[5].bags
    assert bags is not None
    new = Period(5.0, bags.at(np.array([0])), np.array([99]))
    with pytest.raises(BagsError, match="area 99 is new"):
        fitted.with_periods(new, n_thread=1)
    with pytest.raises(BagsError, match="area has shape"):
        fitted.predict_pixels(np.zeros((2, 2)), np.zeros((2, 2)), 1.0, np.array([0, 16]))
    with pytest.raises(ParameterError, match="was not drawn"):
        fitted.sample_functions(2, np.random.default_rng(0), [1.0]).at(2.0)
    with pytest.raises(ParameterError, match="do not rise"):
        fitted.sample_functions(2, np.random.default_rng(0), [2.0, 1.0])
    with pytest.raises(BagsError, match="no periods"):
        model_of().init(
            models.training.executor.BagsSource(months(1)[0].bags, 0).summary(
                np.random.default_rng(0)
            ),
            np.random.default_rng(0),
        )  # type: ignore[attr-defined,arg-type]


def test_a_period_of_a_model_is_a_model(fitted: SpaceTime) -> None:
    """It predicts, draws and aggregates what the whole model says of that time."""
    periods = months(3)
    drawn = fitted.sample_functions(40, np.random.default_rng(2), [1.0, 3.0])
    for time, known in ((1.0, periods[1]), (3.0, periods[2])):  # of the data, and a forecast
        bags = known.numbered(0, 1 << 40)
        own = np.repeat(known.areas, np.diff(bags.offsets))
        model = fitted.at(time, drawn)
        inputs = fitted.inputs(bags.x, own)
        assert model.numbers_areas == (inputs.shape[1] > bags.x.shape[1])
        expected = fitted.predict_pixels(bags.x, bags.coords, time, own)
        np.testing.assert_array_equal(model.predict_pixels(inputs, bags.coords).mean, expected.mean)
        functions = model.sample_functions(40, np.random.default_rng(0))
        np.testing.assert_array_equal(
            model.predict_bags(replace(bags, x=inputs), draws=functions).draws,
            fitted.predict_bags(bags, period=time, draws=drawn).draws,
        )
    assert model.hyperparameter_table() == fitted.hyperparameter_table()


def test_draws_in_parts_are_draws_of_one(fitted: SpaceTime) -> None:
    """One part is what the whole draws; several have its moments, and differ from each other."""
    bags = months(3)[1].numbered(0, 1 << 40)
    times = [1.0, 2.0, 3.0]
    whole = fitted.sample_functions(40, np.random.default_rng(5), times)
    (one,) = fitted.posterior_.draws_in_parts([40], np.random.default_rng(5), times)

    def aggregates(drawn: PeriodDraws, time: float) -> np.ndarray:
        return fitted.predict_bags(bags, period=time, draws=drawn).draws

    np.testing.assert_array_equal(aggregates(one, 2.0), aggregates(whole, 2.0))
    parts = list(fitted.posterior_.draws_in_parts([600] * 4, np.random.default_rng(6), times))
    # Each costs features at every pixel: two draws of the hyperparameters are one of a part.
    assert [len(each.at(1.0).parts) for each in parts] == [1] * 4
    assert np.unique([each.at(1.0).member[0] for each in parts], return_counts=True)[1].tolist() \
        == [2, 2]  # fmt: skip
    found = np.log([[aggregates(each, time) for time in (1.0, 3.0)] for each in parts])
    other = np.log(
        [
            aggregates(fitted.sample_functions(2400, np.random.default_rng(7), times), t)
            for t in (1.0, 3.0)
        ]
    )
    pooled = np.concatenate(list(found), axis=1)  # (2, 2400, n_bag)
    sd = other.std(axis=1)
    error = (pooled.mean(axis=1) - other.mean(axis=1)) / (sd * np.sqrt(2 / 2400))
    assert np.abs(error).max() < 4.5
    np.testing.assert_allclose(pooled.std(axis=1), sd, rtol=0.1)
    across = (found[:, 0] - pooled.mean(axis=1)[0]) * (found[:, 1] - pooled.mean(axis=1)[1])
    joint = ((other[0] - other[0].mean(axis=0)) * (other[1] - other[1].mean(axis=0))).mean(axis=0)
    np.testing.assert_allclose(across.mean(axis=(0, 1)), joint, atol=0.2 * float(sd.max()) ** 2)
    assert np.abs(found[0] - found[1]).min() > 0  # no values are drawn twice


def test_a_model_of_before_opens(fitted: SpaceTime) -> None:
    old = SpaceTime(**fitted.get_params())
    fixed = {name: each for name, each in fitted.state_.fixed.items() if name != "n_feat"}
    old.state_ = replace(fitted.state_, fixed=fixed)
    assert old._whole(fixed) == fitted._whole(fitted.state_.fixed)

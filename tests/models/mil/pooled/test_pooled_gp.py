"""The pooled GP against finite differences, quadrature, importance sampling and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, log_expit, logsumexp, ndtri
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct

import models
from models import Bags, PooledGP
from models.core.errors import ParameterError
from models.likelihoods.probability import gauss_hermite
from models.mil.pooled import pooled_evidence
from models.mil.pooled.bag_pooling import pool
from models.mil.pooled.pooled_calibration import (
    N_FOLD,
    OF_BAGS,
    fit_calibration,
    fold_of,
    moved_logits,
    score_sums,
)
from models.mil.pooled.pooled_pass import SCORE, PooledPass
from models.mil.pooled.pooled_search import PooledSearch
from models.mil.pooled.rank_scaling import N_KNOT, normal_scores, rank_knots
from models.training.executor import BagsSource, ThreadExecutor
from models.training.few_pixels import WholeSums
from models.training.loop import start_training

POOLINGS = ("soft_max", "noisy_or")


def _bags(seed=0, n_bag=30, most=8, n_feat=3, noise=0.5):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, most + 1, n_bag))])
    x = rng.normal(size=(offsets[-1], n_feat))
    top = np.maximum.reduceat(x[:, 0], offsets[:-1]) + noise * rng.normal(size=n_bag)
    return Bags(x, offsets, (top > np.median(top)).astype(float))


class _Opened:
    """A search at its start, and the state it starts from."""

    def __init__(self, model, bags, block_bags=8):
        self._source = BagsSource(bags, 0, block_bags=block_bags)
        self.state = start_training(
            model, self._source, seed=0, learning_rate=1.0, tolerance=0.01
        ).state
        self._model, self._n_bag = model, bags.n_bag

    def __enter__(self):
        blocks = list(range(len(self._source.block_bags)))
        self._executor = ThreadExecutor(self._model, self._source, 1)
        self._sums = WholeSums(self._model, self._executor, blocks)
        self.search: PooledSearch = self._model.refinement(self.state, self._n_bag, self._sums)
        self.evidence = self.search._evidence
        self.state = self.search.init(self.state)
        return self

    def __exit__(self, *exc):
        self._executor.__exit__()

    def at(self, theta, log_t=0.0, log_sd=0.0):
        of_bags = self.state.params.get("bag_theta", np.zeros(0))
        return self.search._unpack(self.state, np.array([*theta, *of_bags, log_t, log_sd]))


@pytest.mark.parametrize("kind", POOLINGS)
def test_derivatives_of_the_pooling_by_finite_differences(kind):
    rng = np.random.default_rng(1)
    offsets, t, h = np.array([0, 1, 3, 7]), 0.8, 1e-5
    f = 2 * rng.normal(size=7)
    at = pool(kind, f, offsets, t)
    bag = np.repeat(np.arange(3), np.diff(offsets))
    for i in range(7):
        up, down = (pool(kind, f + d * np.eye(7)[i], offsets, t) for d in (h, -h))
        assert (up.logit - down.logit)[bag[i]] / (2 * h) == pytest.approx(at.share[i], abs=1e-8)
        by = (up.share - down.share) / (2 * h)
        same = bag == bag[i]
        expected = -at.rank_one[bag[i]] * at.share * at.share[i] * same
        expected[i] += at.diagonal[i]
        np.testing.assert_allclose(by, expected, atol=1e-8)
    up, down = (pool(kind, f, offsets, t * np.exp(d)) for d in (h, -h))
    np.testing.assert_allclose((up.logit - down.logit) / (2 * h), at.by_log_t, atol=1e-8)
    np.testing.assert_allclose((up.share - down.share) / (2 * h), at.share_by_log_t, atol=1e-8)


def test_the_soft_max_goes_from_the_mean_to_the_maximum():
    f, offsets = np.array([-800.0, 3.0, 3.5, 40.0, 41.0]), np.array([0, 3, 5])
    for t in (1e-14, 1e-10):
        at = pool("soft_max", f, offsets, t)
        np.testing.assert_allclose(at.logit, [-793.5 / 3, 40.5], rtol=1e-9 + 1e6 * t)
        np.testing.assert_allclose(at.share, [1 / 3, 1 / 3, 1 / 3, 0.5, 0.5], rtol=1e-6)
        assert np.abs(at.by_log_t).max() < 1e-4
    at = pool("soft_max", f, offsets, 1e8)
    np.testing.assert_allclose(at.logit, [3.5, 41.0], rtol=1e-7)
    np.testing.assert_allclose(at.share, [0, 0, 1, 0, 1], atol=1e-12)
    between = pool("soft_max", f, offsets, 0.7)
    np.testing.assert_allclose(
        between.logit,
        [(logsumexp(0.7 * f[a:b]) - np.log(b - a)) / 0.7 for a, b in ((0, 3), (3, 5))],
    )


def test_noisy_or_is_that_any_instance_is_positive():
    f, offsets = np.array([-40.0, -2.0, 1.0, 900.0, -900.0]), np.array([0, 1, 3, 4, 5])
    logit = pool("noisy_or", f, offsets, 1.0).logit
    none = (1 - expit(-2.0)) * (1 - expit(1.0))
    assert logit[0] == pytest.approx(-40.0)
    assert expit(logit[1]) == pytest.approx(1 - none)
    assert logit[2] == pytest.approx(900.0)
    assert logit[3] < -600


@pytest.mark.parametrize(
    ("kind", "kernel"),
    [
        *(("soft_max", kernel) for kernel in ("rbf", "ridge + rbf", "matern52 + linear")),
        ("noisy_or", "ard"),
    ],
)
def test_the_gradient_of_the_evidence_by_finite_differences(kind, kernel, monkeypatch):
    monkeypatch.setattr(pooled_evidence, "SMALL", 1e-14)  # differences see where the mode is
    statistics = "auto" if kernel in ("rbf", "ridge + rbf") else "none"
    model = PooledGP(pooling=kind, kernel=kernel, n_inducing=15, statistics=statistics)
    with _Opened(model, _bags()) as opened:
        search = opened.search
        rng = np.random.default_rng(2)
        phi = search._pack(opened.state.params)
        phi += 0.3 * rng.normal(size=phi.size)
        at, _, grad = search._point(search._unpack(opened.state, phi))
        h = 1e-4
        for k in range(phi.size):
            up, down = (
                search._point(search._unpack(at.state, phi + d * np.eye(phi.size)[k]))[1]
                for d in (h, -h)
            )
            assert (up - down) / (2 * h) == pytest.approx(grad[k], abs=2e-5)


def test_bags_of_one_instance_are_scikit_learns_classifier():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 2))
    y = (x[:, 0] + 0.5 * rng.normal(size=40) > 0).astype(float)
    bags = Bags(x, np.arange(41), y)
    model = PooledGP(n_inducing=40, scaling="deviation", calibrate="none")
    with _Opened(model, bags) as opened:
        found = opened.evidence.mode(opened.at(np.log([2.5, 0.8]), log_sd=np.log(1.5)))
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    kernel = ConstantKernel(2.5) * RBF(0.8) + ConstantKernel(1.5**2)
    other = GaussianProcessClassifier(kernel, optimizer=None).fit(z, y)
    assert found.evidence == pytest.approx(other.log_marginal_likelihood(), abs=2e-4)


@pytest.mark.parametrize("kind", POOLINGS)
def test_the_evidence_by_importance_sampling(kind):
    bags = _bags(seed=4, n_bag=12, most=3, n_feat=1)
    model = PooledGP(pooling=kind, n_inducing=4, scaling="deviation", statistics="none")
    rng = np.random.default_rng(5)
    # The error of Laplace's method with the Gauss-Newton precision is of first order in the prior's
    # variances, and below half a nat beyond; that of sampling is below 0.003 but at the last.
    for log_variance, log_sd, close in ((-7.0, -3.5, 0.005), (-4.0, -2.0, 0.06), (0.0, 0.0, 0.5)):
        with _Opened(model, bags) as opened:
            phi = [log_variance, 0.0, *([0.3] if kind == "soft_max" else []), log_sd]
            state = opened.search._unpack(opened.state, np.array(phi))
            found = opened.evidence.mode(state)
            params = model.block_params(state)
        v = found.state.params["v_mean"]
        white = rng.standard_normal((50_000, v.size))
        draws = v + 1.1 * white @ found.state.params["factor"].T
        run = _pass(model, params, bags)
        scale = pooled_evidence.intercept_scale(state.params)
        f = run.times((draws * scale).T)  # (n_pix, n_draws)
        t = float(np.exp(state.params["log_t"][0]))
        logp = -0.5 * (draws**2).sum(axis=1) + 0.5 * (white**2).sum(axis=1)
        logp += np.linalg.slogdet(1.1 * found.state.params["factor"])[1]
        for a in range(bags.n_bag):
            here = f[bags.offsets[a] : bags.offsets[a + 1]]
            if kind == "soft_max":
                logit = (logsumexp(t * here, axis=0) - np.log(here.shape[0])) / t
                logp += log_expit((2 * bags.y[a] - 1) * logit)
            else:
                none = log_expit(-here).sum(axis=0)
                logp += none if bags.y[a] < 0.5 else np.log(-np.expm1(none))
        exact = logsumexp(logp) - np.log(logp.size)
        assert found.evidence == pytest.approx(exact, abs=close)


def _pass(model, params, bags):
    z, s = model._inputs(params, bags)
    return PooledPass(model._kernel(params), params, z, s=s)


@pytest.mark.parametrize(("log_t", "close"), [(-14.0, 1e-6), (0.0, 0.02)])
def test_predictions_of_two_instances_by_quadrature(log_t, close):
    bags = _bags(n_bag=60)
    how = {"scaling": "deviation", "calibrate": "none", "statistics": "none"}
    model = PooledGP(n_inducing=20, n_starts=1, **how)
    model.fit(bags, n_thread=1)
    model.state_.params["log_t"] = np.array([log_t])
    model.params_ = model.prediction_params(model.state_)
    rng = np.random.default_rng(6)
    two = Bags(rng.normal(size=(6, 3)), [0, 2, 4, 6], np.zeros(3))
    params = model.params_
    (_, loadings, _), *_ = _pass(model, params, two).tiles()
    m, root = loadings @ params["value"], loadings @ params["root"]
    nodes, weights = gauss_hermite(60)
    t = np.exp(log_t)
    for a, p in enumerate(model.predict_bags(two).mean):
        here = slice(2 * a, 2 * a + 2)
        low = np.linalg.cholesky(root[here] @ root[here].T)
        e = np.stack(np.meshgrid(nodes, nodes)).reshape(2, -1)
        f = m[here, None] + low @ e
        logit = (logsumexp(t * f, axis=0) - np.log(2)) / t
        exact = np.outer(weights, weights).ravel() @ expit(logit)
        # Linear in f at t -> 0, and linearised elsewhere.
        assert p == pytest.approx(exact, abs=close)


def test_statistics_are_a_gp_beside_the_mean_of_the_instances():
    """At a small t, and no part of the instances, scikit-learn's classifier of the statistics."""
    bags = _bags(n_bag=40)
    model = PooledGP(n_inducing=40, scaling="deviation", calibrate="none")
    with _Opened(model, bags) as opened:
        theta = np.log([1e-8, 1.0, 2.5, 2.0, 0.49])
        state = opened.search._unpack(opened.state, np.array([*theta, -8.0, np.log(1.5)]))
        found = opened.evidence.mode(state)
    z = (bags.x - bags.x.mean(axis=0)) / bags.x.std(axis=0)
    parts = [z[a:b] for a, b in zip(bags.offsets, bags.offsets[1:], strict=False)]
    rows = np.array(
        [[*p.mean(axis=0), *p.min(axis=0), *p.max(axis=0), np.log(len(p))] for p in parts]
    )
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    square = ((rows[:, None, :-1] - rows[None, :, :-1]) ** 2).sum(axis=2)
    k = 2.5 * np.exp(-0.5 * square / 4.0) + 0.49 * np.outer(rows[:, -1], rows[:, -1])
    low = np.linalg.cholesky(k + 1e-10 * np.eye(40))  # the same kernel, of explicit features
    features = np.column_stack([low, 1.5 * np.ones(40)])
    other = GaussianProcessClassifier(DotProduct(1e-9), optimizer=None).fit(features, bags.y)
    assert found.evidence == pytest.approx(other.log_marginal_likelihood(), abs=1e-3)


def test_statistics_do_not_depend_on_blocks_and_are_saved(tmp_path):
    bags = _bags(seed=3, n_bag=24)
    found = []
    for block_bags in (24, 5):
        with _Opened(PooledGP(n_inducing=15), bags, block_bags) as opened:
            found.append(opened.state.fixed)
    for name in ("bag_mean", "bag_sd", "bag_rank_value"):
        np.testing.assert_array_equal(found[0][name], found[1][name])
    model = PooledGP(n_inducing=15, n_starts=1, max_epochs=4).fit(bags, n_thread=1)
    model.save(tmp_path / "model")
    again = models.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_bags(bags).mean, model.predict_bags(bags).mean)


def test_instances_are_predicted_by_their_own_part():
    """What the statistics explain moves no instance; the sizes explain all labels here."""
    rng = np.random.default_rng(12)
    size = np.where(np.arange(40) % 2 > 0, 6, 2)
    offsets = np.concatenate([[0], np.cumsum(size)])
    bags = Bags(rng.normal(size=(offsets[-1], 2)), offsets, (size > 4) * 1.0)
    model = PooledGP(n_inducing=15).fit(bags, n_thread=1)
    assert (model.predict_bags(bags).mean[size > 4] > 0.75).all()
    assert np.ptp(model.predict_pixels(bags.x).mean) < 0.25
    without = PooledGP(n_inducing=15, statistics="none").fit(bags, n_thread=1)
    assert np.ptp(without.predict_bags(bags).mean) < np.ptp(model.predict_bags(bags).mean)


def test_statistics_are_left_out_where_the_evidence_says_so():
    bags = _bags(n_bag=40, n_feat=4, noise=0.1)
    both = (PooledGP(n_inducing=15, statistics=each) for each in ("auto", "none"))
    found = [model.fit(bags, n_thread=1) for model in both]
    assert found[0].bound_ > found[1].bound_ - 0.1


def test_few_bags_leave_the_calibration_at_its_prior():
    nothing = fit_calibration(lambda at: (0.0, {"score": np.zeros(2), "information": 0.0}), OF_BAGS)
    np.testing.assert_allclose(nothing, [0.0, np.log(2.0)])


def test_every_instance_twice_changes_nothing():
    bags = _bags()
    twice = Bags(np.repeat(bags.x, 2, axis=0), 2 * bags.offsets, bags.y)
    # The statistics know a bag's size.
    how = {"n_inducing": 15, "n_starts": 1, "statistics": "none"}
    model = PooledGP(**how).fit(bags, n_thread=1)
    np.testing.assert_allclose(
        model.predict_bags(twice).mean, model.predict_bags(bags).mean, rtol=1e-10
    )
    with _Opened(model, bags) as one, _Opened(PooledGP(**how), twice) as two:
        state = one.at([0.5, 0.3], 0.4, 0.2)  # both at the same inducing points
        found, again = one.evidence.mode(state), two.evidence.mode(state)
        assert again.evidence == pytest.approx(found.evidence, rel=1e-12)
        np.testing.assert_allclose(
            two.evidence.gradient(again), one.evidence.gradient(found), rtol=1e-8, atol=1e-9
        )


def test_increasing_transformations_change_nothing():
    bags = _bags(n_bag=25, most=6)
    other = Bags(np.exp(bags.x) * [1.0, 7.0, 1e3], bags.offsets, bags.y)
    how = {"n_inducing": 15, "n_starts": 1}
    one = PooledGP(**how).fit(bags, n_thread=1).predict_bags(bags).mean
    two = PooledGP(**how).fit(other, n_thread=1).predict_bags(other).mean
    np.testing.assert_allclose(one, two, rtol=1e-7)


def test_normal_scores_of_ties_many_values_and_constants():
    rng = np.random.default_rng(7)
    x = np.column_stack(
        [rng.gamma(0.3, size=3000), np.full(3000, 5.0), (rng.random(3000) < 0.1) * 1.0]
    )
    knots = rank_knots(x)
    assert knots["rank_value"].shape == (N_KNOT, 3)
    scores = normal_scores(knots, x)
    assert scores[:, 0].mean() == pytest.approx(0, abs=0.01)
    assert scores[:, 0].std() == pytest.approx(1, abs=0.02)
    assert (np.diff(scores[np.argsort(x[:, 0]), 0]) >= 0).all()
    np.testing.assert_array_equal(scores[:, 1], 0.0)
    share = x[:, 2].mean()
    np.testing.assert_allclose(
        np.unique(scores[:, 2]), ndtri([0.5 * (1 - share), 1 - 0.5 * share]), rtol=1e-12
    )
    beyond = normal_scores(knots, np.array([[1e9, -1.0, 0.5]]))
    assert beyond[0, 0] == scores[:, 0].max()


def test_slopes_of_the_score_by_finite_differences():
    rng = np.random.default_rng(8)
    m, s, y = rng.normal(size=20), rng.gamma(2.0, size=20), (rng.random(20) < 0.4) * 1.0
    at, h = np.array([0.3, 0.4]), 1e-5
    _, found = score_sums(moved_logits(m, s, at), y)
    for k in range(2):
        up, down = (score_sums(moved_logits(m, s, at + d * np.eye(2)[k]), y)[0] for d in (h, -h))
        assert (up - down) / (2 * h) == pytest.approx(found["score"][k], abs=1e-6)
    # The expected information: the mean of the squared slopes over both labels.
    ones, zeros = (
        score_sums(moved_logits(m[:1], s[:1], at), np.array([label])) for label in (1.0, 0.0)
    )
    p = np.exp(ones[0])
    expected = p * np.outer(ones[1]["score"], ones[1]["score"])
    expected += (1 - p) * np.outer(zeros[1]["score"], zeros[1]["score"])
    np.testing.assert_allclose(ones[1]["information"], expected, rtol=1e-9)


@pytest.mark.parametrize("kind", POOLINGS)
def test_slopes_of_the_score_of_bags_by_finite_differences(kind):
    bags = _bags(n_bag=12)
    with _Opened(PooledGP(pooling=kind, kernel="rbf", n_inducing=12), bags, 12) as opened:
        state = opened.evidence.mode(opened.state).state
        params = opened._model.prediction_params(state)
    used = np.arange(12) % 3 > 0

    def score(calibration):
        asked = {**params, "calibration": np.asarray(calibration)}
        run = _pass(opened._model, asked, bags)
        return run.sums(SCORE, kind, bags.y, bags.offsets, used)

    at, h = np.array([0.4, -0.3]), 1e-5
    _, found = score(at)
    for k in range(2):
        up, down = (score(at + d * np.eye(2)[k])[0] for d in (h, -h))
        assert (up - down) / (2 * h) == pytest.approx(found["score"][k], abs=1e-7)


def test_a_calibrated_bag_follows_from_its_calibrated_instances():
    """Noisy-or where nothing is uncertain: one less the product of the instances' chances."""
    bags = _bags(n_bag=60)
    model = PooledGP(pooling="noisy_or", n_inducing=12, n_starts=1).fit(bags, n_thread=1)
    assert model.params_["calibration"].all()
    model.params_["root"][:] = 0.0
    none = np.multiply.reduceat(1.0 - model.predict_pixels(bags.x).mean, bags.offsets[:-1])
    np.testing.assert_allclose(model.predict_bags(bags).mean, 1.0 - none, rtol=1e-9)


def test_the_calibration_finds_a_known_shift_and_scale():
    rng = np.random.default_rng(9)
    m, s = 1.5 * rng.normal(size=20_000), np.full(20_000, 0.5)
    f = 0.7 + 2.0 * (m + np.sqrt(s) * rng.standard_normal(m.size))
    y = (rng.random(m.size) < expit(f)) * 1.0
    shift, log_scale = fit_calibration(lambda at: score_sums(moved_logits(m, s, at), y))
    assert shift == pytest.approx(0.7, abs=0.08)
    assert np.exp(log_scale) == pytest.approx(2.0, abs=0.12)


def test_a_fold_is_left_out_and_does_not_depend_on_blocks():
    bags = _bags(n_bag=40)
    fold = fold_of(bags.bag)
    assert set(fold_of(np.arange(1000))) == set(range(N_FOLD))
    counts = np.bincount(fold_of(np.arange(0, 10_000, 10)), minlength=N_FOLD)
    assert counts.min() > 60  # numbers that go round in tens do not share a fold
    flipped = Bags(bags.x, bags.offsets, np.where(fold == 2, 1 - bags.y, bags.y))
    model, modes = PooledGP(n_inducing=15), []
    for each, block_bags in ((bags, 8), (flipped, 5)):
        with _Opened(model, each, block_bags) as opened:
            state = opened.at([1.0, 0.5])
            modes += [opened.evidence.mode(state, 2), opened.evidence.mode(state)]
        model.forget_kernels()
    np.testing.assert_allclose(
        modes[0].state.params["v_mean"], modes[2].state.params["v_mean"], atol=1e-4
    )
    off = modes[1].state.params["v_mean"] - modes[3].state.params["v_mean"]
    assert np.abs(off).max() > 0.1


@pytest.mark.slow
def test_probabilities_mean_what_they_say_on_labels_of_its_own_law():
    """Labels drawn from the law itself: held-out log score near that of the truth."""
    gains = []
    for seed in range(4):
        rng = np.random.default_rng([seed, 11])
        offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 12, 450))])
        x = rng.normal(size=(offsets[-1], 2))
        f = 3.0 * np.sin(1.2 * x[:, 0]) + 2.0 * x[:, 1] - 1.0
        logit = pool("soft_max", f, offsets, 1.5).logit
        y = (rng.random(450) < expit(logit)) * 1.0
        bags = Bags(x, offsets, y)
        train = np.arange(450) < 200
        model = PooledGP(n_inducing=60).fit(bags.select(train), n_thread=1)
        said = model.predict_bags(bags.select(~train)).log_density(y[~train]).mean()
        truth = log_expit((2 * y - 1) * logit)[~train].mean()
        gains.append(said - truth)
    assert np.mean(gains) > -0.06


def test_the_kernel_has_space_where_instances_have_positions():
    bags = _bags()
    coords = np.random.default_rng(6).normal(size=(bags.n_pix, 2)) * 50.0
    placed = Bags(bags.x, bags.offsets, bags.y, coords=coords)
    how = {"n_inducing": 10, "n_starts": 1, "max_epochs": 3}
    for given, kernel in ((bags, "rbf"), (placed, "additive")):
        own, same = (
            PooledGP(**how, **kind).fit(given, n_thread=1) for kind in ({}, {"kernel": kernel})
        )
        assert own.named_hyperparameters() == same.named_hyperparameters()
        np.testing.assert_array_equal(own.predict_bags(given).mean, same.predict_bags(given).mean)


def test_what_was_learnt_has_names():
    how = {"n_inducing": 10, "n_starts": 1}
    model = PooledGP(**how).fit(_bags(), n_thread=1)
    named = model.named_hyperparameters()
    assert {"rbf_x.lengthscale", "t", "intercept", "calibration_scale"} <= set(named)
    assert "t" not in (
        PooledGP(pooling="noisy_or", **how).fit(_bags(), n_thread=1).named_hyperparameters()
    )
    assert model.converged_
    with pytest.raises(ParameterError, match="pooling: 'mean' is not one of soft_max, noisy_or"):
        PooledGP(pooling="mean").fit(_bags())

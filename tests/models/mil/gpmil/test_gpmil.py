"""GPMIL and GPMIL-S: derivatives, mode, evidence and predictions, each by a second route."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, log_expit, logsumexp
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from models import Bags
from models.core.errors import BagsError, ParameterError
from models.gp import pixel_pass
from models.gp.kernel_text import parse_kernel
from models.mil.gpmil import expected_max
from models.mil.gpmil.bag_posterior import joint_posterior
from models.mil.gpmil.gpmil import GPMIL
from models.mil.gpmil.gpmil_evidence import Problem, anneal, log_prior, posterior, scale_by_range
from models.mil.gpmil.gpmil_sparse import GPMILS
from models.mil.gpmil.laplace import factor_prior, find_mode, whitened_hessian
from models.mil.gpmil.soft_max import (
    Sizes,
    contract_third,
    project,
    project_backward,
    soft_max_terms,
    soft_max_value,
    witness_shares,
)
from models.training.executor import BagsSource

RBF_2 = parse_kernel("rbf", 2, has_coords=False)
ALONE = {"calibrate": "none"}  # no fits within the fit
MODELS = {
    "exact-softmax": lambda **k: GPMIL(**{"max_epochs": 4, **ALONE, **k}),
    "exact-witness": lambda **k: GPMIL(
        **{"likelihood": "witness", "max_epochs": 2, "coldest": 1.0, **ALONE, **k}
    ),
    "sparse-softmax": lambda **k: GPMILS(n_inducing=12, max_epochs=6, **ALONE, **k),
}


def make_labelled(n_bag=30, seed=0, largest=5):
    """Bags positive where a known function is above 0 somewhere."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, largest + 1, n_bag)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    x = rng.uniform(-3, 3, (offsets[-1], 2))
    f = 3.0 * np.sin(1.5 * x[:, 0]) + x[:, 1] - 2.5
    return Bags(x, offsets, np.maximum.reduceat(f, offsets[:-1]) > 0)


@pytest.fixture(scope="module")
def bags():
    return make_labelled()


@pytest.fixture(params=MODELS)
def make(request):
    return MODELS[request.param]


@pytest.fixture(scope="module")
def small():
    """Bags of one to four instances, their labels and latent values somewhere."""
    rng = np.random.default_rng(1)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 5, 10))])
    sign = np.where(np.arange(10) % 2, 1.0, -1.0)
    return Sizes.of(offsets), sign, rng.normal(size=offsets[-1]), rng


def slopes(function, x, step=1e-6):
    """Central differences."""
    each = [(function(x + step * e) - function(x - step * e)) / (2 * step) for e in np.eye(x.size)]
    return np.array(each)


def problem_of(bags):
    return Problem(bags.x, Sizes.of(bags.offsets), 2.0 * bags.y - 1.0, RBF_2)


# -- the law ---------------------------------------------------------------------------------------


def test_the_value_is_the_law_of_equation_5(small):
    sizes, sign, f, _ = small
    expected = 0.0
    for bags, rows in zip(sizes.bags, sizes.rows, strict=True):
        odds = np.exp(f[rows]).sum(axis=1)
        expected -= np.log(1.0 / (1.0 + odds ** -sign[bags])).sum()
    assert soft_max_value(sizes, sign, f) == pytest.approx(expected, rel=1e-12)
    assert soft_max_terms(sizes, sign, f).value == pytest.approx(expected, rel=1e-12)


def test_gradient_and_hessian_by_finite_differences(small):
    sizes, sign, f, _ = small
    terms = soft_max_terms(sizes, sign, f)
    np.testing.assert_allclose(
        terms.gradient, slopes(lambda g: soft_max_value(sizes, sign, g), f), atol=1e-8
    )
    hessian = sizes.times(terms.hessian, np.eye(f.size))
    expected = slopes(lambda g: soft_max_terms(sizes, sign, g).gradient, f)
    np.testing.assert_allclose(hessian, expected, atol=1e-8)


@pytest.mark.parametrize("projected", [False, True])
def test_third_derivatives_by_finite_differences(small, projected):
    sizes, sign, f, rng = small
    terms = soft_max_terms(sizes, sign, f)
    c = [(a := rng.normal(size=h.shape)) + a.transpose(0, 2, 1) for h in terms.hessian]

    def contracted(g):
        hessian = soft_max_terms(sizes, sign, g).hessian
        hessian = project(hessian) if projected else hessian
        return sum((h * each).sum() for h, each in zip(hessian, c, strict=True))

    held = project_backward(terms.hessian, c) if projected else c
    got = contract_third(terms, held, sizes)
    np.testing.assert_allclose(got, slopes(contracted, f), atol=1e-7)


def test_projection_is_the_nearest_positive_semi_definite_matrix(small):
    sizes, sign, f, rng = small
    hessian = soft_max_terms(sizes, sign, f).hessian
    lowest = min(np.linalg.eigvalsh(h).min() for h in hessian)
    assert lowest < -0.01  # there is something to do
    for h, near in zip(hessian, project(hessian), strict=True):
        assert np.linalg.eigvalsh(near).min() > -1e-12
        distance = np.linalg.norm(h - near, axis=(1, 2))
        for _ in range(50):
            a = near + 0.05 * rng.normal(size=near.shape)
            other = a @ a.transpose(0, 2, 1)  # any other such matrix
            assert (np.linalg.norm(h - other, axis=(1, 2)) >= distance - 1e-12).all()
    np.testing.assert_allclose(project(project(hessian))[-1], project(hessian)[-1], atol=1e-12)


# -- mode and evidence -----------------------------------------------------------------------------


@pytest.mark.parametrize("variance", [0.5, 50.0])
def test_the_mode_is_a_stationary_minimum(bags, variance):
    problem = problem_of(bags)
    k = RBF_2.matrix(np.log([variance, 1.0]), bags.x, bags.x)
    lower = factor_prior(k)
    mode = find_mode(lower, -0.5, problem.sizes, problem.sign)
    assert mode.converged
    # f = mu - K dl: the fixed point of the gradient of S, without the whitened basis.
    np.testing.assert_allclose(mode.f, -0.5 - k @ mode.terms.gradient, atol=1e-4)
    curvature = whitened_hessian(lower, mode.terms.hessian, problem.sizes)
    assert np.linalg.eigvalsh(curvature).min() > 0
    rng = np.random.default_rng(0)
    for _ in range(20):
        v = mode.v + 0.3 * rng.normal(size=mode.v.size)
        value = soft_max_value(problem.sizes, problem.sign, -0.5 + lower @ v) + 0.5 * v @ v
        assert value > mode.objective


def test_the_search_leaves_a_saddle():
    # One positive bag of two far instances: at equal values S is stationary, and lower beside.
    sizes, sign = Sizes.of(np.array([0, 2])), np.array([1.0])
    lower = factor_prior(400.0 * np.eye(2))
    mode = find_mode(lower, -20.0, sizes, sign)
    assert mode.converged
    assert abs(mode.f[0] - mode.f[1]) > 5.0
    equal = [
        soft_max_value(sizes, sign, np.full(2, f)) + ((f + 20.0) / 20.0) ** 2
        for f in np.linspace(-20, 5, 500)
    ]
    assert mode.objective < min(equal)


@pytest.mark.parametrize("law", ["whole", "blocks", "witness"])
@pytest.mark.parametrize("variance", [1.0, 20.0])
def test_the_gradient_of_the_evidence_by_finite_differences(bags, law, variance):
    problem = problem_of(bags)
    point = np.array([np.log(variance), 0.2, -0.7])
    share = anneal(problem, point, 10.0) if law == "witness" else None
    projection = "blocks" if law == "blocks" else "whole"

    def value(at):
        return posterior(problem, at, share, projection, learn=False).evidence

    grad = posterior(problem, point, share, projection, learn=True).grad
    np.testing.assert_allclose(grad, slopes(value, point, 1e-4), rtol=1e-3, atol=1e-3)


def test_the_gradient_of_the_prior_by_finite_differences():
    names = ("rbf_x.variance", "rbf_x.lengthscale")
    point = np.array([0.7, 0.3, -2.0])
    grad = log_prior(names, point)[1]
    np.testing.assert_allclose(grad, slopes(lambda at: log_prior(names, at)[0], point), atol=1e-8)


def three_bags():
    rng = np.random.default_rng(5)
    return Bags(rng.uniform(-1, 1, (6, 2)), [0, 1, 3, 6], [1, 0, 1])


def sampled(bags, point, n=400_000):
    """Evidence and posterior mean by importance sampling from the prior."""
    problem = problem_of(bags)
    lower = factor_prior(RBF_2.matrix(point[:-1], bags.x, bags.x))
    f = point[-1] + np.random.default_rng(0).normal(size=(n, bags.n_pix)) @ lower.T
    logs = np.zeros(n)
    for t, a, b in zip(problem.sign, bags.offsets[:-1], bags.offsets[1:], strict=True):
        logs += log_expit(t * logsumexp(f[:, a:b], axis=1))
    weight = np.exp(logs - logs.max())
    return logs.max() + np.log(weight.mean()), weight @ f / weight.sum()


@pytest.mark.parametrize(("projection", "within"), [("whole", 0.05), ("blocks", 0.15)])
def test_laplace_evidence_and_mean_against_importance_sampling(projection, within):
    # Projected blocks leave out negative curvature, and with it some of the posterior's width.
    bags, point = three_bags(), np.array([0.0, 0.0, -1.0])
    exact, mean = sampled(bags, point)
    found = posterior(problem_of(bags), point, None, projection, learn=False)
    assert found.evidence == pytest.approx(exact, abs=within)
    f = point[-1] + RBF_2.matrix(point[:-1], bags.x, bags.x) @ found.alpha
    np.testing.assert_allclose(f, mean, atol=0.1)


@pytest.mark.parametrize("likelihood", ["softmax", "witness"])
def test_single_instances_are_ordinary_classification(likelihood):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 2))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    y = (x[:, 0] + 0.5 * rng.normal(size=40) > 0).astype(float)
    bags = Bags(x, np.arange(41), y)
    point = np.log([3.0, 0.8])
    kernel = ConstantKernel(3.0, "fixed") * RBF(0.8, "fixed")
    peer = GaussianProcessClassifier(kernel, optimizer=None).fit(x, y)
    whole = np.append(point, 0.0)
    share = np.ones(40) if likelihood == "witness" else None
    found = posterior(problem_of(bags), whole, share, "whole", learn=False)
    assert found.evidence == pytest.approx(peer.log_marginal_likelihood_value_, abs=1e-5)

    how = {"learn_mean": False, "learn_variance": False, "priors": "none", "max_epochs": 1, **ALONE}
    fixed = GPMIL(likelihood=likelihood, **how).fit(bags, start=point)
    fixed.params_.update(theta=point, alpha=found.alpha, q=found.q)
    new = rng.normal(size=(30, 2))
    law = fixed.predict_pixels(new)
    # The peer approximates the integral by five error functions, to about 1e-3.
    np.testing.assert_allclose(law.mean, peer.predict_proba(new)[:, 1], atol=3e-3)
    alone = fixed.predict_bags(Bags(new, np.arange(31), np.arange(30) % 2))
    np.testing.assert_allclose(alone.mean, law.mean, atol=0.05)


# -- witnesses -------------------------------------------------------------------------------------


def test_witness_shares_are_a_soft_max_and_sum_to_one(small):
    sizes, _, f, _ = small
    share = witness_shares(sizes, f, 2.5)
    for rows in sizes.rows:
        odds = np.exp(2.5 * f[rows])
        np.testing.assert_allclose(share[rows], odds / odds.sum(axis=1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("coldest", [1.0, 10.0])
def test_annealed_shares_agree_with_their_posterior(bags, coldest):
    problem, point = problem_of(bags), np.array([np.log(5.0), 0.0, -1.0])
    share = anneal(problem, point, coldest)
    found = posterior(problem, point, share, "whole", learn=False)
    f = -1.0 + RBF_2.matrix(point[:-1], bags.x, bags.x) @ found.alpha
    np.testing.assert_allclose(share, witness_shares(problem.sizes, f, coldest), atol=0.05)


def test_the_bag_law_of_the_witness_by_draws(bags):
    model = MODELS["exact-witness"]().fit(bags)
    law = model.predict_bags(bags)
    z = (bags.x - bags.x.mean(axis=0)) / bags.x.std(axis=0)
    rng = np.random.default_rng(0)
    for a in (0, 3, 7):
        here = slice(bags.offsets[a], bags.offsets[a + 1])
        m, cov = joint_posterior(RBF_2, model.params_, z[here])
        f = rng.multivariate_normal(m, cov, 20_000, method="eigh")
        share = witness_shares(Sizes.of(np.array([0, m.size])), m, model.coldest)
        p = expit(f @ share)
        assert law.mean[a] == pytest.approx(p.mean(), abs=0.01)
        assert law.sd[a] == pytest.approx(p.std(), abs=0.01)


@pytest.mark.ci
def test_the_modes_of_bags_by_hand(bags):
    for make in (MODELS["exact-softmax"], MODELS["sparse-softmax"]):
        model = make().fit(bags)
        m = model.predict_pixels(bags.x).m
        odds = np.add.reduceat(np.exp(m), bags.offsets[:-1])
        np.testing.assert_allclose(model.predict_bag_modes(bags), odds / (1 + odds), rtol=1e-10)
    model = MODELS["exact-witness"](coldest=1e4).fit(bags)
    m = model.predict_pixels(bags.x).m
    largest = expit(np.maximum.reduceat(m, bags.offsets[:-1]))
    np.testing.assert_allclose(model.predict_bag_modes(bags), largest, atol=1e-3)


# -- the sparse bound ------------------------------------------------------------------------------


@pytest.mark.ci
def test_expected_soft_max_law_against_many_draws():
    m, rng = np.array([0.3, -0.5, 0.1]), np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    cov = root @ root.T + 0.5 * np.eye(3)
    noise = rng.normal(size=(200_000, 3))
    for t in (-1.0, 1.0):
        value, _, g = expected_max._drawn(t, m, cov, noise)
        f = rng.multivariate_normal(m, cov, 400_000)
        assert value == pytest.approx(log_expit(t * logsumexp(f, axis=1)).mean(), abs=0.01)

        def at(mean, s, t=t, noise=noise):
            return expected_max._drawn(t, mean, s, noise)[0]

        few = noise[:5000]
        d_m = expected_max._drawn(t, m, cov, few)[1]
        by_m = slopes(lambda mean: at(mean, cov, noise=few), m, 1e-4)  # noqa: B023
        np.testing.assert_allclose(d_m, by_m, atol=1e-6)
        for i, j in ((0, 0), (0, 2), (1, 2)):
            way = np.zeros((3, 3))
            way[i, j] = way[j, i] = 1e-3
            slope = (at(m, cov + way) - at(m, cov - way)) / 2e-3
            assert (g * way).sum() / 1e-3 == pytest.approx(slope, abs=5e-3)


def test_the_bound_of_large_bags_is_one_and_its_gradient_right():
    m, s = np.array([0.3, -0.5, 0.1]), np.array([0.4, 1.0, 0.2])
    f = m + np.sqrt(s) * np.random.default_rng(0).normal(size=(100_000, 3))
    for t in (-1.0, 1.0):
        value, d_m, d_s = expected_max._bounded(t, m, s)
        assert value < log_expit(t * logsumexp(f, axis=1)).mean()
        assert value == pytest.approx(log_expit(t * logsumexp(f, axis=1)).mean(), abs=0.3)
        by_m = slopes(lambda a, t=t: expected_max._bounded(t, a, s)[0], m)
        by_s = slopes(lambda a, t=t: expected_max._bounded(t, m, a)[0], s)
        np.testing.assert_allclose(d_m, by_m, atol=1e-8)
        np.testing.assert_allclose(d_s, by_s, atol=1e-8)


def test_quadrature_of_single_instances():
    m, s = np.array([0.7, -3.0]), np.array([2.0, 9.0])
    value, by_m, by_s = expected_max.logistic(np.array([1.0, -1.0]), m, s)
    grid = np.linspace(-60, 60, 200_001)
    for i, t in enumerate((1.0, -1.0)):
        dense = multivariate_normal.pdf(grid, m[i], s[i]) * log_expit(t * grid)
        assert value[i] == pytest.approx(np.trapezoid(dense, grid), abs=1e-3)
    np.testing.assert_allclose(
        by_m,
        np.diag(slopes(lambda a: expected_max.logistic(np.array([1.0, -1.0]), a, s)[0], m)),
        atol=1e-6,
    )
    by_variance = slopes(lambda a: expected_max.logistic(np.array([1.0, -1.0]), m, a)[0], s)
    np.testing.assert_allclose(by_s, np.diag(by_variance), atol=1e-3)


@pytest.mark.parametrize(
    ("likelihood", "heat", "most"), [("softmax", 0.0, 1), ("witness", 1e-9, 256)]
)
def test_the_gradient_of_a_block_by_finite_differences(bags, likelihood, heat, most):
    # The bounded soft-max law, and witnesses at so high a temperature that shares do not move.
    model = GPMILS(likelihood=likelihood, n_inducing=6, pair_pixels=most)
    state = model.init(
        BagsSource(bags, 0).summary(np.random.default_rng(0)), np.random.default_rng(0)
    )
    state.params["v_mean"] += 0.3
    params = {**model.block_params(state), "inverse_temperature": np.array([heat])}
    sums = model.block_stats(params, bags, None)[0].sums
    for name in ("theta", "mean", "alpha"):

        def value(at, name=name):
            return model.block_stats({**params, name: at}, bags, None)[0].bound

        expected = slopes(value, params[name], 1e-5)
        np.testing.assert_allclose(sums[name], expected, rtol=1e-4, atol=1e-5)
    way = np.random.default_rng(1).normal(size=params["q"].shape)
    way = 1e-5 * (way + way.T)
    up, down = (
        model.block_stats({**params, "q": params["q"] + s * way}, bags, None)[0].bound
        for s in (1, -1)
    )
    assert (sums["q"] * way).sum() == pytest.approx((up - down) / 2, rel=1e-3)


def test_sparse_on_all_instances_against_importance_sampling_and_laplace():
    bags = three_bags()
    kwargs = {"learn_mean": False, "priors": "none", **ALONE}
    sparse = GPMILS(
        n_inducing=6,
        learn_kernel=False,
        learn_inducing=False,
        n_samples=4000,
        max_epochs=60,
        **kwargs,
    ).fit(bags)
    np.testing.assert_allclose(np.exp(sparse.params_["theta"]), [1.0, np.sqrt(2.0)])
    z = (bags.x - bags.x.mean(axis=0)) / bags.x.std(axis=0)
    point = np.append(sparse.params_["theta"], 0.0)
    scaled = Bags(z, bags.offsets, bags.y)
    exact, mean = sampled(scaled, point)
    assert exact - 0.1 < sparse.bound_ < exact + 0.01  # a bound, and near
    law = sparse.predict_pixels(bags.x)
    np.testing.assert_allclose(law.m, mean, atol=0.05)
    laplace = posterior(problem_of(scaled), point, None, "whole", learn=False)
    k = RBF_2.matrix(point[:-1], z, z)
    np.testing.assert_allclose(law.m, k @ laplace.alpha, atol=0.15)
    s = np.diag(k - k @ laplace.q @ k)
    np.testing.assert_allclose(law.s, s, rtol=0.15)


def test_drawn_and_pixel_moments_agree(bags):
    model = MODELS["sparse-softmax"]().fit(bags)
    z = (bags.x - bags.x.mean(axis=0)) / bags.x.std(axis=0)
    m, cov = joint_posterior(RBF_2, model.params_, z)
    at = pixel_pass.forward(RBF_2, model.params_, z, learn=False)
    np.testing.assert_allclose(m, at.m, atol=1e-9)
    np.testing.assert_allclose(np.diag(cov), at.s, atol=1e-9)


# -- fits ------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_the_search_raises_the_evidence(bags):
    for likelihood in ("softmax", "witness"):
        how = {"likelihood": likelihood, "coldest": 1.0, "max_epochs": 4, **ALONE}
        model = GPMIL(**how).fit(bags)
        assert model.bound_ > model.history_[0]["bound"]
        again = GPMIL(**how, n_starts=2).fit(bags, n_thread=2)
        assert again.bound_ >= model.bound_ - 1e-9


def test_what_is_not_learnt_stays(bags):
    fixed = {"learn_mean": False, "learn_variance": False, "max_epochs": 3, **ALONE}
    model = GPMIL(kernel="rbf + linear", **fixed).fit(bags)
    named = model.named_hyperparameters()
    assert named["mean"] == 0.0
    assert named["rbf_x.variance"] == pytest.approx(0.5)  # 1, shared by the terms
    assert named["linear_x.variance[0]"] == pytest.approx(0.25)
    assert named["rbf_x.lengthscale"] != pytest.approx(np.sqrt(2.0), abs=1e-3)


def test_coordinates_and_sums_of_kernels(make, bags):
    where = Bags(bags.x, bags.offsets, bags.y, coords=bags.x * 40.0)
    model = make(kernel="rbf + matern32(space)").fit(where)
    assert np.isfinite(model.predict_bags(where).mean).all()
    assert model.named_hyperparameters()["matern32_space.lengthscale"] > 1.0  # km
    with pytest.raises(BagsError, match="give coords"):
        model.predict_pixels(bags.x)


def test_range_scaling_keeps_the_total_square(make, bags):
    rare = bags.x.copy()
    rare[:, 1] = np.arange(bags.n_pix) == 5  # one instance in all has it
    rare = np.column_stack([rare, np.ones(bags.n_pix)])  # and a constant
    fixed = {"x_mean": rare.mean(axis=0), "x_sd": np.array([*rare[:, :2].std(axis=0), 1.0])}
    scaled = (rare - rare.mean(axis=0)) / scale_by_range(fixed, rare)["x_sd"]
    assert (scaled**2).mean(axis=0).sum() == pytest.approx(2.0)
    assert np.ptp(scaled[:, 0]) == pytest.approx(np.ptp(scaled[:, 1]))
    model = make(scaling="range").fit(Bags(rare, bags.offsets, bags.y))
    assert np.isfinite(model.predict_bags(Bags(rare, bags.offsets, bags.y)).mean).all()


def test_too_many_instances_are_refused_with_the_way_out():
    x = np.zeros((5001, 1))
    with pytest.raises(BagsError, match="use GPMILS"):
        GPMIL().fit(Bags(x, [0, 5000, 5001], [0, 1]))


def test_misuse_is_refused(make, bags):
    for change in (
        {"likelihood": "noisy-or"},
        {"kernel": "nonsense"},
        {"tolerance": 0},
        {"coldest": -1},
        {"max_epochs": 0},
        {"scaling": "rank"},
        {"n_draws": 1.5},
    ):
        with pytest.raises(ParameterError, match=next(iter(change))):
            make().set_params(**change).fit(bags)


def test_what_only_one_of_the_two_takes(bags):
    with pytest.raises(ParameterError, match="start has shape"):
        GPMIL().fit(bags, start=np.zeros(5))
    with pytest.raises(ParameterError, match="not an argument"):
        GPMIL().fit(bags, epochs=3)
    with pytest.raises(ParameterError, match="projection"):
        GPMIL(projection="none").fit(bags)
    with pytest.raises(ParameterError, match="n_samples"):
        GPMILS(n_samples=7).fit(bags)

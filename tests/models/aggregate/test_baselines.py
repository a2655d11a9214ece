"""Baselines: gradients, penalties, optima; tuning and splits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import sqrtm
from scipy.optimize import minimize
from scipy.special import gammaln, xlogy

from models import BagPixel, Bags, Constant, Dasymetric, Network, Nystrom, VBAgg, load
from models.aggregate.bag_pixel import collapse
from models.aggregate.point_model import manifold_penalty
from models.core.errors import ParameterError
from models.training.executor import BagsSource
from models.training.loop import start_training
from tests.models.differences import check_gradient
from tests.plain import plain

PAIRS = [
    ("poisson", "exp"),
    ("poisson", "square"),
    ("negative_binomial", "exp"),
    ("negative_binomial", "square"),
    ("normal", "identity"),
    ("binomial", "probit"),
    ("beta_binomial", "probit"),
    ("exponential", "exp"),
    ("exponential", "square"),
]
MODELS = {
    "constant": lambda **k: plain(Constant, **k),
    "network": lambda **k: plain(
        Network, learning_rate=0.01, n_hidden=4, manifold=3.0, bag_manifold=2.0, **k
    ),
    "nystrom": lambda **k: plain(
        Nystrom,
        n_inducing=5,
        kernel="additive",
        learn_inducing=True,
        manifold=3.0,
        bag_manifold=2.0,
        **k,
    ),
}


#: Laws and links by the model of one rate; each other model with two of them.
GRADIENTS = [
    *(("constant", {"likelihood": law, "link": link}) for law, link in PAIRS),
    *(
        (name, {"likelihood": law, "link": link})
        for name in ("network", "nystrom")
        for law, link in (("poisson", "square"), ("beta_binomial", "probit"))
    ),
    *((name, {"area_effect": True}) for name in MODELS),
]


@pytest.mark.parametrize(("name", "how"), GRADIENTS)
def test_gradients_agree_with_finite_differences(name, how, make_bags):
    model, bags = MODELS[name](**how), make_bags(n_bag=8, largest=9)
    source, rng = BagsSource(bags, 0), np.random.default_rng(1)
    state = start_training(model, source, seed=0, learning_rate=0.1, tolerance=1.0).state
    params = {k: v + 0.1 * rng.normal(size=v.shape) for k, v in state.params.items()}

    def objective(params):
        at = replace(state, params=params)
        stats, _ = model.block_stats(model.block_params(at), bags, None)
        return model.objective(at, stats, 2 * bags.n_bag)

    grad = objective(params)[1]
    check_gradient(lambda at: objective(at)[0], params, grad, tolerance=2e-6)


def test_manifold_penalty_is_the_laplacians():
    rng = np.random.default_rng(0)
    phi, f = rng.normal(size=(20, 6)), rng.normal(size=20)
    similar = phi @ phi.T
    dense = f @ (np.diag(similar.sum(axis=1)) - similar) @ f
    pairs = 0.5 * ((f[:, None] - f) ** 2 * similar).sum()  # eq. (29) is twice f'Lf
    value, grad = manifold_penalty(phi, f)
    assert value == pytest.approx(dense)
    assert value == pytest.approx(pairs)
    moved = [manifold_penalty(phi, f + h * (np.arange(20) == 3))[0] for h in (1e-6, -1e-6)]
    assert grad[3] == pytest.approx((moved[0] - moved[1]) / 2e-6, rel=1e-6)


# Log densities by SciPy, of (y, people, tested, squared people), rate and one parameter.
SCIPY_LAWS = {
    "poisson": lambda y, p, n, w2, rate, own: stats.poisson.logpmf(y, p * rate),
    "negative_binomial": lambda y, p, n, w2, rate, own: stats.nbinom.logpmf(
        y, own, own / (own + p * rate)
    ),
    "normal": lambda y, p, n, w2, rate, own: stats.norm.logpdf(y, p * rate, np.sqrt(own * w2)),
    "exponential": lambda y, p, n, w2, rate, own: stats.expon.logpdf(y, scale=p * rate),
    "gamma": lambda y, p, n, w2, rate, own: stats.gamma.logpdf(y, own, scale=p * rate / own),
    "binomial": lambda y, p, n, w2, rate, own: stats.binom.logpmf(y, n, rate),
    "beta_binomial": lambda y, p, n, w2, rate, own: stats.betabinom.logpmf(
        y, n.astype(int), rate / own, (1 - rate) / own
    ),
    "area_effect": lambda y, p, n, w2, rate, own: np.log(
        sum(
            share * stats.poisson.pmf(y, p * rate * np.exp(own * u - 0.5 * own**2))
            for u, share in zip(GRID, stats.norm.pdf(GRID) * (GRID[1] - GRID[0]), strict=True)
        )
    ),
}
GRID = np.linspace(-7, 7, 141)
OWN = {
    "negative_binomial": "size",
    "normal": "noise",
    "gamma": "shape",
    "area_effect": "area_sd",
    "beta_binomial": "overdispersion",
}


@pytest.mark.parametrize("case", SCIPY_LAWS)
def test_constant_has_the_highest_likelihood(case, make_bags):
    bags = make_bags(n_bag=40, awkward=False)
    y = bags.y + (case in ("exponential", "gamma"))
    if case == "beta_binomial":  # the others' are even: their overdispersion would be 0
        rng = np.random.default_rng(2)
        y = rng.binomial(bags.trials.astype(int), rng.beta(2.0, 5.0, bags.n_bag)).astype(float)
    bags = Bags(bags.x, bags.offsets, y, bags.weight, trials=bags.trials)
    likelihood, area_effect = ("poisson", True) if case == "area_effect" else (case, False)
    model = plain(Constant, likelihood=likelihood, area_effect=area_effect).fit(bags)
    people, squares = (np.add.reduceat(bags.weight**k, bags.offsets[:-1]) for k in (1, 2))
    rate = model.predict_pixels(bags.x).mean[0]
    own = model.named_hyperparameters().get(OWN.get(case), 1.0)

    def loss(change):
        at = (rate * np.exp(change[0]), own * np.exp(change[1]))
        return -SCIPY_LAWS[case](bags.y, people, bags.trials, squares, *at).sum()

    # From somewhere else, back to where the model is.
    best = minimize(
        lambda c: loss(c) + (0 if case in OWN else c[1] ** 2),
        [0.3, 0.4],
        method="Nelder-Mead",
        options={"xatol": 1e-7, "fatol": 1e-10},
    )
    np.testing.assert_allclose(best.x, 0, atol=1e-5)
    assert model.bound_ == pytest.approx(-best.fun, rel=1e-8)


def test_constant_knows_when_counts_are_no_wilder_than_poisson(make_bags):
    bags = make_bags(n_bag=40, awkward=False)
    people = np.add.reduceat(bags.weight, bags.offsets[:-1])
    tame = Bags(bags.x, bags.offsets, np.round(0.1 * people), bags.weight)
    rate = plain(Constant).fit(tame).predict_pixels(tame.x).mean
    for likelihood, area_effect in (("negative_binomial", False), ("poisson", True)):
        model = plain(Constant, likelihood=likelihood, area_effect=area_effect, tolerance=1e-9).fit(
            tame
        )
        np.testing.assert_allclose(model.predict_pixels(tame.x).mean, rate, rtol=1e-4)


@pytest.mark.ci
def test_nystrom_is_the_maximum_a_posteriori(make_bags):
    made = make_bags(n_bag=15, largest=6, awkward=False, rate=2.0)
    bags = Bags(made.x[:, :1], made.offsets, made.y, made.weight)
    model = plain(
        Nystrom,
        n_inducing=4,
        kernel="rbf(x)",
        prior_sd=0.7,
        batch_bags=15,
        learning_rate=0.02,
        tolerance=1e-9,
        max_epochs=3000,
    ).fit(bags)
    fixed, params = model.state_.fixed, model.state_.params
    w = params["w"]
    z = (bags.x - fixed["x_mean"]) / fixed["x_sd"]
    people = bags.weight * fixed["base_rate"][0]

    def kernel(a, b, theta):
        d2 = ((a[:, None] - b) ** 2).sum(axis=2)
        return np.exp(theta[0] - 0.5 * d2 * np.exp(-2 * theta[1]))

    def lifted(theta):
        return kernel(w, w, theta) + 1e-6 * np.exp(theta[0]) * np.eye(4)

    def surface(at):
        # By the symmetric root that the paper prints.
        size, axes = np.linalg.eigh(lifted(at[1:3]))
        return at[0] + kernel(z, w, at[1:3]) @ (axes / np.sqrt(size)) @ axes.T @ at[3:]

    def loss(at):
        mean = np.add.reduceat(people * np.exp(surface(at)), bags.offsets[:-1])
        sd, length = np.exp(0.5 * at[1]), np.exp(at[2])
        # p(sd) = r e^{-r sd}, P(sd > 1) = 0.1; p(l) = r / 2 l^{-3/2} e^{-r / sqrt(l)}, P(l < 0.5) =
        # 0.1; times sd and l, since theta holds logarithms.
        prior = 0.5 * at[1] + np.log(0.1) * sd
        prior += -0.5 * at[2] + np.sqrt(0.5) * np.log(0.1) / np.sqrt(length)
        likelihood = (bags.y * np.log(mean) - mean - gammaln(bags.y + 1)).sum()
        return -(likelihood + prior - 0.5 * (at[3:] @ at[3:]) / 0.7**2)

    theta = params["theta"]
    root = np.real(sqrtm(lifted(theta)))
    beta = np.linalg.solve(root, np.linalg.cholesky(lifted(theta)) @ params["beta"])
    here = np.concatenate([params["mean"], theta, beta])
    stats_, _ = model.block_stats(model.params_, bags, None)
    assert model.objective(model.state_, stats_, 15)[0] == pytest.approx(-loss(here), rel=1e-9)
    # Adam is slow along the ridge of variance against weights; the optimum is flat there.
    best = minimize(loss, np.zeros(7), method="BFGS", options={"gtol": 1e-6})
    assert loss(here) == pytest.approx(best.fun, abs=0.02)
    np.testing.assert_allclose(model.predict_pixels(bags.x).m, surface(best.x), atol=0.03)


def test_shared_out_counts_are_jensens_bound_of_the_bags_likelihood(make_bags):
    # log sum_i p_i r_i >= log p + sum_i (p_i / p) log r_i: one response a bag, not one a pixel.
    bags = make_bags()
    # What is expected of that, exactly: Lemma 1 of one pixel. The default estimator integrates
    # out of each pixel's response what its posterior does not follow.
    model = plain(Dasymetric, kernel="additive", n_inducing=6, estimator="bound")
    state = start_training(model, BagsSource(bags, 0), seed=0, learning_rate=1, tolerance=1).state
    v_mean = np.random.default_rng(0).normal(size=6)
    params = model.block_params(replace(state, params={**state.params, "v_mean": v_mean}))
    found, _ = model.block_stats(params, bags, None)
    assert found.n_bag == bags.n_bag
    predicted, p, y = model.predict_block(params, bags.x, bags.coords), bags.weight, bags.y
    total, mean = (np.add.reduceat(p * r, bags.offsets[:-1]) for r in (1.0, predicted.mean))
    mean_log = np.add.reduceat(p * np.log(predicted.quantile(0.5)), bags.offsets[:-1]) / total
    bound = y * (np.log(total) + mean_log) - mean - gammaln(y + 1)
    # The split of y^y / y! over pixels adds what no parameter moves.
    part = np.repeat(y / total, np.diff(bags.offsets)) * p
    shift = (xlogy(part, part) - gammaln(part + 1)).sum() - (xlogy(y, y) - gammaln(y + 1)).sum()
    assert found.bound == pytest.approx(bound.sum() + shift, rel=1e-9)
    assert (bound <= y * np.log(mean) - mean - gammaln(y + 1)).all()


@pytest.mark.parametrize("kind", [BagPixel, Dasymetric])
@pytest.mark.parametrize(
    ("likelihood", "link"), [("poisson", "exp"), ("normal", "identity"), ("binomial", "probit")]
)
def test_pixel_models_fit_every_law_and_come_back(kind, likelihood, link, make_bags, tmp_path):
    bags = make_bags(n_bag=15)
    model = kind(likelihood=likelihood, link=link, kernel="additive", n_inducing=5, max_epochs=6)
    model.fit(bags)
    assert model.bound_ > model.history_[0]["bound"]
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert type(again) is kind
    np.testing.assert_array_equal(
        again.predict_pixels(bags.x, bags.coords).mean,
        model.predict_pixels(bags.x, bags.coords).mean,
    )


def test_a_collapsed_normal_bag_has_the_papers_variance():
    # y_a ~ N(w_a mu(x_a), w_a^2 tau), app. B; the noise starts at a quarter of the rates' variance.
    rng = np.random.default_rng(0)
    offsets = np.arange(0, 401, 20)
    weight = rng.uniform(1, 2, 400)
    y = np.add.reduceat(weight, offsets[:-1]) * rng.normal(5, 3, 20)
    bags = Bags(rng.normal(size=(400, 2)), offsets, y, weight)
    model = plain(BagPixel, likelihood="normal", n_inducing=5)
    state = start_training(model, BagsSource(bags, 0), seed=0, learning_rate=1, tolerance=1).state
    tau = np.exp(state.params["log_noise"][0])
    total = np.add.reduceat(weight, offsets[:-1])
    assert tau == pytest.approx(0.25 * (y / total).var(), rel=1e-9)
    one = collapse(bags)
    rows = slice(*bags.offsets[4:6])
    np.testing.assert_allclose(one.x[4], np.average(bags.x[rows], axis=0, weights=weight[rows]))
    np.testing.assert_allclose(one.weight, total)
    assert one.n_pix == one.n_bag == bags.n_bag
    squares = model.resolved_likelihood.bag_data(one.weight, one.offsets, None)
    np.testing.assert_allclose(squares, total**2, rtol=1e-12)


def test_network_is_the_function_that_its_weights_say(make_bags):
    bags = make_bags(n_bag=30)
    model = plain(
        Network, learning_rate=0.01, n_hidden=5, max_epochs=10, likelihood="negative_binomial"
    ).fit(bags)
    params, fixed = model.state_.params, model.state_.fixed
    place = (bags.coords - fixed["coord_mean"]) / fixed["coord_scale"]
    z = np.hstack([(bags.x - fixed["x_mean"]) / fixed["x_sd"], place])
    for row, found in zip(z[:20], model.predict_pixels(bags.x, bags.coords).m[:20], strict=True):
        f = params["mean"][0]
        for unit in range(5):
            f += params["outer"][unit] * max(
                0.0, row @ params["inner"][:, unit] + params["bias"][unit]
            )
        assert found == pytest.approx(f, rel=1e-12)


def test_network_learns_a_kink_from_bags_alone():
    rng = np.random.default_rng(0)
    offsets = np.arange(0, 2001, 10)
    # Bags differ in where they are: else sums say little of what is inside.
    x = np.repeat(rng.uniform(-2, 2, 200), 10)[:, None] + 0.3 * rng.normal(size=(2000, 1))
    f = np.maximum(x[:, 0], 0.0)
    y = rng.poisson(np.add.reduceat(20 * np.exp(f), offsets[:-1])).astype(float)
    model = plain(Network, n_hidden=20, weight_decay=0.1, learning_rate=0.02).fit(
        Bags(x, offsets, y, np.full(2000, 20.0))
    )
    off = np.log(model.predict_pixels(x).mean) - f
    assert np.sqrt((off**2).mean()) < 0.04
    assert f.std() > 10 * np.sqrt((off**2).mean())


@pytest.mark.parametrize("name", MODELS)
def test_a_point_estimate_answers_like_a_posterior(name, make_bags):
    # What the pipeline asks of a model: functions drawn once, then block by block.
    bags = make_bags(n_bag=20)
    model = MODELS[name](likelihood="negative_binomial", max_epochs=5).fit(bags)
    functions = model.sample_functions(7, np.random.default_rng(0))
    pixels = model.predict_block(model.params_, bags.x, bags.coords)
    rate = functions.rate(bags.x, bags.coords)
    assert rate.shape == (7, bags.n_pix)
    assert (rate == pixels.mean).all()
    assert not pixels.sd.any()
    np.testing.assert_allclose(pixels.quantile(0.05), pixels.mean, rtol=1e-12)
    found = model.predict_bags(bags, draws=functions)
    total = np.add.reduceat(bags.weight * pixels.mean, bags.offsets[:-1])
    np.testing.assert_allclose(found.draws, np.tile(total, (7, 1)), rtol=1e-12)
    size = model.named_hyperparameters()["size"]
    whole = np.round(bags.y)
    by_scipy = stats.nbinom.logpmf(whole, size, size / (size + total))
    np.testing.assert_allclose(found.log_density(whole), by_scipy, rtol=1e-8)
    many = model.predict_bags(bags, n_draws=4000).observed(np.random.default_rng(1))
    sd = np.sqrt(total + total**2 / size)
    np.testing.assert_allclose(many.mean, total, atol=4.5 * sd.max() / np.sqrt(4000))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Constant(likelihood="cauchy"), "likelihood"),
        (Constant(link="identity"), "link.*use exp or square"),
        (Constant(likelihood="binomial", area_effect=True), "area_effect.*leave it out"),
        (Network(n_hidden=0), "n_hidden"),
        (Network(weight_decay=-1.0), "weight_decay"),
        (Network(manifold=-1.0), "manifold"),
        (Network(dtype="int8"), "dtype"),
        (Nystrom(n_inducing=0), "n_inducing"),
        (Nystrom(prior_sd=0.0), "prior_sd"),
        (Nystrom(batch_bags=2.5), "batch_bags"),
    ],
)
def test_impossible_parameters_are_refused(model, says, bags):
    with pytest.raises(ParameterError, match=says):
        model.fit(bags)


def test_proportions_need_the_numbers_tested(make_bags):
    bags = make_bags()
    bare = Bags(bags.x, bags.offsets, bags.y, bags.weight, bags.coords)
    with pytest.raises(ValueError, match="number tested"):
        plain(VBAgg, likelihood="binomial").fit(bare)

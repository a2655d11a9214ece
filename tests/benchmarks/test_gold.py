"""The exact posterior: its gradient, its sampler, and what it is compared by."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import gold, hmc
from benchmarks.exact_posterior import ExactPosterior, Roots
from benchmarks.prior_draws import (
    Design,
    KnownScale,
    draw_country,
    prior_with_gradient,
    starting_state,
)
from benchmarks.sbc import make_model
from models.gp.scaling import kernel_of, scaled_inputs

SMALL = Design(n_side=6, n_area=5)
NAMES = ("poisson", "poisson_area_effect", "negative_binomial", "binomial", "normal")


@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_that_of_finite_differences(name):
    model = make_model(name, n_inducing=10)
    bags = draw_country(model, SMALL, np.random.default_rng(0)).bags
    posterior = ExactPosterior(model, bags)
    rng = np.random.default_rng(1)
    q = posterior.start(rng, apart=0.1)
    if name == "normal":
        q[-1] = 0.1  # inside the range of the noise
    value, grad = posterior.density(q)
    assert np.isfinite(value)
    step = 1e-5
    for k in range(posterior.n_dim):
        apart = np.zeros(posterior.n_dim)
        apart[k] = step
        slope = (posterior.density(q + apart)[0] - posterior.density(q - apart)[0]) / (2 * step)
        assert grad[k] == pytest.approx(slope, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("log_range", [-3.0, -1.013, 4.0])
def test_interpolated_roots_give_the_correlation_matrix(log_range):
    model = make_model("poisson", n_inducing=10)
    bags = draw_country(model, Design(), np.random.default_rng(2)).bags
    posterior = ExactPosterior(model, bags)
    roots = next(made for _, _, made in posterior._terms if isinstance(made, Roots))
    low, high, share = roots.around(log_range)
    root = (1 - share) * low + share * high
    fixed = starting_state(model, bags).fixed
    z = scaled_inputs(fixed, bags.x, bags.coords, np.float64)[:, 2:]
    r = np.sqrt(3.0) * np.linalg.norm(z[:, None] - z[None], axis=-1) / np.exp(log_range)
    np.testing.assert_allclose(root @ root.T, (1 + r) * np.exp(-r), atol=5e-4)


def normal_country(seed):
    model = make_model("normal", n_inducing=10)
    country = draw_country(model, SMALL, np.random.default_rng(seed))
    bags = country.bags
    kernel = kernel_of(model.kernel, starting_state(model, bags).fixed)
    held = dict(zip(kernel.names, country.truth.theta.tolist(), strict=True))
    held |= {name: np.log(0.5) for name in held if "variance" in name}
    held |= {name: np.log(1.0) for name in held if "lengthscale" in name}
    fixed = starting_state(model, bags).fixed
    z = scaled_inputs(fixed, bags.x, bags.coords, np.float64)
    return model, bags, z, kernel, held | {"log_noise": np.log(0.7)}


def closed_form(bags, z, kernel, theta, noise):
    """Return mean and covariance of the rates under a flat mean, and the log evidence of ``y``."""
    flat = 1e5  # variance of the mean
    k = kernel.matrix(theta, z, z) + flat
    area = np.zeros((bags.n_bag, bags.n_pix))
    area[np.repeat(np.arange(bags.n_bag), np.diff(bags.offsets)), np.arange(bags.n_pix)] = 1.0
    area *= bags.weight
    of_y = area @ k @ area.T + noise * np.diag(area**2 @ np.ones(bags.n_pix))
    gain = np.linalg.solve(of_y, area @ k).T
    sign, log_det = np.linalg.slogdet(of_y)
    assert sign > 0
    evidence = -0.5 * (log_det + bags.y @ np.linalg.solve(of_y, bags.y))
    return gain @ bags.y, k - gain @ area @ k, evidence


@pytest.mark.ci
def test_sampler_recovers_a_gaussian_posterior():
    """Normal likelihood, hyperparameters known: mean and deviation of every pixel."""
    model, bags, z, kernel, held = normal_country(3)
    assert isinstance(model, KnownScale)
    posterior = ExactPosterior(model, bags, held)
    theta = np.array([held[name] for name in kernel.names])
    mean, cov, _ = closed_form(bags, z, kernel, theta, np.exp(held["log_noise"]))
    chains = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        draws, accepted = hmc.sample(
            posterior.density, posterior.start(rng), posterior.mass_at, rng,
            n_warm=150, n_keep=700, view=posterior.rate, also=posterior.refresh,
        )  # fmt: skip
        assert 0.5 < accepted < 1
        chains.append(draws)
    both = np.array(chains)
    size = hmc.effective_size(both)
    assert hmc.split_rhat(both).max() < 1.02
    assert size.min() > 300
    sd = np.sqrt(np.diag(cov))
    flat = both.reshape(-1, bags.n_pix)
    assert (np.abs(flat.mean(axis=0) - mean) < 5 * sd / np.sqrt(size)).all()
    # Trajectories turn draws around the mean: squares have an effective size of their own.
    of_squares = hmc.effective_size((both - mean) ** 2)
    assert of_squares.min() > 150
    assert (np.abs(flat.std(axis=0) / sd - 1) < 5 / np.sqrt(2 * of_squares)).all()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_sampler_recovers_the_marginal_of_hyperparameters():
    """Normal likelihood, field's variance and range unknown: quadrature of the evidence."""
    model, bags, z, kernel, held = normal_country(4)
    free = [name for name in held if "matern" in name]
    for name in free:
        del held[name]
    posterior = ExactPosterior(model, bags, held)
    names, prior = prior_with_gradient(model, starting_state(model, bags).fixed)
    grid = np.linspace(-16, 5, 64), np.linspace(np.log(0.03), np.log(60.0), 50)
    log_p = np.empty((64, 50))
    at = np.array([held.get(name, 0.0) for name in names])
    place = [names.index(name) for name in free]
    for i, j in np.ndindex(64, 50):
        at[place] = grid[0][i], grid[1][j]
        evidence = closed_form(bags, z, kernel, at[: kernel.n_theta], np.exp(held["log_noise"]))
        log_p[i, j] = evidence[2] + prior(at)[0]
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    wanted = [float(p.sum(axis=1) @ grid[0]), float(p.sum(axis=0) @ grid[1])]
    chains = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        draws, _ = hmc.sample(
            posterior.density, posterior.start(rng), posterior.mass_at, rng,
            n_warm=200, n_keep=3000, view=posterior.hyperparameters, also=posterior.refresh,
        )  # fmt: skip
        chains.append(draws[:, [posterior.names.index(name) for name in free]])
    both = np.array(chains)
    size = hmc.effective_size(both)
    assert size.min() > 100
    error = both.reshape(-1, 2).std(axis=0) / np.sqrt(size)
    assert (np.abs(both.mean(axis=(0, 1)) - wanted) < 4 * error).all()


def test_effective_size_of_an_autoregression_is_the_known_one():
    rng = np.random.default_rng(5)
    n, rho = 20_000, 0.8
    chains = np.empty((4, n))
    chains[:, 0] = rng.standard_normal(4)
    for t in range(1, n):
        chains[:, t] = rho * chains[:, t - 1] + np.sqrt(1 - rho**2) * rng.standard_normal(4)
    known = 4 * n * (1 - rho) / (1 + rho)
    assert float(hmc.effective_size(chains)) == pytest.approx(known, rel=0.1)
    assert float(hmc.split_rhat(chains)) == pytest.approx(1, abs=0.005)
    assert float(hmc.split_rhat(chains + np.arange(4)[:, None])) > 1.2


def test_mass_matrix_draws_and_solves():
    rng = np.random.default_rng(6)
    mass = hmc.Mass(rng.uniform(0.5, 2, 4), rng.standard_normal((2, 4)))
    dense = np.diag(mass.d) + mass.j.T @ mass.j
    p = rng.standard_normal(4)
    np.testing.assert_allclose(dense @ mass.velocity(p), p)
    drawn = np.array([mass.draw(rng) for _ in range(20_000)])
    np.testing.assert_allclose(drawn.T @ drawn / 20_000, dense, atol=0.15)


def test_slice_step_keeps_an_exponential_distribution():
    rng = np.random.default_rng(7)
    at, seen = 1.0, []
    for _ in range(8000):
        at = hmc.slice_step(lambda x: -x if x > 0 else -np.inf, at, rng)
        seen.append(at)
    assert np.mean(seen) == pytest.approx(1, abs=0.1)
    assert np.quantile(seen, 0.9) == pytest.approx(np.log(10), abs=0.25)


def test_a_model_compared_with_draws_of_itself_differs_by_nothing():
    case = gold.Case(Design(n_side=8, n_area=6), n_inducing=20)
    rng = np.random.default_rng(9)
    bags, truth = gold.make_country(case, rng)
    model = gold.make_model(case).set_params(max_epochs=10).fit(bags, n_thread=1)
    rates = model.predict_pixels(bags.x, bags.coords).sample(4000, rng)
    found = gold.compare(model, rates, bags, truth, rng)
    assert found["mean_off"] < 0.06
    assert found["sd_ratio"] == pytest.approx(1, abs=0.03)
    assert abs(found["low_off"]) < 0.05
    assert abs(found["high_off"]) < 0.05
    assert found["model"]["crps"] == pytest.approx(found["exact"]["crps"], rel=0.05)


@pytest.mark.ci
def test_records_of_a_tiny_run_average(monkeypatch):
    monkeypatch.setitem(gold.CASES, "tiny", gold.Case(Design(n_side=6, n_area=5), n_inducing=8))
    record = gold.measure("tiny", 30, 2, 0)
    assert set(record["hyperparameters"]) > {"mean"}
    assert not record["enough"]
    twice = gold.averaged([record, record])
    assert twice["sd_ratio"] == pytest.approx(record["pixels"]["sd_ratio"], abs=1e-4)

"""Simulation-based calibration: its draws, its ranks and its records."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from benchmarks import prior_draws, sbc
from benchmarks.prior_draws import (
    Design,
    HyperPrior,
    accepted,
    draw_country,
    draw_field,
    make_geometry,
    mean_range,
    prior_with_gradient,
    starting_state,
)
from benchmarks.rank_tests import draw_ranks, rank_of, uniform_ranks, uniform_shares
from benchmarks.records import read_records, run_missing
from models.gp import priors
from models.gp.scaling import kernel_of, scaled_inputs

SMALL = Design(n_side=8, n_area=6)


def test_prior_draws_follow_the_density_of_the_model():
    """By quadrature of the density itself, and its tail by the closed form."""
    model = sbc.make_model("poisson_area_effect")
    fixed = starting_state(model, make_geometry(SMALL, np.random.default_rng(0))).fixed
    names, density = prior_with_gradient(model, fixed)
    prior = HyperPrior.of(names, density)
    rng = np.random.default_rng(1)
    drawn = np.array([prior.draw(rng) for _ in range(4000)])
    middle = np.median(drawn, axis=0)
    for k in range(len(names)):
        grid = np.linspace(-40.0, 40.0, 40_001)
        at = np.tile(middle, (grid.size, 1))
        at[:, k] = grid
        log_p = np.array([density(row)[0] for row in at[::20]])
        p = np.exp(log_p - log_p.max())
        cdf = np.cumsum(p) / p.sum()
        assert stats.kstest(np.interp(drawn[:, k], grid[::20], cdf), "uniform").pvalue > 1e-3
    tau = np.exp(drawn[:, names.index("log_area_sd")])
    share = (tau > 0.5 * priors.LARGE_NOISE).mean()
    assert share == pytest.approx(priors.TAIL_NOISE**0.5, abs=4 * np.sqrt(0.1 * 0.9 / 4000))


def test_prior_that_does_not_factorise_or_is_improper_is_refused():
    def ridge(phi):
        return -0.5 * float(phi @ phi) - float(phi.prod()), -phi

    with pytest.raises(ValueError, match="factorise"):
        HyperPrior.of(("a", "b"), ridge)
    with pytest.raises(ValueError, match="prior of b has no finite integral"):
        HyperPrior.of(("a", "b"), lambda phi: (-0.5 * float(phi[0] ** 2), phi))


def test_fields_have_the_covariance_of_an_independent_kernel():
    """Monte Carlo beside linear + Matern-3/2 written out by hand."""
    model = sbc.make_model("poisson")
    bags = make_geometry(Design(n_side=5, n_area=4), np.random.default_rng(3))
    fixed = starting_state(model, bags).fixed
    kernel = kernel_of(model.kernel_text(fixed), fixed)
    theta = kernel.start(1.0) + 0.3
    z = scaled_inputs(fixed, bags.x, bags.coords, np.float64)
    rng = np.random.default_rng(4)
    n = 6000
    drawn = [draw_field(kernel, theta, z, 2, rng) for _ in range(n)]
    f, slopes = (np.array(each) for each in zip(*drawn, strict=True))
    named = dict(zip(kernel.names, np.exp(theta), strict=True))
    slope_variance = np.array([v for name, v in named.items() if name.startswith("linear")])
    slope_variance = slope_variance * np.ones(2)
    r = np.sqrt(3.0) * np.linalg.norm(z[:, None, 2:] - z[None, :, 2:], axis=-1)
    r /= named["matern32_space.lengthscale"]
    k = (z[:, :2] * slope_variance) @ z[:, :2].T
    k += named["matern32_space.variance"] * (1.0 + r) * np.exp(-r)
    error = np.sqrt((np.outer(np.diag(k), np.diag(k)) + k**2) / n)
    assert (np.abs(f.T @ f / n - k) < 5 * error).all()
    assert slopes.var(axis=0) == pytest.approx(slope_variance, rel=5 * np.sqrt(2 / n))
    # The slope of a draw is that of the draw's linear part: Cov(f_i, beta_k) = v_k z_ik.
    cross = f.T @ slopes / n
    assert np.abs(cross - z[:, :2] * slope_variance).max() < 0.15


@pytest.mark.parametrize("name", ["poisson", "binomial"])
def test_data_out_of_range_come_from_no_mean_outside_the_range(name):
    """Else the cut of the mean's flat prior would not be one by the data alone."""
    model = sbc.make_model(name)
    rng = np.random.default_rng(5)
    seen = []
    for _ in range(60):
        bags = make_geometry(SMALL, rng)
        f = rng.uniform(0.1, 2.0) * rng.standard_normal(bags.n_pix)
        p = bags.weight if name == "poisson" else bags.weight / bags.weight.sum()
        centre, half = mean_range(model.link_name, f, p)
        for mean in (centre - half, centre + half):
            rate = model.resolved_link.value(mean + f)
            if name == "poisson":
                y = rng.poisson(np.add.reduceat(p * rate, bags.offsets[:-1]))
            else:
                share = np.add.reduceat(p * rate, bags.offsets[:-1])
                share /= np.add.reduceat(p, bags.offsets[:-1])
                y = rng.binomial(bags.trials.astype(int), np.clip(share, 0, 1))
            seen.append(accepted(model.link_name, y.astype(float), bags.trials))
    assert not any(seen)


def test_ranks_of_a_known_posterior_are_uniform_and_those_of_a_narrow_one_are_not():
    rng = np.random.default_rng(6)
    exact, narrow, shares = [], [], []
    for _ in range(400):
        truth = rng.standard_normal(40)
        y = truth + 0.5 * rng.standard_normal(40)
        mean, sd = 0.8 * y, np.sqrt(0.2)
        draws = mean + sd * rng.standard_normal((99, 40))
        u = rank_of(truth, draws, rng)
        exact.append(u[0])
        shares.append(np.histogram(u, bins=10, range=(0, 1))[0] / 40)
        narrow.append(rank_of(truth[0], (mean + 0.6 * (draws - mean))[:, 0], rng))
    good, bad = uniform_ranks(np.array(exact)), uniform_ranks(np.array(narrow))
    assert good["p"] > 0.001
    assert abs(good["spread"] - 1) < 4 * good["spread_se"]
    assert bad["p"] < 1e-6
    assert bad["spread"] > 1 + 4 * bad["spread_se"]
    assert uniform_shares(np.array(shares))["p"] > 0.001


def test_standard_error_of_the_spread_is_that_of_repetitions():
    rng = np.random.default_rng(7)
    found = [uniform_ranks(rng.random(200)) for _ in range(600)]
    assert np.std([each["spread"] for each in found]) == pytest.approx(
        found[0]["spread_se"], rel=0.12
    )
    assert np.mean([each["p"] < 0.05 for each in found]) == pytest.approx(0.05, abs=0.03)


def test_weighted_ranks_of_members_are_those_of_repeated_members():
    rng = np.random.default_rng(8)
    members = np.array([0.0, 1.0, 2.0])
    weighted = [
        rank_of(1.5, members, np.random.default_rng(i), np.array([0.5, 0.25, 0.25]))
        for i in range(2000)
    ]
    # Of three members 3/4 of the weight is below: between 0.75 x 3/4 and that plus 1/4.
    assert min(weighted) == pytest.approx(0.5625, abs=0.01)
    assert max(weighted) == pytest.approx(0.8125, abs=0.01)
    # Ties count at random.
    ties = [rank_of(1.0, np.ones(9), rng) for _ in range(2000)]
    assert np.mean(ties) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("name", ["poisson_area_effect", "binomial", "normal"])
def test_a_country_of_each_likelihood_is_drawn_fitted_and_ranked(name):
    changed = {"n_inducing": 12, "max_epochs": 4}
    record = sbc.measure(name, SMALL, changed, 0)
    assert "error" not in record
    assert {"pixel 0", "area 2", "total", "slope 1"} <= set(record["ranks"])
    assert all(0 < u < 1 for u in record["ranks"].values())
    assert sum(record["pixels"]) == pytest.approx(1, abs=1e-3)
    inside = [record["cover"][str(level)] for level in sbc.LEVELS]
    assert (np.diff(inside, axis=0) >= 0).all()


def test_drawn_slopes_have_the_moments_of_the_coefficients():
    """By differences of drawn functions, beside the closed form of the linear part."""
    # The closed form is that of one member.
    model = sbc.make_model("poisson", n_inducing=30, max_epochs=30, integrate="none")
    country = draw_country(model, SMALL, np.random.default_rng(9))
    model.fit(country.bags, n_thread=1)
    draws = model.sample_functions(2000, np.random.default_rng(10))
    slopes = sbc.drawn_slopes(model, draws, country.bags)
    for k, known in enumerate(model.coefficients_[:2]):
        assert slopes[:, k].mean() == pytest.approx(known.mean, abs=5 * known.sd / np.sqrt(2000))
        assert slopes[:, k].std() == pytest.approx(known.sd, rel=0.1)


def test_records_go_on_where_they_ended(tmp_path):
    path = tmp_path / "a.jsonl"
    seen = []

    def measure(number):
        seen.append(number)
        return {"value": number**2}

    run_missing(measure, range(3), path, "s")
    path.write_text(path.read_text() + '{"settings": "s", "number": 3, "val')  # cut off
    found = run_missing(measure, range(5), path, "s")
    assert seen == [0, 1, 2, 3, 4]
    assert [record["value"] for record in found] == [0, 1, 4, 9, 16]
    assert set(read_records(path, "s")) == {0, 1, 2, 3, 4}
    assert read_records(path, "other") == {}


def test_summary_and_picture(tmp_path):
    changed = {"n_inducing": 8, "max_epochs": 2}
    records = sbc.run("poisson", 3, 1, tmp_path, SMALL, **changed)
    records.append({"tried": 1, "error": "NumericalError: made up"})
    found = sbc.summarise(records)
    assert (found["countries"], found["failed"]) == (4, 1)
    by_hand = np.mean([r["cover"]["90"][1] for r in records[:3]])
    assert found["coverage"]["people"]["90"][0] == pytest.approx(by_hand, abs=1e-4)
    draw_ranks({"poisson": sbc.columns(records[:3])}, tmp_path / "sbc.png")
    assert (tmp_path / "sbc.png").stat().st_size > 5000
    json.dumps(found, allow_nan=True)


def test_settings_tell_records_of_other_ranges_apart(monkeypatch):
    before = sbc.settings_of("poisson", SMALL)
    monkeypatch.setattr(prior_draws, "TOTALS", (1.0, 2.0))
    assert sbc.settings_of("poisson", SMALL) != before

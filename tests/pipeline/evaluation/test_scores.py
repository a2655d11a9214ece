"""Every score against a second route: scipy, scikit-learn, brute force or a hand value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from sklearn.metrics import mean_poisson_deviance

from pipeline.evaluation import scores
from pipeline.evaluation.points import point_scores
from pipeline.evaluation.posterior import PosteriorDraws
from pipeline.evaluation.predictive_checks import imputed, predictive_checks


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def test_crps_is_the_double_sum_over_pairs_of_draws(rng):
    draws, y = rng.poisson(4, (13, 6)), rng.poisson(4, 6)
    for column in range(6):
        x = draws[:, column].astype(float)
        pairs = [abs(a - b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j]
        by_hand = np.mean(np.abs(x - y[column])) - np.mean(pairs) / 2
        assert scores.crps(draws, y)[column] == pytest.approx(by_hand, abs=1e-12)


def test_crps_of_one_draw_is_the_absolute_error():
    assert scores.crps(np.array([[3.0]]), np.array([5.0])) == [2.0]


@given(
    hnp.arrays(np.int64, st.tuples(st.integers(1, 7), st.just(1)), elements=st.integers(0, 3)),
    st.sampled_from([0.5, 0.8, 0.9, 0.95]),
)
@settings(max_examples=60, deadline=None)
def test_coverage_is_nominal_for_any_exchangeable_draws_ties_or_not(pool, level):
    # Each member of a pool in turn is the observation and the others the draws: averaged over the
    # pool, the expected coverage must be the level itself, however discrete the numbers are.
    found = []
    for row in range(pool.shape[0]):
        lower, upper = scores.pit_bounds(np.delete(pool, row, axis=0), pool[row])
        found.append(scores.pit_coverage(lower, upper, level)[0])
    assert np.mean(found) == pytest.approx(level, abs=1e-12)


def test_closed_intervals_of_small_counts_cover_too_much_and_the_transform_does_not(rng):
    mean = np.full(4000, 1.2)
    report = scores.predictive_scores(
        rng.poisson(mean), rng.poisson(mean, (400, 4000)), np.zeros(4000), [0.5]
    )["intervals"]["0.5"]
    assert report["coverage"] == pytest.approx(0.5, abs=0.02)
    assert report["closed"] > 0.6


def test_coverage_falls_when_the_prediction_is_overconfident(rng):
    y = rng.negative_binomial(3, 3 / 203, 3000)
    draws = rng.poisson(200, (500, 3000))
    found = scores.predictive_scores(y, draws, np.zeros(3000))["intervals"]
    assert found["0.9"]["coverage"] < 0.3
    histogram = scores.pit_histogram(draws, y)
    assert sum(histogram) == pytest.approx(1)
    assert histogram[0] > 0.3
    assert histogram[-1] > 0.25


def test_pit_histogram_counts_every_transform_once():
    # Draws 0..8 and an observation above, below and inside: slots of width 1/10.
    draws = np.repeat(np.arange(9.0)[:, None], 3, axis=1)
    found = scores.pit_histogram(draws, np.array([-1.0, 99.0, 3.5]), 10)
    np.testing.assert_allclose(found, [1 / 3, 0, 0, 0, 1 / 3, 0, 0, 0, 0, 1 / 3], atol=1e-12)


def test_interval_score_by_hand():
    y = np.array([5.0, 12.0, 1.0])
    found = scores.interval_score(y, np.full(3, 2.0), np.full(3, 10.0), 0.9)
    np.testing.assert_allclose(found, [8, 8 + 20 * 2, 8 + 20 * 1])


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_deviance_is_scikit_learns_and_twice_the_log_likelihood_lost(seed):
    rng = np.random.default_rng(seed)
    y, mean = rng.poisson(2, 20).astype(float), rng.gamma(2, 1, 20) + 1e-3
    found = scores.poisson_deviance(y, mean)
    assert found.mean() == pytest.approx(mean_poisson_deviance(y, mean))
    lost = stats.poisson.logpmf(y, np.where(y > 0, y, 1e-300)) - stats.poisson.logpmf(y, mean)
    np.testing.assert_allclose(found, 2 * lost, atol=1e-9)


def test_deviance_at_a_mean_of_zero():
    found = scores.poisson_deviance(np.array([0.0, 3.0]), np.zeros(2))
    assert found[0] == 0
    assert found[1] == np.inf


def test_correlations_are_scipys(rng):
    a = rng.poisson(5, 50).astype(float)
    b = a + rng.standard_normal(50)
    assert scores.pearson(a, b) == pytest.approx(stats.pearsonr(a, b).statistic)
    assert scores.spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)


@pytest.mark.parametrize("n", [0, 1, 4])
def test_a_constant_side_has_no_correlation(n):
    assert np.isnan(scores.pearson(np.full(n, 7.0), np.arange(n, dtype=float)))
    assert np.isnan(scores.spearman(np.full(n, 7.0), np.arange(n, dtype=float)))


def test_point_scores_by_hand():
    draws = np.array([[1.0, 3.0], [3.0, 3.0], [8.0, 3.0]])  # medians 3 and 3
    found = point_scores(np.array([2.0, 8.0]), np.array([4.0, 4.0]), draws, np.array([1.0, 2.0]))
    assert found["counts"]["rmse"] == pytest.approx(np.sqrt(10))
    assert found["counts"]["mae"] == 3
    assert found["rates"]["rmse"] == pytest.approx(2)
    assert found["rates"]["mae"] == pytest.approx((1 + 2.5) / 2)
    logs = np.log([1.5, 3.5, 8.5]).mean() - np.log(2.5), np.log(8.5 / 3.5)
    assert found["log_counts"]["rmse"] == pytest.approx(np.sqrt(np.mean(np.square(logs))))
    assert found["log_counts"]["mae"] == pytest.approx((np.log(3.5 / 2.5) + logs[1]) / 2)
    assert np.isnan(found["counts"]["correlation"])
    assert found["rates"]["correlation"] == pytest.approx(-1)


@pytest.mark.parametrize("expected", [0.6, 40.0])
def test_each_score_is_least_at_the_functional_that_it_reports(rng, expected):
    """Brute force: of every number that could be said, none has a lower expected score."""
    effect = np.exp(0.8 * rng.standard_normal((2, 40_000)) - 0.32)
    drawn, seen = rng.poisson(expected * effect).astype(float)  # forecaster's, and what comes

    def said(point):  # everybody says one number of all that comes, by draws of nothing else
        many = np.full(seen.shape, point)
        return point_scores(seen, many, many[None], np.ones(seen.shape))

    numbers = np.unique(
        np.concatenate([np.arange(0, 10 + 1.5 * expected), drawn.mean() * np.linspace(0.5, 2, 9)])
    )
    numbers = numbers[numbers > 0] if expected > 1 else numbers
    table = [said(number) for number in numbers]
    shown = point_scores(
        seen[:1], drawn.mean(keepdims=True), drawn[:, None], np.ones(1)
    )  # what the report makes of the draws
    functional = {
        ("counts", "mae"): np.median(drawn),
        ("counts", "rmse"): drawn.mean(),
        ("rates", "mae"): np.median(drawn),
        ("log_counts", "mae"): np.median(drawn),
        ("log_counts", "rmse"): np.exp(np.log(drawn + 0.5).mean()) - 0.5,
    }
    for (of, kind), point in functional.items():
        own = said(point)[of][kind]
        assert own <= min(row[of][kind] for row in table) * (1 + 1e-3), (of, kind)
        at = np.log(seen[0] + 0.5) - np.log(point + 0.5) if of == "log_counts" else seen[0] - point
        assert shown[of][kind] == pytest.approx(abs(at))
    # The median of the count is not the median of its expectation, nor the mean.
    assert said(drawn.mean())["counts"]["mae"] > 1.02 * said(np.median(drawn))["counts"]["mae"]


@pytest.mark.parametrize("y", [[0.0], [0.0, 0.0, 0.0], [7.0, 7.0]])
def test_scores_survive_zero_constant_and_single_counts(y, rng):
    y = np.array(y)
    point = point_scores(y, np.full_like(y, 2.0), np.full((3, y.size), 2.0), np.zeros_like(y))
    assert np.isfinite(point["counts"]["rmse"])
    assert np.isnan(point["rates"]["rmse"])
    draws = rng.poisson(2, (50, y.shape[0]))
    spread = scores.predictive_scores(y, draws, np.full_like(y, -np.inf))
    assert spread["n_impossible"] == y.shape[0]
    assert spread["crps"] >= 0


@given(
    hnp.arrays(
        np.float64, st.tuples(st.just(2), st.integers(3, 40)), elements=st.floats(-50, 50, width=32)
    ),
    st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_moments_added_in_parts_are_those_of_the_whole(pair, n_part):
    a, b = pair + 1e4  # far from zero, where sums of squares would cancel
    weight = np.linspace(0, 2, a.shape[0])
    moments = scores.PairMoments()
    for part in np.array_split(np.arange(a.shape[0]), n_part):
        moments.add(a[part], b[part], weight[part])
    found = moments.summary()
    assert found["rmse"] == pytest.approx(np.sqrt(np.average((a - b) ** 2, weights=weight)))
    assert found["bias"] == pytest.approx(np.average(b - a, weights=weight), abs=1e-9)
    spread = np.cov(np.stack([a, b]), aweights=weight, ddof=0)
    if min(spread[0, 0], spread[1, 1]) > 1e-6:
        by_numpy = spread[0, 1] / np.sqrt(spread[0, 0] * spread[1, 1])
        assert found["correlation"] == pytest.approx(by_numpy, abs=1e-6)


def test_moments_of_nothing_and_of_a_constant_are_nan():
    moments = scores.PairMoments()
    assert np.isnan(moments.summary()["rmse"])
    moments.add(np.full(5, 0.1), np.arange(5.0))
    assert np.isnan(moments.summary()["correlation"])
    assert moments.summary()["bias"] == pytest.approx(1.9)


def test_count_densities_are_scipys():
    y, mean = np.array([0.0, 3, 40]), np.array([2.0, 2, 30])
    found = scores.count_log_density(y, mean, 4.0)
    np.testing.assert_allclose(found, stats.nbinom.logpmf(y, 4, 4 / (4 + mean)))
    found = scores.count_log_density(y, mean, np.inf)
    np.testing.assert_allclose(found, stats.poisson.logpmf(y, mean))
    zero = scores.count_log_density(np.array([0.0, 1]), np.zeros(2), np.inf)
    assert zero.tolist() == [0, -np.inf]
    both = scores.count_log_density(y, mean, np.array([4.0, np.inf, 4.0]))
    np.testing.assert_allclose(both[1], stats.poisson.logpmf(3, 2))
    np.testing.assert_allclose(both[2], stats.nbinom.logpmf(40, 4, 4 / 34))


def test_density_by_moments_is_the_average_over_gamma_draws_and_poisson_without_spread(rng):
    draws = rng.gamma(20, 2.0, (400_000, 1))
    y = np.array([55.0])
    average = stats.poisson.pmf(y, draws).mean(axis=0)
    np.testing.assert_allclose(scores.moment_log_density(y, draws), np.log(average), atol=0.01)
    fixed = scores.moment_log_density(y, np.full((7, 1), 40.1))
    np.testing.assert_allclose(fixed, stats.poisson.logpmf(y, 40.1))
    assert scores.moment_log_density(np.zeros(1), np.zeros((7, 1))) == 0


def test_suppressed_counts_leave_coverage_exact_and_have_no_error():
    rng = np.random.default_rng(0)
    mean = rng.gamma(2.0, 3.0, 4000)
    y, draws = rng.poisson(mean).astype(float), rng.poisson(mean, (200, 4000)).astype(float)
    hidden = y < 5
    least, most = np.where(hidden, 0.0, y), np.where(hidden, 4.0, y)
    density = np.where(hidden, stats.poisson.logcdf(4, mean), stats.poisson.logpmf(y, mean))
    found = scores.predictive_scores(least, draws, density, most=most)
    exact = scores.predictive_scores(y[~hidden], draws[:, ~hidden], density[~hidden])
    assert found["crps"] == exact["crps"]
    assert found["nll"] == pytest.approx(-density.mean())
    for level in ("0.5", "0.9"):
        assert found["intervals"][level]["coverage"] == pytest.approx(float(level), abs=0.02)
    # Of the known counts alone, which are the large ones, it is not.
    skewed = scores.pit_histogram(draws[:, ~hidden], y[~hidden])
    assert skewed[0] < 0.08
    assert skewed[-1] > 0.12
    np.testing.assert_allclose(scores.pit_histogram(draws, least, most=most), 0.1, atol=0.02)
    people = scores.people_scores(least, mean, mean, np.ones(4000), draws, density, most=most)
    assert people["coverage"]["0.9"] == pytest.approx(0.9, abs=0.02)
    moments = scores.people_scores(
        y[~hidden], mean[~hidden], mean[~hidden], np.ones((~hidden).sum()), draws[:, ~hidden],
        density[~hidden],
    )  # fmt: skip
    assert people["rates"]["rmse"] == moments["rates"]["rmse"]
    assert people["rates"]["mae"] == moments["rates"]["mae"]


def test_checks_of_suppressed_counts_are_of_what_they_may_be():
    """Left out, they would leave the areas whose counts are large: too many, and no zero."""
    rng = np.random.default_rng(1)
    mean = rng.gamma(2.0, 2.0, 60)
    draws = rng.poisson(mean, (400, 60)).astype(float)
    y = rng.poisson(mean).astype(float)
    hidden = y < 5
    nothing = np.zeros(60)
    areas = PosteriorDraws(
        bag=np.arange(60), y=np.where(hidden, np.nan, y), people=mean, mean=mean,
        expected=np.tile(mean, (400, 1)), counts=draws, log_density=nothing,
        least=np.where(hidden, 0.0, y), most=np.where(hidden, 4.0, y), log_lik=draws,
        bag_data=nothing, centre=np.zeros((0, 60)),
    )  # fmt: skip
    found = predictive_checks(areas)
    assert imputed(areas)[:, hidden].max() <= 4
    assert min(found[name]["p"] for name in ("zeros", "dispersion", "largest")) > 0.05

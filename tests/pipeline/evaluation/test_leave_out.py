"""Areas left out by weights, against closed forms, SciPy and refits."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import genpareto, norm

from models.core.block import BagBlock
from models.likelihoods.prediction import BagPrediction
from models.likelihoods.registry import find_likelihood
from pipeline.evaluation.leave_out import LeftOut, leave_areas_out, leave_each_out
from pipeline.evaluation.psis import fit_pareto, resample, smooth_members, smooth_weights, trusted
from pipeline.products.areas import AreaDraws


@pytest.mark.parametrize("shape", [-0.2, 0.3, 0.8])
def test_the_pareto_fit_is_near_that_of_scipy(shape: float) -> None:
    x = np.sort(genpareto.rvs(shape, scale=2.0, size=2000, random_state=1))
    k, scale = fit_pareto(x)
    mle, _, mle_scale = genpareto.fit(x, shape, loc=0, scale=2.0, floc=0)
    assert k == pytest.approx(mle, abs=0.03)
    assert scale == pytest.approx(mle_scale, rel=0.03)


def test_weights_of_a_known_tail_have_its_shape() -> None:
    # Weights r^(-k) of uniform r have a Pareto tail of shape k.
    rng = np.random.default_rng(0)
    for true in (0.3, 0.5, 1.2):
        found = [smooth_weights(-true * np.log(rng.random(4000)))[1] for _ in range(30)]
        assert np.mean(found) == pytest.approx(true, abs=0.08)


def test_smoothed_weights_sum_to_one_and_keep_the_order_of_draws() -> None:
    raw = 2.0 * np.random.default_rng(0).standard_normal(500)
    smooth, _ = smooth_weights(raw)
    assert logsumexp(smooth) == pytest.approx(0.0, abs=1e-12)
    assert (np.argsort(smooth, kind="stable") == np.argsort(raw, kind="stable")).all()
    body = np.argsort(raw)[: 500 - 70]
    assert np.ptp(smooth[body] - raw[body]) < 1e-9  # those outside the tail stay as they are


def test_equal_weights_stay_equal_and_too_few_draws_are_not_trusted() -> None:
    smooth, k = smooth_weights(np.zeros(100))
    assert smooth == pytest.approx(-np.log(100))
    assert k < 0
    assert smooth_weights(np.arange(10.0))[1] == np.inf
    assert trusted(500) == pytest.approx(1 - 1 / np.log10(500))
    assert trusted(10**6) == 0.7


def test_the_mean_without_an_observation_is_that_of_the_closed_form() -> None:
    # y_i ~ N(mu, 1), flat prior: mu | y ~ N(mean, 1/n), and without y_a ~ N(mean_-a, 1/(n - 1)).
    rng = np.random.default_rng(2)
    y = rng.standard_normal(20)
    mu = rng.normal(y.mean(), np.sqrt(1 / 20), 20_000)
    for a in range(20):
        each = norm.logpdf(y[a], mu)
        smooth, k = smooth_weights(-each)
        others = np.delete(y, a).mean()
        assert k < 0.5
        assert np.exp(smooth) @ mu == pytest.approx(others, abs=0.02)
        exact = norm.logpdf(y[a], others, np.sqrt(1 + 1 / 19))
        assert logsumexp(smooth + each) == pytest.approx(exact, abs=0.02)


def test_members_of_other_widths_do_not_look_like_a_heavy_tail() -> None:
    # Lognormal weights have every moment. Ten members of other scales are lumps; each by itself
    # is trusted, and the mean stays that of the raw weights, which is known.
    rng = np.random.default_rng(3)
    level = np.repeat(np.linspace(-2.0, 2.0, 10), 200)
    together, apart, errors = [], [], []
    for _ in range(20):
        z = rng.standard_normal(level.size)
        raw = level + 0.1 * z
        weight, k = smooth_members(raw, (10 * level).astype(int))
        assert logsumexp(weight) == pytest.approx(0.0, abs=1e-12)
        apart.append(k)
        together.append(smooth_weights(raw)[1])
        # E[z] under weights exp(0.1 z) is 0.1, whatever the levels.
        errors.append(np.exp(weight) @ z - 0.1)
    assert max(apart) < 0.3
    assert abs(np.mean(errors)) < 4 * np.std(errors) / np.sqrt(20) + 0.01
    one, k = smooth_members(raw, np.zeros(raw.size, dtype=int))
    np.testing.assert_array_equal(one, smooth_weights(raw)[0])
    few, _ = smooth_members(raw, np.arange(raw.size))  # a draw each: all are smoothed together
    np.testing.assert_allclose(few, one, atol=1e-12)


def test_a_member_whose_weights_fail_is_told_by_its_share() -> None:
    rng = np.random.default_rng(4)
    heavy = -1.5 * np.log(rng.random(1000))  # a tail of shape 1.5
    light = 0.1 * rng.standard_normal(1000)
    member = np.repeat([0, 1], 1000)
    assert smooth_members(np.concatenate([heavy, light]), member)[1] > 1.2
    assert smooth_members(np.concatenate([heavy - 30.0, light]), member)[1] < 0.3


def test_resampled_rows_are_as_many_as_their_weights_say() -> None:
    weight = np.array([[0.5, 0.0], [0.25, 0.1], [0.25, 0.2], [0.0, 0.7]])
    weight = np.vstack([weight, np.zeros((96, 2))])
    rows = resample(weight, np.random.default_rng(0))
    for column in range(2):
        count = np.bincount(rows[:, column], minlength=100)
        assert np.abs(count - 100 * weight[:, column]).max() <= 1
    assert (np.diff(rows[:, 0]) != 0).sum() > 30  # in random order


@dataclass
class OneNoise:
    """A model of areas alike, whose draws differ in the noise: half of them in each."""

    draws: np.ndarray
    log_noise: np.ndarray

    def sample_functions(self, n_draws: int, rng: np.random.Generator) -> OneNoise:
        """Return itself: the draws are given."""
        return self

    @property
    def clusters(self) -> np.ndarray:
        return np.zeros((len(self.draws), 2), np.int64)

    def counted(self, bags: Any) -> OneNoise:
        return self

    def observed_factors(self, bags: Any, drawn: np.ndarray) -> np.ndarray:
        return np.ones_like(drawn)

    def predict_bags(self, bags: Any, *, draws: Any) -> BagPrediction:
        """Return the draws that were given."""
        own = {"log_noise": self.log_noise}
        return BagPrediction(self.draws, find_likelihood("normal"), own, np.ones(bags.n_bag))


def test_draws_are_weighed_and_made_with_their_own_noise() -> None:
    # mu | y ~ N(mean, 1/n) with noise of 1 or of 9, known to be as likely: each draw's density of
    # y_a is its own, and so is the noise around what is drawn again.
    n, n_bag = 4000, 3
    rng = np.random.default_rng(5)
    noise = np.tile([0.0, np.log(9.0)], n // 2)[:, None]
    mu = rng.normal(0.0, 0.3, (n, n_bag))
    y = np.array([0.0, 2.0, -6.0])
    block = BagBlock(
        np.zeros((n_bag, 1)), np.ones(n_bag), None, np.arange(n_bag + 1), y, np.arange(n_bag)
    )
    store = SimpleNamespace(
        n_bag=n_bag, n_block=1, block_offsets=[0, n_bag], read_block=lambda number: block
    )
    left = leave_each_out(OneNoise(mu, noise), store, n, 0, n_thread=1)
    each = norm.logpdf(y, mu, np.exp(0.5 * noise))
    for a in range(n_bag):
        weight, _ = smooth_weights(-each[:, a])
        assert left.log_density[a] == pytest.approx(logsumexp(weight + each[:, a]))
        assert left.mean[a] == pytest.approx(np.exp(weight) @ mu[:, a])
        wide = float(np.exp(weight) @ (noise[:, 0] > 0))
        spread = left.counts[:, a] - left.expected[:, a]
        assert spread.var() == pytest.approx(1.0 + 8.0 * wide, rel=0.1)


def _left(k: np.ndarray, n_draws: int = 500) -> LeftOut:
    n = k.size
    flat = np.ones((n_draws, n))
    one = np.ones(n)
    return LeftOut(np.arange(n), one, one, one, flat, flat, np.zeros(n), k=k)


def _predicted(again: np.ndarray) -> tuple[AreaDraws, np.ndarray]:
    bag = np.flatnonzero(again >= 0)
    one, draws = np.ones(bag.size), np.ones((500, bag.size))
    return AreaDraws(bag, one, one, 5.0 * one, draws, draws, -one), again[bag]


def test_few_areas_whose_weights_fail_are_refitted() -> None:
    k = np.full(40, 0.2)
    k[[3, 7, 19]] = [0.9, np.inf, np.nan]
    fold = np.arange(40) % 5
    asked = []

    def refit(again: np.ndarray) -> tuple[AreaDraws, np.ndarray]:
        asked.append(again)
        return _predicted(again)

    found, fold_of, about = leave_areas_out(_left(k), fold, refit)
    # Two together: a twentieth.
    assert np.flatnonzero(asked[0] >= 0).tolist() == [3, 7, 19]
    assert np.bincount(asked[0][asked[0] >= 0]).tolist() == [2, 1]
    assert (about["above"], about["refitted"], about["refits"]) == (3, 3, 2)
    assert not about["by_folds"]
    assert sorted(found.bag.tolist()) == list(range(40))
    assert (np.diff(fold_of) >= 0).all()
    assert (fold[found.bag] == fold_of).all()
    assert set(found.bag[found.mean == 5.0].tolist()) == {3, 7, 19}
    about = leave_areas_out(_left(k), fold, refit, most_fits=1)[2]
    assert (about["refits"], about["refitted"]) == (1, 2)
    assert about["unreliable"].tolist() == [3]


def test_where_the_weights_of_many_fail_every_fold_is_fitted_again() -> None:
    fold = np.arange(40) % 5
    k = np.where(np.arange(40) < 5, 0.9, 0.2)
    found, fold_of, about = leave_areas_out(_left(k), fold, _predicted)
    assert about["by_folds"]
    assert (about["above"], about["refits"], about["refitted"]) == (5, 5, 40)
    assert about["unreliable"].size == 0
    assert (found.mean == 5.0).all()
    assert (fold[found.bag] == fold_of).all()


def test_without_such_areas_nothing_is_refitted() -> None:
    def refit(_: np.ndarray) -> tuple[AreaDraws, np.ndarray]:
        pytest.fail("a model was fitted")

    found, _, about = leave_areas_out(_left(np.full(6, 0.1)), np.arange(6) % 3, refit)
    assert about["refits"] == 0
    assert len(found) == 6


ARVIZ = {  # k and largest log weight by arviz 0.22.0, psislw
    (0.5, 500): (0.12319358137505144, -4.7968260029198655),
    (1.5, 500): (0.32369186352859575, -3.359666577446929),
    (4.0, 500): (1.370462282183477, -0.88601351274695),
    (1.0, 4000): (0.1248945669515233, -5.536646417835301),
    (1.0, 30): (0.33380175808098017, -2.069304448570095),
}


def test_weights_are_those_of_arviz() -> None:
    rng = np.random.default_rng(0)
    for (scale, n), (k, largest) in ARVIZ.items():
        smooth, found = smooth_weights(scale * rng.standard_normal(n))
        assert found == pytest.approx(k, rel=1e-10)
        assert smooth.max() == pytest.approx(largest, rel=1e-10)

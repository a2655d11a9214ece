"""Recalibration: Platt's map, what it does to distributions, and fits within a fit."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

import models
from models import Bags
from models.core.errors import ParameterError
from models.likelihoods.probability import Probability, ProbabilityDraws
from models.mil.data.calibration import Recalibration, mean_logit
from models.mil.data.inner_folds import inner_folds
from models.training.folds import stratified_folds


class _Scores(ClassifierMixin, BaseEstimator):
    """What is already a score, as a classifier."""

    classes_ = np.array([0, 1])

    def fit(self, x, y):
        self.fitted_ = True
        return self

    def decision_function(self, x):
        return x[:, 0]

    def predict(self, x):
        return (x[:, 0] > 0) * 1


def _scores(n=150, seed=0, slope=0.5, intercept=0.7):
    rng = np.random.default_rng(seed)
    score = 3.0 * rng.normal(size=n)
    y = (rng.random(n) < expit(intercept + slope * score)).astype(float)
    return y, score


def test_without_a_prior_it_is_scikit_learns_sigmoid():
    y, score = _scores()
    theirs = CalibratedClassifierCV(FrozenEstimator(_Scores().fit(None, None)), method="sigmoid")
    theirs.fit(score[:, None], y)
    ours = Recalibration.fit(y, score, prior_sd=None)
    np.testing.assert_allclose(
        expit(ours.intercept + ours.slope * score),
        theirs.predict_proba(score[:, None])[:, 1],
        atol=2e-4,
    )


def test_a_prior_holds_few_bags_and_lets_go_of_many():
    few, many = (_scores(n, slope=0.2) for n in (8, 4000))
    free, held = (Recalibration.fit(*few, prior_sd=sd) for sd in (None, 0.2))
    assert abs(np.log(held.slope)) < abs(np.log(free.slope))
    assert Recalibration.fit(*many).slope == pytest.approx(0.2, abs=0.03)
    assert Recalibration.fit(*many).intercept == pytest.approx(0.7, abs=0.1)


def test_scores_that_rank_the_wrong_way_round_are_not_turned():
    y, score = _scores()
    wrong = Recalibration.fit(y, -score)
    assert 0 < wrong.slope < 0.2


def test_scores_that_separate_stay_finite():
    y = np.repeat([0.0, 1.0], 10)
    found = Recalibration.fit(y, 8.0 * (2.0 * y - 1.0), prior_sd=None)
    said = expit(found.intercept + found.slope * 8.0 * (2.0 * y - 1.0))
    np.testing.assert_allclose(said, np.where(y > 0.5, 11 / 12, 1 / 12), atol=1e-3)


def test_sizes_that_count_too_much_are_found_and_taken_off():
    """Chances of bags whose instances are copies, by a law that takes them for independent."""
    rng = np.random.default_rng(3)
    size = rng.integers(1, 60, 6000)
    f = rng.normal(-1.0, 1.5, 6000)
    y = (rng.random(6000) < expit(f)).astype(float)
    score = f + 1.5 * np.log(size)
    found = Recalibration.fit(y, score, size)
    assert found.slope == pytest.approx(1.0, abs=0.08)
    assert found.size_slope == pytest.approx(-1.5, abs=0.12)
    assert np.abs(found.logit(score, size) - f).mean() < 0.15
    # Without a prior: logistic regression by another library.
    theirs = LogisticRegression(C=np.inf).fit(np.stack([score, np.log(size)], axis=1), y)
    free = Recalibration.fit(y, score, size, prior_sd=None)
    np.testing.assert_allclose([free.slope, free.size_slope], theirs.coef_[0], rtol=0.01)
    # Beyond the sizes that were seen nothing is extrapolated.
    known, beyond = found.logit(np.zeros(2), np.array([59, 5000]))
    assert beyond == known
    assert Recalibration.of_array(found.array) == found


def test_bags_of_one_size_have_no_slope_by_size():
    y, score = _scores()
    same = Recalibration.fit(y, score, np.full(y.size, 7), prior_sd=None)
    without = Recalibration.fit(y, score, prior_sd=None)
    assert (same.slope, same.intercept, same.size_slope) == (without.slope, without.intercept, 0.0)
    assert Recalibration.of_array(np.array([1.5, 0.2])) == Recalibration(1.5, 0.2)  # older models


DISTRIBUTIONS = {
    "logistic": Probability("logistic", np.linspace(-6, 3, 9), np.linspace(0.1, 30, 9)),
    "probit": Probability("probit", np.linspace(-3, 3, 9), np.linspace(0, 9, 9)),
    "draws": ProbabilityDraws(np.random.default_rng(1).beta(0.3, 0.6, (400, 9))),
    "votes": ProbabilityDraws((np.random.default_rng(2).random((50, 9)) < 0.2).astype(float)),
    "one-voice": ProbabilityDraws(np.repeat([[0.0, 1.0]], 50, axis=0)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_mean_is_platts_and_the_order_is_kept(name):
    before, by = DISTRIBUTIONS[name], Recalibration(1.7, -0.6)
    after = by.apply(before, np.ones(9))
    np.testing.assert_allclose(
        after.mean, expit(by.intercept + by.slope * mean_logit(before)), atol=1e-6
    )
    assert (np.diff(after.mean[np.argsort(before.mean)]) > -1e-9).all()
    assert (after.quantile(0.1) <= after.quantile(0.9)).all()
    if isinstance(before, ProbabilityDraws):
        sorted_like_before = np.take_along_axis(after.draws, before.draws.argsort(0), 0)
        assert (np.diff(sorted_like_before, axis=0) >= 0).all()
    else:
        np.testing.assert_allclose(after.s, by.slope**2 * before.s)


def test_the_identity_changes_nothing():
    for before in DISTRIBUTIONS.values():
        assert Recalibration().apply(before, np.arange(1, 10)) is before


def test_few_bags_are_dealt_so_that_every_fit_sees_both_labels():
    y = np.zeros(12)
    y[[3, 7, 9]] = 1.0
    fold = inner_folds(y, 5, 0)
    assert fold.max() == 2
    assert all(np.unique(y[fold != k]).size == 2 for k in range(3))
    y[[3, 7]] = 0.0
    assert inner_folds(y, 5, 0) is None


def noisy_bags(n_bag=60, seed=0):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 6, n_bag))])
    x = rng.normal(size=(offsets[-1], 2))
    noisy = x[:, 0] + 0.7 * rng.normal(size=x.shape[0])
    return Bags(x, offsets, np.maximum.reduceat((noisy > 1.2).astype(float), offsets[:-1]))


def test_it_is_fitted_to_bags_that_the_fit_did_not_see():
    bags = noisy_bags()
    how = {"n_inducing": 8, "max_epochs": 10, "variance": 1.0, "lengthscale": 1.0}
    how |= {"aggregate": "sum", "calibrate": "none"}
    model = models.VWSGP(**{**how, "calibrate": "cv"}).fit(bags, n_thread=1)
    fold, by_hand = stratified_folds(bags.y, 5, 0), np.empty(bags.n_bag)
    for number in range(5):
        other = models.VWSGP(**how).fit(bags.select(fold != number))
        by_hand[fold == number] = logit(other.predict_bags(bags.select(fold == number)).mean)
    sizes = np.diff(bags.offsets)
    wanted = Recalibration.fit(bags.y, by_hand, sizes)
    assert model.recalibration_.slope == pytest.approx(wanted.slope, rel=1e-6)
    assert model.recalibration_.intercept == pytest.approx(wanted.intercept, rel=1e-6)
    assert model.recalibration_.size_slope == pytest.approx(wanted.size_slope, rel=1e-6)
    plain = models.VWSGP(**how).fit(bags)
    np.testing.assert_array_equal(
        plain.predict_pixels(bags.x).mean, model.predict_pixels(bags.x).mean
    )
    np.testing.assert_allclose(
        model.predict_bags(bags).mean, wanted.apply(plain.predict_bags(bags), sizes).mean, atol=1e-9
    )


def test_regressions_cannot_be_recalibrated():
    for model in (
        models.VWSGP(likelihood="normal", calibrate="cv"),
        models.BLRT(task="multiclass", calibrate="cv"),
    ):
        with pytest.raises(ParameterError, match=r"labels of 0 and 1.*leave it out"):
            model.fit(noisy_bags())

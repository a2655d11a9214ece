"""Splits, early stopping, and choosing between candidates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models import BagBlock, Bags, Constant, Network, Nystrom, VBAgg
from models.core.errors import NumericalError, ParameterError
from models.tuning import fit_watched, four_way_split, log_score, tune
from tests.plain import plain


def _parts(split):
    return np.stack([split.train, split.early_stop, split.validation, split.test])


def test_a_split_deals_every_bag_once():
    split = four_way_split(50, (30, 5, 5, 10), seed=3)
    parts = _parts(split)
    np.testing.assert_array_equal(parts.sum(axis=0), 1)
    np.testing.assert_array_equal(parts.sum(axis=1), [30, 5, 5, 10])
    with pytest.raises(ParameterError, match="not four parts of 50 bags"):
        four_way_split(50, (30, 5, 5, 11), seed=3)


def test_tuning_prefers_what_predicts_better(make_bags):
    bags = make_bags(n_bag=60, awkward=False, rate=2.0)
    split = four_way_split(60, (36, 8, 8, 8), seed=0)
    candidates = [
        plain(VBAgg, kernel="rbf(x)", n_inducing=10, max_epochs=20),
        plain(Constant),
    ]
    found = tune(candidates, bags, "validation", split=split)
    assert found.best == 0
    assert found.scores[0] > found.scores[1]
    assert not hasattr(candidates[0], "state_")
    by_bound = tune([candidates[0]], bags, n_starts=2)
    alone = [plain(VBAgg, kernel="rbf(x)", n_inducing=10, max_epochs=20, seed=s) for s in (0, 1)]
    assert by_bound.scores[0] == max(model.fit(bags).bound_ for model in alone)
    with pytest.raises(ParameterError, match="needs a split"):
        tune(candidates, bags, "validation")


def test_shares_are_rounded_to_whole_bags():
    # The paper's 576 / 95 / 95 / 191 of 957, near enough.
    parts = _parts(four_way_split(957, (0.6, 0.1, 0.1, 0.2), seed=1))
    np.testing.assert_array_equal(parts.sum(axis=0), 1)
    np.testing.assert_array_equal(parts.sum(axis=1), [574, 96, 96, 191])
    np.testing.assert_array_equal(
        _parts(four_way_split(10, (0.7, 0.1, 0.1, 0.1), seed=1)).sum(axis=1), [7, 1, 1, 1]
    )
    for wrong in ((0.6, 0.1, 0.1), (0.6, 0.1, 0.1, 0.1), (1.5, -0.5, 0.0, 0.0)):
        with pytest.raises(ParameterError, match="nor shares of 1"):
            four_way_split(957, wrong, seed=1)


def test_the_seed_decides_the_split():
    one, again, other = (_parts(four_way_split(40, (10, 10, 10, 10), s)) for s in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_a_balanced_split_spreads_the_responses_alike():
    y = np.random.default_rng(0).lognormal(0, 2, 957)
    sizes = (576, 95, 95, 191)
    seen = []
    for seed in range(20):
        parts = _parts(four_way_split(957, sizes, seed, balance=y))
        np.testing.assert_array_equal(parts.sum(axis=0), 1)
        np.testing.assert_array_equal(parts.sum(axis=1), sizes)
        for q in (0.25, 0.5, 0.75):
            shares = [(y[part] <= np.quantile(y, q)).mean() for part in parts]
            np.testing.assert_allclose(shares, q, atol=0.03)  # at random 0.05 is one deviation
        seen.append(parts[3])
    assert np.mean(seen, axis=0).max() < 0.7  # no bag is always in one set
    none = _parts(four_way_split(957, (957, 0, 0, 0), 0, balance=y))
    assert none[0].all()


def test_early_stopping_keeps_the_best_epoch(make_bags):
    bags = make_bags(n_bag=40, awkward=False, rate=2.0)
    split = four_way_split(40, (20, 20, 0, 0), seed=0)
    model = plain(Network, n_hidden=30, weight_decay=1e-3, learning_rate=0.1, max_epochs=120)
    training, watched = bags.select(split.train), bags.select(split.early_stop)
    stopped = fit_watched(model, training, watched)
    epochs = len(stopped.history_)
    scores = []
    for n_epoch in (epochs, epochs + 5, epochs + 10):
        params = {**model.get_params(), "max_epochs": n_epoch}
        alone = plain(Network, **params).fit(training)
        scores.append(log_score(alone, watched))
    # The same numbers as a fit that was told where to stop; later ones are worse.
    assert log_score(stopped, watched) == scores[0]
    assert scores[0] > max(scores[1:])
    assert stopped.bound_ < Network(**model.get_params()).fit(training).bound_


def test_bags_that_cannot_be_predicted_are_an_error(make_bags):
    bags = make_bags(n_bag=12)
    nobody = replace(_block(bags), weight=np.zeros(bags.n_pix), y=bags.y + 1e6)
    with pytest.raises(NumericalError, match="early stopping"):
        fit_watched(_Unsure(max_epochs=3), bags, nobody)


class _Unsure(Constant):
    """Gives everything no density at all."""

    def predict_bags(self, bags, **options):
        prediction = super().predict_bags(bags, **options)
        return replace(prediction, draws=np.full_like(prediction.draws, np.nan))


def _block(bags):
    fields = ("x", "weight", "coords", "offsets", "y", "bag", "trials")
    return BagBlock(**{name: getattr(bags, name) for name in fields})


def test_vbagg_ignores_the_early_stop_set(make_bags):
    bags = make_bags(n_bag=40)
    split = four_way_split(40, (20, 10, 10, 0), seed=0)
    model = plain(VBAgg, kernel="rbf(x)", n_inducing=6, max_epochs=25)
    found = tune([model], bags, "validation", split=split)
    alone = VBAgg(**model.get_params()).fit(bags.select(split.train))
    assert found.model.history_[-1]["bound"] == alone.history_[-1]["bound"]
    assert found.scores == [log_score(alone, bags.select(split.validation))]


def test_nothing_of_validation_or_test_bags_reaches_a_fit(make_bags):
    bags = make_bags(n_bag=40)
    split = four_way_split(40, (20, 10, 5, 5), seed=0)
    unseen = split.validation | split.test
    spoilt = Bags(
        np.where(np.repeat(unseen, np.diff(bags.offsets))[:, None], 1e3, bags.x),
        bags.offsets,
        np.where(unseen, 7e4, bags.y),
        bags.weight,
        bags.coords,
    )
    one, other = (
        tune([plain(Nystrom, n_inducing=5, max_epochs=10)], b, "validation", split=split)
        for b in (bags, spoilt)
    )
    for name, value in one.model.state_.params.items():
        np.testing.assert_array_equal(value, other.model.state_.params[name])
    assert one.scores != other.scores

"""Classifiers of bags inside scikit-learn: its checks, pipelines and searches."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    StratifiedGroupKFold,
    StratifiedKFold,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    train_test_split,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import models
from models import BagScorer, InstanceTransformer
from models.core.errors import BagsError

# Rows without ids are bags of one instance: every check applies, and none is expected to fail.
ALONE = {"calibrate": "none"}  # no fits within the fit
PLAIN = {**ALONE, "variance": 1.0, "lengthscale": 1.0}
CHECKED = [
    models.VWSGP(n_inducing=5, max_epochs=8, aggregate="sum", **PLAIN),
    models.BLRT(n_trees=15, missing=True, **ALONE),
    models.BLRT(n_trees=10, task="regression", **ALONE),
    models.PsiVGPMIL(n_inducing=5, max_epochs=4, **PLAIN),
    models.PooledGP(n_inducing=5, n_starts=1, max_epochs=2, **ALONE),
    models.PsiVGPMILSVI(n_inducing=5, max_epochs=2, **PLAIN),
    models.VWSGPSVI(n_inducing=5, max_epochs=3, aggregate="sum", **PLAIN),
    models.GPMIL(max_epochs=1, **ALONE),
    models.GPMILS(n_inducing=5, max_epochs=1, n_samples=4, **ALONE),
]
FAST = models.VWSGP(n_inducing=8, max_epochs=6, aggregate="sum", **PLAIN)


@pytest.mark.ci
@parametrize_with_checks(CHECKED)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


class Given:
    def __init__(self, n_bag=48, seed=0):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(1, 7, n_bag)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        self.x = rng.normal(size=(offsets[-1], 3)) * [3.0, 1.0, 100.0] + [5.0, 0.0, 40.0]
        largest = np.maximum.reduceat(self.x[:, 0], offsets[:-1])
        self.y = np.where(largest > np.median(largest), "yes", "no")
        self.of_row = np.repeat(np.arange(n_bag), sizes)
        self.ids = np.array([f"bag {k}" for k in range(n_bag)])[self.of_row]
        self.list = np.split(self.x, offsets[1:-1])
        self.patient = np.repeat(np.arange(n_bag // 4), 4)  # a group of bags


@pytest.fixture(scope="module")
def given():
    return Given()


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_cross_validation_of_a_list_splits_bags(given):
    folds = StratifiedKFold(4)
    scores = cross_val_score(FAST, given.list, given.y, cv=folds, scoring="roc_auc")
    by_hand = []
    for train, test in folds.split(given.list, given.y):
        model = clone(FAST).fit([given.list[a] for a in train], given.y[train])
        p = model.predict_proba([given.list[a] for a in test])[:, 1]
        by_hand.append(roc_auc_score(given.y[test] == "yes", p))
    np.testing.assert_allclose(scores, by_hand)
    assert scores.mean() > 0.8
    p = cross_val_predict(FAST, given.list, given.y, cv=folds, method="predict_proba")
    assert p.shape == (48, 2)
    objects = np.empty(48, dtype=object)
    objects[:] = given.list
    np.testing.assert_allclose(
        cross_val_score(FAST, objects, given.y, cv=folds, scoring="roc_auc"), scores
    )
    train, test, y_train, y_test = train_test_split(given.list, given.y, random_state=0)
    model = clone(FAST).fit(train, y_train)
    assert model.score(test, y_test) == pytest.approx((model.predict(test) == y_test).mean())


def test_bags_of_equal_size_may_be_one_array():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 5, 2))
    y = x[:, :, 0].max(axis=1) > 1.2
    scores = cross_val_score(FAST, x, y, cv=4)
    np.testing.assert_array_equal(scores, cross_val_score(FAST, list(x), y, cv=4))


def test_grid_search_of_a_pipeline_over_a_list_with_groups_of_bags(given):
    steps = make_pipeline(InstanceTransformer(StandardScaler()), FAST)
    grid = {"vwsgp__variance": [0.1, 10.0], "vwsgp__aggregate": ["sum", "mean"]}
    search = GridSearchCV(steps, grid, cv=GroupKFold(3), scoring="neg_log_loss")
    search.fit(given.list, given.y, groups=given.patient)
    assert search.classes_.tolist() == ["no", "yes"]
    # The best candidate's score, by hand: no scaler and no model saw a held-out patient.
    by_hand = []
    for train, test in GroupKFold(3).split(given.list, given.y, given.patient):
        rows = np.concatenate([given.list[a] for a in train])
        mean, sd = rows.mean(axis=0), rows.std(axis=0)
        scaled = [(bag - mean) / sd for bag in given.list]
        model = clone(FAST).set_params(
            **{key.removeprefix("vwsgp__"): value for key, value in search.best_params_.items()}
        )
        model.fit([scaled[a] for a in train], given.y[train])
        p = model.predict_proba([scaled[a] for a in test])
        by_hand.append(-log_loss(given.y[test], p, labels=model.classes_))
    assert search.best_score_ == pytest.approx(np.mean(by_hand), abs=1e-6)
    assert search.score(given.list, given.y) < 0  # the log loss of all, refitted
    assert search.predict(given.list[:3]).shape == (3,)


def test_grid_search_of_rows_with_the_ids_as_groups(given, routing):
    y = given.y[given.of_row]
    model = clone(FAST).set_fit_request(bags=True).set_score_request(bags=True)
    search = GridSearchCV(
        model, {"variance": [0.1, 1.0, 10.0]}, cv=GroupKFold(4), error_score="raise"
    )
    search.fit(given.x, y, groups=given.ids, bags=given.ids)
    by_hand = []
    for train, test in GroupKFold(4).split(given.x, y, given.ids):
        assert not set(given.ids[train]) & set(given.ids[test])
        best = clone(FAST).set_params(**search.best_params_)
        best.fit(given.x[train], y[train], given.ids[train])
        by_hand.append(best.score(given.x[test], y[test], given.ids[test]))
    assert search.best_score_ == pytest.approx(np.mean(by_hand))
    assert search.best_score_ > 0.7
    assert search.best_estimator_.predict(given.x, given.ids).shape == (48,)


def test_other_scores_of_rows(given, routing):
    y = given.y[given.of_row]
    steps = make_pipeline(
        StandardScaler(),
        clone(FAST)
        .set_fit_request(bags=True)
        .set_predict_request(bags=True)
        .set_predict_proba_request(bags=True)
        .set_decision_function_request(bags=True),
    )
    cv = StratifiedGroupKFold(4)
    found = cross_validate(
        steps,
        given.x,
        y,
        cv=cv,
        params={"groups": given.ids, "bags": given.ids},
        scoring={name: BagScorer(name) for name in ("roc_auc", "accuracy", "neg_log_loss")},
        error_score="raise",
    )
    for fold, (train, test) in enumerate(cv.split(given.x, y, given.ids)):
        scaler = StandardScaler().fit(given.x[train])
        model = clone(FAST).fit(scaler.transform(given.x[train]), y[train], given.ids[train])
        x, ids = scaler.transform(given.x[test]), given.ids[test]
        bags = models.bag_ids(ids)
        true = np.array([given.y[int(name.split()[1])] for name in bags])
        p = model.predict_proba(x, ids)
        assert found["test_roc_auc"][fold] == pytest.approx(roc_auc_score(true == "yes", p[:, 1]))
        said = model.predict(x, ids)
        assert found["test_accuracy"][fold] == pytest.approx(accuracy_score(true, said))
        assert found["test_neg_log_loss"][fold] == pytest.approx(
            -log_loss(true, p, labels=["no", "yes"])
        )
    assert repr(BagScorer("roc_auc")) == "BagScorer('roc_auc')"


def test_a_cross_validation_that_loses_the_ids_is_refused(given):
    """Without metadata routing scikit-learn hands ids to ``fit`` alone."""
    y = given.y[given.of_row]
    with pytest.raises(BagsError, match="rows without bags; give bags="):
        cross_val_score(
            FAST,
            given.x,
            y,
            cv=GroupKFold(3),
            groups=given.ids,
            params={"bags": given.ids},
            error_score="raise",
        )


def test_a_pipeline_of_rows(given):
    steps = make_pipeline(StandardScaler(), clone(FAST))
    steps.fit(given.x, given.y, vwsgp__bags=given.ids)
    scaled = (given.x - given.x.mean(axis=0)) / given.x.std(axis=0)
    model = clone(FAST).fit(scaled, given.y, given.ids)
    np.testing.assert_allclose(
        steps.predict_proba(given.x, bags=given.ids), model.predict_proba(scaled, given.ids)
    )
    np.testing.assert_array_equal(
        steps.predict(given.x, bags=given.ids), model.predict(scaled, given.ids)
    )


def test_instance_transformer(given):
    many = InstanceTransformer(PCA(2)).fit(given.list)
    rows = PCA(2).fit(given.x).transform(given.x)
    for one, other in zip(
        many.transform(given.list),
        np.split(rows, np.cumsum([len(each) for each in given.list])[:-1]),
        strict=True,
    ):
        np.testing.assert_allclose(one, other)
    np.testing.assert_allclose(many.transform(given.x), rows)
    # One that looks at labels has those of the bags.
    lda = InstanceTransformer(LinearDiscriminantAnalysis()).fit(given.list, given.y)
    plain = LinearDiscriminantAnalysis().fit(given.x, given.y[given.of_row])
    np.testing.assert_allclose(np.concatenate(lda.transform(given.list)), plain.transform(given.x))
    frames = [pd.DataFrame(each, columns=list("abc")) for each in given.list]
    scaler = StandardScaler().set_output(transform="pandas")
    steps = make_pipeline(InstanceTransformer(scaler), clone(FAST)).fit(frames, given.y)
    assert steps[-1].feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.raises(models.errors.NotFittedError, match="call fit first"):
        InstanceTransformer(PCA(2)).transform(given.list)

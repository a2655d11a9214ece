"""Bags and labels in every shape in which users hold them mean the same to a classifier."""

from __future__ import annotations

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError

import models
from models import Bags
from models.core.errors import BagsError, UnsupportedError

N_BAG = 30
FIXED = {"calibrate": "none", "variance": 1.0, "lengthscale": 1.0}
MAKE = {
    "psi-vgpmil": lambda: models.PsiVGPMIL(n_inducing=10, max_epochs=10, start=0.5, **FIXED),
    "psi-vgpmil-svi": lambda: models.PsiVGPMILSVI(
        n_inducing=10, max_epochs=5, batch_bags=8, start=0.5, **FIXED
    ),
    "pooled-gp": lambda: models.PooledGP(n_inducing=10, n_starts=1, max_epochs=3),
    "vwsgp": lambda: models.VWSGP(n_inducing=10, max_epochs=6),
    "gpmil": lambda: models.GPMIL(max_epochs=2, calibrate="none"),
    "gpmil-s": lambda: models.GPMILS(n_inducing=10, max_epochs=3, calibrate="none"),
    "blrt": lambda: models.BLRT(n_trees=20),
}
FAST = models.VWSGP(n_inducing=10, max_epochs=6, aggregate="sum", **FIXED)


class Given:
    """The same bags as rows in two orders, as a list, and as Bags."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(1, 7, N_BAG)
        self.offsets = np.concatenate([[0], np.cumsum(sizes)])
        self.x = rng.normal(size=(self.offsets[-1], 3)) * [3.0, 1.0, 0.1]
        self.y = np.maximum.reduceat((self.x[:, 0] > 3.0).astype(int), self.offsets[:-1])
        self.of_row = np.repeat(np.arange(N_BAG), sizes)
        # Sorted, as strings, and not as numbers.
        self.names = np.sort([f"bag {k}" for k in range(N_BAG)])
        self.ids = self.names[self.of_row]
        # Rows of different bags mixed, the instances of each bag in the order they had.
        rank = np.arange(self.x.shape[0]) - self.offsets[self.of_row]
        self.mixed = np.lexsort((rng.permutation(N_BAG)[self.of_row], rank))
        self.bags = Bags(self.x, self.offsets, self.y)
        self.list = np.split(self.x, self.offsets[1:-1])


@pytest.fixture(scope="module")
def given():
    return Given()


@pytest.fixture(scope="module", params=MAKE)
def make(request):
    return MAKE[request.param]


@pytest.fixture(scope="module")
def fitted(make, given):
    return make().fit(given.x, given.y, given.ids)


@pytest.fixture(scope="module")
def fast(given):
    return clone(FAST).fit(given.bags)


def same(one, other):
    for group in ("params", "fixed"):
        for name, value in getattr(one.state_, group).items():
            np.testing.assert_array_equal(value, getattr(other.state_, group)[name])


# -- one fit, whatever the shape -----------------------------------------------------------------


def test_rows_lists_and_bags_give_the_same_fit_to_the_bit(make, given, fitted):
    same(fitted, make().fit(given.bags))
    same(fitted, make().fit(given.list, given.y))
    if isinstance(fitted, models.BLRT):  # what holds a list is no matter of the model
        as_objects = np.empty(N_BAG, dtype=object)
        as_objects[:] = given.list
        same(fitted, make().fit(as_objects, given.y))


def test_mixed_rows_give_the_same_fit_to_the_bit(make, given, fitted):
    order = given.mixed
    assert (np.diff(given.of_row[order]) != 0).mean() > 0.5  # the rows are mixed indeed
    other = make().fit(given.x[order], given.y[given.of_row][order], given.ids[order])
    same(fitted, other)
    # The bags come in the order in which they first appear.
    ids = models.bag_ids(given.ids[order])
    said = pd.Series(list(other.predict_proba(given.x[order], given.ids[order])), ids)
    before = fitted.predict_proba(given.x, given.ids)
    for name, each in zip(given.names, before, strict=True):
        np.testing.assert_array_equal(said[name], each)


def test_another_order_inside_bags_changes_rounding_alone(given):
    # Not of models that draw starting points from the rows by number: those of the closed form.
    order = np.random.default_rng(1).permutation(given.x.shape[0])
    other = clone(FAST).fit(given.x[order], given.y[given.of_row][order], given.ids[order])
    one = clone(FAST).fit(given.x, given.y, given.ids)
    np.testing.assert_allclose(
        other.predict_proba(given.x, given.ids), one.predict_proba(given.x, given.ids), atol=0.05
    )


@pytest.mark.parametrize(
    "ids",
    [
        lambda of_row: of_row * 7 + 1000,
        lambda of_row: np.array([f"b{k:03d}" for k in of_row]),
        lambda of_row: np.array([f"b{k:03d}" for k in of_row], dtype=object),
        lambda of_row: [(k, "x") for k in of_row],
        lambda of_row: pd.Series(of_row).map(lambda k: pd.Timestamp(2020, 1, 1 + int(k))),
        lambda of_row: pd.Categorical([f"b{k:03d}" for k in of_row]),
        lambda of_row: of_row / 4.0,
        lambda of_row: [int(k) if k % 2 else f"b{k}" for k in of_row],
        lambda of_row: pd.DataFrame({"bag": of_row}),
    ],
    ids=["int", "str", "object", "tuple", "date", "category", "float", "mixed types", "column"],
)
def test_ids_of_any_type(given, ids, fast):
    one = clone(FAST).fit(given.x, given.y, ids(given.of_row))
    same(one, fast)
    assert one.predict(given.x, ids(given.of_row)).shape == (N_BAG,)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (lambda y: y, [0, 1]),
        (lambda y: 2 * y - 1, [-1, 1]),
        (lambda y: y.astype(float), [0.0, 1.0]),
        (lambda y: y.astype(bool), [False, True]),
        (lambda y: np.where(y > 0, "tumour", "normal"), ["normal", "tumour"]),
        (lambda y: np.where(y > 0, "yes", "no").astype(object), ["no", "yes"]),
        (lambda y: list(np.where(y > 0, "yes", "no")), ["no", "yes"]),
        (lambda y: pd.Series(np.where(y > 0, "yes", "no"), dtype="category"), ["no", "yes"]),
        (lambda y: pd.Series(y.astype(bool), dtype="boolean"), [False, True]),
        (lambda y: pd.Series(y, dtype="Int64"), [0, 1]),
        (lambda y: y[:, None] * 4 + 3, [3, 7]),
    ],
    ids="01 -1/1 float bool str object list category boolean Int64 column".split(),  # noqa: SIM905
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning")
def test_labels_of_every_kind(given, labels, classes, fast, tmp_path):
    y = labels(given.y)
    model = clone(FAST).fit(given.x, y, given.ids)
    same(model, fast)
    same(clone(FAST).fit(given.x, labels(given.y[given.of_row]), given.ids), fast)  # a row each
    assert model.classes_.tolist() == classes
    said = model.predict(given.x, given.ids)
    assert set(said.tolist()) <= set(classes)
    p = model.predict_proba(given.x, given.ids)
    np.testing.assert_array_equal(said == classes[1], p[:, 1] > 0.5)
    assert model.score(given.x, y, given.ids) == pytest.approx(
        (said == np.array(classes)[given.y]).mean()
    )
    model.save(tmp_path / "m")
    again = models.load(tmp_path / "m")
    assert again.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(again.predict(given.x, given.ids), said)


def test_labels_by_id_need_no_order(given):
    one = clone(FAST).fit(given.bags)
    backwards = {name: int(y) for name, y in zip(given.names[::-1], given.y[::-1], strict=True)}
    mixed = given.x[given.mixed], given.ids[given.mixed]
    for y in (backwards, pd.Series(backwards)):
        same(one, clone(FAST).fit(given.x, y, given.ids))
        same(one, clone(FAST).fit(mixed[0], y, mixed[1]))
    plain = pd.Series(given.y)  # its index says nothing of strings
    same(one, clone(FAST).fit(given.x, plain, given.ids))
    with pytest.raises(BagsError, match="y has no value for bag 'bag 0'"):
        clone(FAST).fit(given.x, plain.set_axis(np.arange(N_BAG) + 5), given.ids)


def test_file_order_is_the_order_of_first_appearance(given):
    """Ids that do not sort as they stand: b9, b10."""
    ids = np.array([f"b{k + 5}" for k in range(N_BAG)])
    model = clone(FAST).fit(given.x, given.y, ids[given.of_row])
    np.testing.assert_allclose(
        model.predict_proba(given.x, ids[given.of_row]),
        clone(FAST).fit(given.bags).predict_proba(given.list),
        atol=0.02,  # the bags are stored in another order
    )
    np.testing.assert_array_equal(models.bag_ids(ids[given.of_row]), ids)


def test_rows_without_ids_are_bags_of_one_instance():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = (x[:, 0] > 0).astype(int)
    one = clone(FAST).fit(x, y)
    same(one, clone(FAST).fit(x, y, np.arange(60)))
    assert one.predict(x).shape == (60,)
    assert one.score(x, y) > 0.8


def test_sparse_matrices_equal_dense_ones(given, monkeypatch):
    x, fitted = sparse.csr_array(given.x), clone(FAST).fit(given.x, given.y, given.ids)
    model = clone(FAST).fit(x, given.y, given.ids)
    same(model, fitted)
    whole = fitted.predict_proba(given.x, given.ids)
    np.testing.assert_allclose(model.predict_proba(x, given.ids), whole, atol=1e-12)
    # In pieces of whole bags, whatever they hold.
    monkeypatch.setattr("models.mil.data.bags_in.DENSE_VALUES", 20)
    np.testing.assert_allclose(model.predict_proba(x, given.ids), whole, atol=1e-12)
    parts = [sparse.csc_matrix(part) for part in given.list]
    np.testing.assert_allclose(model.predict_proba(parts), whole, atol=1e-12)


def test_what_is_said_of_a_bag_does_not_depend_on_those_beside_it(given, fitted):
    whole = fitted.predict_proba(given.list)
    for a in (0, 7, N_BAG - 1):
        np.testing.assert_allclose(fitted.predict_proba([given.list[a]])[0], whole[a], atol=1e-12)


# -- what is refused, in a line ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda g: (g.x, g.y[:-1], g.ids), r"y has 29 values; give one for each of 30 bags or \d+"),
        (lambda g: (g.list, g.y[:-1]), "y has 29 values; give one for each of 30 bags$"),
        (lambda g: (g.x, g.y, g.ids[:-1]), r"bags has shape \(\d+,\) for \d+ rows"),
        (lambda g: (g.x, np.ones(N_BAG), g.ids), "all labels are 1.0 .one class.; .*both classes"),
        (
            lambda g: (g.x, np.repeat("a", N_BAG), g.ids),
            "all labels are .a. .one class.; .*both classes",
        ),
        (
            lambda g: (g.x, np.arange(N_BAG) % 3, g.ids),
            'Only binary .* labels are 0, 1, 2; .*task="multiclass"',
        ),
        (lambda g: (g.x, g.y + 0.25, g.ids), "Unknown label type: continuous"),
        (
            lambda g: (g.x, np.where(np.arange(N_BAG) == 3, np.nan, g.y), g.ids),
            "y of bag 'bag 11' is missing",
        ),
        (
            lambda g: (g.x, [None, "no", *["yes"] * (N_BAG - 2)], g.ids),
            "y of bag 'bag 0' is missing",
        ),
        (
            lambda g: (g.x, np.array([1, "no", *["yes"] * (N_BAG - 2)], dtype=object), g.ids),
            "Unknown label type: y holds int and str",
        ),
        (
            lambda g: (g.x, np.where(np.arange(len(g.x)) == g.offsets[2] - 1, "b", "a"), g.ids),
            "y differs inside bag 'bag 1': 'a' and 'b'",
        ),
        (lambda g: (g.x[g.mixed], g.y, g.ids[g.mixed]), "the rows of bags are mixed.*dict"),
        (lambda g: (g.x, None, g.ids), "requires y to be passed"),
        (
            lambda g: (g.x, g.y, np.where(g.of_row == 1, None, g.ids)),
            r"bags holds no id \(NaN or None\) in row \d+",
        ),
        (lambda g: ([*g.list[:-1], g.list[-1][:, :2]], g.y), "bag 29 of X has 2 columns"),
        (lambda g: ([*g.list[:-1], g.list[-1][:0]], g.y), "bag 29 of X is empty"),
        (lambda g: (g.list, g.y, np.arange(N_BAG)), "X is a list of bags, and bags is given too"),
        (lambda g: (g.bags, g.y), "y: Bags hold it already"),
        (lambda g: (g.x.astype(str).astype(object) + "?", g.y, g.ids), "could not convert string"),
    ],
)
def test_unusable_input_is_refused_in_one_line(given, wrong, says):
    with pytest.raises(BagsError, match=says) as found:
        clone(FAST).fit(*wrong(given))
    assert "\n" not in str(found.value)


def test_missing_values_are_refused_with_their_place(given):
    x = pd.DataFrame(given.x, columns=["dark", "round", "large"])
    at = int(given.offsets[4]) + 1
    x.loc[at, "round"] = np.nan
    bag = given.ids[at]
    says = rf"X holds NaN in bag '{bag}', row {at}, column 'round'; .*BLRT\(missing=True\)"
    order = given.mixed
    for rows in (np.arange(len(x)), order):
        with pytest.raises(BagsError, match=says if rows is not order else f"bag '{bag}', row "):
            clone(FAST).fit(x.iloc[rows], given.y[given.of_row][rows], given.ids[rows])
    x.loc[at, "round"] = -np.inf
    with pytest.raises(BagsError, match="holds infinity in bag"):
        clone(FAST).fit(x, given.y, given.ids)
    held = sparse.csr_array(x.to_numpy())
    with pytest.raises(BagsError, match=f"holds infinity in bag '{bag}', row {at}, column 1"):
        clone(FAST).fit(held, given.y, given.ids)


def test_missing_values_where_the_model_allows_them(given):
    x = given.x.copy()
    x[np.random.default_rng(2).random(x.shape) < 0.2] = np.nan
    model = models.BLRT(n_trees=20, missing=True).fit(x, given.y, given.ids)
    same(
        model,
        models.BLRT(n_trees=20, missing=True).fit(
            Bags(x, given.offsets, given.y, allow_missing=True)
        ),
    )
    assert np.isfinite(model.predict_proba(x, given.ids)).all()
    with pytest.raises(BagsError, match=r"infinity in bag .* leave such rows out or impute them$"):
        model.fit(np.where(np.isnan(x), np.inf, x), given.y, given.ids)


def test_names_and_numbers_of_features_are_checked(given, tmp_path):
    x = pd.DataFrame(given.x, columns=["dark", "round", "large"])
    model = clone(FAST).fit(x, given.y, given.ids)
    assert model.n_features_in_ == 3
    assert model.feature_names_in_.tolist() == ["dark", "round", "large"]
    model.save(tmp_path / "m")
    for each in (model, models.load(tmp_path / "m")):
        with pytest.raises(BagsError, match="feature names should match"):
            each.predict(x.rename(columns={"dark": "pale"}), given.ids)
        with pytest.raises(BagsError, match="feature names"):
            each.predict(x[["round", "dark", "large"]], given.ids)
        with pytest.raises(BagsError, match="feature names"):
            each.predict(x[["dark", "round"]], given.ids)
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            each.predict(given.x, given.ids)
    listed = [part for _, part in x.groupby(given.of_row)]
    np.testing.assert_allclose(model.predict_proba(listed), model.predict_proba(x, given.ids))
    model.fit(given.bags)
    assert not hasattr(model, "feature_names_in_")
    with pytest.raises(BagsError, match=r"X has 2 features, but .* is expecting 3"):
        model.predict(given.x[:, :2], given.ids)


def test_rows_without_ids_are_refused_by_a_model_of_bags(given, fitted, tmp_path):
    """Cross-validation that loses the ids must not score rows as if they were bags."""
    fitted.save(tmp_path / "m")
    for model in (fitted, models.load(tmp_path / "m")):
        for ask in (model.predict, model.predict_proba, model.decision_function):
            with pytest.raises(BagsError, match="rows without bags; give bags="):
                ask(given.x)
        with pytest.raises(BagsError, match="rows without bags"):
            model.score(given.x, given.y[given.of_row])


# -- what is said --------------------------------------------------------------------------------


def test_predictions_agree_with_one_another(given, fitted):
    p = fitted.predict_proba(given.x, given.ids)
    assert p.shape == (N_BAG, 2)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    odds = fitted.decision_function(given.x, given.ids)
    np.testing.assert_array_equal(odds > 0, fitted.predict(given.x, given.ids) == 1)
    np.testing.assert_allclose(1 / (1 + np.exp(-odds)), p[:, 1], atol=1e-12)
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(given.list)), p)
    # Draws of the same law with other seeds.
    np.testing.assert_allclose(p[:, 1], fitted.predict_bags(given.bags).mean, atol=0.06)
    np.testing.assert_array_equal(fitted.predict_proba(given.bags).shape, p.shape)


def test_score_is_the_accuracy_over_bags(given, fitted):
    right = fitted.predict(given.x, given.ids) == given.y
    assert fitted.score(given.x, given.y, given.ids) == pytest.approx(right.mean())
    assert fitted.score(given.list, given.y) == pytest.approx(right.mean())
    assert fitted.score(
        given.x[given.mixed], given.y[given.of_row][given.mixed], given.ids[given.mixed]
    ) == pytest.approx(right.mean())
    weight = np.random.default_rng(0).random(N_BAG)
    weighted = (weight * right).sum() / weight.sum()
    for w in (weight, weight[given.of_row], dict(zip(given.names, weight, strict=True))):
        assert fitted.score(given.x, given.y, given.ids, w) == pytest.approx(weighted)


def test_instances_and_the_most_telling_ones(given, fitted):
    if "pixels" not in fitted.predicts:
        for ask in (fitted.predict_instances, fitted.predict_instance_proba, fitted.top_instances):
            with pytest.raises(UnsupportedError, match="labels bags alone"):
                ask(given.list)
        return
    p = fitted.predict_instance_proba(given.x)
    np.testing.assert_allclose(p[:, 1], fitted.predict_pixels(given.x).mean, atol=1e-12)
    np.testing.assert_array_equal(fitted.predict_instances(given.x) == 1, p[:, 1] > 0.5)
    by_bag = fitted.predict_instance_proba(given.list)
    np.testing.assert_allclose(np.concatenate(by_bag), p)
    assert [each.shape[0] for each in fitted.predict_instances(given.list)] == [
        each.shape[0] for each in given.list
    ]
    order = given.mixed
    top = fitted.top_instances(given.x[order], given.ids[order], n=2)
    assert top.bag.drop_duplicates().tolist() == models.bag_ids(given.ids[order]).tolist()
    for name, rows in top.groupby("bag", sort=False):
        mine = np.flatnonzero(given.ids[order] == name)
        best = mine[np.argsort(-p[order][mine, 1], kind="stable")][:2]
        assert rows.row.tolist() == best.tolist()
        np.testing.assert_allclose(rows.probability, p[order][best, 1], atol=1e-12)
        assert rows["rank"].tolist() == [1, 2][: mine.size]
    listed = fitted.top_instances(given.list)
    assert listed.bag.tolist() == list(range(N_BAG))
    assert listed.row.tolist() == [int(each[:, 1].argmax()) for each in by_bag]


def test_more_classes_and_numbers(given):
    levels = np.where(given.y > 0, np.where(np.arange(N_BAG) % 2, "high", "mid"), "low")
    model = models.BLRT(n_trees=20, task="multiclass").fit(given.x, levels, given.ids)
    assert model.classes_.tolist() == ["high", "low", "mid"]
    p = model.predict_proba(given.x, given.ids)
    assert p.shape == (N_BAG, 3)
    np.testing.assert_array_equal(model.predict(given.list), model.classes_[p.argmax(axis=1)])
    assert model.decision_function(given.list).shape == (N_BAG, 3)
    assert is_classifier(model)

    size = np.diff(given.offsets) + 0.5
    for numbers in (models.BLRT(n_trees=20, task="regression"), models.VWSGP(likelihood="normal")):
        assert is_regressor(numbers)
        assert not is_classifier(numbers)
        numbers.fit(given.x, size, given.ids)
        said = numbers.predict(given.x, given.ids)
        np.testing.assert_allclose(said, numbers.predict_bags(given.bags).mean)
        residual = ((said - size) ** 2).sum() / ((size - size.mean()) ** 2).sum()
        assert numbers.score(given.x, size, given.ids) == pytest.approx(1 - residual)
        assert numbers.classes_.size == 0
        assert not hasattr(numbers, "predict_proba")
        with pytest.raises(AttributeError, match="predict_proba") as found:
            numbers.predict_proba(given.list)
        assert "learns numbers, not classes; use predict" in str(found.value.__cause__)
        with pytest.raises(BagsError, match=r"y of bag .* is not finite"):
            numbers.fit(given.x, np.where(size > 3, np.nan, size), given.ids)


def test_positions_come_beside_the_features(given):
    km = np.random.default_rng(3).normal(size=(given.x.shape[0], 2)) * 50
    make = lambda: models.VWSGP(kernel="rbf(x) + rbf(space)", n_inducing=10)  # noqa: E731
    one = make().fit(Bags(given.x, given.offsets, given.y, coords=km))
    other = make().fit(
        given.x[given.mixed],
        given.y[given.of_row][given.mixed],
        given.ids[given.mixed],
        coords=km[given.mixed],
    )
    same(one, other)
    said = other.predict_proba(given.x, given.ids, coords=km)
    by_bag = np.split(km, given.offsets[1:-1])
    np.testing.assert_allclose(other.predict_proba(given.list, coords=by_bag), said)
    with pytest.raises(BagsError, match="give coords"):
        other.predict_proba(given.x, given.ids)
    with pytest.raises(BagsError, match="coords has shape"):
        make().fit(given.x, given.y, given.ids, coords=km[:-1])


def test_pickle_joblib_and_files_keep_everything(given, fitted, tmp_path):
    said = fitted.predict_proba(given.list)
    joblib.dump(fitted, tmp_path / "m.joblib")
    fitted.save(tmp_path / "m")
    copies = (
        pickle.loads(pickle.dumps(fitted)),
        joblib.load(tmp_path / "m.joblib"),
        models.load(tmp_path / "m"),
    )
    for copy in copies:
        np.testing.assert_array_equal(copy.predict_proba(given.list), said)
        np.testing.assert_array_equal(copy.classes_, fitted.classes_)
        assert copy.n_features_in_ == 3
        assert repr(copy) == repr(fitted)


def test_before_the_fit(make, given):
    model = make()
    assert repr(model).startswith(type(model).__name__ + "(")
    assert not hasattr(model, "classes_")
    assert not hasattr(model, "n_features_in_")
    for ask in (model.predict, model.predict_proba, model.predict_instances, model.top_instances):
        with pytest.raises(NotFittedError, match="not fitted; call fit first"):
            ask(given.list)

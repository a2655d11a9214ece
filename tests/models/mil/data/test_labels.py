"""Which label goes to which bag, and which of two labels is the positive one."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import models
from geo.core.columns import LABELS
from models.core.errors import BagsError
from models.mil.data import labels_in
from models.mil.data.bags_in import bag_codes, grouped
from models.mil.data.labels_in import classes_in, codes_of, labels_of

ORDER = [3, 0, 2, 1]  # in which bags of numbers appear


def given(ids=ORDER, times=2):
    """Return bags of ``times`` rows each, those of a bag together."""
    of_row = np.repeat(np.array(ids), times)
    return grouped(np.zeros((of_row.size, 1)), *bag_codes(of_row))


# -- one label a bag -----------------------------------------------------------------------------


def test_series_of_the_default_index_is_in_the_order_of_appearance():
    """Numbers 0 to n - 1 are ids and places at once: an index that nobody chose names no bags."""
    y = [1, 0, 1, 1]
    for values in (y, np.array(y), pd.Series(y), pd.Series(y, name="label"), pd.Series(y * 2)[:4]):
        assert labels_of(values, given()).tolist() == y
    assert given().of_bags(pd.Series([0.1, 0.2, 0.3, 0.4]), "sample_weight").tolist() == [
        0.1,
        0.2,
        0.3,
        0.4,
    ]


def test_second_part_of_such_a_series_is_read_as_the_first():
    y = pd.Series([9, 9, 9, 9, 1, 0, 1, 1])[4:]
    assert labels_of(y, given([7, 4, 6, 5])).tolist() == [1, 0, 1, 1]


def test_series_by_id_is_by_id():
    rows = pd.DataFrame({"bag": np.repeat(ORDER, 2), "y": np.repeat([1, 0, 1, 0], 2)})
    once = rows.drop_duplicates("bag").set_index("bag").y.sort_index()
    falling = pd.DataFrame({"bag": [3, 2, 1, 0], "y": [1, 1, 0, 0]}).set_index("bag").y
    by_number = {3: 1, 0: 0, 2: 1, 1: 0}
    of_array = pd.Series([0, 0, 1, 1], index=np.arange(4))
    for y in (
        rows.groupby("bag").y.first(),
        rows.y.groupby(rows.bag.to_numpy()).first(),
        once,
        falling,  # pandas makes a range of it, with a name
        by_number,
        pd.Series(by_number),
        of_array,
    ):
        assert labels_of(y, given()).tolist() == [1, 0, 1, 0]


def test_order_of_mixed_rows_is_not_guessed_from_the_default_index():
    mixed = np.array([3, 0, 3, 0, 1, 2])
    bags = grouped(np.zeros((6, 1)), *bag_codes(mixed))
    with pytest.raises(BagsError, match="their order is not clear; give y as a dict by bag id"):
        labels_of(pd.Series([1, 0, 1, 0]), bags)


# -- which label is positive ---------------------------------------------------------------------


def test_words_are_those_of_the_command_line():
    assert {word for word, value in LABELS.items() if value == 1.0} == labels_in.POSITIVE
    assert {word for word, value in LABELS.items() if value == 0.0} == labels_in.NEGATIVE


@pytest.mark.parametrize(
    ("negative", "positive"),
    [("no", "Yes"), ("No", "yes"), ("negative", "Positive"), ("false", "TRUE"), ("n", "1")],
)
@pytest.mark.filterwarnings("ignore:.*is the positive class")
def test_of_two_words_the_positive_one_is_the_positive_class(negative, positive):
    labels = np.array([positive, negative, negative, positive])
    classes = classes_in(labels, several=False)
    assert classes.tolist() == [negative, positive]
    assert codes_of(labels, classes).tolist() == [1.0, 0.0, 0.0, 1.0]


def test_other_labels_ascend():
    for labels in (["Tumour", "normal"], ["Yes", "nothing"], ["b", "a"], [3, 1], [True, False]):
        labels = np.array(labels)
        classes = classes_in(labels, several=False)
        assert classes.tolist() == sorted(labels.tolist())
        assert codes_of(labels, classes).tolist() == [
            float(each == classes[1]) for each in labels.tolist()
        ]


def test_model_of_such_words_predicts_saves_and_scores_them(tmp_path):
    rng = np.random.default_rng(0)
    bag = np.repeat(np.arange(40), 4)
    x = rng.normal(size=(160, 2))
    true = np.maximum.reduceat(x[:, 0], np.arange(0, 160, 4)) > 1.0
    y = np.where(true, "Yes", "no")
    settings = {"calibrate": "none", "variance": 1.0, "lengthscale": 1.0, "aggregate": "sum"}
    with pytest.warns(UserWarning, match="'Yes' is the positive class, .* y == 'Yes'"):
        model = models.VWSGP(n_inducing=20, **settings).fit(x, y, bags=bag)
    plain = models.VWSGP(n_inducing=20, **settings).fit(x, true, bags=bag)
    assert model.classes_.tolist() == ["no", "Yes"]
    p = model.predict_proba(x, bag)
    np.testing.assert_array_equal(p, plain.predict_proba(x, bag))
    said = model.predict(x, bag)
    np.testing.assert_array_equal(said == "Yes", p[:, 1] > 0.5)
    assert model.score(x, y, bag) == plain.score(x, true, bag)
    model.save(tmp_path / "m")
    again = models.load(tmp_path / "m")
    assert again.classes_.tolist() == ["no", "Yes"]
    np.testing.assert_array_equal(again.predict(x, bag), said)


@pytest.mark.filterwarnings("ignore:.*is the positive class")
def test_bags_of_a_data_set_have_the_same_positive_class():
    data = models.BagDataset([np.zeros((1, 2))] * 3, np.array(["Yes", "no", "Yes"]), np.arange(3))
    assert data.to_bags().y.tolist() == [1.0, 0.0, 1.0]
    assert [each["Y"] for each in data.to_torchmil()] == [1, 0, 1]

"""Folds: balanced, seeded, compact; and files of folds with every mistake named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geo.errors import InputError
from pipeline.evaluation.folds import block_folds, random_folds, read_folds


@given(st.integers(1, 60), st.integers(2, 12), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_random_folds_are_balanced_and_seeded(n_bag, n_fold, seed):
    fold = random_folds(n_bag, n_fold, seed)
    sizes = np.bincount(fold)
    assert sizes.shape[0] == min(n_fold, n_bag)
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(fold, random_folds(n_bag, n_fold, seed))


def test_block_folds_find_the_clusters_and_number_them_from_the_west():
    rng = np.random.default_rng(0)
    middles = np.array([[900.0, 0], [100, 300], [500, -400]])
    which = rng.integers(0, 3, 60)
    fold = block_folds(middles[which] + rng.normal(0, 20, (60, 2)), 3, seed=4)
    np.testing.assert_array_equal(fold, np.array([2, 0, 1])[which])


@pytest.mark.parametrize(("n_bag", "expected"), [(1, 1), (3, 3), (8, 5)])
def test_block_folds_do_with_fewer_areas_than_folds(n_bag, expected):
    centres = np.column_stack([np.arange(n_bag), np.zeros(n_bag)])
    assert np.unique(block_folds(centres, 5, 0)).tolist() == list(range(expected))


def test_block_folds_of_one_place_are_one_fold():
    assert block_folds(np.full((6, 2), 3.5), 4, 0).tolist() == [0] * 6


def write(tmp_path, text):
    path = tmp_path / "folds.csv"
    path.write_text(text)
    return path


def test_folds_are_read_by_id_in_the_order_asked_for(tmp_path):
    path = write(tmp_path, "code,part\n007,b\n12,a\n13,\n14,b\n99,a\n")
    fold = read_folds(path, "code", "part", ["12", "14", "13", "007"])
    assert fold.tolist() == [0, 1, -1, 1]


def test_folds_are_numbered_in_the_order_of_their_numbers(tmp_path):
    path = write(tmp_path, "code;part\n1;10\n2;9\n3;NA\n")
    assert read_folds(path, "code", "part", ["1", "2", "3"]).tolist() == [1, 0, -1]


def test_ids_that_a_table_turned_into_floats_are_found(tmp_path):
    path = write(tmp_path, "code,part\n1.0,0\n2.0,1\n")
    assert read_folds(path, "code", "part", ["1", "2"]).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("code,fold\n1,0\n2,1\n", "no column 'part'"),
        ("code,part\n1,0\n1,1\n2,1\n", r"are repeated: 1 \(row 2 and 3\)"),
        ("code,part\n1,0\n", "1 areas have no row: 2"),
        ("code,part\n1,0\n2,0\n", "1 folds"),
    ],
)
def test_mistakes_in_a_folds_file_are_named(tmp_path, text, found):
    with pytest.raises(InputError, match=found):
        read_folds(write(tmp_path, text), "code", "part", ["1", "2"])


def test_a_missing_folds_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"evaluate\.folds\.path: no file"):
        read_folds(tmp_path / "none.csv", "a", "b", ["1"])

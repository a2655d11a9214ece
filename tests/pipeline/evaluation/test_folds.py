"""Folds: balanced, seeded, compact; and files of folds with every mistake named."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from geo.core.errors import InputError
from pipeline.evaluation.folds import block_folds, random_folds, read_folds


@given(st.integers(1, 60), st.integers(2, 12), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_random_folds_are_balanced_and_seeded(n_bag, n_fold, seed):
    fold = random_folds(n_bag, n_fold, seed)
    sizes = np.bincount(fold)
    assert sizes.shape[0] == min(n_fold, n_bag)
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(fold, random_folds(n_bag, n_fold, seed))


def test_block_folds_are_numbered_from_the_west():
    rng = np.random.default_rng(0)
    middles = np.array([[900.0, 0], [100, 300], [500, -400]])
    which = np.repeat([0, 1, 2], 20)
    fold = block_folds(middles[which] + rng.normal(0, 20, (60, 2)), 3)
    np.testing.assert_array_equal(fold, np.array([2, 0, 1])[which])


@given(st.integers(8, 200), st.integers(2, 7), st.integers(0, 50))
@settings(max_examples=15, deadline=None)
def test_block_folds_are_balanced_and_apart(n_bag, n_fold, seed):
    """Areas crowd around a capital, as they do in most countries: no region has most of them."""
    rng = np.random.default_rng(seed)
    crowded = rng.random(n_bag) < 0.6
    centres = rng.uniform(0, 1000, (n_bag, 2))
    centres[crowded] = 700 + 15 * rng.standard_normal((int(crowded.sum()), 2))
    fold = block_folds(centres, n_fold)
    sizes = np.bincount(fold)
    assert sizes.size == n_fold
    assert sizes.max() - sizes.min() <= 2
    # A straight line lies between any two of them: linear programming finds one.
    for one, other in itertools.combinations(range(n_fold), 2):
        a, b = centres[fold == one] / 1000, centres[fold == other] / 1000
        sides = np.vstack(
            [np.column_stack([a, np.ones(len(a))]), -np.column_stack([b, np.ones(len(b))])]
        )
        found = linprog(np.zeros(3), sides, -np.full(len(sides), 1e-9), bounds=[(None, None)] * 3)
        assert found.success


@pytest.mark.parametrize(("n_bag", "expected"), [(1, 1), (3, 3), (8, 5)])
def test_block_folds_do_with_fewer_areas_than_folds(n_bag, expected):
    centres = np.column_stack([np.arange(n_bag), np.zeros(n_bag)])
    assert np.unique(block_folds(centres, 5)).tolist() == list(range(expected))


def test_block_folds_of_one_place_are_one_fold():
    assert block_folds(np.full((6, 2), 3.5), 4).tolist() == [0] * 6


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


def test_areas_of_one_place_are_in_one_region():
    centres = np.repeat([[0.0, 0.0], [10.0, 0.0], [20.0, 5.0]], [7, 2, 1], axis=0)
    fold = block_folds(centres, 3)
    assert fold.tolist() == [0] * 7 + [1] * 2 + [2]

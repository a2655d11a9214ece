"""Halves of symmetric matrices: every bit comes back, and what is not symmetric is left alone."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.core.protocol import Stats
from models.training.reduction import Partial
from pipeline.training.half_matrices import LEAST_ROWS, Half, halved, halved_sums, whole, whole_sums


def symmetric(n: int, seed: int) -> np.ndarray:
    square = np.random.default_rng(seed).normal(size=(n, n))
    return square + square.T


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 80), seed=st.integers(0, 99), special=st.sampled_from([-0.0, np.nan, np.inf])
)
def test_every_bit_comes_back(n, seed, special):
    array = symmetric(n, seed)
    array[0, -1] = array[-1, 0] = special
    sent = pickle.loads(pickle.dumps(halved({"a": array, "b": array[0]})))
    assert isinstance(sent["a"], Half) == (n >= LEAST_ROWS)
    found = whole(sent)
    assert found["a"].tobytes() == array.tobytes()
    assert found["a"].flags.c_contiguous
    assert found["b"].tobytes() == array[0].tobytes()


def test_half_of_the_bytes_is_sent():
    array = symmetric(200, 1)
    assert halved({"a": array})["a"].values.nbytes == 8 * 200 * 201 // 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a + np.eye(len(a), k=1) * 1e-300 + 0 * a,
        lambda a: np.where(
            np.eye(len(a), k=1) > 0, -0.0, np.where(np.eye(len(a), k=-1) > 0, 0.0, a)
        ),
        lambda a: a[:, :-1],
        lambda a: a.astype(np.float32),
        lambda a: np.asfortranarray(a),
        lambda a: a.astype(int),
        lambda a: np.stack([a, a]),
    ],
)
def test_what_is_not_symmetric_to_the_bit_is_sent_whole(spoil):
    array = np.zeros((40, 40)) + np.eye(40)
    spoilt = spoil(array)
    sent = halved({"a": spoilt})
    assert sent["a"] is spoilt
    assert whole(sent)["a"] is spoilt


def test_sums_come_back_with_what_belongs_to_them():
    sums = {"q": symmetric(50, 2), "w": np.ones((50, 3))}
    parts = [Partial(3, Stats(1.5, 7, sums)), Partial(5, Stats(0.5, 1, sums))]
    sent = halved_sums(parts)
    assert all(isinstance(each.stats.sums["q"], Half) for each in sent)
    found = whole_sums(sent)
    assert [(p.leaf, p.stats.bound, p.stats.n_bag) for p in found] == [(3, 1.5, 7), (5, 0.5, 1)]
    for each in found:
        assert list(each.stats.sums) == ["q", "w"]
        assert each.stats.sums["q"].tobytes() == sums["q"].tobytes()

"""Small bags that every model test shares."""

from __future__ import annotations

import numpy as np
import pytest

from models import Bags


def _make_bags(seed=0, n_bag=12, largest=30, n_feat=3, *, awkward=True, rate=0.1):
    """Bags from a known log-linear surface; ``awkward`` adds what real data hold."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, largest, n_bag)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    n_pix = int(offsets[-1])
    x = rng.normal(size=(n_pix, n_feat))
    coords = rng.normal(size=(n_pix, 2)) * 100
    weight = rng.uniform(0, 50, n_pix)
    mean = np.add.reduceat(weight * rate * np.exp(0.7 * x[:, 0]), offsets[:-1])
    y = rng.poisson(mean).astype(float)
    if awkward:
        weight[3] = 0.0  # a pixel without people
        y += 0.3  # adjusted for reporting
        y[2] = 0.0
    trials = np.ceil(2.5 * y) + 1.0  # for likelihoods that count positives among the tested
    return Bags(x, offsets, y, weight, coords, trials)


@pytest.fixture(scope="session")
def make_bags():
    return _make_bags


@pytest.fixture
def bags():
    return _make_bags()

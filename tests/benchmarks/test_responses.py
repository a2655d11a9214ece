"""The benchmark of responses, tiny: its sets, its dense process and what it says of a fold."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import responses
from benchmarks.responses import Dense, Noise, summary, yields


@pytest.fixture
def small(monkeypatch):
    bags = yields(Noise(n_area=40, n_pixel=8))
    monkeypatch.setattr(responses, "bags_of", lambda _: bags)
    return bags


def test_a_dense_process_is_what_its_covariances_say(small):
    """Conditioning by blocks of the inverse of the whole covariance."""
    dense = Dense(small)
    phi = np.log([0.2, 0.5, 0.7, 0.3, 0.1])
    k = dense.covariance(phi)
    np.testing.assert_allclose(k, k.T, rtol=1e-6)
    assert np.linalg.eigvalsh(k).min() > -1e-6
    size = np.diff(small.offsets)
    np.testing.assert_allclose(dense.noise(phi), 0.3 / size + 0.1)
    train = np.arange(40) % 4 > 0
    mean, variance = dense.predict(train)
    assert mean.shape == variance.shape == (10,)
    assert (variance > 0).all()
    rate = small.y / dense.total
    # Better than the mean of the others, and errors as large as they are said to be.
    off = rate[~train] - mean
    assert (off**2).mean() < ((rate[~train] - rate[train].mean()) ** 2).mean()
    assert (off**2 / variance).mean() == pytest.approx(1.0, abs=0.9)


@pytest.mark.parametrize("method", ["constant", "dense"])
def test_scores_are_those_of_the_unit_of_the_responses(small, method):
    each = [responses.measure("yields", "normal", method, fold) for fold in range(5)]
    found = summary(each)
    assert found["n"] == 40
    assert 0.5 < found["coverage"] <= 1.0
    assert 2.0 < found["width"] < 4.5 if method == "constant" else found["width"] < 4.0
    assert found["log_density"] < 0.0

"""What the figures of psi-VGPMIL stand on: folds that do not mix, bags of digits as said."""

from __future__ import annotations

import numpy as np

from benchmarks import psi_vgpmil as benchmark


def test_validation_and_test_bags_are_never_trained_on(monkeypatch):
    bags, _ = benchmark.digit_bags(0)
    seen = []

    def curve(settings, rules, training, valid, seed):
        seen.append((set(training.bag.tolist()), set(valid.bag.tolist())))
        return np.array([[0.5], [settings["score"]], [0.6]])

    monkeypatch.setattr(benchmark, "curve", curve)
    grid = [{"score": 0.7}, {"score": 0.9}, {"score": 0.8}]
    for keep, test in benchmark.folds(bags, 5, 0):
        hidden = set(np.flatnonzero(test).tolist())
        assert not hidden & set(np.flatnonzero(keep).tolist())
        assert abs(bags.y[test].mean() - bags.y.mean()) < 0.05
        seen.clear()
        best = benchmark.choose(grid, ("any",), bags.select(keep), 0, 3)
        assert best == (grid[1], "any", 2, 0.9)  # setting, rule, sweeps, validation AUC
        assert len(seen) == 9
        for training, valid in seen:
            assert not training & valid
            assert not (training | valid) & hidden


def test_bags_of_digits_are_positive_by_one_to_four():
    bags, hot = benchmark.digit_bags(3)
    count = hot.reshape(-1, 10).sum(axis=1)
    np.testing.assert_array_equal(np.diff(bags.offsets), 10)
    np.testing.assert_array_equal(bags.y, (count > 0).astype(float))
    assert count.max() <= 4
    assert 0.45 < bags.y.mean() < 0.55
    assert len(np.unique(bags.x, axis=0)) > bags.n_pix - 5  # each digit once

"""The example of deep features runs, and the features are worth it on sheets held out."""

from __future__ import annotations

import pytest

from examples.deep_features import digits

pytestmark = pytest.mark.ci


def test_deep_features_are_better_than_pixels(capsys, monkeypatch):
    monkeypatch.setattr(digits, "DIGITS", (4,))
    monkeypatch.setattr(digits, "N_PASS", 60)
    means = digits.main()
    printed = capsys.readouterr().out
    pixels, deep = means["pixels"], means["deep features"]
    assert f"{deep['auc']:.3f}" in printed
    assert pixels["auc"] < 0.7  # 200 sheets: a standard error of 0.04 at most
    assert deep["auc"] > 0.8
    assert deep["auc"] > pixels["auc"] + 0.2
    assert deep["accuracy"] > pixels["accuracy"] + 0.1
    assert deep["log_loss"] < pixels["log_loss"]

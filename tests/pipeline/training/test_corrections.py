"""Corrections by `disagg update`: what a count was once is in nothing that the update tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import models
from pipeline.config.reader import load_config
from pipeline.core.progress import Silent
from pipeline.run.runner import run_stages
from pipeline.training.update import _of_before
from tests.pipeline.series_inputs import GOOD, write_inputs, write_months
from tests.typed import run_each

FEW = "few draws of the hyperparameters suit the new counts (1.3 of 6)"
OFF = "the counts of 2024-04 are further off than the fit foresaw"


class _Run:
    """A series with a fit, and its corrections."""

    def __init__(self, config: Path) -> None:
        self.config, self.directory = config, config.parent

    def update(self) -> dict[str, Any]:
        """Take in what is new; return the summary of the fit."""
        config = load_config(self.config)
        return dict(run_stages(config, ("ingest", "fit"), Silent(), update="only")[1].summary)

    def correct(self, month: str, change: dict[str, int]) -> None:
        """Add to counts of a month."""
        table = pd.read_csv(self.directory / "cases.csv", dtype=str)
        for area, more in change.items():
            row = (table["id"] == area) & (table["month"] == month)
            table.loc[row, "cases"] = [str(int(n) + more) for n in table.loc[row, "cases"]]
        table.to_csv(self.directory / "cases.csv", index=False)

    @property
    def weight(self) -> np.ndarray:
        """Weights of the draws of the saved model."""
        model: Any = models.load(self.directory / "out/work/model")
        return np.asarray(model.posterior_.weight)


@pytest.mark.ci
def test_corrections_leave_as_many_draws_as_there_were(tmp_path: Path) -> None:
    config = write_inputs(tmp_path, 3, fit=GOOD.replace("integrate: 2", "integrate: 6"))
    run_each(config, "ingest", "fit")
    run, every = _Run(config), [f"A{k:02d}" for k in range(16)]
    assert np.ptp(run.weight) == 0.0
    # A month of the fit: three cases, one after the other.
    for k in range(3):
        run.correct("2024-03", {f"A{k + 5:02d}": 1})
        run.update()
    np.testing.assert_allclose(run.weight, 1 / 6, rtol=0.1)
    # A month in another unit, then as it was: neither weights nor a proposal are left of it.
    write_months(tmp_path, 4)
    for k in range(3):
        run.correct("2024-03", {f"A{k + 5:02d}": 1})
    assert run.update()["refit"] == ""
    right = run.weight
    run.correct("2024-04", dict.fromkeys(every, 300))
    wrong = run.update()
    assert "(1.0 of 6)" in wrong["refit"]
    assert len(wrong["far"]["2024-04"]) == 16
    run.correct("2024-04", dict.fromkeys(every, -300))
    again = run.update()
    np.testing.assert_allclose(run.weight, right, rtol=0.02)
    assert (again["refit"], again["far"], again["off"]) == ("", {}, {})


@pytest.mark.ci
def test_a_month_that_was_off_proposes_a_fit_until_it_is_corrected(tmp_path: Path) -> None:
    config = write_inputs(tmp_path, 3)
    run_each(config, "ingest", "fit")
    run, every = _Run(config), [f"A{k:02d}" for k in range(16)]
    write_months(tmp_path, 4)
    run.correct("2024-04", dict.fromkeys(every, 300))
    off = run.update()
    assert list(off["off"]) == ["2024-04"]
    assert off["refit"] == OFF
    # Another month, and a correction that is as far off, leave it as it is.
    run.correct("2024-03", {"A05": 1})
    assert run.update()["refit"] == OFF
    run.correct("2024-04", {"A05": 1})
    assert run.update()["refit"] == OFF
    run.correct("2024-04", {**dict.fromkeys(every, -300), "A05": -301})
    found = run.update()
    assert (found["refit"], found["off"]) == ("", {})


@pytest.mark.parametrize(
    ("summary", "why"),
    [
        ({}, ""),
        ({"refit": ""}, ""),
        ({"refit": OFF}, OFF),
        ({"refit": OFF, "off": {}}, OFF),
        ({"refit": OFF, "off": {"2024-04": 0.001}}, ""),
        ({"refit": FEW}, ""),
    ],
)
def test_what_an_update_of_before_proposed(summary: dict[str, Any], why: str) -> None:
    """Its record has no periods: what it said of counts stays, what it said of draws does not."""
    assert _of_before(summary) == why

"""The table of scores in Markdown, for the summary of a run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipeline.evaluation.calibration_summary import KEY, calibration_line
from pipeline.evaluation.report import evaluation_table
from pipeline.evaluation.trust_report import _left_out


def table(directory: Path, response: dict[str, str]) -> list[str]:
    rates = {"correlation": 0.5, "rmse": 0.1, "mae": 0.25}
    scores: dict[str, Any] = {
        "nll": 7.0,
        "rates": rates,
        "counts": {"mae": 12.0},
        "intervals": {"0.9": {"coverage": 0.88}},
        "by_people": {"rates": rates, "coverage": {"0.9": 0.91}},
    }
    report = {"in_sample": scores, "held_out": {}, "response": response}
    (directory / "evaluation.json").write_text(json.dumps(report))
    config: Any = SimpleNamespace(output=SimpleNamespace(dir=directory))
    return evaluation_table(config).splitlines()


def test_every_row_has_the_words_of_the_response(tmp_path: Path) -> None:
    lines = table(tmp_path, {"rates": "prevalences", "totals": "positives"})
    assert "| by people: prevalences: MAE | 0.25 |" in lines
    assert "| positives: MAE | 12 |" in lines
    assert "| by people: 90 % intervals hold | 0.91 |" in lines
    assert "| 90 % intervals hold | 0.88 |" in lines
    assert not any("rates" in line for line in lines)


def test_the_unit_of_users_is_no_markup(tmp_path: Path) -> None:
    lines = table(tmp_path, {"rates": "prevalences", "totals": "a | <b>"})
    assert r"| a \| &lt;b&gt;: MAE | 12 |" in lines


def test_one_refit_is_one() -> None:
    areas = {"by_folds": False, "unreliable": 0, "refitted": 1, "refits": 1}
    regions = {"refits": 1}
    for fits, one in (("refit", "fit"), ("regression", "regression between the others")):
        (said,) = _left_out("area", {"fits": fits}, areas)
        assert said.endswith(f"1 of them by 1 {one}; all weights can be trusted")
        (said,) = _left_out("block", {"fits": fits, "n_folds": 3}, regions)
        assert said == f"regions: 2 of 3 left out by weights, 1 by {one} without each"
    share = {"coverage": {"0.9": 0.9}, "standard_error": {"0.9": 0.1}}
    found = {"n_simulations": 1, "interval": 0.9, "pixels": share, "people": share}
    assert "90 % intervals of 1 refit to data simulated" in str(calibration_line({KEY: found}))

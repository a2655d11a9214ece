"""What a person reads of the settings that a classifier chose."""

from __future__ import annotations

import io

from rich.console import Console

from pipeline.evaluation.choices import KEY, choices_parts


def test_the_table_has_the_best_first_and_says_what_failed():
    rows = [
        {"settings": {"variance": 1 / 3}, "log_score": -0.5, "error": 0.02, "chosen": False},
        {"settings": {"variance": 2.0}, "log_score": None, "error": None, "chosen": False},
        {"settings": {"variance": 5.0}, "log_score": -0.4, "error": 0.0, "chosen": True},
    ]
    by = {"slope": 1.5, "intercept": -0.25, "size_slope": -0.5, "size": 12.0}
    report = {KEY: {"settings": rows, "recalibration": by}}
    console = Console(file=io.StringIO(), width=100, color_system=None)
    for part in choices_parts(report):
        console.print(part)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["variance", "5", "-0.400", "chosen"] in lines
    assert ["variance", "0.333", "-0.500", "0.020"] in lines
    assert ["variance", "2", "failed"] in lines
    assert lines.index(["variance", "5", "-0.400", "chosen"]) < lines.index(
        ["variance", "0.333", "-0.500", "0.020"]
    )
    assert "logit p' = -0.25 + 1.50 logit p -0.50 log(n / 12)" in console.file.getvalue()
    assert choices_parts({}) == []

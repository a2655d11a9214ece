"""The settings that run.json tells are those of the stage that each is about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.run.record import record_path, write_run
from tests.pipeline.run.conftest import build_config

FIT = {
    "model": {"inducing": 200},
    "fit": {"area_pixels": "all"},
    "evaluate": {"folds": 5},
    "output": {"draws": 500},
}
# Run anew with another number of folds and of draws, while the fit was up to date.
EVALUATE = {**FIT, "evaluate": {"folds": 3}, "output": {"draws": 100}}


# Maps anew with more draws: neither the fit's nor the evaluation's.
PREDICT = {**FIT, "evaluate": {"folds": 9}, "output": {"draws": 2000}}


@pytest.mark.parametrize(
    ("evaluate", "told"),
    [({"settings": EVALUATE}, EVALUATE), ({"n_areas": 9}, FIT), (None, FIT)],
)
@pytest.mark.parametrize("predict", [{"settings": PREDICT}, {"n_pix": 9}, None])
def test_settings_are_of_the_stage_that_they_are_about(
    tmp_path: Path,
    evaluate: dict[str, Any] | None,
    told: dict[str, Any],
    predict: dict[str, Any] | None,
) -> None:
    config = build_config(tmp_path, output={"dir": "out"})
    record: dict[str, Any] = {"fit": {"seconds": 1.0, "summary": {"settings": FIT}}}
    if evaluate is not None:
        record["evaluate"] = {"seconds": 1.0, "summary": evaluate}
    if predict is not None:
        record["predict"] = {"seconds": 1.0, "summary": predict}
        if "settings" in predict:
            told = {**told, "output": PREDICT["output"]}
    path = record_path(config.output.dir)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record))
    assert json.loads(write_run(config, {}).read_text())["settings"] == told


def test_a_fit_after_the_last_evaluation_tells_its_own(tmp_path: Path) -> None:
    config = build_config(tmp_path, output={"dir": "out"})
    later = {**FIT, "model": {"inducing": 50}}
    record = {
        "fit": {"seconds": 1.0, "summary": {"settings": later}},
        "evaluate": {"seconds": 1.0, "summary": {"settings": EVALUATE}},
    }
    path = record_path(config.output.dir)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record))
    told = json.loads(write_run(config, {}).read_text())["settings"]
    assert told == {**EVALUATE, "model": {"inducing": 50}}

"""Why a fit cannot be updated, in the words of what has changed."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from geo.core.errors import InputError
from pipeline.training.update import _other_fit, update_model

SERIES = {"standing": "a", "moving": {}, "responses": {"2024-01": "a"}}


def test_other_code_of_ingest_is_not_told_as_other_areas():
    context = SimpleNamespace(update="only", inputs={}, record={"fit": {"inputs": {}}})
    before = {"series": {"standing": "a", "standing_data": "x", "responses": {}}}
    now = {"standing": "b", "standing_data": "x", "responses": {}}
    assert "another version" in _other_fit(context, before, now)
    assert "other areas" in _other_fit(context, before, {**now, "standing_data": "y"})
    del before["series"]["standing_data"]  # of a run before it was kept
    assert "other areas" in _other_fit(context, before, now)


def test_a_table_of_the_new_month_alone_is_not_told_to_fit_anew():
    context = SimpleNamespace(
        update="only",
        inputs={},
        record={"fit": {"inputs": {}, "summary": {"series": SERIES}}},
        progress=None,
        config=SimpleNamespace(source="c.yaml", output=SimpleNamespace(dir=Path("out"))),
    )
    with pytest.raises(InputError, match="counts of 2024-01, which this run does not have; put th"):
        update_model(context, {**SERIES, "responses": {"2024-02": "b"}})

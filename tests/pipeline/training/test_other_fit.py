"""Why a fit cannot be updated, in the words of what has changed."""

from types import SimpleNamespace

from pipeline.training.update import _other_fit


def test_other_code_of_ingest_is_not_told_as_other_areas():
    context = SimpleNamespace(update="only", inputs={}, record={"fit": {"inputs": {}}})
    before = {"series": {"standing": "a", "standing_data": "x", "responses": {}}}
    now = {"standing": "b", "standing_data": "x", "responses": {}}
    assert "another version" in _other_fit(context, before, now)
    assert "other areas" in _other_fit(context, before, {**now, "standing_data": "y"})
    del before["series"]["standing_data"]  # of a run before it was kept
    assert "other areas" in _other_fit(context, before, now)

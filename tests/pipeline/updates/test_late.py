"""Late runs are reported once, by the process that watches."""

import pytest

from pipeline.config.schema import Config
from pipeline.updates import late
from pipeline.updates.late import report_late_runs


def configured(tmp_path, **notify):
    values = {
        "areas": {"path": "a.gpkg", "id": "id"},
        "counts": {"path": "c.csv", "value": "cases"},
        "covariates": {"x": {"path": "x.tif"}},
        "grid": {"like": "x.tif"},
        "output": {"dir": str(tmp_path)},
        "notify": notify,
    }
    return Config.model_validate(values)


@pytest.fixture
def sent(monkeypatch):
    """Notifications; ``errors`` are what sending returns."""
    calls, errors = [], []

    def send(config, event, subject, text):
        calls.append((event, subject, text))
        return list(errors)

    monkeypatch.setattr(late, "send_notification", send)
    return calls, errors


def test_each_run_once(tmp_path, sent):
    config = configured(tmp_path, webhook="http://hook/")
    calls, _ = sent
    assert report_late_runs(config, {"1": "blue-owl"}) == ["blue-owl: late, reported"]
    assert report_late_runs(config, {"1": "blue-owl"}) == []
    assert len(report_late_runs(config, {"1": "blue-owl", "2": "red-fox"})) == 1
    assert [text.split()[0] for _, _, text in calls] == ["blue-owl", "red-fox"]
    assert {event for event, *_ in calls} == {"late"}


def test_an_unsent_one_is_tried_again(tmp_path, sent):
    config = configured(tmp_path, webhook="http://hook/")
    calls, errors = sent
    errors.append("notify.webhook: refused")
    assert report_late_runs(config, {"1": "blue-owl"}) == ["notify.webhook: refused"]
    errors.clear()
    assert report_late_runs(config, {"1": "blue-owl"}) == ["blue-owl: late, reported"]
    assert len(calls) == 2


def test_nothing_unless_configured(tmp_path, sent):
    calls, _ = sent
    assert report_late_runs(configured(tmp_path), {"1": "a"}) == []
    only = configured(tmp_path, on=["failure"], webhook="http://hook/")
    assert report_late_runs(only, {"1": "a"}) == []
    assert calls == []


def test_a_damaged_memory_reports_again(tmp_path, sent):
    config = configured(tmp_path, webhook="http://hook/")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "late.json").write_text("{")
    assert report_late_runs(config, {"1": "a"}) == ["a: late, reported"]

"""A small run does no more than is on record: passes, flops, files opened, bytes."""

from __future__ import annotations

import json

import pytest

from benchmarks.guard import RECORD, Opens, measure, measure_months, risen, several


@pytest.mark.ci
@pytest.mark.timeout(600)
def test_a_small_run_does_no_more_than_is_on_record(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "")  # measure gives it one; it is put back
    counts, opened = measure(tmp_path / "country")
    _check(counts, several(opened))
    assert counts["unchanged"]["pixels"] == 0
    # A second run hashes each input once, and opens none to read it.
    inputs = {name: n for name, n in opened["unchanged"].items() if not name.startswith("out")}
    assert set(inputs.values()) <= {1}


@pytest.mark.ci
@pytest.mark.timeout(600)
def test_a_small_series_does_no_more_than_is_on_record(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    counts = measure_months(tmp_path / "country")
    _check(counts)
    # An update reads few of the pixels that a fit of all months reads.
    assert 0 < 5 * counts["months: update"]["pixels"] < counts["months: fit"]["pixels"]


def _check(counts, told=""):
    lines = risen(counts, json.loads(RECORD.read_text()))
    told = "\n".join(["risen by more than a tenth:", *lines, "", told, ""])
    assert not lines, f"{told}if the change means it: python -m benchmarks.guard --write"


def test_what_rises_is_named():
    record = {"fit": {"passes": 100.0, "opens": 0.0}}
    assert risen({"fit": {"passes": 109.0, "opens": 0.0}}, record) == []
    assert risen({"fit": {"passes": 111.0}}, record) == ["fit, passes: 111, and 100 on record"]
    assert len(risen({"fit": {"opens": 1.0}, "new": {"read": 2.0}}, record)) == 2


def test_opens_are_counted_by_file_and_in_folders_made_later(tmp_path):
    (tmp_path / "a.csv").write_text("x")
    with Opens(tmp_path) as opens:
        for _ in range(3):
            (tmp_path / "a.csv").read_text()
    assert opens.count == {"a.csv": 3}

"""Quick checks find what differs; a benchmark whose figures are of this code is not run again."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import once, quick
from benchmarks.once import BEGUN, ENDED, is_done, version_of

ROOMS = {"models.gp": "a", "geo": "b"}


def told(tmp_path, **rooms):
    path = tmp_path / "fast.json"
    path.write_text(json.dumps({"code": {"version": "1", "rooms": {**ROOMS, **rooms}}}))
    return {"states": tmp_path / "states", "results": tmp_path}


def test_figures_of_this_code_are_not_made_again(tmp_path):
    where = told(tmp_path)
    assert is_done("fast", [], ROOMS, **where)
    assert not is_done("fast", [], {**ROOMS, "geo": "c"}, **where)
    assert not is_done("other", [], ROOMS, **where)
    (tmp_path / "old.json").write_text('{"seconds": 3}')
    assert not is_done("old", [], ROOMS, **where)


def test_what_was_broken_off_is_run_again_and_what_ended_is_not(tmp_path):
    where = told(tmp_path)
    state = where["states"] / "fast"
    state.parent.mkdir()
    state.write_text(f"{BEGUN} {version_of(ROOMS, [])}")
    assert not is_done("fast", [], ROOMS, **where)
    state.write_text(f"{ENDED} {version_of(ROOMS, [])}")
    assert is_done("fast", [], ROOMS, **where)
    assert not is_done("fast", ["--more"], ROOMS, **where)
    assert not is_done("fast", [], {**ROOMS, "geo": "c"}, **where)


def test_a_run_is_on_record_and_force_runs_again(tmp_path, monkeypatch, capsys):
    runs = []
    monkeypatch.setattr(once, "STATES", tmp_path)
    monkeypatch.setattr(once, "is_done", lambda *_: bool(runs))
    monkeypatch.setattr(once.runpy, "run_module", lambda name, **_: runs.append(name))
    for more in ([], [], ["--force"]):
        monkeypatch.setattr("sys.argv", ["once", *more, "benchmarks.fast", "--n", "3"])
        once.main()
    assert runs == ["benchmarks.fast"] * 2
    assert "of this code already" in capsys.readouterr().out
    assert (tmp_path / "fast").read_text().startswith(ENDED)


def test_what_a_check_finds_is_told_and_does_not_stop_the_next(tmp_path, monkeypatch):
    def broken():
        raise ArithmeticError("made up")

    monkeypatch.setitem(quick.CHECKS, "passes", broken)
    rows = dict(quick.run(["passes", "positions"]))
    assert rows["passes"]["wrong"] == ["ArithmeticError: made up"]
    assert rows["positions"]["wrong"] == []
    monkeypatch.setattr("sys.argv", ["quick", "--checks", "passes", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="no longer compare"):
        quick.main()
    assert json.loads((tmp_path / "quick.json").read_text())["checks"]["passes"]["wrong"]


def test_checks_find_sides_that_differ(monkeypatch):
    rows = {f"{name} 512 nodes": {"error": 0.2} for name in ("square", "exp")}
    monkeypatch.setattr(quick.pairs, "measure", lambda *_: {"ways": rows})
    assert len(quick.variances()[1]) == 2
    record = {"contestant": "one_rate", "design": "linear", "grid": 0, "correlation": None}
    monkeypatch.setattr(quick, "read_results", lambda _: {"records": [{**record, "crps": 0.1}]})
    only = {"one_rate": quick.peers.CONTESTANTS["one_rate"]}
    monkeypatch.setattr(quick.peers, "CONTESTANTS", only)
    (wrong,) = quick.contestants()[1]
    assert "one_rate: crps is 0.434, on record 0.100" in wrong


def test_compiled_trees_that_differ_are_found(monkeypatch):
    assert quick.trees()[1] == []
    monkeypatch.setattr(quick, "predict_plain", lambda *_: np.full(30, 0.5))
    assert quick.trees()[1]

"""The watch starts no run for counts that look cut off, until somebody says so."""

import contextlib
import sys
import types

import pytest
import yaml

from flows import watch


@pytest.fixture
def started(monkeypatch):
    """Return the names of the deployments of which the watch starts runs; without a server."""
    names = []

    def run(name, **_):
        names.append(name)
        return types.SimpleNamespace(name="a-run")

    monkeypatch.setattr(watch, "run_deployment", run)
    monkeypatch.setattr(watch, "get_client", lambda **_: contextlib.nullcontext())
    for name in ("_unfinished", "_late"):
        monkeypatch.setattr(watch, name, lambda *_: [])
    return names


def test_counts_that_look_cut_off_start_no_run(country, tmp_path, started, monkeypatch, capsys):
    config = tmp_path / "disagg.yaml"
    data = yaml.safe_load((country / "disagg.yaml").read_text())
    data["counts"]["path"] = str(tmp_path / "cases.csv")
    for section in ("areas", "population", *(f"covariates.{name}" for name in data["covariates"])):
        inner = data["covariates"][section[11:]] if "." in section else data[section]
        inner["path"] = str(country / inner["path"])
    data["grid"] = {"like": data["population"]["path"]}
    data.pop("truth")
    config.write_text(yaml.safe_dump({**data, "update": {"settle_s": 0}}))
    text = (country / "cases.csv").read_text()
    (tmp_path / "cases.csv").write_text(text[:-4])
    (line,) = watch.watch_map.fn(str(config))
    assert "cases.csv: looks cut off: its last line has no line end" in line
    assert watch.watch_map.fn(str(config)) == []
    assert not started
    monkeypatch.setattr(sys, "argv", ["watch", str(config), "--take"])
    watch.main()
    assert "cases.csv: taken as it is" in capsys.readouterr().out
    assert len(watch.watch_map.fn(str(config))) == 1
    assert len(started) == 1
    assert watch.watch_map.fn(str(config)) == []  # it knows them now
    assert len(started) == 1

"""The watch starts no run for counts that look cut off, until somebody says so."""

import contextlib
import sys
import types

import pandas as pd
import pytest
import yaml

from flows import watch
from geo.core.errors import InputError
from pipeline.updates.arrivals import load_watched
from tests.pipeline.series_inputs import write_inputs
from tests.typed import edit


@pytest.fixture
def started(monkeypatch):
    """Return the parameters of the runs that the watch starts; without a server."""
    given = []

    def run(name, *, parameters, **_):
        given.append(parameters)
        return types.SimpleNamespace(name="a-run")

    monkeypatch.setattr(watch, "run_deployment", run)
    monkeypatch.setattr(watch, "get_client", lambda **_: contextlib.nullcontext())
    for name in ("_unfinished", "_late"):
        monkeypatch.setattr(watch, name, lambda *_: [])
    return given


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


def test_a_month_and_a_correction_start_runs_of_the_latest(tmp_path, started):
    config = write_inputs(tmp_path, 3, more="update: {settle_s: 0}\n")
    edit(config, {"cases.csv": '"cases_{period}.csv"', ", period: month": ""})
    table = pd.read_csv(tmp_path / "cases.csv", dtype=str)
    for label, rows in table.groupby("month"):
        rows.to_csv(tmp_path / f"cases_{label}.csv", index=False)
    assert len(watch.watch_map.fn(str(config))) == 1
    (tmp_path / "cases_2024-01.csv").write_text("id,month,cases\nA00,2024-01,7\n" * 9)
    mark = watch.watch_map.fn(str(config))
    assert "cases_2024-01.csv: new" in mark[0]
    assert started == [{"config": str(config), "period": None}] * 2


def test_a_series_whose_counts_cannot_be_read_is_watched_all_the_same(tmp_path):
    config = write_inputs(tmp_path, 3)
    (tmp_path / "cases.csv").write_text("id,month,cases\nA00,Jnauary,7\n")
    assert load_watched(config).time is not None
    (tmp_path / "cases.csv").unlink()
    assert load_watched(config).name == "months"
    config.write_text(config.read_text().replace("{step: month}", "{step: month, from: soon}"))
    with pytest.raises(InputError, match="'soon' is no month"):
        load_watched(config)

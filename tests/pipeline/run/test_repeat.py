"""``disagg run --from run.json``: the same bytes, or one line for what has changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.run.repeat import read_repetition
from tests.pipeline.run.conftest import with_pictures


@pytest.fixture
def ran(country):
    return country


def contents(out: Path) -> dict[str, bytes]:
    """Return every raster and table of a run."""
    ends = (".tif", ".gpkg", ".csv", ".qml", ".sld", ".png")
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.suffix in ends}


def edited(ran: Path, directory: Path, change) -> Path:
    """Return a copy of the record beside the first one's results, changed."""
    record = json.loads((ran / "out/run.json").read_text())
    change(record)
    path = directory / "run.json"
    path.write_text(json.dumps(record))
    return path


@pytest.mark.ci
def test_a_repetition_has_the_same_bytes(ran, tmp_path, capsys):
    with with_pictures():
        into = ["--into", str(tmp_path / "b")]
        assert main(["run", "--from", str(ran / "out/run.json"), *into]) == 0
    said = capsys.readouterr().err
    assert "warning" not in said
    assert "ingest: done" in said
    first, second = contents(ran / "out"), contents(tmp_path / "b")
    assert len(first["preview.png"]) > 10_000  # not blank
    assert {"rate_mean.tif", "areas.gpkg", "areas.csv", "exceedance_50.tif"} <= set(first)
    assert set(first) == set(second)
    assert [name for name in first if first[name] != second[name]] == []
    # What was not repeated would be equal as well: the second run has its own work.
    one, other = (
        json.loads((out / "run.json").read_text()) for out in (ran / "out", tmp_path / "b")
    )
    assert one["stages"]["fit"]["inputs"] == other["stages"]["fit"]["inputs"]
    assert one["config"]["output"].pop("dir") != other["config"]["output"].pop("dir")
    assert one["config"] == other["config"]
    assert one["config_file"] == other["config_file"]
    assert one["fingerprints"] == other["fingerprints"]
    # Without another directory nothing is done again.
    assert main(["run", "--from", str(ran / "out/run.json")]) == 0
    assert capsys.readouterr().err.count("up to date, skipped") == 5


def test_changed_inputs_end_it_with_a_line_each(ran, tmp_path, capsys):
    moved = tmp_path / "project"
    shutil.copytree(ran, moved)
    record = edited(moved, moved / "out", lambda r: None)
    text = record.read_text().replace(json.dumps(str(ran))[1:-1], str(moved))
    record.write_text(text)
    with (moved / "cases.csv").open("a") as file:
        file.write("\n")
    data = (moved / "elevation.tif").read_bytes()
    (moved / "elevation.tif").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    before = contents(moved / "out")
    assert main(["run", "--from", str(record)]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert [line.split(" ")[1] for line in lines] == ["counts.path", "covariates.elevation.path"]
    assert all("has changed since the run" in line for line in lines)
    assert contents(moved / "out") == before


def test_a_folder_may_be_moved_with_its_data(ran, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(ran, moved)
    hidden = ran.with_name("away")
    ran.rename(hidden)
    try:
        found = read_repetition(moved / "out/run.json", tmp_path / "c")
    finally:
        hidden.rename(ran)
    assert found.config.areas.path == str(moved / "areas.gpkg")
    assert found.config.grid.like == str(moved / "population.tif")
    assert found.warnings == ()


def test_a_missing_input_is_named(ran, tmp_path, capsys):
    def gone(record):
        record["config"]["counts"]["path"] = str(tmp_path / "nowhere.csv")
        record["given"]["counts"]["path"] = str(tmp_path / "nowhere.csv")

    assert main(["run", "--from", str(edited(ran, tmp_path, gone))]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error")]
    assert "counts.path" in line
    assert f"no file {tmp_path / 'nowhere.csv'}" in line


def test_other_versions_are_told_one_by_one(ran, tmp_path):
    def older(record):
        record["versions"] |= {"numpy": "1.0.0", "scipy": "0.1", "platform": "another machine"}
        record["code"]["models"] = "0123456789abcdef"

    found = read_repetition(edited(ran, tmp_path, older), tmp_path / "d")
    texts = list(found.warnings)
    assert len(texts) == 3
    assert texts[0].startswith("the run had numpy 1.0.0, this is ")
    assert texts[1].startswith("the run had scipy 0.1, this is ")
    assert texts[2].startswith("the code of models is not that of the run (01234567 -> ")


def test_the_configuration_is_that_of_the_run_even_if_defaults_have_changed(ran, tmp_path):
    first = load_config(ran / "disagg.yaml")
    assert "wait" not in first.compute.model_fields_set

    def other_default(record):
        record["config"]["compute"]["wait"] = 7.5

    found = read_repetition(edited(ran, tmp_path, other_default), ran / "out").config
    assert found.compute.wait == 7.5
    same = found.model_copy(update={"compute": first.compute})
    assert same.model_dump() == first.model_dump()
    # Keys that were not set stay so: some models refuse keys that they do not use.
    assert found.fit.model_fields_set == first.fit.model_fields_set
    # A record of an earlier version has its whole configuration.
    record = edited(ran, tmp_path, lambda r: r.pop("given"))
    assert read_repetition(record, ran / "out").config.model_dump() == first.model_dump()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: r.update(format="other"), "not the record of a run"),
        (lambda r: r.update(version=9), "version 9 of the record"),
        (lambda r: r.pop("fingerprints"), "fingerprints: missing or damaged"),
        (
            lambda r: r["config"]["counts"].update(path="https://***@host/cases.csv"),
            "config.counts.path: the address had a password",
        ),
        (lambda r: r["given"].update(fit={"seed": -1}), "fit.seed"),
    ],
)
def test_what_cannot_be_repeated_is_told_in_a_line(ran, tmp_path, capsys, change, says):
    assert main(["run", "--from", str(edited(ran, tmp_path, change))]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error")]
    assert says in line


@pytest.mark.parametrize(
    "arguments",
    [["a.yaml", "--from", "run.json"], ["a.yaml", "--into", "b"], ["--into", "b"], []],
)
def test_options_that_do_not_go_together(arguments, capsys):
    assert main(["run", *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: disagg run")

"""Other libraries make every stage stale, and what a stage depends on makes it stale."""

import json
import shutil
from pathlib import Path

import pytest

from pipeline.config.check_schema import Check
from pipeline.core import code, sources
from pipeline.core.progress import Silent
from pipeline.core.sources import code_hashes
from pipeline.run.record import read_record, record_path
from pipeline.run.runner import run_stages, stale_stages
from tests.pipeline.run.conftest import NAMES, build_config

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("calls")


def run(config):
    return run_stages(config, NAMES, Silent())


def test_another_library_makes_every_stage_stale_and_is_named(inputs, monkeypatch):
    config = build_config(inputs)
    run(config)
    before = code.library_versions()
    monkeypatch.setattr(code, "library_versions", lambda: {**before, "GDAL": "99.1"})
    results = run(config)
    assert {result.reason for result in results} == {f"changed: GDAL ({before['GDAL']} -> 99.1)"}
    written = json.loads((config.output.dir / "run.json").read_text())
    assert written["code"] == code_hashes()
    assert {"numba", "PROJ", "GEOS", "GDAL"} <= set(written["versions"])


def test_a_record_of_an_earlier_version_is_read_and_said_to_be_one(inputs):
    config = build_config(inputs)
    run(config)
    record = read_record(config.output.dir)
    for entry in record.values():  # as version 0.1.0 wrote it
        entry["inputs"] = {
            "disagg": "0.1.0",
            **{k: v for k, v in entry["inputs"].items() if not k.startswith(("code.", "library."))},
        }
        del entry["check"]
    record_path(config.output.dir).write_text(json.dumps(record))
    assert read_record(config.output.dir) == record
    results = run(config)
    assert results[0].reason.startswith("changed: code (none is on record")


def test_code_that_is_on_record_on_one_side_only_is_a_change():
    before = {"code.geo": "aaaaaa", "code.models": "bbbbbb"}
    now = {**before, "code.plugins": "cccccc"}
    assert code.describe_changes(before, now) == ["code (plugins none -> cccc)"]
    assert code.describe_changes(now, before) == ["code (plugins cccc -> none)"]


def test_what_is_declared_makes_stages_stale(inputs):
    config = build_config(inputs)
    run(config)
    assert stale_stages(config, "none") == []
    keys = [{"nodata": -1}, {"crs": "EPSG:4326"}, {"scale": 10}, {"offset": 1}, {"units": "m"}]
    for key in keys:  # of a raster
        people, rain = (
            type(each).model_validate({**each.model_dump(), **key})
            for each in (config.population, config.covariates["rain"])
        )
        for update in ({"population": people}, {"covariates": {"rain": rain}}):
            assert "ingest" in stale_stages(config.model_copy(update=update), "none"), key
    # What the likelihood says of a response.
    for likelihood, stale in (("negative_binomial", False), ("gamma", True)):
        model = type(config.model)(likelihood=likelihood)
        found = stale_stages(config.model_copy(update={"model": model}), "none")
        assert ("ingest" in found) is stale, likelihood
        assert "fit" in found
    # An accepted suspicion makes nothing stale.
    accepted = config.model_copy(update={"check": Check(accept=("scale",))})
    assert stale_stages(accepted, "none") == []


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """Copy the packages; return what edits a file there, and has the copy hashed."""
    folder = tmp_path_factory.mktemp("code")
    for package in sources.PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)

    def edit(monkeypatch, name, old="", new=""):
        path = folder / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))
        tree = sources.SourceTree({package: folder / package for package in sources.PACKAGES})
        monkeypatch.setattr(code, "own_sources", lambda: tree)

    return edit


@pytest.mark.parametrize(
    ("name", "old", "new", "stale"),
    [
        ("models/likelihoods/poisson.py", '"""', '"""In other words: ', []),
        ("models/likelihoods/likelihood.py", "\n\n\n", "\n\n\n# Why.\n", []),
        ("pipeline/reporting/templates/report.html.j2", "</body>", "<p></p></body>", ["report"]),
        ("models/likelihoods/poisson.py", "y * log_eta", "2 * y * log_eta", list(NAMES[1:])),
        ("models/mil/trees/blrt.py", "import numpy", "import math, numpy", []),
        ("geo/sources/kml.py", '"""\n\n', '"""\n\nA = 1\n', [n for n in NAMES if n != "fit"]),
    ],
)
def test_an_edit_makes_the_stages_stale_that_reach_it(
    inputs, calls, monkeypatch, copied, name, old, new, stale
):
    config = build_config(inputs)
    copied(monkeypatch, name)
    run(config)
    calls.clear()
    copied(monkeypatch, name, old, new)
    results = run(config)
    assert calls == stale
    room = ".".join(name.split("/")[:2])
    assert all(f"changed: code ({room} " in result.reason for result in results if result.reason)

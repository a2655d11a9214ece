"""Other code and other libraries make every stage stale; an equal checkout does not."""

import json
import logging
import shutil

import pytest

from pipeline.core import code
from pipeline.core.progress import Silent
from pipeline.run.fingerprints import Fingerprints
from pipeline.run.record import read_record, record_path, stage_key
from pipeline.run.runner import run_stages, stale_stages
from tests.pipeline.run.conftest import NAMES, build_config

pytestmark = pytest.mark.usefixtures("calls")


def run(config):
    return run_stages(config, NAMES, Silent())


def other_code(monkeypatch, **hashes):
    known = {**code.code_hashes(), **hashes}
    monkeypatch.setattr(code, "code_hashes", lambda: known)


def test_a_changed_package_makes_every_stage_stale_and_is_named(inputs, monkeypatch, caplog):
    config = build_config(inputs)
    other_code(monkeypatch, models="3f2a000000000000")
    run(config)
    keys = [stage_key(name, config, Fingerprints(config)) for name in NAMES]
    assert all(current for _, current in keys)
    other_code(monkeypatch, models="91bc000000000000")
    assert stale_stages(config, "none") == list(NAMES)
    for name, (key, _) in zip(NAMES, keys, strict=True):
        now, current = stage_key(name, config, Fingerprints(config))
        assert now != key
        assert not current
    caplog.set_level(logging.INFO)
    reasons = {result.name: result.reason for result in run(config)}
    assert reasons["fit"] == "changed: code (models 3f2a -> 91bc)"
    assert "fit runs: changed: code (models 3f2a -> 91bc)" in caplog.text
    assert all(result.skipped for result in run(config))


def test_another_library_makes_every_stage_stale_and_is_named(inputs, monkeypatch):
    config = build_config(inputs)
    run(config)
    before = code.library_versions()
    monkeypatch.setattr(code, "library_versions", lambda: {**before, "GDAL": "99.1"})
    results = run(config)
    assert {result.reason for result in results} == {f"changed: GDAL ({before['GDAL']} -> 99.1)"}
    written = json.loads((config.output.dir / "run.json").read_text())
    assert written["code"] == code.code_hashes()
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


def test_equal_checkouts_have_equal_hashes_whatever_was_compiled(tmp_path):
    one, two = tmp_path / "one" / "pipeline", tmp_path / "two" / "elsewhere"
    one.mkdir(parents=True)
    (one / "inner").mkdir()
    (one / "a.py").write_text("x = 1\n")
    (one / "inner" / "b.py").write_text("y = 2\n")
    shutil.copytree(one, two)
    (two / "__pycache__").mkdir()
    (two / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"compiled")
    (two / "a.py~").write_text("an editor's")
    assert code.source_hash(one) == code.source_hash(two)
    (two / "inner" / "b.py").write_text("y = 3\n")
    assert code.source_hash(one) != code.source_hash(two)
    (two / "inner" / "b.py").rename(two / "b.py")
    (two / "b.py").write_text("y = 2\n")
    assert code.source_hash(one) != code.source_hash(two)


def test_all_of_our_packages_are_hashed():
    assert set(code.code_hashes()) == {"geo", "models", "pipeline"}
    assert all(len(value) == 16 for value in code.code_hashes().values())
    assert "not installed" not in code.library_versions().values()


def test_code_that_is_on_record_on_one_side_only_is_a_change():
    before = {"code.geo": "aaaaaa", "code.models": "bbbbbb"}
    now = {**before, "code.plugins": "cccccc"}
    assert code.describe_changes(before, now) == ["code (plugins none -> cccc)"]
    assert code.describe_changes(now, before) == ["code (plugins cccc -> none)"]


@pytest.mark.parametrize(
    "key", [{"nodata": -1}, {"crs": "EPSG:4326"}, {"scale": 10}, {"offset": 1}, {"units": "m"}]
)
@pytest.mark.parametrize("section", ["population", "covariates"])
def test_what_is_declared_of_a_raster_makes_ingest_stale(inputs, section, key):
    config = build_config(inputs)
    run(config)
    assert stale_stages(config, "none") == []
    given = config.population if section == "population" else next(iter(config.covariates.values()))
    changed = type(given).model_validate({**given.model_dump(), **key})
    value = changed if section == "population" else dict.fromkeys(config.covariates, changed)
    assert "ingest" in stale_stages(config.model_copy(update={section: value}), "none")


def test_an_accepted_suspicion_makes_nothing_stale(inputs):
    from pipeline.config.check_schema import Check

    config = build_config(inputs)
    run(config)
    accepted = config.model_copy(update={"check": Check(accept=("scale",))})
    assert stale_stages(accepted, "none") == []

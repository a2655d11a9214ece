"""Stages run when something that they depend on has changed, by content, and not otherwise."""

import json
import os
import shutil
import sys

import pytest
from threadpoolctl import threadpool_info

from geo.core.errors import InputError
from pipeline.config.schema import Config
from pipeline.core.progress import Silent
from pipeline.run.record import read_record
from pipeline.run.runner import run_stages, stale_stages
from pipeline.run.stages import STAGES
from pipeline.storage.fingerprint import fingerprint_file, fingerprint_value
from tests.pipeline.run.conftest import NAMES, build_config


def run(config, names=NAMES, **options):
    return run_stages(config, names, Silent(), **options)


def test_a_second_run_does_nothing_and_remembers_what_the_first_said(inputs, calls):
    config = build_config(inputs)
    first = run(config)
    assert calls == ["ingest", "fit", "predict", "evaluate", "report"]
    second = run(config)
    assert len(calls) == 5
    assert [r.skipped for r in second] == [True] * 5
    assert [r.summary for r in second] == [r.summary for r in first]


def test_new_times_and_a_new_place_are_no_change(inputs, calls, tmp_path_factory):
    run(build_config(inputs))
    for path in inputs.rglob("*"):
        os.utime(path, (1, 1))
    run(build_config(inputs))
    moved = tmp_path_factory.mktemp("elsewhere") / "project"
    shutil.copytree(inputs, moved)
    run(build_config(moved))
    assert len(calls) == 5


@pytest.mark.parametrize(
    ("changes", "ran"),
    [
        ({"output": {"rate_per": 100}}, ["predict", "report"]),
        ({"output": {"interval": 0.5}}, ["predict", "evaluate", "report"]),
        ({"fit": {"max_epochs": 7}}, ["fit", "predict", "evaluate", "report"]),
        ({"evaluate": {"folds": 3}}, ["evaluate", "report"]),
        ({"compute": {"workers": 1}}, []),
    ],
)
def test_a_changed_key_runs_the_stages_that_it_concerns(inputs, calls, changes, ran):
    run(build_config(inputs))
    calls.clear()
    run(build_config(inputs, **changes))
    assert calls == ran


@pytest.mark.parametrize(
    ("name", "ran"),
    [
        ("cases.csv", ["ingest", "fit", "predict", "evaluate", "report"]),
        ("rain.tif", ["ingest"]),  # the stand-in's stores come out the same: nothing follows
        ("folds.csv", ["evaluate"]),
        ("truth.tif", ["evaluate"]),
    ],
)
def test_a_changed_byte_runs_the_stages_that_it_concerns(inputs, calls, name, ran):
    config = build_config(inputs)
    run(config)
    calls.clear()
    (inputs / name).write_text(name.upper())
    results = run(config)
    assert calls == ran
    assert name.split(".")[0].replace("cases", "counts") in results[NAMES.index(ran[0])].reason


def test_a_damaged_or_absent_output_is_made_again(inputs, calls):
    config = build_config(inputs)
    run(config)
    calls.clear()
    (config.output.dir / "rate_mean.tif").write_text("cut sho")
    (config.output.dir / "evaluation.json").unlink()
    results = run(config)
    assert calls == ["predict", "evaluate"]
    assert results[2].reason == "rate_mean.tif is missing or damaged"


def test_a_style_that_a_user_edited_is_kept(inputs, calls):
    config = build_config(inputs)
    run(config)
    style = config.output.dir / "rate_mean.qml"
    style.write_text("my colours")
    run(config)
    assert style.read_text() == "my colours"
    style.unlink()
    run(config)
    assert style.read_text() != "my colours"


def test_force_begins_each_stage_anew(inputs, calls):
    config = build_config(inputs)
    run(config)
    for name in NAMES:
        kept = [config.output.dir / each for each in STAGES[name].keeps]
        for directory in kept:  # of an interrupted run
            directory.mkdir()
        calls.clear()
        run(config, (name,))
        assert calls == []
        (result,) = run(config, (name,), force=True)
        assert (calls, result.reason) == ([name], "forced")
        assert not any(directory.exists() for directory in kept)
        assert kept or name in ("ingest", "predict", "report")


def test_a_stage_that_fails_is_not_taken_for_done(inputs, calls, monkeypatch):
    config = build_config(inputs)
    run(config)
    good = sys.modules["pipeline.prediction.stage"].predict_stage

    def fail(context):
        (context.config.output.dir / "rate_mean.tif").write_text("half")
        raise RuntimeError("power cut")

    monkeypatch.setattr(sys.modules["pipeline.prediction.stage"], "predict_stage", fail)
    changed = build_config(inputs, output={"rate_per": 5})
    with pytest.raises(RuntimeError, match="power cut"):
        run(changed)
    monkeypatch.setattr(sys.modules["pipeline.prediction.stage"], "predict_stage", good)
    calls.clear()
    run(config)  # the old configuration: its record is there, but what it left no longer is
    assert calls == ["predict"]


def test_a_stage_without_what_it_needs_says_what_to_run(inputs, calls):
    config = build_config(inputs)
    with pytest.raises(InputError) as caught:
        run(config, ("predict",))
    remedies = [problem.remedy for problem in caught.value.problems]
    assert "disagg ingest" in remedies[0]
    assert "disagg fit" in remedies[1]
    assert calls == []


def test_a_stage_refuses_what_is_there_of_another_period(inputs, calls):
    run(build_config(inputs, period="2026-02"))
    calls.clear()
    for name in NAMES[1:]:
        before = (inputs / "out" / "run.json").read_text()  # it says when it was written
        with pytest.raises(InputError) as caught:
            run(build_config(inputs, period="2026-01"), (name,))
        (problem,) = caught.value.problems
        assert problem.found.endswith("ran there for period 2026-02, not 2026-01")
        assert "`disagg run CONFIG --period 2026-01`" in problem.remedy
        assert f"`disagg {name} CONFIG --period 2026-02`" in problem.remedy
        assert calls == []
        assert (inputs / "out" / "run.json").read_text() == before
        run(build_config(inputs, period="2026-02"), (name,))
    # The map tells its period, though other inputs were taken in since.
    run(build_config(inputs, period="2026-01"), ("ingest",))
    for period, said in (
        ("2026-01", "predict ran there for another period"),
        ("2026-02", "ingest ran there for period 2026-01"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            run(build_config(inputs, period=period), ("report",))
        assert "disagg report" not in str(caught.value)
    run(build_config(inputs, period="2026-01"))


def test_stale_stages_are_named(inputs, calls):
    config = build_config(inputs)
    run(config)
    assert stale_stages(config, "predict") == []
    assert stale_stages(build_config(inputs, fit={"max_epochs": 9}), "predict") == ["fit"]
    (inputs / "cases.csv").write_text("new")
    assert stale_stages(config, "fit") == ["ingest"]


def test_a_directory_has_one_run_at_a_time(inputs, calls):
    config = build_config(inputs)

    def second(name):
        with pytest.raises(
            InputError, match=r"another run \(.*, process \d+, since .*\) is writing here"
        ):
            run(config)

    run(config, ("ingest",), on_start=second)
    run(config, ("ingest",))  # and the lock is gone with the first
    assert calls == ["ingest"]


def test_run_json_has_versions_configuration_fingerprints_and_timings(inputs, calls):
    config = build_config(inputs)
    run(config)
    written = json.loads((config.output.dir / "run.json").read_text())
    assert Config.model_validate(written["config"]) == config
    assert set(written["fingerprints"]) == set(config.input_paths())
    assert written["fingerprints"]["counts.path"] == fingerprint_file(inputs / "cases.csv")
    assert set(written["stages"]) == set(NAMES)
    assert all(entry["seconds"] >= 0 for entry in written["stages"].values())
    assert {"python", "numpy", "rasterio"} <= set(written["versions"])


def test_a_damaged_record_means_running_again(inputs, calls):
    config = build_config(inputs)
    run(config)
    (config.output.dir / "work" / "stages.json").write_text('{"ingest": {"inp')
    assert read_record(config.output.dir) == {}
    run(config)
    assert calls == [*NAMES, *NAMES]


def test_a_shapefile_is_all_of_its_files(tmp_path):
    for suffix in ("shp", "dbf", "prj"):
        (tmp_path / f"a.{suffix}").write_text(suffix)
    before = fingerprint_file(tmp_path / "a.shp")
    (tmp_path / "a.txt").write_text("not of it")
    assert fingerprint_file(tmp_path / "a.shp") == before
    (tmp_path / "a.dbf").write_text("another table")
    assert fingerprint_file(tmp_path / "a.shp") != before


def test_bytes_that_move_between_files_are_a_change(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    (store / "a").write_text("12")
    (store / "b").write_text("3")
    before = fingerprint_file(store)
    (store / "a").write_text("1")
    (store / "b").write_text("23")
    assert fingerprint_file(store) != before


def test_values_do_not_depend_on_the_order_of_keys():
    assert fingerprint_value({"a": 1, "b": [2]}) == fingerprint_value({"b": [2], "a": 1})
    assert fingerprint_value({"a": [1, 2]}) != fingerprint_value({"a": [2, 1]})


def test_a_stage_has_one_blas_thread(inputs, calls, monkeypatch):
    module, _, name = STAGES["ingest"].function.partition(":")
    stage, seen = getattr(sys.modules[module], name), []

    def looking(context):
        seen.extend(p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas")
        return stage(context)

    monkeypatch.setattr(sys.modules[module], name, looking)
    run(build_config(inputs))
    assert seen
    assert set(seen) == {1}

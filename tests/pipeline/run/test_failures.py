"""What a failure leaves is found, told and mended; tests/faults provokes them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.errors import StoreError
from pipeline.core.signals import Terminated, deferred_signals, signals_raise
from pipeline.run.fingerprints import Fingerprints
from pipeline.run.record import read_record
from pipeline.run.runner import run_stage, run_stages
from pipeline.store.aligned_grid import open_aligned_grid, read_part
from pipeline.store.bag_store import BagStore
from tests.command import Command
from tests.progress import Notes

# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_block_and_is_then_the_systems_again(number: int, status: int) -> None:
    def end() -> None:
        with signals_raise():
            os.kill(os.getpid(), number)
            time.sleep(5)

    before = signal.signal(number, signal.SIG_DFL)  # under nohup the tests ignore SIGHUP
    try:
        with pytest.raises(Terminated) as found:
            end()
        assert found.value.status == status
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


class Finalized:
    """Its end is the moment of a signal: what is raised in a finalizer, Python drops."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        for _ in range(1000):
            time.sleep(0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_within_a_finalizer_is_not_lost(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    done = []

    def end() -> None:
        with signals_raise():
            each = Finalized(number)
            del each
            done.append("dropped")
            time.sleep(5)
            done.append("never")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hook = sys.unraisablehook
    try:
        with pytest.raises(KeyboardInterrupt):
            end()
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["dropped"]
    assert sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


def test_nohup_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_raise():
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.01)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_waits_for_the_renames() -> None:
    done = []

    def rename() -> None:
        with signals_raise():
            with deferred_signals():
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.01)
                done.append("renamed")
            done.append("never")

    with pytest.raises(Terminated):
        rename()
    assert done == ["renamed"]


def test_terminated_before_it_has_begun(files: Any) -> None:
    """Outside every command's own work, while it loads: one line all the same."""
    code = (
        "import os, signal, sys, pipeline.cli.main as cli\n"
        "cli._load = lambda *a, **k: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.exit(cli.main(['run', 'x.yaml']))"
    )
    done = Command(code=code).wait()
    assert done.returncode == 143
    (line,) = done.stderr.splitlines()
    assert line.startswith("terminated; finished work is kept; continue with `disagg run x.yaml`")


# -- the record of stages --------------------------------------------------------------------------


def test_a_changed_digit_of_a_summary_is_not_repeated(files: Any) -> None:
    config = files.config()
    tmp_path = config.output.dir
    tmp_path.mkdir()

    def run() -> Any:
        (tmp_path / "made").write_text("x")
        fingerprints = Fingerprints(config)
        return run_stage("one", {"a": "1"}, ["made"], lambda: {"n": 1234}, fingerprints)

    assert not run().skipped
    assert run().skipped
    record = tmp_path / "work/stages.json"
    record.write_text(record.read_text().replace("1234", "1235"))
    assert read_record(tmp_path) == {}
    assert run().summary == {"n": 1234}


def test_a_store_with_a_flipped_bit_is_made_again(files: Any) -> None:
    config = files.config()
    told, work = Notes(), config.output.dir / "work"
    left = [work / ".bags.zarr.partial-pod-7-1-abc", work / ".model-1-x"]
    for path in left:
        path.mkdir(parents=True)
    run_stages(config, ["ingest"], told)
    assert not any(path.exists() for path in left)  # what other hosts left half-written
    store = work / "bags.zarr"
    chunk = store / "x/c/0/0"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(StoreError, match=r"array x, chunk 0 .* is damaged"):
        BagStore.open(store).read_block(0)
    run_stages(config, ["ingest"], told)
    assert chunk.read_bytes() == whole
    assert not told.lines[-1].endswith("skipped")

    # The grid.
    path = work / "grid.zarr"
    values = read_part(open_aligned_grid(path), "covariates", slice(None), slice(0, 5), slice(0, 5))
    assert values.shape == (2, 5, 5)
    shard = path / "covariates/c/0/0/0"
    raw = shard.read_bytes()
    shard.write_bytes(raw[:50] + bytes([raw[50] ^ 8]) + raw[51:])
    with pytest.raises(
        StoreError, match=r"array covariates, rows and columns 0:5, 0:5, is damaged"
    ):
        read_part(open_aligned_grid(path), "covariates", slice(None), slice(0, 5), slice(0, 5))
    shard.unlink()  # Zarr would read it as missing values, and the map would have a hole
    with pytest.raises(StoreError, match="is missing"):
        open_aligned_grid(path)


# -- the model -------------------------------------------------------------------------------------


def test_a_changed_word_of_a_model_is_seen(world: Any, tmp_path: Path) -> None:
    import models
    from models.core.errors import FormatError

    world.model.save(tmp_path / "model")
    file = tmp_path / "model/model.json"
    text = file.read_text()
    assert '"additive"' in text
    file.write_text(text.replace('"additive"', '"addithve"', 1))
    with pytest.raises(FormatError, match=r"model\.json is damaged"):
        models.load(tmp_path / "model")
    meta = json.loads(text)
    del meta["meta_sha256"]  # as earlier versions saved it
    file.write_text(json.dumps(meta))
    assert models.load(tmp_path / "model").get_params() == world.model.get_params()


def test_what_a_killed_save_left_is_removed_and_a_running_one_left_alone(
    world: Any, tmp_path: Path
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    dead = tmp_path / f".model-{process.pid}-abc"
    running = tmp_path / f".model-{os.getppid()}-abc"
    dead.mkdir()
    running.mkdir()
    world.model.save(tmp_path / "model")
    assert not dead.exists()
    assert running.exists()


# -- folds -----------------------------------------------------------------------------------------


def test_a_damaged_fold_is_fitted_again(tmp_path: Path) -> None:
    from pipeline.evaluation.cross_validation import cross_validate
    from pipeline.products.areas import AreaDraws

    fitted = []

    class Predictor:
        kind, key = AreaDraws, "k"

        def predict(self, model: Any, keep: np.ndarray, number: int) -> AreaDraws:
            n = int(keep.sum())
            one, many = np.full(n, float(number)), np.full((3, n), float(number))
            return AreaDraws(np.flatnonzero(keep), one, one, one, many, many, one)

    def run() -> AreaDraws:
        said, _ = cross_validate(
            np.array([0, 1, 0]), Predictor(), lambda *a: fitted.append(1), tmp_path, "print"
        )
        return said

    first = run()
    path = sorted(tmp_path.glob("fold-1-*.npz"))[0]
    raw = path.read_bytes()
    at = raw.rindex(np.float64(1).tobytes())  # of the last array
    path.write_bytes(raw[:at] + b"\1" + raw[at + 1 :])
    np.testing.assert_array_equal(run().expected, first.expected)
    assert len(fitted) == 3  # both, then the damaged one

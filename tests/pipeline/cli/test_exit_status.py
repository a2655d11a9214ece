"""Each exit status of a process: what a scheduler sees."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from affine import Affine

from pipeline.cli.main import main
from pipeline.core.exit_status import MEANINGS, ExitStatus, help_text
from pipeline.core.supervised import GRACE_S
from pipeline.storage.lock import hold_map
from tests.command import Command, disagg
from tests.pipeline.cli.hanging import breaking_off, silent_server

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def write(files: Any) -> Any:
    """Write a configuration that runs in seconds, with some sections changed."""

    def write(**changes: Any) -> Path:
        mapping = files.mapping() | {
            "model": {"inducing": 8},
            "fit": {"max_epochs": 2},
            "output": {"dir": str(files.directory / "out"), "draws": 20},
            "evaluate": {"folds": 2, "schemes": ["area"]},
            "update": {"retries": 0},
        }
        path = files.directory / "disagg.yaml"
        path.write_text(yaml.safe_dump(mapping | changes))
        return path

    return write


@pytest.mark.ci
def test_1_a_defect() -> None:
    code = (
        "import sys, pipeline.cli.main as cli\n"
        "def broken(*a, **k): raise ZeroDivisionError('ours')\n"
        "cli._load = broken\n"
        "sys.exit(cli.main(['run', 'x.yaml']))"
    )
    done = Command(code=code).wait()
    assert done.returncode == ExitStatus.DEFECT
    assert "ZeroDivisionError: ours" in done.stderr
    assert "this is a defect of disagg" in done.stderr


def test_2_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("run", "check", "plan", "publish", "versions", "ingest"):
        assert main([name, "nowhere.yaml"]) == ExitStatus.BAD_INPUT == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.ci
def test_3_finished_and_not_fit_to_publish(files: Any, write: Any) -> None:
    path = write(gates={"min_gain": 1e6})
    plain = disagg("run", path, "--quiet")
    assert (plain.returncode, plain.stderr) == (ExitStatus.DONE, "")  # nobody asked to publish
    for words in (("publish", path), ("run", path, "--publish")):
        done = disagg(*words, "--quiet", "--json")
        assert done.returncode == ExitStatus.HELD
        assert all(line.startswith("held back: ") for line in done.stderr.splitlines())
        assert done.stderr
        assert json.loads(done.stdout)["ok"] is False
    out = files.directory / "out"
    assert (out / "rate_mean.tif").is_file()
    assert not list((out / "published").glob("versions/v*"))
    write(gates={"better_than_constant": False})
    assert disagg("run", path, "--publish", "--quiet").returncode == ExitStatus.DONE
    assert (out / "published" / "current" / "rate_mean.tif").is_file()


def test_75_a_server_of_inputs_is_away(
    files: Any, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    away = "http://127.0.0.1:1/"
    given = files.mapping()
    changed = {
        "areas": {**given["areas"], "path": away + "areas.geojson"},
        "counts": {"path": away + "counts.csv", "value": "cases"},
        "covariates": {**given["covariates"], "wave": {"path": away + "wave.tif"}},
    }
    for what, name in (("areas", "run"), ("counts", "check"), ("counts", "run"),
                       ("covariates", "run")):  # fmt: skip
        path = write(**{what: changed[what]}, storage={"retries": 0})
        status, told = main([name, str(path), "--quiet"]), capsys.readouterr().err
        assert status == ExitStatus.TRANSIENT, told
        assert "cannot be reached" in told


def test_75_another_run_is_writing_there(files: Any, write: Any) -> None:
    with hold_map(files.directory / "out", "a run of this test"):
        done = disagg("run", write(), "--quiet")
    assert done.returncode == ExitStatus.TRANSIENT
    assert "a run of this test" in done.stderr
    assert "is writing here" in done.stderr


def test_bad_input_beside_what_is_away_is_2(files: Any, write: Any) -> None:
    """Trying again would not help."""
    files.counts([("M00", "lots"), *list(files.cases.items())[1:]])
    away = {"wave": {"path": "http://127.0.0.1:1/wave.tif"}}
    done = disagg("check", write(covariates={**files.mapping()["covariates"], **away}), "--quiet")
    assert done.returncode == ExitStatus.BAD_INPUT
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.ci
def test_141_nobody_reads() -> None:
    """A process of its own, that Python starts."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "pipeline.cli", "models", "--json"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    _, stderr = process.communicate()
    assert (process.returncode, stderr) == (ExitStatus.PIPE_CLOSED, "")


SOON = 2.0
SOONER = f"""
import sys, pipeline.core.supervised as parent
parent.GRACE_S = {SOON}  # seconds from the signal to the kill
from pipeline.cli.main import main
sys.exit(main())
"""


def ended_by(
    number: signal.Signals, path: Path, asked: threading.Event, code: str = ""
) -> tuple[int, str, float]:
    """Run a check, send a signal once a server has been asked; return status, text, seconds."""
    process = Command("check", path, "--quiet", code=code)
    assert asked.wait(60)
    time.sleep(0.2)
    process.send_signal(number)
    started = time.monotonic()
    done = process.wait(60)
    return done.returncode, done.stderr, time.monotonic() - started


@pytest.mark.parametrize(
    ("number", "status", "word"),
    [
        (signal.SIGINT, ExitStatus.INTERRUPTED, "interrupted"),
        (signal.SIGTERM, ExitStatus.TERMINATED, "terminated"),
        (signal.SIGHUP, ExitStatus.HANGUP, "terminated"),
    ],
)
def test_128_and_the_signals_number(
    files: Any, write: Any, number: signal.Signals, status: int, word: str
) -> None:
    asked = threading.Event()
    with silent_server(asked.set) as port:
        path = write(counts={"path": f"http://127.0.0.1:{port}/cases.csv", "value": "cases"})
        found, stderr, _ = ended_by(number, path, asked)
    assert found == status
    (line,) = stderr.splitlines()
    assert line.startswith(word)
    assert "by force" not in line  # Python waited for the table, and its handlers ran


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["open", pytest.param("read", marks=pytest.mark.ci)])
def test_143_also_where_gdal_waits_for_ever(
    files: Any, write: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal reaches no handler of Python there: the process ends itself, and tidily."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    asked = threading.Event()
    if kind == "open":
        server: Any = silent_server(asked.set)
    else:
        big = np.random.default_rng(0).normal(size=(400, 34))
        north = Affine(1000, 0, 5e5, 0, -1000, 8e6 + 370_000)  # the areas are at its other end
        files.raster("wave.tif", big, transform=north)
        server = breaking_off(files.directory / "wave.tif", 60_000, asked.set)
    with server as port:
        rasters = {"wave": {"path": f"http://127.0.0.1:{port}/wave"}}  # .tif: Python waits
        path = write(covariates={**files.mapping()["covariates"], **rasters})
        status, stderr, seconds = ended_by(signal.SIGTERM, path, asked, SOONER)
    assert status == ExitStatus.TERMINATED
    (line,) = stderr.splitlines()
    assert line.startswith("terminated by force: a call did not return within 2 s; finished work ")
    assert line.endswith(f"continue with `disagg check {path} --quiet`")
    assert SOON - 1 < seconds < GRACE_S  # when it was told to, not when it does by itself
    assert GRACE_S < 20  # Kubernetes kills after 30
    assert list(scratch.glob("disagg-*")) == []


def test_a_named_pipe_is_no_raster(files: Any, write: Any) -> None:
    (files.directory / "wave.tif").unlink()
    os.mkfifo(files.directory / "wave.tif")
    done = disagg("check", write(), "--quiet")
    assert done.returncode == ExitStatus.BAD_INPUT
    assert "is no regular file" in done.stderr


def test_143_also_before_a_command_has_begun() -> None:
    """Typer makes its own 130 of it there, and says nothing."""
    code = (
        "import os, signal, sys, pipeline.cli.main as cli, pipeline.core.revision as r\n"
        "r.full_version = lambda: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.exit(cli.main(['--version']))"
    )
    done = Command(code=code).wait()
    assert (done.returncode, done.stderr) == (ExitStatus.TERMINATED, "terminated\n")


# -- what is written about them --------------------------------------------------------------------


def test_help_has_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("run",), ("publish",), ("bags", "fit")):
        assert main([*words, "--help"]) == ExitStatus.DONE
        shown = " ".join(capsys.readouterr().out.split())
        for line in help_text().splitlines():
            assert " ".join(line.split()) in shown


def test_the_page_for_the_person_on_duty_has_all_of_them() -> None:
    text = (ROOT / "docs/failures.md").read_text(encoding="utf-8")
    told = {int(number) for number in re.findall(r"^\| (\d+) ", text, re.MULTILINE)}
    assert {int(status) for status in MEANINGS} <= told
    assert set(MEANINGS) == set(ExitStatus)


KILLED = """
import os, signal, sys
import pipeline.cli.main as own
own._main = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # as a machine without memory does
sys.exit(own.main())
"""


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_killed_process_is_told_in_its_log_file(tmp_path: Path, form: str) -> None:
    path = tmp_path / "logs/disagg.log"
    words = ["run", "my.yaml", f"--log-format={form}", "--log-file", str(path)]
    done = Command(*words, code=KILLED).wait(60)
    assert done.returncode == 137
    (line,), (said,) = done.stderr.splitlines(), path.read_text().splitlines()
    message = line.removeprefix("error: ")
    assert message.startswith("killed, most often for want of memory")
    if form == "json":
        record = json.loads(said)
        assert (record["level"], record["message"]) == ("error", message)
    else:
        assert said.endswith(f"ERROR -: {message}")

"""``flows.serve`` keeps its processes running, says so, and leaves nothing when it is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows import serve
from flows.login import LOGIN
from flows.processes import (
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    ChildProcess,
    StartError,
    stop_all,
    wait_for_url,
)
from pipeline.publishing.versions import current_version
from pipeline.storage.lock import Lock

ROOT = Path(__file__).parents[2]


def child(code: str, **options: Any) -> ChildProcess:
    return ChildProcess("worker", [sys.executable, "-c", code], dict(os.environ), **options)


def until(holds: Any, within: float = 30.0) -> None:
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


# -- one child ---------------------------------------------------------------------------------


def test_a_dead_child_is_told_once_and_started_again() -> None:
    one = child("import time; time.sleep(100)")
    one.start()
    try:
        first = one.pid
        assert first is not None
        assert one.revive(0.0) is None
        os.kill(first, signal.SIGKILL)
        until(lambda: one.status() is not None)
        assert one.revive(10.0) == "the worker ended by signal 9; it is started again in 1 s"
        assert one.revive(10.0 + FIRST_WAIT_S / 2) is None
        assert one.pid == first
        assert one.revive(10.0 + FIRST_WAIT_S) is None
        assert one.pid != first
        assert one.status() is None
    finally:
        stop_all([one])


def test_one_that_dies_ever_again_waits_ever_longer() -> None:
    one, now, waits = child("raise SystemExit(3)"), 0.0, []
    one.start()
    for _ in range(8):
        until(lambda: one.status() is not None)
        line = one.revive(now)
        assert line is not None
        assert "ended with status 3" in line
        waits.append(float(line.rpartition(" in ")[2].removesuffix(" s")))
        now += waits[-1]
        assert one.revive(now) is None  # it starts
    assert waits == [1, 2, 4, 8, 16, 32, LONGEST_WAIT_S, LONGEST_WAIT_S]
    assert "(8 times in 10 minutes)" in line
    stop_all([one])


def test_what_a_server_started_does_not_keep_its_port() -> None:
    """`prefect server start` starts the server proper, which would survive it."""
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        "time.sleep(100)"
    )
    one = child(code, alone=True)
    one.start()
    assert one.pid is not None
    parent = psutil.Process(one.pid)
    until(parent.children)
    (inner,) = parent.children()
    os.kill(one.pid, signal.SIGKILL)
    until(lambda: one.status() is not None)
    assert one.revive(0.0) is not None
    psutil.wait_procs([inner], timeout=10)
    assert not inner.is_running() or inner.status() == psutil.STATUS_ZOMBIE


@pytest.mark.ci
def test_children_end_with_a_parent_that_is_killed() -> None:
    code = (
        "import os, sys, time\n"
        "from flows.processes import ChildProcess\n"
        "one = ChildProcess('one', [sys.executable, '-c', 'import time; time.sleep(100)'],"
        " os.environ)\n"
        "one.start(); print(one.pid, flush=True); time.sleep(100)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    inner = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    psutil.wait_procs([inner], timeout=10)
    assert not inner.is_running() or inner.status() == psutil.STATUS_ZOMBIE


def test_a_server_that_ends_is_not_waited_for() -> None:
    one = child("raise SystemExit(1)")
    one.start()
    with pytest.raises(StartError, match="ended with status 1"):
        wait_for_url("http://127.0.0.1:1/api/health", one, 60)


# -- a start that cannot be ----------------------------------------------------------------------


@pytest.fixture
def start(make_map: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """Run `flows.serve` in this process, up to the first child; return its status and line."""
    for name in (LOGIN, serve.SERVER_LOGIN):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setattr(serve, "end_on_signals", lambda: None)
    monkeypatch.setattr(serve, "_PORT_S", 0.1)
    monkeypatch.setattr(serve, "_start", lambda *_: pytest.fail("it started"))
    config = str(make_map("served").config)

    def start(*more: str) -> tuple[int, str]:
        status = serve.main([config, *more])
        (line,) = capsys.readouterr().err.splitlines()
        return status, line

    return start


def test_a_port_in_use_is_one_line(start: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, line = start("--port", str(port))
    assert status == 2
    assert line.startswith(f"error: --port {port} of 127.0.0.1: in use by another program")


def test_a_second_start_is_one_line(start: Any, tmp_path: Path) -> None:
    with Lock(tmp_path / "prefect" / "disagg-serve.lock").hold("flows.serve"):
        status, line = start("--port", "1")
    assert status == 2
    assert "flows.serve (" in line
    assert "runs already" in line


def test_no_server_without_a_login_for_other_machines(start: Any, monkeypatch: Any) -> None:
    status, line = start("--host", "0.0.0.0")
    assert status == 2
    assert "you gave it no login" in line
    monkeypatch.setenv(LOGIN, "secret-without-a-colon")
    status, line = start("--host", "0.0.0.0")
    assert "not of the form user:password" in line
    assert "secret" not in line


def test_no_port_is_one_line(start: Any) -> None:
    assert start("--port", "lots")[0] == 2


# -- all of it ---------------------------------------------------------------------------------


@pytest.fixture
def served(start_server: Any, make_map: Any, free_port: Any) -> Any:
    """Start `flows.serve` with a login; give the map, the home, and how to start it again."""
    made = make_map("served")
    home = start_server(start=False)  # its environment alone
    port = free_port()
    home.env |= {
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        LOGIN: "mapper:planted-login-4711",
    }
    home.login = "mapper:planted-login-4711"
    # What a run of the worker inherits, too.
    more = ["--port", str(port), "--every", "1", "--cron", "0 0 1 1 *"]

    def begin() -> Any:
        return home._spawn("serve", "-m", "flows.serve", str(made.config), *more)

    return made, home, begin


def parts(number: int) -> dict[str, psutil.Process]:
    """Return the processes of a supervisor by name."""
    found = {}
    for each in psutil.Process(number).children():
        try:
            words = " ".join(each.cmdline())
        except psutil.Error:  # dead, and not yet waited for
            continue
        for name, mark in (("server", "server start"), ("worker", "worker start"),
                           ("watch", "flows.watch")):  # fmt: skip
            if mark in words:
                found[name] = each
    return found


def status_of(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return int(error.code)
    except OSError:
        return 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_part_may_be_killed(served: Any) -> None:
    made, home, begin = served
    process = begin()
    published = made.out / "published"
    home.wait("a version", lambda: current_version(published) is not None, 300)
    log = home.directory / "serve.log"
    url = home.env["PREFECT_API_URL"]
    assert status_of(f"{url}/work_pools/maps") == 401  # nobody reads it without the login
    before = parts(process.pid)
    assert set(before) == {"server", "worker", "watch"}
    for name in ("watch", "worker", "server"):
        before[name].kill()
        home.wait(
            f"another {name}",
            lambda name=name: parts(process.pid).get(name, before[name]).pid != before[name].pid,
        )
        assert f"serve: the {name} ended by signal 9; it is started again in 1 s" in log.read_text()
    home.wait("the server", lambda: status_of(f"{url}/health") == 200, 120)
    # And all of it works as before: new counts arrive, and become a version.
    first = current_version(published)
    assert first is not None
    made.add_cases(50)
    home.wait("a second version", lambda: current_version(published) != first, 300)
    text = log.read_text() + "".join(
        path.read_text(errors="replace") for path in home.directory.rglob("*.log")
    )
    assert "planted-login-4711" not in text

    # The supervisor itself: its children end, and a second start finds the port free. A run
    # outlives its worker, as it must, and would wait here for the server that is killed.
    home.wait("the end of the run", lambda: not parts(process.pid)["worker"].children(True), 120)
    old = [each for part in parts(process.pid).values() for each in (part, *part.children(True))]
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(old, timeout=40)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []
    second = current_version(published)
    process = begin()
    home.wait("the server", lambda: status_of(f"{url}/health") == 200, 120)
    made.add_cases(50)
    home.wait("a third version", lambda: current_version(published) != second, 300)
    assert json.loads((published / "current" / "version.json").read_text())["version"] == "v0003"
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert time.monotonic() - started < 25

"""Several hosts on one machine: a run across them gives the bits of one machine."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.host_network import permitted
from pipeline.training.half_matrices import LEAST_ROWS

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_across_hosts_survives_the_loss_of_one(tmp_path):
    if (why := permitted()) is not None:
        pytest.skip(why)
    out = tmp_path / "hosts.json"
    command = [sys.executable, "-m", "benchmarks.hosts", "--quick", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(out.read_text())
    assert set(found["trials"]) == {"nothing", "lose_worker"}
    for each in found["trials"].values():
        assert each["differs"] == []
        assert each["statuses"] == [0]
    assert found["trials"]["lose_worker"]["disturbed_after_s"] is not None
    for size, each in found["bytes_a_step"].items():
        # Parameters there, one sum back, half of the symmetric matrix, and little more.
        n = int(size)
        saved = 8 * n * (n - 1) // 2 if n >= LEAST_ROWS else 0
        for way in ("to_a_worker", "from_a_worker"):
            assert 1 < each[way] / (each["arrays"] - saved) < 1.1 + 4000 / each["arrays"], size


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_stays_of_a_network_that_is_killed(how, tmp_path):
    if (why := permitted()) is not None:
        pytest.skip(why)
    mark = f"{tmp_path}/mark"  # the server's directory, so that it is known among all processes
    code = (
        f"from benchmarks.host_network import run_alone; run_alone('http.server', {['-d', mark]})"
    )
    outer = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    assert _until(lambda: len(_processes(mark)) == 3), _processes(mark)  # and unshare, and this one
    outer.send_signal(how)
    outer.wait(20)
    assert _until(lambda: not _processes(mark)), _processes(mark)


def _processes(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark in (words := path.read_bytes().replace(b"\0", b" ").decode()):
                found.append(words)
    return found


def _until(done, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_what_is_missing_is_told(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "apt-get install iproute2" in permitted()

"""Several hosts on one machine: a run across them gives the bits of one machine."""

from __future__ import annotations

import json
import subprocess
import sys
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


def test_what_is_missing_is_told(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "apt-get install iproute2" in permitted()

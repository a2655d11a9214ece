"""While the disk of PREFECT_HOME is full, `flows.serve` says so once a minute, and nothing else."""

import os
import subprocess
import sys
import time

import pytest

from flows import full_home
from flows.full_home import EVERY_S, Spoken, is_full
from flows.processes import ChildProcess


def test_one_line_a_minute(tmp_path, monkeypatch):
    now, full, said = [0.0], [False], []
    monkeypatch.setattr(full_home, "is_full", lambda _: full[0])
    spoken = Spoken(tmp_path, said.append, lambda: now[0])

    def flood(seconds):
        for _ in range(100 * seconds):
            now[0] += 0.01
            spoken("OperationalError: database or disk is full")

    spoken("started")
    assert said == ["started"]
    full[0] = True
    now[0] += 2
    flood(int(3 * EVERY_S) - 5)
    assert len(said) == 1 + 3
    for line in said[1:]:
        assert line.startswith(f"serve: {tmp_path}: no space left")
        assert "free some space there" in line
        assert "PREFECT_HOME" in line
    full[0] = False
    now[0] += 2
    spoken("goes on")
    assert said[-1] == "goes on"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_under_a_child(tmp_path):
    """A real disk of 1 MiB, and a child that writes to it without end."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no mounts here")
    said = []
    code = (
        "import sys, time\n"
        "print('begins', flush=True)\n"
        "for n in range(2000):\n"
        "    try:\n"
        "        with open(sys.argv[1] + '/database', 'ab', 0) as file: file.write(b'x' * 2**21)\n"
        "        time.sleep(0.5)\n"
        "    except OSError as error: print(error, flush=True)\n"
    )
    try:
        assert not is_full(tmp_path)
        child = ChildProcess(
            "server", [sys.executable, "-c", code, str(tmp_path)], say=Spoken(tmp_path, said.append)
        )
        with child:
            assert child._process is not None
            child._process.wait(60)
            time.sleep(0.5)  # the thread that listens
        assert is_full(tmp_path)
        assert f"{tmp_path}: no space left" in said[-1]
        assert len(said) <= 2  # the first line is there before the disk is full, or is not
        (tmp_path / "database").unlink()
        assert not is_full(tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)

"""``disagg@.service``: what others may read, and how it ends; by its ExecStart, and by systemd."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.publishing.versions import current_version
from pipeline.storage.files import make_private
from tests.flows.conftest import Map
from tests.infra.units import ROOT, Units

UNIT = "disagg@.service"
USER = 990


def closed_and_open(state: Path, published: Path) -> None:
    """Assert that readers reach every file of the versions, and nothing that a run remembers."""
    version = current_version(published)
    assert version is not None
    shown = [path for path in version.path.rglob("*") if not path.name.startswith(".")]
    assert version.path / "rate_mean.tif" in shown
    way = [each for each in version.path.parents if each.is_relative_to(state)]
    for path in [*shown, version.path, *way]:
        wanted = 0o005 if path.is_dir() else 0o004
        assert path.stat().st_mode & 0o007 == wanted, path
    work = published.parent / "work"
    assert (work / "model").is_dir()
    for path in (work, state / ".cache"):
        assert path.stat().st_mode & 0o777 == 0o700, path


@pytest.mark.slow
def test_others_read_what_is_published_and_nothing_else(country, tmp_path):
    units = Units(tmp_path / "units", {})
    made = Map(units.state / "tiny", country, "tiny")
    made.directory.chmod(0o755)  # as an administrator makes it
    assert units.run(UNIT, "tiny") == [0]
    closed_and_open(units.state, made.out / "published")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o700), (0o077, 0o700), (0o002, 0o770)])
def test_a_private_directory_is_closed_to_others_whatever_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        make_private(tmp_path / "out/work")
    finally:
        os.umask(before)
    assert (tmp_path / "out/work").stat().st_mode & 0o777 == mode
    (tmp_path / "out/work").chmod(0o755)  # somebody's decision
    make_private(tmp_path / "out/work")
    assert (tmp_path / "out/work").stat().st_mode & 0o777 == 0o755


class Booted:
    """systemd, in namespaces of its own."""

    def __init__(self, root: Path, process: int) -> None:
        self.root, self.state = root, root / "var/lib/disagg"
        spaces = ["--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup"]
        self.enter = ["nsenter", f"--target={process}", *spaces]

    def __call__(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.enter, *command], capture_output=True, text=True, timeout=300)

    def said(self) -> str:
        said = self.root / "said"
        return (self.root / "console").read_text() + (said.read_text() if said.exists() else "")

    def show(self, unit: str) -> dict[str, str]:
        names = "ActiveState,Result,ExecMainStatus,NRestarts"
        shown = self("systemctl", "show", unit, f"--property={names}").stdout
        return dict(line.split("=", 1) for line in shown.split())

    def map(self, country: Path, name: str, **sections: object) -> Map:
        made = Map(self.state / name, country, name, **sections)
        made.directory.chmod(0o755)
        subprocess.run(["chown", "-R", f"{USER}:{USER}", self.state], check=True)
        return made


@pytest.fixture(scope="module")
def booted(tmp_path_factory) -> Iterator[Booted]:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    cgroups = [Path(each[1]) for each in mounts if each[2] == "cgroup2"]
    tools = all(map(shutil.which, ("unshare", "nsenter", "systemctl")))
    if os.geteuid() or not tools or not cgroups or not os.access(cgroups[0], os.W_OK):
        pytest.skip("needs root, systemd, namespaces and a control group that can be written to")
    root = tmp_path_factory.mktemp("booted")
    root.chmod(0o755)  # "/", for the user of the unit
    for name, text in {
        "etc/passwd": f"root:x:0:0::/:/bin/sh\ndisagg:x:{USER}:{USER}::/:/bin/false\n",
        "etc/group": f"root:x:0:\ndisagg:x:{USER}:\n",
        "etc/systemd/system/default.target": "[Unit]\nDefaultDependencies=no\n",
        "etc/disagg/disagg.env": "PYTHONPATH=/srv/source:/srv/packages\nOMP_NUM_THREADS=1\n"
        "LD_LIBRARY_PATH=/srv/python/lib\n",
        "opt/disagg/bin/entry": (ROOT / "infra/image/entry.sh").read_text(),
        "opt/disagg/bin/disagg": '#!/bin/sh\nexec /srv/python/bin/python3 -m pipeline.cli "$@"\n',
        # There is no journal.
        f"etc/systemd/system/{UNIT}.d/said.conf": "[Service]\nStandardOutput=append:/said\n"
        "StandardError=append:/said\n",
        f"etc/systemd/system/{UNIT}": (ROOT / "infra/systemd" / UNIT).read_text(),
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        (root / name).chmod(0o755 if "/bin/" in name else 0o644)
    # There is no network to wait for.
    (root / "etc/systemd/system/systemd-networkd-wait-online.service").symlink_to("/dev/null")
    group = cgroups[0] / f"disagg-{os.getpid()}"
    group.mkdir()
    inside = ["--pid", "--fork", "--mount", "--uts", "--ipc", "--net", "--cgroup"]
    # Python may be in a home directory, which the unit does not see.
    packages = sysconfig.get_path("purelib")
    places = [f"{ROOT}:/srv/source", f"{packages}:/srv/packages", f"{sys.base_prefix}:/srv/python"]
    start = ["unshare", *inside, "sh", str(ROOT / "tests/infra/boot.sh"), str(root), *places]
    join = f"echo $$ > {group}/cgroup.procs && exec {shlex.join(start)}"
    log = root / "console"
    with log.open("wb") as out:
        process = subprocess.Popen(["sh", "-c", join], stdout=out, stderr=out)
    made, first, end = None, 0, time.monotonic() + 30
    try:
        while made is None or "running" not in made("systemctl", "is-system-running").stdout:
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < end, log.read_text()[-2000:]
            time.sleep(0.2)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            first = int((children.split() or ["0"])[0])
            made = Booted(root, first) if first else None
        yield made
    finally:
        if first:
            os.kill(first, signal.SIGKILL)  # systemd minds no other; all of its namespace ends
        process.kill()
        process.wait()
        for _ in range(50):  # what was killed takes a moment to go
            for path in [*sorted(group.rglob("*/"), reverse=True), group]:
                with contextlib.suppress(OSError):
                    path.rmdir()
            if not group.exists():
                break
            time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_systemd_runs_it(booted, country):
    made = booted.map(country, "tiny")
    done = booted("systemctl", "start", "disagg@tiny")
    assert done.returncode == 0, f"{booted.show('disagg@tiny')}{booted.said()}"
    assert booted.show("disagg@tiny")["Result"] == "success"
    closed_and_open(booted.state, made.out / "published")
    stranger = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    base = "/var/lib/disagg/tiny/out"
    assert booted(*stranger, "cat", f"{base}/published/current/areas.csv").stdout
    assert "Permission denied" in booted(*stranger, "ls", f"{base}/work").stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_stopped_run_has_not_failed_and_goes_on(booted, country):
    made = booted.map(country, "long", fit={"max_epochs": 100000, "tolerance": 1e-300})
    booted("systemctl", "start", "--no-block", "disagg@long")
    end = time.monotonic() + 120
    while not list(made.out.glob("work/**/*checkpoint*")):
        assert time.monotonic() < end, booted.said()
        time.sleep(0.3)
    booted("systemctl", "stop", "disagg@long")
    # Without SuccessExitStatus=143 the unit would stay as failed.
    assert booted.show("disagg@long")["ActiveState"] == "inactive"
    assert "terminated during" in booted.said()
    assert list(made.out.glob("work/**/*checkpoint*"))  # where the next start goes on


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_bad_input_fails_once(booted, country):
    booted.map(country, "bad").spoil()
    assert booted("systemctl", "start", "disagg@bad").returncode
    shown = booted.show("disagg@bad")
    assert (shown["ActiveState"], shown["ExecMainStatus"]) == ("failed", "2")
    assert "cases.csv" in booted.said()

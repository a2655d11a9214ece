"""PostgreSQL behind the server, and ten maps updated at once: no locked database, no lost run."""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from pipeline.publishing.versions import current_version

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

N_MAP = 10


def programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    path = str(found[-1]) if found else shutil.which("initdb")
    return None if path is None else Path(path).resolve().parent


@pytest.fixture(scope="module")
def database(free_port):
    """Start a PostgreSQL of its own; it refuses root, so somebody else runs it."""
    where = programs()
    if where is None:
        pytest.skip("no PostgreSQL here (Debian: apt-get install postgresql)")
    root = os.getuid() == 0
    user = next(
        (each.pw_name for each in pwd.getpwall() if each.pw_name in ("postgres", "nobody")), None
    )
    user = user if root else getpass.getuser()
    more = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if root else {}
    directory = Path(tempfile.mkdtemp(prefix="disagg-pg-"))
    if root:
        shutil.chown(directory, user)
    data, port = directory / "data", free_port()
    options = {**more, "cwd": directory, "stdout": subprocess.DEVNULL}
    make = [where / "initdb", "-D", data, "-A", "trust", "-U", "disagg", "--no-sync"]
    subprocess.run(make, check=True, **options)
    serve = ["-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", directory]
    log = (directory / "log").open("wb")
    process = subprocess.Popen(
        [where / "postgres", *serve], **{**options, "stdout": log, "stderr": log}
    )
    try:
        ready = [where / "pg_isready", "-h", "127.0.0.1", "-p", str(port), "-q"]
        end = time.monotonic() + 60
        while subprocess.run(ready).returncode != 0:
            assert time.monotonic() < end, (directory / "log").read_text()
            time.sleep(0.2)
        create = ["-h", "127.0.0.1", "-p", str(port), "-U", "disagg", "prefect"]
        subprocess.run([where / "createdb", *create], check=True)
        yield f"postgresql+asyncpg://disagg@127.0.0.1:{port}/prefect"
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()
        log.close()
        shutil.rmtree(directory, ignore_errors=True)


def test_ten_maps_at_once(database, start_server, make_map):
    server = start_server(database)
    maps = [make_map(f"map-{k}") for k in range(N_MAP)]
    names = server.deploy(*(made.config for made in maps))
    server.worker("many", limit=N_MAP)
    numbers = [server.trigger(name) for name in names]
    states = [server.ended(number, 700) for number in numbers]
    assert [state["name"] for state in states] == ["Completed"] * N_MAP
    for made in maps:
        assert current_version(made.out / "published").name == "v0001"
    said = "".join(path.read_text() for path in server.directory.glob("*.log"))
    assert "locked" not in said
    assert "deadlock" not in said
    # New counts, sensed, on this database too.
    maps[0].add_cases()
    server.watch(maps[0].config)
    server.wait("a run of new counts", lambda: len(server.flow_runs("map-0")) == 2)
    assert server.ended(server.flow_runs("map-0")[-1]["id"])["name"] == "Completed"
    server.stop()

"""The units of infra/systemd, started: PostgreSQL, server with a login, worker, watch, Dask on TLS.

The same programs with the same options are in infra/compose.yaml, which no engine here can start.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import rasterio
import yaml

from pipeline.publishing.versions import current_version
from tests.flows.conftest import Map
from tests.infra.units import ROOT, Units
from tests.servers import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Machine(Units):
    """All units with their settings, and the server's API."""

    def api(self, path: str, login: str | None = None, body: object = None):
        asked = urllib.request.Request(f"{self.url}{path}")
        asked.add_header("Content-Type", "application/json")
        if login is not None:
            asked.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(asked, data, timeout=20) as answer:
            return json.load(answer)

    def until(self, what: str, done, seconds: float = 120):
        end = time.monotonic() + seconds
        while True:
            try:
                if found := done():
                    return found
            except (OSError, urllib.error.URLError):
                pass
            said = "\n".join(p.read_text()[-1500:] for p in self.directory.glob("*.log"))
            assert time.monotonic() < end, f"{what}: {said}"
            time.sleep(0.3)


@pytest.fixture(scope="module")
def machine(tmp_path_factory, database):
    directory = tmp_path_factory.mktemp("machine")
    server, dask = free_port(), free_port()
    subprocess.run(["sh", ROOT / "infra/secrets.sh", directory / "secrets"], check=True)
    made = Machine(
        directory,
        {
            "PREFECT_API_URL": f"http://127.0.0.1:{server}/api",
            "PREFECT_SERVER_API_PORT": str(server),
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "DASK_PORT": str(dask),
            "DASK_SCHEDULER": f"tls://127.0.0.1:{dask}",
            "DASK_MEMORY": "1GiB",
        },
    )
    made.url, made.dask = f"http://127.0.0.1:{server}/api", dask
    address = directory / "secrets/database-url"
    address.chmod(0o600)
    address.write_text(database)
    made.login = (directory / "secrets/prefect-auth").read_text().strip()
    # The port is in the unit's command.
    parse = made.parse
    made.parse = lambda name, instance="": (
        [[str(server) if word == "4200" else word for word in c] for c in parse(name, instance)[0]],
        parse(name, instance)[1],
    )
    try:
        made.start("disagg-server.service")
        made.until("the server", lambda: made.api("/health"))
        made.start("disagg-scheduler.service")
        for number in "12":
            made.start("disagg-dask-worker@.service", number)
        yield made
    finally:
        made.stop()


def _map(machine: Machine, country: Path, name: str, **sections) -> Map:
    return Map(machine.state / name, country, name, **sections)


def test_nobody_reads_the_server_without_the_login(machine):
    for login in (None, "disagg:wrong"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            machine.api("/flow_runs/filter", login, {})
    assert machine.api("/flow_runs/filter", machine.login, {}) == []
    said = "".join(path.read_text() for path in machine.directory.glob("*.log"))
    assert machine.login.split(":")[1] not in said


def test_a_map_is_updated_on_workers_over_tls(machine, country):
    secrets = machine.secrets / "tls"
    made = _map(
        machine,
        country,
        "tls",
        compute={
            "scheduler": f"tls://127.0.0.1:{machine.dask}",
            "workers": "auto",
            "tls": {key: str(secrets / f"{key}.pem") for key in ("ca", "cert", "key")},
        },
    )
    machine.settings["DISAGG_CONFIGS"] = str(made.config)
    _, environment = machine.parse("disagg-worker.service")
    entry = ["sh", str(ROOT / "infra/image/entry.sh"), "python", "-m", "flows.deploy"]
    subprocess.run([*entry, str(made.config)], env=environment, check=True)
    machine.start("disagg-worker.service")
    machine.start("disagg-watch.service")
    machine.until("a version", lambda: current_version(made.out / "published"), 300)
    local = _map(machine, country, "here")
    assert machine.run("disagg@.service", "here") == [0]
    # Their tags name the maps, so that the files differ.
    with (
        rasterio.open(made.out / "rate_mean.tif") as there,
        rasterio.open(local.out / "rate_mean.tif") as here,
    ):
        assert there.read().tobytes() == here.read().tobytes()
    log = (machine.directory / "disagg-dask-worker@1.log").read_text()
    assert re.search(r"tls://127\.0\.0\.1:\d+", log)


def test_dask_refuses_who_has_no_certificate(machine, country):
    made = _map(machine, country, "plain", compute={"scheduler": f"tcp://127.0.0.1:{machine.dask}"})
    assert machine.run("disagg@.service", "plain") == [75]
    text = yaml.safe_load(made.config.read_text())
    assert "tls" not in text["compute"]


def test_the_unit_of_a_map_tells_the_kinds_of_ends_apart(machine, country):
    made = _map(machine, country, "bad")
    made.spoil()
    assert machine.run("disagg@.service", "bad") == [2]
    held = _map(machine, country, "held", gates={"min_gain": 1000.0})
    assert machine.run("disagg@.service", "held") == [3]
    shutil.rmtree(held.directory)

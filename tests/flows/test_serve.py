"""``make serve``: everything on one machine by one command, and nothing left when it ends."""

from __future__ import annotations

import json
import signal
import urllib.request

import pytest

from flows.login import LOGIN
from pipeline.publishing.versions import current_version


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_command_serves_a_map_and_leaves_nothing_running(start_server, make_map, free_port):
    made = make_map("served")
    home = start_server(start=False)  # its environment alone
    port = free_port()
    home.env["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
    home.login = home.env[LOGIN] = "somebody:secret"  # else the server makes one of its own
    more = ["--port", str(port), "--every", "1", "--cron", "0 0 1 1 *"]
    process = home._spawn("serve", "-m", "flows.serve", str(made.config), *more)
    published = made.out / "published"
    home.wait("a version", lambda: current_version(published) is not None, 300)
    found = home.get("/deployments/name/update-map/served")
    assert found["schedules"][0]["schedule"]["cron"] == "0 0 1 1 *"
    assert found["entrypoint"] == "flows.update.update_map"
    home.wait("its end", lambda: home.flow_runs("served")[0]["state_type"] == "COMPLETED")
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    with pytest.raises(OSError):  # noqa: PT011 (refused: nobody listens any more)
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=5)
    assert "served" in json.loads((published / "current" / "version.json").read_text())["name"]

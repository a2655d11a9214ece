"""`flows.serve` is shut to other pages, other users and runs with commands of their own."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_HOME,
    temporary_settings,
)

from flows import login
from flows.deploy import PROCESS, SERVED, deploy, unschedule
from flows.watch import _of_map
from pipeline.updates.arrivals import mark_seen, new_counts
from tests.flows.conftest import ENDED, Map
from tests.servers import running

pytestmark = pytest.mark.ci

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    for name in (login.LOGIN, "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "prefect"


def test_the_login_is_made_once_for_its_owner_alone(home: Path) -> None:
    made = login.made_login()
    user, _, password = made.partition(":")
    assert user == "disagg"
    assert len(password) > 40
    file = home / "disagg-login"
    assert file.stat().st_mode & 0o777 == 0o600
    assert login.made_login() == login.stored_login() == made
    file.chmod(0o640)  # others may read it: it is not used
    assert login.stored_login() is None
    with pytest.raises(FileExistsError):
        login.made_login()
    shutil.move(file, home / "elsewhere")
    (home / "elsewhere").chmod(0o600)
    file.symlink_to(home / "elsewhere")
    assert login.stored_login() is None


def test_the_login_is_for_this_machine_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = login.made_login()
    for url, given in (
        (None, True),
        ("http://127.0.0.1:4200/api", True),
        ("http://localhost:4200/api", True),
        ("https://prefect.example/api", False),
    ):
        monkeypatch.delenv(login.LOGIN, raising=False)
        if url is not None:
            monkeypatch.setenv("PREFECT_API_URL", url)
        login.use_stored_login()
        assert os.environ.get(login.LOGIN) == (made if given else None), url
        monkeypatch.setenv(login.LOGIN, "mine:own")
        login.use_stored_login()
        assert os.environ[login.LOGIN] == "mine:own"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_cannot_read_the_login(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        monkeypatch.setenv("PREFECT_HOME", directory)
        login.made_login()
        command = ["cat", str(login.login_file())]
        done = subprocess.run(command, user=65534, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Permission denied" in done.stderr


def test_runs_of_others_are_not_started_again() -> None:
    for config, variables, ours in (
        ("/a.yaml", {}, True),
        ("/a.yaml", None, True),
        ("/b.yaml", {}, False),
        ("/a.yaml", {"command": "touch mine"}, False),
    ):
        parameters = {"config": config, "period": "2024"}
        run: Any = SimpleNamespace(job_variables=variables, parameters=parameters)
        assert _of_map(run, "/a.yaml") is ours


# -- the server as it is started ---------------------------------------------------------------

PAGE = """<script>
fetch("{api}/deployments/name/update-map/doors")
  .then(r => r.json())
  .then(d => fetch("{api}/deployments/" + d.id + "/create_flow_run", {{method: "POST",
    headers: {{"Content-Type": "application/json"}},
    body: JSON.stringify({{parameters: {{}}, job_variables: {{command: "touch /tmp/opened"}}}})}}))
  .then(r => {{ document.title = "opened " + r.status }})
  .catch(e => {{ document.title = "shut: " + e.name }})
</script>"""


class Doors:
    """A server by `flows.serve`, its login, and requests to it."""

    def __init__(self, home: Any) -> None:
        self.url, self.home = home.env["PREFECT_API_URL"], home

    @property
    def login(self) -> str:
        return (Path(self.home.env["PREFECT_HOME"]) / "disagg-login").read_text().strip()

    def call(self, path: str, login: str | None = None, body: Any = None, **headers: str) -> Any:
        """Return status, headers and answer."""
        if login is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        data = None if body is None else json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, dict(answer.headers), json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), None

    def ask(self, path: str, body: Any = None) -> Any:
        """Return the answer to a request with the login."""
        return self.call(path, self.login, body)[2]


@pytest.fixture(scope="module")
def doors(
    start_server: Any, country: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Doors]:
    made = Map(tmp_path_factory.mktemp("doors") / "doors", country, "doors")
    for each in new_counts(made.config):
        mark_seen(made.config, each)  # else the watch starts a run of all stages
    home = start_server(start=False)  # its environment alone
    more = ["--port", str(home.port), "--every", "100000", "--cron", "0 0 1 1 *"]
    home._spawn("serve", "-m", "flows.serve", str(made.config), *more)
    found = Doors(home)
    home.wait("the deployment", lambda: found.ask("/deployments/name/update-map/doors"), 120)
    yield found
    home.stop()


def test_without_the_login_nothing_answers(doors: Doors) -> None:
    assert doors.call("/health")[0] == 200
    assert doors.call("/deployments/name/update-map/doors")[0] == 401
    assert doors.call("/deployments/name/update-map/doors", "disagg:guess")[0] == 401
    assert doors.login not in (doors.home.directory / "serve.log").read_text()
    template = doors.ask("/work_pools/maps")["base_job_template"]  # no command from a run
    assert template["job_configuration"] == PROCESS["job_configuration"]
    assert not template["variables"]["properties"]


def _state(run: dict[str, Any]) -> str:
    """Return the state of a run; of one that the server has just made, none yet."""
    return str((run["state"] or {}).get("type"))


@pytest.mark.timeout(400)  # a worker starts a run, of which there may be another
def test_a_run_with_a_command_of_its_own_does_not_execute_it(doors: Doors, tmp_path: Path) -> None:
    """Not even with the login: what a worker starts, the pool alone says."""
    found = doors.ask("/deployments/name/update-map/doors")
    marks = [tmp_path / "command", tmp_path / "env", tmp_path / "directory"]
    (tmp_path / "prefect.py").write_text(f"open({str(marks[2])!r}, 'w')\n")
    (tmp_path / "sitecustomize.py").write_text(f"open({str(marks[1])!r}, 'w')\n")
    variables = {
        "command": f"touch {marks[0]}",
        "env": {"PYTHONPATH": str(tmp_path)},
        "working_dir": str(tmp_path),
    }
    body = {"parameters": {"config": "/nowhere.yaml"}, "job_variables": variables}
    made = doors.ask(f"/deployments/{found['id']}/create_flow_run", body)
    # If the server takes the run at all, the worker starts it as any other: it finds no map.
    doors.home.wait(
        "the run's end",
        lambda: _state(doors.ask(f"/flow_runs/{made['id']}")) in ENDED,
        300,
    )
    state = doors.ask(f"/flow_runs/{made['id']}")["state"]
    assert "/nowhere.yaml" in state["message"]  # it ran, by the pool's own command
    assert not [each.name for each in marks if each.exists()]


def test_a_map_that_is_no_longer_served_loses_its_schedule(
    doors: Doors, country: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.deploy.SETTLE_S", 0.5)
    dropped, by_hand = (Map(tmp_path / x, country, x).config for x in ("dropped", "by-hand"))
    there = {
        PREFECT_API_URL: doors.url,
        PREFECT_API_AUTH_STRING: doors.login,
        PREFECT_HOME: tmp_path / "home",
    }
    with temporary_settings(there):
        deploy(str(dropped), "0 0 1 1 *", tags=[SERVED])
        deploy(str(by_hand), "0 0 1 1 *")
        assert unschedule(["update-map/doors"]) == ["update-map/dropped"]
    for name, number in (("dropped", 0), ("by-hand", 1), ("doors", 1)):
        found = doors.ask(f"/deployments/name/update-map/{name}")
        assert len(found["schedules"]) == number, name
        due = doors.ask("/flow_runs/filter", {"deployments": {"id": {"any_": [found["id"]]}}})
        assert number or not [each for each in due if each["auto_scheduled"]]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_page_of_another_origin_starts_no_run(doors: Doors) -> None:
    from playwright.sync_api import sync_playwright

    page = PAGE.format(api=doors.url).encode()

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: Any) -> None:
            pass

    server, asked = doors.url.removesuffix("/api"), []
    with running(ThreadingHTTPServer(("127.0.0.1", 0), Other)) as port:
        origin = f"http://127.0.0.1:{port}"
        allowed = doors.call("/health", Origin=origin)[1].get("access-control-allow-origin")
        assert allowed not in ("*", origin)
        user, _, password = doors.login.partition(":")
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            # A browser whose user is logged in, at the page of the server and by HTTP.
            context = browser.new_context(http_credentials={"username": user, "password": password})
            own = context.new_page()
            own.on("request", lambda request: asked.append(request.url))
            own.goto(server)
            own.wait_for_timeout(1000)
            shown = context.new_page()
            shown.goto(origin)
            shown.wait_for_function("document.title != ''", timeout=20_000)
            title = shown.title()
            browser.close()
    assert title.startswith("shut")
    # The page of the server speaks to nobody else.
    assert [url for url in asked if not url.startswith((server, "data:", "blob:"))] == []
    assert len(asked) > 1
    runs = doors.ask("/flow_runs/filter", {"deployments": {"name": {"any_": ["doors"]}}})
    runs = [run for run in runs if run["parameters"].get("config") != "/nowhere.yaml"]
    assert all(run["auto_scheduled"] for run in runs)
    assert not any(run["job_variables"] for run in runs)

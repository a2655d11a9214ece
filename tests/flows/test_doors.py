"""`flows.serve` is shut to other pages, other users and runs with commands of their own."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flows import login
from flows.deploy import PROCESS
from flows.watch import _of_map
from tests.flows.conftest import ENDED, ROOT, Map

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
    assert (home / "disagg-login").stat().st_mode & 0o777 == 0o600
    assert login.made_login() == login.stored_login() == made


def test_a_login_that_others_may_read_is_not_used(home: Path) -> None:
    login.made_login()
    (home / "disagg-login").chmod(0o640)
    assert login.stored_login() is None
    with pytest.raises(FileExistsError):
        login.made_login()
    shutil.move(home / "disagg-login", home / "elsewhere")
    (home / "elsewhere").chmod(0o600)
    (home / "disagg-login").symlink_to(home / "elsewhere")
    assert login.stored_login() is None


@pytest.mark.parametrize(
    ("url", "given"),
    [
        (None, True),
        ("http://127.0.0.1:4200/api", True),
        ("http://localhost:4200/api", True),
        ("https://prefect.example/api", False),
    ],
)
def test_the_login_is_for_this_machine_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, url: str | None, given: bool
) -> None:
    made = login.made_login()
    if url is not None:
        monkeypatch.setenv("PREFECT_API_URL", url)
    login.use_stored_login()
    assert os.environ.get(login.LOGIN) == (made if given else None)
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


@pytest.mark.parametrize(
    ("parameters", "variables", "ours"),
    [
        ({"config": "/a.yaml"}, {}, True),
        ({"config": "/a.yaml", "period": "2024"}, None, True),
        ({"config": "/b.yaml"}, {}, False),
        ({"config": "/a.yaml"}, {"command": "touch mine"}, False),
    ],
)
def test_runs_of_others_are_not_started_again(parameters: Any, variables: Any, ours: bool) -> None:
    class Run:
        job_variables = variables

    Run.parameters = parameters  # type: ignore[attr-defined]
    assert _of_map(Run(), "/a.yaml") is ours  # type: ignore[arg-type]


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

    def __init__(self, home: Any, port: int) -> None:
        self.url, self.home = f"http://127.0.0.1:{port}", home

    @property
    def login(self) -> str:
        return (Path(self.home.env["PREFECT_HOME"]) / "disagg-login").read_text().strip()

    def call(self, path: str, login: str | None = None, **headers: str) -> Any:
        """Return status, headers and answer."""
        if login is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        request = urllib.request.Request(f"{self.url}/api{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, dict(answer.headers), json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), None

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the answer to a request with the login."""
        token = base64.b64encode(self.login.encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {token}"}
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api{path}", data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())


@pytest.fixture(scope="module")
def doors(
    start_server: Any, country: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Doors]:
    made = Map(tmp_path_factory.mktemp("doors") / "doors", country, "doors")
    home = start_server(start=False)  # its environment alone
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    home.env["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
    more = ["--port", str(port), "--every", "100000", "--cron", "0 0 1 1 *"]
    home._spawn("serve", "-m", "flows.serve", str(made.config), *more)
    found = Doors(home, port)

    def deployed() -> bool:
        return found.call("/deployments/name/update-map/doors", found.login)[0] == 200

    home.wait("the deployment", deployed, 120)
    yield found
    home.stop()


def test_without_the_login_nothing_answers(doors: Doors) -> None:
    assert doors.call("/health")[0] == 200
    assert doors.call("/deployments/name/update-map/doors")[0] == 401
    assert doors.call("/deployments/name/update-map/doors", "disagg:guess")[0] == 401
    assert doors.login not in (doors.home.directory / "serve.log").read_text()


def test_a_pool_takes_no_command_from_a_run(doors: Doors) -> None:
    pool = doors.call("/work_pools/maps", doors.login)[2]
    assert pool["base_job_template"]["job_configuration"] == PROCESS["job_configuration"]
    assert not pool["base_job_template"]["variables"]["properties"]


@pytest.mark.timeout(400)  # a worker starts a run, of which there may be another
def test_a_run_with_a_command_of_its_own_does_not_execute_it(doors: Doors, tmp_path: Path) -> None:
    """Not even with the login: what a worker starts, the pool alone says."""
    found = doors.call("/deployments/name/update-map/doors", doors.login)[2]
    marks = [tmp_path / "command", tmp_path / "env", tmp_path / "directory"]
    (tmp_path / "prefect.py").write_text(f"open({str(marks[2])!r}, 'w')\n")
    (tmp_path / "sitecustomize.py").write_text(f"open({str(marks[1])!r}, 'w')\n")
    variables = {
        "command": f"touch {marks[0]}",
        "env": {"PYTHONPATH": str(tmp_path)},
        "working_dir": str(tmp_path),
    }
    body = {"parameters": {"config": "/nowhere.yaml"}, "job_variables": variables}
    made = doors.post(f"/deployments/{found['id']}/create_flow_run", body)
    # If the server takes the run at all, the worker starts it as any other: it finds no map.
    doors.home.wait(
        "the run's end",
        lambda: doors.call(f"/flow_runs/{made['id']}", doors.login)[2]["state"]["type"] in ENDED,
        300,
    )
    state = doors.call(f"/flow_runs/{made['id']}", doors.login)[2]["state"]
    assert "/nowhere.yaml" in state["message"]  # it ran, by the pool's own command
    assert not [each.name for each in marks if each.exists()]


def test_a_map_that_is_no_longer_served_loses_its_schedule(
    doors: Doors, country: Path, tmp_path: Path
) -> None:
    others = [Map(tmp_path / name, country, name).config for name in ("dropped", "by-hand")]
    code = (
        "import sys; from flows.deploy import SERVED, deploy, unschedule\n"
        "deploy(sys.argv[1], '0 0 1 1 *', tags=[SERVED]); deploy(sys.argv[2], '0 0 1 1 *')\n"
        "print(unschedule(['update-map/doors']))"
    )
    doors.home.env["PREFECT_API_AUTH_STRING"] = doors.login
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, others)],
        env=doors.home.env, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "['update-map/dropped']"
    for name, number in (("dropped", 0), ("by-hand", 1), ("doors", 1)):
        found = doors.call(f"/deployments/name/update-map/{name}", doors.login)[2]
        assert len(found["schedules"]) == number, name
        due = doors.post("/flow_runs/filter", {"deployments": {"id": {"any_": [found["id"]]}}})
        assert number or not [each for each in due if each["auto_scheduled"]]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_page_of_another_origin_starts_no_run(doors: Doors) -> None:
    from playwright.sync_api import sync_playwright

    page = PAGE.format(api=f"{doors.url}/api").encode()

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: Any) -> None:
            pass

    other = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{other.server_port}"
    allowed = doors.call("/health", Origin=origin)[1].get("access-control-allow-origin")
    assert allowed not in ("*", origin)
    user, _, password = doors.login.partition(":")
    asked: list[str] = []
    try:
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            # A browser whose user is logged in, at the page of the server and by HTTP.
            context = browser.new_context(http_credentials={"username": user, "password": password})
            own = context.new_page()
            own.on("request", lambda request: asked.append(request.url))
            own.goto(doors.url)
            own.wait_for_timeout(3000)
            shown = context.new_page()
            shown.goto(origin)
            shown.wait_for_function("document.title != ''", timeout=20_000)
            title = shown.title()
            browser.close()
    finally:
        other.shutdown()
        other.server_close()
    assert title.startswith("shut")
    # The page of the server speaks to nobody else.
    elsewhere = [url for url in asked if not url.startswith((doors.url, "data:", "blob:"))]
    assert not elsewhere
    runs = doors.post("/flow_runs/filter", {"deployments": {"name": {"any_": ["doors"]}}})
    runs = [run for run in runs if run["parameters"].get("config") != "/nowhere.yaml"]
    # The watch may have found the counts; nothing else may have started a run.
    assert all(run["auto_scheduled"] or "new-counts" in run["tags"] for run in runs)
    assert not any(run["job_variables"] for run in runs)

"""`flows.serve` is shut to other pages, other users and runs with commands of their own."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
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
from tests.flows.conftest import Map

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
    body = json.dumps({"deployments": {"name": {"any_": ["doors"]}}}).encode()
    request = urllib.request.Request(
        f"{doors.url}/api/flow_runs/filter",
        data=body,
        headers={
            "Content-Type": "application/json",
            "Authorization": "Basic " + base64.b64encode(doors.login.encode()).decode(),
        },
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        runs = json.loads(answer.read())
    # The watch may have found the counts; nothing else may have started a run.
    assert all(run["auto_scheduled"] or "new-counts" in run["tags"] for run in runs)
    assert not any(run["job_variables"] for run in runs)

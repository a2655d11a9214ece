"""A real Prefect server and workers on the loopback, and a map that is updated in seconds."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.demo.country import LAYERS, CountrySpec, simulate_country
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@pytest.fixture(scope="session", name="free_port")
def _free_port() -> Callable[[], int]:
    return free_port


class Server:
    """A Prefect server of its own, in a directory of its own, and its workers."""

    def __init__(self, directory: Path, database: str | None = None) -> None:
        self.directory = directory
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.login: str | None = None  # user:password
        lacking = str(ROOT / "tests/flows/lacking")
        paths = [str(ROOT), lacking, *filter(None, [os.environ.get("PYTHONPATH")])]
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")},
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            "PREFECT_HOME": str(directory / "prefect"),
            "PREFECT_API_URL": f"http://127.0.0.1:{self.port}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
            "PREFECT_LOGGING_LEVEL": "INFO",
        }
        if database is not None:
            self.env["PREFECT_API_DATABASE_CONNECTION_URL"] = database

    def start(self) -> Server:
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        self._spawn("server", "-m", "prefect", "server", "start", *where)
        self.wait("the server", lambda: self.get("/health") is True, 90)
        return self

    def worker(self, name: str = "worker", limit: int = 2) -> subprocess.Popen[bytes]:
        what = ["--pool", "maps", "--type", "process", "--limit", str(limit), "--name", name]
        return self._spawn(name, "-m", "prefect", "worker", "start", *what)

    def watch(self, *configs: Path, every: float = 1.0, grace: float = 2.0) -> Any:
        pace = ["--every", str(every), "--grace", str(grace)]
        return self._spawn("watch", "-m", "flows.watch", *map(str, configs), *pace)

    def run(self, *arguments: str) -> str:
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(command, env=self.env, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def deploy(self, *configs: Path, cron: str | None = None) -> list[str]:
        more = [] if cron is None else ["--cron", cron]
        return self.run("flows.deploy", *map(str, configs), *more).split()

    def trigger(self, deployment: str, **parameters: Any) -> str:
        found = self.get(f"/deployments/name/{deployment}")
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        made = self.post(f"/deployments/{found['id']}/create_flow_run", body)
        return str(made["id"])

    def flow_runs(self, name: str, *, scheduled: bool = False) -> list[dict[str, Any]]:
        """List the runs of a map's deployment: those of its schedule, or all others."""
        body = {"deployments": {"name": {"any_": [name]}}, "sort": "EXPECTED_START_TIME_ASC"}
        found: list[dict[str, Any]] = self.post("/flow_runs/filter", body)
        return [run for run in found if run["auto_scheduled"] is scheduled]

    def flow_run(self, number: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/flow_runs/{number}")
        return found

    def ended(self, number: str, within: float = 100) -> dict[str, Any]:
        self.wait(
            f"the end of {number}", lambda: self.flow_run(number)["state"]["type"] in ENDED, within
        )
        return self.flow_run(number)["state"]

    def task_runs(self, number: str) -> list[dict[str, Any]]:
        body = {"flow_runs": {"id": {"any_": [number]}}, "sort": "EXPECTED_START_TIME_ASC"}
        found: list[dict[str, Any]] = self.post("/task_runs/filter", body)
        return found

    def artifacts(self) -> dict[str, dict[str, Any]]:
        found = self.post("/artifacts/latest/filter", {})
        return {each["key"]: each for each in found}

    def set_state(self, number: str, **state: Any) -> None:
        self.post(f"/flow_runs/{number}/set_state", {"state": state, "force": False})

    def get(self, path: str) -> Any:
        return self._call(path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._call(path, json.dumps(body).encode())

    def _call(self, path: str, body: bytes | None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.login is not None:
            headers["Authorization"] = f"Basic {b64encode(self.login.encode()).decode()}"
        request = urllib.request.Request(
            self.env["PREFECT_API_URL"] + path, data=body, headers=headers
        )
        for pause in (
            0.5,
            1,
            2,
            4,
            0,
        ):  # SQLite is locked now and then: 503, as Prefect's clients know
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.loads(answer.read() or "null")
            except urllib.error.HTTPError as error:
                if error.code != 503 or not pause:
                    raise
                time.sleep(pause)
        return None

    def wait(self, what: str, holds: Callable[[], Any], within: float = 60) -> None:
        end = time.monotonic() + within
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if holds():
                    return
            time.sleep(0.2)
        logs = "".join(
            f"\n--- {path.name}\n{path.read_text()[-3000:]}"
            for path in self.directory.glob("*.log")
        )
        pytest.fail(f"waited {within} s for {what}{logs}")

    def _spawn(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env=self.env,
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        """Kill a process and what it started: a worker with its runs, as a power cut does."""
        for number in descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def stop(self) -> None:
        for process in reversed(self.processes):
            self.kill(process)
        for process in self.processes:
            process.wait()


def descendants(number: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{number}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Start servers, each with a directory and a database of its own; all end at the end."""
    made: list[Server] = []

    def begin(database: str | None = None, *, start: bool = True) -> Server:
        made.append(Server(tmp_path_factory.mktemp("server"), database))
        return made[-1].start() if start else made[-1]

    yield begin
    for each in made:
        each.stop()


@pytest.fixture(scope="session")
def _server(start_server: Callable[..., Server]) -> Server:
    """Start one server for all quick tests."""
    return start_server()


@pytest.fixture
def server(_server: Server) -> Iterator[Server]:
    """Give the one server; what a test has started beside it ends with the test.

    A worker and a watch that wait, and the server that they ask, take an eighth of a core.
    """
    n_before = len(_server.processes)
    yield _server
    for process in _server.processes[n_before:]:
        _server.kill(process)
        process.wait()
    del _server.processes[n_before:]


TINY = CountrySpec((48, 54), 1 / 6, 1300, 24, 12, 2e6, covariates=tuple(LAYERS)[:3], n_inducing=20)


@pytest.fixture(scope="session")
def country(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A country of 24 areas; its configuration is updated in seconds."""
    directory = tmp_path_factory.mktemp("country")
    simulate_country(directory, size=TINY, seed=3)
    return directory


class Map:
    """A copy of the country with a configuration of its own."""

    def __init__(self, directory: Path, country: Path, name: str, **sections: Any) -> None:
        shutil.copytree(country, directory)
        self.directory = directory
        self.config = directory / "disagg.yaml"
        data = yaml.safe_load(self.config.read_text())
        data |= {
            "name": name,
            "evaluate": {"folds": 2, "schemes": ["area"], "seed": 1},
            "compute": {"scheduler": "local", "workers": 1},
            # These tests are about runs, and four epochs make no map worth publishing.
            "gates": {"better_than_constant": False},
            "update": {"settle_s": 0, "retry_delay_s": 0.1},
        }
        data["fit"] |= {"max_epochs": 4}
        data["output"] |= {"draws": 50}
        data.pop("truth")
        for key, section in sections.items():
            both = isinstance(section, dict) and isinstance(data.get(key), dict)
            data[key] = {**data[key], **section} if both else section
        self.config.write_text(yaml.safe_dump(data), encoding="utf-8")

    def change(self, **sections: Any) -> None:
        """Replace sections of the configuration."""
        data = yaml.safe_load(self.config.read_text())
        self.config.write_text(yaml.safe_dump(data | sections), encoding="utf-8")

    @property
    def covariates(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(self.config.read_text())["covariates"]
        return found

    @property
    def out(self) -> Path:
        return self.directory / "out"

    @property
    def counts(self) -> Path:
        return self.directory / "cases.csv"

    def add_cases(self, number: int = 1) -> None:
        """Add cases to the first area, as a late report would."""
        lines = self.counts.read_text().splitlines()
        area, *rest, cases = lines[1].split(",")
        lines[1] = ",".join([area, *rest, str(int(cases) + number)])
        self.counts.write_text("\n".join(lines) + "\n")

    def spoil(self) -> None:
        lines = self.counts.read_text().splitlines()
        area = lines[1].split(",")[0]
        lines[1] = ",".join([area, *lines[1].split(",")[1:-1], "lots"])
        self.counts.write_text("\n".join(lines) + "\n")


@pytest.fixture
def make_map(tmp_path: Path, country: Path) -> Callable[..., Map]:
    def make(name: str = "tiny", **sections: Any) -> Map:
        return Map(tmp_path / name, country, name, **sections)

    return make

"""What befalls a map that is updated for years, on a real server with real workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import numpy as np
import pytest

from pipeline.publishing.versions import current_version, list_versions, open_versions
from pipeline.updates.arrivals import mark_seen, new_counts
from tests.bands import read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LONG = {"inducing": 60}, {"max_epochs": 400, "tolerance": 1e-9}


def alone(directory, env):
    """Run the same map without Prefect."""
    command = [sys.executable, "-m", "pipeline.cli", "run", str(directory / "disagg.yaml"), "-q"]
    subprocess.run(command, env=env, check=True)
    return read(directory / "out" / "rate_mean.tif")


def wait_for_epoch(server, made, least=3):
    def there():
        return any(
            int(path.name.split("-")[1]) >= least
            for path in made.out.glob("work/checkpoint/epoch-*.npz")
        )

    server.wait(f"epoch {least}", there, 100)


def logs(server, number):
    body = {"logs": {"flow_run_id": {"any_": [number]}}, "limit": 200}
    return [each["message"] for each in server.post("/logs/filter", body)]


@pytest.fixture(scope="module")
def server(start_server):
    made = start_server()
    yield made
    made.stop()


@pytest.fixture(scope="module", autouse=True)
def worker(server):
    return server.worker("first", limit=3)


def test_what_has_not_changed_is_cached(server, make_map):
    made = make_map("cached")
    (name,) = server.deploy(made.config)
    states = []
    for _ in range(2):
        number = server.trigger(name)
        assert server.ended(number)["type"] == "COMPLETED"
        states.append([each["state_name"] for each in server.task_runs(number)])
    assert states == [["Completed"] * 6, ["Cached"] * 5 + ["Completed"]]
    number = server.trigger(name, changes={"output": {"rate_per": 100}})
    assert server.ended(number)["type"] == "COMPLETED"
    assert [each["state_name"] for each in server.task_runs(number)] == [
        "Cached", "Cached", "Completed", "Cached", "Completed", "Completed",
    ]  # fmt: skip
    # Prefect still knows the first run's results, but their files are gone: made again.
    number = server.trigger(name)
    assert server.ended(number)["type"] == "COMPLETED"
    assert server.task_runs(number)[2]["state_name"] == "Completed"
    about = list_versions(made.out / "published")
    np.testing.assert_allclose(
        read(about[0].path / "rate_mean.tif"), 10 * read(about[1].path / "rate_mean.tif"),
        rtol=1e-6,
    )  # fmt: skip


def test_parameters_are_checked_as_the_configuration_is(server, make_map):
    made = make_map("checked")
    (name,) = server.deploy(made.config)
    number = server.trigger(name, changes={"fit": {"max_epoch": 3}})
    state = server.ended(number)
    assert state["type"] == "FAILED"
    assert "fit.max_epoch: unknown key; did you mean fit.max_epochs?" in state["message"]
    assert server.task_runs(number) == []


def test_a_schedule_starts_a_run(server, make_map):
    made = make_map("scheduled")
    server.deploy(made.config, cron="* * * * *")

    def done():
        runs = server.flow_runs("scheduled", scheduled=True)
        return [run for run in runs if run["state_type"] == "COMPLETED"]

    server.wait("a scheduled run", done, 200)
    assert current_version(made.out / "published").name == "v0001"
    server.run("prefect", "deployment", "delete", "update-map/scheduled")


def test_a_killed_worker_costs_nothing_but_an_epoch(server, make_map, worker):
    made = make_map("killed", model=LONG[0], fit=LONG[1])
    reference = make_map("reference", model=LONG[0], fit=LONG[1])
    (name,) = server.deploy(made.config)
    for each in new_counts(made.config):
        mark_seen(made.config, each)
    number = server.trigger(name)
    wait_for_epoch(server, made)
    for process in server.processes[1:]:
        server.kill(process)  # every worker with its runs, as a power cut does
    assert server.flow_run(number)["state"]["type"] == "RUNNING"
    server.worker("third", limit=3)
    # Longer than a process takes to come to its lock: a run that lives must not be started twice.
    server.watch(made.config, grace=25.0)
    state = server.ended(number, 300)
    assert state["type"] == "COMPLETED", state
    assert any("resumes from the checkpoint of epoch" in line for line in logs(server, number))
    assert server.flow_run(number)["run_count"] == 2
    got = read(made.out / "rate_mean.tif")
    np.testing.assert_array_equal(got, alone(reference.directory, server.env))


def test_cancelled_then_resumed(server, make_map):
    made = make_map("cancelled", model=LONG[0], fit=LONG[1])
    reference = make_map("reference", model=LONG[0], fit=LONG[1])
    (name,) = server.deploy(made.config)
    number = server.trigger(name)
    wait_for_epoch(server, made)
    server.set_state(number, type="CANCELLING")
    assert server.ended(number)["type"] == "CANCELLED"
    left = max(path.name for path in made.out.glob("work/checkpoint/epoch-*.npz"))
    time.sleep(2)
    assert left == max(path.name for path in made.out.glob("work/checkpoint/epoch-*.npz"))
    again = server.trigger(name)
    assert server.ended(again, 200)["type"] == "COMPLETED"
    assert any("resumes from the checkpoint of epoch" in line for line in logs(server, again))
    got = read(made.out / "rate_mean.tif")
    np.testing.assert_array_equal(got, alone(reference.directory, server.env))


@pytest.mark.parametrize("when_busy", ["skip", "queue"])
def test_two_triggers_at_once_give_one_run(server, make_map, when_busy):
    made = make_map(
        f"twice-{when_busy}", model=LONG[0], fit={"max_epochs": 150, "tolerance": 1e-9},
        update={"when_busy": when_busy},
    )  # fmt: skip
    (name,) = server.deploy(made.config)
    numbers = [server.trigger(name), server.trigger(name)]
    states = [server.ended(number, 200) for number in numbers]
    assert [state["type"] for state in states] == ["COMPLETED"] * 2
    said = sorted(state["name"] for state in states)
    assert said == (["Completed", "Skipped"] if when_busy == "skip" else ["Completed"] * 2)
    did = [[task["state_name"] for task in server.task_runs(number)][:5] for number in numbers]
    second = [] if when_busy == "skip" else ["Cached"] * 5
    assert sorted(did) == sorted([["Completed"] * 5, second])
    assert len(list_versions(made.out / "published")) == 1


def test_a_failed_gate_is_finished_not_fit_and_rollback(server, make_map, tmp_path):
    got = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(*args):
            pass

    hook = HTTPServer(("127.0.0.1", 0), Hook)
    thread = Thread(target=hook.serve_forever, args=(0.05,))
    thread.start()
    try:
        made = make_map(
            "gated",
            gates={"max_change": 0.1},
            notify={"webhook": f"http://127.0.0.1:{hook.server_address[1]}/"},
            metrics={"textfile": "prom"},
        )
        (name,) = server.deploy(made.config)
        assert server.ended(server.trigger(name))["name"] == "Completed"
        made.add_cases(100)
        assert server.ended(server.trigger(name))["name"] == "Completed"
        lines = made.counts.read_text().splitlines()
        rows = [line.rsplit(",", 1) for line in lines[1:]]
        more = [f"{area},{2 * int(n)}" for area, n in rows]
        made.counts.write_text("\n".join([lines[0], *more]) + "\n")
        state = server.ended(server.trigger(name))
        assert state["type"] == "COMPLETED"
        assert state["name"] == "Finished, not fit to publish"
        assert "change: the map changed by" in state["message"]
        server.wait("the message", lambda: got)
        assert got[0]["event"] == "gate"
        assert "change: the map changed by" in got[0]["text"]
    finally:
        hook.shutdown()
        hook.server_close()
        thread.join()
    published = made.out / "published"
    assert current_version(published).name == "v0002"
    text = (made.directory / "prom" / "disagg_gated.prom").read_text()
    assert 'disagg_runs_total{map="gated",outcome="held"} 1.0' in text
    open_versions(published).roll_back()
    assert os.readlink(published / "current") == "versions/v0001"


def test_a_range_of_periods(server, make_map):
    made = make_map("backfilled", counts={"path": "cases_{period}.csv"})
    for k, month in enumerate(["2026-01", "2026-02", "2026-03"]):
        made.add_cases(k)
        (made.directory / f"cases_{month}.csv").write_text(made.counts.read_text())
    code = (
        "import sys; from flows.backfill import backfill\n"
        "s = backfill(sys.argv[1], '2026-01', '2026-02', return_state=True)\n"
        "print(s.type.value); print(s.message)"
    )
    server.deploy(made.config)
    assert server.ended(server.trigger("update-map/backfilled"))["type"] == "COMPLETED"
    done = subprocess.run(
        [sys.executable, "-c", code, str(made.config)],
        env=server.env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("COMPLETED\n")
    versions = list_versions(made.out / "published")
    assert [version.period for version in versions] == ["2026-03", "2026-01", "2026-02"]
    assert current_version(made.out / "published").period == "2026-03"

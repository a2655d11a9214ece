"""The flows against a real server and a real worker, which this test starts."""

from __future__ import annotations

import pytest

from pipeline.publishing.versions import current_version


def logs(server, number):
    body = {"logs": {"flow_run_id": {"any_": [number]}}, "limit": 200}
    return [each["message"] for each in server.post("/logs/filter", body)]


# More than the usual limit: it starts a server, which takes a while on a busy machine.
@pytest.mark.ci
@pytest.mark.timeout(300)
def test_new_counts_start_a_run_that_is_published_and_bad_ones_fail_once(server, make_map):
    """CI's own: deploy, sense a counts file, finish; then one line for one bad cell."""
    sooner = {"model": {"integrate": "none"}, "evaluate": {"calibration": "none"}}
    made = make_map("sensed", gates={"min_gain": -100.0, "coverage": [0.0, 1.0]}, **sooner)
    assert server.deploy(made.config, cron="0 0 1 1 *") == ["update-map/sensed"]
    server.worker()
    server.watch(made.config, grace=25.0)  # starts of seconds are no deaths
    # A year's first minute is far away, but the server has to have put the run down.
    server.wait("the schedule", lambda: server.flow_runs("sensed", scheduled=True), 60)
    server.wait("a run", lambda: server.flow_runs("sensed"), 60)
    (run,) = server.flow_runs("sensed")
    state = server.ended(run["id"])
    assert (state["type"], state["name"]) == ("COMPLETED", "Completed"), state
    assert "published as v0001" in state["message"]
    tasks = {each["name"].split("-")[0]: each["state_name"] for each in server.task_runs(run["id"])}
    assert tasks == dict.fromkeys(
        ["ingest", "fit", "predict", "evaluate", "report", "publish"], "Completed"
    )
    shown = server.artifacts()
    assert {"sensed-map", "sensed-evaluation", "sensed-fit"} <= set(shown)
    page = shown["sensed-map"]["data"]
    assert page.startswith("![sensed](data:image/jpeg;base64,")
    assert "| held-out gain | at least -100 nats an area |" in page
    assert str(made.out / "published" / "versions" / "v0001" / "rate_mean.tif") in page
    assert any(line.startswith("sensed: ingest: 24 areas") for line in logs(server, run["id"]))

    made.spoil()
    server.wait("a second run", lambda: len(server.flow_runs("sensed")) == 2, 60)
    bad = server.flow_runs("sensed")[-1]
    state = server.ended(bad["id"])
    assert state["type"] == "FAILED"
    assert state["message"].startswith(f"counts ({made.counts}) row 2 (id AR0001: 'lots'): ")
    assert len(state["message"].splitlines()) == 1
    (only,) = server.task_runs(bad["id"])
    assert (only["state_name"], only["run_count"]) == ("Failed", 1)
    assert current_version(made.out / "published").name == "v0001"
    assert len(server.flow_runs("sensed")) == 2

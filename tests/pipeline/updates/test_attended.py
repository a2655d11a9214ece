"""`disagg run` without Prefect: retries, metrics, notifications and log lines."""

import json
import logging
import re
import sys
import threading
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from geo.core.errors import InputError, Problem
from pipeline.cli.main import main
from pipeline.core.errors import ClusterError, StoreError
from pipeline.publishing.metrics import OUTCOMES
from pipeline.updates.retry import JITTER, RetryPolicy
from tests.pipeline.cli.test_cli import GOOD, project, replace_stage  # noqa: F401 (a fixture)
from tests.pipeline.storage.s3_server import Weather, request, stormy
from tests.typed import edit

AWAY = ClusterError("tcp://host:8786: does not answer; start the scheduler")


def test_waits_double_and_only_passing_errors_are_tried_again():
    policy, waits, told = RetryPolicy(3, 10.0), [], []
    assert policy.delays() == [10.0, 20.0, 40.0]
    errors = [AWAY, TimeoutError("slow")]

    def work():
        if errors:
            raise errors.pop(0)
        return "done"

    def tell(error, wait, number):
        told.append((type(error), number))

    assert policy.call(work, tell, waits.append) == "done"
    assert told == [(ClusterError, 1), (TimeoutError, 2)]
    for wait, delay in zip(waits, [10.0, 20.0], strict=True):
        assert delay <= wait <= delay * (1 + JITTER)
    for bad in (StoreError("damaged"), InputError(Problem("a", "b", "c")), KeyError("k")):
        errors[:] = [bad]
        with pytest.raises(type(bad)):
            policy.call(work, tell, waits.append)
    errors[:] = [AWAY] * 5
    with pytest.raises(ClusterError):
        policy.call(work, tell, waits.append)
    assert len(errors) == 1  # one call and three retries


def test_the_flows_follow_the_same_policy(project):  # noqa: F811
    pytest.importorskip("prefect")
    from flows.tasks import _retry_options
    from pipeline.config.reader import load_config

    configure(project, "update: {retries: 2, retry_delay_s: 7}")
    config = load_config(project / "run.yaml")
    options = _retry_options(config)
    policy = RetryPolicy.of(config)
    assert options["retry_delay_seconds"] == policy.delays() == [7.0, 14.0]
    assert options["retries"] == 2
    configure(project, "update: {retries: 0}")
    assert _retry_options(load_config(project / "run.yaml"))["retries"] == 0


def configure(directory, *lines):
    text = "\n".join([GOOD.rstrip(), "name: little", *lines]) + "\n"
    (directory / "run.yaml").write_text(text, encoding="utf-8")


@pytest.fixture
def hook():
    """Run a server that collects what is posted to it; give its address and the bodies."""
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", bodies
    server.shutdown()
    server.server_close()
    thread.join()


def failing(monkeypatch, times):
    """Have the fit fail so many times as if its cluster were away; count its calls."""
    calls, work = [], sys.modules["pipeline.training.stage"].fit_stage

    def fit(context):
        calls.append(1)
        if len(calls) <= times:
            raise AWAY
        return work(context)

    monkeypatch.setattr(sys.modules["pipeline.training.stage"], "fit_stage", fit)
    return calls


def metrics(directory):
    text = (directory / "disagg_little.prom").read_text()
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_a_passing_failure_is_retried_where_it_was(project, monkeypatch, capsys, hook):  # noqa: F811
    url, bodies = hook
    configure(
        project,
        "update: {retries: 2, retry_delay_s: 0.01}",
        f"notify: {{webhook: '{url}'}}",
        "metrics: {textfile: prom}",
    )
    calls = failing(monkeypatch, 2)
    assert main(["run", str(project / "run.yaml"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert len(calls) == 3
    stages = json.loads(out)["stages"]
    names = ["ingest", "fit", "predict", "evaluate", "report"]
    assert [each["name"] for each in stages] == names
    assert not any(each["skipped"] for each in stages)  # ingest ran once, before the failure
    assert err.count("ingest at work") == 1
    assert re.findall(r"retry (\d) of 2 in 0 s", err) == ["1", "2"]
    assert bodies == []  # it ended well
    found = metrics(project / "prom")
    assert found['disagg_runs_total{map="little",outcome="finished"}'] == 1
    assert found['disagg_stage_skipped{map="little",stage="ingest"}'] == 0
    assert main(["run", str(project / "run.yaml")]) == 0
    found = metrics(project / "prom")
    assert found['disagg_runs_total{map="little",outcome="finished"}'] == 1
    assert found['disagg_runs_total{map="little",outcome="unchanged"}'] == 1
    assert found['disagg_stage_skipped{map="little",stage="fit"}'] == 1
    assert {"finished", "unchanged"} <= set(OUTCOMES)


def test_a_failure_that_stays_is_75_and_is_notified(project, monkeypatch, capsys, hook):  # noqa: F811
    url, bodies = hook
    configure(
        project,
        "update: {retries: 1, retry_delay_s: 0.01}",
        f"notify: {{webhook: '{url}'}}",
        "metrics: {textfile: prom}",
    )
    calls = failing(monkeypatch, 9)
    assert main(["run", str(project / "run.yaml")]) == 75
    assert len(calls) == 2
    err = capsys.readouterr().err
    assert err.splitlines()[-1].startswith("error: tcp")
    (body,) = bodies
    assert body["event"] == "failure"
    assert body["map"] == "little"
    assert body["text"].startswith("little: Failed\ndisagg run: ")
    assert "host:8786" in body["text"]
    assert metrics(project / "prom")['disagg_runs_total{map="little",outcome="failed"}'] == 1


def test_bad_inputs_are_notified_too_and_not_retried(project, capsys, hook):  # noqa: F811
    url, bodies = hook
    configure(project, f"notify: {{webhook: '{url}'}}", "metrics: {textfile: prom}")
    (project / "cases.csv").unlink()
    assert main(["run", str(project / "run.yaml")]) == 2
    assert "retry" not in capsys.readouterr().err
    (body,) = bodies
    assert "cases.csv" in body["text"]
    assert metrics(project / "prom")['disagg_runs_total{map="little",outcome="failed"}'] == 1


def test_an_alert_that_reaches_nobody_is_never_hidden(project, capsys, tmp_path):  # noqa: F811
    url = "http://127.0.0.1:9/hook"  # nobody listens
    configure(project, f"notify: {{webhook: '{url}'}}", "metrics: {textfile: prom}")
    (project / "cases.csv").unlink()
    log = tmp_path / "log.jsonl"
    more = ["--quiet", "--log-format", "json", "--log-file", str(log)]
    assert main(["run", str(project / "run.yaml"), *more]) == 2
    assert "warning: notify.webhook" in capsys.readouterr().err
    levels = [json.loads(line)["level"] for line in log.read_text().splitlines()]
    assert levels.count("warning") == 1
    assert metrics(project / "prom")['disagg_alerts_failed{map="little"}'] == 1


def test_an_interruption_is_no_failure(project, monkeypatch, hook):  # noqa: F811
    url, bodies = hook
    configure(project, f"notify: {{webhook: '{url}'}}", "metrics: {textfile: prom}")
    replace_stage(monkeypatch, KeyboardInterrupt())
    assert main(["run", str(project / "run.yaml")]) == 130
    assert bodies == []
    assert metrics(project / "prom")['disagg_runs_total{map="little",outcome="cancelled"}'] == 1


def test_a_store_that_fails_twice(project, bucket, s3, monkeypatch, capsys):  # noqa: F811
    class Twice(Weather):
        def strike(self, method, path):
            with self._lock:
                what = "error" if sum(each[2] == "error" for each in self.log) < 2 else "pass"
                self.log.append((method, path, what))
            return what

    request(s3, "PUT", f"/{bucket}/cases.csv", b"id,cases\na,1\n")
    weather = Twice()
    with stormy(s3, weather) as endpoint:
        configure(
            project,
            f"storage: {{endpoint: '{endpoint}', retries: 0}}",
            "update: {retries: 3, retry_delay_s: 0.01}",
        )
        edit(project / "run.yaml", {"cases.csv": f"s3://{bucket}/cases.csv"})
        assert main(["run", str(project / "run.yaml")]) == 0
    assert weather.count("error") == 2
    err = capsys.readouterr().err
    assert re.findall(r"retry (\d) of 3", err) == ["1", "2"]
    assert f"s3://{bucket}/cases.csv: cannot be" in err


def test_json_lines_on_standard_error(project, monkeypatch, capsys):  # noqa: F811
    configure(project, "update: {retries: 1, retry_delay_s: 0.01}")
    edit(project / "run.yaml", {"cases.csv": "'cases_{period}.csv'"})
    (project / "cases.csv").rename(project / "cases_2024-03.csv")
    failing(monkeypatch, 1)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # Prefect's, of an earlier test
    assert main(["run", str(project / "run.yaml"), "--log-format", "json", "-v"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    for record in records:
        assert datetime.fromisoformat(record["time"]).utcoffset().total_seconds() == 0
        assert (record["map"], record["period"]) == ("little", "2024-03")
    messages = [record["message"] for record in records]
    assert any("retry 1 of 1" in message for message in messages)
    assert any(message.startswith("evaluate: done in") for message in messages)
    assert {r.get("logger") for r in records} >= {"pipeline.run.runner"}  # with --verbose
    (project / "precipitation.tif").unlink()
    assert main(["run", str(project / "run.yaml"), "--log-format", "json", "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert record["level"] == "error"
    assert "precipitation.tif" in record["message"]


def test_a_log_file_is_appended_to_beside_the_usual_lines(project, monkeypatch, capsys):  # noqa: F811
    configure(project)
    log = project / "logs" / "runs.log"
    for _ in range(2):
        assert main(["run", str(project / "run.yaml"), "--log-file", str(log)]) == 0
    assert "fit at work" in capsys.readouterr().err
    lines = log.read_text().splitlines()
    assert sum(line.endswith("INFO little: fit at work") for line in lines) == 1
    assert sum(line.endswith("INFO little: fit: up to date, skipped") for line in lines) == 1
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 ", line) for line in lines)
    replace_stage(monkeypatch, ZeroDivisionError("a defect"))
    (project / "run.yaml").write_text((project / "run.yaml").read_text() + "fit: {seed: 3}\n")
    command = ["run", str(project / "run.yaml"), "--log-file", str(log), "--log-format", "json"]
    assert main(command) == 1
    record = json.loads(log.read_text().splitlines()[-1])
    assert record["level"] == "error"
    assert "ZeroDivisionError" in record["traceback"]
    assert "Traceback" in capsys.readouterr().err
    assert main([*command[:2], "--log-file", str(project)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {project}: cannot be written to")


def test_long_tasks_have_lines_of_their_progress(monkeypatch):
    import io

    from pipeline.updates import log_lines, map_run

    stream, now = io.StringIO(), [0.0]
    monkeypatch.setattr(map_run.time, "monotonic", lambda: now[0])
    progress = log_lines.RunLog("json", stream).progress()
    with progress.task("fit", 10) as task:
        for _ in range(10):
            now[0] += 12.0
            task.advance(1, bound=-1.5)
    with progress.task("predict", 3) as task:  # short: no line
        task.advance(3)
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [record["percent"] for record in records] == [30.0, 60.0, 90.0, 100.0]
    assert records[0]["message"] == "fit: 30 %, bound -1.5"
    assert {record["task"] for record in records} == {"fit"}

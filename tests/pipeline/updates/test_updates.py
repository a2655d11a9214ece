"""What a run needs that nobody watches: a lock, sensing, figures, messages, another try."""

import errno
import json
import os
import signal
import socketserver
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prometheus_client.parser import text_string_to_metric_families

from geo.core.errors import InputError, Problem
from pipeline.config.reader import load_config
from pipeline.core.errors import ClusterError, StoreError
from pipeline.publishing.metrics import RunMetrics, record_run
from pipeline.publishing.notify import send_notification
from pipeline.storage.location import Storage, StorageError
from pipeline.storage.lock import MapBusyError, exclusive, hold_map, is_held, is_locked
from pipeline.updates.arrivals import known_periods, mark_seen, new_counts, read_state
from pipeline.updates.map_run import MapRun, PercentProgress, error_message, slug
from pipeline.updates.recovery import RecoveryAction, recovery_action
from pipeline.updates.retry import is_transient
from tests.command import Command
from tests.pipeline.storage.s3_server import Weather, new_bucket, request, stormy
from tests.servers import running

HOLDER = """
import sys, time
from pathlib import Path
from pipeline.storage.lock import hold_map
with hold_map(Path(sys.argv[1]), "run one"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    process = Command(tmp_path, code=HOLDER)
    process.wait_for("held")
    yield process
    process.kill()


def test_a_map_is_one_processs_until_it_dies(tmp_path, holder):
    with pytest.raises(MapBusyError, match="run one") as caught, hold_map(tmp_path, "run two"):
        pass
    assert f"process {holder.pid}" in caught.value.owner
    with pytest.raises(InputError, match=r"run one \(.*\) is writing here"), exclusive(tmp_path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert not is_locked(tmp_path)
    with hold_map(tmp_path, "run two"), exclusive(tmp_path):
        assert is_held(tmp_path)
        assert is_locked(tmp_path)
    assert not is_held(tmp_path)


def test_the_second_waits_where_it_is_asked_to(tmp_path, holder):
    waited = []

    def free(owner):
        waited.append(owner)
        holder.kill()

    with hold_map(tmp_path, "run two", when_busy="queue", on_wait=free, poll_s=0.01):
        assert is_locked(tmp_path)
    assert [owner.split(" (")[0] for owner in waited] == ["run one"]


def test_a_lock_is_a_runs_not_its_process_s(tmp_path):
    other = []

    def try_to():
        with pytest.raises(MapBusyError), hold_map(tmp_path, "run two"):
            pass
        other.append(is_held(tmp_path))

    with hold_map(tmp_path, "run one"):
        thread = threading.Thread(target=try_to)
        thread.start()
        thread.join()
    assert other == [False]


def age(path, seconds=60):
    past = time.time() - seconds
    os.utime(path, (past, past))


def test_new_counts_are_sensed_once_without_reading(files, monkeypatch):
    path = files.written()
    counts = files.directory / "cases.csv"
    assert new_counts(path) == []  # written this moment: perhaps not yet whole
    age(counts)
    (first,) = new_counts(path)
    assert (first.address, first.period) == (str(counts), None)
    mark_seen(path, first)
    assert new_counts(path) == []
    files.cases["M00"] = "77"
    files.counts()
    age(counts, 30)
    opened = []
    sys.addaudithook(
        lambda event, args: opened.append(args[0]) if event == "open" and not done else None
    )
    done = []
    (second,) = new_counts(path)
    done.append(True)
    assert second.token != first.token
    assert str(counts) not in map(str, opened)
    counts.unlink()
    assert new_counts(path) == []


def test_periods_that_arrive(files):
    path = files.written(counts={"path": "cases_{period}.csv", "value": "cases"})
    text = (files.directory / "cases.csv").read_text()

    def deliver(month):
        counts = files.directory / f"cases_{month}.csv"
        counts.write_text(text)
        age(counts)

    assert new_counts(path) == []  # watched before the first has come
    for month in ("2025-11", "2025-12", "2026-01"):
        deliver(month)
    (first,) = new_counts(path)  # history is for a backfill
    assert first.period == "2026-01"
    mark_seen(path, first)
    deliver("2026-02")
    deliver("2026-03")
    assert [each.period for each in new_counts(path)] == ["2026-02", "2026-03"]


def test_an_object_is_known_by_its_etag():
    import fsspec

    system = fsspec.filesystem("memory")
    system.pipe("/bucket/cases.csv", b"id,cases\n")
    storage = Storage()
    before = read_state("memory://bucket/cases.csv", storage)
    assert before == read_state("memory://bucket/cases.csv", storage)
    system.pipe("/bucket/cases.csv", b"id,cases\na,1\n")
    assert read_state("memory://bucket/cases.csv", storage) != before
    assert read_state("memory://bucket/none.csv", storage) is None


@pytest.fixture
def delivered(s3, files):
    """Deliver two months to a bucket; give it, and what puts a month there."""
    bucket, text = new_bucket(s3), (files.directory / "cases.csv").read_bytes()

    def deliver(key, data=text):
        status, _ = request(s3, "PUT", f"/{bucket}/{key}", data)
        assert status == 200

    return bucket, deliver


def test_the_watch_reaches_a_store_as_the_run_does(files, s3, delivered, monkeypatch):
    # Nothing in the environment says where the store is: `storage.endpoint` does.
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    bucket, deliver = delivered
    with stormy(s3, Weather(seed=2, error=0.3)) as through:
        counts = {"path": f"s3://{bucket}/in/cases_{{period}}.csv", "value": "cases"}
        path = files.written(
            counts=counts, storage={"endpoint": through, "retries": 8, "timeout": 10}
        )
        assert new_counts(path) == []
        deliver("in/cases_2026-01.csv")
        deliver("in/cases_2026-02.csv")
        deliver("in/other/cases_2026-03.csv")
        assert known_periods(path) == ["2026-01", "2026-02"]
        assert load_config(path).period == "2026-02"
        (first,) = new_counts(path)
        assert first.address == f"s3://{bucket}/in/cases_2026-02.csv"
        mark_seen(path, first)
        assert new_counts(path) == []
        deliver("in/cases_2026-02.csv", b"code,cases\nM00,1\n")
        (again,) = new_counts(path)
        assert again.token != first.token


def test_the_watch_gives_up_when_the_run_would(files, s3, delivered, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    bucket, deliver = delivered
    deliver("cases.csv")
    sky = Weather(error=1.0)
    with stormy(s3, sky) as through:
        path = files.written(
            counts={"path": f"s3://{bucket}/cases.csv", "value": "cases"},
            storage={"endpoint": through, "retries": 2},
        )
        with pytest.raises(StorageError, match="after 3 attempts"):
            new_counts(path)
    assert sky.count("error") == 3


def test_periods_of_a_table_and_of_prefixes_on_a_store(files, s3, delivered, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    bucket, deliver = delivered
    rows = [f"{month},{area},3" for month in ("2026-02", "2026-01") for area in files.cases]
    deliver("table.csv", "\n".join(["m,code,cases", *rows]).encode())
    deliver("2026-05/cases.csv")
    deliver("2026-06/cases.csv")
    storage = {"endpoint": s3, "timeout": 10, "scratch": str(tmp_path / "scratch")}
    table = {"path": f"s3://{bucket}/table.csv", "value": "cases", "period": "m"}
    path = files.written(counts=table, storage=storage)
    assert known_periods(path) == ["2026-01", "2026-02"]
    folders = {"path": f"s3://{bucket}/{{period}}/cases.csv", "value": "cases"}
    path = files.written(counts=folders, storage=storage)
    assert known_periods(path) == ["2026-05", "2026-06"]


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ClusterError("the cluster has no worker"), True),
        (ConnectionResetError(errno.ECONNRESET, "reset"), True),
        (TimeoutError(), True),
        (OSError(errno.EIO, "input/output error"), True),
        (OSError(errno.ENOSPC, "no space"), False),
        (PermissionError(errno.EACCES, "no"), False),
        (InputError(Problem("cases.csv row 7", "'lots' is no count", "give a number")), False),
        (
            InputError(Problem("compute.scheduler", "none answers", "start it", transient=True)),
            True,
        ),
        (InputError(Problem("compute.scheduler", "needs a package", "install it")), False),
        (StoreError("bags.zarr: damaged"), False),
        (MemoryError(), False),
        (ZeroDivisionError(), False),
    ],
)
def test_what_may_pass_by_itself(error, passes):
    assert is_transient(error) is passes


def test_figures_go_on_counting(files):
    config = load_config(files.written(metrics={"textfile": "prom"}, name="my map"))
    stages = {"ingest": (1.5, False), "fit": (20.0, True)}
    for outcome in ("published", "published", "held"):
        run = RunMetrics(outcome, stages, {"coverage": 0.9})
        assert record_run(config, run, 22.0, 2) == []
    text = (files.directory / "prom" / "disagg_my_map.prom").read_text()
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["disagg_runs_total", "my map", "published"] == 2
    assert found["disagg_runs_total", "held", "my map"] == 1
    assert found["disagg_stage_seconds", "ingest", "my map"] == 1.5
    assert found["disagg_stage_skipped", "fit", "my map"] == 1
    assert found["disagg_gate", "coverage", "my map"] == 0.9
    ended = found["disagg_last_run_timestamp_seconds", "my map"]
    assert 0 < found["disagg_last_good_run_timestamp_seconds", "my map"] < ended


class Posts(BaseHTTPRequestHandler):
    got: list = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    do_PUT = do_POST

    def log_message(self, *args):
        pass


@pytest.fixture
def posts():
    Posts.got.clear()
    with running(HTTPServer(("127.0.0.1", 0), Posts)) as port:
        yield port


def test_figures_are_pushed(files, posts):
    gateway = f"127.0.0.1:{posts}"
    config = load_config(files.written(metrics={"pushgateway": gateway}, name="m"))
    assert record_run(config, RunMetrics("failed"), 1.0) == []
    assert Posts.got[0][0] == "/metrics/job/disagg/map/m"
    assert b'disagg_runs_total{map="m",outcome="failed"} 1.0' in Posts.got[0][1]
    config = load_config(files.written(metrics={"pushgateway": "127.0.0.1:1"}))
    assert "metrics.pushgateway (127.0.0.1:1)" in record_run(config, RunMetrics("failed"), 1.0)[0]


class Mail(socketserver.StreamRequestHandler):
    got: list = []

    def handle(self):
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            word = line[:4].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = iter(self.rfile.readline, b".\r\n")
                self.got.append(b"".join(lines).decode())
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
            if word == b"QUIT":
                return


def test_people_are_told(files, posts):
    Mail.got.clear()
    with running(socketserver.TCPServer(("127.0.0.1", 0), Mail)) as port:
        email = {"to": ["duty@example.org"], "sender": "maps@example.org", "host": "127.0.0.1"}
        email["encryption"] = "none"
        config = load_config(
            files.written(
                notify={
                    "on": ["failure", "gate"],
                    "webhook": f"http://127.0.0.1:{posts}/hook",
                    "email": {**email, "port": port},
                },
            )
        )
        assert send_notification(config, "gate", "held back", "coverage: 0.5") == []
        assert send_notification(config, "late", "late", "not asked for") == []
    (path, body), *more = Posts.got
    assert (path, more) == ("/hook", [])
    assert json.loads(body) == {
        "text": "held back\ncoverage: 0.5",
        "map": "disagg",
        "event": "gate",
    }
    (mail,) = Mail.got
    assert "Subject: held back" in mail
    assert "To: duty@example.org" in mail
    assert "coverage: 0.5" in mail


def test_who_cannot_be_told_stops_nothing_and_secrets_stay_secret(files, monkeypatch):
    monkeypatch.setenv("MAIL_PASSWORD", "hunter2")
    email = {"to": ["a@b.org"], "sender": "c@b.org", "host": "127.0.0.1", "port": 1}
    config = load_config(
        files.written(
            notify={
                "webhook": "http://127.0.0.1:1/token-4711",
                "email": {**email, "password": "${MAIL_PASSWORD}"},
            },
        )
    )
    troubles = send_notification(config, "failure", "failed", "why")
    assert [line.split(":")[0] for line in troubles] == ["notify.webhook", "notify.email"]
    said = json.dumps(config.model_dump(mode="json")) + "".join(troubles) + repr(config)
    assert "hunter2" not in said
    assert "4711" not in said


def test_a_run_without_its_lock_is_dead(files):
    config = load_config(files.written(update={"retries": 2}))
    long_ago = datetime.now(UTC) - timedelta(seconds=30)

    def act(state="RUNNING", since=long_ago, times=1):
        return recovery_action(config, state, since, times, grace_s=20, n_checks=2, interval_s=0.01)

    assert act() is RecoveryAction.RETRY
    assert act(times=4) is RecoveryAction.GIVE_UP
    assert act("CANCELLING") is RecoveryAction.CANCELLED
    assert (
        act(since=datetime.now(UTC)) is RecoveryAction.NONE
    )  # it may not have come to its lock yet
    assert act("PENDING") is RecoveryAction.NONE  # its process may still be starting
    with hold_map(config.output.dir, "it, or the one it waits for"):
        assert act() is RecoveryAction.NONE


def test_percentages_come_now_and_then_and_at_the_end():
    said, shown = [], []
    progress = PercentProgress(
        "my map 2026-03", said.append, lambda name: name, lambda *a: shown.append(a), 0
    )
    with progress.task("fit", 4) as task:
        task.advance(1, bound=-1.5)
    with progress.task("unknown", None) as task:
        task.advance(1)
    progress.log("fit: goes on")
    assert said == ["my map 2026-03: fit: goes on"]
    assert shown == [("fit", 25.0, "bound -1.5"), ("fit", 100.0, "bound -1.5")]
    shown.clear()
    rare = PercentProgress("m", said.append, lambda name: name, lambda *a: shown.append(a), 60)
    with rare.task("fit", 1000) as task:
        for _ in range(1000):
            task.advance(1)
    assert [percent for _, percent, _ in shown] == [100.0]


def test_a_run_is_addressed_not_carried(files):
    path = files.written(counts={"path": "cases_{period}.csv", "value": "cases"})
    text = (files.directory / "cases.csv").read_text()
    (files.directory / "cases_2026-01.csv").write_text(text)
    run = MapRun(str(path), changes={"fit": {"seed": 9}})
    config = run.load()
    assert (config.period, config.fit.seed) == ("2026-01", 9)
    fixed = replace(run, period=config.period)
    (files.directory / "cases_2026-02.csv").write_text(text)  # arrives while the run is on
    assert fixed.load().period == "2026-01"
    assert run.load().period == "2026-02"
    assert slug("Malaria, Nord", "2026-01") == "malaria-nord-2026-01"
    assert error_message(InputError(Problem("a", "b", "c"))) == "a: b; c"
    assert error_message(ZeroDivisionError()) is None
    assert "free some space" in error_message(OSError(errno.ENOSPC, "No space left", "x.tif"))

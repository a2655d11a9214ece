"""Servers that accept the connection and never answer are given up, with a line that names them."""

import time

import pytest
import yaml

from geo.tables import web_table
from pipeline.cli.main import main
from pipeline.config.schema import Config
from pipeline.publishing import notify
from pipeline.publishing.notify import send_notification
from tests.pipeline.cli.hanging import silent_server

WITHIN_S = 30.0  # of a command, with its start


def checked(files, capsys, **sections):
    """Check with some sections changed; return status, seconds and the lines of errors."""
    path = files.directory / "silent.yaml"
    path.write_text(yaml.safe_dump(files.mapping() | {"update": {"retries": 0}} | sections))
    started = time.monotonic()
    status = main(["check", str(path), "--quiet"])
    return status, time.monotonic() - started, capsys.readouterr().err


@pytest.mark.slow
def test_a_raster(files, capsys):
    """Its server is asked for the state of the file, before GDAL with a limit of its own is."""
    with silent_server() as port:
        wave = {"path": f"http://127.0.0.1:{port}/wave.tif"}
        covariates = {**files.mapping()["covariates"], "wave": wave}
        storage = {"timeout": 0.3, "retries": 1}
        status, seconds, lines = checked(files, capsys, covariates=covariates, storage=storage)
    assert status == 75
    assert f"covariates.wave (http://127.0.0.1:{port}/wave.tif): cannot be reached" in lines
    assert seconds < WITHIN_S


def test_a_table(files, capsys, monkeypatch):
    monkeypatch.setattr(web_table, "TIMEOUT_S", 0.2)
    with silent_server() as port:
        counts = {"path": f"http://127.0.0.1:{port}/cases.csv", "value": "cases"}
        status, seconds, lines = checked(files, capsys, counts=counts)
    assert status == 75  # it was 2: "cannot be read as a table"
    assert f"counts (http://127.0.0.1:{port}/cases.csv): cannot be reached (timed out)" in lines
    assert seconds < WITHIN_S


def test_an_object_store(files, capsys, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "any")
    with silent_server() as port:
        storage = {"endpoint": f"http://127.0.0.1:{port}", "timeout": 0.3, "retries": 1}
        counts = {"path": "s3://bucket/cases.csv", "value": "cases"}
        status, seconds, lines = checked(files, capsys, counts=counts, storage=storage)
    assert status == 75
    assert "s3://bucket/cases.csv: cannot be looked up after 2 attempts" in lines
    assert seconds < WITHIN_S


def test_a_webhook_and_a_mail_server(files, monkeypatch):
    monkeypatch.setattr(notify, "TIMEOUT_S", 0.2)
    with silent_server() as port:
        ways = {
            "webhook": f"http://127.0.0.1:{port}/",
            "email": {"to": ["a@b.org"], "sender": "c@b.org", "host": "127.0.0.1", "port": port},
        }
        config = Config.model_validate({**files.mapping(), "notify": ways})
        started = time.monotonic()
        hook, mail = send_notification(config, "failure", "subject", "text")
        assert time.monotonic() - started < WITHIN_S
    assert hook.startswith("notify.webhook: TimeoutError: timed out")
    assert mail == "notify.email: 127.0.0.1: Connection unexpectedly closed: timed out"

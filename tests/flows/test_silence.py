"""A server of Prefect that accepts the connection and never answers is given up, with a line."""

import pytest
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import deploy, login, watch
from tests.pipeline.cli.hanging import silent_server


@pytest.fixture
def silent(monkeypatch):
    monkeypatch.setattr(login, "ANSWER_S", 0.2)
    with (
        silent_server() as port,
        temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}),
    ):
        yield


def test_deploy_gives_up(silent, country, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["deploy", str(country / "disagg.yaml")])
    assert deploy.main() == 75
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: Prefect's server does not answer (timed out)")


def test_the_watch_says_so_and_goes_on(silent, country, monkeypatch, capsys):
    class Enough(Exception):
        pass

    rounds = []

    def sleep(_):
        rounds.append(1)
        if len(rounds) == 2:
            raise Enough

    monkeypatch.setattr(watch.time, "sleep", sleep)
    with pytest.raises(Enough):
        watch.watch([str(country / "disagg.yaml")], None, 1.0, 1.0)
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["timed out"] * 2


def test_a_watch_without_a_deployment_says_what_to_start(country, monkeypatch, capsys):
    def missing(*_):
        raise ObjectNotFound(http_exc=ValueError())

    monkeypatch.setattr(watch.watch_map, "fn", missing)
    monkeypatch.setattr(watch, "check_server", lambda: None)
    assert not watch.watch([str(country / "disagg.yaml")], None, None, 1.0)
    (line,) = capsys.readouterr().out.splitlines()
    assert "the server has no deployment of this map" in line
    assert "python -m flows.serve" in line

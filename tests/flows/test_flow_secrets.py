"""What a flow run leaves (Prefect's database, its storage, logs, the map) holds no secret."""

from __future__ import annotations

import http.server
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.publishing.versions import current_version
from tests.pipeline.cli.test_planted_secrets import (
    HOOK,
    MAIL,
    PASSWORD,
    SECRETS,
    SIGNATURE,
    USER,
    Rasters,
)
from tests.servers import running

LOGIN = "planted-login-4711"
CLOUD = "planted-cloud-4711"
ALL = (*SECRETS, LOGIN, CLOUD)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def planted_in(directory: Path) -> list[str]:
    return [
        f"{path.relative_to(directory)}: {secret}"
        for path in directory.rglob("*")
        if path.is_file() and not path.is_symlink()
        for secret in ALL
        if secret.encode() in path.read_bytes()
    ]


def test_a_flow_keeps_them_to_itself(start_server: Any, make_map: Any) -> None:
    made = make_map("secret")
    with running(
        http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), partial(Rasters, directory=made.directory)
        )
    ) as port:
        name, covariate = next(iter(made.covariates.items()))
        address = f"http://${{PLANTED_LOGIN}}@127.0.0.1:{port}/{covariate['path']}"
        made.change(
            covariates={
                **made.covariates,
                name: {**covariate, "path": f"{address}?sig={SIGNATURE}"},
            },
            notify={
                "webhook": "${PLANTED_HOOK}",
                "email": {
                    "to": ["a@b.org"],
                    "sender": "c@b.org",
                    "host": "127.0.0.1",
                    "port": 1,
                    "user": "u",
                    "password": "${PLANTED_MAIL}",
                },
            },
        )
        server = start_server(start=False)
        server.login = f"mapper:{LOGIN}"
        server.env |= {
            "PLANTED_LOGIN": f"{USER}:{PASSWORD}",
            "PLANTED_HOOK": f"http://127.0.0.1:1/{HOOK}",
            "PLANTED_MAIL": MAIL,
            "AWS_SECRET_ACCESS_KEY": CLOUD,
            "PREFECT_API_AUTH_STRING": server.login,
            "PREFECT_SERVER_API_AUTH_STRING": server.login,
        }
        server.start()
        server.deploy(made.config)
        server.worker()
        state = server.ended(server.trigger("update-map/secret"), 200)
        assert state["type"] == "COMPLETED", state
        # And one that fails, tells whom it can, and cannot.
        made.spoil()
        failed = server.ended(server.trigger("update-map/secret"), 200)
        assert failed["type"] == "FAILED"
    assert current_version(made.out / "published") is not None
    server.stop()  # its database is then whole on the disk
    assert list((server.directory / "prefect").glob("prefect.db"))
    assert planted_in(server.directory) == []
    assert planted_in(made.out) == []


def test_the_scan_finds_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "prefect.db").write_bytes(b"\0..." + LOGIN.encode() + b"\0")
    assert planted_in(tmp_path) == [f"deep/prefect.db: {LOGIN}"]

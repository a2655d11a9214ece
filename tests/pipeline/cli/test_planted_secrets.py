"""Secrets planted in a configuration are in no file and no line that a run writes."""

import base64
import http.server
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.command import disagg
from tests.servers import running

SECRETS = tuple(f"planted-{what}-4711" for what in ("user", "password", "sign", "hook", "mail"))
USER, PASSWORD, SIGNATURE, HOOK, MAIL = SECRETS


class Rasters(http.server.SimpleHTTPRequestHandler):
    """Serves rasters to those who know the password and the signature."""

    def do_GET(self):
        basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") != f"Basic {basic}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif f"sig={SIGNATURE}" not in self.path:
            self.send_error(403)
        else:
            super().do_GET()

    do_HEAD = do_GET

    def send_head(self):
        self.path = self.path.partition("?")[0]
        return super().send_head()

    def log_message(self, *_):
        pass


@pytest.fixture
def server(files):
    handler = partial(Rasters, directory=files.directory)
    with running(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as port:
        yield port


@pytest.fixture
def config(files, server, monkeypatch):
    monkeypatch.setenv("PLANTED_MAIL", MAIL)

    def address(name, signature=SIGNATURE):
        return f"http://{USER}:{PASSWORD}@127.0.0.1:{server}/{name}?sig={signature}"

    mapping = files.mapping() | {
        "model": {"inducing": 8},
        "fit": {"max_epochs": 2},
        "output": {"dir": str(files.directory / "out"), "draws": 20},
        "evaluate": {"folds": 2, "schemes": ["area"]},
        "notify": {
            "webhook": f"http://127.0.0.1:1/{HOOK}",
            "email": {
                "to": ["a@b.org"],
                "sender": "c@b.org",
                "user": "u",
                "password": "${PLANTED_MAIL}",
            },
        },
        "metrics": {"textfile": str(files.directory / "out" / "metrics")},
    }
    mapping["covariates"]["wave"] = {"path": address("wave.tif")}
    path = files.directory / "disagg.yaml"

    def write(**changes):
        path.write_text(yaml.safe_dump(mapping | changes))
        return path

    write.address = address
    write()
    return write


def said(*words):
    done = disagg(*words)
    text = done.stdout + done.stderr
    assert [secret for secret in SECRETS if secret in text] == [], text
    return done


def planted_in(directory: Path) -> list[str]:
    """Return the files that hold a secret, as text or packed by no more than gzip's headers."""
    return [
        f"{path.relative_to(directory)}: {secret}"
        for path in directory.rglob("*")
        if path.is_file()
        for secret in SECRETS
        if secret.encode() in path.read_bytes()
    ]


@pytest.mark.ci
def test_a_run_keeps_them_to_itself(files, config):
    path = config()
    done = said("check", path)
    assert done.returncode == 0, done.stderr
    done = said("run", "-v", path)
    assert done.returncode == 0, done.stderr
    done = said("publish", path, "--force")
    assert done.returncode == 0, done.stderr
    out = files.directory / "out"
    assert (out / "run.json").is_file()
    assert "***@127.0.0.1" in (out / "run.json").read_text()
    assert planted_in(out) == []


@pytest.mark.parametrize("wrong", ["signature", "name", "counts"])
def test_neither_does_an_error_tell_them(files, config, wrong):
    if wrong == "signature":
        bad = {"wave": {"path": config.address("wave.tif", f"{SIGNATURE[:-1]}x")}}
        path = config(covariates=bad)
    elif wrong == "name":
        path = config(covariates={"wave": {"path": config.address("waves.tif")}})
    else:
        path = config(counts={"path": config.address("cases.csv", "none"), "value": "cases"})
    done = said("run", path)
    assert done.returncode == 2, done.stderr
    assert "127.0.0.1" in done.stderr
    assert planted_in(files.directory / "out") == []

"""Clusters from the configuration: processes of this machine, an address, TLS; and none there."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from distributed import LocalCluster
from distributed.security import Security

import models
from geo.errors import InputError
from pipeline.cli.main import main
from pipeline.cluster.cluster import open_cluster
from pipeline.config.compute_schema import Compute
from pipeline.config.reader import load_config

ROOT = Path(__file__).parents[3]


def _run(files: Any, out: str, **compute: Any) -> Path:
    mapping = {
        **files.mapping(),
        "model": {"inducing": 5},
        "fit": {"max_epochs": 3, "batch_areas": 4, "seed": 1},
        "evaluate": {"folds": 3, "schemes": ["area"]},
        "compute": compute,
        "update": {"retries": 0},
        "output": {"dir": str(files.directory / out), "draws": 20},
    }
    path: Path = files.directory / f"{out}.yaml"
    path.write_text(yaml.safe_dump(mapping))
    return path


def _assert_same(files: Any, one: str, other: str) -> None:
    fitted = [models.load(files.directory / out / "work/model") for out in (one, other)]
    for name, value in fitted[0].state_.params.items():
        np.testing.assert_array_equal(value, fitted[1].state_.params[name])
    reports = [
        json.loads((files.directory / o / "evaluation.json").read_text()) for o in (one, other)
    ]
    assert reports[0]["held_out"] == reports[1]["held_out"]


@pytest.mark.ci
def test_processes_give_what_threads_give(files):
    assert main(["run", str(_run(files, "threads")), "--quiet"]) == 0
    processes = _run(files, "processes", scheduler="processes", workers=2)
    assert main(["run", str(processes), "--quiet"]) == 0
    _assert_same(files, "threads", "processes")


def test_no_scheduler_there_is_one_line(files, capsys, monkeypatch):
    monkeypatch.setattr("pipeline.cluster.cluster.CONNECT_SECONDS", 0.3)
    path = _run(files, "nowhere", scheduler="tcp://127.0.0.1:9")
    assert main(["run", str(path), "--quiet"]) == 75  # it may be there a minute later
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: compute.scheduler: no scheduler answers at tcp://127.0.0.1:9")


def test_an_address_that_is_none_is_refused(files):
    with pytest.raises(InputError, match="give 'local', 'processes' or an address"):
        load_config(_run(files, "wrong", scheduler="clusters"))
    with pytest.raises(InputError, match=r"compute.tls and a scheduler at tls://"):
        load_config(_run(files, "wrong", scheduler="tls://host:8786"))


@pytest.mark.ci
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_over_tls_with_certificates_that_the_script_makes(files):
    certificates = files.directory / "tls"
    subprocess.run(["sh", str(ROOT / "infra/certificates.sh"), str(certificates)], check=True)
    assert sorted(p.name for p in certificates.iterdir()) == ["ca.pem", "cert.pem", "key.pem"]
    tls = {key: str(certificates / f"{key}.pem") for key in ("ca", "cert", "key")}
    security = Security(
        tls_ca_file=tls["ca"],
        require_encryption=True,
        **{
            f"tls_{role}_{key}": tls[key]
            for role in ("client", "scheduler", "worker")
            for key in ("cert", "key")
        },
    )
    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        security=security,
        protocol="tls://",
        dashboard_address=":0",
        host="127.0.0.1",
    ) as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        path = _run(files, "secure", scheduler=address, tls=tls)
        assert main(["run", str(path), "--quiet"]) == 0
        # Somebody without the certificates does not get in.
        with (
            pytest.raises(InputError, match="no scheduler answers"),
            open_cluster(Compute(scheduler=address.replace("tls", "tcp"))),
        ):
            pass
    assert main(["run", str(_run(files, "threads")), "--quiet"]) == 0
    _assert_same(files, "threads", "secure")


def test_local_workers_and_their_dashboard_listen_on_loopback_alone():
    import psutil

    with open_cluster(Compute(scheduler="processes", workers=1)) as client:
        assert client is not None
        me = psutil.Process()
        processes = [me, *me.children(recursive=True)]
        listening = [
            connection.laddr.ip
            for process in processes
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
    assert len(listening) >= 3  # scheduler, dashboard, worker
    assert set(listening) == {"127.0.0.1"}

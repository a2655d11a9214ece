"""Clusters from the configuration: processes of this machine, an address, TLS; and none there."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from distributed import LocalCluster
from distributed.security import Security

import models
from geo.core.errors import InputError
from pipeline.cli.main import main
from pipeline.cluster.cluster import check_scheduler, open_cluster
from pipeline.config.compute_schema import Compute
from pipeline.config.reader import load_config
from pipeline.ingest import prepare
from pipeline.store.bag_store import StoreLayout
from pipeline.updates.retry import RetryPolicy
from tests.pipeline.conftest import Files
from tests.typed import run_each

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("forked_workers")


def _run(files: Any, out: str, **compute: Any) -> Path:
    mapping = {
        **files.mapping(),
        # Steps of the workers: a fit of so few pixels to its optimum would be the driver's alone.
        "model": {"inducing": 5, "options": {"posterior_steps": "adam"}},
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


@pytest.fixture(scope="module", autouse=True)
def _several_blocks():
    """Have several blocks in a tiny store: of a single one workers would compute nothing."""
    layout = StoreLayout(block_pixels=150, chunk_pixels=64, shard_pixels=512)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "write_bags", partial(prepare.write_bags, layout=layout))
        yield


@pytest.fixture(scope="module")
def threads(tmp_path_factory):
    """The files of a map, and what threads give of it."""
    files = Files(tmp_path_factory.mktemp("threads"))
    _stages(_run(files, "threads"))
    return files


def _stages(path):
    """Run what is compared: each stage starts its cluster anew."""
    run_each(path, "ingest", "fit", "evaluate")


@pytest.mark.ci
def test_processes_give_what_threads_give(threads):
    _stages(_run(threads, "processes", scheduler="processes", workers=2))
    _assert_same(threads, "threads", "processes")


@pytest.fixture
def silent():
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("there", [False, True])
def test_no_scheduler_there_is_one_line_at_once(files, capsys, monkeypatch, silent, there):
    monkeypatch.setattr("pipeline.cluster.cluster.CONNECT_SECONDS", 0.3)
    address = silent if there else "tcp://127.0.0.1:9"
    path = _run(files, "nowhere", scheduler=address)
    path.write_text(path.read_text().replace("retries: 0", "retry_delay_s: 100"))
    started = time.monotonic()
    assert main(["run", str(path), "--quiet"]) == 75  # it may be there a minute later
    assert time.monotonic() - started < 90  # the delay before another try is longer
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: compute.scheduler: no scheduler answers at {address}")
    assert not (files.directory / "nowhere" / "work" / "bags.zarr").exists()  # before ingest


def test_a_scheduler_that_was_there_is_waited_for(monkeypatch):
    """It may be starting again."""
    monkeypatch.setattr("pipeline.cluster.cluster.CONNECT_SECONDS", 0.1)
    policy, waits, compute = RetryPolicy(2, 0.0), [], Compute(scheduler="tcp://127.0.0.1:9")
    for answered, expected in ((set(), 0), ({compute.scheduler}, 2)):
        monkeypatch.setattr("pipeline.cluster.cluster._ANSWERED", answered)
        waits.clear()
        with pytest.raises(InputError, match="no scheduler answers"):
            policy.call(
                lambda: check_scheduler(compute), lambda *_: waits.append(1), lambda _: None
            )
        assert len(waits) == expected


def test_an_address_that_is_none_is_refused(files):
    with pytest.raises(InputError, match="give 'local', 'processes' or an address"):
        load_config(_run(files, "wrong", scheduler="clusters"))
    with pytest.raises(InputError, match=r"compute.tls and a scheduler at tls://"):
        load_config(_run(files, "wrong", scheduler="tls://host:8786"))


@pytest.mark.ci
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_over_tls_with_certificates_that_the_script_makes(threads):
    files = threads
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
        _stages(path)
        # Somebody without the certificates does not get in.
        with (
            pytest.raises(InputError, match="no scheduler answers"),
            open_cluster(Compute(scheduler=address.replace("tls", "tcp"))),
        ):
            pass
    _assert_same(files, "threads", "secure")

"""What the image holds, run as the image runs it: nobody, a read-only root, one writable volume.

There is no container engine here. debootstrap stands in for the base image; everything else comes
from infra/image/install.sh, which the Dockerfile calls too. ``$DISAGG_ROOT`` names a root file
system that infra/image/rootfs.sh has made already.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.storage.s3_server import KEYS, moto_server, new_bucket, request

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "infra/image"
NOBODY = 65534

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Make the root file system of the image."""
    if os.getuid() != 0:
        pytest.skip("needs root for debootstrap and chroot")
    if (made := os.environ.get("DISAGG_ROOT")) is not None:
        return Path(made)
    if shutil.which("debootstrap") is None:
        pytest.skip("no debootstrap here (Debian: apt-get install debootstrap)")
    directory = tmp_path_factory.mktemp("image") / "root"
    version = subprocess.check_output(["sh", IMAGE / "version.sh"], text=True).strip()
    done = subprocess.run(
        ["sh", IMAGE / "rootfs.sh", directory],
        env={**os.environ, "VERSION": version},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return directory


@pytest.fixture(scope="module")
def data(root, tmp_path_factory):
    directory = tmp_path_factory.mktemp("volume")
    os.chown(directory, NOBODY, NOBODY)
    for parent in list(directory.parents)[:3]:
        parent.chmod(parent.stat().st_mode | 0o111)
    return directory


@pytest.fixture(scope="module")
def inside(root, data):
    """Return a function that runs a command in the root."""

    def run(*command: str, volume: Path | None = None, **env: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["sh", IMAGE / "enter.sh", root, volume or data, *command],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=900,
        )

    return run


@pytest.fixture(scope="module")
def demo(inside, data):
    """Simulate the small country inside; its fit is short: the way is tested, not the map."""
    done = inside("disagg", "demo", "/data/demo")
    assert done.returncode == 0, done.stderr
    config = data / "demo/disagg.yaml"
    text = re.sub(r"max_epochs: \d+", "max_epochs: 5", config.read_text())
    text = text.replace("folds: 5", "folds: 2").replace("[area, block]", "[area]")
    config.write_text(text + "\ngates: {better_than_constant: false}\n")
    return config


def test_the_version_names_the_commit(inside):
    printed = inside("disagg", "--version").stdout.strip()
    assert re.fullmatch(r"disagg 0\.1\.0\+g[0-9a-f]{7,}(\.dirty)?", printed)


def test_nobody_writes_anywhere_but_in_the_volume(inside):
    script = (
        "id -u; for d in / /tmp /opt/disagg /etc /var/tmp /data; do touch $d/x && echo $d; done"
    )
    done = inside("sh", "-c", script)
    assert done.stdout.split() == [str(NOBODY), "/data"]


def test_a_volume_that_nobody_may_write_is_one_line(inside, tmp_path):
    for directory in (tmp_path, *list(tmp_path.parents)[:2]):
        directory.chmod(0o755)
    done = inside("disagg", "--version", volume=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: /data cannot be written to by user 65534; mount a volume")


def test_a_run(inside, demo):
    done = inside("disagg", "run", "/data/demo/disagg.yaml")
    assert done.returncode == 0, done.stderr
    record = json.loads((demo.parent / "out/run.json").read_text())
    assert re.search(r"\+g[0-9a-f]{7,}", record["versions"]["disagg"])
    assert not list((demo.parent / "out").rglob("*.py[co]"))


def test_a_batch_job_of_an_address(root, inside, demo, monkeypatch):
    for key, value in KEYS.items():
        monkeypatch.setenv(key, value)
    with moto_server() as endpoint:
        bucket = new_bucket(endpoint)
        for path in filter(Path.is_file, demo.parent.iterdir()):
            assert (
                request(endpoint, "PUT", f"/{bucket}/my/{path.name}", path.read_bytes())[0] == 200
            )
        address = f"s3://{bucket}/my/disagg.yaml"
        # NETWORK=host: the store is a process of this machine.
        done = inside("disagg", "run", address, NETWORK="host", AWS_ENDPOINT_URL=endpoint)
        assert done.returncode == 0, done.stderr
        status, remote = request(endpoint, "GET", f"/{bucket}/my/out/rate_mean.tif")
    assert status == 200
    assert remote == (demo.parent / "out/rate_mean.tif").read_bytes()


def test_a_flow_run(inside, demo, data):
    shutil.copy(Path(__file__).with_name("flow_in_image.py"), data)
    done = inside("python", "/data/flow_in_image.py", "/data/demo/disagg.yaml")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["name"] == "Completed", done.stderr[-3000:]
    assert (demo.parent / "out/published/current/version.json").exists()


def test_dask_workers_and_a_scheduler_start(inside):
    script = (
        "dask scheduler --host 127.0.0.1 --port 8786 & "
        "dask worker tcp://127.0.0.1:8786 --nthreads 1 --no-dashboard & "
        'python -c "import distributed; c = distributed.Client(\\"tcp://127.0.0.1:8786\\"); '
        'c.wait_for_workers(1, timeout=60); print(c.submit(sum, [1, 2]).result())"'
    )
    done = inside("sh", "-c", script)
    assert done.stdout.split()[-1:] == ["3"], done.stderr


def test_the_bill_of_materials_is_that_of_the_environment(root):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = (root / "opt/disagg/share/sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {(c["name"], c["version"]) for c in json.loads(text)["components"]}
    locked = set(re.findall(r"^(\S+)==(\S+) ", (IMAGE / "requirements.txt").read_text(), re.M))
    assert {pin for pin in locked if pin[0] != "setuptools"} <= listed
    assert {name for name, _ in listed} >= {"libc6", "libexpat1", "python3.11", "numpy"}
    rows = (root / "opt/disagg/share/licences.tsv").read_text().splitlines()
    assert len(rows) == len(listed) + 2  # the heading, and disagg itself


def test_the_same_script_makes_the_image():
    docker = (ROOT / "infra/Dockerfile").read_text()
    assert re.findall(r"install\.sh (\w+)", docker) == ["system", "tools", "build"]
    assert sys.version_info[:2] == (3, 11)

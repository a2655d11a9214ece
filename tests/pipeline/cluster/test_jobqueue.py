"""Workers as jobs of Slurm and PBS: scripts, a whole run by dask-jobqueue's local runner, losses.

No batch system is at hand: ``sbatch`` and ``scancel`` that start and kill processes stand in.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import dask
import pytest
import rasterio
from dask_jobqueue.local import LocalCluster
from distributed.cli import dask_worker
from distributed.security import Security

from geo.core.errors import InputError
from pipeline.cli.main import main
from pipeline.cluster import jobqueue
from pipeline.cluster.cluster import open_cluster
from pipeline.config.compute_schema import Compute
from tests.pipeline.cluster.test_cluster import _assert_same, _run

JOBS = {"system": "slurm", "walltime": "1-02:30:00", "queue": "batch", "account": "malaria"}
REFUSES = "#!/bin/sh\necho 'sbatch: error: invalid account' >&2\nexit 1\n"
JOBS |= {"directives": ["--constraint=ib"], "prologue": ["module load python"]}


def _compute(device: str = "auto", **wanted: object) -> Compute:
    size = {"workers": 2, "threads": 2, "memory": "8GiB", "device": device}
    return Compute(scheduler="jobqueue", jobqueue={**JOBS, **wanted}, **size)


def _script(compute: Compute, tmp_path: Path) -> list[str]:
    """Return the lines of a job as dask-jobqueue submits it."""
    files = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key")}
    for path in files.values():
        Path(path).touch()
    worker = {f"tls_worker_{name}": files[name] for name in ("cert", "key")}
    security = Security(tls_ca_file=files["ca"], require_encryption=True, **worker)
    options = jobqueue.job_options(compute, security)
    options.pop("scheduler_options")
    name = jobqueue.SYSTEMS[compute.jobqueue.system][0].replace("Cluster", "Job")
    made = getattr(sys.modules[f"dask_jobqueue.{compute.jobqueue.system}"], name)(
        "tls://10.0.0.1:8786", name="w", **options
    )
    lines = made.job_script().splitlines()
    parsed = dask_worker.main.make_context("worker", lines[-1].split()[3:])  # raises if unknown
    assert parsed.params["tls_key"] == files["key"]
    assert (parsed.params["nthreads"], parsed.params["memory_limit"]) == (2, "8.00GiB")
    # Five minutes before the queue would kill it, and not all at the same time.
    assert (parsed.params["lifetime"], parsed.params["lifetime_stagger"]) == ("95100s", "150s")
    exports = [line for line in lines if line.startswith("export")]
    assert "export OMP_NUM_THREADS=1" in exports
    assert lines.index("module load python") == len(lines) - 2
    return lines


def test_a_job_of_slurm(tmp_path):
    assert {
        "#SBATCH -J disagg", "#SBATCH -p batch", "#SBATCH -A malaria", "#SBATCH -n 1",
        "#SBATCH --cpus-per-task=2", "#SBATCH --mem=8G", "#SBATCH -t 26:30:00",
        "#SBATCH --constraint=ib",
    } < set(_script(_compute(), tmp_path))  # fmt: skip
    gpu = _script(_compute("gpu"), tmp_path)
    assert "#SBATCH --gres=gpu:1" in gpu
    assert "--resources GPU=1" in gpu[-1]


def test_a_job_of_pbs(tmp_path):
    wanted = {"system": "pbs", "directives": ["-m n"], "local_dir": "/scratch"}
    lines = _script(_compute(**wanted), tmp_path)
    assert {
        "#PBS -N disagg", "#PBS -q batch", "#PBS -A malaria", "#PBS -l walltime=26:30:00",
        "#PBS -l select=1:ncpus=2:mem=8192MB", "#PBS -m n",
    } < set(lines)  # fmt: skip
    assert "--local-directory /scratch" in lines[-1]
    gpu = _script(_compute("gpu", **wanted), tmp_path)
    assert "#PBS -l select=1:ncpus=2:ngpus=1:mem=8192mb" in gpu


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"walltime": "2 hours"}, "walltime"),
        ({"walltime": "0:00:30"}, "under a minute"),
        ({"system": "lsf"}, "system"),
    ],
)
def test_a_section_that_no_queue_takes_is_refused(section, told):
    with pytest.raises(ValueError, match=told):
        _compute(**section)
    with pytest.raises(ValueError, match="one without the other"):
        Compute(scheduler="jobqueue")
    with pytest.raises(ValueError, match="without the size of a worker"):
        Compute(scheduler="jobqueue", workers=1, jobqueue=JOBS)


def test_what_is_missing_is_one_line(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    no_command = r"^compute.jobqueue.system: slurm, and no sbatch .*; start the run where"
    with pytest.raises(InputError, match=no_command), open_cluster(_compute()):
        pass
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    no_package = r"needs the package dask-jobqueue; pip install 'disagg\[jobqueue\]'"
    with pytest.raises(InputError, match=no_package), open_cluster(_compute()):
        pass


@pytest.mark.slow  # three stages start two workers each
# The local runner leaves the pipes of its programs open.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_local_runner_gives_what_threads_give(files, tmp_path, monkeypatch):
    def local(account, job_script_prologue, **options):
        return LocalCluster(**options)  # starts a program, no script

    monkeypatch.setitem(sys.modules, "dask_jobqueue", SimpleNamespace(SLURMCluster=local))
    monkeypatch.setitem(jobqueue.SYSTEMS, "slurm", ("SLURMCluster", "sh"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    jobs = {**JOBS, "dir": str(tmp_path / "shared")}
    size = {"workers": 2, "threads": 1, "memory": "1GiB"}
    assert main(["run", str(_run(files, "threads")), "--quiet"]) == 0
    path = _run(files, "jobs", scheduler="jobqueue", jobqueue=jobs, **size)
    assert main(["run", str(path), "--quiet"]) == 0
    _assert_same(files, "threads", "jobs")
    rasters = sorted(path.name for path in (files.directory / "threads").glob("*.tif"))
    assert "rate_mean.tif" in rasters
    for name in rasters:
        with (
            rasterio.open(files.directory / "threads" / name) as here,
            rasterio.open(files.directory / "jobs" / name) as there,
        ):
            assert here.read().tobytes() == there.read().tobytes(), name
    assert not list((tmp_path / "shared").glob(".dask-jobqueue*"))  # certificates of the run
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o700


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Put a queue of this machine on PATH; its jobs are process groups of the ids in ``jobs``."""
    programs = {
        # A queue keeps a copy of the script: its writer removes it.
        "sbatch": 'cp "$1" "$0.$$"; setsid bash "$0.$$" >/dev/null 2>&1 & echo $! >> "$0.jobs"; '
        'echo "Submitted batch job $!"',
        "scancel": 'kill -TERM -- "-$1"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    yield tmp_path
    jobs = tmp_path / "sbatch.jobs"
    for number in map(int, jobs.read_text().split() if jobs.exists() else ()):
        with pytest.raises(ProcessLookupError):  # cancelled at the end of the run
            until(lambda number=number: os.killpg(number, 0))


def until(done, seconds: float = 60):
    end = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < end
        time.sleep(0.2)
    return found


@pytest.mark.ci
def test_a_job_that_ends_is_submitted_again(slurm, monkeypatch):
    monkeypatch.setattr(jobqueue, "LOOK_S", 0.5)
    wanted = {"prologue": ["export MAP=tiny"], "dir": str(slurm / "shared")}
    accepts = (slurm / "sbatch").read_text()
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "500ms"}),
        open_cluster(_compute(**wanted)) as client,
    ):
        assert client.scheduler.address.startswith("tls://")
        client.wait_for_workers(2, timeout=60)
        assert set(client.run(lambda: os.environ["MAP"]).values()) == {"tiny"}
        first = (slurm / "sbatch.jobs").read_text().split()
        assert len(first) == 2
        before = set(client.scheduler_info(n_workers=-1)["workers"])
        (slurm / "sbatch").write_text(REFUSES)  # for a while
        os.killpg(int(first[0]), signal.SIGKILL)  # its time is over, or its node lost
        time.sleep(2)
        (slurm / "sbatch").write_text(accepts)

        def replaced() -> bool:
            now = set(client.scheduler_info(n_workers=-1)["workers"])
            return len(now) == 2 and now != before

        until(replaced)
        assert len((slurm / "sbatch.jobs").read_text().split()) == 3


def test_a_queue_that_refuses_is_one_line(slurm):
    (slurm / "sbatch").write_text(REFUSES)
    refused = r"^compute.jobqueue: sbatch refused a job \(sbatch: error: invalid account\); correct"
    with pytest.raises(InputError, match=refused), open_cluster(_compute(dir=str(slurm))):
        pass

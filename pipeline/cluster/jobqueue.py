"""The cluster of a batch system (Slurm, PBS): each worker a job, the scheduler in this process.

dask-jobqueue writes and submits the scripts of the jobs. A job that the queue ends (its time is
over, its node is lost) is submitted again while the run lasts.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geo.core.errors import InputError, Problem
from pipeline.cluster.kubernetes import ONE_BLAS_THREAD
from pipeline.storage.files import make_private

if TYPE_CHECKING:
    from pipeline.config.compute_schema import Compute

#: Class of dask-jobqueue, and the command that has to be here.
SYSTEMS = {"slurm": ("SLURMCluster", "sbatch"), "pbs": ("PBSCluster", "qsub")}
LOOK_S = 10.0  # seconds between two looks for jobs that have ended
#: Of the time of a job: what is left to its worker to hand over its results, at most 5 minutes.
SPARE_SHARE, SPARE_S = 0.1, 300


def job_options(compute: Compute, security: Any) -> dict[str, Any]:
    """Return what dask-jobqueue is asked for: a job of one worker.

    Parameters
    ----------
    compute : Compute
        With ``scheduler: jobqueue``.
    security : distributed.security.Security
        Certificates of scheduler, workers and client.
    """
    wanted: Any = compute.jobqueue
    threads = int(compute.threads)
    seconds = _seconds(wanted.walltime)
    spare = int(min(SPARE_S, SPARE_SHARE * seconds))
    # The worker leaves by itself, not all at once, before the queue kills it.
    worker = ["--lifetime", f"{seconds - spare}s", "--lifetime-stagger", f"{spare // 2}s"]
    directives = list(wanted.directives)
    options = {
        "cores": threads,
        "processes": 1,
        "memory": compute.memory,
        "walltime": f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}",
        "queue": wanted.queue,
        "account": wanted.account,
        "interface": wanted.interface,
        "local_directory": wanted.local_dir,
        "death_timeout": int(wanted.timeout),
        "job_name": "disagg",
        "job_script_prologue": [
            *(f"export {name}={value}" for name, value in ONE_BLAS_THREAD.items()),
            *wanted.prologue,
        ],
        "security": security,
        "scheduler_options": {"dashboard_address": "127.0.0.1:0"},
    }
    if compute.device == "gpu":
        worker += ["--resources", "GPU=1"]
        if wanted.system == "slurm":
            directives = ["--gres=gpu:1", *directives]
        else:
            options["resource_spec"] = f"select=1:ncpus={threads}:ngpus=1:mem={_pbs(compute)}"
    options |= {"worker_extra_args": worker, "job_extra_directives": directives}
    return {name: value for name, value in options.items() if value is not None}


def _seconds(walltime: str) -> int:
    days, _, clock = walltime.rpartition("-")
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _pbs(compute: Compute) -> str:
    from dask.utils import parse_bytes

    return f"{-(-int(parse_bytes(compute.memory)) >> 20)}mb"


@contextmanager
def submitted(compute: Compute, package: Any, security: Any) -> Iterator[Any]:
    """Submit the jobs of a run, submit again what ends, and cancel all of them at the end.

    Parameters
    ----------
    compute : Compute
    package : module
        ``dask_jobqueue``.
    security : distributed.security.Security

    Yields
    ------
    dask_jobqueue.core.JobQueueCluster

    Raises
    ------
    InputError
        If the batch system is not here, or refuses a job.
    """
    from tornado.ioloop import PeriodicCallback

    wanted: Any = compute.jobqueue
    name, command = SYSTEMS[wanted.system]
    if shutil.which(command) is None:
        found = f"{wanted.system}, and no {command} is on this machine's PATH"
        remedy = "start the run where jobs are submitted (a login node), or load its module"
        raise InputError(Problem("compute.jobqueue.system", found, remedy))
    shared = wanted.dir or Path.home() / ".cache/disagg/jobs"
    make_private(shared)
    folders = {"shared_temp_directory": str(shared), "log_directory": str(shared)}
    options = job_options(compute, security)
    with getattr(package, name)(**options, **folders, silence_logs=False) as cluster:

        async def submit() -> None:
            _forget_refused(cluster)
            cluster.scale(jobs=int(compute.workers))
            await cluster._correct_state()  # scale alone would log what the command says

        look = PeriodicCallback(submit, LOOK_S * 1000)
        try:
            cluster.sync(submit)
            cluster.loop.add_callback(look.start)
            yield cluster
        except RuntimeError as error:
            said = re.search(r"^stderr:\n(.+)", str(error), re.MULTILINE)
            if said is None:
                raise
            found = f"{command} refused a job ({said[1]})"
            remedy = "correct queue, account, walltime or directives; ask `sinfo` or `qstat -Q`"
            raise InputError(Problem("compute.jobqueue", found, remedy)) from None
        finally:
            cluster.loop.add_callback(look.stop)
            _forget_refused(cluster)
            _remove_credentials(cluster)


def _forget_refused(cluster: Any) -> None:
    """Forget jobs that the queue refused: dask-jobqueue would count them, and trip over them."""
    from distributed.core import Status

    for name, job in list(cluster.workers.items()):
        if job.status is Status.created:
            job.status = Status.failed
            del cluster.workers[name]


def _remove_credentials(cluster: Any) -> None:
    """Remove the files of the workers' certificates: dask-jobqueue leaves them to the collector."""
    for name in ("ca_file", "cert", "key"):
        if (file := getattr(cluster, f"_job_{name}", None)) is not None:
            file.close()

"""Open the Dask cluster of a run: none, local processes, a running one, or one made on demand.

docs/clusters.md has an example of each. What a kind of cluster needs beyond Dask itself is imported
only when a configuration names that kind.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from geo.core.errors import InputError, Problem
from pipeline.cluster.jobqueue import submitted
from pipeline.cluster.kubernetes import ONE_BLAS_THREAD, cluster_spec
from pipeline.cluster.local import Workers, allocate_workers
from pipeline.core.errors import NeverAnsweredError

if TYPE_CHECKING:
    from distributed import Client

    from pipeline.config.compute_schema import Compute, Tls

CONNECT_SECONDS = 8
#: Schedulers that have answered this process: one that is lost may be starting again.
_ANSWERED: set[str] = set()
# Dask would serve its dashboard, which has no login, on every network interface.
LOOPBACK = {"dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
_LEVEL = logging.CRITICAL
_LOGGERS = ("distributed", "distributed.client", "tornado", "tornado.application", "asyncio")


@contextmanager
def open_cluster(compute: Compute) -> Iterator[Client | None]:
    """Open what ``compute`` asks for, and close it again.

    ``local`` is threads of this process: None. ``processes`` are workers of this machine that share
    its cores and memory, or one for each of its GPUs. An address is a scheduler that runs already;
    over TLS with ``compute.tls``. ``kubernetes``, ``gateway`` and ``jobqueue`` are made for this
    run.

    Parameters
    ----------
    compute : Compute

    Yields
    ------
    distributed.Client or None

    Raises
    ------
    InputError
        If the scheduler cannot be reached, the cluster cannot be made, or a package is missing.
    """
    if compute.scheduler == "local":
        yield None
        return
    _quiet()
    with ExitStack() as stack:
        if compute.scheduler == "processes":
            yield stack.enter_context(_processes(compute))
        elif compute.scheduler == "kubernetes":
            yield stack.enter_context(_kubernetes(compute))
        elif compute.scheduler == "gateway":
            yield stack.enter_context(_gateway(compute))
        elif compute.scheduler == "jobqueue":
            yield stack.enter_context(_jobqueue(compute))
        else:
            yield stack.enter_context(_connected(compute))


# -- processes of this machine ---------------------------------------------------------------------


@contextmanager
def _processes(compute: Compute) -> Iterator[Client]:
    from distributed import Client, LocalCluster

    gpus = visible_gpus() if compute.device == "gpu" else []
    if compute.device == "gpu" and not gpus:
        found = "gpu, and no GPU is to be seen from here"
        remedy = "run `nvidia-smi`, pip install 'disagg[gpu]', or give device: cpu"
        raise InputError(Problem("compute.device", found, remedy))
    workers = allocate_workers(compute, len(gpus))
    with _one_blas_thread_in_children(), ExitStack() as stack:
        if gpus:
            cluster = stack.enter_context(_on_gpus(workers, gpus[: workers.n_worker]))
        else:
            cluster = stack.enter_context(
                LocalCluster(
                    n_workers=workers.n_worker,
                    threads_per_worker=workers.n_thread,
                    processes=True,
                    memory_limit=workers.memory,
                    silence_logs=_LEVEL,
                    **LOOPBACK,
                )
            )
        yield stack.enter_context(Client(cluster))


def visible_gpus() -> list[str]:
    """Return the GPUs of this machine as CUDA_VISIBLE_DEVICES would name them; maybe none."""
    from models.backend.arrays import count_devices

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = count_devices()
    if named is None:
        return [str(number) for number in range(count)]
    return [name.strip() for name in named.split(",") if name.strip()][:count]


def _on_gpus(workers: Workers, gpus: list[str]) -> Any:
    """Make a cluster with a process for each GPU, by dask-cuda where it is installed."""
    try:
        from dask_cuda import LocalCUDACluster
    except ImportError:
        return gpu_processes(workers, gpus)
    return LocalCUDACluster(
        CUDA_VISIBLE_DEVICES=",".join(gpus),
        n_workers=workers.n_worker,
        threads_per_worker=workers.n_thread,
        memory_limit=workers.memory,
        resources={"GPU": 1},
        **LOOPBACK,
    )


def gpu_processes(workers: Workers, gpus: list[str]) -> Any:
    """Make a cluster with a process for each GPU that sees this one alone, resource ``GPU`` 1.

    Parameters
    ----------
    workers : Workers
    gpus : list of str
        As CUDA_VISIBLE_DEVICES names them, one a worker.
    """
    from distributed import Nanny, Scheduler
    from distributed.deploy.spec import SpecCluster

    spec = {
        number: {
            "cls": Nanny,
            "options": {
                "nthreads": workers.n_thread,
                "memory_limit": workers.memory,
                "resources": {"GPU": 1},
                "env": {"CUDA_VISIBLE_DEVICES": gpu},
                **LOOPBACK,
            },
        }
        for number, gpu in enumerate(gpus)
    }
    return SpecCluster(workers=spec, scheduler={"cls": Scheduler, "options": dict(LOOPBACK)})


@contextmanager
def _one_blas_thread_in_children() -> Iterator[None]:
    """Make processes started within the context load their BLAS with one thread.

    BLAS sets its number of threads when NumPy is loaded: a worker's own setting comes too late.
    This process's environment overrides Dask's setting, so that it is changed here.
    """
    before = {name: os.environ.get(name) for name in ONE_BLAS_THREAD}
    os.environ.update(ONE_BLAS_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# -- a scheduler that stands -----------------------------------------------------------------------


def _connected(compute: Compute) -> Client:
    from distributed import Client

    security = None if compute.tls is None else _security(compute.tls)
    try:
        asyncio.run(_greeted(compute.scheduler, security))
        client = Client(compute.scheduler, security=security, timeout=CONNECT_SECONDS)
    except (OSError, TimeoutError, ValueError, TypeError, MemoryError) as error:
        reason = _reason(error) if str(error) else f"silent for {CONNECT_SECONDS:g} s"
        if isinstance(error, MemoryError):  # of a length that is none
            reason = "another kind of server answers"
        found = f"no scheduler answers at {compute.scheduler} ({reason})"
        remedy = "start it, correct the address or compute.tls, or give scheduler: local"
        # An address that is none is a ValueError; a scheduler may be restarting.
        away = isinstance(error, OSError | TimeoutError)
        problem = Problem("compute.scheduler", found, remedy, transient=away)
        if compute.scheduler in _ANSWERED:
            raise InputError(problem) from None
        raise NeverAnsweredError(problem) from None
    _ANSWERED.add(compute.scheduler)
    return client


async def _greeted(address: str, security: Any) -> None:
    """Greet a scheduler: Dask's client waits without end for one that accepts and is silent."""
    from distributed.comm import connect

    options = {} if security is None else security.get_connection_args("client")
    greeting = connect(address, timeout=CONNECT_SECONDS, **options)
    (await asyncio.wait_for(greeting, CONNECT_SECONDS)).abort()


def check_scheduler(compute: Compute) -> None:
    """Raise InputError unless the scheduler answers, if ``compute`` names one that runs already."""
    if "://" in compute.scheduler:
        _quiet()
        _connected(compute).close()


def _security(tls: Tls) -> Any:
    """Return the certificate for each of client, scheduler and workers."""
    from distributed.security import Security

    own = {
        f"tls_{role}_{part}": getattr(tls, part)
        for role in ("client", "scheduler", "worker")
        for part in ("cert", "key")
    }
    return Security(tls_ca_file=tls.ca, require_encryption=True, **own)


# -- clusters made to order ------------------------------------------------------------------------


@contextmanager
def _kubernetes(compute: Compute) -> Iterator[Client]:
    operator = _needed("dask_kubernetes.operator", "kubernetes")
    wanted: Any = compute.kubernetes
    remedy = "see that the Dask operator runs and the namespace exists, and look at the pods' logs"
    with ExitStack() as stack:
        with _one_line_errors("compute.kubernetes", "the cluster did not start", remedy):
            cluster = stack.enter_context(
                operator.KubeCluster(
                    custom_cluster_spec=cluster_spec(compute),
                    namespace=wanted.namespace,
                    resource_timeout=int(wanted.timeout),
                    quiet=True,
                )
            )
            client = stack.enter_context(_client_of(cluster))
            client.wait_for_workers(int(compute.workers), timeout=wanted.timeout)
        yield client


@contextmanager
def _gateway(compute: Compute) -> Iterator[Client]:
    dask_gateway = _needed("dask_gateway", "gateway")
    wanted: Any = compute.gateway
    remedy = "check compute.gateway, and ask the server's administrators for its logs"
    with ExitStack() as stack:
        with _one_line_errors("compute.gateway", f"no cluster from {wanted.address}", remedy):
            server = stack.enter_context(
                dask_gateway.Gateway(
                    address=wanted.address, proxy_address=wanted.proxy_address, auth=wanted.auth
                )
            )
            cluster = stack.enter_context(server.new_cluster(**wanted.options))
            cluster.scale(int(compute.workers))
            client = stack.enter_context(cluster.get_client(set_as_default=False))
            client.wait_for_workers(int(compute.workers), timeout=wanted.timeout)
        yield client


@contextmanager
def _jobqueue(compute: Compute) -> Iterator[Client]:
    package = _needed("dask_jobqueue", "jobqueue")
    from distributed.security import Security

    wanted: Any = compute.jobqueue
    # Whoever reaches the scheduler can run code as this user, and it listens to other machines.
    security = Security.temporary() if compute.tls is None else _security(compute.tls)
    remedy = "see the queue (squeue, qstat) and the jobs' logs in compute.jobqueue.dir"
    with ExitStack() as stack:
        with _one_line_errors("compute.jobqueue", "no job has started", remedy):
            cluster = stack.enter_context(submitted(compute, package, security))
            client = stack.enter_context(_client_of(cluster))
            client.wait_for_workers(1, timeout=wanted.timeout)
        yield client


def _client_of(cluster: Any) -> Client:
    from distributed import Client

    return Client(cluster, timeout=CONNECT_SECONDS)


def _needed(name: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        found = f"{extra} needs the package {name.partition('.')[0].replace('_', '-')}"
        if getattr(error, "name", None) not in (None, name, name.partition(".")[0]):
            found += f" whole ({_reason(error)})"
        remedy = f"pip install 'disagg[{extra}]'"
        raise InputError(Problem("compute.scheduler", found, remedy)) from None


@contextmanager
def _one_line_errors(place: str, found: str, remedy: str) -> Iterator[None]:
    """Convert any exception of a cluster manager to an InputError of one line."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        # Nodes that are slow to come time out; a missing namespace or right does not.
        away = isinstance(error, OSError | TimeoutError)
        problem = Problem(place, f"{found} ({_reason(error)})", remedy, transient=away)
        raise InputError(problem) from None


def _quiet() -> None:
    """Silence Dask's log of lost connections, except with ``--verbose``.

    The executor replaces lost workers, and reports a lost cluster in one line.
    """
    if not logging.getLogger("pipeline").isEnabledFor(logging.INFO):
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(_LEVEL)


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).splitlines()[0] if str(error) else type(error).__name__

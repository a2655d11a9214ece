"""The cores and the memory of this machine, and how they are allocated to workers.

Cores and memory are what Dask sees: the affinity of the process and the limits of its control group
(a container's), not the machine's whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from geo.core.errors import InputError, Problem
from pipeline.config.schema import Config

if TYPE_CHECKING:
    from pipeline.config.compute_schema import Compute

RESERVED_SHARE = 0.1  # of the memory, for the driver and the scheduler
MIN_WORKER_MEMORY = 256 << 20  # bytes of a worker's memory: it has to load its libraries


@dataclass(frozen=True)
class Workers:
    """Workers of this machine.

    Attributes
    ----------
    n_worker, n_thread : int
        Processes, and threads of each.
    memory : int
        Bytes of each.
    """

    n_worker: int
    n_thread: int
    memory: int


def cores() -> int:
    """Return the cores that this process may use, by affinity and control group."""
    from dask.system import cpu_count

    return max(1, int(cpu_count()))


def memory() -> int:
    """Return the bytes of memory that this process may use, by machine and control group."""
    from distributed.system import memory_limit

    return int(memory_limit())


def local_threads(compute: Compute) -> int | None:
    """Return the threads of this process that a configuration asks for; None for one a core.

    Numbers of workers elsewhere say nothing of it.
    """
    here = compute.scheduler in ("local", "processes")
    return int(compute.workers) if here and compute.workers != "auto" else None


def allocate_workers(compute: Compute, n_gpu: int = 0) -> Workers:
    """Share cores and memory between the workers that a configuration asks for.

    Where numbers are left to us: one thread a worker and a worker a core (with GPUs: a worker a
    GPU, and the cores between them), and equal parts of nine tenths of the memory.

    Parameters
    ----------
    compute : Compute
    n_gpu : int
        GPUs to be used, one worker each; 0 for workers on cores.

    Raises
    ------
    InputError
        If what is asked for is more than there is.
    """
    n_core, available = cores(), memory()
    n_worker, n_thread = compute.workers, compute.threads
    if n_gpu:
        if n_worker != "auto" and int(n_worker) > n_gpu:
            found = f"{n_worker} workers for {n_gpu} GPU{'s' * (n_gpu > 1)}"
            remedy = "a worker has a GPU of its own: give auto, or fewer"
            raise InputError(Problem("compute.workers", found, remedy))
        n_worker = n_gpu if n_worker == "auto" else n_worker
    if n_worker == "auto":
        n_worker = max(1, n_core // (1 if n_thread == "auto" else int(n_thread)))
    if n_thread == "auto":
        n_thread = max(1, n_core // int(n_worker)) if n_gpu else 1
    count, threads = int(n_worker), int(n_thread)
    if count * threads > n_core:
        found = f"{count} workers of {threads} threads, and {n_core} cores for us"
        raise InputError(Problem("compute.workers", found, "give fewer, or auto"))
    if compute.memory == "auto":
        return Workers(count, threads, int((1 - RESERVED_SHARE) * available / count))
    from dask.utils import format_bytes, parse_bytes  # dask starts slowly

    each = int(parse_bytes(compute.memory))
    if count * each > available:
        found = f"{count} workers of {compute.memory}, and {format_bytes(available)} for us"
        raise InputError(Problem("compute.memory", found, "give less, or auto"))
    if each < MIN_WORKER_MEMORY:
        found = f"{compute.memory} a worker"
        remedy = (
            f"a worker's libraries alone need more: give {format_bytes(MIN_WORKER_MEMORY)} at least"
        )
        raise InputError(Problem("compute.memory", found, remedy))
    return Workers(count, threads, each)


def n_thread(config: Config) -> int | None:
    """Threads for work in this process; None for one a core."""
    return local_threads(config.compute)


def block_device(config: Config) -> dict[str, Any]:
    """Return what computes blocks, and how much of a GPU's memory they may fill."""
    memory = config.compute.device_memory
    found: dict[str, Any] = {"device": config.compute.device, "device_memory": None}
    if memory != "auto":
        from dask.utils import parse_bytes

        found["device_memory"] = int(parse_bytes(memory))
    return found


def driver_device(config: Config) -> dict[str, Any]:
    """Return the same for the driver's own work: a cluster's GPUs are not this machine's."""
    found = block_device(config)
    if config.compute.scheduler not in ("local", "processes") and found["device"] == "gpu":
        found["device"] = "auto"
    return found

"""The Dask cluster of a run: none, processes of this machine, or one that stands somewhere."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from geo.errors import InputError, Problem

if TYPE_CHECKING:
    from distributed import Client

    from pipeline.config import Compute

CONNECT_SECONDS = 20
_LEVEL = logging.CRITICAL
_LOGGERS = ("distributed", "distributed.client", "tornado", "tornado.application", "asyncio")


@contextmanager
def open_cluster(compute: Compute) -> Iterator[Client | None]:
    """Open what ``compute`` asks for, and close it again.

    ``local`` is threads of this process: None. ``processes`` are workers of this machine, one
    thread and one BLAS thread each, that share its memory equally. An address is a scheduler that
    runs already; over TLS with ``compute.tls``.

    Parameters
    ----------
    compute : Compute

    Yields
    ------
    distributed.Client or None

    Raises
    ------
    InputError
        If the scheduler cannot be reached.
    """
    if compute.scheduler == "local":
        yield None
        return
    from distributed import Client

    _quiet()
    if compute.scheduler == "processes":
        from distributed import LocalCluster

        with (
            LocalCluster(
                n_workers=_n_worker(compute),
                threads_per_worker=1,
                processes=True,
                memory_limit="auto" if compute.memory == "auto" else compute.memory,
                dashboard_address=":0",
                host="127.0.0.1",
                silence_logs=_LEVEL,
            ) as cluster,
            Client(cluster) as client,
        ):
            yield client
        return
    with _connected(compute) as client:
        yield client


def _connected(compute: Compute) -> Client:
    from distributed import Client

    security: Any = None
    if compute.tls is not None:
        from distributed.security import Security

        tls = compute.tls
        security = Security(
            tls_ca_file=tls.ca,
            tls_client_cert=tls.cert,
            tls_client_key=tls.key,
            require_encryption=True,
        )
    try:
        return Client(compute.scheduler, security=security, timeout=CONNECT_SECONDS)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        found = f"no scheduler answers at {compute.scheduler} ({_reason(error)})"
        remedy = "start it, correct the address or compute.tls, or give scheduler: local"
        raise InputError(Problem("compute.scheduler", found, remedy)) from None


def _quiet() -> None:
    """Keep Dask's log of lost connections off the terminal: what matters of it is told by us.

    A worker that dies is made up for, and a cluster that is gone is one line. With ``--verbose``
    Dask speaks as it is configured to.
    """
    if not logging.getLogger("pipeline").isEnabledFor(logging.INFO):
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(_LEVEL)


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _n_worker(compute: Compute) -> int:
    if compute.workers != "auto":
        return int(compute.workers)
    return len(os.sched_getaffinity(0))

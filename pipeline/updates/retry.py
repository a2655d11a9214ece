"""Which errors are transient, so that a retry may succeed."""

from __future__ import annotations

import errno

from geo.errors import InputError
from pipeline.core.errors import ClusterError, StoreError, StoreInputError
from pipeline.storage.location import StorageUnreachableError

_PASSING = {
    errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET,
    errno.EHOSTUNREACH, errno.EINTR, errno.EIO, errno.ENETDOWN, errno.ENETRESET,
    errno.ENETUNREACH, errno.EPIPE, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT,
}  # fmt: skip


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may succeed without any change.

    Transient: errors of connections, object stores and network file systems, timeouts, and a Dask
    scheduler that does not answer (it may be restarting). Not transient: any other bad input,
    memory, a full disk, missing permissions, defects.
    """
    from models.core.errors import ModelError

    if isinstance(error, InputError):
        return all(problem.place == "compute.scheduler" for problem in error.problems)
    if isinstance(error, ModelError | StoreInputError):
        return False
    if isinstance(error, ClusterError | StorageUnreachableError | ConnectionError | TimeoutError):
        return True
    if isinstance(error, StoreError):
        return False
    if isinstance(error, OSError):
        return error.errno in _PASSING
    return False

"""Which errors may pass by themselves: those alone are worth another try."""

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
    """Say whether an error may be gone at the next try, with nothing changed.

    Connections, object stores that do not answer, timeouts and the input and output errors of
    network file systems may; bad input never, except that no Dask scheduler answers (it may be
    restarting); memory, a full disk, missing permissions and defects of ours need a person.
    """
    from models.core.errors import ModelError

    if isinstance(error, InputError):
        return all(problem.place == "compute.scheduler" for problem in error.problems)
    if isinstance(error, ModelError | StoreInputError):
        return False
    if isinstance(error, ClusterError | StorageUnreachableError | ConnectionError | TimeoutError):
        return True
    if isinstance(error, StoreError):
        return False  # a damaged store stays one
    if isinstance(error, OSError):
        return error.errno in _PASSING
    return False

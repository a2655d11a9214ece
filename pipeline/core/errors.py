"""Exceptions of the pipeline, and their explanations for users.

Every exception also derives from a built-in one.
"""

from __future__ import annotations

import errno

from geo.core.addresses import redacted
from geo.core.errors import InputError, Problem


class PipelineError(Exception):
    """Base class of the pipeline's errors. Secrets in addresses are hidden in the message."""

    def __str__(self) -> str:
        return redacted(super().__str__())


class StoreError(PipelineError, OSError):
    """A store is absent, incomplete, damaged or of another format."""


class StoreInputError(PipelineError, ValueError):
    """Arrays cannot be stored."""


class ClusterError(PipelineError, ConnectionError):
    """The Dask cluster does not answer, or has lost all workers."""


class NeverAnsweredError(InputError):
    """A server has not answered once: who named it is told at once, and nothing is retried."""


def explain(error: Exception, command: str) -> Problem | None:
    """Explain an error that a user can correct; None for a defect."""
    from models.core.errors import ModelError, NotFittedError

    if isinstance(error, BrokenPipeError | NotFittedError):
        return None
    if isinstance(error, ModelError | PipelineError):
        place, _, found = str(error).partition(": ")
        found, _, remedy = found.partition("; ")
        if found and remedy:
            return Problem(place, found, remedy)
        return Problem("run", str(error), f"correct it, then continue with `{command}`")
    if isinstance(error, MemoryError):
        remedy = f"see what `disagg plan` foresees, close other programs, then repeat `{command}`"
        return Problem("memory", "there is not enough for this run and its inputs", remedy)
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        return Problem(
            str(error.filename or "the output directory"),
            str(error.strerror).lower(),
            f"{_REMEDIES[error.errno]}, then continue with `{command}`",
        )
    return None


_REMEDIES = {
    errno.EPERM: "allow this operation",
    errno.EIO: "check the disk (dmesg), or set another output.dir",
    errno.EACCES: "change the permissions, or set another output.dir",
    errno.ENOTDIR: "move this file: a directory is needed here",
    errno.ENFILE: "raise the system's limit of open files (fs.file-max)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EFBIG: "raise the limit of file size (ulimit -f), or set another output.dir",
    errno.ENOSPC: "free some space, or set another output.dir",
    errno.EROFS: "set a writable output.dir",
    errno.ESTALE: "mount the file system again",
    errno.EDQUOT: "free some of your quota, or set another output.dir",
}

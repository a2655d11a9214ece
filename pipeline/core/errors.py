"""What can go wrong in the pipeline; every error is also a built-in one."""

from __future__ import annotations

import errno

from geo.errors import Problem


class PipelineError(Exception):
    """Any error of the pipeline."""


class StoreError(PipelineError, OSError):
    """A store is absent, unfinished, damaged or of another format; the message says what to do."""


class StoreInputError(PipelineError, ValueError):
    """The arrays given to be stored are unusable; the message says which and why."""


class ClusterError(PipelineError, ConnectionError):
    """The Dask cluster cannot be reached, or has no worker left."""


def explain(error: Exception, command: str) -> Problem | None:
    """Say what a user can do about an error that is not ours, or None."""
    from models.core.errors import ModelError, NotFittedError

    if isinstance(error, BrokenPipeError | NotFittedError):
        return None
    if isinstance(error, ModelError | PipelineError):
        place, _, found = str(error).partition(": ")
        found, _, remedy = found.partition("; ")
        if found and remedy:
            return Problem(place, found, remedy)
        return Problem("run", str(error), f"correct it, then go on with `{command}`")
    if isinstance(error, OSError) and error.errno in _MENDABLE:
        return Problem(
            str(error.filename or "the output directory"),
            str(error.strerror).lower(),
            f"{_MENDABLE[error.errno]}, then go on with `{command}`",
        )
    return None


_MENDABLE = {
    errno.EPERM: "allow it",
    errno.EIO: "see whether the disk is sound (dmesg), or give another output.dir",
    errno.EACCES: "give yourself the permission, or another output.dir",
    errno.ENOTDIR: "a directory is needed where a file is: move it",
    errno.ENFILE: "allow the system more open files",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.EFBIG: "allow larger files (ulimit -f), or give an output.dir on another file system",
    errno.ENOSPC: "free some space, or give another output.dir",
    errno.EROFS: "give an output.dir that can be written",
    errno.ESTALE: "mount the file system again",
    errno.EDQUOT: "free some of your quota, or give another output.dir",
}

"""Icechunk repositories: versioned Zarr stores, of which the last commit of ``main`` is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from geo.core.errors import InputError, Problem

SUFFIX, BRANCH = ".icechunk", "main"
#: Parts of a repository that tell which commits its branches are at; all else is immutable.
POINTERS = ("refs", "repo")


def is_repository(path: str | Path) -> bool:
    """Return whether a path is an Icechunk repository on this machine."""
    place = Path(path)
    return (place / "snapshots").is_dir() and any((place / name).exists() for name in POINTERS)


def committed_store(path: str | Path) -> Any:
    """Open what the last commit of a repository has.

    Parameters
    ----------
    path : str or Path
        Of a repository on this machine.

    Returns
    -------
    zarr.abc.store.Store
        Read-only.

    Raises
    ------
    InputError
        If icechunk is not installed, or cannot open the repository.
    """
    try:
        import icechunk
    except ImportError as error:
        found, remedy = "is an Icechunk repository, and icechunk is not installed", "install it"
        raise InputError(Problem(str(path), found, f"{remedy}: pip install icechunk")) from error
    # It warns of commits by several at once: here nothing is written.
    icechunk.set_logs_filter("error")
    try:
        repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))
        return repository.readonly_session(BRANCH).store
    except icechunk.IcechunkError as error:
        cause = str(error).strip().splitlines()[0].removeprefix("x ")
        found = f"is an Icechunk repository that cannot be opened ({cause})"
        raise InputError(
            Problem(str(path), found, f"commit to {BRANCH}, or copy it again")
        ) from error

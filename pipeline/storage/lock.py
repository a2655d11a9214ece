"""Locks between processes.

A lock is the operating system's (``flock``) on a file. It ends with its process: there are no stale
locks. The file names the owner; this name is valid only while the file is locked.

A map has one lock, ``work/.lock`` of its ``output.dir``. A scheduler's run holds it from ingest to
publish (`hold_map`); `disagg run` holds it for its stages (`exclusive`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from geo.core.errors import InputError, Problem
from pipeline.core.errors import PipelineError
from pipeline.storage.files import make_private

_HELD: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())
POLL_S = 1.0
SHORT_S = 0.05  # between attempts at a lock that is held briefly
_TRIES = 3  # attempts: `Lock.is_taken` holds the lock for a moment, too
_UNKNOWN_OWNER = "another run"
_PARTIAL = (".predict.partial", ".compare.partial-*", "work/.*.zarr.partial-*", "work/.model-*")


class LockedError(PipelineError, RuntimeError):
    """Another process holds the lock; ``owner`` names it."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        super().__init__(f"locked by {owner}; wait until it ends")


class DirectoryBusyError(InputError):
    """Another run holds the lock of an output directory: the same command succeeds after it."""


class MapBusyError(LockedError):
    """Another run is updating the map; ``owner`` names it."""

    def __init__(self, directory: Path, owner: str) -> None:
        super().__init__(owner)
        self.args = (f"{directory}: {owner} is updating this map; wait until it ends",)


@dataclass(frozen=True)
class Lock:
    """A lock that one process holds at a time.

    Parameters
    ----------
    path : Path
        The lock file; created if absent, never removed.
    """

    path: Path

    @contextlib.contextmanager
    def hold(
        self,
        owner: str = _UNKNOWN_OWNER,
        *,
        wait_s: float | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> Iterator[None]:
        """Hold the lock while the block runs.

        Parameters
        ----------
        owner : str
            Name of the owner, for other processes.
        wait_s : float, optional
            Seconds between two attempts; if not given, do not wait.
        on_wait : callable, optional
            Called once with the owner's name before waiting.

        Raises
        ------
        LockedError
            If another process holds the lock, and ``wait_s`` is not given.
        OSError
            If the file cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+", encoding="utf-8") as file:
            tries = 0
            while not _try_lock(file.fileno(), fcntl.LOCK_EX):
                tries += 1
                if tries < _TRIES:
                    time.sleep(SHORT_S)
                    continue
                if wait_s is None:
                    raise LockedError(self.holder() or _UNKNOWN_OWNER)
                if tries == _TRIES and on_wait is not None:
                    on_wait(self.holder() or _UNKNOWN_OWNER)
                time.sleep(wait_s)
            since = datetime.now(UTC).isoformat(timespec="seconds")
            place = f"{socket.gethostname()}, process {os.getpid()}"
            file.truncate(0)
            file.write(json.dumps({"owner": owner, "place": place, "since": since}))
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)

    def holder(self) -> str:
        """Return the owner of the lock; empty if it is free, or the owner is unknown."""
        if not self.is_taken():
            return ""
        try:
            owner = json.loads(self.path.read_text(encoding="utf-8"))
            return f"{owner['owner']} ({owner['place']}, since {owner['since']})"
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def is_taken(self) -> bool:
        """Return whether a process holds the lock."""
        try:
            with self.path.open("rb") as file:
                return not _try_lock(file.fileno(), fcntl.LOCK_SH)
        except OSError:
            return False


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def writable(directory: Path, key: str) -> Iterator[None]:
    """Turn an OSError about a directory into a problem of its configuration key."""
    try:
        yield
    except OSError as error:
        found = f"cannot be written to ({error.strerror or error})"
        remedy = f"set another {key}, or make this one writable"
        raise InputError(Problem(f"{key} ({directory})", found, remedy)) from error


def check_writable(directory: Path, key: str) -> None:
    """Raise InputError if a directory, or the nearest above it that exists, takes no files."""
    above = directory
    while not above.exists() and above != above.parent:
        above = above.parent
    # An attempt, because permissions alone do not tell of read-only and other file systems.
    with writable(directory, key), tempfile.TemporaryDirectory(dir=above, prefix=".disagg-"):
        pass


def _map_lock(directory: Path) -> Lock:
    return Lock(directory / "work" / ".lock")


def is_held(directory: Path) -> bool:
    """Return whether the current context (not only this process) holds a map's lock."""
    return directory.resolve() in _HELD.get()


@contextlib.contextmanager
def hold_map(
    directory: Path,
    owner: str,
    *,
    when_busy: Literal["queue", "skip"] = "skip",
    on_wait: Callable[[str], None] | None = None,
    poll_s: float = POLL_S,
) -> Iterator[None]:
    """Hold the lock of a map.

    Parameters
    ----------
    directory : Path
        ``output.dir`` of the map.
    owner : str
        Name of the owner, for other processes.
    when_busy : {"queue", "skip"}
        Wait until the lock is free, or raise.
    on_wait : callable, optional
        Called once with the owner's name before waiting.
    poll_s : float
        Seconds between two attempts.

    Raises
    ------
    MapBusyError
        If another run holds it and ``when_busy`` is ``"skip"``.
    InputError
        If the directory cannot be written to.
    """
    wait_s = poll_s if when_busy == "queue" else None
    with ExitStack() as stack:
        try:
            with writable(directory, "output.dir"):
                make_private(directory / "work")
                held = _map_lock(directory).hold(owner, wait_s=wait_s, on_wait=on_wait)
                stack.enter_context(held)
        except LockedError as locked:
            raise MapBusyError(directory, locked.owner) from None
        token = _HELD.set(_HELD.get() | {directory.resolve()})
        try:
            yield
        finally:
            _HELD.reset(token)


def is_locked(directory: Path) -> bool:
    """Return whether a process holds the lock of a map."""
    return _map_lock(directory).is_taken()


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Lock a map for one run, and remove partial outputs of killed runs.

    Raises
    ------
    DirectoryBusyError
        If another run holds the lock.
    InputError
        If the directory cannot be written to.
    """
    if is_held(directory):  # by the flow run of this stage
        yield
        return
    with ExitStack() as stack:
        try:
            with writable(directory, "output.dir"):
                make_private(directory / "work")
                stack.enter_context(_map_lock(directory).hold())
        except LockedError as locked:
            raise DirectoryBusyError(
                Problem(
                    str(directory),
                    f"{locked.owner} is writing here",
                    "wait until it ends, or set another output.dir",
                )
            ) from None

        # Under the lock, partial outputs of other hosts are abandoned, too.
        for pattern in _PARTIAL:
            for abandoned in directory.glob(pattern):
                shutil.rmtree(abandoned, ignore_errors=True)
        yield

"""Locks between processes: one holds, the others wait or are told who it is.

A lock is the operating system's (``flock``) on a file. It ends with the process that holds it,
however that ends: there is no stale lock to clear away. Who holds it is written into the file, and
read only while it is locked: a dead process leaves its name behind.

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
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from geo.errors import InputError, Problem
from pipeline.core.errors import PipelineError

_HELD: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())
POLL_S = 1.0
SHORT_S = 0.05  # for a lock that is held for a moment
_TRIES = 3  # before a lock is taken: who only asks (`Lock.is_taken`) is gone by then
_SOMEBODY = "another run"


class LockedError(PipelineError, RuntimeError):
    """Somebody else holds a lock; ``owner`` says who."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        super().__init__(f"locked by {owner}; wait until it ends")


class MapBusyError(LockedError):
    """Another run is updating the map; ``owner`` says which."""

    def __init__(self, directory: Path, owner: str) -> None:
        super().__init__(owner)
        self.args = (f"{directory}: {owner} is updating this map; wait until it ends",)


@dataclass(frozen=True)
class Lock:
    """A lock that one process holds at a time.

    Parameters
    ----------
    path : Path
        Its file; made where it does not exist, and never removed.
    """

    path: Path

    @contextlib.contextmanager
    def hold(
        self,
        owner: str = _SOMEBODY,
        *,
        wait_s: float | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> Iterator[None]:
        """Hold the lock while the block runs.

        Parameters
        ----------
        owner : str
            Who holds it, for those who find it taken.
        wait_s : float, optional
            Seconds between two tries until it is free; where not given, no waiting.
        on_wait : callable, optional
            Told once who holds it, before waiting.

        Raises
        ------
        LockedError
            If somebody else holds it, and ``wait_s`` is not given.
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
                    raise LockedError(self.holder() or _SOMEBODY)
                if tries == _TRIES and on_wait is not None:
                    on_wait(self.holder() or _SOMEBODY)
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
        """Say who holds the lock; empty where nobody does, or nothing is known of them."""
        if not self.is_taken():
            return ""
        try:
            said = json.loads(self.path.read_text(encoding="utf-8"))
            return f"{said['owner']} ({said['place']}, since {said['since']})"
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def is_taken(self) -> bool:
        """Say whether anybody holds the lock."""
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
    """Turn an error of the system about a directory into a problem of its configuration key."""
    try:
        yield
    except OSError as error:
        found = f"cannot be written to ({error.strerror or error})"
        remedy = f"give another {key}, or free this one for writing"
        raise InputError(Problem(f"{key} ({directory})", found, remedy)) from error


def _map_lock(directory: Path) -> Lock:
    return Lock(directory / "work" / ".lock")


def is_held(directory: Path) -> bool:
    """Say whether this run (this thread of work, not this process) holds the lock of a map."""
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
        Who holds it, for those who wait.
    when_busy : {"queue", "skip"}
        Wait until it is free, or raise.
    on_wait : callable, optional
        Told once who holds it, before waiting.
    poll_s : float
        Seconds between two tries.

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
                held = _map_lock(directory).hold(owner, wait_s=wait_s, on_wait=on_wait)
                stack.enter_context(held)
        except LockedError as locked:
            raise MapBusyError(directory, locked.owner) from None
        token = _HELD.set(_HELD.get() | {directory.resolve()})
        try:
            yield
        finally:
            _HELD.reset(token)


def lock_owner(directory: Path) -> str:
    """Say who holds the lock of a map; empty where nobody does or nothing is known of them."""
    return _map_lock(directory).holder()


def is_locked(directory: Path) -> bool:
    """Say whether anybody holds the lock of a map."""
    return _map_lock(directory).is_taken()


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Keep a second run out of a directory, and remove what killed runs left there.

    Raises
    ------
    InputError
        If another run holds the lock, or the directory cannot be written to.
    """
    if is_held(directory):  # by the run that this stage is part of
        yield
        return
    with ExitStack() as stack:
        try:
            with writable(directory, "output.dir"):
                stack.enter_context(_map_lock(directory).hold())
        except LockedError as locked:
            raise InputError(
                Problem(
                    str(directory),
                    f"{locked.owner} is writing here",
                    "wait until it ends, or give this run another output.dir",
                )
            ) from None
        remove_abandoned(directory)
        yield


_ABANDONED = (".predict.partial", "work/.*.zarr.partial-*", "work/.model-*")


def remove_abandoned(directory: Path) -> None:
    """Remove what runs that were killed left half written in an output directory.

    Only for who holds its lock, and so is alone there: also what runs of other hosts left (a pod
    that comes back has another name) is nobody's then.

    Parameters
    ----------
    directory : Path
        ``output.dir``.
    """
    for pattern in _ABANDONED:
        for left in directory.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)

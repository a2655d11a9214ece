"""One run a map at a time: a lock that is held from ingest to publish.

It is the operating system's lock (``flock``) on the file that `pipeline.run.runner` locks for each
stage, so that `disagg run` by hand keeps out too. It ends with the process that holds it, however
that ends: there is no stale lock to clear away.
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
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from geo.errors import InputError, Problem
from pipeline.core.errors import PipelineError

_HELD: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())
POLL_S = 1.0
_TRIES, _TRY_S = 3, 0.05  # before a map is busy: who only asks (`is_locked`) is gone by then


class MapBusyError(PipelineError, RuntimeError):
    """Another run is updating the map; ``owner`` says which."""

    def __init__(self, directory: Path, owner: str) -> None:
        self.owner = owner
        super().__init__(f"{directory}: {owner} is updating this map; wait until it ends")


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
    path = directory / "work" / ".lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = path.open("a+", encoding="utf-8")
    except OSError as error:
        found = f"cannot be written to ({error.strerror or error})"
        remedy = "give another output.dir, or free this one for writing"
        raise InputError(Problem(f"output.dir ({directory})", found, remedy)) from error
    with opened as file:
        told, tries = False, 0
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                tries += 1
                if tries < _TRIES:
                    time.sleep(_TRY_S)
                    continue
                who = lock_owner(directory) or "another run"
                if when_busy == "skip":
                    raise MapBusyError(directory, who) from None
                if on_wait is not None and not told:
                    on_wait(who)
                told = True
                time.sleep(poll_s)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        place = f"{socket.gethostname()}, process {os.getpid()}"
        said = json.dumps({"owner": owner, "place": place, "since": since})
        file.truncate(0)
        file.write(said)
        file.flush()
        token = _HELD.set(_HELD.get() | {directory.resolve()})
        try:
            yield
        finally:
            _HELD.reset(token)
            file.truncate(0)


def lock_owner(directory: Path) -> str:
    """Say who holds the lock of a map; empty where nobody does or nothing is known of them.

    What is written is read only while the lock is held: a dead process leaves its name behind.
    """
    path = directory / "work" / ".lock"
    if not is_locked(directory):
        return ""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return f"{said['owner']} ({said['place']}, since {said['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def is_locked(directory: Path) -> bool:
    """Say whether anybody holds the lock of a map."""
    try:
        with (directory / "work" / ".lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Keep a second run out of a directory; the lock ends with the process, however it ends."""
    if is_held(directory):  # by the run that this stage is part of
        yield
        return
    try:
        (directory / "work").mkdir(parents=True, exist_ok=True)
        opened = (directory / "work" / ".lock").open("a")  # what a holder wrote there stays
    except OSError as error:
        found = f"cannot be written to ({error.strerror or error})"
        remedy = "give another output.dir, or free this one for writing"
        raise InputError(Problem(f"output.dir ({directory})", found, remedy)) from error
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                Problem(
                    str(directory),
                    "another run is writing here",
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

"""An object that says which objects make a whole, replaced by conditional writes alone.

Whoever replaces it gives the ETag of what was read: of several writers, one comes first and the
others learn it. A write whose answer was lost is told from another writer's by its id.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Mapping
from typing import Any

from geo.core.errors import Problem
from pipeline.core.errors import PipelineError
from pipeline.storage.location import CONDITIONS, Location, StorageError, StorageUnreachableError

_MOVES = 16  # ids of the last writes


class MovedError(PipelineError):
    """Another writer has replaced the pointer since it was read; nothing was written."""


def read_pointer(place: Location) -> tuple[bytes | None, str]:
    """Return the bytes of a pointer and their ETag; None and "" if there is none.

    Raises
    ------
    StorageError
        If the store fails, or the object is replaced faster than it can be read.
    """
    for _ in range(5):
        before = place.info()
        if before is None:
            return None, ""
        with contextlib.suppress(FileNotFoundError):
            text = place.read()
            after = place.info()
            if after is not None and after.tag == before.tag:
                return text, before.tag
    found = f"{place}: changed while it was read; wait until its writer has finished"
    raise StorageUnreachableError(found)


def move_pointer(
    place: Location, value: Mapping[str, Any], tag: str, *, required: bool = False
) -> None:
    """Replace a pointer if it still has an ETag ("": if there is none).

    Parameters
    ----------
    place : Location
    value : mapping
        Its ``moves``, if any, are the ids of earlier writes; this one's is added.
    tag : str
        ETag of what was read.
    required : bool
        Whether a store that refuses conditional writes is an error; else it is replaced without.

    Raises
    ------
    MovedError
        If another writer came first.
    StorageError
        If the store fails. If it cannot be reached, the pointer may have been replaced.
    """
    own = uuid.uuid4().hex
    moves = [*value.get("moves", ()), own][-_MOVES:]
    text = json.dumps({**value, "moves": moves}, indent=1, ensure_ascii=False)
    try:
        place.write(text.encode(), if_tag=tag, required=required)
    except FileExistsError as error:
        # An earlier attempt may have succeeded although its answer was lost.
        now, _ = read_pointer(place)
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            if own in json.loads(now or b"{}").get("moves", ()):
                return
        message = f"{place}: another writer has replaced it meanwhile"
        raise MovedError(message) from error


def conditional_write_problem(place: Location, key: str) -> Problem | None:
    """Try out whether a store refuses writes whose condition does not hold.

    Parameters
    ----------
    place : Location
        A prefix; an object is written there, and removed.
    key : str
        The configuration's key, for the problem.

    Raises
    ------
    StorageUnreachableError
        If the store cannot be reached.
    """
    probe = place / f".probe-{uuid.uuid4().hex}"
    try:
        probe.write(b"1", if_tag="", required=True)
        try:
            for tag in ("", "0" * 32):  # it exists; it has another ETag
                with contextlib.suppress(FileExistsError):
                    probe.write(b"2", if_tag=tag, required=True)
                    found = f"{place}: the store does not honour conditional writes"
                    return Problem(key, found, CONDITIONS)
        finally:
            with contextlib.suppress(StorageError):
                place.remove([probe.name])
    except FileExistsError:  # of the first write, repeated because its answer was lost
        return conditional_write_problem(place, key)
    except StorageUnreachableError:
        raise
    except StorageError as error:
        where, _, found = str(error).partition(": ")
        found, _, remedy = found.partition("; ")
        return Problem(key, f"{where}: {found}", remedy)
    return None

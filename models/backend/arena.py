"""Work arrays that are used again: a block's matrices cost no page faults.

Large NumPy temporaries are given back to the system when they die, and every new one faults its
pages in again: a fifth of a pass's time. An arena hands out parts of a buffer that stays, one after
the other; :meth:`Arena.start` takes them all back at once, :meth:`Arena.release` those taken since
a mark. One arena belongs to one thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from models.backend.arrays import namespace

Allocate = Callable[[tuple[int, ...], Any], Any]

ALIGN = 64  # bytes, a cache line
CHUNK = 1 << 26  # bytes of a buffer, at least
KEPT = 1 << 30  # bytes that a thread keeps from block to block, at most


class Arena:
    """A stack of arrays in buffers that are kept."""

    def __init__(self) -> None:
        self._chunks: list[np.ndarray] = []
        self._at = (0, 0)  # chunk, byte

    def start(self) -> None:
        """Take back all arrays; their contents may be overwritten from now on."""
        self._at = (0, 0)
        if sum(chunk.nbytes for chunk in self._chunks) > KEPT:  # one giant bag must not stay
            self._chunks.clear()

    def mark(self) -> tuple[int, int]:
        """Return a place to :meth:`release` to."""
        return self._at

    def release(self, mark: tuple[int, int]) -> None:
        """Take back the arrays taken since ``mark``."""
        self._at = mark

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an array of that shape with any contents."""
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        room = -(-size // ALIGN) * ALIGN
        number, at = self._at
        while number < len(self._chunks) and at + room > self._chunks[number].nbytes:
            number, at = number + 1, 0
        if number == len(self._chunks):
            self._chunks.append(np.empty(max(room, CHUNK), dtype=np.uint8))
        self._at = (number, at + room)
        return self._chunks[number][at : at + size].view(dtype).reshape(shape)


class NoArena:
    """Allocates new arrays: for a device, whose memory pool reuses what is freed."""

    def __init__(self, empty: Allocate) -> None:
        self.allocate = empty

    def mark(self) -> None:
        """Do nothing."""

    def release(self, mark: None) -> None:
        """Do nothing."""


_local = threading.local()


def arena_for(array: Any) -> Any:
    """Return where matrices beside ``array`` go: the thread's arena, started; or its device."""
    xp = namespace(array)
    if xp is not np:
        return NoArena(xp.empty)
    arena: Arena | None = getattr(_local, "arena", None)
    if arena is None:
        arena = _local.arena = Arena()
    arena.start()
    return arena

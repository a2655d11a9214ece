"""Loops compiled to machine code: one pass over memory, without the interpreter's lock.

A chain of NumPy calls on a tile reads and writes it once a call, and each call takes the lock:
many threads then wait for each other more than they compute (docs/design/compiled.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

# A product may be fused with the sum that it is part of. An exponential does not bear more: that
# two roundings cancel is what it lives on.
FUSED = {"contract"}
# Sums in the order of the vector unit, which is the same in every run on a machine.
REORDERED = {"contract", "reassoc"}


def compiled(function: Callable[..., Any]) -> Any:
    """Compile without the interpreter's lock, keeping the machine code where that is possible.

    An installation that nobody may write to, used by somebody without a home (in a container, say),
    has no place for it: the function is then compiled anew in each process.

    What is kept is told from the file that the function is in: it may call compiled functions of
    that file alone, or be found as it was after they changed.
    """
    return _compiled(function)


def compiled_pairs(function: Callable[..., Any]) -> Any:
    """Do the same for a loop over arrays, with sums fused with products and division as NumPy's."""
    return _compiled(function, fastmath=FUSED, error_model="numpy")


def compiled_sums(function: Callable[..., Any]) -> Any:
    """Do the same with sums in any order; not for what has an exponential."""
    return _compiled(function, fastmath=REORDERED, error_model="numpy")


def _compiled(function: Callable[..., Any], **how: Any) -> Any:
    try:
        return numba.njit(nogil=True, cache=True, **how)(function)
    except RuntimeError:
        return numba.njit(nogil=True, **how)(function)

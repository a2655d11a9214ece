"""Loops compiled to machine code: one pass over memory, without the interpreter's lock.

A chain of NumPy calls on a tile reads and writes it once a call, and each call takes the lock:
many threads then wait for each other more than they compute (docs/design/compiled.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

# A product may be fused with the sum that it is part of. `exp` does not bear more: that its two
# roundings cancel is what it lives on.
FUSED = {"contract"}
# Sums in the order of the vector unit, which is the same in every run on a machine.
REORDERED = {"contract", "reassoc"}

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
TO_INTEGER = 6755399441055744.0  # 1.5 * 2^52: added, it leaves the nearest integer in the last bits
LEAST, MOST = -708.0, 709.0  # outside, e^x is taken for 0 and for infinity


def compiled(function: Callable[..., Any]) -> Any:
    """Compile without the interpreter's lock, keeping the machine code where that is possible.

    An installation that nobody may write to, used by somebody without a home (in a container, say),
    has no place for it: the function is then compiled anew in each process.
    """
    return _compiled(function)


def compiled_pairs(function: Callable[..., Any]) -> Any:
    """Do the same for a loop over arrays, with sums fused with products and division as NumPy's."""
    return _compiled(function, fastmath=FUSED, error_model="numpy")


def compiled_sums(function: Callable[..., Any]) -> Any:
    """Do the same with sums in any order; not for what calls :func:`exp`."""
    return _compiled(function, fastmath=REORDERED, error_model="numpy")


def _compiled(function: Callable[..., Any], **how: Any) -> Any:
    try:
        return numba.njit(nogil=True, cache=True, **how)(function)
    except RuntimeError:
        return numba.njit(nogil=True, **how)(function)


def _bits() -> tuple[Any, Any]:
    @intrinsic
    def bits_of(typing: Any, x: Any) -> Any:
        del typing, x

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            del context, signature
            return builder.bitcast(args[0], ir.IntType(64))

        return types.int64(types.float64), generate

    @intrinsic
    def of_bits(typing: Any, x: Any) -> Any:
        del typing, x

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            del context, signature
            return builder.bitcast(args[0], ir.DoubleType())

        return types.float64(types.int64), generate

    return bits_of, of_bits


_bits_of, _of_bits = _bits()


# mypy: disable-error-code="no-untyped-def"


@numba.njit(inline="always")
def _slope(r):
    """Return ``(e^r - 1) / r``, by Taylor's polynomial of degree 12: for ``|r| <= log(2) / 2``."""
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    return p * r + 1.0


@numba.njit(inline="always")
def exp(x):
    """Return ``e^x`` within 2 units in the last place, as the vector unit can: no branch, no table.

    ``x = n log 2 + r``; ``e^r`` is a polynomial, ``2^n`` an exponent. Below
    -708 it is 0, above 709 infinite.
    """
    at = min(max(x, LEAST), MOST)
    shifted = at * LOG2_E + TO_INTEGER
    n = shifted - TO_INTEGER
    r = (at - n * LN2_HIGH) - n * LN2_LOW
    p = _slope(r) * r + 1.0
    p *= _of_bits((_bits_of(shifted) + np.int64(1023)) << np.int64(52))
    if x < LEAST:
        return 0.0
    if x > MOST:
        return np.inf
    return p if x == x else x


@numba.njit(inline="always")
def expm1(x):
    """Return ``e^x - 1`` as :func:`exp` does, near 0 with all digits: for ``x`` above -37."""
    at = min(max(x, -37.0), MOST)
    shifted = at * LOG2_E + TO_INTEGER
    n = shifted - TO_INTEGER
    r = (at - n * LN2_HIGH) - n * LN2_LOW
    p = _slope(r)
    two = _of_bits((_bits_of(shifted) + np.int64(1023)) << np.int64(52))
    p = two * (p * r) + (two - 1.0)
    if x > MOST:
        return np.inf
    return p if x == x else x

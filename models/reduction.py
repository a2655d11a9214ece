"""Sums over blocks that do not depend on who added them up.

Floating-point sums depend on their order. Here the order is a tree fixed by the blocks' places in a
step alone: places pair up as in a binary counter. Whoever holds a run of consecutive places adds up
the complete subtrees in it and hands on those few sums; put together they are the same tree, to the
last bit, however the places were shared out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from models.protocol import Stats


@dataclass(frozen=True)
class Partial:
    """Sum over the places ``index << level`` to ``(index + 1) << level``.

    Attributes
    ----------
    level, index : int
    stats : Stats
    """

    level: int
    index: int
    stats: Stats


def partial_sums(parts: Iterable[Partial]) -> list[Partial]:
    """Add up what completes a subtree; parts come in the order of their places, without gaps."""
    stack: list[Partial] = []
    for part in parts:
        while part.index % 2 and stack and _siblings(stack[-1], part):
            part = Partial(part.level + 1, part.index // 2, stack.pop().stats + part.stats)
        stack.append(part)
    return stack


def total(parts: Iterable[Partial]) -> Stats:
    """Add up everything: parts in the order of their places, from place 0, without gaps."""
    stack = partial_sums(parts)
    if not stack:
        message = "a sum over no blocks"
        raise ValueError(message)
    result = stack.pop().stats
    while stack:  # the last, incomplete subtree, from right to left
        result = stack.pop().stats + result
    return result


def leaves(stats: Iterable[Stats], first: int = 0) -> Iterable[Partial]:
    """Give the sums of single blocks their places, from ``first``."""
    return (Partial(0, first + k, each) for k, each in enumerate(stats))


def _siblings(left: Partial, right: Partial) -> bool:
    return left.level == right.level and left.index + 1 == right.index

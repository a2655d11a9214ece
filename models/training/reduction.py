"""Sums over blocks that do not depend on who added them up.

Floating-point sums depend on their order. Here the order is a binary tree over all blocks of the
data, fixed by their numbers alone: halves, quarters, eighths of the store. The blocks of a step are
some of its leaves; a node with one child is that child. Whoever holds a stretch of the store adds
up the nodes that lie in it and hands on those few sums; put together they are the same tree, to the
last bit, however the store was shared out. Two, four, eight equal stretches are single nodes: each
of their owners hands on one sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from models.core.protocol import Stats


@dataclass(frozen=True)
class Partial:
    """Sum over some blocks of a step that are all the step has below one node of the tree.

    Attributes
    ----------
    leaf : int
        Any of their leaves; see :func:`leaf_of`.
    stats : Stats
    """

    leaf: int
    stats: Stats


def leaf_of(number: int, n_block: int) -> int:
    """Return the leaf of block ``number``.

    Leaves are numbered in binary, most significant bit first: the first half of the blocks has 0
    there, whatever their number.
    """
    return (number << depth(n_block)) // n_block


def depth(n_block: int) -> int:
    """Return the levels of the tree, enough for each block to have a leaf of its own."""
    return (n_block - 1).bit_length()


def span(first: int, last: int, n_block: int) -> tuple[int, int]:
    """Return the leaves that no block before ``first`` and none after ``last`` is on.

    Returns
    -------
    start, stop : int
        The leaves from ``start`` to ``stop - 1``.
    """
    start = leaf_of(first - 1, n_block) + 1 if first > 0 else 0
    stop = leaf_of(last + 1, n_block) if last + 1 < n_block else 1 << depth(n_block)
    return start, stop


def partial_sums(
    parts: Iterable[Partial], start: float = 0, stop: float = math.inf
) -> list[Partial]:
    """Add up what belongs together inside leaves ``start`` to ``stop``.

    Parameters
    ----------
    parts : iterable of Partial
        By rising leaf; everything that the step has in ``start:stop``.
    start, stop : int
        Leaves that nobody else has a part in; the whole tree where not given.

    Returns
    -------
    list of Partial
        As few as can be, by rising leaf.
    """
    stack: list[Partial] = []

    def merge(below: float) -> None:
        # Joins rise from the top of the stack down: where one sticks out, so do those under it.
        while len(stack) > 1:
            level = _join(stack[-2], stack[-1])
            first = stack[-1].leaf >> level << level
            if level >= below or not (start <= first and first + (1 << level) <= stop):
                return
            right, left = stack.pop(), stack.pop()
            stack.append(Partial(left.leaf, left.stats + right.stats))

    for part in parts:
        if stack:
            merge(_join(stack[-1], part))
        stack.append(part)
    merge(math.inf)
    return stack


def total(parts: Iterable[Partial]) -> Stats:
    """Add up everything that the step has; parts by rising leaf."""
    stack = partial_sums(parts)
    if not stack:
        message = "a sum over no blocks"
        raise ValueError(message)
    return stack[0].stats


def leaves(stats: Iterable[Stats], blocks: Iterable[int], n_block: int) -> Iterable[Partial]:
    """Give the sums of single blocks, by rising number, their leaves."""
    numbered = zip(stats, blocks, strict=True)
    return (Partial(leaf_of(number, n_block), each) for each, number in numbered)


def _join(left: Partial, right: Partial) -> int:
    """Return the level of the lowest node above both; a leaf's is 0."""
    return (left.leaf ^ right.leaf).bit_length()

"""Which blocks make up which step: random, and spread evenly over the store.

A store's blocks are dealt so that every run of a step takes about the same number from each half of
the store, each quarter, each eighth: whoever owns a stretch of the store has a fair share of every
step, however many owners there are, and the plan knows nothing of them.
"""

from __future__ import annotations

import numpy as np


def interleaved(n: int, rng: np.random.Generator) -> np.ndarray:
    """Order ``0 .. n - 1`` at random so that every run is spread evenly.

    The orders of the two halves, made likewise, take turns.

    Returns
    -------
    (n,) int64 array
        A permutation; any run of it holds as many of the first half as of the second, give or
        take one (two where ``n`` is odd), and so on for quarters and eighths.
    """
    order = np.empty(n, dtype=np.int64)
    # (first, last + 1, start and stride of its places in the order)
    open_runs = [(0, n, 0, 1)]
    while open_runs:
        low, high, start, stride = open_runs.pop()
        size = high - low
        if size == 1:
            order[start] = low
            continue
        coin = int(rng.integers(2))
        # The one that begins has one more where the number is odd.
        middle = low + (size + 1 - coin) // 2
        first, second = ((low, middle), (middle, high))[:: 1 - 2 * coin]
        open_runs.append((*second, start + stride, 2 * stride))
        open_runs.append((*first, start, 2 * stride))
    return order


def plan_epoch(
    block_bags: np.ndarray, batch_bags: int, rng: np.random.Generator
) -> list[list[int]]:
    """Share the blocks out to steps of at least ``batch_bags`` bags, in random order.

    Parameters
    ----------
    block_bags : (n_block,) int
        Training bags in each block; a block without any is left out.
    batch_bags : int
    rng : numpy Generator

    Returns
    -------
    list of list of int
        Block numbers of each step, ascending. A rest smaller than half a step joins the last one,
        because the bound estimated from a few bags alone would be wild.
    """
    used = np.flatnonzero(block_bags)
    steps: list[list[int]] = []
    current: list[int] = []
    count = 0
    for number in used[interleaved(used.size, rng)].tolist() if used.size else []:
        current.append(number)
        count += int(block_bags[number])
        if count >= batch_bags:
            steps.append(current)
            current, count = [], 0
    if current and (2 * count >= batch_bags or not steps):
        steps.append(current)
    elif current:
        steps[-1].extend(current)
    return [sorted(step) for step in steps]

"""Dividing bags by a rule, and sending them down a tree, compiled."""

from __future__ import annotations

import numpy as np

from models.backend.compiled import compiled

RELATIVE, ABSOLUTE, RELIC = 0, 1, 2

# mypy: disable-error-code="no-untyped-def"


@compiled
def count_one(row, offsets, bags, value, categorical, has_missing, hits, known):
    """Count each bag's instances that fulfil one inner condition, and those that are known."""
    for a in range(bags.size):
        low, high = offsets[bags[a]], offsets[bags[a] + 1]
        n, n_known = 0, high - low
        for i in range(low, high):
            n += (row[i] == value) if categorical else (row[i] > value)
        if has_missing:
            for i in range(low, high):
                n_known -= np.isnan(row[i])
        hits[a], known[a] = n, n_known


@compiled
def divide(bags, hits, known, spare, ratio, missing_left, variant):
    """Put the bags that go left by equation (2) before the others; return how many they are."""
    n_left, n_right = 0, 0
    for a in range(bags.size):
        if known[a] == 0:
            left = missing_left
        else:
            left = hits[a] > ratio if variant == ABSOLUTE else hits[a] / known[a] > ratio
        if left:
            bags[n_left] = bags[a]
            n_left += 1
        else:
            spare[n_right] = bags[a]
            n_right += 1
    for a in range(n_right):
        bags[n_left + a] = spare[a]
    return n_left


@compiled
def find_leaves(
    x,
    offsets,
    feature,
    value,
    ratio,
    missing_left,
    child,
    categorical,
    has_missing,
    variant,
    found,
):
    """Write the leaf that each bag falls into to ``found`` (n_bag,) int64.

    ``x`` (n_feat, n_pix) float64 and ``offsets`` are the bags; what the nodes ask is as
    :func:`bag_trees.grow_tree` returns it, but that a category is a value of ``x``;
    ``categorical`` (n_feat,) bool.
    """
    order, spare = np.arange(found.size), np.empty(found.size, np.int64)
    hits, known = np.empty(found.size, np.int64), np.empty(found.size, np.int64)
    # Node, and the part of ``order`` in it. No part is empty: there are no more than bags, however
    # deep the tree is.
    stack = np.empty((found.size, 3), np.int64)
    height = 0
    if found.size > 0:
        stack[0, 0], stack[0, 1], stack[0, 2] = 0, 0, found.size
        height = 1
    while height > 0:
        height -= 1
        node, first, last = stack[height, 0], stack[height, 1], stack[height, 2]
        f = feature[node]
        if f < 0:
            for a in range(first, last):
                found[order[a]] = node
            continue
        bags = order[first:last]
        count_one(x[f], offsets, bags, value[node], categorical[f], has_missing, hits, known)
        middle = first + divide(bags, hits, known, spare, ratio[node], missing_left[node], variant)
        if middle < last:
            stack[height, 0], stack[height, 1], stack[height, 2] = child[node] + 1, middle, last
            height += 1
        if first < middle:
            stack[height, 0], stack[height, 1], stack[height, 2] = child[node], first, middle
            height += 1

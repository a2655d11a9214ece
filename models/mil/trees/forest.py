"""Trees of a forest: each is grown from its seed, and predicts, independently of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from models.core.protocol import Arrays


class Tree(NamedTuple):
    """One tree: its seed, its nodes and each training bag's leaf as :func:`grow_tree` says."""

    seed: int
    nodes: Arrays
    found_in: np.ndarray


@dataclass(frozen=True)
class Grower:
    """Grows a tree from a seed; carries the training bags, and may be sent to another process.

    Attributes
    ----------
    x : (n_feat, n_pix) float64
        Instances, a feature in a row; categories numbered.
    offsets, label, y, n_class, criterion, variant, n_category, has_missing, codes, edges, ranges,
    n_try, n_value
        As :func:`models.mil.trees.bag_trees.grow_tree` takes them, in its order.
    """

    x: np.ndarray
    offsets: np.ndarray
    label: np.ndarray
    y: np.ndarray
    n_class: int
    criterion: int
    variant: int
    n_category: np.ndarray
    has_missing: bool
    codes: np.ndarray
    edges: np.ndarray
    ranges: np.ndarray
    n_try: int
    n_value: int

    def __call__(self, seed: int) -> Tree:
        """Grow the tree of this seed."""
        from models.mil.trees.bag_trees import grow_tree

        given = (getattr(self, each.name) for each in fields(self))
        *arrays, found_in, n_node = grow_tree(*given, np.uint64(seed))
        names = ("feature", "value", "ratio", "missing_left", "child", "leaf", "gain")
        kept = {name: a[:n_node].copy() for name, a in zip(names, arrays, strict=True)}
        return Tree(int(seed), kept, found_in)


TreeMap = Callable[[Callable[[int], Tree], Sequence[int]], Iterable[Tree]]


def predict_tree(
    params: Arrays, x: np.ndarray, offsets: np.ndarray, has_missing: bool, tree: int
) -> np.ndarray:
    """Return a tree's leaf for each bag: (n_bag, n_out)."""
    from models.mil.trees.bag_split import find_leaves

    nodes = slice(*params["tree"][tree : tree + 2])
    found = np.empty(offsets.size - 1, np.int64)
    names = ("feature", "value", "ratio", "missing_left", "child")
    nodes_of_tree = [params[name][nodes] for name in names]
    variant = int(params["variant"])
    find_leaves(x, offsets, *nodes_of_tree, params["categorical"], has_missing, variant, found)
    return params["leaf"][nodes][found]

"""Algorithm 1 of Komárek & Somol (2018), rule by rule in plain NumPy.

It evaluates every candidate rule on all instances of the node and scores it by the textbook
impurity: slow, and easy to check against the paper. From the same seed it makes the same draws as
:mod:`models.mil.trees.bag_trees`, so that both must grow the same tree.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


class Stream:
    """SplitMix64 (Steele, Lea & Flood 2014) in Python integers."""

    def __init__(self, seed: int, node: int) -> None:
        self.state = self.mix((seed + GOLDEN * (node + 1)) & MASK)

    @staticmethod
    def mix(z: int) -> int:
        """Scramble 64 bits."""
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def uniform(self) -> float:
        """Draw from [0, 1)."""
        self.state = (self.state + GOLDEN) & MASK
        return (self.mix(self.state) >> 11) / 2**53

    def below(self, n: int) -> int:
        """Draw an integer from 0 to n - 1."""
        return min(int(self.uniform() * n), n - 1)


def impurity(y: np.ndarray, criterion: str) -> float:
    """Return the impurity of the responses of some bags; classes are numbers."""
    if not y.size:
        return 0.0
    if criterion == "variance":
        return float(y.var())
    p = np.bincount(y) / y.size
    if criterion == "gini":
        return float(1 - p @ p)
    p = p[p > 0]
    return float(-(p @ np.log2(p)))


def count(
    held: np.ndarray, sizes: np.ndarray, value: float, categorical: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return how many instances of each bag fulfil the inner condition, and how many are known."""
    starts = np.cumsum(sizes) - sizes
    hits = np.add.reduceat(held == value if categorical else held > value, starts, dtype=float)
    return hits, np.add.reduceat(~np.isnan(held), starts, dtype=float)


def exceeds(hits: np.ndarray, known: np.ndarray, ratio: float, variant: str) -> np.ndarray:
    """Evaluate equation (2): (n_bag,) bool."""
    return hits > ratio if variant == "absolute" else hits / np.maximum(known, 1.0) > ratio


def grow_plain(
    x: np.ndarray,
    offsets: np.ndarray,
    y: np.ndarray,
    *,
    n_try: int,
    n_value: int,
    seed: int,
    criterion: str = "information_gain",
    variant: str = "relative",
    categorical: tuple[int, ...] = (),
) -> list[dict[str, Any]]:
    """Grow one tree; return its nodes, in the order in which they were made.

    Parameters
    ----------
    x : (n_pix, n_feat) float64
    offsets : (n_bag + 1,) int
    y : (n_bag,) array
        Labels or, with ``criterion="variance"``, numbers.
    n_try, n_value : int
        ``K`` and ``T``.
    seed : int
    criterion, variant, categorical
        As :class:`models.mil.trees.blrt.BLRT` takes them.
    """
    if criterion != "variance":
        y = np.unique(y, return_inverse=True)[1]
    all_sizes = np.diff(offsets)
    nodes: list[dict[str, Any]] = [{}]
    stack = [(0, np.arange(y.size))]
    while stack:
        number, bags = stack.pop()
        labels, sizes = y[bags], all_sizes[bags]
        nodes[number].update(feature=-1, bags=bags)
        if (labels == labels[0]).all():
            continue
        here = np.concatenate([x[offsets[b] : offsets[b + 1]] for b in bags])
        stream = Stream(seed, number)
        best, kept = np.inf, None
        pool = list(range(x.shape[1]))
        for i in range(n_try):
            k = i + stream.below(len(pool) - i)
            pool[i], pool[k] = pool[k], pool[i]
        for f in pool[:n_try]:
            seen = np.unique(here[~np.isnan(here[:, f]), f])
            if seen.size < 2:
                continue
            low, high = seen[0], seen[-1]
            if f in categorical:
                values = [seen[stream.below(seen.size)] for _ in range(n_value)]
            else:
                values = [low + stream.uniform() * (high - low) for _ in range(n_value)]
            for value in values:
                if variant == "relic":
                    ratios = [0.0, np.nextafter(1.0, 0.0)]
                elif variant == "absolute":
                    ratios = [stream.below(int(sizes.max())) + 0.5 for _ in range(n_value)]
                else:
                    ratios = [stream.uniform() for _ in range(n_value)]
                hits, known = count(here[:, f], sizes, value, f in categorical)
                known_all = known.all()
                for ratio in ratios:
                    left = exceeds(hits, known, ratio, variant)
                    for lost_left in (False,) if known_all else (False, True):
                        side = left if known_all else np.where(known > 0, left, lost_left)
                        loss = sum(
                            part.size / labels.size * impurity(part, criterion)
                            for part in (labels[side], labels[~side])
                        )
                        if loss < best - 1e-12:
                            missing = side.mean() > 0.5 if known_all else lost_left
                            best, kept = loss, (f, value, ratio, missing, side)
        if kept is None or kept[-1].all() or not kept[-1].any():
            continue
        f, value, ratio, missing, side = kept
        nodes[number].update(
            feature=f, value=value, ratio=ratio, missing_left=bool(missing), child=len(nodes)
        )
        nodes[number]["gain"] = labels.size * (impurity(labels, criterion) - best)
        stack += [(len(nodes) + 1, bags[~side]), (len(nodes), bags[side])]
        nodes += [{}, {}]
    return nodes


def predict_plain(
    nodes: list[dict[str, Any]], x: np.ndarray, offsets: np.ndarray, y: np.ndarray, **how: Any
) -> np.ndarray:
    """Return the mean of the training responses ``y`` in the leaf of each bag: (n_bag,)."""
    told = np.empty(offsets.size - 1)
    for bag in range(told.size):
        here, node = x[offsets[bag] : offsets[bag + 1]], nodes[0]
        while node["feature"] >= 0:
            categorical = node["feature"] in how.get("categorical", ())
            held, size = here[:, node["feature"]], np.array([len(here)])
            hits, known = count(held, size, node["value"], categorical)
            left = exceeds(hits, known, node["ratio"], how.get("variant", "relative"))
            side = left[0] if known[0] else node["missing_left"]
            node = nodes[node["child"] + (0 if side else 1)]
        told[bag] = y[node["bags"]].mean()
    return told

"""Nodes of Gauss-Hermite quadrature: an eigenproblem that is solved once, not for each block."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.special import roots_hermite


@cache
def hermite_nodes(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights for the weight ``exp(-x^2)``: (n,) each, read-only."""
    node, weight = roots_hermite(n)
    for each in (node, weight):
        each.setflags(write=False)
    return node, weight

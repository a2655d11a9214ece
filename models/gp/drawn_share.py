r"""A control variate for the variance of a bag's aggregate from pairs of some of its pixels.

With ``b_i = p_i a_i``, ``C = K_WW^-1 Sigma K_WW^-1`` and ``o_ij = k_i' C k_j``, the part of
``V ~ sum_ij b_i b_j S_ij`` that the inducing variables have is known without pairs,

    own = sum_ij b_i b_j o_ij = c' C c,    c = sum_i b_i k_i.

Nodes of masses ``mass`` estimate it, like ``V``, by ``w = mass a`` off the diagonal, where ``V`` is
exact on it. So the error of the nodes' pairs cancels as far as it is this part's:

    V + [own - sum_i b_i^2 o_ii] - [c_d' C c_d - sum_d w_d^2 o_dd],    c_d = sum_d w_d k_d,

over nodes ``d``. The sum over all pixels ``i`` is small, and estimated from the nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from models.backend.arrays import like, namespace
from models.gp.bag_variance import Drawn
from models.gp.pixel_pass import DrawnAdjoint, PixelPass


class DrawnShare:
    """What is to be taken from ``V + own`` of the bags whose pairs are those of nodes.

    Parameters
    ----------
    fwd : PixelPass
    factor : (n_pix,) float64
        ``a``.
    drawn : Drawn
    n_bag : int

    Attributes
    ----------
    value : (n_bag,) float64
        ``c_d' C c_d - sum_d (w_d^2 - square_d a_d^2) o_dd``; 0 for bags of which all pixels are
        nodes.
    has : (n_bag,) float64
        1 for bags of nodes.
    """

    def __init__(self, fwd: PixelPass, factor: Any, drawn: Drawn, n_bag: int) -> None:
        xp = namespace(factor)
        self._nodes = drawn.nodes
        nodes = like(drawn.nodes, factor)
        mass, square = like(drawn.mass, factor), like(drawn.square, factor)
        starts = np.flatnonzero(np.diff(drawn.bag, prepend=-1))
        ends = [*starts.tolist()[1:], drawn.bag.shape[0]]
        spans = [slice(i, j) for i, j in zip(starts.tolist(), ends, strict=True)]
        self._of = like(np.cumsum(np.diff(drawn.bag, prepend=drawn.bag[0]) != 0), factor)
        self._bags = like(drawn.bag[starts], factor)
        self._k = fwd.k[nodes].astype(xp.float64)
        self._kc = self._k @ like(fwd.params["cov"], factor, np.dtype("float64"))
        self._mass, self._lacking, self._factor = mass, mass**2 - square, factor[nodes]
        self._w = mass * self._factor
        self._over = self._lacking * self._factor**2
        self._o = (self._k * self._kc).sum(axis=1)
        weighted, turned = self._w[:, None] * self._k, self._w[:, None] * self._kc
        diagonal = self._over * self._o
        self._sums = xp.stack([weighted[at].sum(axis=0) for at in spans])
        self._turned = xp.stack([turned[at].sum(axis=0) for at in spans])
        each = xp.stack([diagonal[at].sum() for at in spans])
        self.value, self.has = xp.zeros(n_bag), xp.zeros(n_bag)
        self.value[self._bags] = (self._sums * self._turned).sum(axis=1) - each
        self.has[self._bags] = 1.0

    def backward(self, slope: Any, n_pix: int, *, slopes: bool) -> tuple[Any, DrawnAdjoint]:
        """Take the derivative of the objective by :attr:`value`, (n_bag,), back.

        ``slopes`` says whether those by ``k`` are wanted.

        Returns
        -------
        by_factor : (n_pix,) float64
        DrawnAdjoint
            By ``k`` of the nodes and by ``C``.
        """
        xp = namespace(slope)
        own = slope[self._bags]
        by = own[self._of]
        turned = self._turned[self._of]
        by_factor = xp.zeros(n_pix)
        along = (turned * self._k).sum(axis=1)
        by_factor[like(self._nodes, slope)] = (
            2.0 * by * (self._mass * along - self._lacking * self._factor * self._o)
        )
        d_k = None
        if slopes:
            d_k = 2.0 * by[:, None] * (self._w[:, None] * turned - self._over[:, None] * self._kc)
        d_cov = self._sums.T @ (own[:, None] * self._sums)
        d_cov -= self._k.T @ ((by * self._over)[:, None] * self._k)
        return by_factor, DrawnAdjoint(self._nodes, d_k, d_cov)

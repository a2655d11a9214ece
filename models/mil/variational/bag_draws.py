r"""Draws of a bag's probability: its instances' latent values are drawn together.

    f_b = V_b v + e,   v ~ q,   e ~ N(0, k(X_b, X_b) - G_b G_b'),   G_b = k(X_b, W) L^-T:

the inducing values are the same in all bags of a draw, and what they leave of the prior is drawn
jointly inside pieces of a bag of at most ``PIECE`` instances, consecutive as stored.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.special import expit

from models.core.block import BagBlock
from models.core.protocol import Arrays
from models.gp.instance_pass import InstancePass
from models.gp.kernels import Kernel
from models.likelihoods.probability import Probability
from models.mil.gpmil.bag_posterior import covariance_root
from models.mil.variational.label_factors import softplus

PIECE = 512
JITTER = 1e-8  # of a piece's covariance, as a share of the prior's
SEED_VALUES, SEED_BAGS = 4, 3


class BagDraws:
    """Joint draws of instances, bag by bag.

    Parameters
    ----------
    kernel : Kernel
    params : dict of arrays
        As of :class:`models.gp.instance_pass.InstancePass`.
    run : InstancePass
    n_draws : int
    rng : numpy Generator or None
        Where None, the inducing values are seeded by ``seed`` and what they leave by ``seed`` and
        the bag's number: the same whatever block a bag comes in.
    seed : int
    """

    def __init__(
        self,
        kernel: Kernel,
        params: Arrays,
        run: InstancePass,
        n_draws: int,
        rng: np.random.Generator | None,
        seed: int,
    ) -> None:
        self._kernel, self._theta, self._run = kernel, params["theta"], run
        self._rng, self._seed, self._n_draws = rng, seed, n_draws
        source = rng or np.random.default_rng([seed, SEED_VALUES])
        white = source.standard_normal((params["v_mean"].shape[0], n_draws))
        self._values = params["v_mean"][:, None] + params["factor"] @ white

    def of(self, z: np.ndarray, bags: BagBlock, rule: str) -> np.ndarray:
        """Draw each bag's probability, by ``any`` or ``largest``: (n_draws, n_bag)."""
        return self._any(z, bags) if rule == "any" else self._largest(z, bags)

    def _any(self, z: np.ndarray, bags: BagBlock) -> np.ndarray:
        """Return ``1 - prod_n (1 - sigma(f_n))`` (eqs. 34-36)."""
        out = np.empty((self._n_draws, bags.n_bag))
        for a, (first, stop) in enumerate(pairwise(bags.offsets.tolist())):
            rng, none = self._rng_of(bags.bag[a]), np.zeros(self._n_draws)
            for start in range(first, stop, PIECE):
                none -= softplus(self.latent(z[start : min(start + PIECE, stop)], rng)).sum(axis=0)
            out[:, a] = -np.expm1(none)
        return out

    def _largest(self, z: np.ndarray, bags: BagBlock) -> np.ndarray:
        """Return ``sigma(f_n)`` of the instance that is most probably positive."""
        found = self._run.forward(z)
        p = Probability("logistic", found.m, found.s).mean
        rows = np.array([i + int(np.argmax(p[i:j])) for i, j in pairwise(bags.offsets.tolist())])
        loadings = np.concatenate([v for _, v, _ in self._run.tiles(z[rows])])
        noise = [self._rng_of(bag).standard_normal(self._n_draws) for bag in bags.bag]
        f = loadings @ self._values + np.sqrt(found.r[rows])[:, None] * np.array(noise)
        return np.asarray(expit(f).T)

    def _rng_of(self, bag: int) -> np.random.Generator:
        return self._rng or np.random.default_rng([self._seed, SEED_BAGS, int(bag)])

    def latent(self, z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw the latent values of one piece ``z`` (n, n_dim) together: (n, n_draws)."""
        prior = self._kernel.matrix(self._theta, z, z)
        loadings = np.concatenate([v for _, v, _ in self._run.tiles(z)])
        f = loadings @ self._values
        g = loadings[:, : self._run.n_ind]
        jitter = JITTER * (float(np.trace(prior)) / z.shape[0])
        root = covariance_root(prior - g @ g.T, jitter)
        return f + root @ rng.standard_normal(f.shape)

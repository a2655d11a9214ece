r"""The end of a stochastic fit: steps on all bags, as long as pays, until little is left.

Stochastic steps die out before they arrive, and a small rise of the bound then says nothing of what
is left. So a fit ends with epochs in which ``q(u)`` stands still: the sums over their batches are
those over all bags, the bound is exact, and the natural parameters ``a`` of ``q`` move along the
whole natural gradient,

    a + length (T(a) - a),

``T(a)`` what the labels ask for under ``a``. A ``length`` of 1 is an update of the closed form,
which is slow where the labels of instances are uncertain; lengths grow while the bound rises
(Salakhutdinov & Roweis 2003) and start again at 1 from the best ``q`` where it falls. Below 1 they
are needed because the labels' factors are iterated anew under each ``q``: where these jump from one
optimum to another, a whole update can fall.

What is left is the rise to come, were it to slow down along the way as it did (Aitken): the last
rise alone says little, since it is as small as the step was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from models.backend.arrays import is_positive_definite
from models.core.protocol import Arrays
from models.gp.sparse_gp import Whitened, inverse_root

GROW, SHRINK = 1.5, 0.25
SHORTEST = 0.01  # length below which no step is taken
WINDOW = 4  # steps whose rises are compared with those of as many before
# Lengths over which the rise slows down by e, at least: fast directions die first.
LEAST_WAY = 20.0
ROUNDING = 1e-12  # of a bound, by which it may fall
N_AGREE = 3  # steps after each of which little must be left: a step too long hardly raises either
KEPT = "closing."  # before the names in a state's memory
SITE = ("precision", "linear")  # natural parameters of q beside those of the prior


@dataclass(frozen=True)
class Closing:
    """Where the last phase of a fit is.

    Attributes
    ----------
    here, target : dict of arrays
        ``precision`` (n_value, n_value) and ``linear`` (n_value,) of the best ``q`` and of what the
        labels ask for under it; ``target`` is empty before the first epoch.
    trial : dict of arrays
        Those of the ``q`` that the epoch is at.
    length : float
        Of the step from ``here`` to ``trial``; 0 where none raised the bound.
    rises : (n, 2) float64
        Of the last steps that raised the bound: lengths so far, all together, and the bound, nats.
    fell : bool
        Whether the last epoch's bound was below the best.
    """

    here: Arrays
    target: Arrays
    trial: Arrays
    length: float
    rises: np.ndarray
    fell: bool = False

    @classmethod
    def at(cls, q: Whitened) -> Closing:
        """Begin at ``q``."""
        factor = q.factor()
        inverse = np.linalg.inv(factor)
        precision = inverse.T @ inverse
        own = {"precision": precision - np.eye(q.v_mean.shape[0]), "linear": precision @ q.v_mean}
        return cls(own, {}, own, 1.0, np.zeros((0, 2)))

    def after(self, sums: Arrays, bound: float, longest: float = np.inf) -> Closing:
        """Return the phase after an epoch at ``trial``.

        Parameters
        ----------
        sums : dict of arrays
            ``precision`` and ``linear`` over all bags.
        bound : float
            Of ``trial``, nats.
        longest : float
            Length of a step, at most.
        """
        way, best = self.rises[-1] if self.rises.size else (-1.0, bound)
        fell = bool(bound < best - ROUNDING * abs(best))
        if self.length == 0.0:
            return replace(self, fell=False)
        rises = self.rises
        if not fell:
            rises = np.append(rises, [[way + self.length, bound]], axis=0)[-2 * WINDOW - N_AGREE :]
        here, target, length = self.here, self.target, self.length
        if not fell:
            here, target = self.trial, {name: sums[name] for name in SITE}
            length = min(length * GROW, longest) if self.target else length
        else:
            length = 1.0 if length > 1.0 else SHRINK * length
            length = 0.0 if length < SHORTEST else length
        trial = {name: here[name] + length * (target[name] - here[name]) for name in SITE}
        return Closing(here, target, trial, length, rises, fell)

    @property
    def ended(self) -> bool:
        """Whether no step raised the bound."""
        return self.length == 0.0 and not self.fell

    @property
    def left(self) -> float:
        """Rise of the bound that is still to come, nats; infinite where unknown."""
        if self.fell:  # the epoch's own bound is not the best: a fit ends at one that is
            return np.inf
        n = self.rises.shape[0]
        if n < 2 * WINDOW + N_AGREE:
            return np.inf
        last = range(n - N_AGREE, n)
        return max(_still_to_come(self.rises[[k - 2 * WINDOW, k - WINDOW, k]]) for k in last)

    def arrays(self) -> Arrays:
        """Return it as arrays for a state's memory, with the best ``q``."""
        parts = {"here": self.here, "target": self.target, "trial": self.trial}
        named = {
            f"{part}.{name}": each for part, own in parts.items() for name, each in own.items()
        }
        named |= {"length": np.array([self.length]), "rises": self.rises}
        q = posterior_of(self.here)
        named |= {"v_mean": q.v_mean, "root": q.root}
        return {KEPT + name: array for name, array in named.items()}

    @classmethod
    def of(cls, memory: Arrays) -> Closing:
        """Undo :meth:`arrays`."""

        def own(part: str) -> Arrays:
            named = {name: f"{KEPT}{part}.{name}" for name in SITE}
            return {name: memory[key] for name, key in named.items() if key in memory}

        length, rises = float(memory[KEPT + "length"][0]), memory[KEPT + "rises"]
        return cls(own("here"), own("target"), own("trial"), length, rises)


def best_q(memory: Arrays) -> Whitened | None:
    """Return the ``q`` of the highest bound in the last phase; None before it."""
    if KEPT + "v_mean" not in memory:
        return None
    return Whitened(memory[KEPT + "v_mean"], memory[KEPT + "root"])


def without_closing(memory: Arrays) -> Arrays:
    """Return what a state remembers besides its last phase."""
    return {name: array for name, array in memory.items() if not name.startswith(KEPT)}


def posterior_of(site: Arrays) -> Whitened:
    """Return ``q`` of natural parameters; directions wider than the prior are as wide as it."""
    precision = 0.5 * (site["precision"] + site["precision"].T)
    if not is_positive_definite(precision):
        values, vectors = np.linalg.eigh(precision)
        precision = (vectors * np.maximum(values, 0.0)) @ vectors.T
    root = inverse_root(np.eye(precision.shape[0]) + precision)
    mean = root @ (root.T @ site["linear"])
    np.fill_diagonal(root, np.log(np.diag(root)))
    return Whitened(mean, root)


def _still_to_come(rises: np.ndarray) -> float:
    """Return the rise to come by the ways and bounds (3, 2) of three steps, nats."""
    way, rise = np.diff(rises, axis=0).T
    before, now = (rise / way).tolist()
    if now >= before:
        return np.inf if now > 0 else 0.0
    slowing = 0.5 * float(way.sum()) / np.log(before / max(now, np.finfo(float).tiny))
    return float(now * max(slowing, LEAST_WAY))

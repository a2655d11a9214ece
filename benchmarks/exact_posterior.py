r"""The exact posterior of a small country: dense fields, every hyperparameter, no inducing points.

    f = mean + sum over linear terms of Z sd e + sum over spatial terms of sd L(range) v,
    e, v ~ N(0, I),   L L' = the correlation matrix of the pixels,

under the likelihoods and priors of the model itself. The unknowns are one vector: all ``e`` and
``v``, then the level (the average of ``f``, which the data tell as they do not tell the mean; its
prior is flat, too), then the logarithms of the kernel's and the likelihood's parameters, as the
model has them. ``L`` is interpolated in the logarithm of the range between Cholesky factors on a
grid, so that the density has a gradient that costs no factorisation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.linalg.blas import dtrmv

from benchmarks.hmc import Mass, slice_step
from benchmarks.prior_draws import prior_with_gradient, starting_state
from models import VBAgg
from models.backend.arrays import segment_sum, spread
from models.core.block import BagBlock
from models.gp.kernel_sums import Sum
from models.gp.kernel_terms import TermKernel
from models.gp.kernels import Kernel, Linear, Radial
from models.gp.scaling import kernel_of, scaled_inputs
from models.likelihoods.observation import bag_weights

STEP = 1.0 / 32.0  # of the logarithm of the range, between Cholesky factors
RANGES = (0.03, 60.0)  # in deviations of the coordinates: from less than a pixel to a flat field
JITTER = 1e-8
LOOSE = 0.3  # mass of hyperparameters, of which data may say little: long steps


class Roots:
    """Cholesky factors of a correlation matrix, interpolated linearly in log range.

    Parameters
    ----------
    leaf : Radial
        Of one range.
    z : (n_pix, n_dim) float64
    """

    def __init__(self, leaf: Radial, z: np.ndarray) -> None:
        self._leaf, self._z = leaf, z
        self.low, self.high = (float(v) for v in np.log(RANGES))
        self._made: dict[int, np.ndarray] = {}

    def _node(self, j: int) -> np.ndarray:
        if j not in self._made:
            theta = np.array([0.0, self.low + STEP * j])
            k = self._leaf.matrix(theta, self._z, self._z)
            k = 0.5 * (k + k.T)
            k[np.diag_indices_from(k)] += JITTER
            self._made[j] = np.asfortranarray(np.linalg.cholesky(k))
        return self._made[j]

    def around(self, log_range: float) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the factors at the nodes below and above, and the weight of the latter."""
        place = (log_range - self.low) / STEP
        below = int(place)
        return self._node(below), self._node(below + 1), place - below


def leaves(kernel: Kernel, start: int = 0) -> Iterator[tuple[Linear | Radial, slice]]:
    """Yield the terms of a sum, and where their parameters are.

    Raises
    ------
    ValueError
        If a term is neither linear nor radial with one range.
    """
    if isinstance(kernel, TermKernel):
        yield from leaves(kernel.whole, start)
    elif isinstance(kernel, Sum):
        yield from leaves(kernel.left, start)
        yield from leaves(kernel.right, start + kernel.left.n_theta)
    elif isinstance(kernel, Linear) or (isinstance(kernel, Radial) and not kernel.ard):
        yield kernel, slice(start, start + kernel.n_theta)
    else:
        msg = f"{kernel}: only sums of linear terms and of terms with one range are sampled"
        raise ValueError(msg)


class ExactPosterior:
    """Log density of everything unknown, given the responses.

    Parameters
    ----------
    model : VBAgg
        Not fitted: its kernel, likelihood and priors.
    bags : BagBlock
    held : dict of float, optional
        Hyperparameters that are known, by name; the others are sampled.

    Attributes
    ----------
    names : tuple of str
        Of the last elements of the vector: ``level``, then the hyperparameters.
    n_white : int
        Of the first, whose prior is ``N(0, 1)``.
    """

    def __init__(self, model: VBAgg, bags: BagBlock, held: dict[str, float] | None = None) -> None:
        state = starting_state(model, bags)
        fixed = state.fixed
        self.likelihood, self.link = model.resolved_likelihood, model.resolved_link
        kernel = kernel_of(model.kernel_text(fixed), fixed)
        z = scaled_inputs(fixed, bags.x, bags.coords, np.float64)
        self.base = float(fixed["base_rate"][0])
        self.y, self.offsets = bags.y, bags.offsets
        self._p = bag_weights(self.likelihood, bags.weight, bags.offsets, self.base)
        self._bag_data = self.likelihood.bag_data(bags.weight, bags.offsets, bags.trials)
        self._terms: list[tuple[slice, slice, Any]] = []
        at = 0
        for leaf, part in leaves(kernel):
            inputs: Any = z[:, leaf.columns[0] : leaf.columns[1]]
            n = inputs.shape[1] if isinstance(leaf, Linear) else z.shape[0]
            made = inputs if isinstance(leaf, Linear) else Roots(leaf, z)
            self._terms.append((slice(at, at + n), part, made))
            at += n
        self.n_white = at
        prior_names, self._prior = prior_with_gradient(model, fixed)
        free = [name for name in self.likelihood.parameters if name not in prior_names]
        self.names = ("level", *prior_names, *free)
        self.n_dim = at + len(self.names)
        self._n_prior, self._n_theta = len(prior_names), kernel.n_theta
        self._held = {self.names.index(name): value for name, value in (held or {}).items()}
        learnt = state.params
        own = [learnt[name] for name in self.names[1 + kernel.n_theta :]]
        self._start = np.concatenate([learnt["mean"], learnt["theta"], *own])
        for k, value in self._held.items():
            self._start[k] = value

    def start(self, rng: np.random.Generator, apart: float = 0.5) -> np.ndarray:
        """Return a point to begin at: (n_dim,)."""
        tail = self._start + apart * rng.standard_normal(len(self.names))
        for k, value in self._held.items():
            tail[k] = value
        return np.concatenate([0.1 * rng.standard_normal(self.n_white), tail])

    def latent(self, q: np.ndarray) -> np.ndarray:
        """Return ``f`` at a point: (n_pix,)."""
        return self._forward(self._pinned(q))[0]

    def rate(self, q: np.ndarray) -> np.ndarray:
        """Return the rates at a point, per unit of weight: (n_pix,)."""
        return np.asarray(self.base * self.link.value(self.latent(q)))

    def hyperparameters(self, q: np.ndarray) -> np.ndarray:
        """Return the mean and the logarithms of all others, as :attr:`names`, but no level."""
        q = self._pinned(q)
        _, kept = self._forward(q)
        tail = q[self.n_white :].copy()
        for (white, _, made), held in zip(self._terms, kept, strict=True):
            value = held[-1] if isinstance(made, Roots) else made @ (held[0] * q[white])
            tail[0] -= value.mean()
        return tail

    def _pinned(self, q: np.ndarray) -> np.ndarray:
        """Return a copy with the known hyperparameters, which momenta would carry away."""
        q = q.copy()
        for k, value in self._held.items():
            q[self.n_white + k] = value
        return q

    def _forward(self, q: np.ndarray) -> tuple[np.ndarray, list[Any]]:
        theta = q[self.n_white + 1 :][: self._n_theta]
        f = np.full(self._p.size, q[self.n_white])
        kept: list[Any] = []
        for white, part, made in self._terms:
            at = theta[part]
            if isinstance(made, Roots):
                low, high, share = made.around(float(at[1]))
                first, second = (dtrmv(each, q[white], lower=1) for each in (low, high))
                sd = np.exp(0.5 * at[0])
                value = sd * ((1.0 - share) * first + share * second)
                by_range = sd * (second - first) / STEP
                kept.append((low, high, share, by_range, sd, value))
            else:
                sd = np.exp(0.5 * at) * np.ones(made.shape[1])
                value = made @ (sd * q[white])
                kept.append((sd,))
            f += value - value.mean()
        return f, kept

    def _backward(self, q: np.ndarray, kept: list[Any], g: np.ndarray) -> np.ndarray:
        """Return the gradient of a function of ``f`` with adjoint ``g`` (n_pix,): (n_dim,)."""
        grad = np.zeros(self.n_dim)
        grad[self.n_white] = g.sum()
        g = g - g.mean()
        theta = grad[self.n_white + 1 :]
        for (white, part, made), held in zip(self._terms, kept, strict=True):
            if isinstance(made, Roots):
                low, high, share, by_range, sd, value = held
                first, second = (dtrmv(each, g, lower=1, trans=1) for each in (low, high))
                grad[white] = sd * ((1.0 - share) * first + share * second)
                theta[part] = 0.5 * (g @ value), g @ by_range
            else:
                by = made.T @ g
                grad[white] = held[0] * by
                each = 0.5 * grad[white] * q[white]
                theta[part] = each.sum() if part.stop - part.start == 1 else each
        return grad

    def _own(self, q: np.ndarray) -> dict[str, float]:
        tail = q[self.n_white :]
        return {name: float(tail[self.names.index(name)]) for name in self.likelihood.parameters}

    def _outside(self, q: np.ndarray) -> bool:
        tail = q[self.n_white :]
        theta = tail[1 : 1 + self._n_theta]
        if not np.isfinite(q).all() or np.abs(tail[1:]).max(initial=0.0) > 60.0:
            return True
        return any(
            isinstance(made, Roots) and not made.low <= theta[part][1] <= made.high
            for _, part, made in self._terms
        )

    def density(self, q: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the log density, up to a constant, and its gradient (n_dim,)."""
        q = self._pinned(q)
        nothing = -np.inf, np.zeros(self.n_dim)
        if self._outside(q):
            return nothing
        tail = q[self.n_white :]
        own = self._own(q)
        f, kept = self._forward(q)
        if np.abs(f).max() > 300.0:
            return nothing
        eta = self.likelihood.inside(segment_sum(self._p * self.link.value(f), self.offsets), 1e-12)
        at = self.likelihood.terms(self.y, eta, own, self._bag_data, order=1)
        grad = self._backward(q, kept, spread(at.d1, self.offsets) * self._p * self.link.slope(f))
        white = q[: self.n_white]
        prior, by_prior = self._prior(tail[1 : 1 + self._n_prior])
        grad[: self.n_white] -= white
        grad[self.n_white + 1 :][: self._n_prior] += by_prior
        for name, each in at.by.items():
            grad[self.n_white + self.names.index(name)] += float(np.sum(each))
        for k in self._held:
            grad[self.n_white + k] = 0.0
        value = float(at.value.sum()) - 0.5 * float(white @ white) + prior
        return (value, grad) if np.isfinite(value) and np.isfinite(grad).all() else nothing

    def mass_at(self, q: np.ndarray) -> Mass:
        """Return 1 and the data's expected curvature: of each bag's aggregate, a row."""
        q = self._pinned(q)
        f, kept = self._forward(q)
        eta = self.likelihood.inside(segment_sum(self._p * self.link.value(f), self.offsets), 1e-12)
        own = self._own(q)
        curve = -np.asarray(self.likelihood.terms(self.y, eta, own, self._bag_data, order=3).d2)
        rows = np.zeros((eta.size, self.n_dim))
        slope = self._p * self.link.slope(f)
        for a in range(eta.size):
            g = np.zeros(f.size)
            here = slice(self.offsets[a], self.offsets[a + 1])
            g[here] = slope[here]
            rows[a] = self._backward(q, kept, g) * np.sqrt(max(float(curve[a]), 0.0))
        for k in self._held:
            rows[:, self.n_white + k] = 0.0
        own = np.ones(self.n_dim)
        own[self.n_white :] = LOOSE
        return Mass(own, rows)

    def refresh(self, q: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw the variances of linear terms anew, given the slopes (Yu and Meng 2011).

        A slope that data determine leaves its variance little room while the whitened slope is
        held. Given the slopes, the data say nothing more of the variances. Then each range moves,
        alone or along the ridge on which data cannot tell it from the variance.
        """
        q = self._pinned(q)
        theta = q[self.n_white + 1 :][: self._n_prior]
        for white, part, made in self._terms:
            if isinstance(made, Roots):
                if not {1 + part.start, 2 + part.start} & set(self._held):
                    self._along_ridge(q, part, rng)
                continue
            for k in range(part.start, part.stop):
                if 1 + k in self._held:
                    continue
                one = part.stop - part.start == 1
                here = white if one else slice(white.start + k - part.start, None)
                e = q[here] if one else q[here][:1]
                square, n, now = float(e @ e), e.size, float(theta[k])

                def log_density(
                    at: float, k: int = k, square: float = square, n: int = n, now: float = now
                ) -> float:
                    moved = theta.copy()
                    moved[k] = at
                    white_part = -0.5 * (square * np.exp(now - at) + n * at)
                    return float(white_part) + self._prior(moved)[0]

                theta[k] = slice_step(log_density, now, rng)
                e *= np.exp(0.5 * (now - theta[k]))
        return q

    def _along_ridge(self, q: np.ndarray, part: slice, rng: np.random.Generator) -> None:
        """Move range and variance of a spatial term along a line, in place."""
        line = np.zeros(self.n_dim)
        # Of a Matern-3/2 field in a plane, small scales determine variance / range^3.
        line[self.n_white + 1 :][part] = (3.0 * (rng.random() < 0.5), 1.0)
        q += line * slice_step(lambda step: self.density(q + step * line)[0], 0.0, rng)

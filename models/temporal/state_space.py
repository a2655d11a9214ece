r"""The prior over periods as a state space; filter, smoother, their adjoints, and joint draws.

``v_t = H s_t`` are the whitened inducing values of period ``t``, all terms one after the other: a
term with ``n`` values and a kernel in time of ``d`` states has ``n d`` states, whose ``n`` columns
are independent and alike a priori. What the data say of ``v_t`` is one Gaussian site a period,

    exp(lambda_t' v_t - v_t' B_t' B_t v_t / 2),

with a root ``B_t`` of as many rows as its precision has rank; none where a period has no data, or
is a forecast. The filter's update with it costs ``O(D^2 rank)`` of ``D`` states, never an inverse
of ``D x D``, and what holds still costs nothing to predict. The smoother is that of Bryson and
Frazier (1963; Bierman 1973): backward run the slopes of ``log Z`` by the predicted moments,

    mu_t = C'(H'g + mu),    Lambda_t = C' Lambda C + H'B' S^-1 B H,

which need no inverse of a covariance (constants have no noise), and which are, at the same time,
the adjoints by the transition matrices. All of it is hundreds of products of small matrices, one
after the other, for which threads of BLAS wait longer than they compute: 463 states by 120 periods
are smoothed in a third of the time by one. Draws are those of Durbin & Koopman (2002): a path of
the prior, moved by the smoothed mean of what the sites see of it; exact where states have no noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy.linalg import solve_triangular

from models.backend.arrays import cholesky
from models.backend.blas import one_blas_thread
from models.core.errors import NumericalError
from models.temporal.markov import Constant, MarkovKernel
from models.temporal.path_prior import Group, SiteSlopes, Smoothed
from models.temporal.sites import Arrow, Site, Split


@dataclass
class _Kept:
    """What the way back needs of one step of the filter; see :meth:`StateSpace._filtered`."""

    mean: np.ndarray
    cov: np.ndarray
    gain: np.ndarray
    lower: np.ndarray
    seen: np.ndarray
    g: np.ndarray


class StateSpace:
    """The prior of ``s_1 ... s_T``.

    Parameters
    ----------
    groups : sequence of Group
        Which cover all values.
    times : (n_period,) float64
        Ascending.
    start : ((n_state,), (n_state, n_state)) float64, optional
        Mean and covariance of the first state; stationary where not given.
    split : Split, optional
        Of what is asked for; all values are shared where not given.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        times: np.ndarray,
        start: tuple[np.ndarray, np.ndarray] | None = None,
        split: Split | None = None,
    ) -> None:
        self.groups, self._times = tuple(groups), np.asarray(times, dtype=np.float64)
        sizes = [group.values.size * group.kernel.n_state for group in groups]
        ends = np.cumsum([0, *sizes])
        self._rows = [slice(i, j) for i, j in pairwise(ends.tolist())]
        self.n_state = int(ends[-1])
        self.n_value = sum(group.values.size for group in groups)
        self.split = split or Split(self.n_value)
        self._h = [group.kernel.observation_model() for group in groups]
        self._p = [group.kernel.stationary_covariance(group.theta) for group in groups]
        self._steps, self._start = np.diff(self.times), start
        self._made: dict[float, list[np.ndarray]] = {}

    @one_blas_thread()
    def after(self, sites: Sequence[Site]) -> StateSpace:
        """Return the prior of the periods after those of ``sites``, which are known."""
        n = len(sites)
        if not n:
            return self
        kept, _ = StateSpace(self.groups, self.times[:n], self._start)._filtered(_roots(sites))
        step = float(self._steps[n - 1])
        mean = self._moved(kept[-1].mean[:, None], step)[:, 0]
        start = (mean, self._predicted(kept[-1].cov, step))
        return StateSpace(self.groups, self.times[n:], start, self.split)

    @property
    def times(self) -> np.ndarray:
        """Times of the periods: (n_period,)."""
        return self._times

    # -- products with A and H, which hold blocks of multiples of the identity -------------------

    def _transition(self, step: float) -> list[np.ndarray]:
        if step not in self._made:
            each = [g.kernel.transition_matrix(g.theta, step) for g in self.groups]
            self._made[step] = each
        return self._made[step]

    def _moved(self, x: np.ndarray, step: float, *, transposed: bool = False) -> np.ndarray:
        """Return ``A x`` or ``A'x`` of (n_state, n)."""
        out = x.copy()
        for group, rows, a in zip(self.groups, self._rows, self._transition(step), strict=True):
            if not group.kernel.still:
                a = a.T if transposed else a
                part = x[rows].reshape(a.shape[0], group.values.size * x.shape[1])
                out[rows] = (a @ part).reshape(x[rows].shape)
        return out

    def _noise(self, number: int, step: float) -> np.ndarray:
        a, p = self._transition(step)[number], self._p[number]
        found = p - a @ p @ a.T
        return 0.5 * (found + found.T)

    def _predicted(self, cov: np.ndarray, step: float) -> np.ndarray:
        """Return ``A P A' + Q``."""
        half = self._moved(cov, step)
        found = self._moved(np.ascontiguousarray(half.T), step)
        for number, (group, rows) in enumerate(zip(self.groups, self._rows, strict=True)):
            if not group.kernel.still:
                _add_block(found, rows, self._noise(number, step), group.values.size)
        return 0.5 * (found + found.T)

    def observed(self, x: np.ndarray) -> np.ndarray:
        """Return ``H x`` of states (n_state, n): (n_value, n)."""
        out = np.empty((self.n_value, x.shape[1]))
        for group, rows, h in zip(self.groups, self._rows, self._h, strict=True):
            part = x[rows].reshape(h.size, group.values.size, x.shape[1])
            out[group.values] = np.tensordot(h, part, 1)
        return out

    def _spread(self, y: np.ndarray) -> np.ndarray:
        """Return ``H'y`` of values (n_value, n): (n_state, n)."""
        out = np.empty((self.n_state, y.shape[1]))
        for group, rows, h in zip(self.groups, self._rows, self._h, strict=True):
            part = h[:, None, None] * y[group.values]
            out[rows] = part.reshape(h.size * group.values.size, y.shape[1])
        return out

    @cached_property
    def stationary(self) -> np.ndarray:
        """Covariance of the first state: (n_state, n_state)."""
        found = np.zeros((self.n_state, self.n_state))
        for group, rows, p in zip(self.groups, self._rows, self._p, strict=True):
            _add_block(found, rows, p, group.values.size)
        return found

    # -- filter and smoother ---------------------------------------------------------------------

    def _filtered(self, sites: Sequence[Rooted]) -> tuple[list[_Kept], float]:
        """Return the filter's steps, and ``log Z``."""
        mean, cov = self._start or (np.zeros(self.n_state), self.stationary)
        log_z, kept = 0.0, []
        for t, site in enumerate(sites):
            if t:
                step = float(self._steps[t - 1])
                mean = self._moved(mean[:, None], step)[:, 0]
                cov = self._predicted(cov, step)
            v = self.observed(mean[:, None])[:, 0]
            turned = site.root @ v
            g = site.linear - site.root.T @ turned
            log_z += float(site.linear @ v) - 0.5 * float(turned @ turned)
            across = np.ascontiguousarray(self.observed(cov).T)  # P H'
            gain = across @ site.root.T  # P H'B'
            seen = self.observed(gain).T @ site.root.T
            try:
                lower = _root_of_seen(seen)
            except np.linalg.LinAlgError as error:
                msg = (
                    f"the filter broke down in period {t}: its covariance is not positive; use "
                    "fewer inducing points"
                )
                raise NumericalError(msg) from error
            half = solve_triangular(lower, gain.T, lower=True, check_finite=False).T
            cov = cov - half @ half.T
            by_v = across @ g - half @ (half.T @ self._spread(g[:, None]))[:, 0]
            log_z += 0.5 * float(g @ self.observed(by_v[:, None])[:, 0])
            log_z -= float(np.log(np.diag(lower)).sum())
            mean = mean + by_v
            kept.append(_Kept(mean, cov, gain, lower, self._spread(site.root.T), g))
        return kept, log_z

    @one_blas_thread()
    def smooth(self, sites: Sequence[Site], *, slopes: bool = False) -> Smoothed:
        """Return the posterior of all ``v_t``.

        Parameters
        ----------
        sites : (n_period,) sequence of Site
        slopes : bool
            Whether those by the kernels' parameters are wanted.
        """
        cov: list[Arrow] = []

        def take(at: _Kept, curve: np.ndarray) -> None:
            across = np.ascontiguousarray(self.observed(at.cov).T)  # P H' after the update
            own = self.observed(across) - across.T @ (curve @ across)
            cov.append(Arrow.of(0.5 * (own + own.T), self.split))

        mean, log_z, by_time = self._smoothed(_roots(sites), take, slopes=slopes)
        return Smoothed(mean, cov[::-1], log_z, by_time)

    @one_blas_thread()
    def site_slopes(self, sites: Sequence[Site]) -> SiteSlopes:
        """Return what slopes by functions of the sites need; see :class:`SiteSlopes`.

        Of covariances ``C`` only ``B C`` is asked for, which has as many rows as a site's rank.
        """
        seen: list[np.ndarray] = []

        def take(at: _Kept, curve: np.ndarray) -> None:
            across = at.cov @ at.seen  # P H'B' after the update
            seen.append(self.observed(across - at.cov @ (curve @ across)).T)

        rooted = _roots(sites)
        mean, _, by_time = self._smoothed(rooted, take, slopes=True)
        products = []
        for site, by_root in zip(rooted, seen[::-1], strict=True):
            (b, own_b), (c, own_c) = self.split.parts(site.root.T), self.split.parts(by_root.T)
            products.append((b @ c.T, float(np.vdot(own_b, own_c))))
        return SiteSlopes(mean, products, by_time)

    @property
    def n_byte(self) -> int:
        """Memory that a smoother holds: a covariance of the states for each period."""
        return 8 * self.times.size * self.n_state**2

    def _smoothed(
        self, sites: Sequence[Rooted], take: Callable[[_Kept, np.ndarray], None], *, slopes: bool
    ) -> tuple[np.ndarray, float, list[np.ndarray]]:
        """Return the means, ``log Z``, and its slopes where wanted.

        ``take`` is called for each period, the last first, with what the filter kept of it and the
        slopes by the predicted covariance of the next, at this one.
        """
        kept, log_z = self._filtered(sites)
        n_period = len(kept)
        mean = np.empty((n_period, self.n_value))
        mu, curve = np.zeros(self.n_state), np.zeros((self.n_state, self.n_state))
        by_a: list[dict[int, np.ndarray]] = [{} for _ in range(n_period)]
        by_p = [np.zeros_like(p) for p in self._p]
        for t in range(n_period - 1, -1, -1):
            at = kept[t]
            mean[t] = self.observed((at.mean + at.cov @ mu)[:, None])[:, 0]
            take(at, curve)
            mu, curve = self._back(at, mu, curve)
            if slopes:
                step = float(self._steps[t - 1]) if t else None
                self._slopes(kept[t - 1] if t else None, step, mu, curve, by_a[t], by_p)
            if t:
                step = float(self._steps[t - 1])
                mu = self._moved(mu[:, None], step, transposed=True)[:, 0]
                half = self._moved(curve, step, transposed=True)
                curve = self._moved(np.ascontiguousarray(half.T), step, transposed=True)
        return mean, log_z, self._by_theta(by_a, by_p) if slopes else []

    def _back(self, at: _Kept, mu: np.ndarray, curve: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take the slopes by the updated moments back to those by the predicted ones."""
        whole = mu + self._spread(at.g[:, None])[:, 0]
        inner = solve_triangular(at.lower, at.seen.T, lower=True, check_finite=False)
        turn = solve_triangular(at.lower, inner, lower=True, trans=1, check_finite=False)
        mu = whole - turn.T @ (at.gain.T @ whole)
        # With C = 1 - gain turn: C' curve C + (BH)' turn, as half of it and its transpose.
        across = curve @ at.gain
        half = turn.T @ (across.T - 0.5 * (at.gain.T @ across) @ turn - 0.5 * at.seen.T)
        return mu, curve - half - half.T

    def _slopes(
        self,
        before: _Kept | None,
        step: float | None,
        mu: np.ndarray,
        curve: np.ndarray,
        by_a: dict[int, np.ndarray],
        by_p: list[np.ndarray],
    ) -> None:
        """Add the slopes of ``log Z`` by ``A`` of one step and by ``P`` of each group."""
        for number, (group, rows) in enumerate(zip(self.groups, self._rows, strict=True)):
            if not group.kernel.n_theta:
                continue
            n = group.values.size
            g_rows = 0.5 * (np.outer(mu[rows], mu) - curve[rows])  # by the predicted covariance
            own = traced(g_rows[:, rows], n)
            if before is None or step is None:
                by_p[number] += own
                continue
            a, p = self._transition(step)[number], self._p[number]
            moved = self._moved(np.ascontiguousarray(before.cov[:, rows]), step)
            by = 2.0 * (_traced_product(g_rows, moved, n) - own @ a @ p)
            d = own.shape[0]
            by += mu[rows].reshape(d, n) @ before.mean[rows].reshape(d, n).T
            by_a[number] = by
            by_p[number] += own - a.T @ own @ a

    def _by_theta(
        self, by_a: list[dict[int, np.ndarray]], by_p: list[np.ndarray]
    ) -> list[np.ndarray]:
        found = []
        for number, group in enumerate(self.groups):
            grad = np.zeros(group.kernel.n_theta)
            if grad.size:
                known: dict[float, np.ndarray] = {}
                for t, own in enumerate(by_a):
                    if number in own:
                        step = float(self._steps[t - 1])
                        if step not in known:
                            known[step] = group.kernel.slopes(group.theta, step)[0]
                        grad += np.tensordot(known[step], own[number], 2)
                grad += np.tensordot(group.kernel.slopes(group.theta, 1.0)[1], by_p[number], 2)
            found.append(grad)
        return found

    # -- draws -----------------------------------------------------------------------------------

    def prior_draws(self, n_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw paths of ``v`` from the prior: (n_period, n_value, n_draws)."""
        return prior_paths(self.groups, self.times, n_draws, rng)

    @one_blas_thread()
    def draws(self, sites: Sequence[Site], n_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw ``v_1 ... v_T`` jointly from the posterior: (n_period, n_value, n_draws)."""
        drawn = self.prior_draws(n_draws, rng)
        rooted, linear = _roots(sites), []
        for site, v in zip(rooted, drawn, strict=True):
            noise = rng.standard_normal((site.root.shape[0], n_draws))
            linear.append(site.linear[:, None] - site.root.T @ (site.root @ v + noise))
        return drawn + self._means(rooted, linear)

    def _means(self, sites: Sequence[Rooted], linear: Sequence[np.ndarray]) -> np.ndarray:
        """Return the smoothed means under other linear parts, columns of (n_value, n) a period."""
        kept, _ = self._filtered(sites)
        n = linear[0].shape[1]
        mean, ahead, pulls = np.zeros((self.n_state, n)), [], []
        for t, (site, own, at) in enumerate(zip(sites, linear, kept, strict=True)):
            if t:
                mean = self._moved(mean, float(self._steps[t - 1]))
            g = own - site.root.T @ (site.root @ self.observed(mean))
            pull = self._spread(g)
            mean = mean + at.cov @ pull
            ahead.append(mean)
            pulls.append(pull)
        out, mu = np.empty((len(kept), self.n_value, n)), np.zeros((self.n_state, n))
        for t in range(len(kept) - 1, -1, -1):
            at = kept[t]
            out[t] = self.observed(ahead[t] + at.cov @ mu)
            whole = mu + pulls[t]
            inner = solve_triangular(at.lower, at.gain.T @ whole, lower=True, check_finite=False)
            inner = solve_triangular(at.lower, inner, lower=True, trans=1, check_finite=False)
            mu = whole - at.seen @ inner
            if t:
                mu = self._moved(mu, float(self._steps[t - 1]), transposed=True)
        return out


@dataclass(frozen=True)
class Rooted:
    """A site as the filter reads it.

    Attributes
    ----------
    linear : (n_value,) float64
    root : (rank, n_value) float64
        Of the precision over all values.
    """

    linear: np.ndarray
    root: np.ndarray


def _roots(sites: Sequence[Site]) -> list[Rooted]:
    return [Rooted(site.linear, site.whole_root()) for site in sites]


def prior_paths(
    groups: Sequence[Group], times: np.ndarray, n_draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw paths of ``v`` from the prior: (n_period, n_value, n_draws)."""
    paths = [
        draw_paths(group.kernel, group.theta, times, (group.values.size, n_draws), rng)
        for group in groups
    ]
    out = np.empty((times.size, sum(group.values.size for group in groups), n_draws))
    for group, path in zip(groups, paths, strict=True):
        out[:, group.values] = path
    return out


def draw_paths(
    kernel: MarkovKernel,
    theta: np.ndarray,
    times: np.ndarray,
    shape: tuple[int, ...],
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw independent paths of a kernel in time: (n_period, *shape)."""
    h, p = kernel.observation_model(), kernel.stationary_covariance(theta)
    if kernel.still:
        drawn = np.sqrt(h @ p @ h) * rng.standard_normal(shape)
        return np.broadcast_to(drawn, (times.size, *shape))
    size, out = int(np.prod(shape)), np.empty((times.size, *shape))
    state = _square_root(p) @ rng.standard_normal((h.size, size))
    out[0] = (h @ state).reshape(shape)
    for t, step in enumerate(np.diff(times), start=1):
        a = kernel.transition_matrix(theta, float(step))
        noise = _square_root(p - a @ p @ a.T)
        state = a @ state + noise @ rng.standard_normal((h.size, size))
        out[t] = (h @ state).reshape(shape)
    return out


def groups_by_time(
    of: np.ndarray, kernels: Sequence[MarkovKernel], theta: Sequence[np.ndarray]
) -> list[Group]:
    """Return inducing values by their kernel in time.

    Parameters
    ----------
    of : (n_value,) int64
        Number of each value's kernel; below 0 where it holds still.
    kernels, theta : sequence
    """
    groups = []
    if (of < 0).any():
        groups.append(Group(Constant(), np.zeros(0), np.flatnonzero(of < 0)))
    for number, (kernel, own) in enumerate(zip(kernels, theta, strict=True)):
        groups.append(Group(kernel, own, np.flatnonzero(of == number)))
    return groups


def with_theta(groups: Sequence[Group], theta: Sequence[np.ndarray]) -> list[Group]:
    """Return the groups with other parameters of their kernels."""
    return [replace(group, theta=own) for group, own in zip(groups, theta, strict=True)]


def _square_root(cov: np.ndarray) -> np.ndarray:
    value, vector = np.linalg.eigh(0.5 * (cov + cov.T))
    return np.asarray(vector * np.sqrt(np.maximum(value, 0.0)))


def _root_of_seen(seen: np.ndarray) -> np.ndarray:
    lower = np.asarray(cholesky(np.eye(seen.shape[0]) + 0.5 * (seen + seen.T)))
    if not np.isfinite(np.diag(lower)).all():
        raise np.linalg.LinAlgError
    return lower


def _add_block(a: np.ndarray, rows: slice, small: np.ndarray, n: int) -> None:
    """Add ``small`` times the identity of ``n`` to a diagonal block, in place."""
    at = np.arange(n)
    for i in range(small.shape[0]):
        for j in range(small.shape[0]):
            a[rows.start + i * n + at, rows.start + j * n + at] += small[i, j]


def traced(block: np.ndarray, n: int) -> np.ndarray:
    """Return the traces of the n x n blocks of a (d n, d n) matrix: (d, d)."""
    d = block.shape[0] // n
    return np.asarray(np.einsum("imjm->ij", block.reshape(d, n, d, n)))


def _traced_product(left: np.ndarray, right: np.ndarray, n: int) -> np.ndarray:
    """Return the traces of the n x n blocks of ``left right``, (d n, k) and (k, d n): (d, d)."""
    d = left.shape[0] // n
    by_left = left.reshape(d, -1)
    by_right = np.ascontiguousarray(right.T).reshape(d, -1)
    return np.asarray(by_left @ by_right.T)

r"""The prior over periods as a state space; filter, smoother, their adjoints, and joint draws.

``v_t = H x_t + c`` are the whitened inducing values of period ``t``, all terms one after the other,
``x_t`` their states that move and ``c`` what holds still (:mod:`models.temporal.states`). What the
data say of ``v_t`` is one Gaussian site a period,

    exp(lambda_t' v_t - v_t' B_t' B_t v_t / 2),

with a root ``B_t`` of as many rows as its precision has rank; none where a period has no data, or
is a forecast. Given ``c`` the filter's moments are ``x_t ~ N(a_t + T_t c, P_t)``. With
``E = B H T + B``, ``S = 1 + B H P H'B'`` and ``S = L L'`` an update with a site is

    P <- P - G G',  G = P H'B' L^-T,      T <- T - G W,  W = L^-1 E,

and ``c`` has the precision ``sum_t W_t' W_t``; ``O(n_x^2 rank)``, never an inverse of ``n_x x
n_x``. The smoother is that of Bryson and Frazier (1963; Bierman 1973): backward run the slopes of
``log Z`` by the predicted moments, with ``C = 1 - G L^-1 B H``,

    mu_t = C'(H'g + mu),    Lambda_t = C' Lambda C + H'B' S^-1 B H,

which need no inverse of a covariance, and which are, at the same time, the adjoints by the
transition matrices. They are linear in ``c`` as well, and averaged over it (Fisher's identity).
All of it is hundreds of products of small matrices, one after the other, for which threads of BLAS
wait longer than they compute. Draws are those of Durbin & Koopman (2002): a path of the prior,
moved by the smoothed mean of what the sites see of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.linalg import solve_triangular

from models.backend.blas import one_blas_thread
from models.core.errors import NumericalError
from models.temporal.path_prior import Group, SiteSlopes, Smoothed
from models.temporal.path_slopes import PathSlopes
from models.temporal.prior_paths import prior_paths
from models.temporal.sites import Arrow, Site, Split
from models.temporal.states import Part, Step, Still, root_of


@dataclass(frozen=True)
class _Start:
    """The states before the first period: ``x ~ N(mean [1, c], cov)``, and ``c``."""

    mean: np.ndarray
    cov: np.ndarray
    still: Still


@dataclass(frozen=True)
class _Run:
    """The filter's steps; the posterior of what holds still, and the slopes by its variances."""

    steps: list[Step]
    still: Still
    log_z: float
    by_variance: np.ndarray


class StateSpace:
    """The prior of ``v_1 ... v_T``.

    Parameters
    ----------
    groups : sequence of Group
        Which cover all values.
    times : (n_period,) float64
        Ascending.
    split : Split, optional
        Of what is asked for; all values are shared where not given.
    """

    def __init__(
        self, groups: Sequence[Group], times: np.ndarray, split: Split | None = None
    ) -> None:
        self.groups, self._times = tuple(groups), np.asarray(times, dtype=np.float64)
        self._parts = [Part(group) for group in groups]
        sizes = [part.values.size * part.h.size for part in self._parts]
        ends = np.cumsum([0, *sizes]).tolist()
        self._rows = [slice(i, j) for i, j in pairwise(ends)]
        self._n_x = ends[-1]
        holding = [part for part in self._parts if part.holds]
        moving = [part for part in self._parts if part.h.size]
        self._still_values = _joined([part.values for part in holding])
        self._moving_values = _joined([part.values for part in moving])
        self.n_value = sum(group.values.size for group in groups)
        self.split = split or Split(self.n_value)
        # Of the values that move those that have a part that holds still, and which; and the rest.
        _, *self._both = np.intersect1d(
            self._moving_values, self._still_values, assume_unique=True, return_indices=True
        )
        self._alone = np.delete(np.arange(self._still_values.size), self._both[1])
        ordered = np.concatenate([self._moving_values, self._still_values[self._alone]])
        self._place = np.argsort(ordered)
        self._steps = np.diff(self._times)
        self._made: dict[float, list[np.ndarray]] = {}
        variance = [np.full(part.values.size, part.variance) for part in holding]
        sd = np.sqrt(np.concatenate([np.zeros(0), *variance]))
        cov = np.zeros((self._n_x, self._n_x))
        for part, rows in zip(self._parts, self._rows, strict=True):
            _add_block(cov, rows, part.p, part.values.size)
        n_still = sd.size
        still = Still(np.zeros(n_still), np.diag(sd))
        self._start = _Start(np.zeros((self._n_x, 1 + n_still)), cov, still)
        self._before: tuple[StateSpace, list[Site]] | None = None

    @one_blas_thread()
    def after(self, sites: Sequence[Site]) -> StateSpace:
        """Return the prior of the periods after those of ``sites``, which are known."""
        n = len(sites)
        if not n:
            return self
        run = self._filtered(_roots(sites))
        step, last = float(self._steps[n - 1]), run.steps[-1]
        found = StateSpace(self.groups, self.times[n:], self.split)
        found._start = _Start(
            self._moved(last.mean, step), self._predicted(last.cov, step), run.still
        )
        whole, known = self._before or (self, [])
        found._before = whole, [*known, *sites]
        return found

    @property
    def times(self) -> np.ndarray:
        """Times of the periods: (n_period,)."""
        return self._times

    # -- products with A and H, which hold blocks of multiples of the identity -------------------

    def _transition(self, step: float) -> list[np.ndarray]:
        if step not in self._made:
            self._made[step] = [part.transition(step) for part in self._parts]
        return self._made[step]

    def _moved(self, x: np.ndarray, step: float, *, transposed: bool = False) -> np.ndarray:
        """Return ``A x`` or ``A'x`` of (n_x, n)."""
        out = np.empty_like(x)
        for rows, a in zip(self._rows, self._transition(step), strict=True):
            if a.size == 1:
                np.multiply(x[rows], a[0, 0], out=out[rows])
            elif a.size:
                part = x[rows].reshape(a.shape[0], -1)
                out[rows] = ((a.T if transposed else a) @ part).reshape(x[rows].shape)
        return out

    def _predicted(self, cov: np.ndarray, step: float) -> np.ndarray:
        """Return ``A P A' + Q``."""
        half = self._moved(cov, step)
        found = self._moved(np.ascontiguousarray(half.T), step)
        each = zip(self._parts, self._rows, self._transition(step), strict=True)
        for part, rows, a in each:
            noise = part.p - a @ part.p @ a.T
            _add_block(found, rows, 0.5 * (noise + noise.T), part.values.size)
        return 0.5 * (found + found.T)

    def _observed(self, x: np.ndarray) -> np.ndarray:
        """Return ``H x`` of states (n_x, n): (n_moving, n), of the values that move."""
        out, first = np.empty((self._moving_values.size, x.shape[1])), 0
        for part, rows in zip(self._parts, self._rows, strict=True):
            if part.h.size:
                own = x[rows].reshape(part.h.size, part.values.size * x.shape[1])
                stop = first + part.values.size
                out[first:stop] = (part.h @ own).reshape(stop - first, x.shape[1])
                first = stop
        return out

    def _spread(self, y: np.ndarray) -> np.ndarray:
        """Return ``H'y`` of values (n_value, n): (n_x, n)."""
        out = np.empty((self._n_x, y.shape[1]))
        for part, rows in zip(self._parts, self._rows, strict=True):
            own = part.h[:, None, None] * y[part.values]
            out[rows] = own.reshape(part.h.size * part.values.size, y.shape[1])
        return out

    # -- filter and smoother ---------------------------------------------------------------------

    def _filtered(self, sites: Sequence[Rooted]) -> _Run:
        """Return the filter's steps, and what they say of what holds still.

        ``precision`` and ``linear`` are those of a site of what holds still.
        """
        mean, cov, still = self._start.mean, self._start.cov, self._start.still
        n_still = still.mean.size
        precision, linear = np.zeros((n_still, n_still)), np.zeros(n_still)
        log_z, steps, t = 0.0, [], 0
        try:
            for t, site in enumerate(sites):
                if t:
                    step = float(self._steps[t - 1])
                    mean, cov = self._moved(mean, step), self._predicted(cov, step)
                pull = self._spread(site.linear[:, None])[:, 0]
                seen = self._spread(site.root.T)
                e = seen.T @ mean
                e[:, 1:] += site.root[:, self._still_values]
                g = pull - seen @ e[:, 0]
                gain = cov @ seen
                lower = root_of(seen.T @ gain)
                half, inner, w = _solved(lower, gain.T, seen.T, e)
                half = half.T
                cov = cov - half @ half.T
                log_z += float(pull @ mean[:, 0]) - 0.5 * float(e[:, 0] @ e[:, 0])
                log_z += 0.5 * float(g @ (cov @ g)) - float(np.log(np.diag(lower)).sum())
                linear += mean[:, 1:].T @ pull + site.linear[self._still_values]
                mean = mean - half @ w
                mean[:, 0] += cov @ pull
                # E'B H a after the update, without the rounding of a, which E'B H would enlarge.
                linear -= w[:, 1:].T @ (w[:, 0] + half.T @ pull)
                precision += w[:, 1:].T @ w[:, 1:]
                steps.append(Step(mean, cov, half, inner, w, pull))
            known, own = still.given(precision, linear)
        except np.linalg.LinAlgError as error:
            msg = (
                f"the filter broke down in period {t}: its covariance is not positive; use fewer "
                "inducing points"
            )
            raise NumericalError(msg) from error
        slope = linear - precision @ known.mean
        curve = np.diag(precision) - ((known.half @ precision) ** 2).sum(axis=0)
        return _Run(steps, known, log_z + own, 0.5 * (slope**2 - curve))

    @one_blas_thread()
    def smooth(self, sites: Sequence[Site], *, slopes: bool = False) -> Smoothed:
        """Return the posterior of all ``v_t``.

        Parameters
        ----------
        sites : (n_period,) sequence of Site
        slopes : bool
            Whether those by the kernels' parameters are wanted.
        """
        run = self._filtered(_roots(sites))
        by = PathSlopes(self._parts, self._rows, run.still) if slopes else None
        mean, cov = np.empty((len(sites), self.n_value)), []
        held, n = run.still.cov, self._moving_values.size
        whole = np.empty((self.n_value, self.n_value))
        whole[n:, n:] = held[np.ix_(self._alone, self._alone)]
        for t, hp, v, curve in self._backward(run, by):
            mean[t] = self._mean(v, run.still)
            across = v[:, 1:] @ held
            own = self._observed(np.ascontiguousarray(hp.T)) - hp @ (curve @ hp.T)
            own += across @ v[:, 1:].T
            whole[:n, :n] = 0.5 * (own + own.T)
            whole[:n, n:] = across[:, self._alone]
            whole[n:, :n] = whole[:n, n:].T
            cov.append(Arrow.of(whole, self.split, self._place))
        return Smoothed(mean, cov[::-1], run.log_z, by.by_theta(run.by_variance) if by else [])

    @one_blas_thread()
    def site_slopes(self, sites: Sequence[Site]) -> SiteSlopes:
        """Return what slopes by functions of the sites need; see :class:`SiteSlopes`.

        Of covariances ``C`` only ``B C`` is asked for, which has as many rows as a site's rank.
        """
        rooted = _roots(sites)
        run = self._filtered(rooted)
        by = PathSlopes(self._parts, self._rows, run.still)
        mean, products = np.empty((len(sites), self.n_value)), []
        alone = self._still_values[self._alone]
        for t, hp, v, curve in self._backward(run, by):
            mean[t] = self._mean(v, run.still)
            root, at = rooted[t].root, run.steps[t]
            seen = self._spread(root.T)
            e = root[:, self._moving_values] @ v[:, 1:]
            e[:, self._alone] += root[:, alone]
            by_still = run.still.half.T @ (run.still.half @ e.T)
            by_root = np.empty_like(root.T)
            by_root[self._moving_values] = hp @ (seen - curve @ (at.cov @ seen))
            by_root[self._moving_values] += v[:, 1:] @ by_still
            by_root[alone] = by_still[self._alone]
            (b, own_b), (c, own_c) = self.split.parts(root.T), self.split.parts(by_root)
            products.append((b @ c.T, float(np.vdot(own_b, own_c))))
        return SiteSlopes(mean, products[::-1], by.by_theta(run.by_variance))

    @property
    def n_byte(self) -> int:
        """Memory that a smoother holds, nearly: covariances of the states of each period."""
        return 8 * self.times.size * self._n_x * (self._n_x + 2 * self._still_values.size)

    def _mean(self, v: np.ndarray, still: Still) -> np.ndarray:
        """Return the mean of all values from those that move as a function of ``[1, c]``."""
        found = np.empty(self.n_value)
        found[self._still_values] = still.mean
        found[self._moving_values] = v[:, 0] + v[:, 1:] @ still.mean
        return found

    def _backward(
        self, run: _Run, by: PathSlopes | None
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """Visit the periods, the last first.

        Yields their number, ``H P``, the means of the values that move as a function of ``[1, c]``,
        and the slopes by the next predicted covariance, at this one. Adds the slopes to ``by``.
        """
        mu = np.zeros((self._n_x, 1 + run.still.mean.size))
        curve = np.zeros((self._n_x, self._n_x))
        for t in range(len(run.steps) - 1, -1, -1):
            at = run.steps[t]
            hp = self._observed(at.cov)
            v = self._observed(at.mean) + hp @ mu
            v[self._both[0], 1 + self._both[1]] += 1.0
            yield t, hp, v, curve
            mu, curve = _back(at, mu, curve)
            if not t:
                if by:
                    by.start(mu, curve)
                return
            step = float(self._steps[t - 1])
            if by:
                by.add(run.steps[t - 1], step, self._transition(step), mu, curve, self._moved)
            mu = self._moved(mu, step, transposed=True)
            half = self._moved(curve, step, transposed=True)
            curve = self._moved(np.ascontiguousarray(half.T), step, transposed=True)

    # -- draws -----------------------------------------------------------------------------------

    def prior_draws(self, n_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw paths of ``v`` from the prior: (n_period, n_value, n_draws)."""
        return prior_paths(self.groups, self.times, n_draws, rng)

    @one_blas_thread()
    def draws(self, sites: Sequence[Site], n_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw ``v_1 ... v_T`` jointly from the posterior: (n_period, n_value, n_draws)."""
        if self._before is not None:
            whole, known = self._before
            return whole.draws([*known, *sites], n_draws, rng)[len(known) :]
        drawn = self.prior_draws(n_draws, rng)
        rooted, linear = _roots(sites), []
        for site, v in zip(rooted, drawn, strict=True):
            noise = rng.standard_normal((site.root.shape[0], n_draws))
            linear.append(site.linear[:, None] - site.root.T @ (site.root @ v + noise))
        return drawn + self._means(rooted, linear)

    def _means(self, sites: Sequence[Rooted], linear: Sequence[np.ndarray]) -> np.ndarray:
        """Return the smoothed means under other linear parts, columns of (n_value, n) a period."""
        run, n = self._filtered(sites), linear[0].shape[1]
        mean, turn = np.zeros((self._n_x, n)), self._start.mean[:, 1:]
        pulled = np.zeros((turn.shape[1], n))
        ahead, pulls, by_mean = [], [], []
        for t, (own, at) in enumerate(zip(linear, run.steps, strict=True)):
            if t:
                step = float(self._steps[t - 1])
                mean, turn = self._moved(mean, step), self._moved(turn, step)
            pull, w = self._spread(own), at.inner @ mean
            pulled += turn.T @ pull + own[self._still_values]
            mean = mean + at.cov @ pull - at.half @ w
            pulled -= at.w[:, 1:].T @ (w + at.half.T @ pull)
            turn = at.mean[:, 1:]
            ahead.append(mean)
            pulls.append(pull)
            by_mean.append(w)
        still = run.still.half.T @ (run.still.half @ pulled)
        out, mu = np.empty((len(run.steps), self.n_value, n)), np.zeros((self._n_x, n))
        for t in range(len(run.steps) - 1, -1, -1):
            at = run.steps[t]
            moving = self._observed(ahead[t] + at.mean[:, 1:] @ still + at.cov @ mu)
            out[t, self._still_values] = still
            moving[self._both[0]] += still[self._both[1]]
            out[t, self._moving_values] = moving
            mu = mu + pulls[t]
            mu = mu - at.inner.T @ (at.half.T @ mu + by_mean[t] + at.w[:, 1:] @ still)
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


def _joined(values: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=np.int64), *values])


def _roots(sites: Sequence[Site]) -> list[Rooted]:
    return [Rooted(site.linear, site.whole_root()) for site in sites]


def _solved(lower: np.ndarray, *right: np.ndarray) -> list[np.ndarray]:
    """Return ``L^-1`` times several matrices."""
    ends = np.cumsum([0, *(each.shape[1] for each in right)]).tolist()
    both = np.empty((lower.shape[0], ends[-1]), order="F")
    for each, (first, stop) in zip(right, pairwise(ends), strict=True):
        both[:, first:stop] = each
    if both.size:
        both = solve_triangular(lower, both, lower=True, check_finite=False, overwrite_b=True)
    return [both[:, first:stop] for first, stop in pairwise(ends)]


def _back(at: Step, mu: np.ndarray, curve: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Take the slopes by the updated moments back to those by the predicted ones."""
    mu = mu.copy()
    mu[:, 0] += at.pull
    mu -= at.inner.T @ (at.half.T @ mu + at.w)
    # C' curve C + inner' inner, as half of it and its transpose.
    across = curve @ at.half
    within = at.half.T @ across
    within.flat[:: within.shape[0] + 1] += 1.0
    half = at.inner.T @ (across.T - 0.5 * within @ at.inner)
    return mu, curve - half - half.T


def _add_block(a: np.ndarray, rows: slice, small: np.ndarray, n: int) -> None:
    """Add ``small`` times the identity of ``n`` to a diagonal block, in place."""
    at = np.arange(n)
    for i in range(small.shape[0]):
        for j in range(small.shape[0]):
            a[rows.start + i * n + at, rows.start + j * n + at] += small[i, j]

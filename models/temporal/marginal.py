r"""The posterior of all periods with the areas' own effects integrated out.

The filter (:mod:`models.temporal.state_space`) has a state for each area's effect: its work grows
by the third power of the areas. But given the path ``s_1 ... s_T`` of the shared values, effects
of two areas are independent, and the path of each is a Gaussian process of ``T`` values. With the
sites' ``d_a (e_a + c_a's)^2`` and prior covariance ``K`` (T, T) of an effect, an area leaves to the
shared values, with ``y_t = c_at's_t`` and ``D = diag(d_at)``,

    -y'W y / 2 - (D G lambda)'y,    W = (K + D^-1)^-1 = D^1/2 (1 + D^1/2 K D^1/2)^-1 D^1/2,

where ``G = K - K W K`` is the covariance of its effects given ``s``. So the shared values have a
Gaussian posterior with a precision between all periods, one factorisation: values that hold still
are there once, those that move once a period. Then, given ``s``, each area for itself,

    e = G (lambda - D y) + noise of covariance G.

The work is linear in the areas, and cubic in (values that move) x periods: cheaper than the filter
where areas are more than some dozens and periods at most some dozens. Both give the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack, solve_triangular

from models.backend.arrays import row_dot
from models.backend.blas import on_all_cores
from models.core.errors import NumericalError
from models.temporal.markov import IMAGINARY
from models.temporal.path_prior import Group, SiteSlopes, Smoothed
from models.temporal.path_slopes import traced
from models.temporal.prior_paths import prior_paths
from models.temporal.sites import Arrow, Site, Split

LEAST = 1e-13  # eigenvalue of a correlation between periods that counts as none


@dataclass(frozen=True)
class Shared:
    """Shared values with one kernel in time.

    Attributes
    ----------
    number : int
        Of the group.
    places : (n,) int64
        Among the shared values.
    copies : int
        Of each: one where it holds still, else one a period.
    root : (copies, rank) float64
        Of the covariance between periods.
    """

    number: int
    places: np.ndarray
    copies: int
    root: np.ndarray


class MarginalPath:
    """The prior of ``v_1 ... v_T``, for posteriors without states of the areas' effects.

    Parameters
    ----------
    groups : sequence of Group
        Which cover all values.
    times : (n_period,) float64
        Ascending.
    split : Split
    before : sequence of Site
        Of the first of these periods, which are known: what is asked is of those after them.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        times: np.ndarray,
        split: Split,
        before: Sequence[Site] = (),
    ) -> None:
        self.groups, self.split = tuple(groups), split
        self._all, self._before = np.asarray(times, dtype=np.float64), list(before)
        n, place = self._all.size, np.full(split.n_value, -1)
        place[split.shared] = np.arange(split.shared.size)
        self._shared: list[Shared] = []
        self._own: list[int] = []
        for number, group in enumerate(self.groups):
            inside = place[group.values]
            if (inside < 0).any():
                self._own.append(number)
            inside = inside[inside >= 0]
            if not inside.size:
                continue
            if group.kernel.still:
                self._shared.append(Shared(number, inside, 1, np.ones((1, 1))))
            else:
                root = _root(self._between(group))
                self._shared.append(Shared(number, inside, n, root))
        sizes = [each.places.size * each.copies for each in self._shared]
        self._ends = np.cumsum([0, *sizes])
        at = np.empty((n, split.shared.size), np.int64)
        for first, each in zip(self._ends, self._shared, strict=False):
            within = np.arange(each.places.size)
            for t in range(n):
                at[t, each.places] = first + within + (t * within.size if each.copies > 1 else 0)
        self._at = at
        #: Of the shared values, those that are there once for all periods, and the others.
        alone = [each.places for each in self._shared if each.copies == 1 and n > 1]
        self._still = np.concatenate([np.zeros(0, np.int64), *alone])
        self._moving = np.setdiff1d(np.arange(split.shared.size), self._still)

    @property
    def times(self) -> np.ndarray:
        """Times of the periods that are asked for: (n_period,)."""
        return self._all[len(self._before) :]

    @property
    def n_unknown(self) -> int:
        """Size of what is factorised."""
        return sum(each.places.size * each.root.shape[1] for each in self._shared)

    def after(self, sites: Sequence[Site]) -> MarginalPath:
        """Return the prior of the periods after those of ``sites``, which are known."""
        return MarginalPath(self.groups, self._all, self.split, [*self._before, *sites])

    def prior_draws(self, n_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw paths of ``v`` from the prior: (n_period, n_value, n_draws)."""
        return prior_paths(self.groups, self._all, n_draws, rng)[len(self._before) :]

    def smooth(self, sites: Sequence[Site], *, slopes: bool = False) -> Smoothed:
        """Return the posterior of all ``v_t``, and the slopes of ``log Z`` where wanted."""
        known = len(self._before)
        joint = _Joint(self, [*self._before, *sites])
        between = joint.covariance()
        mean, cov, spread = joint.moments(between)
        log_z = joint.log_z - (self._known if known else 0.0)
        by_time = joint.slopes(spread, between) if slopes else []
        return Smoothed(mean[known:], cov[known:], log_z, by_time)

    def site_slopes(self, sites: Sequence[Site]) -> SiteSlopes:
        """Return what slopes by functions of the sites need."""
        found = self.smooth(sites, slopes=True)
        products = on_all_cores(
            lambda both: both[0].precision.product(both[1]),
            list(zip(sites, found.cov, strict=True)),
        )
        return SiteSlopes(found.mean, products, found.by_time)

    @property
    def n_byte(self) -> int:
        """Memory that a smoother holds: covariances of all values, and of effects with them."""
        n_shared = self._at.shape[1]
        return 8 * (4 * self.n_unknown**2 + self._all.size * n_shared * self.split.n_own)

    def draws(self, sites: Sequence[Site], n_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw ``v_1 ... v_T`` jointly from the posterior: (n_period, n_value, n_draws)."""
        joint = _Joint(self, [*self._before, *sites])
        return joint.draws(n_draws, rng)[len(self._before) :]

    @cached_property
    def _known(self) -> float:
        """``log Z`` of the sites before."""
        times = self._all[: len(self._before)]
        return _Joint(MarginalPath(self.groups, times, self.split), self._before).log_z

    def _between(self, group: Group) -> np.ndarray:
        """Return the correlation of a group's values between periods: (n_period, n_period)."""
        lags, place = _lags(self._all)
        return group.kernel.covariance(group.theta, lags)[place]

    @property
    def own_correlation(self) -> np.ndarray:
        """``K``: (n_period, n_period)."""
        (number,) = self._own
        return self._between(self.groups[number])

    # -- between the values of each period and what is factorised --------------------------------

    def folded(self, a: np.ndarray) -> np.ndarray:
        """Return ``R'a`` of (n_unfolded, n)."""
        return self._turned(a, transposed=True)

    def unfolded(self, a: np.ndarray) -> np.ndarray:
        """Return ``R a`` of (n_unknown, n)."""
        return self._turned(a, transposed=False)

    def _turned(self, a: np.ndarray, *, transposed: bool) -> np.ndarray:
        roots = [each.root.T if transposed else each.root for each in self._shared]
        rows = [
            each.places.size * root.shape[0] for each, root in zip(self._shared, roots, strict=True)
        ]
        found, first, to = np.empty((sum(rows), a.shape[1])), 0, 0
        for each, root, n in zip(self._shared, roots, rows, strict=True):
            part = a[first : first + each.places.size * root.shape[1]]
            own = found[to : to + n]
            if each.copies > 1:
                shape = root.shape[1], -1
                np.matmul(root, part.reshape(shape), out=own.reshape(root.shape[0], -1))
            else:
                own[:] = part
            first, to = first + part.shape[0], to + n
        return found


class _Joint:
    """The posterior under some sites.

    Parameters
    ----------
    prior : MarginalPath
    sites : (n_period,) sequence of Site
    """

    def __init__(self, prior: MarginalPath, sites: Sequence[Site]) -> None:
        self._prior, self._sites = prior, sites
        split, n = prior.split, len(sites)
        # Loads of an area in every period together, or those of all areas in each period.
        self._on_still = np.stack([site.load[prior._still].T for site in sites], axis=1)
        self._on_moving = np.stack([site.load[prior._moving].T for site in sites])
        parts = [split.parts(site.linear) for site in sites]
        self._d = np.stack([site.own for site in sites], axis=1)  # (n_own, n_period)
        self._linear = np.stack([own for _, own in parts], axis=1)
        k = prior.own_correlation
        half = np.sqrt(self._d)
        inner = np.eye(n) + half[:, :, None] * k * half[:, None, :]
        seen = half[:, :, None] * np.linalg.inv(inner) * half[:, None, :]
        self._w = 0.5 * (seen + seen.transpose(0, 2, 1))
        self._kw = k @ self._w
        self._g = k - self._kw @ k
        alone = (self._g @ self._linear[:, :, None])[:, :, 0]
        self._gd = self._g * self._d[:, None, :]
        linear, precision = self._summed(parts, self._d * alone)
        prior_linear = prior.folded(linear[:, None])[:, 0]
        # Matrices between all periods are a fit's largest: each makes room for the next.
        precision = prior.folded(precision)
        precision = np.ascontiguousarray(precision.T)
        precision = prior.folded(precision)
        _symmetrise(precision)
        precision.flat[:: precision.shape[0] + 1] += 1.0
        self._lower = _lower(precision)
        del precision
        half_mean = solve_triangular(self._lower, prior_linear, lower=True, check_finite=False)
        self._mean = solve_triangular(
            self._lower, half_mean, lower=True, trans=1, check_finite=False
        )
        _, logdet = np.linalg.slogdet(inner)
        self.log_z = float(
            0.5 * half_mean @ half_mean
            - np.log(np.diag(self._lower)).sum()
            + 0.5 * np.vdot(self._linear, alone)
            - 0.5 * logdet.sum()
        )

    def _summed(
        self, parts: Sequence[tuple[np.ndarray, np.ndarray]], known: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what the sites say of the shared values of all periods, the effects left out.

        Sums over pairs of periods are needed only between values that move: those that hold still
        meet the sum over all periods.
        """
        at, size, n = self._prior._at, int(self._prior._ends[-1]), len(self._sites)
        still, moving = self._prior._at[0, self._prior._still], at[:, self._prior._moving]
        linear, precision = np.zeros(size), np.zeros((size, size))
        beside = self._w @ self._on_still  # (n_own, n_period, n_still)
        rows = self._on_still.shape[0] * n, still.size
        both = self._on_still.reshape(rows).T @ beside.reshape(rows)
        precision[np.ix_(still, still)] = both

        def fill(t: int) -> None:
            across = beside[:, t].T @ self._on_moving[t]
            precision[np.ix_(still, moving[t])] = across
            precision[np.ix_(moving[t], still)] = across.T
            for u in range(t, n):
                block = (self._on_moving[t] * self._w[:, t, u][:, None]).T @ self._on_moving[u]
                precision[np.ix_(moving[t], moving[u])] = block
                precision[np.ix_(moving[u], moving[t])] = block.T

        on_all_cores(fill, range(n))  # each has a part of its own
        for t, site in enumerate(self._sites):
            linear[at[t]] += parts[t][0] - site.load @ known[:, t]
            if site.root.size:
                precision[np.ix_(at[t], at[t])] += site.root.T @ site.root
        return linear, precision

    def _effects(self, shared: np.ndarray) -> np.ndarray:
        """Return the means of the effects given shared values (n_period, n_shared, n).

        Returns
        -------
        (n_own, n_period, n) float64
        """
        each = zip(self._sites, shared, strict=True)
        y = np.stack([site.load.T @ of for site, of in each], axis=1)
        return np.asarray(self._g @ (self._linear[:, :, None] - self._d[:, :, None] * y))

    def covariance(self) -> np.ndarray:
        """Return the covariance of what is factorised, in the place of its factor."""
        # In Fortran's order the lower factor is an upper one, in the same memory.
        found, info = lapack.dpotri(self._lower.T, lower=0, overwrite_c=1)
        if info:
            msg = "the covariance of the periods' values could not be computed; use fewer points"
            raise NumericalError(msg)
        del self._lower
        found = found.T
        _mirror(found)
        return np.asarray(found)

    def moments(self, known: np.ndarray) -> tuple[np.ndarray, list[Arrow], np.ndarray]:
        """Return means, covariances, and the covariances of ``y`` over periods of each area.

        ``known`` is :meth:`covariance`.
        """
        prior, split, n = self._prior, self._prior.split, len(self._sites)
        at = prior._at
        cov = np.ascontiguousarray(prior.unfolded(known).T)
        cov = prior.unfolded(cov)
        mean = prior.unfolded(self._mean[:, None])[:, 0]
        shared = mean[at]
        effects = self._effects(shared[:, :, None])[:, :, 0]
        spread, crosses = self._across(cov)
        own = self._g.diagonal(axis1=1, axis2=2) + np.einsum(
            "atu,atu->at", self._gd @ spread, self._gd
        )
        means = np.stack([split.join(shared[t], effects[:, t]) for t in range(n)])
        covs = [Arrow(cov[np.ix_(at[t], at[t])], crosses[t], own[:, t]) for t in range(n)]
        return means, covs, spread

    def _across(self, cov: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the covariances of ``y`` over periods, and of effects with shared values.

        Parameters
        ----------
        cov : (n_unfolded, n_unfolded) float64
            Of the shared values of all periods.

        Returns
        -------
        spread : (n_own, n_period, n_period) float64
        crosses : list of (n_shared, n_own) float64
        """
        prior, n = self._prior, len(self._sites)
        still, moving = prior._at[0, prior._still], prior._at[:, prior._moving]
        on_still, on_moving = self._on_still, self._on_moving
        of_moving = np.stack(
            [own @ cov[np.ix_(at, still)] for own, at in zip(on_moving, moving, strict=True)],
            axis=1,
        )
        # Of y of each period with what holds still, which is the same in all others.
        rows = on_still.shape[0] * n, still.size
        between = on_still.reshape(rows) @ cov[np.ix_(still, still)]
        across_still = of_moving + between.reshape(on_still.shape)
        spread = across_still @ on_still.transpose(0, 2, 1)
        spread += on_still @ of_moving.transpose(0, 2, 1)
        cross_still, known = self._gd @ across_still, self._gd @ on_still
        crosses = [np.empty((prior.split.shared.size, prior.split.n_own)) for _ in range(n)]

        def fill(t: int) -> None:
            cross = known[:, t] @ cov[np.ix_(still, moving[t])]
            for u in range(n):
                across = on_moving[u] @ cov[np.ix_(moving[u], moving[t])]
                cross += self._gd[:, t, u][:, None] * across
                spread[:, u, t] += row_dot(across, on_moving[t])
            crosses[t][prior._still] = -cross_still[:, t].T
            crosses[t][prior._moving] = -cross.T

        on_all_cores(fill, range(n))
        return spread, crosses

    def slopes(self, spread: np.ndarray, known: np.ndarray) -> list[np.ndarray]:
        """Return the slopes of ``log Z`` by the parameters of each group's kernel.

        With ``E`` the second moments of values between periods and ``K`` their prior covariance,
        ``d log Z / dK = K^-1 (E - K) K^-1 / 2``; of the effects without an inverse,
        ``(F V F' + r r' - W) / 2`` with ``F = (1 - W K) D``, ``r = (1 - W K)(lambda - D y)``.
        """
        prior = self._prior
        n_all = prior._all.size
        by_k = [np.zeros((n_all, n_all)) for _ in prior.groups]
        first = 0
        for each in prior._shared:
            rank, n = each.root.shape[1], each.places.size
            rows = slice(first, first + rank * n)
            first = rows.stop
            if each.copies > 1:
                about = self._mean[rows].reshape(rank, n)
                moved = traced(known[rows, rows], n) + about @ about.T - n * np.eye(rank)
                back = np.linalg.pinv(each.root)
                by_k[each.number] += 0.5 * back.T @ moved @ back
        for number in prior._own:
            if prior.groups[number].kernel.n_theta:
                mean = prior.unfolded(self._mean[:, None])[:, 0][prior._at]
                each_y = zip(self._sites, mean, strict=True)
                y = np.stack([site.load.T @ of for site, of in each_y], axis=1)
                left = np.eye(self._d.shape[1]) - self._kw.transpose(0, 2, 1)
                f = left * self._d[:, None, :]
                r = (left @ (self._linear - self._d * y)[:, :, None])[:, :, 0]
                total = (f @ spread @ f.transpose(0, 2, 1) - self._w).sum(axis=0)
                by_k[number] += 0.5 * (total + r.T @ r)
        return [
            _by_theta(group, prior._all, by) for group, by in zip(prior.groups, by_k, strict=True)
        ]

    def draws(self, n_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw all values: (n_period, n_value, n_draws)."""
        prior, split = self._prior, self._prior.split
        noise = rng.standard_normal((self._lower.shape[0], n_draws))
        off = solve_triangular(self._lower, noise, lower=True, trans=1, check_finite=False)
        shared = prior.unfolded(self._mean[:, None] + off)[prior._at]
        value, vector = np.linalg.eigh(self._g)
        root = vector * np.sqrt(np.maximum(value, 0.0))[:, None, :]
        own = self._effects(shared)
        own += root @ rng.standard_normal((*self._d.shape, n_draws))
        found = np.empty((len(self._sites), split.n_value, n_draws))
        found[:, split.shared], found[:, split.own] = shared, own.transpose(1, 0, 2)
        return found


def _lower(precision: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor, in the place of the matrix."""
    found, info = lapack.dpotrf(precision.T, lower=0, overwrite_a=1)
    found = found.T
    if info:
        found[:] = np.nan
    if not np.isfinite(np.diag(found)).all():
        msg = (
            "the periods' posterior broke down: its precision is not positive; use fewer "
            "inducing points"
        )
        raise NumericalError(msg)
    return found


BLOCK = 512  # rows and columns of a block that stays in the cache


def _pairs_of_blocks(n: int) -> Iterator[tuple[slice, slice]]:
    """Yield the blocks of a matrix on its diagonal and below, by rows and columns."""
    starts = range(0, n, BLOCK)
    for i in starts:
        for j in range(0, i + 1, BLOCK):
            yield slice(i, i + BLOCK), slice(j, j + BLOCK)


def _symmetrise(a: np.ndarray) -> None:
    """Write the mean of a matrix and its transpose into its place."""
    for rows, columns in _pairs_of_blocks(a.shape[0]):
        mean = 0.5 * (a[rows, columns] + a[columns, rows].T)
        a[rows, columns], a[columns, rows] = mean, mean.T


def _mirror(a: np.ndarray) -> None:
    """Write the lower triangle of a matrix above its diagonal."""
    for rows, columns in _pairs_of_blocks(a.shape[0]):
        if rows == columns:
            own = np.tril(a[rows, rows])
            a[rows, rows] = own + np.tril(own, -1).T
        else:
            a[columns, rows] = a[rows, columns].T


def _by_theta(group: Group, times: np.ndarray, by_k: np.ndarray | float) -> np.ndarray:
    """Contract the slopes by a correlation between periods with its own by ``theta``."""
    grad = np.zeros(group.theta.size)
    if not grad.size:
        return grad
    lags, place = _lags(times)
    by_lag = np.bincount(place.ravel(), np.ravel(by_k), lags.size)
    for k in range(grad.size):
        away = group.theta.astype(np.complex128)
        away[k] += IMAGINARY * 1j
        grad[k] = by_lag @ np.imag(group.kernel.covariance(away, lags)) / IMAGINARY
    return grad


def _lags(times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lags between times, each once, and the place of each pair: (n, n) int64."""
    lags, place = np.unique(np.abs(times[:, None] - times), return_inverse=True)
    return lags, place.reshape(times.size, times.size)


def _root(cov: np.ndarray) -> np.ndarray:
    """Return a root of a covariance: (n, rank)."""
    value, vector = np.linalg.eigh(0.5 * (cov + cov.T))
    used = value > LEAST * value.max()
    return np.asarray(vector[:, used] * np.sqrt(value[used]))

r"""The profile bound of a model of several periods, and its gradient with the sites held.

    L(phi) = max_q sum_t E_q log p(y_t | f_t) - KL + log p(phi),
    KL = sum_t E_q log site_t - log Z,

with ``q`` the posterior of the state-space prior and one Gaussian site a period. The natural step
(conjugate-computation: Khan & Lin 2017; Chang et al. 2020) needs of the blocks the adjoints
``dE/dm_t`` and ``dE/dS_t`` alone:

    Lambda_t <- (1 - rho) Lambda_t - 2 rho dE/dS_t,
    lambda_t <- Lambda_t m_t + (1 - rho) a_t + rho dE/dm_t,      a_t = lambda_t - Lambda_t m_t,

the second line with the new ``Lambda_t``; the mean then moves by ``rho P^-1 (dE/dm - a)``, with
``P`` the new precision over all periods. For one period that is
:meth:`models.gp.sparse_gp.Whitened.natural_step`.

By ``phi`` the sites are held as functions of ``f(W)`` (Adam et al. 2021): the slope of the expected
likelihood with the moments of ``f(W)`` held, and that of ``log Z`` with the sites held. At sites
``s`` off the best by ``r`` what is left out is ``r`` times the change of the moments, which is
the change of the latter slope when the sites become ``s + r``: where the natural step goes. So
``log Z`` is that of the sites asked for, and an error of ``q`` enters by its square.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from models.aggregate.profile_bound import Point, Profile
from models.backend.blas import on_all_cores
from models.core.errors import NumericalError
from models.core.protocol import Arrays, State, Stats, override
from models.gp import sparse_gp
from models.temporal.basis import Basis
from models.temporal.path_prior import PathPrior, Smoothed
from models.temporal.sites import (
    LEAST,
    LEVEL,
    SITE,
    Arrow,
    Site,
    Split,
    beside,
    carried,
    packed,
    signed_roots,
    symmetric,
    unpacked,
)
from models.temporal.temporal_model import TemporalModel

#: From periods, what returns the parameters of one, whether slopes by the kernel's are wanted, and
#: what takes its sums: what that returns of each. Both are called when their period's turn has
#: come, maybe on threads: matrices over all values of all periods are a fit's memory.
ParamsOf = Callable[[int], Arrays]
Take = Callable[[int, Stats], Any]
Evaluate = Callable[[Sequence[int], ParamsOf, bool, Take], list[Any]]
#: Memory of the smoothers that run at the same time, for the differences of a Hessian.
AT_ONCE_BYTES = 1 << 29
SMALL = 1e-3  # share of a slope for a difference
GRADIENT_STEP = 1e-4  # of a difference of gradients, in logarithms: they are exact to ten digits


@dataclass(frozen=True)
class Visited:
    """The bound at one state, and what the data ask of its sites.

    Attributes
    ----------
    bound : float
        Nats.
    levels : list of float
        Of the site of each visited period.
    sums : list of Stats
        Of each visited period; like ``d_cov`` and ``wide`` empty where no slopes were asked for.
    d_mean, d_cov : list of (n_value,) float64, list of Arrow
        Adjoints of ``m_t`` and ``S_t``, of each visited period.
    asked, wide : list of Site
        Of ``-2 dE/dS_t``, its positive part and the rest of it, without linear parts.
    target : list of Site
        Of all periods: where a whole natural step goes.
    ahead : Smoothed
        The posterior there.
    left : float
        Nats that this step would gain, to second order.
    """

    bound: float
    levels: list[float]
    sums: list[Stats]
    d_mean: list[np.ndarray]
    d_cov: list[Arrow]
    asked: list[Site]
    wide: list[Site]
    target: list[Site]
    ahead: Smoothed
    left: float


class _Told(NamedTuple):
    """What a period tells: its site's level, ``d_mean``, the site asked for; of slopes all."""

    level: float
    d_mean: np.ndarray
    asked: Site
    slopes: tuple[Stats, Arrow, Site] | None


class TemporalProfile(Profile[Visited]):
    """``L(phi)`` of a model of several periods.

    Parameters
    ----------
    model : TemporalModel
    evaluate : callable
    periods : sequence of int
        Periods whose blocks are visited. The sites of others are held: what their data say is the
        site, and the bound lacks a constant.
    space : PathPrior, optional
        Prior of the periods of the state, where others were before them; its hyperparameters then
        stay as they are.
    """

    of_q = SITE

    def __init__(
        self,
        model: TemporalModel,
        evaluate: Evaluate,
        periods: Sequence[int],
        space: PathPrior | None = None,
    ) -> None:
        self._space = space
        self._space_time, self._ask, self._periods = model, evaluate, list(periods)
        self.names = model.phi_names
        self._held: tuple[Arrays, Basis, Smoothed] | None = None

    def _prior(self, state: State) -> PathPrior:
        return self._space or self._space_time.state_space(state)

    # -- other hyperparameters -------------------------------------------------------------------

    @override
    def _carried(self, state: State, params: Arrays) -> Arrays:
        """Carry the sites to other hyperparameters, as functions of ``f(W)``."""
        return packed(carried_to(self._space_time, state, params, self.smoothed(state)[0]))

    def _ones(self, state: State) -> np.ndarray:
        return self._space_time.constant_values(state.fixed)

    # -- the climb of q --------------------------------------------------------------------------

    @property
    @override
    def _longest(self) -> float:
        return self._space_time.longest_step

    @override
    def _left(self, state: State, found: Visited) -> float:
        return found.left

    def smoothed(self, state: State) -> tuple[Basis, Smoothed]:
        """Return the basis and the posterior of a state; kept until another is asked for."""
        if self._held is None or self._held[0] is not state.params:
            basis = Basis.of(self._space_time, state.fixed, state.params)
            smoothed = self._prior(state).smooth(unpacked(state.params, basis.split))
            self._held = (state.params, basis, smoothed)
        return self._held[1], self._held[2]

    @override
    def _found(self, state: State, *, slopes: bool) -> Visited:
        model = self._space_time
        basis, now = self.smoothed(state)
        split = basis.split
        sites = unpacked(state.params, split)
        shared = model.shared_params(state)

        def params_of(t: int) -> Arrays:
            return {**shared, **basis.block_arrays(now.mean[t], now.cov[t])}

        def told(t: int, own: Stats) -> _Told:
            level = own.bound - sites[t].expected(now.mean[t], now.cov[t])
            d_mean = basis.values(own.sums["alpha"])
            by_cov = -1.0 * Arrow.named(own.sums, "q")
            if "cov" in own.sums:
                by_cov = by_cov + Arrow.named(own.sums, "cov")
            d_cov = basis.inside(by_cov)
            if not (np.isfinite(d_mean).all() and np.isfinite(d_cov.shared).all()):
                raise NumericalError(sparse_gp.NOT_FINITE)
            plus, wide = signed_roots(-2.0 * d_cov, split)
            return _Told(level, d_mean, plus, (own, d_cov, wide) if slopes else None)

        target = list(sites)
        found = self._ask(self._periods, params_of, slopes, told)
        levels = [own.level for own in found]
        bound = now.log_z + self._log_prior(state) + sum(levels)
        for t, own in zip(self._periods, found, strict=True):
            target[t] = replace(own.asked, linear=own.d_mean + own.asked.times(now.mean[t]))
        d_means, wanted = [own.d_mean for own in found], [own.asked for own in found]
        sums, d_covs, wides = (
            map(list, zip(*(own.slopes for own in found), strict=True)) if slopes else ([], [], [])
        )
        ahead = self._prior(state).smooth(target, slopes=slopes)
        left = 0.0
        for t, d_mean, plus in zip(self._periods, d_means, wanted, strict=True):
            off = d_mean - sites[t].pull(now.mean[t])
            left += 0.5 * float(off @ (ahead.mean[t] - now.mean[t]))
            narrowed = now.cov[t] - ahead.cov[t]
            left += 0.25 * (plus.precision.dot(narrowed) - sites[t].precision.dot(narrowed))
        return Visited(
            bound, levels, sums, d_means, d_covs, wanted, wides, target, ahead, abs(left)
        )

    @override
    def _stepped(self, state: State, found: Visited, rate: float, longest: float) -> State:
        """Take a share of the natural step; no value's mean moves by more than ``longest``."""
        basis, now = self.smoothed(state)
        sites, target = unpacked(state.params, basis.split), list(found.target)
        pulls = []
        for t, d_mean, plus in zip(self._periods, found.d_mean, found.asked, strict=True):
            own = plus
            if rate < 1.0:
                both = (1.0 - rate) * sites[t].precision + rate * plus.precision
                own = signed_roots(both, basis.split)[0]
            pull = sites[t].pull(now.mean[t])
            pulls.append((pull, rate * (d_mean - pull)))
            target[t] = replace(own, linear=own.times(now.mean[t]) + pull + pulls[-1][1])
        space = self._prior(state)
        ahead = found.ahead if rate == 1.0 else space.smooth(target)
        largest = float(np.abs(ahead.mean - now.mean).max(initial=0.0))
        if largest > longest:
            share = longest / largest
            for t, (_, step) in zip(self._periods, pulls, strict=True):
                target[t] = replace(target[t], linear=target[t].linear - (1.0 - share) * step)
            ahead = space.smooth(target)
        state = replace(state, params={**state.params, **packed(target)})
        self._held = (state.params, self._held[1], ahead) if self._held else None
        return state

    @override
    def _finished(
        self, at: Point, found: Visited, tolerance: float, *, slopes: bool, had: bool = False
    ) -> Point:
        """Return a point as any other's, whose sites have their levels."""
        end = super()._finished(at, found, tolerance, slopes=slopes, had=had)
        return replace(end, state=self._levelled(end.state, found.levels))

    def levelled(self, state: State) -> State:
        """Return a state whose visited sites have the levels of these data; of one pass."""
        return self._levelled(state, self._found(state, slopes=False).levels)

    def _levelled(self, state: State, levels: Sequence[float]) -> State:
        level = np.array([site.level for site in unpacked(state.params, Split.of(state.fixed))])
        level[self._periods] = levels
        params = {**state.params, LEVEL: level}
        if self._held and self._held[0] is state.params:  # the posterior is the same
            self._held = (params, *self._held[1:])
        return replace(state, params=params)

    # -- the gradient ----------------------------------------------------------------------------

    def _log_prior(self, state: State) -> float:
        return self._space_time.log_prior(state)[0]

    @override
    def _gradient(self, state: State, found: Visited) -> np.ndarray:
        model = self._space_time
        basis, now = self.smoothed(state)
        grad = model.log_prior(state)[1]
        up = basis.values(self._ones(state))
        turn = Turn(basis.split)
        for t, own, d_mean, d_cov, plus in zip(
            self._periods, found.sums, found.d_mean, found.d_cov, found.asked, strict=True
        ):
            for name in ("mean", "theta", *model.resolved_likelihood.parameters):
                grad[name] = grad[name] + own.sums[name]
            m, s = now.mean[t], now.cov[t]
            # L' times the adjoint of L: of alpha, Q and cov with the moments of v held; then of
            # these moments with those of f(W) held.
            turn.outer(-1.0, m, d_mean)
            turn.product(-2.0, s, d_cov)
            turn.product(1.0, plus.precision, s)
            turn.outer(-1.0, d_mean, m)
            turn.add(-2.0, basis.inside(Arrow.named(own.sums, "q")))
            grad["mean"] = grad["mean"] - float(up @ d_mean)
        for share, at in self._slopes_at(state, found):
            grad["time"] = grad["time"] + share * model.time_slopes(state, at.by_time)
            for t in self._periods:
                site = found.target[t]
                off = site.pull(at.mean[t])
                turn.outer(share, off, at.mean[t])
                turn.product(-share, site.precision, at.cov[t])
                grad["mean"] = grad["mean"] + share * float(up @ off)
        grad["theta"] = grad["theta"] + basis.backward(turn.shared, turn.own)
        return self.pack(grad)

    def slopes_with_q_held(self, state: State, own: Arrays) -> np.ndarray:
        """Return the gradient at other values of the likelihood's own parameters, with ``q`` held.

        By these alone, 0 by others: (n_phi,). It costs a pass and no smoother.
        """
        basis, now = self.smoothed(state)
        away = replace(state, params={**state.params, **own})
        shared, names = self._space_time.shared_params(away), list(own)

        def params_of(t: int) -> Arrays:
            return {**shared, **basis.block_arrays(now.mean[t], now.cov[t])}

        def told(t: int, found: Stats) -> Arrays:
            del t
            return {name: found.sums[name] for name in names}

        each = self._ask(self._periods, params_of, True, told)
        by_prior = self._space_time.log_prior(away)[1]
        grad = {name: np.zeros_like(state.params[name]) for name in self.names}
        for name in names:
            grad[name] = by_prior[name] + sum(found[name] for found in each)
        return self.pack(grad)

    def _slopes_at(self, state: State, found: Visited) -> list[tuple[float, Smoothed]]:
        """Return posteriors under which to take the slopes of ``log Z``, and their shares.

        That of the sites asked for. Sites are no wider than nothing, so that ``q`` is no wider
        than the prior (:func:`models.gp.sparse_gp.narrowing`): where the data ask for less, the
        slope by ``S_t`` stays, and acts on how ``S_t`` follows ``phi`` with the sites held. That is
        the change of the slope of ``log Z`` along it: a difference, of a small share of it.
        """
        _, now = self.smoothed(state)
        target, largest = list(found.target), 0.0
        for t, wide in zip(self._periods, found.wide, strict=True):
            precision = wide.precision
            largest = max(largest, float(np.trace(precision.shared)) + float(precision.own.sum()))
            site = target[t]
            linear = site.linear + SMALL * wide.times(now.mean[t])
            target[t] = replace(beside(site, SMALL, wide), linear=linear)
        if largest < LEAST:
            return [(1.0, found.ahead)]
        away = self._prior(state).smooth(target, slopes=True)
        return [(1.0 + 1.0 / SMALL, found.ahead), (-1.0 / SMALL, away)]


class HeldSites:
    """``log Z`` of the sites of one state, held as functions of ``f(W)``, and its Hessian.

    Parameters
    ----------
    model : TemporalModel
    state : State
        With the best sites.
    """

    def __init__(self, model: TemporalModel, state: State) -> None:
        self._model, self._state = model, state
        self._basis = Basis.of(model, state.fixed, state.params)

    def gradient(self, mean: float, theta: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Return the gradient by mean, ``theta`` and ``time``, the priors' included."""
        state, model = self._state, self._model
        params = {**state.params, "mean": np.array([mean]), "theta": theta, "time": time}
        away = replace(state, params=params)
        basis = Basis.of(model, state.fixed, params)
        sites = _carried(model, state, params, self._basis, basis)
        found = model.state_space(away).site_slopes(sites)
        grad = model.log_prior(away)[1]
        turn, by_mean = Turn(basis.split), 0.0
        raised = basis.values(model.constant_values(state.fixed))
        for site, m, product in zip(sites, found.mean, found.products, strict=True):
            off = site.pull(m)
            turn.outer(1.0, off, m)
            turn.join(-1.0, *product)
            by_mean += float(raised @ off)
        return np.concatenate(
            [
                by_mean + grad["mean"],
                basis.backward(turn.shared, turn.own) + grad["theta"],
                grad["time"] + model.time_slopes(away, found.by_time),
            ]
        )

    def hessian(self) -> np.ndarray:
        """Return the Hessian by mean, ``theta`` and ``time``, by differences of the gradient.

        To one side: they are short, and a gradient costs a smoother of all periods.
        """
        params = self._state.params
        phi = np.concatenate([params["mean"], params["theta"], params["time"]])
        n_theta = params["theta"].size
        away = [np.zeros(phi.size), *(GRADIENT_STEP * np.eye(phi.size))]

        def gradient(offset: np.ndarray) -> np.ndarray:
            at = phi + offset
            return self.gradient(at[0], at[1 : 1 + n_theta], at[1 + n_theta :])

        most = max(1, AT_ONCE_BYTES // self._model.state_space(self._state).n_byte)
        rows = np.stack(on_all_cores(gradient, away, most))
        return symmetric((rows[1:] - rows[0]) / GRADIENT_STEP)


class Turn:
    """``L'`` times the adjoint of ``L``: a sum of products over the values that belong together.

    Attributes
    ----------
    shared : (n_shared, n_shared) float64
    own : float
        Of the effects of all areas together.
    """

    def __init__(self, split: Split) -> None:
        self._split, n = split, split.shared.size
        self.shared, self.own = np.zeros((n, n)), 0.0

    def outer(self, factor: float, left: np.ndarray, right: np.ndarray) -> None:
        """Add ``factor left right'`` of values."""
        (a, own_a), (b, own_b) = self._split.parts(left), self._split.parts(right)
        self.shared += factor * np.outer(a, b)
        self.own += factor * float(own_a @ own_b)

    def product(self, factor: float, left: Arrow, right: Arrow) -> None:
        """Add a product of matrices."""
        self.join(factor, *left.product(right))

    def join(self, factor: float, shared: np.ndarray, own: float) -> None:
        """Add the parts of a product: the shared one, and the trace of the own one."""
        self.shared += factor * shared
        self.own += factor * own

    def add(self, factor: float, a: Arrow) -> None:
        """Add a matrix."""
        self.shared += factor * a.shared
        self.own += factor * float(a.own.sum())


def carried_to(
    model: TemporalModel, state: State, params: Arrays, old: Basis | None = None
) -> list[Site]:
    """Return the sites of a state held as functions of ``f(W)`` under other parameters.

    Parameters
    ----------
    model : TemporalModel
    state : State
    params : dict of arrays
    old : Basis, optional
        Of the state, where it is known.
    """
    old = old or Basis.of(model, state.fixed, state.params)
    return _carried(model, state, params, old, Basis.of(model, state.fixed, params))


def _carried(
    model: TemporalModel, state: State, params: Arrays, old: Basis, new: Basis
) -> list[Site]:
    """Carry the sites of a state: a higher mean leaves less to values that carry a constant."""
    up = float(params["mean"][0] - state.params["mean"][0])
    raised = up * old.values(model.constant_values(state.fixed))
    sites = unpacked(state.params, old.split)
    return carried(sites, old.inverse @ new.lower, new.own_sd / old.own_sd, raised)

"""One rate: the yardstick that every model must pass (Law et al. 2018, app. B)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from models.aggregate.objective import finite
from models.aggregate.point_model import PointModel
from models.backend.arrays import namespace, segment_sum
from models.core.block import BagBlock
from models.core.protocol import Arrays, Info, State, Stats, Sweep, override
from models.gp.priors import unit_of
from models.likelihoods.observation import Observation

STEP = 1e-4  # of the central differences of the slopes
LONGEST_STEP = 1.0
FLATTEST = 1e-8  # share of the largest curvature, below which there is none
# Size without bound and area effects of none are the Poisson likelihood; nearer to that limit than
# this, in logarithms from the start, the likelihoods agree to five digits and their slopes are
# rounding.
FARTHEST = 10.0


@dataclass(kw_only=True, eq=False, repr=False)
class Constant(PointModel):
    """One rate for all pixels, by maximum likelihood, with the likelihood's parameters.

    The paper scores two constants: the rate of all training bags together, for bags not seen (this
    model), and each training bag's observed rate, for its pixels.

    Fitted by Newton's method over all bags, one step an epoch: curvature by differences of the
    likelihood's slopes, its eigenvalues taken as negative so that a step climbs.

    Parameters
    ----------
    likelihood, link, area_effect, batch_bags, max_epochs, learning_rate, tolerance, seed
        As of :class:`models.VBAgg`; ``batch_bags``, ``learning_rate`` and ``seed`` change nothing.
    """

    kind = "constant"
    about = "baseline: one rate for all"
    source = "Law et al. 2018"
    sweep: ClassVar[Sweep] = "full"

    @override
    def surface(self, params: Arrays, z: np.ndarray) -> tuple[np.ndarray, Any]:
        """Flat."""
        return namespace(z).zeros(z.shape[0]), None

    @override
    def surface_backward(
        self, params: Arrays, z: np.ndarray, cache: Any, d_f: np.ndarray
    ) -> Arrays:
        """Nothing but the mean is learnt."""
        return {}

    @override
    def block_stats(self, params: Arrays, block: BagBlock, local: Any) -> tuple[Stats, Any]:
        """Sum the log likelihood, its slopes and curvature."""
        seen = Observation.of(self.resolved_likelihood, self.resolved_link, params, block)
        link, own_names = seen.link, tuple(seen.params)
        total = segment_sum(seen.p, block.offsets)
        names = ("mean", *own_names)

        def evaluate(at: np.ndarray) -> tuple[float, np.ndarray]:
            own = dict(zip(own_names, at[1:].tolist(), strict=True))
            terms = self.terms_at(seen, total * link.value(at[0]), own)
            slopes = [float((terms.d1 * total).sum()) * link.slope(at[0])]
            slopes += [float(terms.by[name].sum()) for name in own_names]
            return float(terms.value.sum()), np.array(slopes)

        at = np.array([params[name][0] for name in names])
        value, grad = evaluate(at)
        finite(value)
        curve = np.empty((at.shape[0], at.shape[0]))
        for row, ahead in zip(curve, STEP * np.eye(at.shape[0]), strict=True):
            row[:] = (evaluate(at + ahead)[1] - evaluate(at - ahead)[1]) / (2.0 * STEP)
        sums = {name: grad[i : i + 1] for i, name in enumerate(names)}
        return Stats(value, block.n_bag, {**sums, "curve": 0.5 * (curve + curve.T)}), local

    @override
    def objective(self, state: State, stats: Stats, n_bag_total: int) -> tuple[float, Arrays]:
        value, grad = super().objective(state, stats, n_bag_total)
        del grad["curve"]
        return value, grad

    @override
    def update(self, state: State, stats: Stats, n_bag_total: int) -> tuple[State, Info]:
        """Take a step of Newton's method."""
        bound, slopes = self.objective(state, stats, n_bag_total)
        parameters = self.resolved_likelihood.parameters
        names = ("mean", *parameters)
        grad = np.concatenate([slopes[name] for name in names])
        size, axes = np.linalg.eigh(stats.sums["curve"] * (n_bag_total / stats.n_bag))
        size = np.maximum(np.abs(size), FLATTEST * np.abs(size).max() + np.finfo(float).tiny)
        step = axes @ ((axes.T @ grad) / size)
        step /= max(1.0, float(np.abs(step).max()) / LONGEST_STEP)
        params = {name: state.params[name] + step[i] for i, name in enumerate(names)}
        for name, parameter in parameters.items():
            if parameter.excess_power is not None:
                start = parameter.start
                if parameter.in_units:
                    start += float(state.fixed[unit_of(name)][0])
                params[name] = np.clip(params[name], start - FARTHEST, start + FARTHEST)
        return State(params, state.fixed, {}, state.step + 1, state.rate), Info(bound)

r"""Models of one surface without a posterior: the baselines of Law et al. (2018, app. B).

``eta_a = sum_i p_i Psi(f_i)`` with ``f`` a parametric surface, fitted by maximum a posteriori
through the same loop, likelihoods and links as :class:`models.VBAgg`. Optionally the surface is
held smooth on the data manifold, eqs. (29) and (33), weighted as in eq. (34):

    l1 = f'Lf = f' diag(Phi Phi' 1) f - |Phi' f|^2                                        (32)

with ``Phi`` random Fourier features of a Gaussian kernel on the scaled inputs (or, at the level of
bags, on their means), over the pixels (bags) of one block at a time. ERRATUM: the double sum of
(29) is twice ``f'Lf``. Both penalties are divided by the squared number of points that they
compare; (34) prints pixels for the bags' one too, which would tie its strength to the bags' size.

None of these models has an uncertainty: deviations are 0, and a prediction's spread is the
likelihood's.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from models.aggregate.aggregate_model import AggregateModel, learnt_parameters
from models.aggregate.objective import finite
from models.backend.arrays import as_array, like, segment_sum, spread, to_host
from models.core.block import BagBlock
from models.core.protocol import Arrays, Info, State, Stats, Summary, override
from models.gp.kernels import Radial
from models.gp.random_features import Features
from models.gp.scaling import scaled_inputs
from models.likelihoods.likelihood import Terms
from models.likelihoods.observation import Observation, bag_weights, likelihood_params
from models.likelihoods.prediction import Prediction
from models.training.optim import adam_step

N_FEATURE = 128  # of the manifold's kernel
ROUNDED = 1e-12  # from the upper end of an aggregate: the probit link rounds to 1


class PointModel(AggregateModel):
    """Base of the baselines: a subclass defines its surface and the surface's adjoints."""

    manifold: float = 0.0
    bag_manifold: float = 0.0
    dtype: str = "float64"
    has_spread: ClassVar[bool] = False

    # -- what a subclass defines -----------------------------------------------------------------

    def start_surface(self, z: np.ndarray, rng: np.random.Generator) -> Arrays:
        """Return the surface's own parameters, besides the mean."""
        del z, rng
        return {}

    @abstractmethod
    def surface(self, params: Arrays, z: np.ndarray) -> tuple[np.ndarray, Any]:
        """Return ``f - mean`` at scaled inputs (n_pix, n_dim): (n_pix,), and a cache."""

    @abstractmethod
    def surface_backward(
        self, params: Arrays, z: np.ndarray, cache: Any, d_f: np.ndarray
    ) -> Arrays:
        """Return the adjoints of what :meth:`block_params` gives the surface."""

    # -- the contract with the training loop -----------------------------------------------------

    @override
    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        self.check_params()
        fixed, level, own = self.starting_scale(sample)
        z = scaled_inputs(fixed, sample.x, sample.coords, np.float64)
        params = {
            "mean": np.array([self.resolved_link.inverse(level)]),
            **self.start_surface(z, rng),
            **{name: np.array([value]) for name, value in own.items()},
        }
        return State(params, fixed, rate=self.learning_rate)

    @override
    def block_params(self, state: State) -> Arrays:
        return {**state.fixed, **state.params}

    @override
    def block_stats(self, params: Arrays, block: BagBlock, local: Any) -> tuple[Stats, Any]:
        """Sum the log likelihood, less the manifold penalties."""
        seen = Observation.of(self.resolved_likelihood, self.resolved_link, params, block)
        link, p = seen.link, seen.p
        z = scaled_inputs(params, block.x, block.coords, np.dtype(self.dtype))
        f, cache = self.surface(params, z)
        f = f + float(params["mean"][0])
        at = self.terms_at(seen, segment_sum(p * link.value(f), block.offsets))
        d_f = spread(at.d1, block.offsets) * p * link.slope(f)
        value = float(at.value.sum())
        if self.manifold > 0:
            scale = self.manifold * block.n_bag / block.n_pix**2
            penalty, slope = manifold_penalty(self._manifold_features(z.shape[1])(z), f)
            value -= scale * penalty
            d_f -= scale * slope
        if self.bag_manifold > 0:
            sizes = like(np.diff(block.offsets), f, np.float64)
            means = segment_sum(z.T, block.offsets).T / sizes[:, None]
            each = segment_sum(f, block.offsets) / sizes
            scale = self.bag_manifold / block.n_bag
            penalty, slope = manifold_penalty(self._manifold_features(z.shape[1])(means), each)
            value -= scale * penalty
            d_f -= scale * spread(slope / sizes, block.offsets)
        finite(value)
        sums = self.surface_backward(params, z, cache, d_f)
        sums["mean"] = d_f.sum(keepdims=True)
        sums.update({name: slope.sum(keepdims=True) for name, slope in at.by.items()})
        return Stats(value, block.n_bag, sums), local

    def terms_at(
        self, seen: Observation, eta: np.ndarray, own: dict[str, float] | None = None
    ) -> Terms:
        """Evaluate the log density at aggregates ``eta`` (n_bag,), brought into their range."""
        # A surface without a posterior may reach shares of 0 and 1, where the probit link rounds.
        if not seen.likelihood.averages:
            seen.likelihood.check_mean(seen.y, eta)
        return seen.terms(seen.likelihood.inside(eta, ROUNDED), params=own)

    def objective(self, state: State, stats: Stats, n_bag_total: int) -> tuple[float, Arrays]:
        """Return the log posterior of all bags, up to a constant, and its gradient."""
        del state
        factor = n_bag_total / stats.n_bag
        sums = {name: factor * value for name, value in stats.sums.items()}
        return factor * stats.bound, sums

    @override
    def update(self, state: State, stats: Stats, n_bag_total: int) -> tuple[State, Info]:
        """Take a step of Adam."""
        bound, grad = self.objective(state, stats, n_bag_total)
        params, memory = adam_step(state.params, grad, state.memory, state.step, state.rate)
        return State(params, state.fixed, memory, state.step + 1, state.rate), Info(bound)

    def _manifold_features(self, n_dim: int) -> Features:
        kernel = Radial("rbf", (0, n_dim), ard=False, label="manifold")
        return kernel.features(kernel.start(1.0), N_FEATURE, np.random.default_rng([self.seed, 31]))

    @override
    def unpacked(self, params: Arrays) -> Point:
        return Point(self, params)


@dataclass(frozen=True)
class Point:
    """The posterior that has one surface.

    Attributes
    ----------
    model : PointModel
    params : dict of arrays
    """

    model: PointModel
    params: Arrays

    @property
    def weight(self) -> np.ndarray:
        """One: the only set of hyperparameters."""
        return np.ones(1)

    @property
    def parts(self) -> tuple[Point, ...]:
        """Itself."""
        return (self,)

    def moments(self, x: np.ndarray, coords: np.ndarray | None) -> Prediction:
        """Return the rate of each pixel, without a spread."""
        model, params = self.model, self.params
        z = scaled_inputs(params, x, coords, np.dtype(model.dtype))
        f = model.surface(params, z)[0] + float(params["mean"][0])
        return Prediction(model.link_name, f, np.zeros_like(f), float(params["base_rate"][0]))

    def draws(self, n_draws: int, rng: np.random.Generator) -> PointDraws:
        """Return the one surface ``n_draws`` times, as a posterior with a spread draws its own."""
        del rng
        return PointDraws(self, n_draws)

    def hyperparameters(self) -> dict[str, float]:
        """Return the mean and the likelihood's parameters by name."""
        return learnt_parameters(self.model.resolved_likelihood, self.params)

    def pack(self) -> Arrays:
        """Return the arrays that it is made of."""
        return self.params


@dataclass(frozen=True)
class PointDraws:
    """One surface, repeated for each draw."""

    posterior: Point
    n_draws: int

    @property
    def params(self) -> dict[str, float]:
        """The likelihood's parameters, logarithms."""
        return likelihood_params(self.posterior.model.resolved_likelihood, self.posterior.params)

    @property
    def clusters(self) -> np.ndarray:
        """Each draw by itself: (n_draws, 2) int64."""
        return np.stack([np.zeros(self.n_draws, np.int64), np.arange(self.n_draws)], axis=1)

    @override
    def alone(self, number: int) -> tuple[PointDraws, int]:
        return self, number

    @override
    def rate(self, x: np.ndarray, coords: np.ndarray | None = None) -> np.ndarray:
        mean = to_host(self.posterior.moments(as_array(x), coords).mean)
        return np.broadcast_to(mean, (self.n_draws, mean.shape[0]))

    @override
    def bag_counts(self, bags: BagBlock) -> np.ndarray:
        likelihood = self.posterior.model.resolved_likelihood
        p = bag_weights(likelihood, bags.weight, bags.offsets, 1.0)
        mean = self.posterior.moments(as_array(bags.x), bags.coords).mean
        return np.tile(to_host(segment_sum(p * mean, bags.offsets)), (self.n_draws, 1))

    @override
    def counted(self, bags: BagBlock) -> PointDraws:
        del bags
        return self

    @override
    def observed_factors(self, bags: BagBlock, drawn: np.ndarray) -> np.ndarray:
        return np.ones_like(drawn)


def manifold_penalty(phi: np.ndarray, f: np.ndarray) -> tuple[float, np.ndarray]:
    """Return ``f'Lf``, eq. (32), and its gradient by ``f``.

    Parameters
    ----------
    phi : (n, n_feature)
        Features; ``phi phi'`` is the similarity of the ``n`` points.
    f : (n,)
    """
    degree = phi @ phi.sum(axis=0)
    inner = phi.T @ f
    return float(f @ (degree * f) - inner @ inner), 2.0 * (degree * f - phi @ inner)

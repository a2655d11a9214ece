r"""Models that say one surface and no more: the baselines of Law et al. (2018, app. B).

``eta_a = sum_i p_i Psi(f_i)`` with ``f`` a parametric surface, fitted by maximum a posteriori
through the same loop, laws and links as :class:`models.VBAgg`. Optionally the surface is held
smooth on the data manifold, eqs. (29) and (33), weighted as in eq. (34):

    l1 = f'Lf = f' diag(Phi Phi' 1) f - |Phi' f|^2                                        (32)

with ``Phi`` random Fourier features of a Gaussian kernel on the scaled inputs (or, at the level of
bags, on their means), over the pixels (bags) of one block at a time. ERRATUM: the double sum of
(29) is twice ``f'Lf``. Both penalties are divided by the squared number of points that they
compare; (34) prints pixels for the bags' one too, which would tie its strength to the bags' size.

None of these models has an uncertainty: deviations are 0, and a prediction's spread is the law's.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from models.aggregate.objective import bag_weights
from models.backend.arrays import as_array, like, segment_sum, spread, to_host
from models.core.block import BagBlock
from models.core.errors import NumericalError, ParameterError
from models.core.protocol import Arrays, Info, State, Stats, Summary, Sweep
from models.gp.kernels import Radial
from models.gp.random_features import Features
from models.gp.scaling import scaled_inputs, scaling_of, starting_scale
from models.likelihoods.area_effect import AreaEffect
from models.likelihoods.counts import LIKELIHOODS, TINY, Likelihood, Terms, check_positive
from models.likelihoods.links import find_link
from models.likelihoods.prediction import BagPrediction, Prediction
from models.training.estimator import Estimator
from models.training.optim import adam_step

N_FEATURE = 128  # of the manifold's kernel
LARGEST_SHARE = 1.0 - 1e-12  # of positives: the probit link rounds to 1


class PointModel(Estimator):
    """Base of the baselines: a subclass says its surface and how it is differentiated."""

    sweep: ClassVar[Sweep] = "minibatch"
    likelihood: str
    link: str
    area_effect: bool
    manifold: float = 0.0
    bag_manifold: float = 0.0
    dtype: str = "float64"
    counts: ClassVar[tuple[str, ...]] = ("batch_bags", "max_epochs")
    positive: ClassVar[tuple[str, ...]] = ("learning_rate", "tolerance")

    @property
    def law(self) -> Likelihood:
        """The law of a bag's response."""
        base = LIKELIHOODS[self.likelihood]
        return AreaEffect(base) if self.area_effect else base

    @property
    def link_name(self) -> str:
        """The link, ``auto`` resolved."""
        return LIKELIHOODS[self.likelihood].links[0] if self.link == "auto" else self.link

    def check_params(self) -> None:
        """Raise ParameterError if a parameter has an impossible value."""
        if self.likelihood not in LIKELIHOODS:
            msg = f"likelihood: {self.likelihood!r} is not one of {', '.join(LIKELIHOODS)}"
            raise ParameterError(msg)
        links = LIKELIHOODS[self.likelihood].links
        if self.link_name not in links:
            msg = (
                f"link: {self.link!r} does not go with {self.likelihood}; use {' or '.join(links)}"
            )
            raise ParameterError(msg)
        wrong = None
        for name in self.counts:
            value = getattr(self, name)
            if value != int(value) or value < 1:
                wrong = f"{name}: {value} is not a whole number of at least 1"
        for name in self.positive:
            if not getattr(self, name) > 0:
                wrong = f"{name}: {getattr(self, name)} is not above 0"
        for name in ("manifold", "bag_manifold"):
            if not getattr(self, name) >= 0:
                wrong = f"{name}: {getattr(self, name)} is below 0"
        if self.dtype not in ("float64", "float32"):
            wrong = f"dtype: {self.dtype!r} is not one of float64, float32"
        if self.area_effect and self.likelihood in ("normal", "binomial"):
            wrong = (
                f"area_effect: {self.likelihood} responses cannot have a factor a bag; leave it out"
            )
        if wrong:
            raise ParameterError(wrong)

    # -- what a subclass says --------------------------------------------------------------------

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

    def log_prior(self, params: Arrays) -> tuple[float, Arrays]:
        """Return the log density of the parameters, up to a constant, and its gradient."""
        del params
        return 0.0, {}

    def driver_backward(self, params: Arrays, sums: Arrays) -> Arrays:
        """Take the adjoints of the block's parameters to those of the state."""
        del params
        return {name: value for name, value in sums.items() if name != "penalty"}

    # -- the contract with the training loop -----------------------------------------------------

    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """See :class:`models.core.protocol.Model`."""
        self.check_params()
        base, level, own = starting_scale(self.law, sample)
        fixed = scaling_of(sample, base)
        z = scaled_inputs(fixed, sample.x, sample.coords, np.float64)
        params = {
            "mean": np.array([find_link(self.link_name).inverse(level)]),
            **self.start_surface(z, rng),
            **{name: np.array([value]) for name, value in own.items()},
        }
        return State(params, fixed, rate=self.learning_rate)

    def block_params(self, state: State) -> Arrays:
        """See :class:`models.core.protocol.Model`."""
        return {**state.fixed, **state.params}

    def block_stats(self, params: Arrays, block: BagBlock, local: Any) -> tuple[Stats, Any]:
        """See :class:`Model`: the log likelihood, less the manifold penalties."""
        law, link = self.law, find_link(self.link_name)
        own = {name: float(params[name][0]) for name in law.start}
        z = scaled_inputs(params, block.x, block.coords, np.dtype(self.dtype))
        f, cache = self.surface(params, z)
        f = f + float(params["mean"][0])
        p = bag_weights(law, block.weight, block.offsets, float(params["base_rate"][0]))
        at = self.law_terms(block, segment_sum(p * link.value(f), block.offsets), own)
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
        check_finite(value)
        sums = self.surface_backward(params, z, cache, d_f)
        sums["mean"] = d_f.sum(keepdims=True)
        sums.update({name: slope.sum(keepdims=True) for name, slope in at.by.items()})
        return Stats(value, block.n_bag, sums), local

    def law_terms(self, block: BagBlock, eta: np.ndarray, own: dict[str, float]) -> Terms:
        """Evaluate the law at aggregates ``eta`` (n_bag,), brought into its support."""
        law = self.law
        if law.averages:
            eta = np.clip(eta, TINY, LARGEST_SHARE)
        elif self.likelihood != "normal":
            check_positive(block.y, eta)
            eta = np.maximum(eta, TINY)
        return law.terms(block.y, eta, own, law.unit(block.weight, block.offsets, block.trials))

    def objective(self, state: State, stats: Stats, n_bag_total: int) -> tuple[float, Arrays]:
        """Return the log posterior of all bags, up to a constant, and its gradient."""
        factor = n_bag_total / stats.n_bag
        sums = {name: factor * value for name, value in stats.sums.items()}
        grad = self.driver_backward(state.params, sums)
        prior, slopes = self.log_prior(state.params)
        for name, slope in slopes.items():
            grad[name] = grad[name] + slope
        return factor * stats.bound + prior, grad

    def update(self, state: State, stats: Stats, n_bag_total: int) -> tuple[State, Info]:
        """See :class:`models.core.protocol.Model`: a step of Adam."""
        bound, grad = self.objective(state, stats, n_bag_total)
        params, memory = adam_step(state.params, grad, state.memory, state.step, state.rate)
        return State(params, state.fixed, memory, state.step + 1, state.rate), Info(bound)

    def _manifold_features(self, n_dim: int) -> Features:
        kernel = Radial("rbf", (0, n_dim), ard=False, label="manifold")
        return kernel.features(kernel.start(1.0), N_FEATURE, np.random.default_rng([self.seed, 31]))

    # -- what users and the pipeline call ----------------------------------------------------------

    def predict_block(self, params: Arrays, x: np.ndarray, coords: np.ndarray | None) -> Prediction:
        """Return the rate at pixels ``x`` (n_pix, n_feat), ``coords`` (n_pix, 2) km; no spread."""
        f, _ = self.surface(params, scaled_inputs(params, x, coords, np.dtype(self.dtype)))
        f = f + float(params["mean"][0])
        return Prediction(self.link_name, f, np.zeros_like(f), float(params["base_rate"][0]))

    def predict_pixels(self, x: np.ndarray, coords: np.ndarray | None = None) -> Prediction:
        """Return the rate of each pixel, per unit of weight; its deviation is 0.

        Parameters
        ----------
        x : (n_pix, n_feat)
            Covariates as measured.
        coords : (n_pix, 2), km
            Needed where the model was fitted with coordinates.
        """
        return self.predict_block(self.fitted_params(), as_array(x), coords)

    def sample_functions(self, n_draws: int, rng: np.random.Generator) -> PointDraws:
        """Return the one surface ``n_draws`` times, as models with a posterior draw theirs."""
        del rng
        self.fitted_state()
        return PointDraws(self, n_draws)

    def predict_bags(
        self,
        bags: BagBlock,
        *,
        n_draws: int = 500,
        rng: np.random.Generator | None = None,
        draws: PointDraws | None = None,
    ) -> BagPrediction:
        """Return the expected response of each bag, the same in every draw."""
        draws = draws or self.sample_functions(n_draws, rng or np.random.default_rng(self.seed))
        law, params = self.law, self.fitted_params()
        own = {name: float(params[name][0]) for name in law.start}
        unit = law.unit(bags.weight, bags.offsets, bags.trials)
        return BagPrediction(draws.bag_counts(bags), law, own, unit)

    def named_hyperparameters(self) -> dict[str, float]:
        """Return the learnt mean and the law's own parameters by name."""
        params = self.fitted_params()
        own = {n.removeprefix("log_"): float(np.exp(params[n][0])) for n in self.law.start}
        return {"mean": float(params["mean"][0]), **own}


class PointDraws:
    """One surface, said as often as draws are wanted.

    Attributes
    ----------
    n_draws : int
    """

    def __init__(self, model: PointModel, n_draws: int) -> None:
        self._model = model
        self.n_draws = n_draws

    def rate(self, x: np.ndarray, coords: np.ndarray | None = None) -> np.ndarray:
        """Return the rates, per unit of weight: (n_draws, n_pix)."""
        mean = to_host(self._model.predict_pixels(x, coords).mean)
        return np.broadcast_to(mean, (self.n_draws, mean.shape[0]))

    def bag_counts(self, bags: BagBlock) -> np.ndarray:
        """Aggregate the rates over each bag: (n_draws, n_bag)."""
        p = bag_weights(self._model.law, bags.weight, bags.offsets, 1.0)
        mean = self._model.predict_pixels(bags.x, bags.coords).mean
        return np.tile(to_host(segment_sum(p * mean, bags.offsets)), (self.n_draws, 1))


def check_finite(value: float) -> None:
    """Raise NumericalError where an objective is not finite."""
    if not np.isfinite(value):
        msg = "the objective is not finite: the fit diverged; lower the learning rate"
        raise NumericalError(msg)


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

r"""VBAgg: the sparse variational Gaussian process for aggregate outputs (Law et al. 2018).

``y_a ~ Poisson(sum_i p_i Psi(f_i))``: the count of a bag is Poisson with the sum over its pixels of
exposure times rate. Exposures are divided by ``1 / base rate`` first (``Psi(f) = 1`` stands for the
mean rate of the training data), so that one set of starting values serves a rate of 0.4 and one of
1e-6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from models import likelihoods, pixel_pass, sparse_gp
from models.base import Estimator
from models.block import BagBlock
from models.draws import FunctionDraws, draw_functions
from models.errors import BagsError, ParameterError
from models.kernels import Kernel, parse_kernel
from models.landmarks import choose_landmarks
from models.optim import adam_step
from models.prediction import LINKS, BagPrediction, Link, Prediction, link_value
from models.protocol import Arrays, Info, State, Stats, Summary, Sweep
from models.sparse_gp import Whitened

CHOICES: dict[str, tuple[str, ...]] = {
    "likelihood": ("poisson", "negative_binomial"),
    "link": LINKS,
    "posterior_steps": ("natural", "adam"),
    "dtype": ("float64", "float32"),
}
START_SIZE = 10.0  # of the negative binomial: areas of one mean differ by a third
START_ROOT = 0.3  # deviation of q(v) at the start, where the prior's is 1
START_VARIANCE: dict[Link, float] = {"square": 0.2, "exp": 1.0}


@dataclass(frozen=True)
class Objective:
    """The bound and its derivatives at one state, estimated from some of the bags.

    Attributes
    ----------
    bound : float
        Nats, all bags.
    grad : dict of arrays
        By every unconstrained parameter.
    d_mean, d_cov : (n_ind,), (n_ind, n_ind) float64
        Adjoints of the mean and covariance of the whitened inducing values, without the KL term.
    """

    bound: float
    grad: Arrays
    d_mean: np.ndarray
    d_cov: np.ndarray


class VBAgg(Estimator):
    """Sparse variational GP for counts known by bag.

    Parameters
    ----------
    likelihood : {"poisson", "negative_binomial"}
        Law of a bag's count; the size of the negative binomial is learnt.
    link : {"square", "exp"}
        ``Psi``: rate as a function of the latent surface. ``square`` uses the second-order
        estimate of eq. (14) (with its errata), ``exp`` the Lemma-1 bound of eq. (15).
    n_inducing : int
        Number of landmarks; fewer where there are fewer distinct pixels.
    kernel : str
        See :func:`models.kernels.parse_kernel`.
    learn_inducing : bool
        Move the landmarks during the fit; else they stay where k-means++ put them.
    batch_bags : int
        Bags a step.
    max_epochs : int
        Most passes over the data.
    learning_rate : float
        Adam's, at the start; it falls when the bound no longer rises.
    tolerance : float
        Rise of the bound, nats per bag and epoch, below which it is taken not to rise.
    posterior_steps : {"natural", "adam"}
        How q(u) is learnt: along its natural gradient, or by Adam as in the paper. Everything else
        is learnt by Adam.
    natural_rate : float
        Share of the way that a natural step goes, at the start; it falls with ``learning_rate``.
    dtype : {"float64", "float32"}
        Of the pixel matrices; sums and the driver's algebra are float64 in any case.
    seed : int

    Attributes
    ----------
    state_ : State
    params_ : dict of arrays
        What a block of pixels needs to be predicted.
    history_ : list of dict
        Epoch by epoch: bound (nats, all bags), learning rate, seconds.
    converged_ : bool
    bound_ : float
        The bound at the last epoch, nats.
    """

    sweep: ClassVar[Sweep] = "minibatch"

    def __init__(
        self,
        *,
        likelihood: Literal["poisson", "negative_binomial"] = "poisson",
        link: Link = "square",
        n_inducing: int = 200,
        kernel: str = "ard",
        learn_inducing: bool = True,
        batch_bags: int = 32,
        max_epochs: int = 300,
        learning_rate: float = 0.05,
        tolerance: float = 0.01,
        posterior_steps: Literal["natural", "adam"] = "natural",
        natural_rate: float = 0.5,
        dtype: Literal["float64", "float32"] = "float64",
        seed: int = 0,
    ) -> None:
        self.likelihood = likelihood
        self.link = link
        self.n_inducing = n_inducing
        self.kernel = kernel
        self.learn_inducing = learn_inducing
        self.batch_bags = batch_bags
        self.max_epochs = max_epochs
        self.learning_rate = learning_rate
        self.tolerance = tolerance
        self.posterior_steps = posterior_steps
        self.natural_rate = natural_rate
        self.dtype = dtype
        self.seed = seed

    def check_params(self) -> None:
        """Raise ParameterError if a parameter has an impossible value."""
        wrong = None
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                wrong = f"{name}: {getattr(self, name)!r} is not one of {', '.join(choices)}"
        for name in ("n_inducing", "batch_bags", "max_epochs"):
            value = getattr(self, name)
            if value != int(value) or value < 1:
                wrong = f"{name}: {value} is not a whole number of at least 1"
        for name in ("learning_rate", "tolerance", "natural_rate"):
            if not getattr(self, name) > 0:
                wrong = f"{name}: {getattr(self, name)} is not above 0"
        if wrong:
            raise ParameterError(wrong)

    # -- the contract with the training loop ---------------------------------------------------

    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """See :class:`models.protocol.Model`: landmarks by k-means++, rates at their mean."""
        self.check_params()
        if sample.total_weight <= 0:
            msg = "the training bags have no weight; check the population"
            raise BagsError(msg)
        if sample.total_y <= 0:
            msg = "every training bag counts 0; there is no rate to learn"
            raise BagsError(msg)
        fixed = {
            "x_mean": sample.x_mean,
            "x_sd": sample.x_sd,
            "base_rate": np.array([sample.total_y / sample.total_weight]),
        }
        if sample.coords is not None:
            centre = sample.coords.mean(axis=0)
            fixed["coord_mean"] = centre
            spread = np.sqrt(((sample.coords - centre) ** 2).mean())
            fixed["coord_scale"] = np.array([spread if spread > 0 else 1.0])
        z = _scaled_inputs(fixed, sample.x, sample.coords, np.float64)
        w = choose_landmarks(z, self.n_inducing, rng)
        kernel = self._kernel(fixed)
        theta = kernel.start(START_VARIANCE[self.link])
        # The mean rate is 1 in these units; each link's start leaves room for the variance.
        mean = 1.0 if self.link == "square" else -0.5
        root = np.diag(np.full(w.shape[0], np.log(START_ROOT)))
        params = {
            "mean": np.array([mean]),
            "v_mean": np.zeros(w.shape[0]),
            "root": root,
            "theta": theta,
            "w": w,
        }
        if self.likelihood == "negative_binomial":
            params["log_size"] = np.log([START_SIZE])
        return State(params, fixed, rate=self.learning_rate)

    def block_params(self, state: State) -> Arrays:
        """See :class:`models.protocol.Model`: ``theta w mean alpha q`` and the scalings."""
        params = state.params
        kernel = self._kernel(state.fixed)
        fac = sparse_gp.factorise(
            kernel.matrix(params["theta"], params["w"], params["w"]), _whitened(params)
        )
        size = {"log_size": params["log_size"]} if "log_size" in params else {}
        return {
            **state.fixed,
            **size,
            "theta": params["theta"],
            "w": params["w"],
            "mean": params["mean"],
            "alpha": fac.alpha,
            "q": fac.q,
        }

    def block_stats(self, params: Arrays, block: BagBlock, local: Any) -> tuple[Stats, Any]:
        """See :class:`models.protocol.Model`: the bound, and its adjoints by ``params``."""
        fwd = self._forward(params, block.x, block.coords, learn=True)
        p = block.weight * float(params["base_rate"][0])
        size = float(np.exp(params["log_size"][0])) if "log_size" in params else None
        pairs = None
        if self.link == "exp":
            term = likelihoods.exp_link(block.y, p, block.offsets, fwd.m, fwd.s, size)
            d_m = term.d_m
        else:
            slope = likelihoods.dispersion_slope(block.y, p, block.offsets, fwd.m, fwd.s, size)
            pairs = pixel_pass.pair_pass(fwd, p, block.offsets, slope)
            term = likelihoods.square_link(
                block.y, p, block.offsets, fwd.m, fwd.s, pairs.dispersion, size
            )
            d_m = term.d_m + pairs.d_m
        sums = fwd.backward(d_m, term.d_s, pairs)
        if size is not None:
            sums["log_size"] = np.array([term.d_log_size])
        return Stats(term.bound, block.n_bag, sums), local

    def objective(self, state: State, stats: Stats, n_bag_total: int) -> Objective:
        """Return the bound on all bags and its gradient by every learnt parameter.

        ``n_bag_total / stats.n_bag`` times the bags' part, less the KL divergence.
        """
        params = state.params
        kernel, whitened = self._kernel(state.fixed), _whitened(params)
        theta, w = params["theta"], params["w"]
        k_ww, cache = kernel.forward(theta, w, w)
        fac = sparse_gp.factorise(k_ww, whitened)
        factor = n_bag_total / stats.n_bag
        sums = {name: factor * value for name, value in stats.sums.items()}
        d_mean, d_cov, d_k = sparse_gp.factorise_backward(fac, whitened, sums["alpha"], sums["q"])
        d_theta, d_w = kernel.backward(theta, w, w, cache, d_k, want_w=True)
        kl_mean, kl_root = whitened.kl_backward()
        grad = {
            "mean": sums["mean"],
            "v_mean": d_mean - kl_mean,
            "root": whitened.root_adjoint(d_cov) - kl_root,
            "theta": sums["theta"] + d_theta,
            # W stands on both sides of the symmetric K_WW: its adjoint counts twice.
            "w": sums["w"] + 2.0 * d_w,
        }
        if "log_size" in params:
            grad["log_size"] = sums["log_size"]
        return Objective(factor * stats.bound - whitened.kl(), grad, d_mean, d_cov)

    def update(self, state: State, stats: Stats, n_bag_total: int) -> tuple[State, Info]:
        """See :class:`models.protocol.Model`: a step of Adam, and a natural one on q(u)."""
        at = self.objective(state, stats, n_bag_total)
        grad = dict(at.grad)
        if not self.learn_inducing:
            del grad["w"]
        if self.posterior_steps == "natural":
            del grad["v_mean"], grad["root"]
        params, memory = adam_step(state.params, grad, state.memory, state.step, state.rate)
        if self.posterior_steps == "natural":
            rate = self.natural_rate * state.rate / self.learning_rate
            stepped = _whitened(state.params).natural_step(at.d_mean, at.d_cov, rate)
            params["v_mean"], params["root"] = stepped.v_mean, stepped.root
        return State(params, state.fixed, memory, state.step + 1, state.rate), Info(at.bound)

    def predict_block(self, params: Arrays, x: np.ndarray, coords: np.ndarray | None) -> Prediction:
        """Return the law of the rate at pixels ``x`` (n_pix, n_feat), ``coords`` (n_pix, 2) km."""
        fwd = self._forward(params, x, coords, learn=False)
        return Prediction(self.link, fwd.m, fwd.s, float(params["base_rate"][0]))

    # -- what users call -----------------------------------------------------------------------

    def predict_pixels(self, x: np.ndarray, coords: np.ndarray | None = None) -> Prediction:
        """Return the law of the rate of each pixel, per unit of weight.

        Parameters
        ----------
        x : (n_pix, n_feat)
            Covariates as measured.
        coords : (n_pix, 2), km
            Needed where the model was fitted with coordinates.
        """
        return self.predict_block(self.fitted_params(), np.asarray(x), coords)

    def sample_functions(self, n_draws: int, rng: np.random.Generator) -> VBAggDraws:
        """Draw whole rate surfaces from the posterior; see :mod:`models.draws`."""
        state = self.fitted_state()
        params, kernel = state.params, self._kernel(state.fixed)
        theta, w = params["theta"], params["w"]
        k_ww = kernel.matrix(theta, w, w)
        whitened = _whitened(params)
        fac = sparse_gp.factorise(k_ww, whitened)
        noise = rng.standard_normal((w.shape[0], n_draws))
        u_white = whitened.v_mean[:, None] + whitened.factor() @ noise
        jitter_sd = float(np.sqrt(sparse_gp.JITTER * np.trace(k_ww) / w.shape[0]))
        mean, scale = float(params["mean"][0]), float(state.fixed["base_rate"][0])
        functions = draw_functions(
            kernel, theta, w, mean, fac.lower, u_white, jitter_sd, rng, self.link, scale
        )
        return VBAggDraws(functions, state.fixed)

    def predict_bags(
        self,
        bags: BagBlock,
        *,
        n_draws: int = 500,
        rng: np.random.Generator | None = None,
        draws: VBAggDraws | None = None,
    ) -> BagPrediction:
        """Return joint draws of the expected count of each bag.

        Parameters
        ----------
        bags : BagBlock
        n_draws : int
        rng : numpy Generator, optional
            Seeded by the model's ``seed`` where not given.
        draws : VBAggDraws, optional
            Functions drawn before: give the same ones for the blocks of one data set.
        """
        if draws is None:
            draws = self.sample_functions(n_draws, rng or np.random.default_rng(self.seed))
        return BagPrediction(draws.bag_counts(bags), self.size_)

    @property
    def size_(self) -> float | None:
        """Learnt size of the negative binomial; None for Poisson."""
        log_size = self.fitted_state().params.get("log_size")
        return None if log_size is None else float(np.exp(log_size[0]))

    def named_hyperparameters(self) -> dict[str, float]:
        """Return the learnt mean and kernel parameters by name, in the units of the scaled data.

        Length-scales of space are in km; those of covariates in standard deviations.
        """
        state = self.fitted_state()
        kernel = self._kernel(state.fixed)
        values = dict(zip(kernel.names, np.exp(state.params["theta"]).tolist(), strict=True))
        if "coord_scale" in state.fixed:
            scale = float(state.fixed["coord_scale"][0])
            for name in values:
                if "_space" in name and ".lengthscale" in name:
                    values[name] *= scale
        size = {} if self.size_ is None else {"size": self.size_}
        return {"mean": float(state.params["mean"][0]), **size, **values}

    def _kernel(self, fixed: Arrays) -> Kernel:
        n_feat = fixed["x_mean"].shape[0]
        return parse_kernel(self.kernel, n_feat, has_coords="coord_scale" in fixed)

    def _forward(self, params: Arrays, x: Any, coords: Any, *, learn: bool) -> pixel_pass.PixelPass:
        dtype = np.dtype(self.dtype)
        z = _scaled_inputs(params, x, coords, dtype)
        low = dict(params)
        for name in ("w", "alpha", "q"):
            low[name] = params[name].astype(dtype, copy=False)
        return pixel_pass.forward(self._kernel(params), low, z, learn=learn)


class VBAggDraws:
    """Rate surfaces drawn from a fitted :class:`VBAgg`: the same whatever the tiles.

    Attributes
    ----------
    n_draws : int
    """

    def __init__(self, functions: FunctionDraws, fixed: Arrays) -> None:
        self._functions = functions
        self._fixed = fixed
        self.n_draws = functions.n_draws

    def rate(self, x: np.ndarray, coords: np.ndarray | None = None) -> np.ndarray:
        """Evaluate the rates, per unit of weight: (n_draws, n_pix)."""
        z = _scaled_inputs(self._fixed, x, coords, np.float64)
        f = self._functions.latent(z)
        return self._functions.scale * link_value(self._functions.link, f).T

    def bag_counts(self, bags: BagBlock) -> np.ndarray:
        """Sum weight times rate over each bag: (n_draws, n_bag), in memory free of n_pix."""
        z = _scaled_inputs(self._fixed, bags.x, bags.coords, np.float64)
        return self._functions.bag_sums(z, bags.weight, bags.offsets)


def _whitened(params: Arrays) -> Whitened:
    return Whitened(params["v_mean"], params["root"])


def _scaled_inputs(fixed: Arrays, x: Any, coords: Any, dtype: Any) -> np.ndarray:
    """Join scaled covariates and scaled coordinates: (n_pix, n_dim)."""
    n_feat = fixed["x_mean"].shape[0]
    if x.ndim != 2 or x.shape[1] != n_feat:
        msg = f"x has shape {x.shape}; the model was fitted with {n_feat} covariates"
        raise BagsError(msg)
    parts = [(x - fixed["x_mean"]) / fixed["x_sd"]]
    if "coord_scale" in fixed:
        if coords is None:
            msg = "the model was fitted with coordinates; give coords (n_pix, 2), km"
            raise BagsError(msg)
        parts.append((coords - fixed["coord_mean"]) / fixed["coord_scale"])
    return np.concatenate(parts, axis=1).astype(dtype, copy=False)

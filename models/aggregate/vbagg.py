r"""VBAgg: the sparse variational Gaussian process for aggregate outputs (Law et al. 2018).

``y_a ~ p(. | sum_i p_i Psi(f_i))``: the response of a bag follows a distribution whose mean is the
sum over its pixels of exposure times rate. Exposures are divided by ``1 / base rate`` first
(``Psi(f) = 1`` stands for the mean rate of the training data), so that one set of starting values
serves a rate of 0.4 and one of 1e-6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from models.aggregate.aggregate_model import AggregateModel
from models.aggregate.area_refit import AreaRefits
from models.aggregate.hyperparameter_chain import told_draws, told_explanations
from models.aggregate.objective import Estimation, Objective, aggregate, available
from models.aggregate.posterior import Gaussian, Mixture, posterior_of, tabulated, unpack
from models.aggregate.profile_bound import with_phi
from models.aggregate.refinement import Refinement
from models.backend.arena import arena_for
from models.backend.arrays import namespace, to_host
from models.core.block import BagBlock
from models.core.errors import ParameterError
from models.core.protocol import Arrays, BagSums, Info, State, Stats, Summary, Sweep, override
from models.core.thinning import thinned_block
from models.gp import pathwise, pixel_pass, sparse_gp
from models.gp.inducing_points import POINTS, choose_inducing_points, place_inducing
from models.gp.kept_kernels import KeptKernels, made_of, place_of
from models.gp.kernel_model import KernelModel, exactly, whitened
from models.gp.kernel_text import check_drawable
from models.gp.kernels import Kernel
from models.gp.linear_part import Coefficient
from models.gp.priors import level_unit, log_priors
from models.gp.scaling import scaled_inputs
from models.likelihoods.likelihood import Likelihood
from models.likelihoods.observation import Observation
from models.likelihoods.sources import several_sources
from models.training.device import moved
from models.training.few_pixels import ALL_PIXELS, block_arrays
from models.training.optim import adam_step
from models.training.parameters import Count, Positive, Precision, Range

CLIMB_PIXELS, LEAST_CLIMB = 4096, 25  # pixels of all bags, and of each, that the climb reads
FEW = 16384  # pixels of all bags that are no more than this are brought to the driver
MEMBERS = 10  # draws of the hyperparameters
START_ROOT = 0.3  # deviation of q(v) at the start, where the prior's is 1
# The same where q(v) climbs by natural steps alone: narrower than what any data leave. The first
# step is then Laplace's. Under a q that is much wider than the data ask for, the log-normal and
# second-order estimates curve the wrong way and have maxima of their own.
NARROW_ROOT = 1e-3


@dataclass(kw_only=True, eq=False, repr=False)
class VBAgg(KernelModel, AggregateModel):
    """Sparse variational GP for responses known by bag.

    Parameters
    ----------
    likelihood : str
        Distribution of a bag's response: ``poisson``, ``negative_binomial``, ``normal``,
        ``exponential``, ``gamma``, ``binomial`` or ``beta_binomial``. The size of the negative
        binomial, the normal noise, the shape of the gamma law and the overdispersion of the
        beta-binomial are learnt. The last two need ``trials``.
    link : {"auto", "square", "exp", "identity", "probit"}
        ``Psi``: rate as a function of the latent surface. ``auto`` is exp for counts and for
        positive values, identity for the normal likelihood and probit for proportions.
    estimator : {"auto", "bound", "second_order", "log_normal", "monte_carlo"}
        Of what is expected of the likelihood. ``bound``: the paper's Lemma 1 (exp) and Lemma 2
        (square), which see the pixels' marginals alone. ``second_order``: Taylor's, eq. (14) for
        Poisson counts and the square link. ``log_normal``: moments of the aggregate matched by a
        log-normal distribution (:func:`models.aggregate.moment_matching.marginal`).
        ``monte_carlo``: whole functions drawn in every step. ``auto`` is log_normal for the exp
        link and second_order for the others.
    area_effect : "auto" or bool
        An effect of each bag beside the likelihood's own noise, its deviation learnt: a log-normal
        factor, or noise between bags under the normal likelihood. ``auto``: with Poisson counts,
        normal and exponential responses, unless ``estimator`` is the bound.
    n_inducing : int or "auto"
        Points of the kernel's terms of two and more dimensions together; fewer where there are
        fewer distinct pixels. ``auto``: averages of the bags, where these are 400 or fewer; else
        400 points. See :func:`models.gp.inducing_points.place_inducing`.
    kernel : str
        See :func:`models.gp.kernel_text.parse_kernel`; ``auto`` is ``smooth_joint``.
    sources : dict of dict, optional
        Sources of responses beside the areas, by name, in the order of their numbers in
        ``Bags(source=...)`` from 1 on: ``likelihood`` of each, and ``offset``, whether its scale is
        learnt (by default); see :mod:`models.likelihoods.sources`.
    priors : {"weak", "none"}
        Penalised-complexity priors on the kernel and the likelihood, see :mod:`priors`; the bound
        then holds their log density.
    learn_inducing : bool
        Move the inducing points, in fits by mini-batches; else they stay where k-means++ put them.
    pair_pixels : int
        Pixels of a bag whose pairs are visited for the variance of its aggregate; larger bags are
        sampled. See :mod:`models.gp.bag_variance`.
    n_paths : int
        Functions drawn a step under ``monte_carlo``, in pairs: even.
    n_features : int
        Random features that stand for each term of the kernel in those draws.
    posterior_steps : {"natural", "adam"}
        ``natural``: q(u) by natural steps over all bags, everything else by quasi-Newton steps on
        the profile bound, to its optimum (:mod:`models.aggregate.refinement`). ``adam``: everything
        by Adam on mini-batches, as in the paper. Under ``monte_carlo``, natural steps and Adam on
        mini-batches.
    batch_bags : int
        Bags a step, in fits by mini-batches.
    max_epochs : int
        Most steps of a fit to the optimum, or passes over the data by mini-batches.
    learning_rate : float
        Adam's, at the start; it falls when the bound no longer rises.
    tolerance : float
        Rise of the bound, nats per bag and epoch, that counts as none in a fit by mini-batches.
    nats_left : float
        Where ``posterior_steps`` is natural: most that the bound of all bags may be below its
        optimum, nats, for the fit to have converged.
    integrate : {"auto", "none"} or int
        Draws of the hyperparameters around the optimum that predictions are mixed over, even; 10
        where ``auto``. See :mod:`models.aggregate.refinement`.
    few_pixels : bool
        Let the fit end on the few pixels of each bag on which it begins, with a shorter chain of
        the hyperparameters (``modes_`` is of it): for scores, not for maps.
    natural_rate : float
        Share of the way that a natural step goes, at the start; it falls with ``learning_rate``.
    dtype : {"float64", "float32"}
        Of the pixel matrices in predictions, and in fits by mini-batches. Sums, the driver's
        algebra and fits to an optimum are float64 in any case.
    seed : int

    Attributes
    ----------
    state_ : State
    params_ : dict of arrays
        What a block of pixels needs to be predicted.
    history_ : list of dict
        Step by step: bound (nats, all bags), passes, nats left, largest gradient, seconds. By
        mini-batches, epoch by epoch: bound, learning rate, seconds.
    converged_ : bool
    bound_ : float
        The bound at the last epoch, nats.
    """

    kind = "vbagg"
    about = "sparse variational GP of the rate"
    source = "Law et al. 2018"
    sweep: ClassVar[Sweep] = "minibatch"

    #: Whether sources beside the areas can be given.
    takes_sources: ClassVar[bool] = True
    #: Whether ``n_inducing="auto"`` stands for averages of the bags, where these are few.
    averages: ClassVar[bool] = True
    auto_kernel: ClassVar[str] = "smooth_joint"

    estimator: Estimation = "auto"
    n_inducing: Count | Literal["auto"] = "auto"
    kernel: str = "auto"
    sources: Mapping[str, Mapping[str, Any]] | None = None
    priors: Literal["none", "weak"] = "weak"
    learn_inducing: bool = False
    pair_pixels: Count = 64
    n_paths: Annotated[int, Range(2, 9998, even=True)] = 16
    n_features: Count = 512
    posterior_steps: Literal["natural", "adam"] = "natural"
    natural_rate: Positive = 0.5
    nats_left: Positive = 0.05
    integrate: Literal["auto", "none"] | Annotated[int, Range(2, 1000, even=True)] = "auto"
    few_pixels: bool = False
    dtype: Precision = "float64"

    @property
    def by_terms(self) -> bool:
        """Whether the kernel's terms have inducing variables of their own."""
        return self.estimator_name != "monte_carlo" and self.posterior_steps == "natural"

    @property
    def n_points(self) -> int:
        """Inducing points where they stand for the whole function."""
        return POINTS if self.n_inducing == "auto" else self.n_inducing

    @property
    def wanted_points(self) -> int | None:
        """Inducing points of the terms of two and more dimensions; None: averages of the bags."""
        return None if self.averages and self.n_inducing == "auto" else self.n_points

    @property
    @override
    def resolved_likelihood(self) -> Likelihood:
        areas = super().resolved_likelihood
        return several_sources(areas, self.sources) if self.sources else areas

    @property
    def estimator_name(self) -> str:
        """The estimator, ``auto`` resolved."""
        return self.resolved_link.estimator if self.estimator == "auto" else self.estimator

    @property
    @override
    def has_area_effect(self) -> bool:
        return super().has_area_effect and (self.area_effect != "auto" or self.estimator != "bound")

    @override
    def check_params(self) -> None:
        super().check_params()
        if self.sources and not self.takes_sources:
            msg = f"sources: {type(self).__name__} has areas alone; use VBAgg, or leave them out"
            raise ParameterError(msg)
        if not available(self.resolved_likelihood, self.link_name, self.estimator_name):
            msg = (
                f"estimator: {self.estimator!r} does not exist for the {self.resolved_likelihood} "
                f"likelihood and this link; use {self.resolved_link.estimator} or monte_carlo"
            )
            raise ParameterError(msg)
        self.check_kernel()

    def check_kernel(self) -> None:
        """Raise ParameterError if the kernel's description is none, or has no draws."""
        check_drawable({"auto": self.auto_kernel}.get(self.kernel, self.kernel))

    # -- the contract with the training loop ---------------------------------------------------

    @override
    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """Inducing points by k-means++, rates at their mean."""
        self.check_params()
        self.forget_kernels()
        fixed, level, own = self.starting_scale(sample)
        base = float(fixed["base_rate"][0])
        fixed |= level_unit(
            self.resolved_likelihood, sample.of(0), base, weak=self.priors == "weak"
        )
        z = scaled_inputs(fixed, sample.x, sample.coords, np.float64)
        kernel = self._kernel(fixed)
        if self.by_terms:
            placed = place_inducing(kernel, z, sample, self.wanted_points, rng)
            cap = max(LEAST_CLIMB, CLIMB_PIXELS // sample.n_bag)
            cap = 0 if sample.n_pix <= 1.5 * cap * sample.n_bag else cap
            gathered = ALL_PIXELS if sample.n_pix <= FEW else 0
            fixed = {
                **fixed,
                **placed.fixed,
                "climb_pixels": np.array([cap]),
                "all_pixels": np.array([gathered]),
            }
            w = placed.w
            kernel, n_ind = self._kernel(fixed), placed.n_value
        else:
            w = choose_inducing_points(z, self.n_points, rng)
            n_ind = w.shape[0]
        theta = kernel.start(self.resolved_link.start_variance)
        params = {
            "mean": np.array([self.resolved_link.start(level)]),
            "v_mean": np.zeros(n_ind),
            "root": np.diag(np.full(n_ind, np.log(NARROW_ROOT if self.by_terms else START_ROOT))),
            "theta": theta,
            "w": w,
            **{name: np.array([value]) for name, value in own.items()},
        }
        return State(params, fixed, rate=self.learning_rate)

    @override
    def block_params(self, state: State) -> Arrays:
        """``theta w mean alpha q`` and the scalings."""
        params = state.params
        kernel = self._kernel(state.fixed)
        k_ww, _, fac = self._factored(kernel, params, state.fixed)
        drawn: Arrays = {}
        if self.estimator_name == "monte_carlo":
            step = np.array([self.seed, state.step])
            draws = self._draws(kernel, params, step)
            made = pathwise.condition(draws, fac, whitened(params), k_ww, params["w"])
            drawn = {"coefficients": made.coefficients, "step": step}
        return {
            **state.fixed,
            **drawn,
            **{name: params[name] for name in self.resolved_likelihood.parameters},
            "theta": params["theta"],
            "w": params["w"],
            "mean": params["mean"],
            "alpha": fac.alpha,
            "q": fac.q,
            **({"cov": fac.cov} if self.by_terms else {}),
        }

    @override
    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def block_stats(self, params: Arrays, block: BagBlock, local: Any) -> tuple[Stats, Any]:
        """Sum the bound, and its adjoints by ``params``; not finite after steps much too long."""
        if "gather" in params:
            return Stats(0.0, block.n_bag, {}), block_arrays(self._thinned(params, block))
        params = exactly(params) if self.by_terms else params
        seen = Observation.of(self.resolved_likelihood, self.resolved_link, params, block)
        if self.estimator_name == "monte_carlo":
            kernel = self._kernel(params)
            value, sums = pathwise.block_sums(
                kernel,
                self._low(params),
                self._draws(kernel, params, params["step"]),
                self._scaled(params, block.x, block.coords),
                seen,
                curvature=self.posterior_steps == "natural",
            )
            return Stats(value, block.n_bag, sums), local
        slopes = "slopes" not in params or bool(params["slopes"][0])
        z, kept = self._scaled(params, block.x, block.coords), None
        if "slopes" in params and namespace(z) is np:
            kept = self._kernels.find(place_of(params, block), made_of(params))
        fwd = self._pass(params, z, learn=True, kept=kept, slopes=slopes)
        term = aggregate(fwd, seen, self.estimator_name, self.pair_pixels, slopes=slopes)
        sums = fwd.backward(
            term.d_m, term.d_s, term.pairs, term.followed, term.drawn, slopes=slopes
        )
        if kept is not None and not slopes:
            self._kernels.keep(place_of(params, block), kept)
        sums.update({name: np.array([value]) for name, value in term.by.items()})
        return Stats(term.value, block.n_bag, sums), local

    def _thinned(self, params: Arrays, block: BagBlock) -> BagBlock:
        cap, scale = int(params["gather"][0]), (params["x_mean"], params["x_sd"])
        return thinned_block(moved(block, to_host), cap, *scale, self.seed)

    @override
    def refinement(self, state: State, n_bag: int, sums: BagSums) -> Refinement | None:
        if not self.by_terms:
            return None
        return Refinement(
            self,
            sums,
            n_bag,
            cap=int(state.fixed["climb_pixels"][0]),
            all_pixels=int(state.fixed.get("all_pixels", np.zeros(1))[0]),
            n_member=self.n_member,
            tolerance=self.nats_left,
            few_pixels=self.few_pixels,
        )

    def area_refits(self, blocks: Iterable[BagBlock], n_bag: int) -> AreaRefits | None:
        """Return what fits without some areas, cheaply; None where a new fit is needed."""
        return AreaRefits.of(self, self.fitted_state(), blocks, n_bag)

    @property
    def n_member(self) -> int:
        """Draws of the hyperparameters; 0 where they stay at the optimum."""
        if self.integrate == "auto":
            return MEMBERS if self.by_terms else 0
        return 0 if self.integrate == "none" else self.integrate

    @property
    def convergence_(self) -> dict[str, float]:
        """What the fit says of its optimum: ``nats_left``, ``gradient``, ``passes``."""
        memory = self.fitted_state().memory
        if "left" not in memory:
            return {}
        grad = memory.get("grad")
        own = {} if grad is None else {"gradient": float(np.abs(grad).max())}
        return {"nats_left": float(memory["left"]), "passes": float(memory["passes"]), **own}

    @property
    def modes_(self) -> list[dict[str, Any]]:
        """What draws of the hyperparameters hold to make neighbours differ; empty without them.

        See ``hyperparameter_chain.told_explanations``.
        """
        return told_explanations(self.fitted_state())

    @property
    def phi_names(self) -> tuple[str, ...]:
        """See :class:`models.aggregate.surface_model.SurfaceModel`."""
        return ("mean", "theta", *self.resolved_likelihood.parameters)

    @property
    def hyperparameter_draws_(self) -> dict[str, float]:
        """How sure draws of the hyperparameters are, see ``hyperparameter_chain.told_draws``."""
        return told_draws(self.fitted_state())

    def objective(
        self, state: State, stats: Stats, n_bag_total: int, *, slopes: bool = True
    ) -> Objective:
        """Return the bound on all bags and its gradient by every learnt parameter.

        ``n_bag_total / stats.n_bag`` times the bags' part, less the KL divergence, plus the log
        density of priors where there are any. Without ``slopes`` there is no ``grad``.
        """
        params = state.params
        kernel, q = self._kernel(state.fixed), whitened(params)
        theta, w = params["theta"], params["w"]
        k_ww, cache, fac = self._factored(kernel, params, state.fixed)
        factor = n_bag_total / stats.n_bag
        sums = {name: factor * value for name, value in stats.sums.items()}
        if self.estimator_name == "monte_carlo":
            draws = self._draws(kernel, params, np.array([self.seed, state.step]))
            back = pathwise.driver_backward(kernel, draws, fac, q, k_ww, w, sums)
            d_mean, d_cov, d_k, d_root = back.v_mean, back.cov, back.k_ww, back.root
            sums["theta"], sums["w"] = sums["theta"] + back.theta, sums["w"] + back.w
        else:
            d_mean, d_cov, d_k = sparse_gp.factorise_backward(
                fac, q, sums["alpha"], sums["q"], by_cov=sums.get("cov"), slopes=slopes
            )
            d_root = q.root_adjoint(d_cov) if slopes else d_cov
        prior, by_prior = self.log_prior(state)
        bound = factor * stats.bound - q.kl() + prior
        if not slopes:
            return Objective(bound, {}, d_mean, d_cov)
        d_theta, d_w = kernel.inducing_backward(theta, w, cache, d_k)
        kl_mean, kl_root = q.kl_backward()
        grad = {
            "v_mean": d_mean - kl_mean,
            "root": d_root - kl_root,
            "theta": sums["theta"] + d_theta,
            "w": sums["w"] + d_w,
            **{name: sums[name] for name in ("mean", *self.resolved_likelihood.parameters)},
        }
        grad |= {name: grad[name] + each for name, each in by_prior.items()}
        return Objective(bound, grad, d_mean, d_cov)

    def log_prior(self, state: State) -> tuple[float, Arrays]:
        """Return the log density of all priors, and its gradient by name."""
        of = self._kernel(state.fixed), self.resolved_likelihood, self.link_name
        return log_priors(*of, state, weak=self.priors == "weak")

    @override
    def update(self, state: State, stats: Stats, n_bag_total: int) -> tuple[State, Info]:
        """Take a step of Adam, and a natural one on q(u)."""
        at = self.objective(state, stats, n_bag_total)
        grad = dict(at.grad)
        if not self.learn_inducing:
            del grad["w"]
        if self.posterior_steps == "natural":
            del grad["v_mean"], grad["root"]
        params, memory = adam_step(state.params, grad, state.memory, state.step, state.rate)
        if self.posterior_steps == "natural":
            rate = self.natural_rate * state.rate / self.learning_rate
            # The expansion of a quadratic log density is exact, however long the step.
            longest = np.inf if self.resolved_likelihood.quadratic else sparse_gp.LONGEST_STEP
            stepped = whitened(state.params).natural_step(at.d_mean, at.d_cov, rate, longest)
            params["v_mean"], params["root"] = stepped.v_mean, stepped.root
        return State(params, state.fixed, memory, state.step + 1, state.rate), Info(at.bound)

    @override
    def prediction_params(self, state: State) -> Arrays:
        return posterior_of(self, state).pack()

    @override
    def unpacked(self, params: Arrays) -> Gaussian | Mixture:
        return unpack(self, params)

    @property
    @override
    def posterior_(self) -> Gaussian | Mixture:
        return self.unpacked(self.fitted_params())

    @property
    def coefficients_(self) -> list[Coefficient]:
        """Slopes of the kernel's linear part, see :mod:`models.gp.linear_part`; maybe none."""
        return self.posterior_.coefficients()

    def hyperparameter_table(self) -> dict[str, dict[str, float]]:
        """Return the learnt parameters with their posterior, in the units of their names.

        Returns
        -------
        dict of dict
            By name, as :meth:`named_hyperparameters`: ``mode``, at the optimum; of integrated ones
            ``mean``, and ``lower`` and ``upper``, the ends of the central 90 % interval; ``median``
            if draws are of a chain, whose median and interval these are then.
        """
        posterior, memory = self.posterior_, self.fitted_state().memory
        each = [part.hyperparameters() for part in posterior.parts]
        params, names = self.fitted_params(), self.phi_names
        ends = (with_phi(params, names, phi) for phi in memory.get("chain", ())[:3])
        told = [self.unpacked(own).hyperparameters() for own in ends]
        return tabulated(posterior.hyperparameters(), each, posterior.weight, told)

    def _draws(self, kernel: Kernel, params: Arrays, step: np.ndarray) -> pathwise.Draws:
        return pathwise.draw(
            kernel, params["theta"], params["w"].shape[0], self.n_paths, self.n_features, step
        )

    def forget_kernels(self) -> None:
        """Let go of the kernel matrices that a fit keeps between passes."""
        self._kernels.clear()

    @cached_property
    def _kernels(self) -> KeptKernels:
        return KeptKernels()

    def near(self, params: Arrays, z: Any) -> Arrays:
        """Return the block parameters that matter at scaled inputs: here all of them."""
        del z
        return params

    def _pass(self, params: Arrays, z: Any, *, learn: bool, **how: Any) -> pixel_pass.PixelPass:
        params = self.near(params, z)
        kernel, low = self._kernel(params), self._low(params)
        return pixel_pass.forward(kernel, low, z, learn=learn, arena=arena_for(z), **how)

r"""psi-VGPMIL: which instances made a bag positive (Castro-Macias et al. 2024).

    p(y_n | f_n) ~ exp((y_n - 1/2) f_n) psi(f_n),   f a sparse (FITC) GP plus an intercept,
    p(T_b | y) = H^G_b / (H + 1),   G_b = 1 where T_b is the largest of the bag's y_n, else 0.

With the hyperbolic secant for ``psi`` it is PG-VGPMIL, which is VGPMIL (Haussmann et al. 2017);
with ``density="gamma"`` G-VGPMIL. ``q(u) q(y)`` by closed-form coordinate updates (eqs. 25-28),
additive over blocks of bags: a sweep over the store computes ``c`` and ``theta`` and updates ``pi``
under the ``q(u)`` of the sweep before, and the sums give the next ``q(u)`` on the driver. ``pi``,
one number an instance, stays with its block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from scipy.special import expit

from models.backend.arrays import to_host
from models.core.block import BagBlock
from models.core.protocol import Arrays, Info, State, Stats, Summary, override
from models.gp.inducing_points import choose_inducing_points
from models.gp.instance_pass import InstancePass
from models.gp.site_posterior import SiteSums
from models.likelihoods.probability import Probability, ProbabilityDraws
from models.mil.data.inner_folds import Rounds, Settings
from models.mil.data.spread_columns import scaled_columns
from models.mil.variational import psi_prior
from models.mil.variational.bag_draws import BagDraws
from models.mil.variational.closed_form import LENGTHSCALES, ClosedFormClassifier
from models.mil.variational.label_factors import label_terms, start_logits, update_logits
from models.mil.variational.psi_prior import PriorDraws
from models.mil.variational.sigmoid_densities import Density, find_density
from models.training.parameters import Count, NotNegative, Positive, Precision, Range

LOG_2 = float(np.log(2.0))
# What "auto" chooses from, the first one to begin with.
VARIANCES = (1.0, 5.0, 25.0)
STARTS = (0.5, 0.05)


@dataclass(kw_only=True, eq=False, repr=False)
class PsiVGPMIL(ClosedFormClassifier):
    """Sparse Gaussian process classifier of instances, learnt from the labels of bags.

    Parameters
    ----------
    density : str
        ``hyperbolic_secant`` (PG-VGPMIL, the logistic likelihood), ``gamma`` (G-VGPMIL),
        ``student_t``, or what :func:`sigmoid_densities.register_density` was given.
    alpha, beta : float
        Of ``gamma``.
    saturation : float
        Root mean square of the means of ``f`` over the instances at which a fit stops under any
        density but the hyperbolic secant. Densities whose tails are heavier than ``exp(-|f| / 2)``
        do not hold ``f`` (``gamma`` does near 0, where ``alpha > sqrt(beta / 2)``): left alone it
        grows with the number of instances, until every bag is negative. The paper stops early too,
        by the AUC of validation bags.
    log_h : float
        ``log H``: how surely a bag's label is the largest of its instances'. The paper prints
        ``log 100``; its published implementation takes the default, ``log 1e12``.
    n_inducing : int
        Number of inducing points: half by k-means on instances of positive bags, half of negative.
    kernel : str
        See :func:`models.gp.kernel_text.parse_kernel`.
    variance : float or "auto"
        Prior variance of ``f`` about the intercept; where it starts if it is learnt. ``auto``
        chooses among 1, 5 and 25 by :func:`models.mil.data.inner_fits.left_out_log_probability` (1
        where the kernel is learnt, or the density is another, whose ``P(T | f)`` lacks ``log Z``).
    lengthscale : float or "auto"
        Length-scale of the features, in roots of their number (the paper starts at 1, with the
        features in deviations); where it starts if it is learnt. ``auto`` chooses among 1, 1/2 and
        2, as for the variance, and after it.
    intercept_sd : float
        Prior deviation of the intercept; 0 for none, as in the paper.
    start : float or "auto"
        The first ``pi`` of positive bags' instances. At 1/2 they carry no evidence, and the
        negative bags alone shape the first ``q(u)``; near 1 all instances of positive bags start
        as positive. From 1/2 a fit of bags of hundreds can end where what all instances of a bag
        share counts as positive; ``auto`` chooses among 1/2 and 1/20, as for the variance, and
        before it. ``tune`` chooses it too, where it is "auto".
    learn_kernel : bool
        Climb the paper's objective (29) by the kernel's parameters once ``q`` has settled.
    n_prior_draws : int
        Functions that ``log Z`` (20) is estimated from where the kernel is learnt and ``psi`` is
        not the hyperbolic secant, for which it is 0.
    bag_rule : {"any", "largest"}
        Probability of a bag: that any instance is positive, and its label right (eqs. 4, 34-36),
        the model's own law; or the largest of its instances' probabilities, as in the published
        implementation, which can never be more.
    n_draws : int
        Joint draws of each bag's instances behind its probability.
    max_epochs : int
        Sweeps at most.
    learning_rate : float
        Of Adam on the kernel's parameters.
    tolerance : float
        Rise of the bound, nats a bag and sweep, below which the fit has converged.
    dtype : {"float64", "float32"}
        Precision of the products over instances; sums are made in float64.
    seed : int

    Attributes
    ----------
    bound_
        For any ``psi`` a lower bound of the log evidence, up to ``-log Z``, which no update of
        ``q`` changes; it is left out unless the kernel is learnt. It never falls while the kernel
        stands still.
    """

    kind = "psi_vgpmil"
    about = (
        "sparse GP of the instances, an area positive if one of them is; options: {density: gamma} "
        "is G-VGPMIL; any size"
    )
    source = "Castro-Macias et al. 2024"
    weighs: ClassVar[bool] = True
    needs_calibration: ClassVar[bool] = True

    density: str = "hyperbolic_secant"
    alpha: float = 1.0
    beta: float = 4.0
    saturation: Positive = 4.0
    log_h: Positive = 27.631021115928547
    n_inducing: Count = 100
    kernel: str = "rbf"
    variance: Positive | Literal["auto"] = "auto"
    lengthscale: Positive | Literal["auto"] = "auto"
    intercept_sd: NotNegative = 3.0
    start: Annotated[float, Range(0, 1, above=True, below=True)] | Literal["auto"] = "auto"
    learn_kernel: bool = False
    n_prior_draws: Count = 64
    bag_rule: Literal["any", "largest"] = "any"
    n_draws: Count = 500
    max_epochs: Count = 100
    learning_rate: Positive = 0.05
    tolerance: Positive = 1e-4
    dtype: Precision = "float64"
    seed: int = 0

    @override
    def check_params(self) -> None:
        super().check_params()
        find_density(self.density, self.alpha, self.beta)

    @override
    def tuning_settings(self, mean_size: float) -> Sequence[Settings]:
        """Return all pairs of variance and length-scale; with each start, where that is open.

        No start is left open: a fit would have to choose it by weights, or take the first.
        """
        del mean_size
        given: dict[str, Sequence[float]] = {"start": STARTS} if self.start == "auto" else {}
        given |= {"variance": VARIANCES, "lengthscale": LENGTHSCALES}
        return [dict(zip(given, values, strict=True)) for values in product(*given.values())]

    @override
    def automatic_settings(self, mean_size: float) -> Rounds:
        """Variance, start, then length-scale: all triples would cost three times as much.

        The start after the variance: at one that is far off both starts are bad, and which is less
        so says little of the start that is better in the end.
        """
        del mean_size
        # Under another density P(T | f) is no law of the labels: log Z is missing.
        if self.learn_kernel or not self._density.logistic:
            return []
        given = {"variance": VARIANCES, "start": STARTS, "lengthscale": LENGTHSCALES}
        return [
            [{name: value} for value in values]
            for name, values in given.items()
            if getattr(self, name) == "auto"
        ]

    # -- the contract with the training loop ---------------------------------------------------

    @override
    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """Inducing points by k-means, ``q(u)`` at the prior."""
        state = super().init(sample, rng)
        # Of the prior draws at this kernel; NaN until a sweep has summed them.
        first = 0.0 if self._density.logistic else np.nan
        state.memory["totals"] = np.full(self.n_prior_draws, first)
        return state

    @override
    def start_points(
        self, z: np.ndarray, bag_y: np.ndarray | None, rng: np.random.Generator
    ) -> np.ndarray:
        """Half of them from positive bags and half from negative, distinct."""
        n_inducing = self.n_inducing
        if bag_y is None or n_inducing < 2 or np.ptp(bag_y) == 0:
            return choose_inducing_points(z, n_inducing, rng)
        half = n_inducing // 2
        parts = [
            choose_inducing_points(z[bag_y > 0.5], half, rng),
            choose_inducing_points(z[bag_y <= 0.5], n_inducing - half, rng),
        ]
        return np.unique(np.concatenate(parts), axis=0)

    @override
    def block_params(self, state: State) -> Arrays:
        totals = state.memory["totals"]
        known = not np.isnan(totals).any()
        learns = bool(self.learn_kernel and state.memory["settled"][0] and known)
        return {
            **super().block_params(state),
            "learns": np.array([learns]),
            "wants_totals": np.array([self.learn_kernel and not known]),
            "share": psi_prior.shares(totals) if known else np.zeros_like(totals),
        }

    @override
    def block_stats(self, params: Arrays, block: BagBlock, local: Any) -> tuple[Stats, Any]:
        """Sum the instances' sites, which determine ``q(u)``.

        ``pi`` is updated from the first sweep on, when ``q(u)`` is the prior: in positive bags most
        are then 1/2 and carry no evidence, where the starting values are evidence against them.
        """
        density, z, run = self._density, self._inputs(params, block), self._pass(params)
        found = run.forward(z, lambda m, s: density.theta(np.sqrt(m * m + s)))
        # Numbers of single instances are the host's: the rounds through each bag are made there.
        m, s, r = to_host(found.m), to_host(found.s), to_host(found.r)
        y = to_host(block.y)
        logit = self._logits(params, y, block.offsets, m, None if local is None else local["logit"])
        pi, labels = label_terms(logit, y, block.offsets, self.log_h)
        h, square = pi - 0.5, m**2 + s
        c = np.sqrt(square)
        theta = density.theta(c)
        log_psi = float(density.log_ratio(c).sum()) - LOG_2 * block.n_pix
        sums = {
            "precision": found.precision,
            "linear": run.weighted_sum(z, found, h),
            "constant": np.array([labels + log_psi + 0.5 * float(theta @ square)]),
            "residual": np.array([0.5 * float(theta @ r)]),
            "square": np.array([m @ m, block.n_pix]),
        }
        if params["learns"][0]:
            d_m, d_s = density.expected_slopes(m, s)
            sums |= run.backward(z, h + d_m, d_s)
        if not density.logistic and self.learn_kernel:
            sums |= self._prior_sums(params, z)
        bound = labels + log_psi + float(h @ m)
        return Stats(bound, block.n_bag, sums), {"logit": logit}

    @override
    def update(self, state: State, stats: Stats, n_bag_total: int) -> tuple[State, Info]:
        """``q(u)`` jumps to its optimum (eqs. 26-27).

        The bound is that of the new ``q(u)`` with the ``pi`` and ``c`` of this sweep.
        """
        params, memory, sums = dict(state.params), dict(state.memory), stats.sums
        if self._saturated(sums):
            return state, Info(float(memory["bound"][0]), stopped=self._too_far)
        constant, residual = float(sums["constant"][0]), float(sums["residual"][0])
        sites = SiteSums(constant, residual, sums["precision"], sums["linear"])
        params["v_mean"], params["root"], bound = sites.posterior()
        if self.learn_kernel:
            if np.isnan(memory["totals"]).any():
                memory["totals"] = sums["totals"]
            bound -= psi_prior.log_z(memory["totals"])
        return self.updated(state, (params, memory), sums, bound, n_bag_total)

    @override
    def kernel_gradient(self, state: State, sums: Arrays) -> np.ndarray:
        """Return the gradient of the objective (29) by ``theta``: (n_theta,)."""
        grad = super().kernel_gradient(state, sums)
        return grad if self._density.logistic else grad - sums["log_z_slope"]

    @override
    def move_kernel(
        self, state: State, params: Arrays, memory: Arrays, sums: Arrays
    ) -> tuple[Arrays, Arrays]:
        new, moved = super().move_kernel(state, params, memory, sums)
        if not self._density.logistic:
            moved["totals"] = np.full_like(memory["totals"], np.nan)
        return new, moved

    # -- what users call -----------------------------------------------------------------------

    @override
    def predict_block(
        self, params: Arrays, x: np.ndarray, coords: np.ndarray | None
    ) -> Probability:
        found = self._pass(params).forward(self._scaled(params, x, coords), None)
        return Probability("logistic", to_host(found.m), to_host(found.s))

    def bag_distribution(  # type: ignore[override]
        self, bags: BagBlock, *, n_draws: int | None = None, rng: np.random.Generator | None = None
    ) -> ProbabilityDraws:
        """Return draws of the probability that each bag is positive (eqs. 34-36).

        Where the paper draws each instance by itself, those of a bag are drawn together.

        Parameters
        ----------
        bags : BagBlock
        n_draws : int, optional
            The model's ``n_draws`` where not given.
        rng : numpy Generator, optional
            Where not given, draws are seeded by the model's seed and the bags' numbers.
        """
        params, n = self.fitted_params(), n_draws or self.n_draws
        run = InstancePass(self._kernel(params), params, self.intercept_sd, np.float64)
        draws = BagDraws(self._kernel(params), params, run, n, rng, self.seed)
        z = scaled_columns(params, bags.x, bags.coords, np.float64)
        found = draws.of(z, bags, self.bag_rule)
        if self.bag_rule == "any":  # a label is the largest of its instances' up to H, eq. (4)
            wrong = float(expit(-self.log_h))
            found = wrong + (1.0 - 2.0 * wrong) * found
        return ProbabilityDraws(found)

    def named_hyperparameters(self) -> dict[str, float]:
        """Return the intercept and the kernel's parameters by name; space in km."""
        named = super().named_hyperparameters()
        if self.intercept_sd > 0:
            named["intercept"] = self.intercept_sd * float(self.params_["v_mean"][-1])
        return named

    # -- parts ---------------------------------------------------------------------------------

    @property
    def first_pi(self) -> float:
        """``start``, or the first of its candidates while it is open."""
        return STARTS[0] if self.start == "auto" else self.start

    @property
    def _density(self) -> Density:
        return find_density(self.density, self.alpha, self.beta)

    @property
    def _too_far(self) -> str:
        return (
            f"f passed `saturation` ({self.saturation:g}), as it does where the density "
            f"{self.density!r} does not hold it; its map is that of the sweep before"
        )

    def _saturated(self, sums: Arrays) -> bool:
        total, n_pix = sums["square"]
        return not self._density.logistic and bool(total > n_pix * self.saturation**2)

    def _logits(
        self,
        params: Arrays,
        y: np.ndarray,
        offsets: np.ndarray,
        m: np.ndarray,
        before: np.ndarray | None,
    ) -> np.ndarray:
        del params
        if before is None:  # q(u) goes first, as in the paper's Algorithm 1
            return start_logits(self.first_pi, y, offsets)
        return update_logits(before, m, y, offsets, self.log_h, 1)

    def _prior_sums(self, params: Arrays, z: np.ndarray) -> Arrays:
        """Return the block's part of what ``log Z`` and its gradient need."""
        n_theta = params["theta"].shape[0]
        sums = {"totals": np.zeros(self.n_prior_draws), "log_z_slope": np.zeros(n_theta)}
        if params["learns"][0] or params["wants_totals"][0]:
            draws = PriorDraws(
                self._kernel(params),
                params["theta"],
                self.intercept_sd,
                self.n_prior_draws,
                self.seed,
            )
            if params["learns"][0]:
                sums["log_z_slope"] = draws.gradient(z, self._density, params["share"])
            else:
                sums["totals"] = draws.totals(z, self._density)
        return sums

    def _pass(self, params: Arrays) -> InstancePass:
        return InstancePass(self._kernel(params), params, self.intercept_sd, self.dtype)

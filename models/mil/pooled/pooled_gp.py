r"""A sparse GP behind a pooled bag label, hyperparameters by its own evidence.

    P(T_b = 1 | f) = sigma(A_b),   A_b = (1/t) log (1/n_b) sum_i exp(t f_i)    (``soft_max``)
    P(T_b = 0 | f) = prod_i (1 - sigma(f_i))                                   (``noisy_or``)

with ``f`` a sparse GP plus an intercept; to ``soft_max``'s logit the bag's own statistics may add
a GP (:mod:`bag_statistics`). The labels of instances are summed out: nothing but the
Gaussian of the inducing values is approximated, by Laplace's method, and the evidence
(:mod:`models.mil.pooled.pooled_evidence`) learns the kernel's parameters, ``t`` and the intercept's
deviation, without validation bags. Every sum is one over bags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from models.backend.arrays import row_dot
from models.core.block import BagBlock
from models.core.protocol import Arrays, BagSums, Info, State, Stats, Summary, Sweep, override
from models.gp.inducing_points import place_inducing
from models.gp.kept_kernels import KeptKernels, made_of, place_of
from models.gp.kernels import Kernel
from models.gp.scaling import kernel_of
from models.likelihoods.probability import Probability
from models.mil.data.classifier import Classifier, without_unused_coords
from models.mil.data.inner_folds import Settings
from models.mil.data.spread_columns import (
    SpreadKernelModel,
    classifier_scaling,
    n_used,
    of_columns,
    scaled_columns,
    with_columns,
)
from models.mil.pooled.bag_pooling import Pooling
from models.mil.pooled.bag_statistics import (
    OWN,
    bag_kernel,
    begun,
    chosen_bags,
    placed_statistics,
    scaled_statistics,
    statistics_of,
)
from models.mil.pooled.pooled_calibration import fold_of, moved_logits
from models.mil.pooled.pooled_evidence import inducing_inverse, intercept_scale
from models.mil.pooled.pooled_pass import MODE, NO_FOLD, SCORE, STATISTICS, PooledPass
from models.mil.pooled.pooled_search import PooledSearch, SearchSettings
from models.mil.pooled.rank_scaling import normal_scores, rank_knots
from models.training.parameters import Count, Positive

N_DISTANCE = 1000  # instances whose distances start the length-scales
START_SD = 2.0  # of f and of the intercept, in logits
BLOCK = ("theta", "log_t", "w", OWN + "theta", OWN + "w")  # parameters that blocks see
ASKED = ("ask", "fold", "p", "u", "root", "calibration", "chosen")  # of a pass


@dataclass(kw_only=True, eq=False, repr=False)
class PooledGP(SpreadKernelModel, Classifier):
    """Sparse Gaussian process whose instances' values are pooled to the label of their bag.

    Parameters
    ----------
    pooling : {"soft_max", "noisy_or"}
        ``soft_max``: a smooth maximum of the instances, free of the bag's size, whose temperature
        is learnt: from their mean to their maximum. ``noisy_or``: a bag is positive if any
        instance is; large bags are then more probably positive.
    n_inducing : int
        Number of inducing points, by k-means; fewer where there are fewer distinct instances.
        Linear terms of the kernel are exact, with variables of their own.
    kernel : str
        See :func:`models.gp.kernel_text.parse_kernel`. ``auto``: ``additive`` where instances have
        positions, else ``rbf``.
    scaling : {"rank", "deviation"}
        Covariates as normal scores of their ranks among the training instances, whose fit no
        increasing transformation of a covariate changes; or as measured. Both are divided by their
        deviation.
    statistics : {"auto", "none"}
        ``auto``: under ``soft_max``, where bags hold more than one instance, mean, minimum, maximum
        and size of a bag add to its logit as much as the evidence says. Predictions of instances
        leave that part out.
    n_starts : int
        Searches for the best evidence: the first two start near the mean and near the maximum,
        with long and short length-scales, others at random.
    calibrate : {"auto", "cv", "none"}
        ``auto``: the logits of bags (``soft_max``) or instances (``noisy_or``) are shifted and
        scaled as training bags ask for that the mode was found without, hyperparameters held
        (:mod:`models.mil.pooled.pooled_calibration`). ``cv``: by five fits
        without a fold each, of bags alone (:class:`inner_fits.InnerFits`). ``none``:
        Laplace's posterior stays as it is.
    max_epochs : int
        Steps of the search at most, all starts together.
    tolerance : float
        Nats of evidence that a step must promise for a search to go on.
    seed : int

    Attributes
    ----------
    bound_
        Laplace's log evidence with the log prior density of the hyperparameters, nats.
    """

    kind = "pooled_gp"
    about = (
        "sparse GP of the instances, pooled to the area's label between their mean and their "
        "maximum; all by its own evidence; any size"
    )
    source = "docs/design/pooled-gp.md"
    sweep: ClassVar[Sweep] = "full"
    on_device: ClassVar[bool] = False
    batch_bags = 1
    learning_rate = 1.0

    pooling: Pooling = "soft_max"
    n_inducing: Count = 200
    kernel: str = "auto"
    scaling: Literal["rank", "deviation"] = "rank"
    statistics: Literal["auto", "none"] = "auto"
    n_starts: Count = 2
    max_epochs: Count = 200
    tolerance: Positive = 0.01
    seed: int = 0

    # -- the contract with the training loop ---------------------------------------------------

    @override
    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """Inducing points by k-means; length-scales at the median distance of instances."""
        self.check_params()
        self.check_responses(sample.y)
        located = sample.coords is not None and bool(np.isfinite(sample.coords).all())
        sample = without_unused_coords(sample, self._kernel_text(located))
        fixed = classifier_scaling(sample)
        if self.scaling == "rank":
            fixed |= rank_knots(sample.x)
            scores = normal_scores(fixed, sample.x)
            sd = scores.std(axis=0)
            fixed |= {"x_mean": scores.mean(axis=0), "x_sd": np.where(sd > 0, sd, 1.0)}
            fixed = with_columns(fixed, sd > 0)
        z = self._scaled(fixed, sample.x, sample.coords)
        kernel = self._kernel(fixed)
        placed = place_inducing(kernel, z, sample, self.n_inducing, rng)
        fixed |= placed.fixed
        fixed["distance"] = np.array([_median_distance(z[:, : n_used(fixed)], rng)])
        if (self.statistics, self.pooling) == ("auto", "soft_max") and sample.n_pix > sample.n_bag:
            chosen = chosen_bags(sample.bag, rng)
            fixed |= {"chosen": chosen} if chosen.size else {}
        kernel = self._kernel(fixed)
        n_value = placed.n_value + 1
        params = {
            "theta": _start(kernel, float(fixed["distance"][0])),
            "log_t": np.zeros(1),
            "log_intercept_sd": np.log([START_SD]),
            "w": placed.w,
            "v_mean": np.zeros(n_value),
            "factor": np.eye(n_value),
            "calibration": np.zeros(2),
        }
        self._kept_v = KeptKernels()
        return State(params, fixed, rate=self.learning_rate)

    @override
    def block_params(self, state: State) -> Arrays:
        params, memory = state.params, state.memory
        inverses: Arrays = {}
        given = {"lower_inv": self._kernel(state.fixed)}
        of_bags = bag_kernel(state.fixed)
        if of_bags is not None:
            given[OWN + "lower_inv"] = of_bags
        for name, kernel in given.items():
            own = name.removesuffix("lower_inv")
            theta, w = params[own + "theta"], params[own + "w"]
            found = memory.get(name)
            inverses[name] = inducing_inverse(kernel, theta, w) if found is None else found
        asked = {name: memory[name] for name in ASKED if name in memory}
        return {
            "ask": np.array(MODE),
            "fold": np.array(NO_FOLD),
            **state.fixed,
            **asked,
            **inverses,
            **{name: params[name] for name in BLOCK if name in params},
            "value": intercept_scale(params) * params["v_mean"],
        }

    @override
    def block_stats(self, params: Arrays, block: BagBlock, local: Any) -> tuple[Stats, Any]:
        """Return the sums of :mod:`models.mil.pooled.pooled_pass` that ``params`` ask for."""
        kept = self._kernels.find(place_of(params, block), made_of(params))
        if kept.k is None:  # scores of ranks take as long as a pass
            kept.k = self._inputs(params, block)
        ask, out = int(params["ask"]), fold_of(block.bag) == int(params["fold"])
        z, s = kept.k
        if ask == STATISTICS:
            found = statistics_of(z[:, : n_used(params)], block.offsets)
            sums = {"statistics": placed_statistics(found, block, params["chosen"])}
            return Stats(0.0, block.n_bag, sums), local
        run = PooledPass(self._kernel(params), params, z, kept, s)
        used = out if ask == SCORE else ~out
        value, sums = run.sums(ask, self.pooling, block.y, block.offsets, used)
        self._kernels.keep(place_of(params, block), kept)
        return Stats(value, block.n_bag, sums), local

    @override
    def refinement(self, state: State, n_bag: int, sums: BagSums) -> PooledSearch:
        settings = SearchSettings(
            has_temperature=self.pooling == "soft_max",
            n_starts=self.n_starts,
            tolerance=self.tolerance,
            calibrate=self.calibrate == "auto",
            seed=self.seed,
        )
        kernel = self._kernel(state.fixed)

        def begin(state: State) -> State:
            return self._with_statistics(state, sums) if "chosen" in state.fixed else state

        return PooledSearch(settings, sums, kernel, state, begin, self.forget_kernels)

    @override
    def update(self, state: State, stats: Stats, n_bag_total: int) -> tuple[State, Info]:
        msg = "PooledGP advances by its own steps over all bags; see refinement"
        raise TypeError(msg)

    @override
    def prediction_params(self, state: State) -> Arrays:
        params, scale = state.params, intercept_scale(state.params)
        return {
            **self.block_params(state),
            "root": scale[:, None] * params["factor"],
            "calibration": params["calibration"],
        }

    # -- what users call -----------------------------------------------------------------------

    @override
    def predict_block(
        self, params: Arrays, x: np.ndarray, coords: np.ndarray | None
    ) -> Probability:
        """Predict the probability that a bag of each instance alone is positive.

        Under ``soft_max`` that of any bag all of whose instances are like this one, were its
        statistics those of a bag of which they say nothing; under ``noisy_or`` that this instance
        is positive.
        """
        z = self._scaled(params, np.asarray(x), coords)
        run = PooledPass(self._kernel(params), params, z)
        root, value = params["root"][run.own], params["value"][run.own]
        m, s = np.empty(z.shape[0]), np.empty(z.shape[0])
        for rows, v, _ in run.tiles():
            half = v @ root
            m[rows] = v @ value
            s[rows] = row_dot(half, half)
        found = moved_logits(m, s, params["calibration"])
        return Probability("logistic", found.m, found.sd**2)

    @override
    def tuning_settings(self, mean_size: float) -> Sequence[Settings]:
        del mean_size
        return [{"scaling": each} for each in ("rank", "deviation")]

    def bag_distribution(self, bags: BagBlock) -> Probability:  # type: ignore[override]
        """Return the distribution of the probability that each bag is positive.

        The bag's logit is linearised at the mode, as the posterior is, and so is Gaussian.
        """
        params = self.fitted_params()
        z, s = self._inputs(params, bags)
        run = PooledPass(self._kernel(params), params, z, s=s)
        found = run.logits(self.pooling, bags.offsets)
        return Probability("logistic", found.m, found.sd**2)

    def named_hyperparameters(self) -> dict[str, float]:
        """Return the kernel's parameters, ``t`` and the intercept with its deviation, by name."""
        state, named = self.fitted_state(), super().named_hyperparameters()
        of_bags = bag_kernel(self.params_)
        if of_bags is not None:
            learnt = np.exp(self.params_[OWN + "theta"]).tolist()
            named |= dict(zip(of_bags.names, learnt, strict=True))
        if self.pooling == "soft_max":
            named["t"] = float(np.exp(state.params["log_t"][0]))
        named["intercept"] = float(self.params_["value"][-1])
        named["intercept_sd"] = float(np.exp(state.params["log_intercept_sd"][0]))
        shift, log_scale = state.params["calibration"].tolist()
        named |= {"calibration_shift": shift, "calibration_scale": float(np.exp(log_scale))}
        return named

    def forget_kernels(self) -> None:
        """Let go of the matrices kept for a fit."""
        self._kernels.clear()

    # -- parts ---------------------------------------------------------------------------------

    @property
    def _kernels(self) -> KeptKernels:
        if not hasattr(self, "_kept_v"):
            self._kept_v = KeptKernels()
        return self._kept_v

    def _kernel_text(self, located: bool) -> str:
        """Return the kernel's description: neighbours are alike for more than their covariates."""
        if self.kernel == "auto":
            return "additive" if located else "rbf"
        return self.kernel

    @override
    def _kernel(self, fixed: Arrays) -> Kernel:
        return kernel_of(self._kernel_text("coord_scale" in fixed), of_columns(fixed))

    @override
    def _scaled(self, params: Arrays, x: Any, coords: Any) -> np.ndarray:
        if "rank_value" in params and x.ndim == 2 and x.shape[1] == params["x_mean"].shape[0]:
            x = normal_scores(params, x)
        return scaled_columns(params, x, coords, np.float64)

    def _inputs(self, params: Arrays, bags: BagBlock) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the scaled instances, and the scaled statistics of the bags if they count."""
        z = self._scaled(params, bags.x, bags.coords)
        if bag_kernel(params) is None:
            return z, None
        own = z[:, : n_used(params)]
        return z, scaled_statistics(params, own, bags.offsets)

    def _with_statistics(self, state: State, sums: Any) -> State:
        """Take the statistics of some bags, and give the state their part."""
        memory = {"ask": np.array(STATISTICS), "chosen": state.fixed["chosen"]}
        found = sums(replace(state, memory=memory), 0, False).sums["statistics"]
        rng = np.random.default_rng([self.seed, 7])
        fixed, params = begun(found, self.n_inducing, ranks=self.scaling == "rank", rng=rng)
        n_value = state.params["v_mean"].shape[0] + int(fixed[OWN + "term_values"].sum())
        params |= {"v_mean": np.zeros(n_value), "factor": np.eye(n_value)}
        kept = {name: array for name, array in state.fixed.items() if name != "chosen"}
        return replace(state, params={**state.params, **params}, fixed={**kept, **fixed})


def _median_distance(z: np.ndarray, rng: np.random.Generator) -> float:
    """Return the median distance between distinct instances; 1 where there is one alone."""
    some = z[np.sort(rng.permutation(z.shape[0])[:N_DISTANCE])]
    other = some[rng.permutation(some.shape[0])]
    square = ((some - other) ** 2).sum(axis=1)
    square = square[square > 0]
    return float(np.sqrt(np.median(square))) if square.size else 1.0


def _start(kernel: Kernel, distance: float) -> np.ndarray:
    """Return the kernel's first parameters: length-scales of covariates at ``distance``."""
    theta = kernel.start(START_SD**2)
    for place, name in enumerate(kernel.names):
        if ".lengthscale" in name and "_space" not in name and not name.startswith("smooth"):
            theta[place] = np.log(distance)
    return theta

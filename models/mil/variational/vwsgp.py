r"""VWSGP: the variational weakly supervised Gaussian process (Kandemir et al. 2016).

    T_b ~ Bernoulli(sigma(s_b)),   s_b = intercept + sum_{n in b} f_n,   f a sparse (FITC) GP.

Evidence adds up over a bag, so that a bag's label sees the instances through one Gaussian number.
One pass over the instances makes the M + 1 numbers a bag of :mod:`evidence_pass`; they stay
with the blocks, and every further update of ``q(u)`` costs O(n_bag M^2), whatever the instances.
``q`` is kept over the whitened inducing values, the intercept with its deviation before the labels
as one more of them; :mod:`models.likelihoods.labels` gives the labels' sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from models.backend.arrays import gram, like, namespace, row_dot, to_host
from models.core.block import BagBlock
from models.core.protocol import Arrays, Info, State, Stats, Summary, override
from models.gp.evidence_pass import Evidence, EvidencePass
from models.gp.inducing_points import choose_inducing_points
from models.gp.kernel_model import whitened
from models.gp.site_posterior import SiteSums
from models.likelihoods import labels
from models.likelihoods.labels import EVIDENCE_LIKELIHOODS
from models.likelihoods.prediction import Prediction
from models.likelihoods.probability import Probability
from models.mil.data.inner_folds import Rounds, Settings
from models.mil.variational.closed_form import LENGTHSCALES, ClosedFormClassifier
from models.training.parameters import Count, NotNegative, Positive, Precision

STARTS = (1.0, 0.8, 0.6, 0.4, 0.2)  # powers of the prior's xi that the first update tries
GROW, SHRINK = 1.5, 0.5  # of a way that paid, or did not
WAYS = {"stretch": (0.5, 64.0), "shift": (0.1, 2.0)}  # shortest and longest
NOISE_SHARE = 0.25  # of the responses' variance, that the normal noise starts at
CLOSED_FORM = tuple(name for name, each in EVIDENCE_LIKELIHOODS.items() if each.closed_form)


@dataclass(kw_only=True, eq=False, repr=False)
class VWSGP(ClosedFormClassifier):
    """Sparse Gaussian process whose sum over a bag decides its label; closed-form updates.

    The score of an instance is ``f``, what it adds to the evidence; ``predict_pixels`` gives it as
    the probability of a bag that holds this instance alone, which has the same order.

    Parameters
    ----------
    likelihood : {"logistic", "normal"}
        ``normal``: a bag's ``y`` is a real number with noise, not a label (the paper's footnote 1).
    aggregate : {"auto", "sum", "mean"}
        ``s_b`` is the sum of ``f`` over the bag, as in the paper, or its mean: for bags whose
        sizes do not inform about the label. ``auto`` chooses by inner folds; it is ``sum`` where
        the kernel is learnt or responses are numbers.
    n_inducing : int
        Number of inducing points; they stay where k-means puts them, as in the paper.
    kernel : str
        See :func:`parse_kernel`.
    lengthscale : float or "auto"
        Length-scale of the features, in roots of their number (the paper's is 1, with the features
        in deviations); where it starts if it is learnt. ``auto`` chooses among 1, 1/2 and 2 by
        inner folds, and is 1 where ``aggregate`` would not be chosen.
    variance : float or "auto"
        Prior variance of ``f``; where it starts if it is learnt. ``auto`` chooses by inner folds
        among those that give the evidence of a bag of average size a variance of 1, 5 or 25, were
        its instances independent; 1 is the paper's, and overconfident where bags hold hundreds.
    learn_variance : bool, optional
        Choose the prior variance (of all terms of the kernel together) by the bound at each update,
        which needs no pass over the instances. Where not given, it is learnt unless the kernel is
        fixed and bags are summed: the paper's model as printed.
    intercept_sd : float
        Prior deviation of the intercept, in deviations of ``y`` where that is a number; 0 for none,
        as in the paper. Labels need not be balanced with one.
    learn_kernel : bool
        Climb the bound by the kernel's parameters too, a pass over the instances each step.
    accelerate : bool
        Each update also tries ``xi`` farther along the way of the last one, and the first some
        smaller than the prior's, and takes the best bound; false for the paper's updates alone.
    max_epochs : int
        Updates at most.
    learning_rate : float
        Of Adam on the kernel's parameters.
    tolerance : float
        Rise of the bound, nats a bag, below which the fit has converged.
    dtype : {"float64", "float32"}
        Precision of the products over instances and of the sums kept; sums are made in float64.
    seed : int
    """

    kind = "vwsgp"
    about = (
        "an area's evidence is the sum of a sparse GP over it (options: {aggregate: mean} where "
        "areas hold hundreds of pixels); closed form, one pass; any size"
    )
    source = "Kandemir et al. 2016"
    unlabelled: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "likelihood": tuple(name for name, each in EVIDENCE_LIKELIHOODS.items() if not each.labels)
    }
    saves_local: ClassVar[bool] = False
    needs_calibration: ClassVar[bool] = True
    evidence_variances: ClassVar[tuple[float, ...]] = (5.0, 1.0, 25.0)

    likelihood: Annotated[str, CLOSED_FORM] = "logistic"
    aggregate: Literal["auto", "sum", "mean"] = "auto"
    n_inducing: Count = 50
    kernel: str = "rbf"
    lengthscale: Positive | Literal["auto"] = "auto"
    variance: Positive | Literal["auto"] = "auto"
    learn_variance: bool | None = None
    intercept_sd: NotNegative = 3.0
    learn_kernel: bool = False
    accelerate: bool = True
    max_epochs: Count = 100
    learning_rate: Positive = 0.05
    tolerance: Positive = 1e-4
    dtype: Precision = "float64"
    seed: int = 0

    @override
    def tuning_settings(self, mean_size: float) -> Sequence[Settings]:
        pairs = product(self._evidence_settings(mean_size, ("sum", "mean")), LENGTHSCALES)
        return [{**one, "lengthscale": other} for one, other in pairs]

    def _evidence_settings(self, mean_size: float, ways: Sequence[str]) -> list[Settings]:
        """Return each way to aggregate with each variance of the evidence of an average bag."""
        size = {"sum": mean_size, "mean": 1.0 / mean_size}
        held = {"learn_variance": False} if "learn_variance" in self.get_params() else {}
        return [
            {"aggregate": way, "variance": each / size[way], **held}
            for each in self.evidence_variances
            for way in ways
        ]

    @override
    def automatic_settings(self, mean_size: float) -> Rounds:
        """Aggregate and variance together, then the length-scale.

        Variances are such that the evidence of a bag of average size has a deviation of some units
        before the labels, were its instances independent: a fixed variance of ``f`` makes bags of
        hundreds sure of anything.
        """
        if self.learn_kernel or not self._evidence_likelihood.labels:
            return []
        rounds: list[list[Settings]] = []
        ways = ("sum", "mean") if self.aggregate == "auto" else (self.aggregate,)
        pairs: list[Settings] = [{"aggregate": way} for way in ways]
        if self.variance == "auto" and not self.learn_variance:
            pairs = self._evidence_settings(mean_size, ways)
        if self.aggregate == "auto" or len(pairs) > 1:
            rounds.append(pairs)
        if self.lengthscale == "auto":
            rounds.append([{"lengthscale": each} for each in LENGTHSCALES])
        return rounds

    @override
    def check_responses(self, y: np.ndarray) -> None:
        self._evidence_likelihood.check(y)

    @property
    @override
    def learns(self) -> Literal["two classes", "classes", "numbers"]:
        found = EVIDENCE_LIKELIHOODS.get(self.likelihood)
        return "two classes" if found is None or found.labels else "numbers"

    # -- the contract with the training loop ---------------------------------------------------

    @override
    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """Inducing points by k-means, ``q`` at the prior."""
        state = super().init(sample, rng)
        y_mean, y_scale = self._evidence_likelihood.response_scale(sample.y)
        state.fixed.update(y_mean=np.array([y_mean]), y_scale=np.array([y_scale]))
        # What tuning chooses must be in the state: the arguments stay as they are.
        state.fixed["averages"] = np.array(self.aggregate == "mean")
        state.params.update(log_noise=np.array([np.log(NOISE_SHARE)]), log_scale=np.zeros(1))
        state.memory.update(
            stretch=np.full(1, 2.0),
            shift=np.ones(1),
            v_mean=state.params["v_mean"],
            root=state.params["root"],
        )
        return state

    @override
    def start_points(
        self, z: np.ndarray, bag_y: np.ndarray | None, rng: np.random.Generator
    ) -> np.ndarray:
        return choose_inducing_points(z, self.n_inducing, rng)

    @override
    def block_params(self, state: State) -> Arrays:
        params = state.params
        return {
            **super().block_params(state),
            "noise": np.exp(params["log_noise"]),
            "scale": np.exp(params["log_scale"]),
            "v_before": state.memory["v_mean"],
            "factor_before": whitened(state.memory).factor(),
            "stretch": state.memory["stretch"],
            "shift": state.memory["shift"],
            "step": np.array([state.step]),
            "moves": state.memory["moves"],
            "learns": state.memory["settled"],
        }

    @override
    def needs_block(self, params: Arrays, local: Any) -> bool:
        """Not while the kernel stands still."""
        return local is None or bool(params["learns"][0] or local["moves"] != params["moves"])

    @override
    def block_stats(self, params: Arrays, block: BagBlock, local: Any) -> tuple[Stats, Any]:
        """Sum the sites of the bags' labels."""
        z = run = None
        if self.needs_block(params, local):
            z, run = self._inputs(params, block), self._pass(params)
            found = run.forward(z, block.offsets, self._scale(params, block.offsets))
            local = {
                "c": found.c.astype(self.dtype, copy=False),
                "r": found.r,
                "y": (to_host(block.y) - params["y_mean"]) / params["y_scale"],
                "moves": params["moves"],
            }
        evidence = Evidence(local["c"].astype(np.float64, copy=False), local["r"])
        scale, y = float(params["scale"][0]), local["y"]
        c, r = self._loadings(scale * evidence.c), scale**2 * evidence.r
        m, var, half = _moments(params, c, r)
        site = self._evidence_likelihood.site(y, m, var, float(params["noise"][0]))
        sites = [site, *self._tried(params, c, r, y, m, var)]
        w = np.array([each.precision() for each in sites])
        constant = np.array([each.constant(m, var) for each in sites])
        sums = {
            "precision": np.array([gram(c * each[:, None]) for each in np.sqrt(w)]),
            "linear": site.linear(m) @ c,
            "slope": site.d_m @ c,
            "constant": constant.sum(axis=1),
            "residual": 0.5 * (w @ r),
            "misfit": ((y - m) ** 2 + var).sum(keepdims=True),
        }
        if params["learns"][0] and z is not None and run is not None:
            n_ind = evidence.c.shape[1]
            d_c = site.d_m[:, None] * params["v_mean"][:n_ind]
            d_c += 2.0 * site.d_var[:, None] * (half @ params["factor"].T)[:, :n_ind]
            sums |= run.backward(
                z,
                block.offsets,
                self._scale(params, block.offsets),
                evidence.c,
                scale * d_c,
                scale**2 * site.d_var,
            )
        return Stats(float(site.value.sum()), y.shape[0], sums), local

    @override
    def update(self, state: State, stats: Stats, n_bag_total: int) -> tuple[State, Info]:
        """Set ``q`` to its optimum given the sites.

        The bound is that of the new ``q`` at the old ``xi``: exact, and it cannot fall while the
        kernel stands still.
        """
        params, memory, sums = dict(state.params), dict(state.memory), dict(stats.sums)
        if self._evidence_likelihood.has_noise:
            params["log_noise"] = self._best_noise(params, stats, sums)
        candidates = [
            SiteSums(*each, sums["linear"])
            for each in zip(sums["constant"], sums["residual"], sums["precision"], strict=True)
        ]
        if self._learns_variance:
            n_ind = params["w"].shape[0]
            growth = [each.best_growth(n_ind) for each in candidates]
            candidates = [
                each.grown(by, n_ind) for each, by in zip(candidates, growth, strict=True)
            ]
        best = int(np.argmax([each.bound() for each in candidates]))
        memory["v_mean"], memory["root"] = params["v_mean"], params["root"]
        params["v_mean"], params["root"], bound = candidates[best].posterior()
        if self._learns_variance:
            params["log_scale"] = params["log_scale"] + np.log(growth[best])
        if state.step == 0:  # what lies before is no way to go on along
            memory["v_mean"], memory["root"] = params["v_mean"], params["root"]
        elif len(candidates) > 1:
            for name, paid in (("stretch", best == 1), ("shift", best > 1)):
                way = float(memory[name][0]) * (GROW if paid else SHRINK)
                memory[name] = np.array([np.clip(way, *WAYS[name])])
        return self.updated(state, (params, memory), sums, bound, n_bag_total)

    def _best_noise(self, params: Arrays, stats: Stats, sums: Arrays) -> np.ndarray:
        """Return the logarithm of the best noise for this ``q``, and put ``sums`` in its units."""
        n_bag, before = stats.n_bag, float(np.exp(params["log_noise"][0]))
        noise = float(sums["misfit"][0]) / n_bag
        for name in ("precision", "linear", "residual"):
            sums[name] = sums[name] * (before / noise)
        norm = 0.5 * n_bag * (labels.LOG_2PI + np.log([before, noise]))
        sums["constant"] = (sums["constant"] + norm[0]) * (before / noise) - norm[1]
        return np.log([noise])

    def _tried(
        self,
        params: Arrays,
        c: np.ndarray,
        r: np.ndarray,
        y: np.ndarray,
        m: np.ndarray,
        var: np.ndarray,
    ) -> list[labels.Site]:
        """Return sites at other ``xi`` than the best for this ``q``.

        Each ``xi`` makes a bound. The updates alone move ``xi`` slowly where labels are separable;
        a step as much longer as is found to pay takes several of them at once.
        """
        likelihood = self._evidence_likelihood
        if not self.accelerate or not isinstance(likelihood, labels.Logistic):
            return []
        square = m * m + var
        if params["step"][0] == 0:
            xis = [square ** (0.5 * power) for power in STARTS[1:]]
        else:
            before = {"v_mean": params["v_before"], "factor": params["factor_before"]}
            m_before, var_before, _ = _moments(before, c, r)
            ratio = square / (m_before * m_before + var_before)
            xis = [np.sqrt(square * ratio ** float(params["stretch"][0]))]
            if self._learns_variance:  # a smaller prior needs smaller xi to be seen as better
                xis += [np.sqrt(square) * np.exp(way * params["shift"][0]) for way in (-1, 1)]
        return [likelihood.site_at(y, m, var, xi) for xi in xis]

    # -- what users call -----------------------------------------------------------------------

    @override
    def predict_block(
        self, params: Arrays, x: np.ndarray, coords: np.ndarray | None
    ) -> Probability | Prediction:
        z = self._scaled(params, x, coords)
        xp, scale = namespace(z), float(params["scale"][0])
        m, s = xp.empty(z.shape[0]), xp.empty(z.shape[0])
        brought = {name: like(params[name], z) for name in ("factor", "v_mean")}
        for rows, v, residual in self._pass(params).whitened(z):
            c = self._loadings(scale * v.astype(np.float64, copy=False))
            m[rows], s[rows], _ = _moments(brought, c, scale**2 * residual)
        return self._predicted(params, to_host(m), to_host(s))

    def bag_distribution(  # type: ignore[override]
        self, bags: BagBlock
    ) -> Probability | Prediction:
        """Return the distribution of ``sigma(s_b)`` of each bag, of any number of instances.

        ``s_b`` is Gaussian; its variance holds the covariances between the bag's instances through
        the inducing values, which the paper's predictor leaves out, and their independent
        residuals, as in the fit. With ``likelihood="normal"``, the distribution of the expected
        response.
        """
        params = self.fitted_params()
        z = self._inputs(params, bags)
        found = self._pass(params).forward(z, bags.offsets, self._scale(params, bags.offsets))
        scale = float(params["scale"][0])
        m, s, _ = _moments(params, self._loadings(scale * found.c), scale**2 * found.r)
        return self._predicted(params, m, s)

    def named_hyperparameters(self) -> dict[str, float]:
        """Return the intercept and the kernel's parameters by name, and the noise's deviation.

        Length-scales of space are in km; those of features in standard deviations.
        """
        named = super().named_hyperparameters()
        state = self.fitted_state()
        params, fixed = state.params, state.fixed
        if self._learns_variance:
            named["variance_factor"] = float(np.exp(2.0 * params["log_scale"][0]))
        scale = float(fixed["y_scale"][0])
        if self.intercept_sd > 0:
            at = self.intercept_sd * float(params["v_mean"][-1])
            named["intercept"] = float(fixed["y_mean"][0]) + scale * at
        if self._evidence_likelihood.has_noise:
            named["noise_sd"] = scale * float(np.exp(0.5 * params["log_noise"][0]))
        return named

    @property
    def _learns_variance(self) -> bool:
        if self.learn_variance is None:
            return self.learn_kernel or self.aggregate == "mean"
        return self.learn_variance

    @property
    def _evidence_likelihood(self) -> labels.EvidenceLikelihood:
        return EVIDENCE_LIKELIHOODS[self.likelihood]

    def _predicted(self, params: Arrays, m: np.ndarray, s: np.ndarray) -> Probability | Prediction:
        y_mean, y_scale = float(params["y_mean"][0]), float(params["y_scale"][0])
        return self._evidence_likelihood.predicted(m, s, y_mean, y_scale)

    def _pass(self, params: Arrays) -> EvidencePass:
        return EvidencePass(self._kernel(params), params, self.dtype)

    def _scale(self, params: Arrays, offsets: np.ndarray) -> np.ndarray:
        sizes = np.diff(offsets).astype(np.float64)
        # Saved before, a model has no "averages".
        averages = params.get("averages", self.aggregate == "mean")
        return 1.0 / sizes if averages else np.ones_like(sizes)

    def _loadings(self, c: np.ndarray) -> np.ndarray:
        """Add the intercept's column, where there is one: (n, n_value)."""
        if not self.intercept_sd > 0:
            return c
        xp = namespace(c)
        return xp.concatenate([c, xp.full((c.shape[0], 1), self.intercept_sd)], axis=1)


def _moments(
    params: Arrays, c: np.ndarray, r: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean and variance of ``c'v + noise`` of variance ``r``, and ``c R``."""
    half = c @ params["factor"]
    return c @ params["v_mean"], row_dot(half, half) + r, half

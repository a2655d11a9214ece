r"""VWSGP: the variational weakly supervised Gaussian process (Kandemir et al. 2016).

    T_b ~ Bernoulli(sigma(s_b)),   s_b = intercept + sum_{n in b} f_n,   f a sparse (FITC) GP.

Evidence adds up over a bag, so that a bag's label sees the instances through one Gaussian number.
One pass over the instances makes the M + 1 numbers a bag of :mod:`models.bag_evidence`; they stay
with the blocks, and every further update of ``q(u)`` costs O(n_bag M^2), whatever the instances.
``q`` is kept over the whitened inducing values, the intercept with its deviation before the labels
as one more of them; :mod:`models.evidence_laws` says what the labels ask of it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from models import evidence_laws
from models.bag_evidence import Evidence, EvidencePass
from models.block import BagBlock
from models.classifier import Classifier, check_labels
from models.errors import BagsError, NumericalError, ParameterError
from models.kernels import Kernel, parse_kernel
from models.landmarks import choose_landmarks
from models.optim import adam_step
from models.prediction import Prediction
from models.probability import Probability
from models.protocol import Arrays, Info, State, Stats, Summary, Sweep
from models.scaling import scaled_inputs, scaling_of
from models.sparse_gp import Whitened, factorise, lower_backward
from models.xp import cholesky, gram, inverse_lower

SETTLED = 1e-3  # nats a bag and update: a smaller rise, and the kernel may move
NOISE_SHARE = 0.25  # of the responses' variance, that the normal law's noise starts at


class VWSGP(Classifier):
    """Sparse Gaussian process whose sum over a bag decides its label; closed-form updates.

    The score of an instance is ``f``, what it adds to the evidence; ``predict_pixels`` gives it as
    the probability of a bag that holds this instance alone, which has the same order.

    Parameters
    ----------
    likelihood : {"logistic", "normal"}
        ``normal``: a bag's ``y`` is a real number with noise, not a label (the paper's footnote 1).
    aggregate : {"sum", "mean"}
        ``s_b`` is the sum of ``f`` over the bag, as in the paper, or its mean: for bags of sizes
        that say nothing of the label.
    n_inducing : int
        Number of inducing points; they stay where k-means puts them, as in the paper.
    kernel : str
        See :func:`models.kernels.parse_kernel`. The length-scale starts at the root of the number
        of features, the paper's, in deviations of the features.
    variance : float
        Prior variance of ``f``; where it starts if it is learnt.
    intercept_sd : float
        Prior deviation of the intercept, in deviations of ``y`` where that is a number; 0 for none,
        as in the paper. Labels need not be balanced with one.
    learn_kernel : bool
        Climb the bound by the kernel's parameters too, a pass over the instances each step.
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

    sweep: Sweep = "full"
    keeps_local: ClassVar[bool] = True
    saves_local: ClassVar[bool] = False
    laws: ClassVar[tuple[str, ...]] = ("logistic", "normal")

    def __init__(
        self,
        *,
        likelihood: str = "logistic",
        aggregate: str = "sum",
        n_inducing: int = 50,
        kernel: str = "rbf",
        variance: float = 1.0,
        intercept_sd: float = 3.0,
        learn_kernel: bool = False,
        max_epochs: int = 100,
        learning_rate: float = 0.05,
        tolerance: float = 1e-4,
        dtype: str = "float64",
        seed: int = 0,
    ) -> None:
        self.likelihood = likelihood
        self.aggregate = aggregate
        self.n_inducing = n_inducing
        self.kernel = kernel
        self.variance = variance
        self.intercept_sd = intercept_sd
        self.learn_kernel = learn_kernel
        self.max_epochs = max_epochs
        self.learning_rate = learning_rate
        self.tolerance = tolerance
        self.dtype = dtype
        self.seed = seed
        self.batch_bags = 1

    def fit(self, bags: BagBlock, *, n_thread: int | None = None, **how: Any) -> Any:
        """Fit to bags in memory; see :class:`models.classifier.Classifier`.

        With ``likelihood="normal"`` their ``y`` are any numbers.
        """
        self.check_params()
        if self.likelihood != "normal":
            check_labels(bags.y)
        return super(Classifier, self).fit(bags, n_thread=n_thread, **how)

    def check_params(self) -> None:
        """Raise ParameterError if a parameter has an impossible value."""
        wrong = None
        for name, known in (
            ("likelihood", self.laws),
            ("aggregate", ("sum", "mean")),
            ("dtype", ("float64", "float32")),
        ):
            if getattr(self, name) not in known:
                wrong = f"{name}: {getattr(self, name)!r} is not one of {', '.join(known)}"
        for name in ("n_inducing", "max_epochs", "batch_bags"):
            value = getattr(self, name)
            if value != int(value) or value < 1:
                wrong = f"{name}: {value} is not a whole number of at least 1"
        for name in ("variance", "learning_rate", "tolerance"):
            if not 0 < getattr(self, name) < np.inf:
                wrong = f"{name}: {getattr(self, name)} is not above 0"
        if not 0 <= self.intercept_sd < np.inf:
            wrong = f"intercept_sd: {self.intercept_sd} is below 0"
        if wrong:
            raise ParameterError(wrong)

    # -- the contract with the training loop ---------------------------------------------------

    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """See :class:`models.protocol.Model`: inducing points by k-means, ``q`` at the prior."""
        self.check_params()
        fixed = {"y_mean": np.zeros(1), "y_scale": np.ones(1)}
        if self.likelihood == "normal":
            fixed = {"y_mean": np.array([sample.y.mean()]), "y_scale": np.array([sample.y.std()])}
            if not fixed["y_scale"][0] > 0:
                msg = f"every bag's y is {sample.y[0]:g}; there is nothing to learn"
                raise BagsError(msg)
        else:
            check_labels(sample.y)
        coords = self._coords(sample)
        scaled = Summary(
            sample.x, coords, sample.x_mean, sample.x_sd, sample.y, sample.weight, sample.n_pix
        )
        fixed |= {k: v for k, v in scaling_of(scaled, 1.0).items() if k != "base_rate"}
        w = choose_landmarks(
            scaled_inputs(fixed, sample.x, coords, np.float64), self.n_inducing, rng
        )
        n_value = w.shape[0] + int(self.intercept_sd > 0)
        params = {
            "v_mean": np.zeros(n_value),
            "root": np.zeros((n_value, n_value)),
            "theta": self._kernel(fixed).start(self.variance),
            "w": w,
            "log_noise": np.array([np.log(NOISE_SHARE)]),
        }
        memory = {"moves": np.zeros(1), "settled": np.zeros(1), "bound": np.full(1, -np.inf)}
        return State(params, fixed, memory, rate=self.learning_rate)

    def block_params(self, state: State) -> Arrays:
        """See :class:`models.protocol.Model`."""
        params, kernel = state.params, self._kernel(state.fixed)
        whitened, n_ind = _whitened(params), params["w"].shape[0]
        k_ww = kernel.matrix(params["theta"], params["w"], params["w"])
        prior = Whitened(np.zeros(n_ind), np.zeros((n_ind, n_ind)))
        return {
            **state.fixed,
            "theta": params["theta"],
            "w": params["w"],
            "noise": np.exp(params["log_noise"]),
            "lower_inv": factorise(k_ww, prior).lower_inv,
            "v_mean": whitened.v_mean,
            "factor": whitened.factor(),
            "moves": state.memory["moves"],
            "learns": state.memory["settled"],
        }

    def needs_block(self, params: Arrays, local: Any) -> bool:
        """See :class:`models.protocol.Model`: not while the kernel stands still."""
        return local is None or bool(params["learns"][0] or local["moves"] != params["moves"])

    def block_stats(self, params: Arrays, block: BagBlock, local: Any) -> tuple[Stats, Any]:
        """See :class:`models.protocol.Model`: what the bags' labels ask of ``q``."""
        z = run = None
        if self.needs_block(params, local):
            z, run = self._inputs(params, block), self._pass(params)
            found = run.forward(z, block.offsets, self._scale(block.offsets))
            local = {
                "c": found.c.astype(self.dtype, copy=False),
                "r": found.r,
                "y": (block.y - params["y_mean"]) / params["y_scale"],
                "moves": params["moves"],
            }
        evidence = Evidence(local["c"].astype(np.float64, copy=False), local["r"])
        c, y = self._loadings(evidence.c), local["y"]
        m, var, half = _moments(params, c, evidence.r)
        site = self._law.site(y, m, var, float(params["noise"][0]))
        w = site.precision()
        weighted = c * np.sqrt(w)[:, None]
        sums = {
            "precision": gram(weighted),
            "linear": site.linear(m) @ c,
            "slope": site.d_m @ c,
            "constant": (site.constant(m, var) - 0.5 * w * evidence.r).sum(keepdims=True),
            "misfit": ((y - m) ** 2 + var).sum(keepdims=True),
        }
        if params["learns"][0] and z is not None and run is not None:
            n_ind = evidence.c.shape[1]
            d_c = site.d_m[:, None] * params["v_mean"][:n_ind]
            d_c += 2.0 * site.d_var[:, None] * (half @ params["factor"].T)[:, :n_ind]
            sums |= run.backward(
                z, block.offsets, self._scale(block.offsets), evidence.c, d_c, site.d_var
            )
        return Stats(float(site.value.sum()), y.shape[0], sums), local

    def update(self, state: State, stats: Stats, n_bag_total: int) -> tuple[State, Info]:
        """See :class:`models.protocol.Model`: ``q`` jumps to what the sites ask for.

        The bound is that of the new ``q`` at the old ``xi``: exact, and it cannot fall while the
        kernel stands still.
        """
        params, memory, sums = dict(state.params), dict(state.memory), stats.sums
        precision, linear, constant = sums["precision"], sums["linear"], float(sums["constant"][0])
        if self.likelihood == "normal":
            # The best noise for the old q, then the best q for that noise.
            before = float(np.exp(params["log_noise"][0]))
            noise = float(sums["misfit"][0]) / stats.n_bag
            log_term = 0.5 * stats.n_bag * evidence_laws.LOG_2PI
            constant = (constant + log_term + 0.5 * stats.n_bag * np.log(before)) * before / noise
            constant -= log_term + 0.5 * stats.n_bag * np.log(noise)
            precision, linear = precision * (before / noise), linear * (before / noise)
            params["log_noise"] = np.log([noise])
        params["v_mean"], params["root"], gain = _posterior(precision, linear)
        bound = constant + gain
        rise = (bound - float(memory["bound"][0])) / n_bag_total
        memory["bound"] = np.array([bound])
        if memory["settled"][0]:
            params, memory = self._move_kernel(state, params, memory, sums)
        elif self.learn_kernel and rise < SETTLED:
            memory["settled"] = np.ones(1)
        done = None if self.learn_kernel else bool(rise < self.tolerance)
        return State(params, state.fixed, memory, state.step + 1, state.rate), Info(bound, done)

    def kernel_gradient(self, state: State, sums: Arrays) -> np.ndarray:
        """Return the gradient of the bound by ``theta``, ``q`` held: (n_theta,)."""
        kernel, params = self._kernel(state.fixed), state.params
        w, theta = params["w"], params["theta"]
        cache = kernel.forward(theta, w, w)[1]
        d_k = lower_backward(self.block_params(state)["lower_inv"], sums["lower"])
        by_w = kernel.backward(theta, w, w, cache, d_k, want_w=False)[0]
        return np.asarray(sums["theta"] + by_w)

    def _move_kernel(
        self, state: State, params: Arrays, memory: Arrays, sums: Arrays
    ) -> tuple[Arrays, Arrays]:
        grad = {"theta": self.kernel_gradient(state, sums)}
        moves = memory["moves"]
        new, moments = adam_step(params, grad, memory, int(moves[0]), state.rate)
        return new, {**moments, "moves": moves + 1}

    # -- what users call -----------------------------------------------------------------------

    def predict_block(
        self, params: Arrays, x: np.ndarray, coords: np.ndarray | None
    ) -> Probability | Prediction:
        """Return the law of each instance of ``x`` (n_pix, n_feat), ``coords`` (n_pix, 2) km."""
        z = self._scaled(params, x, coords)
        m, s = np.empty(z.shape[0]), np.empty(z.shape[0])
        for rows, v, residual in self._pass(params).whitened(z):
            c = self._loadings(v.astype(np.float64, copy=False))
            m[rows], s[rows], _ = _moments(params, c, residual)
        return self._predicted(params, m, s)

    def predict_pixels(  # type: ignore[override]
        self, x: np.ndarray, coords: np.ndarray | None = None
    ) -> Probability | Prediction:
        """Return the law of ``sigma(intercept + f)`` of each instance.

        With ``likelihood="normal"``, of the response that a bag of this instance alone is expected
        to have.

        Parameters
        ----------
        x : (n_pix, n_feat)
            Features as measured.
        coords : (n_pix, 2), km
            Needed where the kernel has a spatial part.
        """
        return self.predict_block(self.fitted_params(), np.asarray(x), coords)

    def predict_bags(self, bags: BagBlock) -> Probability | Prediction:  # type: ignore[override]
        """Return the law of ``sigma(s_b)`` of each bag, of any number of instances.

        ``s_b`` is Gaussian; its variance holds the covariances between the bag's instances through
        the inducing values, which the paper's predictor leaves out, and their independent
        residuals, as in the fit. With ``likelihood="normal"``, the law of the expected response.
        """
        params = self.fitted_params()
        z = self._inputs(params, bags)
        found = self._pass(params).forward(z, bags.offsets, self._scale(bags.offsets))
        m, s, _ = _moments(params, self._loadings(found.c), found.r)
        return self._predicted(params, m, s)

    def named_hyperparameters(self) -> dict[str, float]:
        """Return the intercept and the kernel's parameters by name, and the noise's deviation.

        Length-scales of space are in km; those of features in standard deviations.
        """
        state = self.fitted_state()
        params, fixed = state.params, state.fixed
        values = np.exp(params["theta"]).tolist()
        named = dict(zip(self._kernel(fixed).names, values, strict=True))
        for name in named:
            if "_space" in name and ".lengthscale" in name:
                named[name] *= float(fixed["coord_scale"][0])
        scale = float(fixed["y_scale"][0])
        if self.intercept_sd > 0:
            at = self.intercept_sd * float(params["v_mean"][-1])
            named["intercept"] = float(fixed["y_mean"][0]) + scale * at
        if self.likelihood == "normal":
            named["noise_sd"] = scale * float(np.exp(0.5 * params["log_noise"][0]))
        return named

    @property
    def _law(self) -> evidence_laws.EvidenceLaw:
        return evidence_laws.LAWS[self.likelihood]

    def _predicted(self, params: Arrays, m: np.ndarray, s: np.ndarray) -> Probability | Prediction:
        if self.likelihood == "normal":
            scale = float(params["y_scale"][0])
            return Prediction("identity", m + float(params["y_mean"][0]) / scale, s, scale)
        return Probability("probit" if self.likelihood == "probit" else "logistic", m, s)

    def _kernel(self, fixed: Arrays) -> Kernel:
        n_feat = fixed["x_mean"].shape[0]
        return parse_kernel(self.kernel, n_feat, has_coords="coord_scale" in fixed)

    def _coords(self, sample: Summary) -> np.ndarray | None:
        """Return the sample's coordinates where the kernel looks at them; a store may have none."""
        coords = sample.coords
        if coords is None or not np.isfinite(coords).all():
            return None
        kernel = parse_kernel(self.kernel, sample.x.shape[1], has_coords=True)
        return coords if any("_space" in name for name in kernel.names) else None

    def _scaled(self, params: Arrays, x: np.ndarray, coords: np.ndarray | None) -> np.ndarray:
        return scaled_inputs(params, x, coords, np.dtype(self.dtype))

    def _inputs(self, params: Arrays, bags: BagBlock) -> np.ndarray:
        return self._scaled(params, bags.x, bags.coords)

    def _pass(self, params: Arrays) -> EvidencePass:
        return EvidencePass(self._kernel(params), params, self.dtype)

    def _scale(self, offsets: np.ndarray) -> np.ndarray:
        sizes = np.diff(offsets).astype(np.float64)
        return np.ones_like(sizes) if self.aggregate == "sum" else 1.0 / sizes

    def _loadings(self, c: np.ndarray) -> np.ndarray:
        """Add the intercept's column, where there is one: (n, n_value)."""
        if not self.intercept_sd > 0:
            return c
        return np.concatenate([c, np.full((c.shape[0], 1), self.intercept_sd)], axis=1)


def _whitened(params: Arrays) -> Whitened:
    return Whitened(params["v_mean"], params["root"])


def _moments(
    params: Arrays, c: np.ndarray, r: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean and variance of ``c'v + noise`` of variance ``r``, and ``c R``."""
    half = c @ params["factor"]
    return c @ params["v_mean"], np.vecdot(half, half) + r, half


def _posterior(precision: np.ndarray, linear: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return ``v_mean`` and ``root`` of the ``q`` that sites ask for, and what it adds.

    ``q = N(P^-1 h, P^-1)``, ``P = I + sum w c c'``, ``h = sum h c``; the bound is the sites'
    constants, less their residuals' part, plus ``h' P^-1 h / 2 - log|P| / 2``.
    """
    lifted = precision + np.eye(precision.shape[0])
    try:
        inverse = inverse_lower(cholesky(lifted))
        root = cholesky(gram(inverse))
    except np.linalg.LinAlgError as error:
        msg = (
            "the posterior of the inducing points is not positive definite; scale the features, "
            'or use a smaller variance or aggregate="mean"'
        )
        raise NumericalError(msg) from error
    mean = inverse.T @ (inverse @ linear)
    gain = 0.5 * float(linear @ mean) + float(np.log(np.diag(inverse)).sum())
    np.fill_diagonal(root, np.log(np.diag(root)))
    return mean, root, gain


class VWSGPSVI(VWSGP):
    """VWSGP by stochastic variational inference on batches of bags (section 4.3 of the paper).

    Where the closed form needs no learning rate, this needs one. It stands beside :class:`VWSGP`
    for laws without a closed form (the probit), and to be compared with it.

    Parameters
    ----------
    likelihood : {"probit", "logistic"}
        Probit by quadrature; logistic by the bound of the closed form.
    steps : {"natural", "adam"}
        Natural-gradient steps of ``learning_rate`` (at most 1) on ``q``, or Adam's on its mean and
        Cholesky factor.
    batch_bags : int
        Bags a step.
    learning_rate : float
        Of the steps on ``q``; of Adam on the kernel, where that is learnt, too.
    aggregate, n_inducing, kernel, variance, intercept_sd, learn_kernel, max_epochs, tolerance, \
dtype, seed
        As of :class:`VWSGP`; an epoch is one pass over all batches.
    """

    sweep: Sweep = "minibatch"
    laws: ClassVar[tuple[str, ...]] = ("probit", "logistic")

    def __init__(
        self,
        *,
        likelihood: str = "probit",
        aggregate: str = "sum",
        n_inducing: int = 50,
        kernel: str = "rbf",
        variance: float = 1.0,
        intercept_sd: float = 3.0,
        learn_kernel: bool = False,
        steps: str = "natural",
        batch_bags: int = 32,
        max_epochs: int = 100,
        learning_rate: float = 0.1,
        tolerance: float = 1e-3,
        dtype: str = "float64",
        seed: int = 0,
    ) -> None:
        super().__init__(
            likelihood=likelihood,
            aggregate=aggregate,
            n_inducing=n_inducing,
            kernel=kernel,
            variance=variance,
            intercept_sd=intercept_sd,
            learn_kernel=learn_kernel,
            max_epochs=max_epochs,
            learning_rate=learning_rate,
            tolerance=tolerance,
            dtype=dtype,
            seed=seed,
        )
        self.steps = steps
        self.batch_bags = batch_bags

    def check_params(self) -> None:
        """Raise ParameterError if a parameter has an impossible value."""
        super().check_params()
        wrong = None
        if self.steps not in ("natural", "adam"):
            wrong = f"steps: {self.steps!r} is not one of natural, adam"
        elif self.steps == "natural" and self.learning_rate > 1:
            wrong = f"learning_rate: {self.learning_rate} is above 1, the whole way of a step"
        if wrong:
            raise ParameterError(wrong)

    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """See :class:`models.protocol.Model`: the kernel may move from the first step."""
        state = super().init(sample, rng)
        if self.learn_kernel:
            state.memory["settled"] = np.ones(1)
        return state

    def update(self, state: State, stats: Stats, n_bag_total: int) -> tuple[State, Info]:
        """See :class:`models.protocol.Model`: a step from the sums over a batch."""
        factor = n_bag_total / stats.n_bag
        sums = {name: factor * value for name, value in stats.sums.items()}
        whitened = _whitened(state.params)
        bound = factor * stats.bound - whitened.kl()
        d_mean, d_cov = sums["slope"], -0.5 * sums["precision"]
        params, memory = dict(state.params), dict(state.memory)
        if self.steps == "natural":
            # The laws are log-concave: what the labels ask for is always a precision.
            stepped = whitened.natural_step(d_mean, d_cov, state.rate, longest=np.inf)
            params["v_mean"], params["root"] = stepped.v_mean, stepped.root
        else:
            kl_mean, kl_root = whitened.kl_backward()
            grad = {
                "v_mean": d_mean - kl_mean,
                "root": whitened.root_adjoint(d_cov) - kl_root,
            }
            params, memory = adam_step(params, grad, memory, state.step, state.rate)
        if self.learn_kernel:
            params, memory = self._move_kernel(state, params, memory, sums)
        return State(params, state.fixed, memory, state.step + 1, state.rate), Info(bound)

r"""GPMIL: a Gaussian process behind labels of bags, exactly (Kim & De la Torre 2010).

A bag is as positive as the largest of its latent values. The soft-max likelihood (eq. 5) and the
witness likelihood (eqs. 17-18) make that smooth; the posterior is Laplace's (eqs. 9-12), and the
kernel's parameters maximise its evidence (eq. 13). The cost is that of ``n x n`` matrices, ``n``
the number of training instances: beyond ``MAX_PIXELS`` of them see
:class:`models.mil.gpmil.gpmil_sparse.GPMILS`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np

from models.backend.blas import one_blas_thread
from models.core.block import BagBlock, check_labels
from models.core.errors import BagsError, ParameterError
from models.core.protocol import Arrays, State, Sweep, override
from models.gp.kernels import Kernel
from models.mil.data.spread_columns import classifier_scaling, scaled_columns
from models.mil.gpmil.gpmil_evidence import Problem, posterior, scale_by_range, start_mean
from models.mil.gpmil.gpmil_search import Searcher
from models.mil.gpmil.latent_gp import LatentGP
from models.mil.gpmil.soft_max import Sizes
from models.training.executor import BagsSource
from models.training.parameters import Count, Positive

MAX_PIXELS = 5000  # instances; a matrix of them takes 200 MB, and a fit holds about eight


@dataclass(kw_only=True, eq=False, repr=False)
class GPMIL(LatentGP):
    """Gaussian process for labels of bags, exact in the instances.

    Parameters
    ----------
    likelihood : {"softmax", "witness"}
        How the largest latent value of a bag is smoothed: ``log sum exp f``, or a mean weighted by
        witness probabilities that deterministic annealing makes ever sharper.
    kernel : str
        See :func:`models.gp.kernel_text.parse_kernel`.
    scaling : {"deviation", "range"}
        What every covariate is divided by.
    priors : {"weak", "none"}
        Of the kernel's variances and the mean, see :func:`gpmil_evidence.log_prior`; the
        evidence then holds their log density. The paper has none.
    learn_variance : bool
        Learn the variances of the kernel's parts; else they stay where they start, 1 in all.
    learn_mean : bool
        Learn a constant mean of the latent function, from one at which bags are positive as often
        as they are; else it is 0, as in the paper.
    projection : {"whole", "blocks"}
        Of the soft-max likelihood's Hessian, which need not be positive definite: of the whole
        Hessian of the posterior, where it is not (the paper's), or of each bag's part.
    coldest : float
        Inverse temperature ``lambda`` that the witness shares are annealed to, from 0.1 by factors
        of 10: they are then the soft-max of ``lambda f``.
    n_starts : int
        Starts of the search over hyperparameters; the best evidence wins.
    max_epochs : int
        Most steps of each search over hyperparameters: quasi-Newton, by exact gradients; under
        the witness likelihood, by the simplex method where there are at most four.
    tolerance : float
        Slope of the evidence by a logarithm of a hyperparameter at which it is at its top, nats.
    n_draws : int
        Draws of each bag's probability.
    seed : int

    Attributes
    ----------
    state_, params_, history_, converged_, bound_
        See :class:`models.training.estimator.Estimator`; the bound is the evidence, nats.
    """

    kind = "gpmil"
    about = "exact GP, soft-max of the instances; kernel by evidence; some thousand instances"
    source = "Kim and De la Torre 2010"
    sweep: ClassVar[Sweep] = "single"

    learn_variance: bool = True
    projection: Literal["whole", "blocks"] = "whole"
    n_starts: Count = 1
    max_epochs: Count = 50
    tolerance: Positive = 0.01

    @override
    def fit_once(
        self,
        bags: BagBlock,
        *,
        n_thread: int | None = None,
        start: np.ndarray | None = None,
        **how: Any,
    ) -> Self:
        """Fit to bags whose labels are 0 and 1.

        Parameters
        ----------
        bags : Bags
        n_thread : int, optional
            Starts that are searched from at once. It does not change the result.
        start : (n_theta,) or (n_theta + 1,) array, optional
            Logarithms of the kernel's parameters, in units of the scaled data, and maybe the mean,
            that the first search starts from: those of a fit to similar bags, say.

        Raises
        ------
        BagsError
            If labels are unusable, or there are more than 5000 instances.
        """
        if how:
            msg = f"{', '.join(how)}: not an argument of GPMIL.fit"
            raise ParameterError(msg)
        self.check_params()
        check_labels(bags.y)
        if bags.n_pix > MAX_PIXELS:
            msg = (
                f"{bags.n_pix} instances are too many for GPMIL, which takes at most {MAX_PIXELS}; "
                "use GPMILS (model.kind: gpmil_s)"
            )
            raise BagsError(msg)
        rng = np.random.default_rng([self.seed, 0])
        fixed = classifier_scaling(BagsSource(bags, self.seed).summary(rng))
        if self.scaling == "range":
            fixed = scale_by_range(fixed, bags.x)
        kernel = self._kernel(fixed)
        centre = start_mean(bags.y, bags.n_pix, self.likelihood) if self.learn_mean else 0.0
        first = np.append(kernel.start(1.0), centre)
        if start is not None:
            given = np.asarray(start, dtype=np.float64)
            if given.shape not in ((kernel.n_theta,), (kernel.n_theta + 1,)):
                msg = f"start has shape {given.shape}; give {', '.join(kernel.names)}, maybe a mean"
                raise ParameterError(msg)
            first[: given.shape[0]] = given
        z = scaled_columns(fixed, bags.x, bags.coords, np.float64)
        problem = Problem(z, Sizes.of(bags.offsets), 2.0 * bags.y - 1.0, kernel)
        free = self._free(kernel)
        starts = [first]
        for _ in range(self.n_starts - 1):
            starts.append(first + free * rng.normal(size=free.shape[0]))
        searcher = Searcher(
            problem,
            free,
            self.projection,
            None if self.likelihood == "softmax" else self.coldest,
            self.priors == "weak",
            centre,
            self.max_epochs,
            self.tolerance,
        )
        with one_blas_thread(), ThreadPoolExecutor(n_thread or 1) as pool:
            ends = list(pool.map(searcher.search, starts))
            best = max(ends, key=lambda end: end.evidence)
            last = posterior(problem, best.point, best.share, self.projection, learn=False)
        params = {
            "theta": best.point[:-1],
            "mean": best.point[-1:],
            "inverse_temperature": np.array(
                [0.0 if self.likelihood == "softmax" else self.coldest]
            ),
            "w": z,
            "alpha": last.alpha,
            "q": last.q,
        }
        self.state_ = State(params, fixed, step=len(best.history))
        self.params_ = self.block_params(self.state_)
        self.history_ = best.history
        self.converged_ = best.converged and last.converged
        return self

    def _free(self, kernel: Kernel) -> np.ndarray:
        """Tell which of the kernel's parameters and the mean are learnt: (n_theta + 1,) bool."""
        learnt = [self.learn_variance or ".variance" not in name for name in kernel.names]
        return np.array([*learnt, self.learn_mean])

    @override
    def block_params(self, state: State) -> Arrays:
        return {**state.fixed, **state.params}

"""What the classifiers share: labels of bags, and what may be wrong with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from models.backend.arrays import as_array
from models.core.block import check_labels
from models.gp.kernel_text import parse_kernel
from models.training.estimator import Estimator

if TYPE_CHECKING:
    from models.core.block import BagBlock
    from models.core.protocol import Arrays, Summary
    from models.likelihoods.prediction import Prediction
    from models.likelihoods.probability import Probability, ProbabilityDraws


class Classifier(Estimator):
    """Base of the models of labelled bags (multiple-instance classification).

    A bag's ``y`` is 1 where something in it is positive, else 0. ``weight`` is not used: a pixel
    is an instance, whoever lives there.
    """

    responses: ClassVar[Literal["counts", "labels"]] = "labels"

    def fit(self, bags: BagBlock, *, n_thread: int | None = None, **how: Any) -> Self:
        """Fit to labelled bags in memory.

        Parameters
        ----------
        bags : Bags
        n_thread : int, optional
            Threads; all cores where not given. It does not change the result.
        **how
            What a model alone takes.

        Returns
        -------
        self

        Raises
        ------
        BagsError
            If a label is neither 0 nor 1, or all are the same.
        """
        self.check_params()
        self.check_responses(bags.y)
        return super().fit(bags, n_thread=n_thread, **how)

    def check_responses(self, y: np.ndarray) -> None:
        """Raise BagsError unless a model can learn from the bags' responses ``y`` (n_bag,)."""
        check_labels(y)

    def predict_block(
        self, params: Arrays, x: np.ndarray, coords: np.ndarray | None
    ) -> Probability | Prediction:
        """Predict each instance of ``x`` (n_pix, n_feat), ``coords`` (n_pix, n_axis) km."""
        raise NotImplementedError

    def predict_pixels(
        self, x: np.ndarray, coords: np.ndarray | None = None
    ) -> Probability | Prediction:
        """Return the distribution of the probability that each instance is positive.

        Parameters
        ----------
        x : (n_pix, n_feat)
            Covariates as measured.
        coords : (n_pix, n_axis), km
            Needed where the kernel has a spatial part.
        """
        return self.predict_block(self.fitted_params(), as_array(x), coords)

    def predict_bags(self, bags: BagBlock) -> Probability | Prediction | ProbabilityDraws:
        """Return the distribution of the probability that each bag is positive."""
        raise NotImplementedError


def without_unused_coords(sample: Summary, kernel: str) -> Summary:
    """Return the sample without its coordinates where the kernel does not look at them.

    A store may have none, and inducing points should spread over what matters.
    """
    if sample.coords is None:
        return sample
    names = parse_kernel(kernel, sample.x.shape[1], has_coords=True).names
    if np.isfinite(sample.coords).all() and any("_space" in name for name in names):
        return sample
    return replace(sample, coords=None)

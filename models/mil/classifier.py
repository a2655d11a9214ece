"""What the classifiers share: labels of bags, and what may be wrong with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from models.core.block import check_labels
from models.gp.kernel_text import parse_kernel
from models.training.estimator import Estimator

if TYPE_CHECKING:
    from models.core.block import BagBlock
    from models.core.protocol import Summary
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
        check_labels(bags.y)
        return super().fit(bags, n_thread=n_thread, **how)

    def predict_pixels(self, x: np.ndarray, coords: np.ndarray | None = None) -> Probability:
        """Return the probability that each instance is positive, with its deviation."""
        raise NotImplementedError

    def predict_bags(self, bags: BagBlock) -> Probability | ProbabilityDraws:
        """Return the probability that each bag is positive, with its deviation."""
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

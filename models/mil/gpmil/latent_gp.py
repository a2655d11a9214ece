"""What GPMIL and its sparse variant share: predictions from the latent values' posterior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal

import numpy as np

from models.core.block import BagBlock
from models.core.protocol import Arrays, override
from models.gp import pixel_pass
from models.likelihoods.probability import Probability, ProbabilityDraws
from models.mil.data.classifier import Classifier
from models.mil.data.inner_folds import Settings
from models.mil.data.spread_columns import SpreadKernelModel
from models.mil.gpmil.bag_posterior import mode_probability, predict_bags
from models.training.parameters import Count, Positive


@dataclass(kw_only=True, eq=False, repr=False)
class LatentGP(SpreadKernelModel, Classifier):
    """Base of the classifiers whose bag is as positive as the largest of its latent values."""

    on_device: ClassVar[bool] = False

    likelihood: Literal["softmax", "witness"] = "softmax"
    kernel: str = "rbf"
    scaling: Literal["deviation", "range"] = "deviation"
    priors: Literal["weak", "none"] = "weak"
    learn_mean: bool = True
    coldest: Positive = 10.0
    n_draws: Count = 500
    seed: int = 0

    @override
    def tuning_settings(self, mean_size: float) -> Sequence[Settings]:
        del mean_size
        pairs = product(("softmax", "witness"), ("deviation", "range"))
        return [{"likelihood": one, "scaling": other} for one, other in pairs]

    @override
    def predict_block(self, params: Arrays, x: Any, coords: Any) -> Probability:
        at = self._latent(params, x, coords)
        return Probability("logistic", at.m, at.s)

    @override
    def bag_distribution(  # type: ignore[override]
        self, bags: BagBlock, *, n_draws: int | None = None, rng: np.random.Generator | None = None
    ) -> Probability | ProbabilityDraws:
        """Return the distribution of the probability that each bag is positive (eq. 14).

        Draws under the soft-max likelihood; under the witness likelihood, the distribution of one
        normal number's sigmoid.

        Parameters
        ----------
        bags : BagBlock
        n_draws : int, optional
            The model's ``n_draws`` where not given.
        rng : numpy Generator, optional
            Where not given, each bag's draws are seeded by the model's seed and its number.
        """
        params = self.fitted_params()
        return predict_bags(
            self._kernel(params), params, bags, n_draws or self.n_draws, rng, self.seed
        )

    def predict_bag_modes(self, bags: BagBlock) -> np.ndarray:
        """Return the probability of each bag at the mode of its latent values: (n_bag,), eq. (15).

        The paper calls a bag positive where it is above 1/2.
        """
        params = self.fitted_params()
        return mode_probability(params, self._latent(params, bags.x, bags.coords).m, bags.offsets)

    @override
    def named_hyperparameters(self) -> dict[str, float]:
        mean = float(self.fitted_params()["mean"][0])
        return {"mean": mean, **super().named_hyperparameters()}

    def _latent(
        self, params: Arrays, x: Any, coords: Any, *, learn: bool = False
    ) -> pixel_pass.PixelPass:
        z = self._scaled(params, x, coords)
        return pixel_pass.forward(self._kernel(params), self._low(params), z, learn=learn)

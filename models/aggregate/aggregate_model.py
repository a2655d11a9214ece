"""What VBAgg and its baselines share: a likelihood of each bag given its aggregate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from models.backend.arrays import as_array
from models.backend.blas import one_blas_thread
from models.core.block import BagBlock
from models.core.errors import ParameterError
from models.core.protocol import Arrays, Summary, Sweep, override
from models.gp.priors import unit_of
from models.gp.scaling import scaling_of
from models.likelihoods.censored import of_block
from models.likelihoods.likelihood import Likelihood
from models.likelihoods.links import LINKS, Link, find_link
from models.likelihoods.mixture import MixturePrediction
from models.likelihoods.prediction import BagPrediction, Prediction
from models.likelihoods.registry import LIKELIHOODS, find_likelihood
from models.training.estimator import Estimator
from models.training.parameters import Count, Positive


class BagDraws(Protocol):
    """Drawn rates, as the bags of a block see them."""

    @property
    def n_draws(self) -> int:
        """Number of surfaces."""

    @property
    def params(self) -> Mapping[str, Any]:
        """The likelihood's parameters, logarithms: of all draws, or (n_draws, 1) of each."""

    def counted(self, bags: BagBlock) -> BagDraws:
        """Return the same with the aggregates of these bags, for their :meth:`observed_factors`."""

    def bag_counts(self, bags: BagBlock) -> np.ndarray:
        """Aggregate the rates over each bag: (n_draws, n_bag)."""

    def observed_factors(self, bags: BagBlock, drawn: np.ndarray) -> np.ndarray:
        """Return factors on drawn aggregates (n_draws, n_bag) that the bags' responses ask for."""


class RateDraws(BagDraws, Protocol):
    """Rate surfaces drawn from a fitted model: the same whatever the tiles."""

    @property
    def clusters(self) -> np.ndarray:
        """Set of hyperparameters, and group of dependent draws in it: (n_draws, 2) int64."""

    def alone(self, number: int) -> tuple[RateDraws, int]:
        """Return the draws of the same hyperparameters as one, and its place among them."""

    def rate(self, x: np.ndarray, coords: np.ndarray | None = None) -> np.ndarray:
        """Evaluate the rates, per unit of weight: (n_draws, n_pix)."""


class Posterior(Protocol):
    """What a fit knows of the surface: a Gaussian, a mixture, or whatever else answers the same.

    A posterior over periods is another, at one of its periods.
    """

    @property
    def weight(self) -> np.ndarray:
        """Probability of each draw of the hyperparameters: (n_part,); one at their optimum."""

    @property
    def parts(self) -> Sequence[Posterior]:
        """The posterior under each of these draws; itself where there is one."""

    def moments(self, x: np.ndarray, coords: np.ndarray | None) -> Prediction | MixturePrediction:
        """Return the distribution of the rate at pixels ``x`` (n_pix, n_feat), as measured."""

    def draws(self, n_draws: int, rng: np.random.Generator) -> RateDraws:
        """Draw whole rate surfaces."""

    def hyperparameters(self) -> dict[str, float]:
        """Return the hyperparameters by name: a mixture's, at the optimum."""

    def pack(self) -> Arrays:
        """Return the arrays that :meth:`AggregateModel.unpacked` makes it of."""


@dataclass(kw_only=True, eq=False, repr=False)
class AggregateModel(Estimator):
    """Base of the models of bags whose response follows an aggregate of rates.

    The defaults here and in the subclasses are those of ``model`` and ``fit`` in a configuration,
    which reads them (:mod:`pipeline.config.model_schema`).
    """

    sweep: ClassVar[Sweep] = "minibatch"

    likelihood: str = "poisson"
    link: str = "auto"
    area_effect: Literal["auto", True, False] = "auto"
    batch_bags: Count = 32
    max_epochs: Count = 300
    learning_rate: Positive = 0.05
    tolerance: Positive = 0.01
    seed: int = 0

    @property
    def numbers_areas(self) -> bool:
        """Whether the last column of the inputs is the number of each pixel's area."""
        return False

    @property
    def has_area_effect(self) -> bool:
        """Whether there is an effect of each bag, ``auto`` resolved."""
        if self.area_effect != "auto":
            return self.area_effect
        return find_likelihood(self.likelihood).area_effect_by_default

    @property
    def resolved_likelihood(self) -> Likelihood:
        """The likelihood of a bag's response, its area effect included."""
        return find_likelihood(self.likelihood, area_effect=self.has_area_effect)

    @property
    def link_name(self) -> str:
        """The link, ``auto`` resolved."""
        return LIKELIHOODS[self.likelihood].links[0] if self.link == "auto" else self.link

    @property
    def resolved_link(self) -> Link:
        """The link, ``auto`` resolved."""
        return find_link(self.link_name)

    def starting_scale(self, sample: Summary) -> tuple[Arrays, float, dict[str, float]]:
        """Return the constants of a fit, the level of ``Psi(f)``, and the likelihood's parameters.

        The constants: scalings, the base rate, and the units of the parameters that have units.
        """
        base, level, own = self.resolved_likelihood.starting_scale(sample)
        units = self.resolved_likelihood.units(sample)
        each = {unit_of(name): np.array([unit]) for name, unit in units.items()}
        return {**scaling_of(sample.of(0), base), **each}, level, own

    @override
    def check_params(self) -> None:
        super().check_params()
        links = find_likelihood(self.likelihood).links
        if self.link not in ("auto", *LINKS):
            msg = f"link: {self.link!r} is not one of auto, {', '.join(LINKS)}"
            raise ParameterError(msg)
        if self.link_name not in links:
            msg = (
                f"link: {self.link!r} does not go with the {self.likelihood} likelihood; "
                f"use {' or '.join(links)}"
            )
            raise ParameterError(msg)
        find_likelihood(self.likelihood, area_effect=self.has_area_effect)

    @abstractmethod
    def unpacked(self, params: Arrays) -> Posterior:
        """Return the posterior of packed arrays, such as ``params_``."""

    @property
    def posterior_(self) -> Posterior:
        """What the fit knows of the surface."""
        return self.unpacked(self.fitted_params())

    def predict_block(
        self, params: Arrays, x: np.ndarray, coords: np.ndarray | None
    ) -> Prediction | MixturePrediction:
        """Predict the rate at pixels ``x`` (n_pix, n_feat), ``coords`` (n_pix, n_axis) km."""
        return self.unpacked(params).moments(x, coords)

    def sample_functions(self, n_draws: int, rng: np.random.Generator) -> RateDraws:
        """Draw whole rate surfaces from the posterior; see :mod:`models.gp.draws`."""
        posterior = self.posterior_
        with one_blas_thread():  # products of few draws, for each draw of the hyperparameters
            return posterior.draws(n_draws, rng)

    def predict_pixels(
        self, x: np.ndarray, coords: np.ndarray | None = None
    ) -> Prediction | MixturePrediction:
        """Predict the rate of each pixel, per unit of weight.

        Parameters
        ----------
        x : (n_pix, n_feat)
            Covariates as measured.
        coords : (n_pix, n_axis), km
            Needed where the model was fitted with coordinates.
        """
        return self.predict_block(self.fitted_params(), as_array(x), coords)

    def predict_bags(
        self,
        bags: BagBlock,
        *,
        n_draws: int = 500,
        rng: np.random.Generator | None = None,
        draws: BagDraws | None = None,
        observed: bool = False,
    ) -> BagPrediction:
        """Return joint draws of the expected response of each bag.

        Parameters
        ----------
        bags : BagBlock
        n_draws : int
        rng : numpy Generator, optional
            Seeded by the model's ``seed`` where not given.
        draws : RateDraws, optional
            Functions drawn before: give the same ones for the blocks of one data set.
        observed : bool
            Whether the model was fitted to these bags and their responses (those that are not NaN):
            the draws are then conditioned on the part of each response that the posterior of the
            function cannot hold; see :mod:`models.aggregate.observed_draws`.
        """
        if draws is None:
            draws = self.sample_functions(n_draws, rng or np.random.default_rng(self.seed))
        likelihood, bag_data = of_block(self.resolved_likelihood, bags)
        draws = draws.counted(bags) if observed else draws
        drawn = draws.bag_counts(bags)
        if observed:
            drawn = drawn * draws.observed_factors(bags, drawn)
        return BagPrediction(drawn, likelihood, draws.params, bag_data)

    @override
    def named_hyperparameters(self) -> dict[str, float]:
        return self.posterior_.hyperparameters()


def learnt_parameters(likelihood: Likelihood, params: Arrays) -> dict[str, float]:
    """Return the mean of ``f`` and the likelihood's own parameters by name."""
    own = {
        name.removeprefix("log_"): float(np.exp(params[name][0])) for name in likelihood.parameters
    }
    return {"mean": float(params["mean"][0]), **own}

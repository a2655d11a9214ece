r"""Fit a model again without the responses of some areas, by regression between areas.

Around a fit to all areas the model is Gaussian regression between them
(:mod:`models.aggregate.area_evidence`). Without some responses the hyperparameters have another
posterior, which a chain explores. Under each of its draws the aggregates of the areas that were
left out have a joint normal distribution in closed form. No surface climbs, and no pixel is
visited. What is taken over from the fit to all areas is where the aggregates are expanded, to
first order: how the rate varies inside each area, and how surely it is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from models.aggregate.area_evidence import AreaEvidence
from models.aggregate.hyperparameter_chain import (
    KEPT_EACH,
    WARM_SHARE,
    Chain,
    explore,
    find_jumps,
    find_places,
)
from models.aggregate.refinement import EVIDENCE_PIXELS, MOST_CHAINED
from models.aggregate.surface_model import SurfaceModel
from models.backend.blas import one_blas_thread
from models.core.block import BagBlock
from models.core.errors import NumericalError
from models.core.protocol import State
from models.core.thinning import thinned_block
from models.gp.kernel_terms import whole_kernel
from models.likelihoods.censored import of_block
from models.likelihoods.prediction import BagPrediction

CHAIN = 6  # draws that the chain's length is for, as of a refit that only scores
KEPT = 60  # draws of the hyperparameters that predictions are a mixture over
N_EVALUATION = round((1 + WARM_SHARE) * KEPT_EACH * CHAIN) + KEPT  # of the evidence, for each fit


@dataclass(frozen=True)
class AreaFunctions:
    """Joint draws of areas.

    Attributes
    ----------
    areas : (n_area,) int64
        Their numbers, ascending.
    draws : (n_draws, n_area) float64
        Aggregates.
    params : dict of (n_draws, 1) float64
        The likelihood's parameters, logarithms.
    """

    areas: np.ndarray
    draws: np.ndarray
    params: dict[str, np.ndarray]


class AreaRefit:
    """A model that has not seen the responses of some areas, and predicts these.

    Parameters
    ----------
    model : SurfaceModel
    evidence : AreaEvidence
        Of the areas that are seen.
    unseen : (n,) int64
        Numbers of the others, ascending.
    phi : (n_draw, n_phi) float64
        Draws of the hyperparameters: mean, the kernel's parameters, the likelihood's own.
    """

    def __init__(
        self, model: SurfaceModel, evidence: AreaEvidence, unseen: np.ndarray, phi: np.ndarray
    ) -> None:
        self._model, self._evidence, self._unseen, self._phi = model, evidence, unseen, phi

    def sample_functions(self, n_draws: int, rng: np.random.Generator) -> AreaFunctions:
        """Draw the aggregates of the areas that are not seen, jointly.

        Raises
        ------
        NumericalError
            If the covariances are positive definite at no draw of the hyperparameters.
        """
        evidence, unseen = self._evidence, self._unseen
        every = [(x, evidence.given(x, unseen)) for x in self._phi[:, 1:]]
        known = [(x, given) for x, given in every if given is not None]
        if not known:
            message = "the covariances of areas are not positive definite"
            raise NumericalError(message)
        draws = np.empty((n_draws, unseen.size))
        params = {name: np.empty((n_draws, 1)) for name in evidence.own(known[0][0])}
        for number, (x, given) in enumerate(known[:n_draws]):
            rows = slice(number, None, len(known))
            draws[rows] = evidence.aggregate(given.sample(draws[rows].shape[0], rng), unseen)
            for name, value in evidence.own(x).items():
                params[name][rows] = value
        return AreaFunctions(unseen, draws, params)

    def predict_bags(self, bags: BagBlock, *, draws: AreaFunctions) -> BagPrediction:
        """Return joint draws of the expected response of areas that are not seen."""
        likelihood, bag_data = of_block(self._model.resolved_likelihood, bags)
        rows = np.searchsorted(draws.areas, bags.bag)
        return BagPrediction(draws.draws[:, rows], likelihood, draws.params, bag_data)


class AreaRefits:
    """Fits without some areas, around one fit to all of them.

    Parameters
    ----------
    model : SurfaceModel
        Fitted.
    state : State
        Its state: the end of its climb, with its curvature.
    evidence : AreaEvidence
        Of all areas, around it.
    """

    def __init__(self, model: SurfaceModel, state: State, evidence: AreaEvidence) -> None:
        likelihood, params = model.resolved_likelihood, state.params
        self._model, self._evidence = model, evidence
        self._inverse = state.memory["inverse"]
        self._phi = np.concatenate([params[name] for name in model.phi_names])
        kernel = whole_kernel(model._kernel(state.fixed))
        self._places = find_places(kernel, likelihood, state.fixed)
        self._jumps = find_jumps(evidence, self._phi, self._places)
        # Covariances are tabulated where the posterior is: processes that follow find them.
        self._explored(evidence, model.seed, CHAIN // 3)

    @classmethod
    @one_blas_thread()  # thousands of small products: threads of BLAS would wait for one another
    @np.errstate(all="ignore")
    def of(
        cls, model: SurfaceModel, state: State, blocks: Iterable[BagBlock], n_bag: int
    ) -> AreaRefits | None:
        """Return them; None where the fit's own draws are not of the areas' evidence.

        And where the mean rate of an area is not known to first order: without an area effect the
        square link's depends on how surely the area's own count tells it.

        Parameters
        ----------
        model, state
        blocks : iterable of BagBlock
            All bags that the model was fitted to, in the order of their numbers.
        n_bag : int
            How many they are.
        """
        if not 1 < n_bag <= MOST_CHAINED or "explained" not in state.memory:
            return None
        cap, scale = EVIDENCE_PIXELS // n_bag, (state.fixed["x_mean"], state.fixed["x_sd"])
        bags = BagBlock.join([thinned_block(each, cap, *scale, model.seed) for each in blocks])
        if bags.source is not None or bags.area is not None:
            return None  # not each bag is an area of its own
        evidence = AreaEvidence(model, state, bags)
        bent = model.link_name == "square" and evidence.moves
        return None if bent or not evidence.usable else cls(model, state, evidence)

    def _explored(self, evidence: AreaEvidence, seed: int, n: int = CHAIN) -> Chain | None:
        # The fit's own chain agreed with its bound; without some areas the optimum is another.
        inverse, agree, jumps = self._inverse, np.inf, self._jumps
        return explore(
            evidence, self._phi, inverse, self._places, seed, n, agree=agree, jumps=jumps
        )

    @one_blas_thread()
    @np.errstate(all="ignore")
    def without(self, unseen: np.ndarray, seed: int) -> AreaRefit | None:
        """Fit to all areas but some.

        Parameters
        ----------
        unseen : (n_area,) bool
        seed : int
            Of the chain.

        Returns
        -------
        AreaRefit
            Or None where fewer than two areas are left, or the evidence has no value at the fit.
        """
        evidence = self._evidence.without(unseen)
        if evidence.seen.size < 2:
            return None
        chain = self._explored(evidence, seed)
        if chain is None:
            return None
        rows = np.linspace(0, chain.phi.shape[0] - 1, KEPT).round().astype(np.int64)
        return AreaRefit(self._model, evidence, np.flatnonzero(unseen), chain.phi[rows])

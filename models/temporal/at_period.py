"""One period of a fitted model of space and time, as a model of its own.

What predicts, draws, evaluates and reports asks a model of one period, and does not know that there
are others. Where the kernel has effects of areas, the last column of the inputs is the number of
each pixel's area, -1 outside of all (:meth:`models.temporal.space_time.SpaceTime.inputs`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from models.aggregate.aggregate_model import AggregateModel, RateDraws
from models.aggregate.posterior import Gaussian, Mixture
from models.core.block import BagBlock
from models.core.errors import ParameterError
from models.core.protocol import Arrays, State, override
from models.likelihoods.mixture import MixturePrediction
from models.likelihoods.prediction import BagPrediction, Prediction
from models.temporal.sites import SITE
from models.temporal.space_time import SpaceTime

if TYPE_CHECKING:
    from models.temporal.posterior import PeriodDraws


class PeriodModel(SpaceTime):
    """A model at one time; made by :meth:`of`, not fitted.

    Attributes
    ----------
    time : float
    whole : SpaceTime
        The model of all periods.
    """

    time: float
    whole: SpaceTime
    _functions: RateDraws | None

    @classmethod
    def of(cls, whole: SpaceTime, time: float, drawn: PeriodDraws | None = None) -> PeriodModel:
        """Return a fitted model at one time.

        Parameters
        ----------
        whole : SpaceTime
        time : float
            Of the data, between them, or later: a forecast.
        drawn : PeriodDraws, optional
            Functions drawn at several times, this among them: those that it draws, so that its
            tables hang together with those of other periods.
        """
        model = cls(**whole.get_params())
        model.time, model.whole = float(time), whole
        model._functions = None if drawn is None else drawn.at(time)
        model.state_, model.history_ = whole.state_, whole.history_
        model.converged_ = whole.converged_
        return model

    @cached_property
    def params_(self) -> Arrays:
        """The packed posterior of this time; where functions are drawn already nobody asks."""
        return self.posterior_.pack()

    @cached_property
    def posterior_(self) -> Gaussian | Mixture:  # type: ignore[override]
        """The posterior of this time."""
        return self.whole.posterior_.at(self.time)

    @override
    def prediction_params(self, state: State) -> Arrays:
        return self.params_

    @override
    def predict_pixels(  # type: ignore[override]
        self, x: np.ndarray, coords: np.ndarray | None = None
    ) -> Prediction | MixturePrediction:
        return AggregateModel.predict_pixels(self, x, coords)

    @override
    def sample_functions(  # type: ignore[override]
        self, n_draws: int, rng: np.random.Generator
    ) -> RateDraws:
        """Draw rates of this time; those drawn with other periods, where there are as many."""
        own = self._functions
        return own if own and own.n_draws == n_draws else self.posterior_.draws(n_draws, rng)

    @override
    def predict_bags(self, bags: BagBlock, **how: Any) -> BagPrediction:
        """Return joint draws of the expected response of each bag, see :class:`AggregateModel`."""
        return AggregateModel.predict_bags(self, bags, **how)

    @override
    def hyperparameter_table(self) -> dict[str, dict[str, float]]:
        return self.whole.hyperparameter_table()

    @override
    def named_hyperparameters(self) -> dict[str, float]:
        return self.whole.named_hyperparameters()


def known_until(whole: SpaceTime, time: float) -> SpaceTime:
    """Return a model that knows the periods up to a time alone.

    Its hyperparameters, and what the counts of a period said when all were known, stay: a forecast
    from it is that of the filter.

    Raises
    ------
    ParameterError
        If there is no such period.
    """
    state = whole.fitted_state()
    n = int(np.searchsorted(state.fixed["times"], time, side="right"))
    if not n:
        first = state.fixed["times"][0]
        msg = f"period: nothing is known until {time}; give a time from {first}"
        raise ParameterError(msg)
    params = {k: v[:n] if k in SITE else v for k, v in state.params.items()}
    members = {k: v[:, :n] if k in SITE else v for k, v in state.members.items()}
    fixed = {**state.fixed, "times": state.fixed["times"][:n]}
    model = SpaceTime(**whole.get_params())
    model.state_ = replace(state, params=params, fixed=fixed, members=members, memory={})
    model.params_ = model.prediction_params(model.state_)
    model.history_, model.converged_ = whole.history_, whole.converged_
    return model


SpaceTime.one_period = PeriodModel.of

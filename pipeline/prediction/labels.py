"""Predictions of a classifier for areas, as arrays and as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pipeline.products.arrays import AreaArrays


@dataclass(frozen=True)
class LabelPredictions(AreaArrays):
    """Probabilities that areas are positive.

    Attributes
    ----------
    bag : (n_bag,) int64 array
        Number of each area in the bag store.
    y : (n_bag,) float64 array
        Observed labels, 0 or 1; NaN for areas without one.
    probability, sd : (n_bag,) float64 arrays
        Mean and standard deviation of the probability.
    lower, upper : (n_bag,) float64 arrays
        Central interval of the probability.
    """

    bag: np.ndarray
    y: np.ndarray
    probability: np.ndarray
    sd: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


@dataclass(frozen=True)
class LabelPredictor:
    """Predicts the labels of areas block by block (see :class:`Predictor`).

    Attributes
    ----------
    store : BagStore
    interval : float
        Central probability of the intervals.
    n_thread : int, optional
        Blocks predicted at the same time; results do not depend on it.
    """

    store: Any
    interval: float
    n_thread: int | None = None
    kind: type[LabelPredictions] = LabelPredictions

    @property
    def key(self) -> str:
        """Everything that the predictions depend on besides the model and the areas."""
        return f"labels {self.interval}"

    def predict(
        self,
        model: Any,
        keep: np.ndarray | None = None,
        number: int = 0,
        advance: Callable[[int], None] | None = None,
    ) -> LabelPredictions:
        """Predict the areas where ``keep`` (n_bag,) is true, all if not given."""
        del number
        low, high = (1 - self.interval) / 2, (1 + self.interval) / 2

        def predict(_: int, part: Any) -> LabelPredictions:
            predictions = model.predict_bags(part)
            return LabelPredictions(
                bag=np.asarray(part.bag, np.int64),
                y=np.asarray(part.y, np.float64),
                probability=predictions.mean,
                sd=predictions.sd,
                lower=predictions.quantile(low),
                upper=predictions.quantile(high),
            )

        return LabelPredictions.of_blocks(self.store, predict, keep, advance, self.n_thread)


def tabulate_labels(predictions: LabelPredictions, ids: list[str]) -> pd.DataFrame:
    """Return the table of ``areas.csv``, one row an area, indexed by id.

    Returns
    -------
    DataFrame
        ``observed`` (0 or 1), ``probability``, ``probability_sd``, ``probability_lower``,
        ``probability_upper``.
    """
    return pd.DataFrame(
        {
            "observed": predictions.y,
            "probability": predictions.probability,
            "probability_sd": predictions.sd,
            "probability_lower": predictions.lower,
            "probability_upper": predictions.upper,
        },
        index=pd.Index([ids[bag] for bag in predictions.bag], name="id"),
    )

"""Evaluation tasks: one for models of counts, one for models of labels.

A task predicts and scores areas, and compares them with a constant and with a simulated truth;
:mod:`pipeline.evaluation.stage` calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from pipeline.config.response_words import ResponseWords
from pipeline.config.schema import Config
from pipeline.evaluation.cross_validation import (
    CountPredictor,
    Predictor,
    hold_out_constant,
    hold_out_mean,
)
from pipeline.evaluation.label_scores import label_scores
from pipeline.evaluation.scores import (
    LEVELS,
    moment_log_density,
    pit_histogram,
    point_scores,
    predictive_scores,
)
from pipeline.evaluation.truth import compare_labels_with_truth, compare_with_truth
from pipeline.prediction.areas import AreaDraws, draw_areas
from pipeline.prediction.labels import LabelPredictions, LabelPredictor

Advance = Callable[[int], None]
Scores = dict[str, Any]

_ABOUT_FOLDS = {
    "area": "areas held out at random, or by the folds file",
    "block": "compact regions held out whole (k-means of the areas' centres)",
}

_ABOUT_COUNTS = {
    "counts": "{area_total} of an area; expected counts are means over joint draws",
    "rates": "{total} per unit of exposure ({exposure})",
    "log_counts": "natural logarithms of counts and expectations plus one half",
    "nll": "minus the log predictive density of a count, mean over areas, nats",
    "nll_moments": "the same for counts whose expectation has a gamma distribution with the "
    "mean and variance of the draws: not ruled by the one draw nearest to an outlying count",
    "coverage": "share of observations inside central predictive intervals, by the randomised "
    "probability integral transform averaged over its randomisation: nominal for a calibrated "
    "prediction however small the counts; `closed` is the share inside the closed interval, "
    "which covers too much where counts are small",
    "constant": "one rate for all training areas, negative binomial counts around it",
    **_ABOUT_FOLDS,
}

_ABOUT_VALUES = {
    "counts": "{area_total} of an area; expected values are means over joint draws",
    "rates": "{totals} per unit of exposure ({exposure})",
    "nll": "minus the log predictive density of a value, mean over areas, nats",
    "coverage": "share of observations inside central predictive intervals",
    "constant": "one rate for all training areas, normal rates around it",
    **_ABOUT_FOLDS,
}

_ABOUT_LABELS = {
    "auc": "area under the receiver operating characteristic: probability that a positive is "
    "ranked above a negative",
    "accuracy": "share of labels that a probability above 0.5 gets right; f1 likewise",
    "log_loss": "minus the log probability of the label, mean, nats",
    "brier": "mean squared difference of probability and label",
    "calibration": "difference of the share of positives and the probability said, mean over "
    "bins of equally many",
    "constant": "the share of positives among the training areas",
    **_ABOUT_FOLDS,
}


class EvaluationTask(Protocol):
    """Evaluation of the models of one kind of response."""

    @property
    def about(self) -> dict[str, str]:
        """Explanations of the terms in the report."""

    @property
    def predictor(self) -> Predictor[Any]:
        """Predictor of areas."""

    def in_sample(self, model: Any, advance: Advance) -> Any:
        """Predict the areas that the model was fitted to."""

    def score(self, predictions: Any) -> Scores:
        """Score predictions of areas."""

    def constant(self, fold: np.ndarray) -> Any:
        """Predict each fold from the training areas' responses alone, without covariates."""

    def fold_row(self, predictions: Any, constant: Any) -> Scores:
        """Return the scores of one fold."""

    def truth(self, model: Any, source: Any, advance: Advance) -> Scores | None:
        """Compare the map with the truth; None if the model predicts no pixels."""

    def headline(self, report: Scores) -> Scores:
        """Return the headline numbers of a report."""


def evaluation_task(config: Config, store: Any) -> EvaluationTask:
    """Return the task for what the configured model learns from."""
    if config.labels is not None:
        return LabelTask(store, config.output.interval)
    return CountTask(config, store)


@dataclass(frozen=True)
class CountTask:
    """Evaluation of models of counts, and of values that are no counts.

    Attributes
    ----------
    config : Config
    store : BagStore
    """

    config: Config
    store: Any

    @property
    def about(self) -> dict[str, str]:
        """See :class:`EvaluationTask`."""
        words = ResponseWords.of(self.config).placeholders
        about = _ABOUT_COUNTS if self._counts else _ABOUT_VALUES
        return {name: text.format(**words) for name, text in about.items()}

    @property
    def _counts(self) -> bool:
        return self.config.model.response.counts

    @property
    def predictor(self) -> CountPredictor:
        """See :class:`EvaluationTask`."""
        return CountPredictor(self.store, self.config.output.draws, self.config.evaluate.seed)

    @property
    def _levels(self) -> list[float]:
        return sorted({*LEVELS, self.config.output.interval})

    def in_sample(self, model: Any, advance: Advance) -> AreaDraws:
        """See :class:`EvaluationTask`."""
        n_draws, seed = self.config.output.draws, self.config.fit.seed
        return draw_areas(model, self.store, n_draws, seed, advance=advance)

    def score(self, predictions: AreaDraws) -> Scores:
        """See :class:`EvaluationTask`."""
        return score(predictions, self._levels, counts=self._counts)

    def constant(self, fold: np.ndarray) -> AreaDraws:
        """See :class:`EvaluationTask`."""
        n_draws, seed = self.config.output.draws, self.config.evaluate.seed
        store = self.store
        hold_out = hold_out_constant if self._counts else hold_out_mean
        return hold_out(fold, store.y, np.asarray(store.bag_weight), n_draws, seed)

    def fold_row(self, predictions: AreaDraws, constant: AreaDraws) -> Scores:
        """See :class:`EvaluationTask`."""
        interval = self.config.output.interval
        own = score(predictions, [interval], counts=self._counts)
        return {
            "n_areas": own["n_areas"],
            "nll": own["nll"],
            "nll_constant": float(-constant.log_density.mean()),
            "rates_rmse": own["rates"]["rmse"],
            "rates_correlation": own["rates"]["correlation"],
            "coverage": own["intervals"][f"{interval:g}"]["coverage"],
        }

    def truth(self, model: Any, source: Any, advance: Advance) -> Scores | None:
        """See :class:`EvaluationTask`: rates are compared by their logarithms."""
        if not self.config.model.response.positive:
            return None
        return compare_with_truth(model, self.store, source, self._levels, advance=advance)

    def headline(self, report: Scores) -> Scores:
        """See :class:`EvaluationTask`."""
        result = {
            "n_areas": report["n_areas"],
            "in_sample_rate_correlation": report["in_sample"]["rates"]["correlation"],
        }
        for scheme, held_out in report["held_out"].items():
            if "model" in held_out:
                own = held_out["model"]
                result[f"{scheme}_nll"] = own["nll"]
                result[f"{scheme}_nll_constant"] = held_out["constant"]["nll"]
                result[f"{scheme}_rate_correlation"] = own["rates"]["correlation"]
                result[f"{scheme}_coverage_90"] = own["intervals"]["0.9"]["coverage"]
        if "truth" in report:
            pixels = report["truth"]["pixels"]
            result["truth_log_rate_correlation"] = pixels["log_rate"]["correlation"]
            result["truth_log_rate_rmse"] = pixels["log_rate"]["rmse"]
            result["truth_coverage_90"] = pixels["coverage"]["0.9"]
        return result


@dataclass(frozen=True)
class LabelTask:
    """Evaluation of classifiers.

    Attributes
    ----------
    store : BagStore
    interval : float
        Central probability of the intervals.
    """

    store: Any
    interval: float
    about: ClassVar[dict[str, str]] = _ABOUT_LABELS

    @property
    def predictor(self) -> LabelPredictor:
        """See :class:`EvaluationTask`."""
        return LabelPredictor(self.store, self.interval)

    def in_sample(self, model: Any, advance: Advance) -> LabelPredictions:
        """See :class:`EvaluationTask`."""
        return self.predictor.predict(model, advance=advance)

    def score(self, predictions: LabelPredictions) -> Scores:
        """See :class:`EvaluationTask`."""
        return label_scores(predictions.y, predictions.probability)

    def constant(self, fold: np.ndarray) -> LabelPredictions:
        """See :class:`EvaluationTask`."""
        parts = []
        for number in range(int(fold.max()) + 1):
            bag, trained = np.flatnonzero(fold == number), self.store.y[fold != number]
            share = np.full(bag.shape, (trained.sum() + 0.5) / (trained.size + 1.0))
            nothing = np.zeros(bag.shape)
            parts.append(LabelPredictions(bag, self.store.y[bag], share, nothing, share, share))
        return LabelPredictions.concatenate(parts)

    def fold_row(self, predictions: LabelPredictions, constant: LabelPredictions) -> Scores:
        """See :class:`EvaluationTask`."""
        own = self.score(predictions)
        return {
            "n_areas": own["n"],
            **{name: own[name] for name in ("positive", "auc", "accuracy", "log_loss")},
            "log_loss_constant": self.score(constant)["log_loss"],
        }

    def truth(self, model: Any, source: Any, advance: Advance) -> Scores | None:
        """See :class:`EvaluationTask`."""
        if "pixels" not in model.predicts:
            return None
        return compare_labels_with_truth(model, self.store, source, advance=advance)

    def headline(self, report: Scores) -> Scores:
        """See :class:`EvaluationTask`."""
        result = {"n_areas": report["n_areas"], "in_sample_auc": report["in_sample"]["auc"]}
        for scheme, held_out in report["held_out"].items():
            if "model" in held_out:
                for name in ("auc", "accuracy", "log_loss"):
                    result[f"{scheme}_{name}"] = held_out["model"][name]
                result[f"{scheme}_log_loss_constant"] = held_out["constant"]["log_loss"]
        if "truth" in report:
            result["truth_auc"] = report["truth"]["pixels"]["auc"]
            result["truth_auc_of_area_labels"] = report["truth"]["area_label"]["auc"]
        return result


def score(draws: AreaDraws, levels: list[float], *, counts: bool = True) -> Scores:
    """Return every score of areas, as :mod:`pipeline.evaluation.scores` names them.

    Scores that only counts have (the Poisson deviance, logarithms of counts, the density by
    moments) are left out of other responses.
    """
    moments = {"nll_moments": float(-moment_log_density(draws.y, draws.expected).mean())}
    return {
        "n_areas": int(draws.y.shape[0]),
        **point_scores(draws.y, draws.mean, draws.people, counts=counts),
        **predictive_scores(draws.y, draws.counts, draws.log_density, levels),
        **(moments if counts else {}),
        "pit_histogram": pit_histogram(draws.counts, draws.y),
    }

"""Evaluation tasks: one for models of counts, one for models of labels.

A task predicts and scores areas, and compares them with a constant and with a simulated truth;
:mod:`pipeline.evaluation.stage` calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from models.likelihoods.likelihood import Likelihood
from models.likelihoods.probability import label_log_density
from models.likelihoods.registry import find_likelihood
from pipeline.config.schema import Config
from pipeline.evaluation.about import ABOUT
from pipeline.evaluation.constant import Areas, hold_out_constant, hold_out_share
from pipeline.evaluation.cross_validation import CountPredictor, Predictor
from pipeline.evaluation.label_scores import label_scores, unranked, weighted_label_scores
from pipeline.evaluation.points import point_scores
from pipeline.evaluation.posterior import Posterior, draw_posterior
from pipeline.evaluation.scores import (
    LEVELS,
    moment_log_density,
    people_scores,
    pit_histogram,
    predictive_scores,
)
from pipeline.evaluation.truth import compare_labels_with_truth, compare_with_truth
from pipeline.evaluation.verdict import paired_gain
from pipeline.prediction.labels import LabelPredictions, LabelPredictor
from pipeline.products.area_draws import read_area_draws
from pipeline.products.areas import AreaDraws

Advance = Callable[[int], None]
Scores = dict[str, Any]


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

    def score_constant(self, constant: Any) -> Scores:
        """Score the constant, which is the same for all areas of a fold."""

    def log_density(self, predictions: Any) -> np.ndarray:
        """Return the log predictive density of each area's response, (n,), nats."""

    def posterior(self, model: Any, advance: Advance, n_thread: int | None = None) -> Any:
        """Draw the posterior of every area once; None where areas have labels."""

    def unusable(self, fold: np.ndarray) -> str:
        """Return why folds (n_bag,) cannot be held out; empty if they can."""

    def constant(self, fold: np.ndarray, unseen: np.ndarray | None = None) -> Any:
        """Predict each fold by one rate, fitted to the areas that it has seen."""

    def fold_row(self, predictions: Any, constant: Any) -> Scores:
        """Return the scores of one fold."""

    def truth(self, model: Any, source: Any, advance: Advance) -> Scores | None:
        """Compare the map with the truth; None if the model predicts no pixels."""

    def headline(self, report: Scores) -> Scores:
        """Return the headline numbers of a report."""


def evaluation_task(config: Config, store: Any) -> EvaluationTask:
    """Return the task for the configured response."""
    return TASKS[config.response_kind.scores](config, store)


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
        response = self.config.response_kind
        law = self._areas.fit(self._likelihood, np.ones(self.store.n_bag, bool)).about
        own = {name: response.fill(text) for name, text in ABOUT[response.scores].items()}
        return {**own, "constant": f"{law}, fitted to the training areas of each fold"}

    @property
    def _likelihood(self) -> Likelihood:
        spec = self.config.model
        effect = spec.has_area_effect and spec.response.takes_area_effect
        return find_likelihood(spec.likelihood, area_effect=effect)

    @cached_property
    def _areas(self) -> Areas:
        return Areas.of(self.store, self._likelihood)

    @property
    def _counts(self) -> bool:
        return self.config.response_kind.countable

    @property
    def predictor(self) -> CountPredictor:
        """See :class:`EvaluationTask`."""
        return CountPredictor(self.store, self.config.output.draws, self.config.evaluate.seed)

    @property
    def _levels(self) -> list[float]:
        return sorted({*LEVELS, self.config.output.interval})

    def in_sample(self, model: Any, advance: Advance) -> AreaDraws:
        """See :class:`EvaluationTask`."""
        return self.posterior(model, advance).areas

    def posterior(self, model: Any, advance: Advance, n_thread: int | None = None) -> Posterior:
        """See :class:`EvaluationTask`."""
        n_draws, seed, expected = self.config.output.draws, self.config.fit.seed, None
        if self.config.series is None:  # what predict drew
            expected = read_area_draws(Path(self.config.output.dir), self.store, seed, n_draws)
        return draw_posterior(model, self.store, n_draws, seed, advance, n_thread, expected)

    def unusable(self, fold: np.ndarray) -> str:
        """See :class:`EvaluationTask`."""
        del fold
        return ""

    def score(self, predictions: AreaDraws) -> Scores:
        """See :class:`EvaluationTask`."""
        return score(predictions, self._levels, counts=self._counts)

    def score_constant(self, constant: AreaDraws) -> Scores:
        """See :class:`EvaluationTask`."""
        return self.score(constant)

    def log_density(self, predictions: AreaDraws) -> np.ndarray:
        """See :class:`EvaluationTask`."""
        return predictions.log_density

    def constant(self, fold: np.ndarray, unseen: np.ndarray | None = None) -> AreaDraws:
        """See :class:`EvaluationTask`."""
        n_draws, seed = self.config.output.draws, self.config.evaluate.seed
        return hold_out_constant(self._likelihood, self._areas, fold, n_draws, seed, unseen)

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
        one_rate = self._areas.fit(self._likelihood, np.ones(self.store.n_bag, bool)).rate
        return compare_with_truth(
            model, self.store, source, self._levels, one_rate=one_rate, advance=advance
        )

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
                result[f"{scheme}_better_than_constant"] = held_out["gain"]["answer"]
                result[f"{scheme}_rate_correlation"] = own["rates"]["correlation"]
                result[f"{scheme}_coverage_90"] = own["intervals"]["0.9"]["coverage"]
        covered = report.get("calibration", {}).get("pixels", {}).get("coverage", {})
        if covered:
            result["simulated_coverage_90"] = covered["0.9"]
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
    with_people : bool
        Whether pixels have people, so that scores by people mean something.
    """

    store: Any
    interval: float
    with_people: bool = False
    about: ClassVar[dict[str, str]] = ABOUT["labels"]

    @classmethod
    def of(cls, config: Config, store: Any) -> LabelTask:
        """Return the task of a configuration."""
        return cls(store, config.output.interval, config.population is not None)

    @property
    def predictor(self) -> LabelPredictor:
        """See :class:`EvaluationTask`."""
        return LabelPredictor(self.store, self.interval)

    def in_sample(self, model: Any, advance: Advance) -> LabelPredictions:
        """See :class:`EvaluationTask`."""
        return self.predictor.predict(model, advance=advance)

    def score(self, predictions: LabelPredictions) -> Scores:
        """See :class:`EvaluationTask`."""
        y, p = predictions.y, predictions.probability
        result = label_scores(y, p)
        if self.with_people:
            people = np.asarray(self.store.bag_weight)[predictions.bag]
            result["by_people"] = weighted_label_scores(y, p, people)
        return result

    def score_constant(self, constant: LabelPredictions) -> Scores:
        """See :class:`EvaluationTask`: it ranks nothing, whatever folds make of it together."""
        return unranked(self.score(constant))

    def unusable(self, fold: np.ndarray) -> str:
        """See :class:`EvaluationTask`: a fit needs both labels."""
        y = self.store.y
        alone = [k for k in range(int(fold.max()) + 1) if np.unique(y[fold != k]).size < 2]
        if not alone:
            return ""
        return (
            f"without fold {alone[0]} all areas have the same label; give fewer folds, or folds "
            "that share the positives out"
        )

    def log_density(self, predictions: LabelPredictions) -> np.ndarray:
        """See :class:`EvaluationTask`."""
        return label_log_density(predictions.y, predictions.probability)

    def posterior(self, model: Any, advance: Advance, n_thread: int | None = None) -> None:
        """See :class:`EvaluationTask`."""
        del model, advance, n_thread

    def constant(self, fold: np.ndarray, unseen: np.ndarray | None = None) -> LabelPredictions:
        """See :class:`EvaluationTask`."""
        return hold_out_share(fold, self.store.y, unseen)

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
                result[f"{scheme}_better_than_constant"] = held_out["gain"]["answer"]
        if "truth" in report:
            result["truth_auc"] = report["truth"]["pixels"]["auc"]
            result["truth_auc_of_area_labels"] = report["truth"]["area_label"]["auc"]
        return result


#: Evaluation by :attr:`pipeline.responses.response.Response.scores`.
TASKS: dict[str, Callable[[Config, Any], EvaluationTask]] = {
    "counts": CountTask,
    "values": CountTask,
    "labels": LabelTask.of,
}


def compare_held_out(
    evaluation: EvaluationTask, predictions: Any, constant: Any, groups: np.ndarray | None = None
) -> Scores:
    """Score held-out predictions beside those of one rate for the same areas.

    Parameters
    ----------
    evaluation : EvaluationTask
    predictions, constant
        Of the same areas, in one order.
    groups : (n,) int array, optional
        Areas that fail together (:func:`pipeline.evaluation.verdict.paired_gain`).

    Returns
    -------
    dict
        ``model``, ``constant`` and ``gain``.
    """
    if not np.array_equal(predictions.bag, constant.bag):
        message = "the map and the constant predict other areas, or in another order"
        raise RuntimeError(message)
    gain = paired_gain(
        evaluation.log_density(predictions), evaluation.log_density(constant), groups
    )
    return {
        "model": evaluation.score(predictions),
        "constant": evaluation.score_constant(constant),
        "gain": gain,
    }


def score(draws: AreaDraws, levels: list[float], *, counts: bool = True) -> Scores:
    """Return every score of areas, as :mod:`pipeline.evaluation.scores` names them.

    Scores that only counts have (the Poisson deviance, logarithms of counts, the density by
    moments) are left out of other responses; those that assume Poisson noise are left out of
    positives among people tested as well. A suppressed count has the log probability of its
    interval for a log density, and a transform; errors, CRPS and the like are of the others.
    """
    hidden = draws.suppressed
    seen = draws.select(~hidden) if hidden.any() else draws
    points = point_scores(seen.y, seen.mean, seen.counts, seen.exposure, counts=counts)
    nll = float(-moment_log_density(seen.y, seen.expected).mean()) if seen.y.size else np.nan
    moments = {"nll_moments": nll}
    if np.isfinite(draws.tested).any():  # positives among the tested are no Poisson counts
        points.pop("poisson_deviance", None)
        moments = {}
    return {
        "n_areas": int(draws.y.shape[0]),
        **({"n_suppressed": int(hidden.sum())} if hidden.any() else {}),
        **points,
        **predictive_scores(draws.least, draws.counts, draws.log_density, levels, draws.most),
        "by_people": people_scores(
            draws.least,
            draws.mean,
            draws.exposure,
            draws.people,
            draws.counts,
            draws.log_density,
            levels,
            draws.most,
        ),
        **(moments if counts else {}),
        "pit_histogram": pit_histogram(draws.counts, draws.least, most=draws.most),
    }

"""Fits within a fit: predictions of bags that a model was fitted without.

Settings are chosen and probabilities recalibrated by them, on folds with equal shares of each
label. Who fits, and where the bags are, is a :class:`Fitter`'s business: in memory, or in a store
and on the workers of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from scipy.special import expit

from models.core.block import BagBlock
from models.core.errors import NumericalError
from models.likelihoods.probability import label_log_density
from models.mil.data.calibration import Recalibration, mean_logit
from models.training.folds import stratified_folds

N_FOLD = 5
MOST_JUDGED = 1000  # bags that settings are compared on
Settings = Mapping[str, Any]
Classifier = Any  # models.mil.data.inner_fits.InnerFits, which imports this module
Rounds = Sequence[Sequence[Settings]]
OnFit = Callable[[], None]
Score = Callable[[Any, int], np.ndarray]


class Fitter(Protocol):
    """Fits classifiers to some bags of one data set, and predicts others of them."""

    @property
    def y(self) -> np.ndarray:
        """Labels: (n_bag,), 0 or 1."""

    @property
    def sizes(self) -> np.ndarray:
        """Instances of each bag: (n_bag,)."""

    def fit(self, model: Classifier, keep: np.ndarray | None, name: str) -> None:
        """Fit, without inner folds, to the bags where ``keep`` (n_bag,) is true; all where None.

        ``name`` tells this fit from the others of the same call.
        """

    def logits(self, model: Classifier, keep: np.ndarray) -> np.ndarray:
        """Return the logits of the mean probabilities of the bags where ``keep`` is true."""

    def left_out(self, model: Classifier) -> np.ndarray:
        """Return the log probability of each label given the other bags: (n_bag,), nats."""

    def counted(self, n_step: int, n_fit: int = 1) -> AbstractContextManager[Callable[[], None]]:
        """Open a task of steps of ``n_fit`` inner fits; what it gives is called after each step."""


@dataclass
class BagsFitter:
    """Fits to bags in memory.

    Attributes
    ----------
    bags : BagBlock
    how : dict
        Arguments of each fit.
    """

    bags: BagBlock
    how: dict[str, Any] = field(default_factory=dict)

    @property
    def y(self) -> np.ndarray:
        """See :class:`Fitter`."""
        return self.bags.y

    @property
    def sizes(self) -> np.ndarray:
        """See :class:`Fitter`."""
        return np.diff(self.bags.offsets)

    def fit(self, model: Classifier, keep: np.ndarray | None, name: str) -> None:
        """See :class:`Fitter`."""
        del name
        model.fit_once(self.bags if keep is None else self.bags.select(keep), **self.how)

    def logits(self, model: Classifier, keep: np.ndarray) -> np.ndarray:
        """See :class:`Fitter`."""
        return mean_logit(model.predict_bags(self.bags.select(keep)))

    def left_out(self, model: Classifier) -> np.ndarray:
        """See :class:`Fitter`."""
        return model.left_out_log_probability(self.bags)

    def counted(self, n_step: int, n_fit: int = 1) -> AbstractContextManager[Callable[[], None]]:
        """See :class:`Fitter`: nobody watches."""
        del n_step, n_fit
        return nullcontext(lambda: None)


@dataclass(frozen=True)
class Candidate:
    """Settings, scored by bags that the fit has not seen, or as if it had not.

    Attributes
    ----------
    settings : dict
        What it changes of the model.
    each : (n,) float64
        Log probability of each label that was judged, nats; NaN where a fit failed.
    model : Classifier
        With these settings.
    """

    settings: Settings
    each: np.ndarray
    model: Classifier

    @property
    def log_score(self) -> float:
        """Mean over the bags; minus infinity where a fit failed."""
        mean = float(self.each.mean())
        return mean if np.isfinite(mean) else -np.inf


def best_of(candidates: Sequence[Candidate]) -> int:
    """Return the number of the highest log score; the first of equals."""
    best = int(np.argmax([each.log_score for each in candidates]))
    if not np.isfinite(candidates[best].log_score):
        msg = "no candidate could be fitted; scale the features, or choose the settings yourself"
        raise NumericalError(msg)
    return best


def table(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Return a row for each candidate, see :attr:`classifier.Classifier.selection_`."""
    best = candidates[best_of(candidates)]
    rows = []
    for one in candidates:
        error = float((one.each - best.each).std() / np.sqrt(one.each.size))
        known = np.isfinite(one.log_score)
        rows.append(
            {
                "settings": dict(one.settings),
                "log_score": one.log_score if known else None,
                "error": error if known else None,
                "chosen": one is best,
            }
        )
    return rows


def inner_folds(y: np.ndarray, n_fold: int, seed: int) -> np.ndarray | None:
    """Deal bags to folds, so that no fold's fit misses a label: (n_bag,); None where it must."""
    fewest = int(min((y > 0.5).sum(), (y <= 0.5).sum()))
    return stratified_folds(y, min(n_fold, fewest), seed) if fewest > 1 else None


def judged_folds(y: np.ndarray, fold: np.ndarray, seed: int) -> np.ndarray:
    """Return folds of at most MOST_JUDGED bags, -1 for the others: (n_bag,).

    Candidates are compared on so many; more would change the choice little.
    """
    if y.shape[0] <= MOST_JUDGED:
        return fold
    part = stratified_folds(y, -(-y.shape[0] // MOST_JUDGED), seed + 1)
    return np.where(part == 0, fold, -1)


def held_out_logits(
    model: Classifier,
    fitter: Fitter,
    fold: np.ndarray,
    name: str,
    on_fit: Callable[[], None],
) -> np.ndarray:
    """Return the logit of each bag's probability by a fit without its fold: (n_bag,).

    Bags of fold -1 are left out of everything; theirs is NaN.
    """
    out = np.full(fold.shape[0], np.nan)
    for number in range(int(fold.max()) + 1):
        fresh = model.like(calibrate="none", tune=False)
        fitter.fit(fresh, (fold != number) & (fold >= 0), f"{name}-{number}")
        out[fold == number] = fitter.logits(fresh, fold == number)
        on_fit()
    return out


def choose(
    model: Classifier, rounds: Sequence[Sequence[Settings]], score: Score, on_fit: OnFit
) -> list[Candidate]:
    """Score candidates; each round changes some settings of the best so far.

    Parameters
    ----------
    model : Classifier
    rounds : sequence of sequences of dict
        See :meth:`models.mil.data.classifier.Classifier.automatic_settings`.
    score : callable
        From a model and its number to the log probabilities of the labels (n_bag,), nats; NaN where
        a label is not judged.
    on_fit : callable
        Called after each candidate.
    """
    found: list[Candidate] = []
    base = {name: value for one in rounds for name, value in one[0].items()}
    for one in rounds:
        for settings in ({**base, **change} for change in one):
            if all(settings != known.settings for known in found):
                candidate = model.like(**settings)
                try:
                    each = score(candidate, len(found))
                except NumericalError:
                    each = np.full(1, np.nan)
                found.append(Candidate(settings, each, candidate))
                on_fit()
        base = dict(found[best_of(found)].settings)
    return found


def _by_weights(model: Classifier, rounds: Rounds, fitter: Fitter) -> list[Candidate]:
    """Choose by what is said of left-out bags: each candidate is fitted once, to all bags."""

    def score(candidate: Classifier, number: int) -> np.ndarray:
        fitter.fit(candidate, None, f"choice-{number}")
        return fitter.left_out(candidate)

    with fitter.counted(_n_candidate(rounds)) as on_fit:
        return choose(model, rounds, score, on_fit)


def _by_folds(
    model: Classifier, rounds: Rounds, fitter: Fitter, fold: np.ndarray
) -> tuple[list[Candidate], dict[int, np.ndarray]]:
    """Choose by bags that fits have not seen; return the logits of each candidate too."""
    judged = judged_folds(fitter.y, fold, model.seed)
    logits: dict[int, np.ndarray] = {}

    def score(candidate: Classifier, number: int) -> np.ndarray:
        out = held_out_logits(candidate, fitter, judged, f"choice-{number}", lambda: None)
        logits[id(candidate)] = out
        return label_log_density(fitter.y, expit(out))[judged >= 0]

    with fitter.counted(_n_candidate(rounds), int(judged.max()) + 1) as on_fit:
        return choose(model, rounds, score, on_fit), logits


def _n_candidate(rounds: Rounds) -> int:
    return 1 + sum(len(one) - 1 for one in rounds)


def fit_with_inner_folds(model: Classifier, fitter: Fitter) -> Classifier:
    """Choose what the model leaves open, fit it to all bags, and recalibrate it where wanted.

    Parameters
    ----------
    model : Classifier
        Its fitted attributes are set in place.
    fitter : Fitter

    Returns
    -------
    Classifier
        What was fitted to all bags: the model, or one like it with the chosen settings.
    """
    rounds: Rounds
    if model.tune:
        grid = model.tuning_settings(float(fitter.sizes.mean()))
        rounds = (grid,) if grid else ()
    else:
        rounds = model.automatic_settings(float(fitter.sizes.mean()))
    by_folds = bool(rounds) and (model.tune or not model.weighs)
    fold = None
    if by_folds or model.recalibrates:
        fold = inner_folds(fitter.y, N_FOLD, model.seed)
    final, logits = model, None
    candidates: list[Candidate] = []
    if rounds and (fold is not None or not by_folds):
        if by_folds and fold is not None:
            candidates, known = _by_folds(model, rounds, fitter, fold)
        else:
            candidates, known = _by_weights(model, rounds, fitter), {}
        final = candidates[best_of(candidates)].model
        found = known.get(id(final))
        logits = found if found is not None and np.isfinite(found).all() else None
    if not hasattr(final, "state_") or final is model or by_folds:
        fitter.fit(final, None, "all")
    model.take(final)
    model.selection_ = table(candidates) if candidates else []
    if model.recalibrates and fold is not None:
        if logits is None:
            with fitter.counted(int(fold.max()) + 1) as on_fit:
                logits = held_out_logits(final, fitter, fold, "fold", on_fit)
        model.set_recalibration(Recalibration.fit(fitter.y, logits, fitter.sizes))
    return final

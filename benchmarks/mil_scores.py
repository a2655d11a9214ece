"""Scores of held-out probabilities, by scikit-learn: a second route beside our evaluation's.

AUC and average precision are means over the folds of a repetition. All others pool the held-out
bags of a repetition:

* accuracy at 0.5, and at the threshold that is best for these bags (so that the gap says what the
  probabilities' level costs);
* log loss in nats, probabilities clipped at 1e-12;
* Brier score, the mean of ``(p - y)^2``;
* calibration error: eight bins of equal width, ``sum_b n_b |mean p - share of positives| / n``
  (Naeini et al. 2015);
* what chance alone gives: the mean gap between the two accuracies, and the mean calibration error,
  of labels that are drawn from the probabilities themselves. No forecast of these probabilities
  can be expected to score less.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    log_loss,
    roc_auc_score,
    roc_curve,
)

N_BIN, SMALLEST = 8, 1e-12
N_CHANCE = 200


def pooled_scores(y: np.ndarray, p: np.ndarray) -> dict[str, float]:
    """Score probabilities ``p`` (n,) of labels ``y`` (n,), 0 or 1, both of which occur."""
    y, p = np.asarray(y) > 0.5, np.asarray(p, np.float64)
    both = np.clip(np.column_stack([1.0 - p, p]), SMALLEST, 1.0)
    return {
        "accuracy": float(accuracy_score(y, p > 0.5)),
        "best_accuracy": best_accuracy(y, p),
        "log_loss": float(log_loss(y, both, labels=[False, True])),
        "brier": float(brier_score_loss(y, p)),
        "calibration_error": calibration_error(y, p),
        **chance_scores(p),
    }


def chance_scores(p: np.ndarray) -> dict[str, float]:
    """Score labels drawn from the probabilities: means over ``N_CHANCE`` draws."""
    gaps, errors, rng = [], [], np.random.default_rng(0)
    while len(gaps) < N_CHANCE:
        y = rng.random(p.size) < p
        if 0 < int(y.sum()) < y.size:
            gaps.append(best_accuracy(y, p) - accuracy_score(y, p > 0.5))
            errors.append(calibration_error(y, p))
    return {
        "chance_gap": float(np.mean(gaps)),
        "chance_calibration_error": float(np.mean(errors)),
    }


def best_accuracy(y: np.ndarray, p: np.ndarray) -> float:
    """Return the accuracy at the best of all thresholds."""
    false, true, _ = roc_curve(y, p, drop_intermediate=False)
    return float(np.max(true * y.sum() + (1.0 - false) * (~y).sum()) / y.size)


def calibration_error(y: np.ndarray, p: np.ndarray) -> float:
    """Return the expected calibration error with eight bins of equal width."""
    share, predicted = calibration_curve(y, p, n_bins=N_BIN)
    inner = np.linspace(0.0, 1.0, N_BIN + 1)[1:-1]
    count = np.bincount(np.searchsorted(inner, p), minlength=N_BIN)
    return float(count[count > 0] @ np.abs(share - predicted) / y.size)


def repetition_scores(folds: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Score the folds ``(y, p)`` of a repetition."""
    y, p = (np.concatenate(parts) for parts in zip(*folds, strict=True))
    auc = np.mean([roc_auc_score(*fold) for fold in folds])
    precision = np.mean([average_precision_score(*fold) for fold in folds])
    return {"auc": float(auc), "average_precision": float(precision), **pooled_scores(y, p)}


def summarise(repetitions: list[dict[str, float]]) -> dict[str, Any]:
    """Return means of scores and, of two and more repetitions, standard deviations (``_sd``).

    ``scores_by_repetition`` has those of each, so that tables compare the same ones.
    """
    found: dict[str, Any] = {}
    for name in repetitions[0]:
        values = [each[name] for each in repetitions]
        found[name] = round(float(np.mean(values)), 4)
        if len(values) > 1:
            found[f"{name}_sd"] = round(float(np.std(values, ddof=1)), 4)
    if len(repetitions) > 1:
        found["scores_by_repetition"] = [
            {name: round(value, 4) for name, value in scores.items()} for scores in repetitions
        ]
    return found


def alike(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return rows of the same repetitions: the first ones, as many as all that have figures have.

    Folds of one repetition can be harder than those of another: means over different ones do not
    compare methods.
    """
    most = min((row["repetitions"] for row in rows.values() if "auc" in row), default=0)
    return {
        name: {**row, **_first(row, most)} if row.get("repetitions", 0) > most else row
        for name, row in rows.items()
    }


def _first(row: dict[str, Any], n: int) -> dict[str, Any]:
    scores = summarise(row["scores_by_repetition"][:n])
    dropped = dict.fromkeys(
        [f"{name}_sd" for name in row["scores_by_repetition"][0]] if n == 1 else []
    )
    return {**dropped, **scores, "repetitions": n}

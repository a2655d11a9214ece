"""Scores of predicted probabilities of labels.

Scores of scikit-learn, and the expected calibration error: the difference of the share of positives
and the predicted probability (Naeini et al. 2015), here in bins of equally many areas.
"""

from __future__ import annotations

from typing import Any

import numpy as np

N_BIN = 10
SMALLEST = 1e-12  # smallest probability of a label in the log loss
THRESHOLD = 0.5


def _metrics() -> Any:
    from sklearn import metrics  # starts slowly, and counts have no use for it

    return metrics


def _ranked(y: np.ndarray, p: np.ndarray, weight: np.ndarray | None = None) -> dict[str, float]:
    """Return the scores of an order; NaN where all labels are the same."""
    if y.all() or not y.any():
        return {"auc": float("nan"), "average_precision": float("nan")}
    return {
        "auc": float(_metrics().roc_auc_score(y, p, sample_weight=weight)),
        "average_precision": float(_metrics().average_precision_score(y, p, sample_weight=weight)),
    }


def label_scores(y: np.ndarray, p: np.ndarray) -> dict[str, Any]:
    """Score probabilities ``p`` (n,) of labels ``y`` (n,), 0 or 1, each label counting alike.

    Returns
    -------
    dict
        ``n``, ``positive`` (share), ``accuracy``, ``f1`` (both at 0.5), ``auc`` and
        ``average_precision`` (NaN where all labels are the same), ``log_loss`` (nats), ``brier``,
        and ``calibration``: ``error`` and the ``bins`` it is made of.
    """
    y, p = np.asarray(y, np.float64) > 0.5, np.asarray(p, np.float64)
    predicted = np.clip(np.where(y, p, 1.0 - p), SMALLEST, 1.0)
    return {
        "n": int(y.size),
        "positive": float(y.mean()) if y.size else float("nan"),
        **decision_scores(y, p > THRESHOLD),
        **_ranked(y, p),
        "log_loss": float(-np.log(predicted).mean() + 0.0) if y.size else float("nan"),
        "brier": float(((p - y) ** 2).mean()) if y.size else float("nan"),
        "calibration": calibration(y, p),
    }


def weighted_label_scores(y: np.ndarray, p: np.ndarray, weight: np.ndarray) -> dict[str, Any]:
    """Score probabilities of labels that count by ``weight`` (n,), such as the people behind them.

    Returns
    -------
    dict
        As :func:`label_scores`, without ``f1`` and ``calibration``; NaN where nothing has weight.
    """
    y, p, weight = np.asarray(y, np.float64) > 0.5, np.asarray(p, np.float64), np.asarray(weight)
    use = weight > 0
    y, p, weight = y[use], p[use], weight[use].astype(np.float64)
    predicted = np.clip(np.where(y, p, 1.0 - p), SMALLEST, 1.0)

    def average(values: np.ndarray) -> float:
        return float(weight @ values / weight.sum()) if y.size else float("nan")

    return {
        "n": int(y.size),
        "positive": average(y),
        "accuracy": average(y == (p > THRESHOLD)),
        **_ranked(y, p, weight),
        "log_loss": average(-np.log(predicted)),
        "brier": average((p - y) ** 2),
    }


def unranked(scores: dict[str, Any]) -> dict[str, Any]:
    """Return scores of a constant, held out by folds, with those of an order that ranks nothing.

    A constant gives all the same: its AUC is 1/2, and its average precision the share of positives.
    But each fold has a constant of its own, the lower the more positives were held out: pooled,
    they would rank the labels, and the wrong way round.

    Parameters
    ----------
    scores : dict
        As of :func:`label_scores`; of :func:`weighted_label_scores` under ``by_people``.
    """
    out = dict(scores)
    if np.isfinite(scores.get("auc", np.nan)):
        out |= {"auc": 0.5, "average_precision": scores["positive"]}
    if "by_people" in scores:
        out["by_people"] = unranked(scores["by_people"])
    return out


def decision_scores(y: np.ndarray, decided: np.ndarray) -> dict[str, float]:
    """Accuracy and F1 of decisions, bool, against labels, bool."""
    return {
        "accuracy": float((y == decided).mean()) if y.size else float("nan"),
        "f1": float(_metrics().f1_score(y, decided, zero_division=0)) if y.size else float("nan"),
    }


def calibration(y: np.ndarray, p: np.ndarray) -> dict[str, Any]:
    """Compare predicted probabilities and shares of positives in bins of equally many areas.

    Areas of one probability may fall into several bins: each counts with the share of positives of
    all of them, or the error would depend on their order.
    """
    order = np.argsort(p, kind="stable")
    same = np.unique(p, return_inverse=True)[1]
    y = (np.bincount(same, weights=y) / np.bincount(same))[same] if p.size else y
    bins = []
    for part in np.array_split(order, min(N_BIN, max(1, order.size))):
        if part.size:
            bins.append({"n": int(part.size), "said": p[part].mean(), "was": y[part].mean()})
    total = sum(each["n"] for each in bins)
    gap = sum(each["n"] * abs(each["said"] - each["was"]) for each in bins)
    return {"error": gap / total if total else float("nan"), "bins": bins}

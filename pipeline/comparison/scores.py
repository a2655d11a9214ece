"""Which of two runs predicts held-out areas better, from the evaluations that both have."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd

from pipeline.comparison.sides import Side
from pipeline.evaluation.verdict import SCHEMES, paired_gain
from pipeline.products.products import EVALUATION
from pipeline.reporting.words import percent

_NO_EVALUATION = "{} has no evaluation: run `disagg evaluate`"
_OTHER_COUNTS = "the observed counts differ: scores of different counts cannot be compared"


def compare_scores(a: Side, b: Side, table: pd.DataFrame) -> dict[str, Any]:
    """Compare the scores of held-out areas, where both runs held out the same counts.

    Parameters
    ----------
    a, b : Side
        Before and after.
    table : DataFrame
        Of areas, with ``observed_a`` and ``observed_b``.

    Returns
    -------
    dict
        By scheme: ``nll``, the mean negative log predictive density of an area, nats, and
        ``coverage`` of central intervals, by their probability, each of ``a`` and ``b``; ``gain``
        of B over A, nats an area, with its ``standard_error`` over folds and ``answer``, whether B
        is better (:func:`paired_gain`; None where the folds are not the same). Or ``skipped``, the
        reason why there is nothing.
    """
    found = []
    for side in (a, b):
        path = side.directory / EVALUATION.file
        if not path.is_file():
            return {"skipped": _NO_EVALUATION.format(side.label)}
        found.append(json.loads(path.read_text(encoding="utf-8")).get("held_out") or {})
    one, other = (table[f"observed_{x}"].to_numpy(float) for x in "ab")
    if not np.array_equal(one, other, equal_nan=True):
        return {"skipped": _OTHER_COUNTS}
    both = {scheme: [each.get(scheme) or {} for each in found] for scheme in SCHEMES}
    scored: dict[str, Any] = {
        scheme: _scheme(*pair) for scheme, pair in both.items() if all(map(_has, pair))
    }
    return scored or {"skipped": "no scheme was held out in both evaluations"}


def scores_lines(scores: dict[str, Any]) -> list[str]:
    """Return the scores in a line each for a terminal; the reason where there are none."""
    if "skipped" in scores:
        return [f"Held out: not compared, {scores['skipped']}"]
    found = []
    for scheme, own in scores.items():
        gain, error = own["gain"], own["standard_error"]
        spread = "" if error is None else f" +- {error:.2g}"
        better = "B" if gain > 0 else "A"
        said = f"{better} predicts better by {abs(gain):.3g}{spread} nats an area"
        if gain == 0 or own["answer"] == "unclear":
            said = f"no clear difference, {gain:+.3g}{spread} nats an area for B"
        covers = [
            f"{percent(float(level))} intervals cover {percent(one)} in A and {percent(other)} in B"
            for level, (one, other) in own["coverage"].items()
            if float(level) == 0.9
        ]
        found.append(f"Held out {SCHEMES[scheme]}: {'; '.join([said, *covers])}")
    return found


def _has(held_out: dict[str, Any]) -> bool:
    return "nll" in (held_out.get("model") or {})


def _scheme(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    nll = [float(each["model"]["nll"]) for each in (a, b)]
    paired = _gain(a.get("by_fold") or [], b.get("by_fold") or [])
    levels = [each["model"].get("intervals") or {} for each in (a, b)]
    return {
        "nll": dict(zip("ab", nll, strict=True)),
        "gain": nll[0] - nll[1],
        "standard_error": None if paired is None else paired["standard_error"],
        "answer": None if paired is None else paired["answer"],
        "coverage": {
            level: [each[level]["coverage"] for each in levels]
            for level in levels[0]
            if level in levels[1]
        },
    }


def _gain(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the gain of B over the same folds, whose areas fail together; None of other folds."""
    sizes = [[row["n_areas"] for row in rows] for rows in (a, b)]
    if sizes[0] != sizes[1] or len(a) < 2:
        return None
    one, other = (np.repeat([-row["nll"] for row in rows], sizes[0]) for rows in (a, b))
    return paired_gain(other, one, np.repeat(np.arange(len(a)), sizes[0]))

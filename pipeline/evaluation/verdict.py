"""Is the map better than one rate for the whole country? The first thing an evaluation says.

A map is better where the held-out log density of the areas is higher than under one rate, in the
mean over areas. The difference is paired by area. Its standard error is over areas where areas are
held out at random, and over regions where regions are: the areas of a region fail together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.9  # of the interval of a gain
KEY = "better_than_constant"
SCHEMES = {"area": "by area", "block": "by region", "bag": "by bag"}
EACH = {"bag": "a bag"}  # what a gain is the mean over, where it is not areas


def paired_gain(
    model: np.ndarray, constant: np.ndarray, fold: np.ndarray | None = None
) -> dict[str, Any]:
    """Compare log densities of the same held-out areas.

    Parameters
    ----------
    model, constant : (n,) arrays
        Log density of each area's response under the model and under one rate, nats.
    fold : (n,) int array, optional
        Groups of areas that fail together; each area is its own group if not given.

    Returns
    -------
    dict
        ``answer``: ``yes`` if the whole interval of the gain is above 0, ``no`` if it is below 0,
        else ``unclear``; ``better``: whether the gain is above 0 (None if there is none); ``gain``:
        mean of model less constant, nats an area;
        ``standard_error``; ``interval`` (90 %, Student's t); ``share_better``: areas that the map
        predicts better; ``n_areas``, ``n_groups``.
    """
    # A response that neither can explain tells nothing; NaN would hide the others.
    both = np.isneginf(model) & np.isneginf(constant)
    with np.errstate(invalid="ignore"):
        gain = np.where(both, 0.0, np.asarray(model) - np.asarray(constant))
    n = int(gain.shape[0])
    groups = np.arange(n) if fold is None else np.unique(fold, return_inverse=True)[1]
    n_group = int(groups.max()) + 1 if n else 0
    mean = float(gain.mean()) if n else float("nan")
    error = low = high = float("nan")
    if n_group > 1 and np.isfinite(mean):
        off = np.bincount(groups, gain - mean, n_group)
        error = float(np.sqrt(n_group / (n_group - 1) * (off @ off)) / n)
        reach = float(stdtrit(n_group - 1, (1 + LEVEL) / 2)) * error
        low, high = mean - reach, mean + reach
    better = None if np.isnan(mean) else mean > 0
    answer = "not measured" if better is None else "unclear"
    if low > 0 or mean == np.inf:
        answer = "yes"
    elif high < 0 or mean == -np.inf:
        answer = "no"
    return {
        "answer": answer,
        "better": better,
        "gain": mean,
        "standard_error": error,
        "interval": [low, high],
        "share_better": float((gain > 0).mean()) if n else float("nan"),
        "n_areas": n,
        "n_groups": n_group,
    }


def verdict(
    held_out: Mapping[str, Mapping[str, Any]],
    schemes: Sequence[str],
    against: str,
    where: str = "the whole country",
    remedy: str = "add it to evaluate.schemes",
) -> dict[str, Any]:
    """Collect the gains of all schemes, with a sentence that says them.

    Parameters
    ----------
    held_out : mapping
        ``held_out`` of the report: of each scheme ``gain``, or ``skipped`` with the reason.
    schemes : sequence of str
        The schemes that could be asked for; those that were not evaluated are not measured.
    against : str
        What the map is compared with: ``one rate``, ``one probability``.
    where : str
        For whom it is one.
    remedy : str
        What makes a scheme be evaluated that was not.

    Returns
    -------
    dict
        ``sentence``, and of each scheme what :func:`paired_gain` returns, or ``answer`` and
        ``reason`` where it was not measured.
    """
    found: dict[str, Any] = {}
    said = []
    for scheme in schemes:
        own = held_out.get(scheme)
        if own is not None and "gain" in own:
            found[scheme] = own["gain"]
            said.append(f"{SCHEMES[scheme]} {_say(own['gain'], EACH.get(scheme, 'an area'))}")
        else:
            reason = f"{scheme} was not held out; {remedy}" if own is None else own["skipped"]
            found[scheme] = {"answer": "not measured", "better": None, "reason": reason}
            said.append(f"{SCHEMES[scheme]} not measured")
    return {"sentence": f"better than {against} for {where}: {', '.join(said)}", **found}


def without_figures(evaluation: Mapping[str, Any] | None) -> str:
    """Return the sentence of ``evaluation.json`` without its figures; empty if there is none."""
    sentence = ((evaluation or {}).get(KEY) or {}).get("sentence") or ""
    return re.sub(r" \([^()]*\)", "", str(sentence))


def in_words(evaluation: Mapping[str, Any] | None) -> str:
    """Return what every file and message says of the map: the sentence, or that there is none."""
    return without_figures(evaluation) or "not evaluated"


def _say(gain: Mapping[str, Any], each: str) -> str:
    if gain["better"] is None:
        return "not measured"
    error = gain["standard_error"]
    around = f" +- {error:.2g}" if np.isfinite(error) else ""
    return f"{gain['answer']} ({gain['gain']:+.3g}{around} nats {each})"

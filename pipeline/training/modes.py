"""Which explanation of overdispersed counts the data preferred, in a sentence.

Counts that vary between areas by more than chance have two explanations, noise between areas and a
rate that varies within distances shorter than an area. The posterior of the hyperparameters can
have a mode of each (docs/design/hyperparameters.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.config.response_words import ResponseWords
from pipeline.config.schema import Config

KEY = "overdispersion"  # of the fit's summary and of evaluation.json
DECIDED = 0.9  # weight from which one explanation is taken to be the data's choice
SMALL_SD = 0.05  # of the noise between areas: 5 % of a count
NOISE, SHORT = "noise between areas", "a field shorter than an area"


def told_modes(model: Any, config: Config) -> dict[str, Any]:
    """Return the entry of a record about a fitted model; none where it knows no modes."""
    modes = getattr(model, "modes_", None) or []
    found = overdispersion(modes, model.link_name, ResponseWords.of(config).totals) if modes else {}
    return {KEY: found} if found else {}


def overdispersion(
    modes: Iterable[Mapping[str, Any]], link: str, totals: str = "counts"
) -> dict[str, Any]:
    """Return what the modes of a fit say of overdispersion; empty where there are none.

    Parameters
    ----------
    modes : iterable of mapping
        ``explains``, :data:`NOISE` or :data:`SHORT`; ``weight``, of which the sum is 1;
        ``area_sd``, ``range_km``, ``field_sd``.
    link : str
    totals : str, optional
        Name of the responses.

    Returns
    -------
    dict
        ``modes``, as given; ``decided``, whether one explanation has more than :data:`DECIDED` of
        the weight; ``sentence``.
    """
    given = [dict(mode) for mode in modes]
    weight: dict[str, float] = {}
    for mode in given:
        weight[mode["explains"]] = weight.get(mode["explains"], 0.0) + mode["weight"]
    if not given:
        return {}
    first, *others = sorted(weight, key=lambda name: -weight[name])
    decided = weight[first] > DECIDED
    if decided:
        largest = max(
            (mode for mode in given if mode["explains"] == first), key=lambda mode: mode["weight"]
        )
        sentence = _decided(largest, link, totals)
    else:
        parts = [
            f"{_NAMED.get(name, name)} ({'weight ' if name == first else ''}"
            f"{100 * weight[name]:.0f} %)"
            for name in (first, *others)
        ]
        sentence = (
            f"The {totals} cannot tell {' from '.join(parts)}; intervals hold both. "
            f"{totals.capitalize()} of smaller areas could tell more."
        )
    return {"modes": given, "decided": decided, "sentence": sentence}


_NAMED = {SHORT: "a rate that varies within short distances"}


def _decided(mode: Mapping[str, Any], link: str, totals: str) -> str:
    start = f"The {totals} vary between areas by more than chance: "
    if mode["explains"] == SHORT:
        return (
            f"{start}{_NAMED[SHORT]}, about {mode['range_km']:.2g} km, less than the width of a "
            f"typical area{_by(mode['field_sd'], link == 'exp')}. Where inside an area it is high, "
            f"its {totals} hardly tell."
        )
    if mode["area_sd"] < SMALL_SD:
        return (
            f"The {totals} vary between areas hardly more than chance and the map explain: noise "
            f"between areas has a deviation of {mode['area_sd']:.2g}."
        )
    return f"{start}{NOISE}{_by(mode['area_sd'], link != 'identity')}."


def _by(sd: float, factor: bool) -> str:
    """Return a deviation, with the factor that it is where it is one of logarithms."""
    means = f" (a factor of about {math.exp(sd):.2g})" if factor else ""
    return f", deviation {sd:.2g}{means}"

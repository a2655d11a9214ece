"""Which explanation of overdispersed counts the data preferred, in a sentence.

Counts of neighbouring areas that differ by more than chance have two explanations, noise between
areas and a rate that varies within distances shorter than an area. The posterior of the
hyperparameters can hold both (docs/design/noise.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from models.aggregate.hyperparameter_chain import EXPLANATIONS
from pipeline.config.schema import Config

KEY = "overdispersion"  # of the fit's summary and of evaluation.json
DECIDED = 0.9  # weight from which one explanation is taken to be the data's choice
SMALL_SD = 0.05  # of the noise between areas: 5 % of a count
LIKELY = 0.05  # weight from which an explanation is told at all
NOISE, SHORT, WIDE = EXPLANATIONS


def told_modes(model: Any, config: Config) -> dict[str, Any]:
    """Return the entry of a record about a fitted model; none where it knows no modes."""
    modes = getattr(model, "modes_", None) or []
    named = config.response_kind.given_values
    found = overdispersion(modes, model.link_name, named) if modes else {}
    return {KEY: found} if found else {}


def overdispersion(
    modes: Iterable[Mapping[str, Any]], link: str, totals: str = "counts"
) -> dict[str, Any]:
    """Return what the modes of a fit say of overdispersion; empty where there are none.

    Parameters
    ----------
    modes : iterable of mapping
        As :attr:`models.VBAgg.modes_`, one each of its explanations at most.
    link : str
    totals : str, optional
        Name of the responses.

    Returns
    -------
    dict
        ``modes``, as given; ``decided``, whether one explanation has more than :data:`DECIDED` of
        the weight; ``sentence``.
    """
    given = sorted((dict(mode) for mode in modes), key=lambda mode: -mode["weight"])
    if not given:
        return {}
    first, decided = given[0], given[0]["weight"] > DECIDED
    if decided:
        sentence = _decided(first, link, totals)
    else:
        told = [mode for mode in given if mode["weight"] >= LIKELY]
        parts = [
            f"{_NAMED[mode['explains']]} ({'weight ' if mode is first else ''}"
            f"{100 * mode['weight']:.0f} %)"
            for mode in told
        ]
        sentence = (
            f"The {totals} cannot tell {' from '.join(parts)}; intervals hold "
            f"{'both' if len(parts) == 2 else 'all'}. "
            f"{totals.capitalize()} of smaller areas could tell more."
        )
    return {"modes": given, "decided": decided, "sentence": sentence}


_NAMED = {
    NOISE: NOISE,
    SHORT: "a rate that varies within short distances",
    WIDE: "a rate that varies over wide distances",
}


def _decided(mode: Mapping[str, Any], link: str, totals: str) -> str:
    identity = link == "identity"
    noise = f"noise between areas has a deviation of {_two(mode['area_sd'])}"
    noise += f" of that of the {totals}" if identity else ""
    if mode["explains"] == WIDE:
        return (
            f"The {totals} of neighbouring areas differ as a rate does that varies over distances "
            f"of about {_two(mode['range_km'])} km, wider than a typical area; {noise}."
        )
    if mode["explains"] == NOISE and mode["area_sd"] < SMALL_SD:
        return (
            f"The {totals} vary between areas hardly more than chance and the map explain; {noise}."
        )
    start = f"The {totals} vary between areas by more than chance: "
    if mode["explains"] == SHORT:
        return (
            f"{start}{_NAMED[SHORT]}, about {_two(mode['range_km'])} km, less than the width of a "
            f"typical area{_by(mode['field_sd'], link, totals, link == 'exp')}. Where inside an "
            f"area it is high, its {totals} hardly tell."
        )
    return f"{start}{NOISE}{_by(mode['area_sd'], link, totals, not identity)}."


def _by(sd: float, link: str, totals: str, factor: bool) -> str:
    """Return a deviation, with the factor that it is where it is one of logarithms."""
    means = f" (a factor of about {_two(math.exp(sd))})" if factor else ""
    # Without a link, noise and surface are told in units of the responses' own deviation.
    means = f" of that of the {totals}" if link == "identity" else means
    return f", deviation {_two(sd)}{means}"


def _two(value: float) -> str:
    """Return a number to two digits, never with an exponent."""
    return f"{float(f'{value:.2g}'):,.10g}"

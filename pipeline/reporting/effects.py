"""What covariates do, in sentences: their whole effect, and the slope that may be a part of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pipeline.reporting.words import MINUS, Row, number, percent, signed
from pipeline.responses.response import Response

Z90 = 1.6448536269514722
PLACES = ("east", "north", "up")
VARIES, LEAST_VARIES = 0.1, 0.02  # of the effect, and of the rate, from which it is said to differ
LIKELY = 0.9  # probability from which the middle of a covariate is said to differ from both ends


def effects(
    fit: Mapping[str, Any], words: Response, moving: Collection[str] = (), period: str | None = None
) -> list[Row]:
    """Return slope and whole effect of each covariate.

    Parameters
    ----------
    fit : mapping
        Summary of the fit stage: ``coefficients``, and ``effects`` as
        :func:`pipeline.training.effects.told_effects` gives them.
    words : Response
    moving : collection of str, optional
        Covariates that move: their values are of the period alone.
    period : str or None, optional
        That the effects are of; None for a map of one period.

    Returns
    -------
    list of Row
        ``estimate`` and ``interval`` of the slope of the linear part, empty without one.
    """
    slopes, told = fit.get("coefficients") or {}, fit.get("effects") or {}
    rows = []
    for name in dict.fromkeys((*told, *slopes)):
        estimate = interval = meaning = ""
        if name in slopes:
            mean, sd = slopes[name]["mean"], slopes[name]["sd"]
            estimate = number(mean)
            interval = f"{number(mean - Z90 * sd)} to {number(mean + Z90 * sd)}"
        if name in told:
            when = f" in {period}" if name in moving and period else ""
            meaning = _meaning(f"{name}{when}", told[name], words)
        elif name in PLACES:
            meaning = "A straight trend over places; other parts of the kernel may follow them too."
        rows.append(Row(name, estimate, interval, meaning))
    return rows


def _meaning(name: str, told: Mapping[str, Any], words: Response) -> str:
    """Return what the rate does between two values of a covariate, with its interval."""
    low, mid, high = (told[key] for key in ("lower", "median", "upper"))
    if mid is None:
        return ""
    unit, rate_per = words.rate_unit, words.rate_per
    scale = 1.0 if told["relative"] else rate_per
    size = percent(abs(mid)) if told["relative"] else f"{number(scale * abs(mid))} {unit}"
    ends = [
        signed(end) if told["relative"] and end is not None else _plus(end, scale)
        for end in (low, high)
    ]
    text = (
        f"{_where(name, told)}, the {words.quantity} is about {size} "
        f"{'higher' if mid >= 0 else 'lower'} ({ends[0]} to {ends[1]})"
    )
    if told["everywhere"]:
        text += ", all else equal."
    else:
        start = told["rate"][0]  # the end follows from the change: medians do not add up
        end = start * (1.0 + mid) if told["relative"] else start + mid
        first, last = number(rate_per * start), number(rate_per * end)
        text += (
            f": {last} instead of {first} {unit}, with all other covariates at their means, on "
            "average over places."
        )
    if low is not None and high is not None and low <= 0 <= high:
        text += " The interval includes no change."
    for key, side in (("middle_above", "higher"), ("middle_below", "lower")):
        if told.get(key, 0.0) > LIKELY:
            text += f" At its median the {words.quantity} is {side} than at both."
    # Interactions that change little are not worth a reader's time: a kernel may hold all.
    varies, level = told.get("varies"), 1.0 if told["relative"] else abs(told["rate"][0])
    if varies is None or varies > max(VARIES * abs(mid), LEAST_VARIES * level):
        text += _beside(told["beside"])
    return text


def _where(name: str, told: Mapping[str, Any]) -> str:
    first, last = number(told["at"][0]), number(told["at"][-1])
    if told["percentiles"]:
        return f"Where {name} is at its 90th percentile ({last}) instead of its 10th ({first})"
    if told["linear"] and told["everywhere"]:
        return f"Where {name} is one standard deviation larger"
    return f"Where {name} is one standard deviation above its mean ({last} instead of {first})"


def _beside(others: list[str]) -> str:
    """Say what an effect differs with."""
    covariates = [each for each in others if each not in PLACES]
    named = ["places"] if len(covariates) < len(others) else []
    if covariates:
        named.insert(0, "other covariates" if len(covariates) > 1 else covariates[0])
    return f" Its effect differs with {' and '.join(named)}." if named else ""


def _plus(value: float | None, scale: float) -> str:
    if value is None:
        return number(None)
    return ("+" if value >= 0 else MINUS) + number(scale * abs(value))

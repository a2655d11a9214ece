"""What an evaluation and a fit say, in sentences: the answer, the cautions, hyperparameters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from models.likelihoods.likelihood import Likelihood, Parameter
from pipeline.core.plurals import areas_text
from pipeline.evaluation.calibration_summary import KEY as CALIBRATION
from pipeline.evaluation.verdict import KEY as VERDICT
from pipeline.training.modes import KEY as OVERDISPERSION

MINUS, UNKNOWN = "\u2212", "\u2013"
SHOWN_SHARE = 0.005  # shares below it are no caution
MANY_NEARER = 0.5  # of the draws
WIDE_SHARE = 0.1  # of pixels whose intervals are wide: some always are
TRUTH_SHORT = 0.05  # by which intervals may miss known true rates without a caution
_SCHEMES = {
    "area": ("By area", "areas here and there are hidden from the fit"),
    "block": ("By region", "whole regions are hidden from the fit"),
}
_COVARIATE = re.compile(r"^(.*)\[(.+)\]$")


@dataclass(frozen=True)
class Answer:
    """One line of the answer on the first screen: what was asked, the answer, what it means."""

    question: str
    answer: str
    text: str


@dataclass(frozen=True)
class Row:
    """A row of a table of parameters."""

    name: str
    estimate: str
    interval: str
    meaning: str


def answers(evaluation: Mapping[str, Any] | None, totals: str, one: str) -> list[Answer]:
    """Return whether the map is better than one rate, by area and by region.

    Parameters
    ----------
    evaluation : mapping or None
        ``evaluation.json``.
    totals : str
        Name of the responses: ``counts``.
    one : str
        What the map is compared with: ``one rate``.
    """
    found = (evaluation or {}).get(VERDICT) or {}
    return [
        Answer(title, str(row["answer"]), _meaning(row, hidden, totals, one))
        for scheme, (title, hidden) in _SCHEMES.items()
        if (row := found.get(scheme)) is not None
    ]


def _meaning(row: Mapping[str, Any], hidden: str, totals: str, one: str) -> str:
    if row.get("better") is None:
        return f"Not measured: {row.get('reason', 'no area could be held out')}."
    verb = {"yes": "better than", "no": "worse than"}.get(row["answer"], "about as well as")
    text = f"When {hidden}, the map predicts their {totals} {verb} {one} for all."
    share = row.get("share_better")
    if share is not None:
        text += f" It is ahead in {percent(share)} of {row['n_areas']:,} areas."
    gain, (low, high) = row.get("gain"), row.get("interval") or (None, None)
    if gain is not None:
        around = (
            ""
            if low is None or high is None
            else f" (90 % interval {_times(low)} to {_times(high)})"
        )
        text += f" On average it gave them {_times(gain)} times the probability of {one}{around}."
    if row["answer"] == "unclear":
        text += " The interval includes 1: other areas might turn the answer."
    return text


def _times(gain: float) -> str:
    """Return a mean difference of log densities as a ratio, of an area on (geometric) average."""
    return number(math.exp(min(gain, 700.0)))


def cautions(
    evaluation: Mapping[str, Any] | None,
    fit: Mapping[str, Any],
    balance: Mapping[str, Any] | None,
    one: str,
    *,
    technical: bool = True,
) -> list[str]:
    """Return what to beware of, a sentence each, the gravest first.

    Parameters
    ----------
    evaluation : mapping or None
        ``evaluation.json``.
    fit : mapping
        Summary of the fit stage; empty if there is none.
    balance : mapping or None
        As :mod:`pipeline.store.balance` writes it.
    one : str
        What the map is compared with: ``one rate``.
    technical : bool, optional
        Whether to say which hyperparameters depend on their priors.
    """
    said = list(_of_no_case(balance))
    if evaluation is None:
        said.append("The map was not evaluated: nobody knows how well it predicts hidden areas.")
    else:
        said += _of_verdict(evaluation, one)
    if fit.get("converged") is False:
        said.append("The fit stopped before it converged. A longer fit may change the map.")
    said += list(_of_update(fit))
    found = fit.get(OVERDISPERSION) or {}
    if found.get("decided") is False:
        said.append(found["sentence"])
    drawn = fit.get("hyperparameter_draws") or {}
    nearer, n_drawn = drawn.get("nearer", 0), drawn.get("n", 0)
    if nearer and nearer >= MANY_NEARER * n_drawn:
        said.append(
            f"{nearer:.0f} of {n_drawn:.0f} draws of the hyperparameters were brought nearer to "
            "the optimum, because the fit does not bear them out: intervals may be too short"
        )
    said += list(_of_evaluation(evaluation or {}))
    said += list(_of_balance(balance))
    if technical:
        said += ((evaluation or {}).get("prior_sensitivity") or {}).get("sentences") or []
    return list(dict.fromkeys(sentence(text) for text in said))


def _of_update(fit: Mapping[str, Any]) -> Iterator[str]:
    """Say what an update found: counts far from what was foreseen, a fit that has had its day."""
    for label, texts in (fit.get("far") or {}).items():
        for text in texts:
            yield f"{label}: {text}. Look at this count."
    if fit.get("refit"):
        yield (
            f"A new fit is due, for {fit['refit']}. Until then rates and intervals of this map may "
            "be wrong: fit anew before you publish it."
        )


def _of_verdict(evaluation: Mapping[str, Any], one: str) -> Iterator[str]:
    found = evaluation.get(VERDICT) or {}
    for scheme, (title, _) in _SCHEMES.items():
        row = found.get(scheme)
        if row is None or row["answer"] == "yes":
            continue
        kind = title.lower()
        if row["answer"] == "not measured":
            yield f"{kind}, it was not measured whether the map is better than {one}"
        elif row["answer"] == "unclear":
            yield f"{kind}, it is not clear that the map is better than {one}"
        else:
            yield f"{kind}, the map predicts worse than {one}: do not rely on its differences"


def _of_evaluation(evaluation: Mapping[str, Any]) -> Iterator[str]:
    yield from (evaluation.get("predictive_checks") or {}).get("sentences", [])
    yield from _of_coverage(evaluation)
    about = (evaluation.get("held_out", {}).get("area") or {}).get("leave_out") or {}
    if about.get("unreliable"):
        first = ", ".join(about["unreliable_areas"][:5])
        more = ", ..." if about["unreliable"] > 5 else ""
        yield (
            f"scores of {areas_text(about['unreliable'])} are too good if anything, because few "
            f"draws decide them: {first}{more}"
        )
    found = evaluation.get(CALIBRATION) or {}
    yield from found.get("cautions", [])
    yield from found.get("failed", [])
    support = evaluation.get("support") or {}
    outside, prior = support.get("people_extrapolating"), support.get("people_prior")
    if outside is not None and outside >= SHOWN_SHARE:
        yield (
            f"{percent(outside)} of the people live where a covariate is outside its range in the "
            "fitted areas: the map extrapolates there"
        )
    if prior is not None and prior >= SHOWN_SHARE:
        yield f"for {percent(prior)} of the people the prior, not the data, decides the map"
    wide = support.get("pixels_wide")
    if wide is not None and wide >= WIDE_SHARE:
        yield (
            f"in {percent(wide)} of the pixels the upper end of the interval is more than "
            f"{number(support['times'])} times the lower one: do not read these one by one"
        )


def _of_coverage(evaluation: Mapping[str, Any]) -> Iterator[str]:
    """Say where intervals cover another share than they promise, by more than twice its error."""
    for scheme, (_, hidden) in _SCHEMES.items():
        scores = (evaluation.get("held_out", {}).get(scheme) or {}).get("model") or {}
        own = (scores.get("intervals") or {}).get("0.9")
        n = scores.get("n_areas") or 0
        if own is None or own.get("coverage") is None or not n:
            continue
        if own["coverage"] < 0.9 - 2 * math.sqrt(0.9 * 0.1 / n):
            yield f"90 % intervals cover only {percent(own['coverage'])} of areas when {hidden}"
    found = evaluation.get(CALIBRATION) or {}
    level = f"{found.get('interval', 0.9):g}"
    for way, words in (("pixels", "pixels"), ("people", "people's pixels")):
        own = found.get(way)
        if not own:
            continue
        share, error = own["coverage"].get(level), own["standard_error"].get(level)
        if share is not None and error is not None and share < float(level) - 2 * error:
            yield (
                f"in simulations, {percent(float(level))} intervals cover only {percent(share)} of "
                f"{words}: intervals are too short"
            )
    true = evaluation.get("truth") or {}
    for way, words in (("pixels", "pixels"), ("people", "people's pixels")):
        share = ((true.get(way) or {}).get("coverage") or {}).get(level)
        if share is not None and share < float(level) - TRUTH_SHORT:
            yield (
                f"the true rates are known here: {percent(float(level))} intervals cover only "
                f"{percent(share)} of {words}"
            )


def _of_no_case(balance: Mapping[str, Any] | None) -> Iterator[str]:
    cases = (balance or {}).get("cases") or {}
    if cases.get("given") != 0.0:
        return
    unit = cases.get("unit", "cases")
    text = (
        f"no area has any {unit}: the map tells how high rates may be, by the upper ends of its "
        "intervals, and its differences come from the prior"
    )
    fitted = cases.get("fitted") or {}
    if fitted.get("expected_upper") is not None:
        text += (
            f"; {number(fitted['expected_upper'])} {unit} expected in all are the upper end of the "
            f"{percent(fitted['interval'])} interval"
        )
    yield text


def _of_balance(balance: Mapping[str, Any] | None) -> Iterator[str]:
    if balance is None:
        return
    people, cases, unit = balance["people"], balance["cases"], balance["unit"]
    inside = people.get("inside_areas") or 0.0
    left = people.get("no_covariate") or 0.0
    if inside and left / inside >= SHOWN_SHARE:
        share = percent(left / inside)
        yield f"{share} of the {unit} inside areas were left out: a covariate is missing"
    given, lost = cases.get("given"), cases.get("left_out")
    if given and lost:
        yield f"{number(lost)} of {number(given)} {cases.get('unit', 'cases')} were left out"
    twice = people.get("counted_twice") or 0.0
    if inside and twice / inside >= SHOWN_SHARE:
        yield f"areas overlap: {percent(twice / inside)} of the {unit} are counted twice"
    absent = people.get("without_counts") or 0.0
    if inside and absent / inside >= SHOWN_SHARE:
        share = percent(absent / inside)
        noun = cases.get("noun", "count")
        yield f"{share} of the {unit} are in areas without a {noun}: predicted only"
    areas = (balance.get("areas") or {}).get("left_out") or []
    if areas:
        first = ", ".join(str(each) for each in areas[:5]) + (", ..." if len(areas) > 5 else "")
        are = "is" if len(areas) == 1 else "are"
        yield f"{areas_text(len(areas))} {are} not in the fit: {first}"


def hyperparameters(
    fit: Mapping[str, Any],
    likelihood: Likelihood | None,
    in_time: Callable[[str, float], str] | None = None,
) -> list[Row]:
    """Return the hyperparameters of a fit, with what the common ones mean.

    Parameters
    ----------
    fit : mapping
        Summary of the fit stage.
    likelihood : Likelihood or None
    in_time : callable, optional
        Of a series, :meth:`pipeline.reporting.in_time.PartsInTime.meaning`.
    """
    tells = {} if likelihood is None else likelihood.named_parameters
    intervals = fit.get("hyperparameter_intervals") or {}
    rows = []
    for name, value in (fit.get("hyperparameters") or {}).items():
        own = intervals.get(name)
        estimate = value if own is None else own.get("median", own["mean"])
        interval = "" if own is None else f"{number(own['lower'])} to {number(own['upper'])}"
        meaning = "" if in_time is None else in_time(name, estimate)
        meaning = meaning or _explained(name, estimate, tells)
        rows.append(Row(name, number(estimate), interval, meaning))
    return rows


def _explained(name: str, value: float, tells: Mapping[str, Parameter]) -> str:
    own = _COVARIATE.match(name)
    covariate = None if own is None else own[2]
    if name in tells:
        parameter = tells[name]
        if "{factor}" not in parameter.tells:
            return parameter.tells.format(value=number(value))
        deviation = value ** (parameter.excess_power or 0.0)
        return parameter.tells.format(factor=number(math.exp(min(deviation, 700.0))))
    if name == "mean":
        return "Level of the surface before the link."
    if "lengthscale" in name:
        if "space" in name:
            return f"Places nearer than about {number(value)} km are alike beyond their covariates."
        of = "a covariate" if covariate is None else covariate
        return f"Effects change over about {number(value)} standard deviations of {of}."
    if "variance" in name and value >= 0:
        part = "places" if "space" in name else ("covariates" if covariate is None else covariate)
        return f"This part, of {part}, varies by about {number(math.sqrt(value))} before the link."
    return ""


_HOW = {
    "weights": "weights",
    "refit": "a fit without it",
    "regression": "regression between the other areas",
}


def influence(evaluation: Mapping[str, Any] | None) -> tuple[list[str], list[dict[str, str]]]:
    """Return who decides the fit: sentences, and rows of the folds that were left out.

    Returns
    -------
    sentences : list of str
    rows : list of dict
        ``left out``, ``areas``, ``Pareto k``, ``how``; of folds of which a k is known.
    """
    said: list[str] = []
    rows: list[dict[str, str]] = []
    for scheme, (title, _) in _SCHEMES.items():
        held = ((evaluation or {}).get("held_out") or {}).get(scheme) or {}
        about = held.get("leave_out")
        if not about:
            continue
        limit, worst = about.get("limit"), about.get("k_max")
        said.append(f"{title}, left out by {about.get('method', 'weights')}.")
        if worst is not None and limit is not None:
            middle = about.get("k_median")
            typical = "" if middle is None else f"; of a typical one {number(middle)}"
            said.append(
                f"{title}: the largest Pareto k is {number(worst)}{typical}. Above "
                f"{number(limit)} a left-out part moves the fit so much that its weights cannot "
                "be trusted."
            )
        if about.get("above") is not None and held.get("model"):
            said.append(
                f"{about['above']} of {held['model']['n_areas']} areas are above this limit; "
                f"{about.get('refitted', 0)} were left out of a fit instead."
            )
        names = about.get("unreliable_areas") or []
        if names:
            said.append(f"Areas with the largest influence: {', '.join(map(str, names[:10]))}.")
        for each in held.get("by_fold") or []:
            if each.get("k") is not None:
                rows.append(
                    {
                        "Left out": f"{title[3:]} group {each['fold'] + 1}",
                        "Areas": f"{each['n_areas']:,}",
                        "Pareto k": number(each["k"]),
                        "How": _HOW[each["how"]],
                    }
                )
    return said, rows


def sentence(text: str) -> str:
    """Return a finding as a sentence: a capital first, a full stop last."""
    text = text.strip().replace("+-", "±")
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def percent(value: float | None) -> str:
    """Return a share as per cent with two or three digits; a dash where it is not known."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{100 * value:.3g} %" if abs(value) < 10 else f"{100 * value:,.0f} %"


def signed(value: float) -> str:
    """Return a relative change as per cent with its sign."""
    return ("+" if value >= 0 else MINUS) + percent(abs(value))


def number(value: float | None) -> str:
    """Return a number with three digits, or with separators from 1,000; a dash where unknown."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    text = f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
    return text.replace("-", MINUS)

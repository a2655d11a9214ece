"""Which column of a table has the response of the areas, and what kind of response it is."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas as pd

from geo.core.columns import LABELS
from geo.core.errors import InputError, Problem
from pipeline.inspection.columns import (
    CASES,
    PEOPLE,
    TESTED,
    count_columns,
    has_dates,
    is_period_name,
    is_whole,
    label_columns,
    numbers_of,
)

NONE = "none"


def _words(*texts: str) -> re.Pattern[str]:
    """Return what finds one of several words, in a name that has no accents and no capitals."""
    return re.compile(rf"(?<![a-z])(?:{'|'.join(texts)})(?![a-z])")


# English, French, Spanish and Portuguese, for office tables have the words of the office.
_LAND = _words(
    "ha|hectares?|hectareas?|acres?|km2|sqkm|sq_km|m2|areas?|superficies?|surfaces?|sembrada|colhida"
)
_BORN = _words(
    "births?|naissances|nacimientos|nascimentos|person_?(?:years?|days?|months?)|py|anos_persona"
)
_SAMPLE = _words(
    "n|n_?obs|nobs|samples?(?:_size)?|surveyed|respondents|pupils|children|eleves|enquetes|"
    "encuestados|amostra"
)
_OTHER = _words(
    "livestock|cattle|cows|animals|tetes|cabezas|households|menages|hogares|domicilios|exposures?|"
    "weights?"
)
#: What a value is, and what says only how it was made of others.
_TOTALS = re.compile(r"produc(tion|cion|ao)|output|volume")
_AVERAGES = re.compile(
    r"yield|rendement|rendimi?ento|productivi|index|indice|score|concentration|price|income|revenu|"
    r"ingreso|expenditure|(?<![a-z])(level|height|bmi)(?![a-z])"
)
_ADDED = _words("total|totaux|totales|sum|somme|suma|soma")
_MEANS = _words("means?|averages?|avg|medians?|moyenn?e?|media|promedio|mediana")
_PER = re.compile(r"(?<![a-z])(per|par|por)(?![a-z])|/")
RATE = re.compile(r"rate|ratio|risk|prevalence|per_?1_?0+|smr")
#: What labels are, in a message.
_LABELLED = "labels (1 and 0, yes and no, true and false, positive and negative)"
_PLACE = re.compile(r"lon(gitude)?|lat(itude)?|x|y|easting|northing")
_IN_BRACKETS = re.compile(r"[(\[]\s*([^)\]]+?)\s*[)\]]")
_UNIT = re.compile(r"_(t|tonnes?|tons?|kg|q|g|l|usd|eur)(?:_(?:per_)?(ha|acre|km2))?$")


def plain(name: str) -> str:
    """Return the name of a column without accents and capitals, words joined by ``_``."""
    bare = unicodedata.normalize("NFKD", name.lower()).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9/]+", "_", bare).strip("_")


def is_exposure(name: str) -> bool:
    """Return whether the name of a column says what values are per unit of, people apart."""
    text = plain(name)
    said = any(each.search(text) for each in (_LAND, _BORN, _SAMPLE, _OTHER))
    return said and not (_TOTALS.search(text) or _AVERAGES.search(text) or _MEANS.search(text))


def _is_value(name: str) -> bool:
    """Return whether the name of a column says that it has values of areas."""
    text = plain(name)
    nouns = (_TOTALS, _AVERAGES, _MEANS, _ADDED)
    return any(each.search(text) for each in nouns) and not is_exposure(name)


class Ask(Protocol):
    """Asks a question."""

    def __call__(
        self, key: str, text: str, answers: Sequence[str], default: str | None = None
    ) -> str:
        """Return an answer: the only one, or the default, without asking, unless it is given."""


@dataclass(frozen=True)
class ResponseColumns:
    """Columns of the response.

    Attributes
    ----------
    value : str
    labels, wide : bool
        Whether values are labels; whether the table has a column for each period.
    tested, weight, weight_unit, of, unit, likelihood : str or None
        As in the configuration; a ``weight`` of people serves where no raster has them.
    n_wide : int
        Columns of periods.
    """

    value: str
    labels: bool = False
    tested: str | None = None
    weight: str | None = None
    weight_unit: str | None = None
    of: str | None = None
    unit: str | None = None
    likelihood: str | None = None
    n_wide: int = 0

    @property
    def wide(self) -> bool:
        """Whether the table has a column for each period."""
        return self.n_wide > 0


def response_columns(frame: pd.DataFrame, own_id: str, place: str, ask: Ask) -> ResponseColumns:
    """Choose the column of the response, and those of people, tested and exposure.

    Parameters
    ----------
    frame : DataFrame
        Without shapes.
    own_id : str
        Column of the ids.
    place : str
        Name of the file.
    ask : callable

    Raises
    ------
    InputError
        If no column may be a response, or a question cannot be asked.
    """
    names = [name for name in map(str, frame.columns) if name != own_id]
    dated = [name for name in names if is_period_name(name)]
    if len(dated) > 1:
        return ResponseColumns("cases", n_wide=len(dated))
    whole = [name for name in count_columns(frame) if name != own_id]
    tested = [name for name in whole if TESTED.search(plain(name))]
    named = [name for name in whole if name not in tested and CASES.search(plain(name))]
    exposures = [
        name for name in names
        if is_exposure(name) and name not in named and (numbers_of(frame[name]) > 0).any()
    ]  # fmt: skip
    people = [
        name for name in names
        if PEOPLE.search(plain(name)) and (numbers_of(frame[name]) > 0).any()
    ]  # fmt: skip
    others = [name for name in _numbers(frame, names) if name not in (*tested, *exposures)]
    words = [name for name in label_columns(frame) if name != own_id]
    surest = _surest(frame, named)
    value, is_count = _chosen(whole, surest, named, tested, words, others, ask)
    if value is None:
        text = ", ".join(map(str, frame.columns))
        what = f"no column has whole numbers from 0 that may be counts, or {_LABELLED}: {text}"
        first = f"--answer counts.value={others[0]}, say, for values" if others else ""
        remedy = f"add a column with the counts or labels{first and f', or {first}'}"
        raise InputError(Problem(place, what, remedy))
    if value in words:
        return ResponseColumns(value, labels=True)
    weight = people[0] if len(people) == 1 else None
    unit = None if weight is None else "people"
    exposures = [name for name in exposures if name != value]
    if not is_count:
        return _of_values(frame, value, exposures, weight, ask)
    numbers = numbers_of(frame[value])
    labels = set(np.unique(numbers)) <= set(LABELS.values()) and not named
    answer = NONE
    if tested:
        text = f"Are the {value} positives among the {tested[0]}?"
        answer = ask("counts.tested", text, [*tested, NONE])
    born = [name for name in exposures if _BORN.search(plain(name))]
    if born and answer == NONE:
        given = ask("counts.weight", f"What are the {value} per unit of?", [*born, NONE])
        weight, unit = (weight, unit) if given == NONE else (given, plain(given))
    return ResponseColumns(value, labels, None if answer == NONE else answer, weight, unit)


def _numbers(frame: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the columns that may be values: numbers that differ, and no people, place or date."""
    found = []
    for name in names:
        text = plain(name)
        if PEOPLE.search(text) or _PLACE.fullmatch(text) or has_dates(frame[name]):
            continue
        numbers = numbers_of(frame[name])
        if np.unique(numbers).size > 1 and (not is_whole(numbers) or _is_value(name)):
            found.append(name)
    return found


def _surest(frame: pd.DataFrame, named: Sequence[str]) -> list[str]:
    """Return which columns whose name says cases have whole numbers and no rates; else all."""
    whole = [name for name in named if is_whole(numbers_of(frame[name]))]
    return [name for name in whole if not RATE.search(plain(name))] or whole or list(named)


def _chosen(
    whole: Sequence[str],
    surest: Sequence[str],
    named: Sequence[str],
    tested: Sequence[str],
    words: Sequence[str],
    others: Sequence[str],
    ask: Ask,
) -> tuple[str | None, bool]:
    """Return the column of the response, or None, and whether it has counts."""
    which = "Which column has the counts?"
    if named:
        default = surest[0] if len(surest) == 1 else None
        return ask("counts.value", which, [*named, *words], default), True
    counts = [
        name for name in whole
        if name not in tested and name not in others and not is_exposure(name)
    ]  # fmt: skip
    sampled = [name for name in whole if _SAMPLE.search(plain(name)) and name not in others]
    told = [name for name in others if _is_value(name) and not RATE.search(plain(name))]
    if told:
        which = "Which column has the counts or values?"
        counts = [*counts, *sampled]
        default = told[0] if not counts and len(told) == 1 else None
        value = ask("counts.value", which, [*counts, *told, *words], default)
    elif counts:
        value = ask(
            "counts.value", which, [*counts, *words], counts[0] if len(counts) == 1 else None
        )
    elif words:
        which, default = "Which column has the labels?", words[0] if len(words) == 1 else None
        value = ask("counts.value", which, [*words, *sampled, *others], default)
        counts = sampled
    elif others:
        text = "No column has counts by its name. Which has the values of the areas?"
        counts = sampled
        value = ask("counts.value", text, [*sampled, *others, NONE])
    elif sampled:
        counts = sampled
        value = ask("counts.value", which, sampled)
    else:
        return None, True
    return (None if value == NONE else value), value in counts


def _of_values(
    frame: pd.DataFrame, value: str, exposures: Sequence[str], people: str | None, ask: Ask
) -> ResponseColumns:
    """Return what values are of: totals, or averages over an exposure, and their likelihood."""
    text, weight = plain(value), people
    total = bool(_TOTALS.search(text))
    average = bool(_AVERAGES.search(text) or _MEANS.search(text) or _PER.search(value.lower()))
    if total == average:
        total = bool(_ADDED.search(text)) and not average
    if exposures:
        land = [name for name in exposures if _LAND.search(plain(name))]
        crop = _TOTALS.search(text) or re.search(r"yield|rend", text)
        default = land[0] if crop and len(exposures) == len(land) == 1 else None
        asked = f"What are the {value} per unit of?"
        given = ask("counts.weight", asked, [*exposures, NONE], default)
        weight = None if given == NONE else given
    if total == average:
        over = "the exposure" if weight is None else weight
        asked = f"Is the {value} of an area an average over {over}, or a total?"
        of = ask("counts.of", asked, ["average", "total"])
    else:
        of = "total" if total else "average"
    likelihood = "gamma" if (numbers_of(frame[value]) > 0).all() else "normal"
    unit = None if weight is None else "people" if weight == people else _unit_of(weight)
    told = _told_unit(value)
    return ResponseColumns(
        value, weight=weight, weight_unit=unit, of=of, unit=told, likelihood=likelihood
    )


def _told_unit(name: str) -> str | None:
    """Return the unit that the name of a column tells: ``Yield (t/ha)``, ``yield_t_ha``."""
    bracketed = _IN_BRACKETS.search(name)
    if bracketed is not None:
        return bracketed[1]
    found = _UNIT.search(plain(name))
    return None if found is None else "/".join(each for each in found.groups() if each)


def _unit_of(name: str) -> str:
    """Return the unit of an exposure."""
    bracketed = _IN_BRACKETS.search(name)
    found = re.search(r"(?<![a-z])(ha|acres?|km2|hectares?)(?![a-z])", plain(name))
    return bracketed[1] if bracketed is not None else found[0] if found else plain(name)

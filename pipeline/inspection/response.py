"""Which column of a table has the response of the areas, and what kind of response it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    numbers_of,
)

NONE = "none"
_START, _END = r"(?<![a-z])", r"(?![a-z])"
#: Words of what a value is per unit of, people apart.
EXPOSURE = re.compile(
    rf"{_START}(ha|hectares?|acres?|km2|sqkm|sq_km|m2|area|surface|births|livestock|cattle|animals|"
    rf"households|person_?(years?|days?|months?)|py|exposure|weight)({_END}|(?=_?km2))"
)
RATE = re.compile(r"rate|ratio|risk|prevalence|per_?1_?0+|smr")
_VALUE = re.compile(
    rf"yield|rendement|rendimento|production|harvest|{_START}(mean|average|avg|median|index|score|"
    rf"level|concentration|output|price|income|expenditure|value)"
)
_TOTAL = re.compile(r"total|production|harvest|output|sum")
_AVERAGE = re.compile(r"yield|rendement|rendimento|mean|average|avg|median|index|score|per_|_per|/")
_PLACE = re.compile(r"lon(gitude)?|lat(itude)?|x|y|easting|northing")

#: Asks a question: its key, its text, and the answers that there are.
Ask = Callable[[str, str, Sequence[str]], str]


@dataclass(frozen=True)
class ResponseColumns:
    """Columns of the response.

    Attributes
    ----------
    value : str
    labels, wide : bool
        Whether values are labels; whether the table has a column for each period.
    tested, weight, weight_unit, of, likelihood : str or None
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
    tested = [name for name in whole if TESTED.search(name.lower())]
    named = [name for name in whole if name not in tested and CASES.search(name.lower())]
    plain = [name for name in whole if name not in tested and not EXPOSURE.search(name.lower())]
    people = [
        name for name in names
        if PEOPLE.search(name.lower()) and (numbers_of(frame[name]) > 0).any()
    ]  # fmt: skip
    weight = people[0] if len(people) == 1 else None
    others = [] if named else _values(frame, names, found=plain)
    value = _chosen(named or plain, others, ask)
    if value is None:
        text = ", ".join(map(str, frame.columns))
        what = f"no column has whole numbers from 0 that may be counts: {text}"
        remedy = "add a column with the counts; of values that are no counts the documentation "
        raise InputError(Problem(place, what, f"{remedy}tells (docs/values.md)"))
    if value in others:
        return _of_values(frame, names, value, weight, ask)
    numbers = numbers_of(frame[value])
    labels = set(np.unique(numbers)) <= set(LABELS.values()) and not named
    answer = NONE
    if tested:
        text = f"Are the {value} positives among the {tested[0]}?"
        answer = ask_one(ask, "counts.tested", text, [*tested, NONE])
    unit = None if weight is None else "people"
    return ResponseColumns(value, labels, None if answer == NONE else answer, weight, unit)


def _values(frame: pd.DataFrame, names: Sequence[str], found: Sequence[str]) -> list[str]:
    """Return the columns of decimals that may be values; if others may be counts, the named."""
    result = []
    for name in names:
        plain = name.lower()
        other = PEOPLE.search(plain) or EXPOSURE.search(plain) or _PLACE.fullmatch(plain)
        if other or has_dates(frame[name]):
            continue
        numbers = numbers_of(frame[name])
        if numbers.size and not is_whole(numbers) and np.unique(numbers).size > 1:
            result.append(name)
    told = [
        name for name in result if _VALUE.search(name.lower()) and not RATE.search(name.lower())
    ]
    return told or ([] if found else result)


def _chosen(counts: Sequence[str], values: Sequence[str], ask: Ask) -> str | None:
    """Return the column of the response; None if there is none."""
    both = [*counts, *values]
    if not both:
        return None
    if not counts and (len(values) > 1 or not _VALUE.search(values[0].lower())):
        text = "No column has counts. Which has values of the areas, to be mapped as such?"
        answer = ask("counts.value", text, [*values, NONE])
        return None if answer == NONE else answer
    text = (
        "Which column has the counts?" if not values else "Which column has the counts or values?"
    )
    return ask_one(ask, "counts.value", text, both)


def _of_values(
    frame: pd.DataFrame, names: Sequence[str], value: str, people: str | None, ask: Ask
) -> ResponseColumns:
    """Return what values are of: totals, or averages over an exposure, and their likelihood."""
    exposures = [
        name for name in names
        if EXPOSURE.search(name.lower()) and name != value and (numbers_of(frame[name]) > 0).any()
    ]  # fmt: skip
    weight = people
    if exposures:
        text = f"What are the {value} per unit of?"
        weight = ask_one(ask, "counts.weight", text, exposures)
    total, average = _TOTAL.search(value.lower()), _AVERAGE.search(value.lower())
    if bool(total) != bool(average):
        of = "total" if total else "average"
    else:
        over = "the exposure" if weight is None else weight
        text = f"Is the {value} of an area an average over {over}, or a total?"
        of = ask("counts.of", text, ["average", "total"])
    likelihood = "gamma" if (numbers_of(frame[value]) > 0).all() else "normal"
    unit = "people" if weight == people else weight
    return ResponseColumns(
        value, weight=weight, weight_unit=unit if weight else None, of=of, likelihood=likelihood
    )


def ask_one(ask: Ask, key: str, text: str, answers: Sequence[str]) -> str:
    """Return the only answer, or ask."""
    return answers[0] if len(answers) == 1 else ask(key, text, answers)

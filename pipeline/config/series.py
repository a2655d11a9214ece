"""The periods of a run with ``time``: their labels, times and configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from geo.core.calendar import STEPS, WEEKDAYS, Calendar
from geo.core.errors import InputError, Problem, name_first
from pipeline.storage.location import Storage

MOST = 2000  # periods: a step that is too short makes more
EXAMPLE = date(2024, 3, 1)  # of labels, in messages
MARKS = ("{period}", "{year}")
MIDDLE = (7, 2)  # month and day of the middle of a year


@dataclass(frozen=True)
class Series:
    """The periods of a run, by rising time and without a gap.

    Attributes
    ----------
    calendar : Calendar
    first, last : int
        Numbers of the first and the last period.
    spelled : mapping of str to str
        How the counts write the periods that they have, by label.
    years : tuple of int or None
        That have a file of the population, by rising year: what is in ``{year}`` of its path. None
        where the path has no ``{year}``, or lies where files cannot be listed.
    named : mapping of str to mapping of str to str
        What the files of a path with ``{period}`` have in its place, by the path as it is written
        and by label, where it is not the text of the counts.
    """

    calendar: Calendar
    first: int
    last: int
    spelled: Mapping[str, str] = field(default_factory=dict)
    years: tuple[int, ...] | None = None
    named: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def periods(self) -> tuple[str, ...]:
        """Labels of all periods, those without counts included."""
        return tuple(self.calendar.label(n) for n in range(self.first, self.last + 1))

    @property
    def times(self) -> tuple[float, ...]:
        """Times of the periods, in steps: an update does not move them."""
        return tuple(float(n) for n in range(self.first, self.last + 1))

    @property
    def season_length(self) -> float | None:
        """Steps of a season; None where a step is a year."""
        return self.calendar.season_length

    def time_of(self, label: str) -> float:
        """Return the time of a label, of the series or not."""
        number = self.calendar.number(label)
        if number is None:
            message = f"{label!r} is no {self.calendar.step}"
            raise ValueError(message)
        return float(number)

    def following(self, n: int) -> tuple[str, ...]:
        """Return the labels of the next ``n`` periods."""
        return tuple(self.calendar.label(self.last + k) for k in range(1, n + 1))

    def text(self, label: str) -> str:
        """Return how the inputs write a label: as the counts do."""
        if label in self.spelled or not self.spelled:
            return self.spelled.get(label, label)
        return self.calendar.like(int(self.time_of(label)), next(iter(self.spelled.values())))

    def label(self, text: str) -> str:
        """Return the label of a period as the counts write it; a text that is none stays."""
        number = self.calendar.number(text)
        return text if number is None else self.calendar.label(number)

    def until(self, label: str) -> Series:
        """Return the series that ends with a period."""
        return replace(self, last=int(self.time_of(label)))

    def within(self, year: int) -> str:
        """Return the label of a period in the middle of a year."""
        return self.calendar.label(self.calendar.of_day(date(year, *MIDDLE)))

    def people_years(self, label: str) -> tuple[int, int, float]:
        """Return the two years whose people make those of a period, and the share of the second.

        A year that has a file has its people in all its periods. A year without one lies between
        those around it: a file is taken as the people in the middle of its year. Before the first
        and after the last it is that one, for how a single pixel grew is no forecast of it.

        Raises
        ------
        ValueError
            If there is no file of any year.
        """
        number, years = int(self.time_of(label)), self.years
        if not years:
            message = "no year has a file of the population"
            raise ValueError(message)
        first, after = self.calendar.first(number), self.calendar.first(number + 1)
        before = [year for year in years if year <= first.year]
        later = [year for year in years if year >= first.year]
        if not before or not later or before[-1] == later[0]:
            own = before[-1] if before else later[0]
            return own, own, 0.0
        start, stop = (date(year, *MIDDLE).toordinal() for year in (before[-1], later[0]))
        middle = (first.toordinal() + after.toordinal()) / 2
        return before[-1], later[0], (middle - start) / (stop - start)

    def of(self, data: Mapping[str, Any], label: str) -> dict[str, Any]:
        """Return a configuration's values with the marks of a period replaced.

        Those of a covariate with a lag are of so many periods before, and the period of a cube is
        its first and last day: its steps are of any length.
        """
        number = int(self.time_of(label))
        found = {key: self._marked(value, number) for key, value in data.items()}
        covariates = data.get("covariates")
        if isinstance(covariates, Mapping):
            found["covariates"] = {
                name: self._marked(section, number - lag_of(section))
                for name, section in covariates.items()
            }
        if isinstance(data.get("population"), Mapping):
            found["population"] = self._people(data["population"], number)
            if data.get("grid") is None and moves(data["population"].get("path")):
                # The grid of all periods, whichever is the last: another would be another fit.
                start = self._people(data["population"], self.first)
                found["grid"] = {"like": start["path"]}
        return {**found, "period": label}

    def _people(self, section: Mapping[str, Any], number: int) -> dict[str, Any]:
        found: dict[str, Any] = self._marked(section, number)
        if self.years:
            year, _, _ = self.people_years(self.calendar.label(number))
            found["path"] = section["path"].replace(MARKS[1], str(year))
        return found

    def _marked(self, section: Any, number: int) -> Any:
        label = self.calendar.label(number)
        year = str(self.calendar.first(number).year)
        found = replaced(section, {MARKS[0]: self.text(label), MARKS[1]: year})
        path = section.get("path") if isinstance(section, Mapping) else None
        if isinstance(path, str) and (name := self.named.get(path, {}).get(label)):
            found["path"] = replaced(path, {MARKS[0]: name, MARKS[1]: year})
        if isinstance(section, Mapping) and section.get("time") == MARKS[0]:
            found["time"] = self._time(section, number)
        return found

    def _time(self, section: Mapping[str, Any], number: int) -> str:
        """Return the time of a file's bands for a period: they have dates, as calendars do."""
        if not section.get("aggregate"):
            dated = self.calendar.step in ("week", "quarter")
            return self.calendar.days(number) if dated else self.calendar.label(number)
        window = section.get("window", 1)
        first = number - (window if isinstance(window, int) and window > 0 else 1) + 1
        return self.calendar.days(number, first)


def series_of(
    data: Mapping[str, Any],
    base: Path,
    requested: str | None,
    problems: list[Problem],
    source: str,
    storage: Storage,
    listed: Callable[[dict[str, Any], Path, Storage], list[str]],
) -> Series | None:
    """Return the periods of a configuration that is not yet validated; None without ``time``.

    Parameters
    ----------
    data : mapping
        The YAML's keys and values.
    base : Path
        Base directory of relative paths.
    requested : str or None
        The last period; by default that of ``time.to``, or the latest with counts.
    problems : list of Problem
        Errors are appended.
    source : str
        The file's name, for problems.
    storage : Storage
    listed : callable
        Lists the periods with counts: :func:`pipeline.config.periods.periods_of`, which opens
        tables. What knows a series does not depend on them.
    """
    given = data.get("time")
    if not isinstance(given, Mapping):
        return None
    if data.get("labels") is not None and data.get("counts") is None:
        found, remedy = "models of labels are of one period", "remove `time`, or give counts"
        problems.append(Problem(f"{source}: time", found, remedy))
        return None
    step, day = given.get("step", "month"), given.get("week", "monday")
    if step not in STEPS or day not in WEEKDAYS:
        return None  # the validation reports it
    calendar, place = Calendar(step, day), f"{source}: time"
    example = calendar.label(calendar.of_day(EXAMPLE))
    try:
        texts = listed(dict(data), base, storage)
    except InputError as error:
        problems.extend(error.problems)
        return None
    numbers = {text: calendar.number(text) for text in texts}
    wrong = [text for text, number in numbers.items() if number is None]
    if wrong:
        found = f"{name_first(wrong)}: no {step} (time.step)"
        problems.append(Problem(place, found, f"write each as {example}"))
        return None
    spelled = {calendar.label(n): text for text, n in numbers.items() if n is not None}
    if len(spelled) < len(texts):
        found = f"the counts write one {step} in several ways: {name_first(texts, 12)}"
        problems.append(Problem(place, found, "write each in one way"))
        return None
    ends = []
    last = requested or given.get("to")
    for key, text in (("from", given.get("from")), ("to", None if last == "latest" else last)):
        number = None if text is None else calendar.number(str(text))
        if text is not None and number is None:
            found = f"{text!r} is no {step} (time.step)"
            problems.append(Problem(f"{place}.{key}", found, f"write {example}"))
            return None
        ends.append(number)
    known = sorted(n for n in numbers.values() if n is not None)
    if not known and None in ends:
        remedy = "give counts.period, the column with the period (or counts.periods: columns), "
        remedy += "or time.from and time.to"
        problems.append(Problem(place, "no period with counts was found", remedy))
        return None
    first = known[0] if ends[0] is None else ends[0]
    latest = known[-1] if ends[1] is None else ends[1]
    if latest < first:
        found = f"{calendar.label(first)}, the first period, is after {calendar.label(latest)}, "
        found += "the last with counts" if ends[1] is None else "the last"
        problems.append(Problem(place, found, "give an earlier time.from, or another time.to"))
        return None
    if latest - first >= MOST:
        found = f"{latest - first + 1:,} periods from {calendar.label(first)} to "
        found += calendar.label(latest)
        problems.append(Problem(place, found, f"give 1 to {MOST:,}, or another time.step"))
        return None
    return Series(calendar, first, latest, spelled)


def lag_of(section: Any) -> int:
    """Return the lag of a covariate's section, 0 where it has none or several."""
    given = section.get("lag") if isinstance(section, Mapping) else None
    if isinstance(given, list | tuple) and len(given) == 1:
        given = given[0]
    return given if isinstance(given, int) else 0


def moves(text: Any) -> bool:
    """Return whether an input, as the configuration writes it, differs by period."""
    if isinstance(text, str):
        return any(mark in text for mark in MARKS)
    if isinstance(text, Mapping):
        return any(moves(each) for each in text.values())
    return isinstance(text, Sequence) and any(moves(each) for each in text)


def replaced(value: Any, marks: Mapping[str, str]) -> Any:
    """Return what the configuration writes with other texts for marks such as ``{period}``."""
    if isinstance(value, str):
        for mark, text in marks.items():
            value = value.replace(mark, text)
        return value
    if isinstance(value, dict):
        return {key: replaced(item, marks) for key, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, marks) for item in value]
    return value

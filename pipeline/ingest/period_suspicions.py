"""Suspicions about the periods of the counts: after today, or years away from all others."""

from __future__ import annotations

from datetime import date

import numpy as np

from geo.core.calendar import days_of
from geo.core.columns import id_text
from geo.core.errors import InputError, name_first
from geo.core.period_text import read_periods
from geo.tables.registry import TABLES, read_table
from pipeline.config.schema import Config
from pipeline.ingest.raster_suspicions import Suspicion

N_NAMED = 5
FAR = 731  # days without a period, from which periods stand apart
FEW = 0.1  # share of the rows, from which periods may be as they should


def period_suspicions(config: Config, today: date | None = None) -> list[Suspicion]:
    """Return suspicions about periods of the counts that look like a slip of the pen.

    Periods that ``time.from`` and ``time.to`` leave out have none.

    Parameters
    ----------
    config : Config
    today : date, optional
        The day from which periods lie in the future; today by default.
    """
    spec, series = config.counts, config.series
    if spec is None or spec.path is None or spec.period is None:
        return []
    try:
        table, rows = read_table(
            spec.path, "", sheet=spec.sheet, layer=spec.layer, **spec.spelling.layout
        )
    except InputError:
        return []
    if spec.period not in table:
        return []
    texts = id_text(table[spec.period])
    known = list(dict.fromkeys(texts.dropna()))
    periods, _ = read_periods(known, spec.spelling.dayfirst)
    begins: dict[str, date] = {}
    for text, period in zip(known, periods, strict=True):
        days = None if period is None else days_of(period)
        if days is None:
            continue
        number = None if series is None else series.calendar.of_day(days[0])
        if number is None or (series is not None and series.first <= number <= series.last):
            begins[text] = days[0]
    if not begins:
        return []
    place, noun = f"counts ({spec.path})", "column" if spec.spelling.wide else "row"

    def named(which: list[str]) -> str:
        if noun == "column":
            return name_first([f"column {text!r}" for text in which], N_NAMED)
        first = {text: rows[int(np.argmax((texts == text).to_numpy()))] for text in which}
        word = TABLES.of(str(spec.path)).row_word
        return name_first([f"{word} {first[text]} ({text!r})" for text in which], N_NAMED)

    def remedy(which: list[str], key: str) -> str:
        if series is None:
            return "correct it, or name the period to map (--period)"
        kept = [begins[text] for text in begins if text not in which]
        last = max(kept, default=None) if key == "to" else min(kept, default=None)
        if last is None:
            return "correct the years"
        label = series.calendar.label(series.calendar.of_day(last))
        return f"correct it, or leave it out (time.{key}: {label})"

    found = []
    ahead = [text for text, day in begins.items() if day > (today or date.today())]
    if ahead:
        text = f"column {spec.period!r} has periods after today: {named(ahead)}"
        found.append(Suspicion("periods", place, text, remedy(ahead, "to")))
    n_row = texts[texts.isin(set(begins) - set(ahead))].map(begins).value_counts()
    early, late = _apart(dict(zip(n_row.index, n_row, strict=True)))
    for days_apart, key in ((early, "from"), (late, "to")):
        which = [text for text, day in begins.items() if day in days_apart and text not in ahead]
        if which:
            text = f"column {spec.period!r} has periods years away from all others: {named(which)}"
            leave_out = which + (ahead if key == "to" else [])
            found.append(Suspicion("periods", place, text, remedy(leave_out, key)))
    return found


def _apart(n_row: dict[date, int]) -> tuple[set[date], set[date]]:
    """Return the few days before and after a gap of years beside all others."""
    days = sorted(n_row)
    groups: list[list[date]] = []
    for day in days:
        if not groups or (day - groups[-1][-1]).days > FAR:
            groups.append([])
        groups[-1].append(day)
    size = [sum(n_row[day] for day in group) for group in groups]
    if len(groups) < 2 or max(size) < (1 - FEW) * sum(size):
        return set(), set()
    main = int(np.argmax(size))
    return (
        {day for group in groups[:main] for day in group},
        {day for group in groups[main + 1 :] for day in group},
    )

"""The page of ``disagg check --html``: every input as the model is given it, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from geo.core.errors import Problem, name_first
from pipeline.config.schema import Config
from pipeline.config.years import told_people
from pipeline.ingest.examine import Examined
from pipeline.ingest.odd_counts import N_AROUND, SPREAD
from pipeline.ingest.profile import Profile, rates_of
from pipeline.ingest.raster_suspicions import Suspicion
from pipeline.inspection.pictures import (
    draw_correlations,
    draw_layers,
    draw_people_and_counts,
    draw_periods,
    draw_places,
    draw_rates,
)
from pipeline.inspection.seen import PEOPLE, Seen
from pipeline.inspection.words import (
    percent_text,
    profile_lines,
    raster_cells,
)
from pipeline.reporting.figures import Drawn
from pipeline.reporting.render import render_still
from pipeline.reporting.tables import Cell, Sheet, sheet

CHANCE = 3.0  # square roots of the expected count: chance alone goes further in 3 of 1,000
STRONG = 0.9  # correlation from which a pair is told of
N_PAIR = 12  # pairs of the table


def page_of(
    file: Path,
    problems: Sequence[Problem],
    config: Config | None,
    examined: Examined | None,
    seen: Seen,
) -> bytes:
    """Return the page, UTF-8.

    Parameters
    ----------
    file : Path
        The configuration.
    problems : sequence of Problem
    config : Config or None
        None if it is invalid.
    examined : Examined or None
    seen : Seen
    """
    suspicions = () if examined is None else examined.suspicions
    profile = None if examined is None else examined.profile
    content: dict[str, Any] = {
        "name": str(file) if config is None else config.name,
        "file": str(file),
        "subtitle": _subtitle(config),
        "verdict": verdict_of(len(problems), len(suspicions)),
        "findings": [*(_finding(each) for each in problems), *map(_finding, suspicions)],
        "facts": []
        if profile is None
        else profile_lines(profile, periods=False),  # which have a table of their own
        "areas": None,
        "rule": "",
        "sources": None,
        "periods": None,
        "files": [],
        "layers": [],
        "shrunk": "",
        "rasters": None if profile is None or not profile.rasters else raster_sheet(profile),
        "correlations": None,
        "correlated": "",
    }
    drawn: list[Drawn] = []
    if config is not None:
        if examined is not None and not seen.areas.empty:
            drawn += _areas(config, seen, content)
        if not seen.sources.empty:
            drawn += _sources(seen, content)
        drawn += _periods(config, seen, content)
        drawn += _layers(config, profile, seen, content)
    return render_still("check.html.j2", content, drawn, ["report.css", "check.css"])


def verdict_of(n_problem: int, n_suspicion: int) -> str:
    """Return how many problems and suspicions there are, as a heading."""

    def number(n: int, word: str) -> str:
        return f"{n} {word}{'' if n == 1 else 's'}"

    text = f"{number(n_problem, 'problem')}: a run would fail" if n_problem else "No problems"
    return text + (f"; {number(n_suspicion, 'suspicion')}" if n_suspicion else "")


def _finding(each: Problem | Suspicion) -> dict[str, str]:
    heavy = isinstance(each, Problem)
    return {
        "severity": "problem" if heavy else "suspicion",
        "place": each.place,
        "found": each.found,
        "remedy": each.remedy,
        "code": "" if isinstance(each, Problem) else each.code,
    }


def _subtitle(config: Config | None) -> str:
    if config is None:
        return "The configuration is not valid: its inputs were not looked at."
    return (
        f"The inputs{f' of {config.period}' if config.period else ''}, as disagg check reads them."
    )


def raster_sheet(profile: Profile) -> Sheet:
    """Return the values of each raster's own pixels, as the terminal has them."""
    columns = ["raster", "min", "median", "max", "missing", "nodata", "pixel", "CRS", "unit"]
    rows = [[Cell(text, text) for text in raster_cells(each)] for each in profile.rasters]
    sampled = any(each.sampled for each in profile.rasters)
    note = "Pixels whose centre is in an area, before resampling and transform." + (
        " ~: from blocks of pixels drawn at random; the extremes may lie further out."
        if sampled
        else ""
    )
    return Sheet("rasters", "Rasters", note, columns, [0 < n < 5 for n in range(9)], rows)


def area_table(config: Config, seen: Seen) -> pd.DataFrame:
    """Return what is known of each area, those furthest from their neighbours first.

    Parameters
    ----------
    config : Config
    seen : Seen

    Returns
    -------
    DataFrame
        ``id``, ``name``, ``value``, ``people``, ``exposure``, ``rate`` per ``output.rate_per``,
        ``expected`` by the nearest areas, ``spreads``: how many standard deviations the rate is
        from theirs, ``odd``.
    """
    table, words = seen.areas.copy(), config.response_kind
    value, exposure = (table[key].to_numpy(np.float64) for key in ("value", "exposure"))
    table["rate"] = rates_of(value, exposure, config.output.rate_per) if words.adds_up else value
    table["expected"], table["spreads"], table["odd"] = np.nan, np.nan, False
    beside = seen.beside
    if beside is not None and beside.spread > 0:
        odd = beside.odd()
        if words.countable:  # a count of 3 is often far from one expected
            expected = np.maximum(beside.expected, 1.0)
            odd &= np.abs(beside.value - beside.expected) > CHANCE * np.sqrt(expected)
        at = table.index[beside.known]
        expected = beside.expected if words.adds_up else beside.expected / exposure[beside.known]
        table.loc[at, "expected"] = expected
        table.loc[at, "spreads"] = beside.distance / beside.spread
        table.loc[at, "odd"] = odd
    return table


def _sources(seen: Seen, content: dict[str, Any]) -> list[Drawn]:
    """Add the table of points and zones; return the map of the points."""
    table = seen.sources.dropna(axis=1, how="all")
    content["sources"] = sheet(table, "the configuration", "Sources")
    drawn = draw_places(seen)
    return [] if drawn is None else [drawn]


def _areas(config: Config, seen: Seen, content: dict[str, Any]) -> list[Drawn]:
    words = config.response_kind
    table = area_table(config, seen)
    odd = table["odd"].to_numpy(bool)
    content["rule"] = _rule(config, seen, table)
    rates = table["rate"].to_numpy(np.float64)
    label = words.rates if words.classes else f"{words.rates}, {words.rate_unit}"
    if words.classes:
        rates, label = table["value"].to_numpy(np.float64), "label (1 is positive)"
    shown = table.reindex(table["spreads"].abs().sort_values(ascending=False, kind="stable").index)
    named = {"id": "area", "name": "name", "value": words.total, "suppressed": "suppressed"}
    named |= {"people": "people"}
    named |= {"exposure": words.exposure} if words.exposure != "people" else {}
    if words.exposure == "people":  # of a column, where no raster has them
        shown["people"] = shown["exposure"]
    if not words.classes:
        named |= {"rate": label, "expected": "as around", "spreads": "spreads away"}
        named |= {"odd": "stands apart"}
    if (shown["name"] == shown["id"]).all():
        del named["name"]
    empty = [key for key in named if key != "id" and shown[key].isna().all()]
    empty += ["odd"] if seen.beside is None else []
    shown = shown[[key for key in named if key not in empty]].rename(columns=named)
    content["areas"] = sheet(
        shown, "the table of counts", f"{len(table):,} areas",
        "Furthest from their neighbours first." if seen.beside is not None else "",
    )  # fmt: skip
    drawn = [draw_rates(seen, rates, odd, label)]
    if not words.classes and words.adds_up:
        exposure, value = (table[key].to_numpy(np.float64) for key in ("exposure", "value"))
        axes = [words.exposure, words.totals]
        drawn.append(draw_people_and_counts(exposure, value, odd, table["name"].to_numpy(), axes))
    return [each for each in drawn if each is not None]


def _rule(config: Config, seen: Seen, table: pd.DataFrame) -> str:
    words = config.response_kind
    if words.classes:
        known = table["value"].notna()
        return (
            f"{int((table['value'] == 1).sum()):,} of {int(known.sum()):,} areas with a label are "
            "positive. Labels have no rates, so none can stand apart."
        )
    if seen.beside is None:
        return "Too few areas have a rate to tell which stand apart."
    scale = "on a logarithmic scale, " if words.countable else ""
    chance = (
        f", and its count more than {CHANCE:g} times the square root of the expected one from that"
        if words.countable
        else ""
    )
    odd = table.loc[table["odd"], "name"]
    told = f"None of {len(table):,} areas stands apart."
    if len(odd):
        told = f"{len(odd):,} of {len(table):,} stand apart: {name_first(list(odd), 12)}."
    return (
        f"{told} An area stands apart if its rate is, {scale}more than {SPREAD:g} standard "
        f"deviations (1.48 times the median absolute deviation of all areas) from the median rate "
        f"of its {N_AROUND} nearest areas{chance}."
    )


def _periods(config: Config, seen: Seen, content: dict[str, Any]) -> list[Drawn]:
    content["files"] = file_lines(config, seen)
    if seen.periods.shape[1] == 0:
        return []
    words = config.response_kind
    counts, hidden = (each.reset_index(drop=True) for each in (seen.periods, seen.hidden))
    content["periods"] = sheet(
        period_table(counts, hidden, words.total), "the table of counts", "Periods",
        "Areas with a value, with a suppressed one, without one, and with zero.",
    )  # fmt: skip
    drawn = draw_periods(counts, hidden, seen.areas["name"].to_numpy(), words.totals)
    return [] if drawn is None else [drawn]


def period_table(counts: pd.DataFrame, hidden: pd.DataFrame, total: str) -> pd.DataFrame:
    """Return the total of each period, and how many areas have a value, none, and zero.

    Suppressed counts (`hidden`) are in a column of their own, if there are any.
    """
    known = counts.notna()
    suppressed = {"suppressed": hidden.sum().to_numpy()} if hidden.to_numpy().any() else {}
    return pd.DataFrame(
        {
            "period": counts.columns.astype(str),
            total: counts.sum(min_count=1).to_numpy(),
            "areas": known.sum().to_numpy(),
            **suppressed,
            "missing": (~known & ~hidden).sum().to_numpy(),
            "zero": (counts == 0).sum().to_numpy(),
        }
    )


def file_lines(config: Config, seen: Seen) -> list[str]:
    """Return which periods lack a file of each layer that moves, in sentences."""
    series, said = config.series, []
    if series is None:
        return []
    ahead = series.following(config.output.forecast)
    for key, states in seen.files.items():
        labels = [*series.periods, *ahead]
        lacking = [a for a, state in zip(labels, states, strict=True) if state == "no file"]
        own = [label for label in lacking if label in series.periods]
        text = f"{key}: "
        if key == PEOPLE and series.years:  # years without a file have their people all the same
            told = told_people(series, config.output.forecast)
            said.append(f"{text}{told or 'a file of every year'}.")
            continue
        if "unknown" in states:
            text += "files at addresses, which ingest looks at"
        else:
            text += f"no file of {name_first(own, 24)}" if own else "a file of every period"
        missing = [label for label in lacking if label in ahead]
        if missing:
            text += f"; none of the forecasts {name_first(missing, 12)}: other years stand in"
        said.append(text + ".")
    if config.areas.changes is not None:
        said.append("Counts of areas before a split are shared out by people, in these pictures.")
    return said


def _layers(
    config: Config, profile: Profile | None, seen: Seen, content: dict[str, Any]
) -> list[Drawn]:
    copies = seen.copies
    if copies is None:
        return []
    units = {each.key: each.unit for each in (() if profile is None else profile.rasters)}
    labels = {name: _label(config, name, units) for name in copies.values}
    drawn = draw_layers(seen, labels)
    for name in copies.values:
        content["layers"].append(
            {"key": f"layer-{name}", "caption": _caption(config, name, copies.missing[name])}
        )
    n, side = copies.n_inside, copies.side
    content["shrunk"] = (
        f"{n:,} pixels of the grid lie in areas. "
        + (
            f"A pixel of these pictures is the mean of {side} x {side} of them. "
            if side > 1
            else ""
        )
        + f"Histograms and correlations are of {len(copies.sample):,} pixels"
        + (", drawn at random." if len(copies.sample) < n else ".")
    )
    names = [name for name in copies.values if name in config.covariates]
    table = correlations_of(copies.sample[names])
    if len(names) > 1:
        content["correlations"] = pair_sheet(table)
        strong = int((pairs_of(table)["correlation"].abs() >= STRONG).sum())
        content["correlated"] = (
            f"Pearson's, of the values that the model is given. {strong or 'No'} "
            f"pair{'' if strong == 1 else 's'} of {STRONG:g} or more"
            + (": of such two, the maps cannot tell which one matters." if strong else ".")
        )
        picture = draw_correlations(table)
        drawn += [] if picture is None else [picture]
    return drawn


def correlations_of(sample: pd.DataFrame) -> pd.DataFrame:
    """Return Pearson's correlations (n, n) between columns, of pixels that have both."""
    return sample.corr(min_periods=3)


def pairs_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return each pair of a matrix of correlations once, the strongest first."""
    upper = np.triu_indices(len(table), 1)
    frame = pd.DataFrame(
        {
            "covariate": table.index[upper[0]],
            "and": table.columns[upper[1]],
            "correlation": table.to_numpy()[upper],
        }
    ).dropna()
    order = frame["correlation"].abs().sort_values(ascending=False, kind="stable").index
    return frame.loc[order].reset_index(drop=True)


def pair_sheet(table: pd.DataFrame) -> Sheet:
    """Return the strongest pairs as a table of the page."""
    found = pairs_of(table)
    cells = [
        [Cell(a, a), Cell(b, b), Cell(f"{r:+.2f}".replace("-", "\u2212"), r)]
        for a, b, r in found.head(N_PAIR).itertuples(index=False)
    ]
    title = f"The {len(cells)} strongest of {len(found)} pairs"
    return Sheet("pairs", title, "", list(found.columns), [False, False, True], cells)


def _label(config: Config, name: str, units: dict[str, str]) -> str:
    """Return the unit of a layer as the model has it: ``log1p(mm)``."""
    if name not in config.covariates:
        return ""
    unit, transform = units.get(f"covariates.{name}", ""), config.covariates[name].transform
    unit = "" if unit == "1" else unit
    return unit if transform == "none" else f"{transform}({unit or name})"


def _caption(config: Config, name: str, missing: float) -> str:
    section = config.covariates.get(name)
    text = f"{name}: missing in {percent_text(missing)} of the pixels in areas"
    if name == PEOPLE and section is None:
        return text + "."
    if section is not None and section.table is not None:
        return text + "; a table of areas, whose pixels share its value."
    how = "" if section is None else section.resampling
    return text + (f"; resampling {how}." if how else ".")

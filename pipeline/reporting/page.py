"""The content of the page: every text and table of it, from a finished run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from models.likelihoods.likelihood import Likelihood
from models.likelihoods.registry import find_likelihood
from pipeline.config.no_spread import NO_SPREAD, spread_caution
from pipeline.config.schema import Config
from pipeline.core.plurals import areas_text
from pipeline.evaluation.calibration_summary import KEY as CALIBRATION
from pipeline.evaluation.calibration_summary import LIMIT, calibration_line, calibration_table
from pipeline.evaluation.forecasts import tell_forecasts
from pipeline.evaluation.report import area_table, label_table, label_truth_table, truth_table
from pipeline.evaluation.trust_report import checks_table, trust_lines
from pipeline.evaluation.verdict import KEY as VERDICT
from pipeline.evaluation.verdict import without_figures
from pipeline.products.suppressed import count_texts, ends_of, is_suppressed
from pipeline.reporting import asked
from pipeline.reporting.effects import effects
from pipeline.reporting.in_time import PartsInTime
from pipeline.reporting.tables import Cell, Sheet, balance_sheet, cell, name_column
from pipeline.reporting.words import (
    answers,
    cautions,
    hyperparameters,
    influence,
    number,
    percent,
    sentence,
)
from pipeline.store.balance import balance_rows
from pipeline.training.modes import KEY as OVERDISPERSION

PART = "\u2013 "  # before rows that are parts of the row above
LINES = (
    " Over time: the {rate} in each period, from 0 to the largest of the area, forecasts in red; "
    "sorted by the last known one over the mean."
)
N_FIRST = 4  # cautions of the first screen


@dataclass(frozen=True)
class Found:
    """What the stages of a run left.

    Attributes
    ----------
    config : Config
    record : mapping
        Of the stages.
    evaluation, balance : dict or None
    areas : DataFrame
        Table of areas, (n_area, ...).
    names : list of str
        Name of each area.
    lines : dict
        The rate of each area over time as a small line, by id; empty for one period.
    sizes : dict
        ``n_areas``, ``n_pixels``; ``shape`` and ``crs`` of the grid where pixels are mapped;
        ``n_values`` of a series.
    others : dict
        Lists of further tables: ``points``, ``targeting``, ``levels``, ``comparison``.
    points : list of str
        What was left out of each source beside the areas, in sentences.
    in_time : PartsInTime or None
        Of a series.
    """

    config: Config
    record: Mapping[str, Any]
    evaluation: dict[str, Any] | None
    balance: dict[str, Any] | None
    areas: pd.DataFrame
    names: list[str]
    lines: dict[str, Cell]
    sizes: dict[str, Any]
    others: dict[str, list[Sheet]]
    points: list[str] = field(default_factory=list)
    in_time: PartsInTime | None = None


def _forecasts(evaluation: Mapping[str, Any] | None) -> list[str]:
    """Return what forecasts of the past were worth, a sentence for each number of periods."""
    return tell_forecasts((evaluation or {}).get("forecasts") or {})


def _of_model(config: Config, predicted: Mapping[str, Any]) -> list[str]:
    """Return what to beware of by the model itself: it comes before what was measured."""
    unsure = spread_caution(config)
    own = [sentence(unsure)] if unsure else []
    return own + (_of_areas_alone(config) if predicted.get("n_pix") == 0 else [])


def _once(sentences: list[str]) -> list[str]:
    return list(dict.fromkeys(sentences))


def _of_areas_alone(config: Config) -> list[str]:
    """Say what a model that predicts areas alone, and no pixels, says of those of the fit."""
    return [
        f"Areas of the fit have the {config.response_kind.given_values} that they came with: "
        f"{config.model.kind} repeats them. Scores of hidden areas alone say how well it predicts."
    ]


def page_content(found: Found) -> dict[str, Any]:
    """Return what the template of the page names."""
    config, evaluation = found.config, found.evaluation
    words = config.response_kind
    one = words.against
    fit = found.record.get("fit", {}).get("summary", {})
    predicted = found.record.get("predict", {}).get("summary", {})
    own = _of_model(config, predicted)
    said = evaluation, fit, found.balance, one
    warnings = _once(own + cautions(*said))
    first = _once(own + cautions(*said, technical=False))
    scaled = predicted.get("reconciled") or {}
    warnings += [sentence(f"totals contradict: {each}") for each in scaled.get("conflicts", [])]
    influenced, groups = influence(evaluation)
    return {
        "name": config.name,
        "period": config.period,
        "words": words,
        "subtitle": _subtitle(found),
        "one": one,
        "answers": answers(evaluation, words.given_values, one),
        "verdict": None if evaluation is None else sentence(evaluation[VERDICT]["sentence"]),
        "told": sentence(
            without_figures(evaluation)
            or f"nobody has measured whether the map is better than {one}"
        ),
        "first": first[:N_FIRST],
        "warnings": warnings,
        "reconciled": reconciled_words(config, scaled),
        "asked": asked.what_was_asked(config, found.sizes, scaled),
        "configuration": asked.configuration(config),
        "balance": None
        if found.balance is None
        else balance_sheet(
            found.balance,
            [(f"{PART if part else ''}{w}", p, c) for w, part, p, c in balance_rows(found.balance)],
        ),
        "left_out": [*used(found), *left_out(found.record, found.points)],
        "spread": config.model.has_spread,
        "mapped": "pixel" if found.sizes.get("shape") else "area",
        "areas": areas_sheet(found),
        "others": found.others,
        "coverage": coverage_sentence(found),
        "forecasts": [sentence(each) for each in _forecasts(evaluation)],
        "scores": [] if evaluation is None else score_sheets(evaluation),
        "checks": []
        if evaluation is None
        else [sentence(each) for each in trust_lines(evaluation)],
        "calibration": calibration_words(evaluation),
        "limit": sentence(LIMIT),
        "effects": effects(
            fit, words, () if config.series is None else config.moving(), config.period
        ),
        "overdispersion": (fit.get(OVERDISPERSION) or {}).get("sentence"),
        "hyperparameters": hyperparameters(
            fit, _likelihood(config), None if found.in_time is None else found.in_time.meaning
        ),
        "influence": influenced,
        "groups": groups,
        "citation": asked.citation(config, found.sizes),
        "command": asked.command(config),
        "versions": asked.versions(found.record),
        "fingerprints": asked.fingerprints(found.record, config),
        "evaluated": evaluation is not None,
    }


def _likelihood(config: Config) -> Likelihood | None:
    """Return the likelihood, the area effect included; None where there is none."""
    if config.response_kind.given.likelihood is None:
        return None
    return find_likelihood(config.model.likelihood, area_effect=config.model.has_area_effect)


def reconciled_words(config: Config, scaled: Mapping[str, Any]) -> list[str]:
    """Return which maps are scaled to given totals, and by how much, in sentences.

    Parameters
    ----------
    config : Config
    scaled : mapping
        What the predict stage says of it; empty where it does not.
    """
    to = asked.reconciled_to(config, scaled)
    if to is None:
        return []
    said = [
        f"Maps and columns called “reconciled” are scaled so that they add up to {to}. All other "
        "maps and numbers of this page are not.",
        *(sentence(each) for each in scaled.get("not_kept", [])),
    ]
    for level, each in (scaled.get("factors") or {}).items():
        (low_id, low), (high_id, high) = each["least"], each["largest"]
        said.append(
            f"Factors of the level {level}: {number(low)} in {low_id} to {number(high)} "
            f"in {high_id}, half of them below {number(each['middle'])}. Far from 1 the model and "
            "the total disagree."
        )
    return said


def _subtitle(found: Found) -> str:
    words = found.config.response_kind
    fitted = found.areas["in_training"].astype(bool)
    text = words.quantity.capitalize() + words.in_unit(" in {}")
    series, n_fitted = found.config.series, int(fitted.sum())
    if series is None:
        text += f", from the {words.given_values} of {n_fitted:,} areas"
    else:
        text += f", from the {words.given_values} of areas in {asked.periods(series)}; in "
        text += f"{found.config.period} of {n_fitted:,} areas"
    if words.countable:
        own = found.areas.loc[fitted]
        text += f" ({number(float(own['observed'].sum()))} {words.total}"
        hidden = int(is_suppressed(own).sum())
        text += f" and {hidden:,} suppressed)" if hidden else ")"
    n_other = int(_predicted(found.areas).sum())
    if n_other:
        text += f"; {n_other:,} more {'area is' if n_other == 1 else 'areas are'} predicted"
    return f"{text}."


def _predicted(areas: pd.DataFrame) -> pd.Series:
    """Return which areas are not in the fit and have a rate or a probability all the same."""
    estimate = "fitted_rate" if "fitted_rate" in areas else "probability"
    predicted: pd.Series = areas[estimate].notna() & ~areas["in_training"].astype(bool)
    return predicted


def used(found: Found) -> list[str]:
    """Return which values and pixels the map is from, in a sentence; empty if it is not known."""
    config, sizes = found.config, found.sizes
    own = found.record.get("ingest", {}).get("summary", {}).get("left_out") or {}
    if not own.get("of_pixels"):
        return []
    n_all, of, n = len(found.areas), own["of_pixels"], own["of_pixels"] - own["pixels"]
    values = asked.given_values(config, sizes)
    if config.series is None:
        values = f"the {config.response_kind.given_values} of {values}"
    pixels = f"all {n:,}" if n == of else f"{n:,} of the {of:,}"
    said = f"The map is from {values}, and {pixels} pixels of {n_all:,} areas"
    said += " (a pixel of a border counts in each of its areas)"
    n_other = int(_predicted(found.areas).sum())
    if config.series is None and n_other:
        lacking = f"{areas_text(n_other)} without a {config.response_kind.noun}"
        said += f"; {sizes['n_pixels']:,} of them are in the fit, the others in {lacking}"
    return [f"{said}."]


def left_out(record: Mapping[str, Any], points: Sequence[str] = ()) -> list[str]:
    """Return which pixels, areas and points ingest left out, in sentences.

    Parameters
    ----------
    record : mapping
        Of the stages.
    points : sequence of str, optional
        Sentences about the sources beside the areas.
    """
    own = record.get("ingest", {}).get("summary", {}).get("left_out") or {}
    said = []
    if own.get("pixels"):
        parts = [
            f"{own[key]:,} {text}"
            for key, text in (
                ("no_covariate", "lack a covariate"),
                ("no_population", "lack a population"),
                ("nobody", "have no people"),
            )
            if own.get(key)
        ]
        why = f": {', '.join(parts)} (a pixel may lack several)" if parts else ""
        said.append(f"{own['pixels']:,} of {own['of_pixels']:,} pixels were left out{why}.")
    missing = {key: n for key, n in (own.get("by_covariate") or {}).items() if n}
    if missing:
        listed = ", ".join(f"{name} {n:,}" for name, n in missing.items())
        said.append(f"Pixels that a covariate lacks: {listed}.")
    if own.get("areas"):
        said.append(f"Areas that were left out: {', '.join(map(str, own['areas']))}.")
    return [*said, *points] or ["No pixel and no area was left out."]


def areas_sheet(found: Found) -> Sheet:
    """Return the table of all areas: what readers look for, with short headings."""
    config, areas = found.config, found.areas
    # The first column has the ids; its name is not always the user's.
    key, level = str(areas.columns[0]), percent(config.output.interval)
    response = config.response_kind
    ends = f"{level} interval of" if config.model.has_spread else f"no interval ({NO_SPREAD}), but"
    more = {"ends": ends, "level": level, "Rates": response.rates.capitalize()}
    note = response.fill(response.sheet_note, **more)
    named = name_column(areas, key, config.areas.name)
    columns, numeric, cells = ["area"], [False], [[Cell(n, n) for n in found.names]]
    if named != key:
        columns, numeric = [*columns, key], [*numeric, False]
        cells.append([cell(str(value)) for value in areas[key]])
    if found.lines:
        columns, numeric = [*columns, "over time"], [*numeric, True]
        cells.append([found.lines.get(str(value), Cell("", "")) for value in areas[key]])
        note += LINES.format(rate=response.quantity)
    for name, heading in response.sheet_columns.items():
        if name not in areas:
            continue
        columns.append(response.fill(heading))
        numeric.append(True)
        cells.append([cell(float(value)) for value in areas[name].to_numpy(np.float64)])
        if name == "observed":
            cells[-1] = [
                own if text is None else Cell(text, least)
                for own, text, least in zip(
                    cells[-1], count_texts(areas), ends_of(areas)[0], strict=True
                )
            ]
    if not areas["in_training"].all():
        columns, numeric = [*columns, "in the fit"], [*numeric, False]
        cells.append([cell(bool(value)) for value in areas["in_training"]])
    rows = [list(row) for row in zip(*cells, strict=True)]
    return Sheet("areas", f"{len(rows):,} areas", note, columns, numeric, rows)


def coverage_sentence(found: Found) -> str:
    """Return how many areas lie inside their predictive interval; empty for labels."""
    table = found.areas
    if "count_lower" not in table:
        return ""
    known = table[np.isfinite(ends_of(table)[0].to_numpy(np.float64))]
    if known.empty:
        return ""
    least, most = ends_of(known)
    inside = (known["count_lower"] <= most) & (least <= known["count_upper"])
    level = percent(found.config.output.interval)
    return (
        f"{percent(float(inside.mean()))} of the areas lie inside their {level} predictive "
        f"interval{_ends(found)}. The model has seen these areas: hidden areas, below, are the "
        "fair test."
    )


def _ends(found: Found) -> str:
    """Say why the table of scores has less: of whole numbers, many lie on an end."""
    scores = (found.evaluation or {}).get("in_sample") or {}
    own = (scores.get("intervals") or {}).get(f"{found.config.output.interval:g}") or {}
    covered = own.get("coverage")
    if not found.config.response_kind.countable or covered is None:
        return ""
    total = found.config.response_kind.total
    return (
        f", its ends included; the table of scores counts an area whose {total} are one of its "
        f"ends in part, as chance would, and so has {percent(covered)} in sample"
    )


def score_sheets(evaluation: dict[str, Any]) -> list[Sheet]:
    """Return the tables of an evaluation, as the console prints them."""
    labels = "auc" in evaluation["in_sample"]
    found = [("Scores", label_table(evaluation, "areas") if labels else area_table(evaluation))]
    if "truth" in evaluation:
        table = label_truth_table if labels else truth_table
        found.append(("Against the truth", table(evaluation["truth"])))
    if "predictive_checks" in evaluation:
        found.append(("Predictive checks", checks_table(evaluation["predictive_checks"])))
    return [of_rich(table, title) for title, table in found]


def of_rich(table: Table, title: str) -> Sheet:
    """Return a table of the console as one of the page."""
    columns = [str(each.header).replace("\n", " ") for each in table.columns]
    texts = [[str(text).replace("+-", "±") for text in each.cells] for each in table.columns]
    cells = [[Cell(text, text) for text in each] for each in texts]
    rows = [list(row) for row in zip(*cells, strict=True)]
    numeric = [n > 0 for n in range(len(columns))]
    return Sheet(title.lower(), title, "", columns, numeric, rows)


def calibration_words(evaluation: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the calibration by simulation: a sentence, and a table where it was measured."""
    found = (evaluation or {}).get(CALIBRATION)
    if evaluation is None or not found:
        return None
    line = calibration_line(evaluation)
    table = None
    if "pixels" in found:
        empty = Table("", "true rates by pixel", "true rates by people", "areas")
        table = of_rich(calibration_table(found, empty), "Intervals in simulations")
    return {"line": None if line is None else sentence(line), "table": table}

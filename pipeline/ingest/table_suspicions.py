"""Suspicions about the text of the table of counts or labels."""

from __future__ import annotations

import geopandas as gpd
import numpy as np
import pandas as pd

from geo.core.columns import (
    AREA_ID,
    attribute_columns,
    id_text,
    is_missing,
    name_column,
    same_but_for_spelling,
)
from geo.core.errors import InputError, name_first
from geo.sources.boundary_formats import takes_encoding
from geo.tables.encodings import garbled, likely_encoding
from geo.tables.registry import TABLES, read_table
from geo.tables.response_column import MOST_CHARACTERS, MOST_UNKNOWN
from geo.tables.table_csv import WINDOWS
from pipeline.config.input_schema import Areas
from pipeline.config.level_schema import LevelAreas
from pipeline.config.schema import Config
from pipeline.ingest.counted import area_changes
from pipeline.ingest.raster_suspicions import Suspicion
from pipeline.ingest.responses import place_of, suppression_of
from pipeline.ingest.without_counts import own_file

N_NAMED = 5
MOST_ROWS = 1_000_000  # that are looked at one by one


def table_suspicions(config: Config, areas: gpd.GeoDataFrame) -> list[Suspicion]:
    """Return suspicions about the text of the table: its encoding, ids, rows that were cut.

    An id is suspicious if it is that of an area but for its spelling.
    """
    spec = config.response
    where = "column of the areas" if own_file(config) else spec.path
    place = f"{config.model.responses} ({where})"
    found: list[Suspicion] = []
    table = None
    if spec.path is not None:
        try:
            table, rows = read_table(
                spec.path, "", sheet=spec.sheet, layer=spec.layer, **spec.spelling.layout
            )
        except InputError:
            return found
        if len(table) > MOST_ROWS:  # no table of areas: what is wrong with it is a problem
            return found
    frame = areas if table is None else table
    at, word = (np.arange(1, len(areas) + 1), "feature")
    if spec.path is not None and table is not None:
        at, word = rows, TABLES.of(str(spec.path)).row_word
    found += _value_suspicions(config, frame, place, [f"{word} {row}" for row in at])
    if table is None:
        return found
    if short := table.attrs.get("short"):
        cut = name_first([f"row {row}" for row in short], N_NAMED)
        text = f"has rows with fewer cells than its header: {cut}; the rest is taken as empty"
        found.append(Suspicion("cells", place, text, "complete them, or see where they were cut"))
    if spec.encoding is None and table.attrs.get("encoding") == WINDOWS:
        cells = zip(rows, zip(*(table[name] for name in table), strict=True), strict=True)
        accented = (f"{t!r} in row {row}" for row, each in cells for t in each if _accented(t))
        cell = next(accented, f"the columns {', '.join(table.columns)}")
        text = f"is not UTF-8 text; it is read as {WINDOWS}, which makes {cell}"
        remedy = f"if that is right, set {config.model.responses}.encoding: {WINDOWS}, else another"
        found.append(Suspicion("encoding", place, text, remedy))
    if spec.id not in table.columns or spec.match != "exact" or spec.crosswalk is not None:
        return found
    changes = area_changes(config, areas, [])
    former = set() if changes is None else changes.former
    given, known = set(id_text(table[spec.id]).dropna()) - former, set(areas[AREA_ID].dropna())
    unknown = {text for text in given - known if len(text) <= MOST_CHARACTERS}
    pairs = [] if len(unknown) > MOST_UNKNOWN else same_but_for_spelling(unknown, known - given)
    if pairs:
        many = f"{len(pairs)} ids differ" if len(pairs) > 1 else "1 id differs"
        text = f"{many} from those of areas in their spelling alone: " + name_first(
            [f"{a!r} is {b!r}" for a, b in pairs], N_NAMED
        )
        found.append(Suspicion("ids", place, text, "write them as the areas do"))
    return found


def _value_suspicions(
    config: Config, frame: pd.DataFrame, place: str, rows: list[str]
) -> list[Suspicion]:
    """Return suspicions about the column of the counts: it has the ids, or no count is known."""
    spec, suppression = config.response, suppression_of(config)
    own, column = spec.id or config.areas.id, spec.value
    names = list(map(str, frame.columns))
    if names.count(column) != 1 or names.count(own) != 1:
        return []
    values, ids = frame[column], id_text(frame[own])
    if column == own or (len(ids) > 1 and ids.nunique() > 1 and ids.equals(id_text(values))):
        text = f"column {column!r} has the ids of the areas"
        key = f"{config.model.responses}.value"
        text += "" if column == own else f", as {own!r} has"
        return [Suspicion("column", place, text, f"name the column of the cases: {key}")]
    hidden = [suppression.interval(value) is not None for value in values]
    given = [v for v, each in zip(values, hidden, strict=True) if each or not is_missing(v)]
    if given and sum(hidden) == len(given):
        text = f"column {column!r} has intervals alone, such as {str(given[0]).strip()!r}: no count"
        text += " is known"
        remedy = "ask for the counts, or for those of longer periods or larger areas: from "
        remedy += "intervals alone a map tells little"
        return [Suspicion("suppressed", place, text, remedy)]
    return _unweighted(config, frame, place, rows)


def _unweighted(
    config: Config, frame: pd.DataFrame, place: str, rows: list[str]
) -> list[Suspicion]:
    """Return the suspicion that rows have a value, and no weight or number tested beside it."""
    spec = config.counts
    other = None if spec is None else spec.tested or spec.weight
    if spec is None or other is None or list(map(str, frame.columns)).count(other) != 1:
        return []
    ids = id_text(frame[spec.id or config.areas.id])
    cells = zip(frame[spec.value], frame[other], rows, ids, strict=True)
    alone = [
        f"{row} (id {own})"
        for value, weight, row, own in cells
        if is_missing(weight) and not is_missing(value)
    ]
    if not alone:
        return []
    text = f"column {spec.value!r} has a value and column {other!r} none in "
    text += f"{name_first(alone, N_NAMED)}: taken as no value"
    return [Suspicion("cells", place, text, f"complete column {other!r}")]


def encoding_suspicions(
    key: str, spec: Areas | LevelAreas, areas: gpd.GeoDataFrame
) -> list[Suspicion]:
    """Return a suspicion about ids or names of areas that were read in another encoding.

    Parameters
    ----------
    key : str
        ``areas``, or that of a level.
    spec : Areas or LevelAreas
    areas : GeoDataFrame
    """
    for column in filter(None, (spec.id, spec.name or name_column(attribute_columns(areas)))):
        wrong = garbled(areas[column]) if column in areas.columns else []
        if not wrong:
            continue
        text = (
            f"column {column!r} has {len(wrong)} text(s) that do not decode, such as {wrong[0]!r}"
        )
        remedy, likely = "correct the texts of the file", likely_encoding(wrong)
        if takes_encoding(spec.path):
            remedy = f"set {key}.encoding to the one that the file was written in"
            if likely is not None:
                made = wrong[0].encode("latin-1").decode(likely)
                remedy = f"set {key}.encoding: {likely}, which makes it {made!r}, or another"
        return [Suspicion("encoding", f"{key} ({spec.path})", text, remedy)]
    return []


def tested_suspicions(
    config: Config, areas: gpd.GeoDataFrame, tested: pd.Series, people: np.ndarray
) -> list[Suspicion]:
    """Return a grave suspicion about areas with fewer people than were tested.

    Parameters
    ----------
    config : Config
    areas : GeoDataFrame
    tested : (n_area,) Series
        By id, NaN where missing.
    people : (n_area,) float64 array
        People of the areas; areas without any are reported elsewhere.
    """
    over = (tested > people) & (people > 0)
    if not over.any():
        return []
    own = "column of the areas" if own_file(config) else config.response.path
    place = place_of(config, areas, f"{config.model.responses} ({own})", over)
    first = int(np.flatnonzero(over.to_numpy())[0])
    column = getattr(config.response, "tested", "")
    text = f"column {column!r} has more tested people than live there by the population"
    text += f" ({tested.iloc[first]:,.10g} of {people[first]:,.4g})"
    remedy = "check the numbers tested, and whether the population is in thousands"
    remedy += " (population.scale: 1000) or per km2 (population.density: true)"
    return [Suspicion("tested", place, text, remedy, grave=True)]


def _accented(text: object) -> bool:
    return isinstance(text, str) and not text.isascii()

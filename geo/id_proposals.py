"""Which key would make the ids of a table those of areas: it is proposed, never set."""

from __future__ import annotations

import re

import geopandas as gpd
import pandas as pd

from geo.columns import attribute_columns, id_text, same_but_for_spelling

_PERIOD_NAME = re.compile(
    r"period|p[eé]riode|year|month|week|date|day|quarter|ann[eé]e|mois|semaine|a[nñ]o|mes|semana|"
    r"ano|m[eê]s",
    re.IGNORECASE,
)


def by_period(table: pd.DataFrame, ids: pd.Series) -> str:
    """Return the remedy that a column tells the repeated rows apart by their period, or ""."""
    for column in table.columns:
        if not _PERIOD_NAME.fullmatch(str(column)):
            continue
        both = pd.DataFrame({"id": ids, "period": id_text(table[column])})
        if not both.duplicated().any():
            return f"; if each period has a row of its own, set counts.period: {column}"
    return ""


def pairing(
    given: set[str],
    known: set[str],
    id_column: str,
    table: pd.DataFrame,
    areas: gpd.GeoDataFrame,
    key: str,
) -> str:
    """Return the key that pairs the ids of a table with those of areas, "" if none does.

    Another column may have the ids of the other file: names in place of codes, say. Most of them
    have to be in it. Else ids may be the same but for their spelling.

    Parameters
    ----------
    given, known : set of str
        Ids of the table, and of the areas.
    id_column : str
    table, areas : DataFrame
    key : str
        Section of the table: ``counts`` or ``labels``.
    """
    pairs = same_but_for_spelling(given - known, known - given)
    spelt = ""
    if pairs:
        (theirs, ours), many = pairs[0], f" and {len(pairs) - 1} more so" if pairs[1:] else ""
        spelt = (
            f"if {theirs!r} is {ours!r}{many}, set {key}.match: spelling, which leaves capitals, "
            "accents, blanks and leading zeros out"
        )
    least = 0.5 * max(len(given), 1)
    if len(given & known) >= least:
        return spelt
    for column in attribute_columns(areas):
        texts = id_text(areas[column])
        if texts.is_unique and len(given & set(texts.dropna())) > least:
            return f"the areas have these ids in column {column!r}: set areas.id: {column}"
    for column in map(str, table.columns):
        texts = set(id_text(table[column]).dropna()) if column != id_column else set()
        if len(texts & known) > 0.5 * max(len(texts), 1):
            return f"column {column!r} has the areas' ids: set {key}.id: {column}"
    return spelt

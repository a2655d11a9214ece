"""Which key would make the ids of a table those of areas: it is proposed, never set."""

from __future__ import annotations

import re
from collections.abc import Iterable

import geopandas as gpd
import pandas as pd

from geo.core.columns import AREA_ID, attribute_columns, folded, id_text, same_but_for_spelling
from geo.core.period_text import read_periods, time_order

PERIOD_NAME = re.compile(
    r"(.*[ _-])?(period|p[eé]riode|year|month|week|date|day|quarter|ann[eé]e|mois|semaine|a[nñ]o|"
    r"mes|semana|ano|m[eê]s)s?([ _-].*)?",
    re.IGNORECASE,
)
_WEEK_NAME = re.compile(r"week|sem", re.IGNORECASE)
_YEAR = re.compile(r"(19|20)\d\d")
_DATE = re.compile(r"(19|20)\d\d(\d\d|\d{4}|\D.*)?")
_FEW = 0.1  # of the repeated rows: these may be mistakes


def by_period(table: pd.DataFrame, ids: pd.Series, value: str, period: str | None) -> str:
    """Return the remedy that periods tell the repeated rows apart, "" if no column has them.

    A column has periods by what is in it, or by its name. Numbers of months or weeks are periods
    beside the column of their year alone, if there is one.

    Parameters
    ----------
    table : DataFrame
        All rows, those of other periods included.
    ids : (n_row,) Series
    value : str
        Column of the counts.
    period : str or None
        Column that is the period already.
    """
    columns = {name: id_text(table[name]) for name in map(str, table.columns) if name != value}
    years = [name for name, texts in columns.items() if _all(_YEAR, texts)]
    many = _FEW * ids.duplicated().sum()
    for name, texts in columns.items():
        periods, refused = read_periods(texts)
        dated = not refused and _all(_DATE, periods)
        if texts.nunique() < 2 or not (dated or PERIOD_NAME.fullmatch(name)):
            continue
        year = next((each for each in years if not dated), None)
        parts = [ids, texts] if year is None else [ids, texts, columns[year]]
        if pd.concat(parts, axis=1).duplicated().sum() > many:
            continue
        kind = "W05" if _WEEK_NAME.search(name) else "03"
        if year is not None:
            such = f"write both in one, such as {columns[year].dropna().iloc[0]}-{kind}"
            both = f"columns {year!r} and {name!r} tell the periods apart"
            return f"; if {both}, {such}, and set counts.period to it"
        if name == period:
            continue
        if not refused and time_order(texts.dropna()) is not None:
            return f"; if each period has a row of its own, set counts.period: {name}"
        such = f"write it such as 2024-{kind}, and set counts.period: {name}"
        return f"; if {name!r} is the period, {such}"
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

    Ids may be the same but for their spelling. Else another column may have the ids of the other
    file: names in place of codes, say. Most of them have to be in it. Numbers that may only count
    rows are the same in any two files: they pair ids only where another column agrees.

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
    if len(given & known) + len(pairs) >= 0.5 * max(len(given), 1):
        return spelt
    own = {column: id_text(areas[column]) for column in attribute_columns(areas)}
    others = {column: id_text(table[column]) for column in map(str, table.columns)}
    ids = others.pop(id_column)
    ours = areas[AREA_ID]
    for loose, match in ((False, ""), (True, f" and {key}.match: spelling")):
        for column, texts in own.items():
            if _pairs(ids, texts, others, own, loose=loose):
                keys = f"set areas.id: {column} and {key}.id: {id_column}{match}"
                return f"the areas have these ids in column {column!r}: {keys}"
        for column, texts in others.items():
            if _pairs(texts, ours, others, own, loose=loose):
                return f"column {column!r} has the areas' ids: set {key}.id: {column}{match}"
    return spelt


def _all(pattern: re.Pattern[str], texts: Iterable[str | None]) -> bool:
    known = [text for text in texts if text]
    return bool(known) and all(map(pattern.fullmatch, known))


def _pairs(
    ids: pd.Series,
    texts: pd.Series,
    others: dict[str, pd.Series],
    own: dict[str, pd.Series],
    *,
    loose: bool,
) -> bool:
    """Return whether most ids of a table are among the texts of areas, each once."""
    if loose:
        ids, texts = (each.map(folded, na_action="ignore") for each in (ids, texts))
    known = texts.dropna()
    if not known.is_unique or ids.dropna().drop_duplicates().isin(set(known)).mean() <= 0.5:
        return False
    if not _counts_rows(known):
        return True
    at = ids.map(pd.Series(known.index, index=known)).dropna().astype(int)
    for mine in others.values():
        left = mine[at.index].fillna("").map(folded)
        if left.nunique() > 1 and not _counts_rows(mine):
            for theirs in own.values():
                right = theirs[at].fillna("").map(folded)
                if (left.to_numpy() == right.to_numpy()).mean() > 0.5:
                    return True
    return False


def _counts_rows(texts: pd.Series) -> bool:
    """Return whether texts may only count the rows: whole numbers that are close together."""
    known = texts.dropna()
    numbers = [int(text) for text in known if re.fullmatch("0|[1-9][0-9]{0,17}", text)]
    return 0 < len(known) == len(numbers) > (max(numbers) - min(numbers)) / 2

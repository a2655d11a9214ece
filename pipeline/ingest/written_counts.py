"""Suspicions about how single counts are written: ``1 234`` or ``3.5`` among plain digits.

Marks that can be read in two ways (``1.234``) are problems, told where the column is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd

from geo.core.columns import AREA_ID, WHOLE, id_text, is_missing
from geo.core.errors import InputError, name_first
from geo.core.period_text import read_periods
from geo.tables.registry import TABLES, read_table
from pipeline.config.schema import Config
from pipeline.ingest.odd_counts import FEW, FRACTIONS
from pipeline.ingest.raster_suspicions import Suspicion
from pipeline.ingest.responses import suppression_of
from pipeline.ingest.without_counts import own_file
from pipeline.store.level_areas import titles_of

N_NAMED = 5
MOST_ROWS = 1_000_000  # that are looked at one by one
THOUSAND = 1000
# Digits in groups of three, as of thousands.
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:\D+\d{3})+")
_APART = re.compile(r"\d[\s.,'\u2019\u02bc`\u00b4]+\d")


@dataclass(frozen=True)
class _Part:
    """Rows of the counts of one period: the file, the period, the rows and their number each."""

    path: str
    period: str
    table: pd.DataFrame
    rows: np.ndarray
    word: str


@dataclass
class _Written:
    """How the cells of a column are written.

    ``apart`` and ``broken`` have the path and a text of each cell with a mark among its digits
    that is read as a whole number, and of each that is not whole; ``n_plain`` and ``n_positive``
    are numbers of cells, and ``long`` says whether plain digits reach a thousand.
    """

    apart: list[tuple[str, str]] = field(default_factory=list)
    broken: list[tuple[str, str]] = field(default_factory=list)
    n_plain: int = 0
    n_positive: int = 0
    long: bool = False
    grouped: bool = True
    marks: set[str] = field(default_factory=set)

    def add(self, path: str, value: Any, number: float, where: str) -> None:
        """Look at a cell that is a number."""
        text = " ".join(str(value).split())
        self.n_positive += number > 0
        if number % 1 > 0:
            self.broken.append((path, f"{where}: {text!r}, read as {number:.10g})"))
        elif isinstance(value, str) and _APART.search(text) and not WHOLE.match(text):
            self.apart.append((path, f"{where}: {text!r}, read as {number:.10g})"))
            self.marks.update(re.sub(r"\w", "", text))
            self.grouped = self.grouped and _GROUPED.fullmatch(text) is not None
        else:
            self.n_plain += 1
            self.long = self.long or number >= THOUSAND

    @property
    def mixed(self) -> bool:
        """Whether the marks are a slip: few have one, or other thousands have none."""
        n_apart = len(self.apart)
        most_plain = self.n_plain > n_apart + len(self.broken)
        few = n_apart <= max(1.0, FEW * (self.n_plain + n_apart))
        return n_apart > 0 and most_plain and (few or self.long)


def words_suspicions(config: Config, areas: gpd.GeoDataFrame) -> list[Suspicion]:
    """Return suspicions about words for no value, such as n/a, in any period that the run reads."""
    spec, found = config.response, []
    titles = dict(zip(areas[AREA_ID], titles_of(areas, config.areas.name), strict=True))
    for column in filter(None, (spec.value, getattr(spec, "tested", None))):
        each = [
            (part.path, f"{_where(part, row, area, titles)}: {value.strip()!r})")
            for part in _parts(config, areas)
            for value, row, area in _cells(config, part, column)
            if isinstance(value, str) and value.strip() and is_missing(value)
        ]
        if each:
            named = name_first([said for _, said in each], N_NAMED)
            what = "these areas are predicted alone"
            if config.series is not None:
                what = "these are taken as missing"
            remedy = f"{what}; write 0 where nobody fell ill, else nothing"
            place = f"{config.model.responses} ({each[0][0]})"
            text = f"column {column!r} has no number in {named}"
            found.append(Suspicion("missing", place, text, remedy))
    return found


def written_suspicions(
    config: Config, areas: gpd.GeoDataFrame, told: Collection[str]
) -> list[Suspicion]:
    """Return suspicions about counts written otherwise than all others, of any period.

    Separators that are declared raise none, nor do those of a column that has them everywhere.

    Parameters
    ----------
    config : Config
    areas : GeoDataFrame
    told : collection of str
        Codes of suspicions that are told already: of these, fractions are told once.
    """
    spec, response = config.response, config.response_kind
    declared = spec.spelling.thousands is not None or spec.spelling.decimal is not None
    if not response.countable:
        return []
    titles = dict(zip(areas[AREA_ID], titles_of(areas, config.areas.name), strict=True))
    parts, found = list(_parts(config, areas)), []
    for column in filter(None, (spec.value, getattr(spec, "tested", None))):
        written = _Written()
        for part in parts:
            _read(config, part, column, titles, written)
        if written.mixed and not declared:
            remedy = "write plain digits"
            if len(written.marks) == 1:
                key = "thousands" if written.grouped else "decimal"
                remedy += f', or set counts.{key}: "{next(iter(written.marks))}" if it is right'
            text = f"column {column!r} has a separator among digits, and plain digits elsewhere:"
            found.append(_suspicion("separator", written.apart, text, remedy))
        few = 0 < len(written.broken) < FRACTIONS * written.n_positive
        if (
            few
            and column == spec.value
            and response.most > 1
            and not {"fraction", "shares"} & {*told}
        ):
            text = f"column {column!r} has numbers that are not whole in"
            remedy = "give cases; look for a mark between thousands"
            found.append(_suspicion("fraction", written.broken, text, remedy))
    return found


def _suspicion(code: str, each: list[tuple[str, str]], text: str, remedy: str) -> Suspicion:
    paths = list(dict.fromkeys(path for path, _ in each))
    named = name_first([said for _, said in each], N_NAMED)
    return Suspicion(code, f"counts ({paths[0]})", f"{text} {named}", remedy)


def _parts(config: Config, areas: gpd.GeoDataFrame) -> Iterator[_Part]:
    """Yield the rows of each period that the run reads, as the table has them."""
    spec, series = config.response, config.series
    if own_file(config) or spec.path is None:
        frame = areas.assign(**{str(spec.id or config.areas.id): areas[AREA_ID]})
        yield _Part("column of the areas", "", frame, np.arange(1, len(areas) + 1), "feature")
        return
    by = getattr(spec, "period", None)
    files = {str(spec.path): config.period or ""}
    if series is not None and by is None:
        files = {str(config.at(label).response.path): label for label in series.spelled}
    for path, label in files.items():
        try:
            table, rows = read_table(
                path, "", sheet=spec.sheet, layer=spec.layer, **spec.spelling.layout
            )
        except InputError:
            continue
        word, own = TABLES.of(path).row_word, str(spec.id or config.areas.id)
        if len(table) > MOST_ROWS or own not in table or (by is not None and by not in table):
            continue
        if by is None:
            yield _Part(path, label if series is not None else "", table, rows, word)
            continue
        wanted = {config.period} if series is None else {series.text(p) for p in series.periods}
        texts = np.array(read_periods(id_text(table[by]), spec.spelling.dayfirst)[0], object)
        for period in dict.fromkeys(text for text in texts if text in wanted):
            at = texts == period
            yield _Part(path, str(period), table[at], rows[at], word)


def _cells(config: Config, part: _Part, column: str) -> Iterator[tuple[Any, int, str]]:
    """Yield value, row and id of the cells of a column that have an id and are no interval."""
    own = config.response.id or config.areas.id
    if column not in part.table or own not in part.table:
        return
    suppression, ids = suppression_of(config), id_text(part.table[own])
    for value, row, area in zip(part.table[column], part.rows, ids, strict=True):
        if area is not None and suppression.interval(value) is None:
            yield value, int(row), area


def _where(part: _Part, row: int, area: str, titles: Mapping[str, str]) -> str:
    period = f", {part.period}" if part.period else ""
    return f"{part.word} {row} (id {titles.get(area, area)}{period}"


def _read(
    config: Config, part: _Part, column: str, titles: Mapping[str, str], written: _Written
) -> None:
    """Look at the cells of a column as ingest reads them; those that it refuses are left out."""
    spec = config.response
    cells = [each for each in _cells(config, part, column) if not is_missing(each[0])]
    texts = [value.strip() for value, _, _ in cells if isinstance(value, str)]
    spelling = spec.spelling.detected(texts)
    asked = set(spelling.may_be_thousands(texts, whole=True))
    for value, row, area in cells:
        number = spelling.number_or_nan(value)
        if not np.isfinite(number) or number < 0 or str(value).strip() in asked:
            continue
        written.add(part.path, value, number, _where(part, row, area, titles))

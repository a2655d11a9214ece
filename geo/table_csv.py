"""CSV tables: separated by commas, semicolons or tabs, UTF-8, with a header."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv

from geo.columns import MISSING
from geo.errors import InputError, Problem
from geo.table_format import TableFormat

# Every cell is text, so that messages can quote what the file has.
_OPTIONS: dict[str, Any] = {
    "dtype": str,
    "keep_default_na": False,
    "skip_blank_lines": False,
    "encoding": "utf-8-sig",
    "index_col": False,
}
_BLOCK_BYTES = 1 << 24
#: Rows that tell the separator of a table whose header has commas.
N_ROW_SEEN = 20


class Csv(TableFormat):
    """Reads CSV files."""

    name = "CSV"

    def read(self, path: str | Path) -> pd.DataFrame:
        """Read a whole table; every cell is text."""
        separator, _ = _header(path)
        table = pd.read_csv(path, sep=separator, **_OPTIONS)
        table = table.rename(columns=lambda column: str(column).strip())
        table.index = pd.RangeIndex(2, len(table) + 2)
        # Blank lines are not data, but they count as rows.
        blank = table.isna().all(axis=1) | (table == "").all(axis=1)
        return table[~blank]

    def columns(self, path: str | Path) -> list[str]:
        """Return the names of the columns."""
        return _header(path)[1]

    def batches(
        self, path: str | Path, texts: list[str], numbers: list[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read some columns in batches."""
        separator, names = _header(path)
        missing = [m for text in MISSING for m in {text, text.upper(), text.capitalize()}]
        types = {**dict.fromkeys(texts, pa.string()), **dict.fromkeys(numbers, pa.float64())}
        with pa.csv.open_csv(
            path,
            pa.csv.ReadOptions(column_names=names, skip_rows=1, block_size=_BLOCK_BYTES),
            pa.csv.ParseOptions(delimiter=separator),
            pa.csv.ConvertOptions(
                column_types=types, include_columns=[*texts, *numbers], null_values=missing
            ),
        ) as file:
            yield from file


def _header(path: str | Path) -> tuple[str, list[str]]:
    """Return the separator and the names of the columns."""
    try:
        names = _first_row(path, ",")
    except pd.errors.EmptyDataError:
        found, remedy = "is empty", "give a table with a header"
        raise InputError(Problem(str(path), found, remedy)) from None
    if len(names) == 1:
        separator = max(",;\t", key=names[0].count)
    else:
        separator = (
            ","
            if _splits(path, ",")
            else next((each for each in ";\t" if _splits(path, each)), ",")
        )
    return separator, names if separator == "," else _first_row(path, separator)


def _splits(path: str | Path, separator: str) -> bool:
    """Return whether a separator cuts the first rows into equally many cells, two or more."""
    # "district id, code;cases" has a comma in a name: its rows tell.
    with fsspec.open(str(path), "rt", encoding="utf-8-sig", newline="") as file:
        rows = itertools.islice(csv.reader(file, delimiter=separator), N_ROW_SEEN)
        sizes = {len(row) for row in rows if any(row)}
    return len(sizes) == 1 and sizes.pop() > 1


def _first_row(path: str | Path, separator: str) -> list[str]:
    # Pandas' header is no use here: it renames the second of two equal names.
    row = pd.read_csv(path, header=None, nrows=1, sep=separator, **_OPTIONS)
    return [str(name).strip() for name in np.ravel(row.to_numpy())]

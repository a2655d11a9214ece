"""Read the tables of users: CSV, Parquet and other formats.

To add a format, write a :class:`~geo.table_format.TableFormat` in its own file and register it in
:data:`TABLES`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from geo.columns import id_text
from geo.errors import InputError, Problem, one_line
from geo.formats import Formats, is_local
from geo.table_csv import Csv
from geo.table_format import TableFormat
from geo.table_parquet import Parquet

TABLES: Formats[TableFormat] = Formats(Csv())
TABLES.register(Parquet(), ".parquet", ".pq")

_SPREADSHEETS = (".xlsx", ".xls", ".ods")


def find_table(path: str | Path, name: str) -> TableFormat:
    """Return the format of a table.

    Parameters
    ----------
    path : str or Path
    name : str
        Name of the table in messages.

    Raises
    ------
    InputError
        If the file does not exist or is a spreadsheet.
    """
    reader = TABLES.of(path)
    if reader is TABLES.default and str(path).lower().endswith(_SPREADSHEETS):
        raise InputError(Problem(name, "is a spreadsheet", "save it as CSV (UTF-8)"))
    if is_local(path) and not Path(path).is_file():
        found = "is a directory" if Path(path).is_dir() else "no such file"
        raise InputError(Problem(name, found, "correct the path"))
    return reader


@contextmanager
def table_errors(name: str) -> Iterator[None]:
    """Convert a format's exceptions to an InputError that names the table."""
    try:
        yield
    except InputError as error:
        raise InputError([Problem(name, p.found, p.remedy) for p in error.problems]) from None
    except UnicodeDecodeError as error:
        found, remedy = f"is not UTF-8 text ({error.reason})", "save it as UTF-8"
        raise InputError(Problem(name, found, remedy)) from None
    except (ValueError, OSError, pa.ArrowException) as error:  # pandas' own are ValueErrors
        found = f"cannot be read as a table ({one_line(error)})"
        raise InputError(Problem(name, found, _remedy())) from None


def read_table(path: str | Path, name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Read a whole table.

    Parameters
    ----------
    path : str or Path
        File or URL.
    name : str
        Name of the table in messages.

    Returns
    -------
    table : DataFrame
        Cells of a CSV file are text.
    rows : (n_row,) int array
        Number of each row, as a spreadsheet shows it.

    Raises
    ------
    InputError
        If the table cannot be read or has no rows.
    """
    reader = find_table(path, name)
    with table_errors(name):
        table = reader.read(path)
    if len(table) == 0:
        raise InputError(Problem(name, "has no rows", _remedy()))
    return table.reset_index(drop=True), table.index.to_numpy()


def column_texts(path: str | Path, column: str) -> list[str]:
    """Return the texts of a table's column; empty if the table or the column does not exist."""
    try:
        table, _ = read_table(path, "")
    except InputError:
        return []
    return list(id_text(table[column]).dropna()) if column in table.columns else []


def _remedy() -> str:
    readers = dict.fromkeys([TABLES.default, *TABLES.by_suffix.values()])
    return f"give a {' or '.join(reader.name for reader in readers)} file with a header"

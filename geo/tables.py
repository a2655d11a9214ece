"""Tables of users: every CSV, Parquet or other table is opened here.

A format more is a :class:`~geo.table_format.TableFormat` in a file of its own, and a line of
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
    """Return the format of a table that is there.

    Parameters
    ----------
    path : str or Path
    name : str
        What an error calls the table.

    Raises
    ------
    InputError
        If there is no such file, or no format for it.
    """
    reader = TABLES.of(path)
    if reader is TABLES.default and str(path).lower().endswith(_SPREADSHEETS):
        raise InputError(Problem(name, "a spreadsheet", "save it as CSV (UTF-8) and give that"))
    if is_local(path) and not Path(path).is_file():
        found = "is a directory" if Path(path).is_dir() else "no such file"
        raise InputError(Problem(name, found, "correct the path"))
    return reader


@contextmanager
def table_errors(name: str) -> Iterator[None]:
    """Turn what a format raises into an InputError that names the table."""
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
    """Read a table whole.

    Parameters
    ----------
    path : str or Path
        File or address.
    name : str
        What an error calls the table.

    Returns
    -------
    table : DataFrame
        Cells of a CSV file are text.
    rows : (n_row,) int array
        Number of each row, as a spreadsheet shows it.

    Raises
    ------
    InputError
        If the table cannot be read or holds no rows.
    """
    reader = find_table(path, name)
    with table_errors(name):
        table = reader.read(path)
    if len(table) == 0:
        raise InputError(Problem(name, "holds no rows", _remedy()))
    return table.reset_index(drop=True), table.index.to_numpy()


def column_texts(path: str | Path, column: str) -> list[str]:
    """Return the texts in a table's column; none where the table or the column is not there."""
    try:
        table, _ = read_table(path, "")
    except InputError:
        return []
    return list(id_text(table[column]).dropna()) if column in table.columns else []


def _remedy() -> str:
    readers = dict.fromkeys([TABLES.default, *TABLES.by_suffix.values()])
    return f"give a {' or '.join(reader.name for reader in readers)} file with a header"

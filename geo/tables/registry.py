"""Read the tables of users: CSV, Parquet, sheets of workbooks, attributes of vector files.

To add a format, write a :class:`~geo.tables.table_format.TableFormat` in its own file and
register it in :data:`TABLES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError

import numpy as np
import pandas as pd
import pyarrow as pa

from geo.core.columns import has_column
from geo.core.errors import InputError, Problem, one_line
from geo.core.formats import Formats, is_local
from geo.core.web_errors import error_passes
from geo.tables.table_csv import Csv
from geo.tables.table_format import TableFormat
from geo.tables.table_parquet import Parquet
from geo.tables.table_vector import SUFFIXES as VECTOR_SUFFIXES
from geo.tables.table_vector import Vector
from geo.tables.table_xlsx import Xlsx
from geo.tables.web_table import local_table
from geo.tables.wide import long_form

TABLES: Formats[TableFormat] = Formats(Csv())
TABLES.register(Parquet(), ".parquet", ".pq", ".geoparquet")
TABLES.register(Xlsx(), ".xlsx", ".xlsm")
TABLES.register(Vector(), *VECTOR_SUFFIXES)

_KEPT: ContextVar[dict[Hashable, Any] | None] = ContextVar("tables", default=None)
Made = TypeVar("Made")
_SPREADSHEETS = (".xls", ".xlsb", ".ods", ".numbers")


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
        If the file does not exist or is a spreadsheet that cannot be read.
    """
    reader = TABLES.of(path)
    suffix = Path(str(path)).suffix.lower()
    if reader is TABLES.default and suffix in _SPREADSHEETS:
        found = f"is a spreadsheet in the format {suffix}, which is not read"
        raise InputError(Problem(name, found, "save it as .xlsx or as CSV (UTF-8)"))
    if is_local(path) and not (Path(path).is_file() or (suffix == ".gdb" and Path(path).exists())):
        found = "is a directory" if Path(path).is_dir() else "no such file"
        raise InputError(Problem(name, found, "correct the path"))
    return reader


@contextmanager
def table_errors(name: str) -> Iterator[None]:
    """Convert a format's exceptions to an InputError that names the table."""
    try:
        yield
    except InputError as error:
        raise InputError([replace(p, place=name) for p in error.problems]) from None
    except UnicodeDecodeError as error:
        raise InputError(Problem(name, *_other_text(error))) from None
    except pd.errors.ParserError as error:
        raise InputError(Problem(name, *_unparsed(one_line(error)))) from None
    except (URLError, TimeoutError, ConnectionError) as error:  # those of a read, too
        reason = error if isinstance(error, HTTPError) else getattr(error, "reason", error)
        found = f"cannot be reached ({reason})"
        if isinstance(error, HTTPError):
            error.close()  # its connection
        remedy = "check the address, the server and the network, then repeat the command"
        raise InputError(Problem(name, found, remedy, transient=error_passes(error))) from None
    except (ValueError, OSError, pa.ArrowException) as error:  # pandas' own are ValueErrors
        found = f"cannot be read as a table ({one_line(error)})"
        raise InputError(Problem(name, found, _remedy())) from None


def _other_text(error: UnicodeDecodeError) -> tuple[str, str]:
    """Tell bytes that are no UTF-8 by what they begin with."""
    head = bytes(error.object[:8])
    remedy = "save it as UTF-8 (in Excel: CSV UTF-8), or name its encoding (encoding: {})"
    if b"PK\x03\x04" in head:
        return "is a workbook or an archive, not text", "name a workbook .xlsx"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is UTF-16 text that ends in the middle of a letter", remedy.format("utf-16")
    return f"is not UTF-8 text ({error.reason})", remedy.format("cp850")


def _unparsed(message: str) -> tuple[str, str]:
    """Explain an error of pandas' parser."""
    match = re.search(r"EOF inside string starting at row (\d+)", message)
    if match:
        return f'a quote (") opens in row {int(match[1]) + 1} and never ends', "close or remove it"
    return f"cannot be read as a table ({message})", _remedy()


def read_table(
    path: str | Path,
    name: str,
    *,
    sheet: str | None = None,
    layer: str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    skip_rows: int = 0,
    wide: tuple[str, str] | None = None,
    dayfirst: bool | None = None,
) -> tuple[pd.DataFrame, np.ndarray]:
    """Read a whole table.

    Parameters
    ----------
    path : str or Path
        File or URL.
    name : str
        Name of the table in messages.
    sheet, layer : str, optional
        Sheet of a workbook, by default the first; layer of a vector file, by default the only one.
    encoding, delimiter, skip_rows : optional
        See :class:`geo.core.spelling.Spelling`; ``table.attrs`` has the encoding.
    wide, dayfirst : optional
        Columns of period and value to make of a column for each period: see
        :func:`geo.tables.wide.long_form`.

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
    layout = (encoding, delimiter, skip_rows)
    table, rows = _read_as_is(path, name, sheet, layer, layout)
    if wide is None:
        return table, rows
    key = ("long form", str(path), sheet, layer, *layout, wide, dayfirst)
    table, rows = once(key, lambda: long_form(table, rows, wide, name, dayfirst))
    return table.copy(), rows


def _read_as_is(
    path: str | Path,
    name: str,
    sheet: str | None,
    layer: str | None,
    layout: tuple[str | None, str | None, int],
) -> tuple[pd.DataFrame, np.ndarray]:
    key, kept = (str(path), sheet, layer, *layout), _KEPT.get()
    if kept is not None and key in kept:
        table, rows = kept[key]
        return table.copy(), rows
    reader = find_table(path, name)
    with table_errors(name):
        reader = reader.laid_out(*layout)
        part = _part(reader, sheet, layer)
        if isinstance(reader, Vector):  # has its own way to a server
            table = reader.read_part(path, part)
        else:
            with local_table(path) as file:
                table = reader.read_part(file, part)
    if len(table) == 0:
        raise InputError(Problem(name, "has no rows", _remedy()))
    found = table.reset_index(drop=True), table.index.to_numpy()
    if kept is not None:
        kept[key] = found[0].copy(), found[1]
    return found


@contextmanager
def tables_kept() -> Iterator[None]:
    """Read each table once within the block, however often it is asked for."""
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def once(key: Hashable, make: Callable[[], Made]) -> Made:
    """Return what is made of a table: made once within :func:`tables_kept`, else each time.

    A table of many periods is asked for period by period: what is found of all of its rows would
    take as long each time.

    Parameters
    ----------
    key : hashable
        What is made, and of what.
    make : callable
        Its result is not to be changed.
    """
    kept = _KEPT.get()
    if kept is None:
        return make()
    if key not in kept:
        kept[key] = make()
    found: Made = kept[key]
    return found


def _part(reader: TableFormat, sheet: str | None, layer: str | None) -> str | None:
    """Return the part of a file to read; raise InputError for one that its format lacks."""
    for key, value in (("sheet", sheet), ("layer", layer)):
        if value is not None and key != reader.part:
            found = f"`{key}: {value}` is given, but {reader.name} files have no {key}s"
            other = f"; give `{reader.part}` instead" if reader.part else ""
            raise InputError(Problem("", found, f"remove the key{other}"))
    return sheet if reader.part == "sheet" else layer


def _remedy() -> str:
    readers = dict.fromkeys([TABLES.default, *TABLES.by_suffix.values()])
    return f"give a {' or '.join(reader.name for reader in readers)} file with a header"


def read_columns(
    path: str | Path, name: str, columns: Iterable[tuple[str, str]], problems: list[Problem]
) -> tuple[pd.DataFrame, np.ndarray] | None:
    """Read a table with :func:`read_table`, and check that it has some columns.

    Parameters
    ----------
    path : str or Path
    name : str
        Name of the table in messages.
    columns : iterable of (column, str)
        Each with the configuration key that names it.
    problems : list of Problem
        Appended to; None is returned where one was found.
    """
    try:
        table, rows = read_table(path, name)
    except InputError as error:
        problems.extend(error.problems)
        return None
    found = [has_column(table.columns, column, name, key, problems) for column, key in columns]
    return (table, rows) if all(found) else None

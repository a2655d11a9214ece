"""CSV tables: separated by commas, semicolons, tabs or bars, with a header."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import itertools
import lzma
import math
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
from fsspec.utils import infer_compression

from geo.core.columns import MISSING
from geo.core.errors import InputError, Problem, one_line
from geo.core.formats import is_local
from geo.sources.gdal_access import ARCHIVE_BYTES_FREE, ARCHIVE_EXPANSION_MAX
from geo.tables.table_format import TableFormat

# Every cell is text, so that messages can quote what the file has.
_OPTIONS: dict[str, Any] = {
    "dtype": str,
    "keep_default_na": False,
    "skip_blank_lines": False,
    "index_col": False,
}
_BLOCK_BYTES = 1 << 24
_PIECE_BYTES = 1 << 20
#: Bytes of a line: what has more is no table, and readers hold a line whole.
LINE_BYTES_MAX = 16 << 20
#: Rows that tell the separator of a table whose header has commas.
N_ROW_SEEN = 20


UTF_8, UTF_16 = "utf-8-sig", "utf-16"
SEPARATORS = ",;\t|"
#: What Excel writes on Windows in the west of Europe, a superset of Latin-1.
WINDOWS = "cp1252"


class Csv(TableFormat):
    """Reads CSV files.

    Parameters
    ----------
    encoding : str, optional
        By default UTF-8 for a file that is, UTF-16 for one that begins so, else Windows-1252.
    delimiter : str, optional
        By default as the first rows tell.
    skip_rows : int
        Rows above the names of the columns.
    """

    name = "CSV"

    def __init__(
        self, encoding: str | None = None, delimiter: str | None = None, skip_rows: int = 0
    ) -> None:
        self.encoding, self.delimiter, self.skip_rows = encoding, delimiter, skip_rows

    def laid_out(
        self, encoding: str | None = None, delimiter: str | None = None, skip_rows: int = 0
    ) -> Csv:
        """Return the reader of a file so written."""
        return Csv(encoding, delimiter, skip_rows)

    def read(self, path: str | Path) -> pd.DataFrame:
        """Read a whole table; every cell is text."""
        check_text(path)
        encoding = self.encoding or text_encoding(path)
        skip = self.skip_rows
        separator, names = _header(path, encoding, self.delimiter, skip, checked=True)
        options = {**_OPTIONS, "sep": separator, "encoding": encoding, "skiprows": skip}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)
                table = pd.read_csv(path, **options)
        except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
            # Pandas leaves out what is beyond the last name, with a warning; empty cells may be.
            cut = isinstance(error, pd.errors.ParserWarning)
            _check_widths(path, separator, encoding, len(names), skip, filled=cut)
            if not cut:
                raise
            table = pd.read_csv(path, **options)
        table.attrs["encoding"] = encoding
        if len(names) == table.shape[1]:
            table.columns = pd.Index(names)  # pandas renames the second of two equal names
        table = table.rename(columns=lambda column: str(column).strip())
        table.index = pd.RangeIndex(2 + skip, len(table) + 2 + skip)
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


def text_encoding(path: str | Path) -> str:
    """Return the encoding of a text file: UTF-8, UTF-16 by its mark, or else Windows-1252.

    Raises
    ------
    UnicodeDecodeError
        If it is neither: another encoding, or no text.
    """
    decoders = {name: codecs.getincrementaldecoder(name)() for name in (UTF_8, WINDOWS)}
    wrong: dict[str, UnicodeDecodeError] = {}
    binary = False
    with _decompressed(path) as file:
        while piece := file.read(_PIECE_BYTES):
            if not wrong and not binary and piece.startswith((b"\xff\xfe", b"\xfe\xff")):
                return UTF_16
            binary = binary or b"\0" in piece
            for name in decoders.keys() - wrong.keys():
                try:
                    decoders[name].decode(piece)
                except UnicodeDecodeError as error:
                    wrong[name] = error
    if UTF_8 not in wrong:
        return UTF_8
    if binary or WINDOWS in wrong:
        raise wrong[UTF_8]
    return WINDOWS


def check_text(path: str | Path, n_byte_max: float = math.inf) -> None:
    """Refuse a local table with an endless line, or one that expands absurdly.

    The file, or so much of it, is read once in pieces, decompressed as its readers do.

    Raises
    ------
    InputError
    """
    if not is_local(path):
        return
    size, length, n_byte = Path(path).stat().st_size, 0, 0
    packed = infer_compression(str(path)) is not None
    with _decompressed(path) as file:
        while n_byte <= n_byte_max and (piece := file.read(_PIECE_BYTES)):
            n_byte += len(piece)
            if packed and n_byte > max(ARCHIVE_BYTES_FREE, ARCHIVE_EXPANSION_MAX * size):
                found = f"expands from {size:,} to more than {n_byte:,} bytes"
                raise InputError(Problem(str(path), found, "give the table uncompressed"))
            ends = piece.find(b"\n"), piece.rfind(b"\n")
            if length + (ends[0] if ends[0] >= 0 else len(piece)) > LINE_BYTES_MAX:
                found = f"has a line of more than {LINE_BYTES_MAX:,} bytes"
                raise InputError(Problem(str(path), found, "give a table with a line for each row"))
            length = len(piece) - ends[1] - 1 if ends[1] >= 0 else length + len(piece)


@contextlib.contextmanager
def _decompressed(path: str | Path) -> Iterator[Any]:
    """Open a local file; convert what decompressors raise to an InputError."""
    try:
        with fsspec.open(str(path), "rb", compression="infer") as file:
            yield file
    except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, gzip.BadGzipFile) as error:
        found = f"is damaged, or not compressed as its name says ({one_line(error)})"
        raise InputError(Problem(str(path), found, "copy or download it again")) from error


def _header(
    path: str | Path,
    encoding: str = UTF_8,
    delimiter: str | None = None,
    skip: int = 0,
    *,
    checked: bool = False,
) -> tuple[str, list[str]]:
    """Return the separator and the names of the columns; of text that is ``checked`` or not."""
    if not checked:
        check_text(path, LINE_BYTES_MAX)
    try:
        names = _first_row(path, delimiter or ",", encoding, skip)
    except pd.errors.EmptyDataError:
        found, remedy = "is empty", "give a table with a header"
        raise InputError(Problem(str(path), found, remedy)) from None
    if delimiter is not None:
        return delimiter, names
    if len(names) == 1:
        text = names[0]
        if not any(map(text.count, SEPARATORS)):  # a title, or a single column
            text = "".join(map("".join, _some_rows(path, "\x1f", encoding, skip)))
        separator = max(SEPARATORS, key=text.count)
    else:
        splits = (each for each in SEPARATORS if _splits(path, each, encoding, skip))
        separator = next(splits, ",")
    return separator, names if separator == "," else _first_row(path, separator, encoding, skip)


def _splits(path: str | Path, separator: str, encoding: str, skip: int) -> bool:
    """Return whether a separator cuts the first rows into equally many cells, two or more."""
    # "district id, code;cases" has a comma in a name: its rows tell.
    try:
        sizes = {len(row) for row in _some_rows(path, separator, encoding, skip) if any(row)}
    except csv.Error:
        # A cell of more than 128 KiB: a quote that never ends. Pandas tells where.
        return False
    return len(sizes) == 1 and sizes.pop() > 1


def _check_widths(
    path: str | Path, separator: str, encoding: str, n_name: int, skip: int, *, filled: bool
) -> None:
    """Refuse a row with more cells (if ``filled``: with texts in them) than there are names."""
    with contextlib.suppress(csv.Error):
        for number, row in enumerate(_rows(path, separator, encoding), 1):
            if number > skip and (any(row[n_name:]) if filled else len(row) > n_name):
                found = f"row {number} has {len(row)} cells, but row {skip + 1} names {n_name} "
                found += "column(s)"
                above = number - 1 if n_name == 1 else "the number of rows above them"
                remedy = f"leave a title above the names out (skip_rows: {above}), "
                remedy += "name every column, and put quotes around "
                remedy += f"cells with {separator!r} in them"
                raise InputError(Problem(str(path), found, remedy))


def _rows(path: str | Path, separator: str, encoding: str) -> Iterator[list[str]]:
    with fsspec.open(str(path), "rt", compression="infer", encoding=encoding, newline="") as file:
        yield from csv.reader(file, delimiter=separator)


def _some_rows(path: str | Path, separator: str, encoding: str, skip: int) -> Iterator[list[str]]:
    return itertools.islice(_rows(path, separator, encoding), skip, skip + N_ROW_SEEN)


def _first_row(path: str | Path, separator: str, encoding: str, skip: int) -> list[str]:
    # Pandas' header is no use here: it renames the second of two equal names.
    options = {**_OPTIONS, "sep": separator, "encoding": encoding, "skiprows": skip}
    row = pd.read_csv(path, header=None, nrows=1, **options)
    return [str(name).strip() for name in np.ravel(row.to_numpy())]

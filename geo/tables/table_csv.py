"""CSV tables: separated by commas, semicolons, tabs or bars, with a header."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import itertools
import lzma
import math
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
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
        content = read_text(path)
        encoding = self.encoding or text_encoding(content)
        text, skip = _Text(path, content, encoding), self.skip_rows
        separator, names = _header(text, self.delimiter, skip)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)
                table = text.table(separator, skip)
        except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
            # Pandas leaves out what is beyond the last name, with a warning; empty cells may be.
            cut = isinstance(error, pd.errors.ParserWarning)
            _check_widths(text, separator, len(names), skip, filled=cut)
            if not cut:
                raise
            table = text.table(separator, skip)
        table.attrs["encoding"] = encoding
        if len(names) == table.shape[1]:
            table.columns = pd.Index(names)  # pandas renames the second of two equal names
        table = table.rename(columns=lambda column: str(column).strip())
        table.index = pd.RangeIndex(2 + skip, len(table) + 2 + skip)
        # Blank lines are not data, but they count as rows.
        blank = table.isna().all(axis=1) | (table == "").all(axis=1)
        table = table[~blank]
        table.attrs["short"] = _short(text, separator, names, skip, table)
        return table

    def columns(self, path: str | Path) -> list[str]:
        """Return the names of the columns."""
        return _header(_first_of(path))[1]

    def batches(
        self, path: str | Path, texts: list[str], numbers: list[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read some columns in batches."""
        separator, names = _header(_first_of(path))
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


@dataclass(frozen=True)
class _Text:
    """The text of a table, read once, for all who look at it.

    Attributes
    ----------
    path : str or Path
        For messages.
    content : bytes
        Decompressed: all, or the first lines.
    encoding : str
    """

    path: str | Path
    content: bytes
    encoding: str

    def table(self, separator: str, skip: int, **options: Any) -> pd.DataFrame:
        """Return it as a table of texts."""
        own = {**_OPTIONS, "sep": separator, "encoding": self.encoding, "skiprows": skip}
        return pd.read_csv(io.BytesIO(self.content), **own, **options)

    def rows(self, separator: str) -> Iterator[list[str]]:
        """Yield the cells of each row."""
        with io.TextIOWrapper(io.BytesIO(self.content), self.encoding, newline="") as file:
            yield from csv.reader(file, delimiter=separator)

    def some_rows(self, separator: str, skip: int) -> Iterator[list[str]]:
        """Yield the first rows."""
        return itertools.islice(self.rows(separator), skip, skip + N_ROW_SEEN)


def text_encoding(content: bytes) -> str:
    """Return the encoding of a text: UTF-8, UTF-16 by its mark, or else Windows-1252.

    Raises
    ------
    UnicodeDecodeError
        If it is neither: another encoding, or no text.
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return UTF_16
    wrong = _wrong(content, UTF_8)
    if wrong is None:
        return UTF_8
    if b"\0" in content or _wrong(content, WINDOWS) is not None:
        raise wrong
    return WINDOWS


def _wrong(content: bytes, encoding: str) -> UnicodeDecodeError | None:
    """Return what keeps a text from being of an encoding."""
    decoder, pieces = codecs.getincrementaldecoder(encoding)(), memoryview(content)
    try:
        for start in range(0, len(content), _PIECE_BYTES):
            decoder.decode(pieces[start : start + _PIECE_BYTES])
    except UnicodeDecodeError as error:
        return error
    return None


def read_text(path: str | Path, n_byte_max: float = math.inf) -> bytes:
    """Read a table, or so much of it, decompressed as its name says.

    Raises
    ------
    InputError
        If a local one has an endless line, or expands absurdly: before more of it is read.
    """
    local, size = is_local(path), 0.0
    if local:
        size = Path(path).stat().st_size
    packed, length, pieces, n_byte = infer_compression(str(path)) is not None, 0, [], 0
    with _decompressed(path) as file:
        while n_byte <= n_byte_max and (piece := file.read(_PIECE_BYTES)):
            n_byte += len(piece)
            pieces.append(piece)
            if not local:
                continue
            if packed and n_byte > max(ARCHIVE_BYTES_FREE, ARCHIVE_EXPANSION_MAX * size):
                found = f"expands from {int(size):,} to more than {n_byte:,} bytes"
                raise InputError(Problem(str(path), found, "give the table uncompressed"))
            ends = piece.find(b"\n"), piece.rfind(b"\n")
            if length + (ends[0] if ends[0] >= 0 else len(piece)) > LINE_BYTES_MAX:
                found = f"has a line of more than {LINE_BYTES_MAX:,} bytes"
                raise InputError(Problem(str(path), found, "give a table with a line for each row"))
            length = len(piece) - ends[1] - 1 if ends[1] >= 0 else length + len(piece)
    return b"".join(pieces)


def _first_of(path: str | Path) -> _Text:
    """Return the first lines of a table in UTF-8."""
    content = read_text(path, LINE_BYTES_MAX)
    if len(content) > LINE_BYTES_MAX:  # there may be more: the last line is cut
        content = content[: content.rfind(b"\n") + 1] or content
    return _Text(path, content, UTF_8)


@contextlib.contextmanager
def _decompressed(path: str | Path) -> Iterator[Any]:
    """Open a local file; convert what decompressors raise to an InputError."""
    try:
        with fsspec.open(str(path), "rb", compression="infer") as file:
            yield file
    except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, gzip.BadGzipFile) as error:
        found = f"is damaged, or not compressed as its name says ({one_line(error)})"
        raise InputError(Problem(str(path), found, "copy or download it again")) from error


def _header(text: _Text, delimiter: str | None = None, skip: int = 0) -> tuple[str, list[str]]:
    """Return the separator and the names of the columns."""
    try:
        names = _first_row(text, delimiter or ",", skip)
    except pd.errors.EmptyDataError:
        found, remedy = "is empty", "give a table with a header"
        raise InputError(Problem(str(text.path), found, remedy)) from None
    if delimiter is not None:
        return delimiter, names
    if len(names) == 1:
        seen = names[0]
        if not any(map(seen.count, SEPARATORS)):  # a title, or a single column
            seen = "".join(map("".join, text.some_rows("\x1f", skip)))
        separator = max(SEPARATORS, key=seen.count)
    else:
        separator = next((each for each in SEPARATORS if _splits(text, each, skip)), ",")
    return separator, names if separator == "," else _first_row(text, separator, skip)


def _splits(text: _Text, separator: str, skip: int) -> bool:
    """Return whether a separator cuts the first rows into equally many cells, two or more."""
    # "district id, code;cases" has a comma in a name: its rows tell.
    try:
        sizes = {len(row) for row in text.some_rows(separator, skip) if any(row)}
    except csv.Error:
        # A cell of more than 128 KiB: a quote that never ends. Pandas tells where.
        return False
    return len(sizes) == 1 and sizes.pop() > 1


def _check_widths(text: _Text, separator: str, n_name: int, skip: int, *, filled: bool) -> None:
    """Refuse a row with more cells (if ``filled``: with texts in them) than there are names."""
    with contextlib.suppress(csv.Error):
        for number, row in enumerate(text.rows(separator), 1):
            if number > skip and (any(row[n_name:]) if filled else len(row) > n_name):
                found = f"row {number} has {len(row)} cells, but row {skip + 1} names {n_name} "
                found += "column(s)"
                above = number - 1 if n_name == 1 else "the number of rows above them"
                remedy = f"leave a title above the names out (skip_rows: {above}), "
                remedy += "name every column, and put quotes around "
                remedy += f"cells with {separator!r} in them"
                raise InputError(Problem(str(text.path), found, remedy))


def _short(
    text: _Text, separator: str, names: list[str], skip: int, table: pd.DataFrame
) -> list[int]:
    """Return the numbers of the rows of two cells and more that lack cells of named columns."""
    wanted = max((number for number, name in enumerate(names, 1) if name), default=0)
    if table.empty or not (table.iloc[:, wanted - 1] == "").any():
        return []
    with contextlib.suppress(csv.Error):
        every = enumerate(text.rows(separator), 1)
        return [n for n, row in every if n > skip + 1 and 1 < len(row) < wanted]
    return []


def _first_row(text: _Text, separator: str, skip: int) -> list[str]:
    # Pandas' header is no use here: it renames the second of two equal names.
    row = text.table(separator, skip, header=None, nrows=1)
    return [str(name).strip() for name in np.ravel(row.to_numpy())]

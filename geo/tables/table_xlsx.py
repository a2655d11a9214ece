"""Sheets of Excel workbooks (``.xlsx``).

A cell that looks like a number or like nothing may be neither: a formula that was never computed,
an error value, a part of a merged cell. Each becomes a text that names the cell, so that the checks
of numbers refuse it where it matters.
"""

from __future__ import annotations

import datetime
import re
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd

from geo.core.columns import suggest
from geo.core.errors import InputError, Problem, name_first, one_line
from geo.core.formats import is_local
from geo.sources.gdal_access import check_archive
from geo.tables.table_format import TableFormat

#: Cells of the table, from the first to the last that is filled, and of all its merged ranges.
CELLS_MAX = 20_000_000
MERGED = "part of the merged cells "  # what such a cell says, with their range
_PIECE_BYTES, _TAG_BYTES = 1 << 20, 4096
_SHEET_FILE = re.compile(r"xl/.*sheets?/.*\.xml$", re.IGNORECASE)
_RANGE = re.compile(rb"<(?:\w+:)?(?:mergeCell|hyperlink)\s[^<>]*?\bref\s*=\s*[\"']([^\"']*)[\"']")
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # of a compound file: .xls, or an encrypted .xlsx


class Xlsx(TableFormat):
    """Reads sheets of Excel workbooks; the first row with any value has the names."""

    name = "Excel (.xlsx)"
    part = "sheet"
    skip_rows = 0

    def laid_out(
        self, encoding: str | None = None, delimiter: str | None = None, skip_rows: int = 0
    ) -> Xlsx:
        """Return the reader of sheets with so many rows above the names."""
        super().laid_out(encoding, delimiter)
        found = Xlsx()
        found.skip_rows = skip_rows
        return found

    def read(self, path: str | Path) -> pd.DataFrame:
        """Read the first sheet."""
        return self.read_part(path, None)

    def read_part(self, path: str | Path, part: str | None) -> pd.DataFrame:
        """Read a sheet."""
        if is_local(path):
            _check_file(str(path))
        # Values and formulas are in two views of a workbook; merged cells are known to whole ones.
        values, formulas = (_sheet(path, part, values=values) for values in (True, False))
        # Sheets may have formats down to row 1,048,576: only what has a content counts.
        filled = [
            at
            for at, cell in formulas._cells.items()
            if _given(cell.value) and at[0] > self.skip_rows
        ]
        if not filled:
            found = f"sheet {formulas.title!r} is empty"
            raise InputError(Problem(str(path), found, _other_sheets(formulas)))
        (first, left), (last, right) = (
            tuple(bound(axis) for axis in zip(*filled, strict=True)) for bound in (min, max)
        )
        if (last - first + 1) * (right - left + 1) > CELLS_MAX:
            from openpyxl.utils import get_column_letter

            ends = [f"{get_column_letter(j)}{i}" for i, j in ((first, left), (last, right))]
            found = f"sheet {formulas.title!r} is filled from {' to '.join(ends)}, mostly empty"
            remedy = "remove what stands far from the table, or save the table as CSV"
            raise InputError(Problem(str(path), found, remedy))
        box = {"min_row": first, "max_row": last, "min_col": left, "max_col": right}
        merged = {
            (row, column): area
            for area in formulas.merged_cells.ranges
            if formulas.cell(area.min_row, area.min_col).value is not None
            for row in range(area.min_row, area.max_row + 1)
            for column in range(area.min_col, area.max_col + 1)
            if (row, column) != (area.min_row, area.min_col)
        }
        rows = [
            [_value(cell, formula, merged) for cell, formula in zip(own, of, strict=True)]
            for own, of in zip(values.iter_rows(**box), formulas.iter_rows(**box), strict=True)
        ]
        numbered = [(k, row) for k, row in enumerate(rows, first) if any(map(_given, row))]
        number, header = numbered[0]
        for area in formulas.merged_cells.ranges:
            if area.min_row <= number <= area.max_row:
                found = f"sheet {formulas.title!r}: cells {area.coord} of the header "
                found += f"(row {number}) are merged"
                remedy = "begin the sheet with one row that names each column in a cell of its own"
                if any(k > area.max_row for k, _ in numbered):
                    remedy = f"if they are a title above the names, set skip_rows: {area.max_row}; "
                    remedy += "else name each column in a cell of its own"
                raise InputError(Problem(str(path), found, remedy))
        if len(numbered) == 1 and len(formulas.parent.worksheets) > 1:
            found = f"sheet {formulas.title!r} has no rows below its first"
            raise InputError(Problem(str(path), found, _other_sheets(formulas)))
        from openpyxl.utils import get_column_letter

        # As in a CSV file, the second of two equal names becomes "name.1".
        names: list[str] = []
        for place, cell in enumerate(header, left):
            text = str(cell).strip() if _given(cell) else f"column {get_column_letter(place)}"
            names.append(text if text not in names else f"{text}.{names.count(text)}")
        table = pd.DataFrame([row for _, row in numbered[1:]], columns=names, dtype=object)
        table.index = pd.Index([k for k, _ in numbered[1:]], dtype="int64")
        return table


def _check_file(path: str) -> None:
    """Refuse what is no workbook by its first bytes, and one that expands absurdly."""
    with open(path, "rb") as stream:
        head = stream.read(8)
    if head == _OLE:
        found = "is protected by a password, or in the old format .xls"
        raise InputError(Problem(path, found, "save it as .xlsx without a password"))
    if not head.startswith(b"PK"):
        found = "is no workbook, whatever its name says"
        raise InputError(Problem(path, found, "save it as .xlsx; name a table of text .csv"))
    check_archive(path, path)
    with zipfile.ZipFile(path) as archive:
        sheets = [name for name in archive.namelist() if _SHEET_FILE.match(name)]
        for name in sheets:
            _check_ranges(path, name, archive)


def _check_ranges(path: str, name: str, archive: zipfile.ZipFile) -> None:
    """Refuse merged cells and links over absurd ranges: openpyxl makes an object of each cell."""
    n_cell, rest = 0, b""
    try:
        with archive.open(name) as stream:
            while piece := stream.read(_PIECE_BYTES):
                text = rest + piece
                begin = 0
                for found in _RANGE.finditer(text):
                    begin = found.end()
                    n_cell += _n_cell(found[1].decode(errors="replace"))
                if n_cell > CELLS_MAX:
                    what = f"has merged cells or links over more than {CELLS_MAX:,} cells ({name})"
                    raise InputError(Problem(path, what, "save the table in a workbook of its own"))
                rest = text[max(begin, len(text) - _TAG_BYTES) :]
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        what = f"is a damaged archive ({one_line(error)})"
        raise InputError(Problem(path, what, "copy or download it again")) from error


def _n_cell(reference: str) -> int:
    from openpyxl.utils import range_boundaries

    try:
        left, top, right, bottom = range_boundaries(reference)
    except (ValueError, TypeError):
        return 0  # openpyxl will tell
    if None in (left, top, right, bottom):  # whole rows or columns
        return CELLS_MAX + 1
    return (abs(right - left) + 1) * (abs(bottom - top) + 1)


def _sheet(path: str | Path, part: str | None, *, values: bool) -> Any:
    import openpyxl  # starts slowly, and most tables are text
    from openpyxl.utils.exceptions import InvalidFileException

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of extensions, such as drop-down lists
            if is_local(path):
                book = openpyxl.load_workbook(path, data_only=values)
            else:
                with fsspec.open(str(path), "rb") as file:
                    book = openpyxl.load_workbook(file, data_only=values)
    except (zipfile.BadZipFile, InvalidFileException, KeyError, SyntaxError) as error:
        raise ValueError(one_line(error)) from error  # ElementTree's error is a SyntaxError
    names = [sheet.title for sheet in book.worksheets]
    if part is None and names:
        return book.worksheets[0]
    if part not in names:
        found, remedy = f"has no sheet {part!r}", suggest(part or "", names, "sheet")
        raise InputError(Problem(str(path), found, remedy))
    return book[part]


def _other_sheets(sheet: Any) -> str:
    """Return the remedy for a sheet without a table: the others of its workbook."""
    others = [each.title for each in sheet.parent.worksheets if each is not sheet]
    if not others:
        return "give a table with a header"
    return f"name the sheet of the table: `sheet:` one of {name_first(others)}"


def _value(cell: Any, formula: Any, merged: dict[tuple[int, int], Any]) -> Any:
    """Return the value of a cell, or a text that says what it is instead."""
    area = merged.get((cell.row, cell.column))
    if area is not None:
        return f"{MERGED}{area.coord}"
    value = cell.value
    if cell.data_type == "e":
        return f"{value} in cell {cell.coordinate}"
    if value is None and formula.data_type == "f":
        return f"formula without a value in cell {cell.coordinate}: open the file and save it"
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return value.date().isoformat()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value


def _given(value: Any) -> bool:
    return value is not None and str(value).strip() != ""

"""Workbooks, whose cells are not always what they show."""

from __future__ import annotations

import datetime
import zipfile
from collections.abc import Callable
from typing import Any

import openpyxl

from tests.corpus.case import Country, Error, case


def _book(country: Country, change: Callable[[Any, Any], None], **keys: Any) -> None:
    """Write the counts as a workbook."""
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "cases"
    sheet.append(["code", "cases"])
    for row in country.rows():
        code, count = row.split(",")
        sheet.append([code, int(count)])
    change(book, sheet)
    path = country.counts.with_suffix(".xlsx")
    book.save(path)
    country.change("counts", path=path.name, **keys)


@case("workbook")
def a_sound_workbook(country: Country) -> None:
    _book(country, lambda _book, _sheet: None)


def _set(cell: str, value: Any) -> Callable[[Any, Any], None]:
    def change(_: Any, sheet: Any) -> None:
        sheet[cell] = value

    return change


@case("workbook", Error("cases.xlsx", "match no area: 2026-03-01 (row 5)", "correct the ids"))
def an_id_that_became_a_date(country: Country) -> None:
    _book(country, _set("A5", datetime.datetime(2026, 3, 1)))


@case("workbook")
def hidden_rows_count_too(country: Country) -> None:
    def change(_: Any, sheet: Any) -> None:
        sheet.row_dimensions[5].hidden = True

    _book(country, change)


@case("workbook", Error("cases.csv", "`sheet: cases` is given, but CSV files", "remove the key"))
def a_sheet_of_a_csv(country: Country) -> None:
    country.change("counts", sheet="cases")


@case("workbook", Error("cases.xlsx", "sheet 'cover' is empty", "`sheet:` one of cases"))
def an_empty_first_sheet(country: Country) -> None:
    _book(country, lambda book, _: book.create_sheet("cover", 0))


@case("workbook", Error("cases.xlsx", "has no column 'code'", "set skip_rows: 1"))
def a_title_above_the_header(country: Country) -> None:
    def change(_: Any, sheet: Any) -> None:
        sheet.insert_rows(1)
        sheet["A1"] = "Report of March"

    _book(country, change)


OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


@case("workbook", Error("cases.xlsx", "protected by a password", "without a password"))
def encrypted(country: Country) -> None:
    path = country.counts.with_suffix(".xlsx")
    path.write_bytes(OLE + bytes(504) + "EncryptedPackage".encode("utf-16-le") + bytes(2000))
    country.change("counts", path=path.name)


@case("workbook", Error("cases.xls", "format .xls", "save it as .xlsx"))
def the_old_format(country: Country) -> None:
    path = country.counts.with_suffix(".xls")
    path.write_bytes(OLE + bytes(2040))
    country.change("counts", path=path.name)


@case("workbook", Error("cases.csv", "is a workbook or an archive", "name a workbook .xlsx"))
def a_workbook_by_the_name_of_a_csv(country: Country) -> None:
    _book(country, lambda _book, _sheet: None)
    country.counts.with_suffix(".xlsx").rename(country.counts)
    country.change("counts", path=country.counts.name)


@case("workbook", Error("cases.xlsx", "sheet1.xml expands from", ""))
def a_bomb(country: Country) -> None:
    _book(country, lambda _book, _sheet: None)
    path = country.counts.with_suffix(".xlsx")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            if name == "xl/worksheets/sheet1.xml":
                with archive.open(name, "w", force_zip64=True) as out:
                    for _ in range(300):
                        out.write(bytes(1 << 20))
            else:
                archive.writestr(name, data)


@case("workbook", Error("cases.xlsx", "cannot be read as a table", ""))
def entities_that_expand(country: Country) -> None:
    _book(country, lambda _book, _sheet: None)
    path = country.counts.with_suffix(".xlsx")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    entities = "".join(f'<!ENTITY e{k + 1} "{f"&e{k};" * 10}">' for k in range(9))
    document = f'<!DOCTYPE x [<!ENTITY e0 "lol">{entities}]><worksheet>&e9;</worksheet>'
    members["xl/worksheets/sheet1.xml"] = document.encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)

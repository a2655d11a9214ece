"""Values as DHIS2 writes them: data value sets, analytics and CSV, read as one kind of rows."""

from __future__ import annotations

import csv
import http.client
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar

from geo.core.errors import InputError, Problem, name_first, one_line
from pipeline.dhis2.server import LISTED, Query, RefusedError, Server

#: Columns of CSV, by what they hold: DHIS2 reads and writes them under two names.
_COLUMNS = {
    "element": ("dataelement",),
    "period": ("period",),
    "unit": ("orgunit",),
    "combo": ("catoptcombo", "categoryoptioncombo"),
    "attribute": ("attroptcombo", "attributeoptioncombo"),
    "value": ("value",),
}
_NEEDED = ("element", "period", "unit", "value")
#: Columns of analytics that are neither dimensions nor the value.
_MEASURES = ("numerator", "denominator", "factor", "multiplier", "divisor")
_MISSING = ("", "NaN")
_DELIMITERS = (",", ";", "\t", "|")  # of CSV; DHIS2 writes the first, spreadsheets the others

Item = TypeVar("Item")


@dataclass(frozen=True)
class Value:
    """A value of DHIS2.

    Attributes
    ----------
    element : str
        Data element, or indicator.
    period, unit : str
        Code of the period, identifier of the organisation unit.
    value : str
        As it is written.
    combo, attribute : str
        Category and attribute option combo; empty where they are not told.
    """

    element: str
    period: str
    unit: str
    value: str
    combo: str = ""
    attribute: str = ""

    @property
    def what(self) -> str:
        """Data element and option combos, ``ELEMENT.COMBO.ATTRIBUTE``."""
        return ".".join(filter(None, (self.element, self.combo, self.attribute)))

    def is_of(self, chosen: Iterable[str]) -> bool:
        """Return whether it is of a data element, or of one of its option combos."""
        return self.element in chosen or f"{self.element}.{self.combo}" in chosen

    @property
    def number(self) -> Decimal | None:
        """The value as a number; None where it is none."""
        try:
            found = Decimal(self.value)
        except InvalidOperation:
            return None
        return found if found.is_finite() else None


def read_file(path: str) -> list[Value]:
    """Read a file: JSON of `read_document`, else CSV of data values.

    Raises
    ------
    InputError
        If it cannot be read, or is neither.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        if text.lstrip()[:1] in ("{", "["):
            return read_document(json.loads(text), path)
    except (OSError, ValueError) as error:
        remedy = "give JSON or CSV as DHIS2 writes it, in UTF-8"
        raise InputError(Problem(path, f"cannot be read ({one_line(error)})", remedy)) from error
    refuse_page(text, path)
    return list(_of_csv(text, path))


def refuse_page(text: str, place: str) -> None:
    """Raise an InputError if a file is a page of a browser: that of a login, mostly."""
    if text.lstrip()[:1] == "<":
        found = "is a page of HTML or XML, such as that of a login, not what DHIS2 exports"
        remedy = "log in to DHIS2, and save the file again as JSON or CSV"
        raise InputError(Problem(place, found, remedy))


def read_document(document: Any, place: str) -> list[Value]:
    """Read the JSON of a data value set or of analytics.

    Parameters
    ----------
    document : Any
    place : str
        File or address, for problems.

    Raises
    ------
    InputError
        If it is neither, or a row lacks something.
    """
    if isinstance(document, Mapping):
        if isinstance(document.get("rows"), list):
            return list(_of_analytics(document, place))
        if isinstance(document.get("dataValues"), list):
            return list(_of_set(document, place))
        if document in ({}, {"dataValues": None}):  # a server that has no values
            return []
    found = "is neither a data value set (`dataValues`) nor analytics (`headers` and `rows`)"
    raise InputError(Problem(place, found, "give JSON as DHIS2 writes it"))


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a JSON object, an empty one in place of anything else."""
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> list[Any]:
    """Return a JSON array, an empty one in place of anything else."""
    return value if isinstance(value, list) else []


def names_of(document: Any) -> dict[str, str]:
    """Return the names of identifiers in the metadata of analytics."""
    about = mapping(mapping(document).get("metaData"))
    items = about.get("items") or about.get("names") or {}  # the latter of old servers
    named = {
        key: each.get("name") if isinstance(each, Mapping) else each
        for key, each in mapping(items).items()
    }
    return {str(key): str(name) for key, name in named.items() if name}


def stored_values(
    server: Server, elements: Iterable[str], units: Iterable[str], periods: Iterable[str],
    data_set: str | None,
) -> list[Value]:  # fmt: skip
    """Return the values that were entered or imported for organisation units themselves.

    Parameters
    ----------
    server : Server
    elements, units, periods : iterable of str
        Identifiers, and codes of periods.
    data_set : str or None
        Of the elements; without it they are asked for by themselves, which older servers refuse.
    """
    wanted, chosen = list(dict.fromkeys(elements)), list(units)
    of: Query = [("dataSet", data_set)] if data_set else [("dataElement", e) for e in wanted]
    found = []
    for some_periods in parts(list(periods), LISTED // 4):
        for some in parts(chosen, LISTED):
            query = [*of, *(("period", p) for p in some_periods), *(("orgUnit", u) for u in some)]
            try:
                answer = server.get("dataValueSets.json", query)
            except RefusedError as refused:
                if data_set or refused.status != http.client.CONFLICT:
                    raise
                (said,) = refused.problems
                remedy = "give the elements' data_set (dhis2.push, dhis2.pull)"
                raise InputError(Problem(said.place, said.found, remedy)) from refused
            found += read_document(answer, f"{server.url}/api/dataValueSets.json")
    return [each for each in found if each.element in wanted]


def parts(items: list[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in parts."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def add_up(
    values: Iterable[Value], key: str, place: str, names: Mapping[str, str], *, several: bool
) -> dict[tuple[str, str], Decimal]:
    """Return one number for each period and unit.

    Parameters
    ----------
    values : iterable of Value
        One that is there twice, with the same number, is taken once.
    key, place : str
        For problems: the key that chooses data elements, and where the values are from.
    names : mapping of str to str
        For problems: of identifiers.
    several : bool
        Whether several data elements or option combos are added up.

    Returns
    -------
    dict of (period, unit) to Decimal

    Raises
    ------
    InputError
        Where a value is no number or differs from another of the same, or there are several.
    """
    found: dict[tuple[str, str], dict[str, Decimal]] = defaultdict(dict)
    for each in values:
        number, own = each.number, found[each.period, each.unit]
        where = f"{place}: {each.what} of {each.unit} in {each.period}"
        if number is None:
            raise InputError(Problem(where, f"{each.value!r} is no number", "correct it"))
        if own.setdefault(each.what, number) != number:
            remedy = "leave the one that is right"
            raise InputError(Problem(where, f"has {own[each.what]} and {number}", remedy))
    many = {at: own for at, own in found.items() if len(own) > 1}
    if many and not several:
        (period, unit), own = next(iter(many.items()))
        shown = [f"{each} ({names.get(each.partition('.')[0], 'no name')})" for each in sorted(own)]
        what = f"{len(many)} of {len(found)} units and periods have several values, "
        what += f"{names.get(unit, unit)} in {period}: {name_first(shown)}"
        remedy = f"choose one ({key}), or add them up (dhis2.pull.sum: true)"
        raise InputError(Problem(place, what, remedy))
    return {at: sum(own.values(), Decimal(0)) for at, own in found.items()}


def _of_set(document: Mapping[str, Any], place: str) -> Iterator[Value]:
    outer = {key: document.get(key) for key in ("period", "orgUnit", "attributeOptionCombo")}
    for number, row in enumerate(document["dataValues"]):
        row = {**outer, **mapping(row)}
        if row.get("deleted") is True:
            continue
        given = [row.get(name) for name in ("dataElement", "period", "orgUnit")]
        if None in given:
            found = "has no dataElement, period or orgUnit"
            raise InputError(Problem(f"{place}: dataValues[{number}]", found, "correct it"))
        value = str(row.get("value", "")).strip()
        combo, attribute = (
            str(row.get(f"{kind}OptionCombo") or "") for kind in ("category", "attribute")
        )
        if value not in _MISSING:
            element, period, unit = map(str, given)
            yield Value(element, period, unit, value, combo, attribute)


def _of_analytics(document: Mapping[str, Any], place: str) -> Iterator[Value]:
    headers = [str(mapping(each).get("name")) for each in listed(document.get("headers"))]
    absent = [name for name in ("pe", "ou", "value") if name not in headers]
    if absent:
        found = f"analytics without the column {name_first(absent)}"
        remedy = "ask for dx, pe and ou as dimensions, not as filters"
        raise InputError(Problem(place, found, remedy))
    others = [n for n in headers if n not in ("dx", "pe", "ou", "value", *_MEASURES)]
    for number, cells in enumerate(document["rows"]):
        if not isinstance(cells, list) or len(cells) != len(headers):
            found = f"has not the {len(headers)} columns of the headers"
            raise InputError(Problem(f"{place}: rows[{number}]", found, "correct it"))
        row = {
            name: "" if cell is None else str(cell).strip()
            for name, cell in zip(headers, cells, strict=True)
        }
        element, _, combo = row.get("dx", "").partition(".")
        combo = ".".join(filter(None, (combo, *(row[name] for name in others))))
        if row["value"] not in _MISSING:
            yield Value(element, row["pe"], row["ou"], row["value"], combo)


def _of_csv(text: str, place: str) -> Iterator[Value]:
    first = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=first.count)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    head = [name.strip().lower() for name in next(rows, [])]
    at = {
        key: next((head.index(name) for name in names if name in head), None)
        for key, names in _COLUMNS.items()
    }
    absent = [_COLUMNS[key][0] for key in _NEEDED if at[key] is None]
    if absent:
        remedy = "give CSV with the head dataelement,period,orgunit,...,value, as DHIS2 writes it"
        raise InputError(Problem(place, f"has no column {name_first(absent)}", remedy))
    deleted = head.index("deleted") if "deleted" in head else None
    for number, cells in enumerate(rows, 2):
        if not cells:
            continue
        if len(cells) < len(head) and (at["value"] or 0) >= len(cells):
            found = f"has {len(cells)} cells, and the head {len(head)}"
            raise InputError(Problem(f"{place} line {number}", found, "correct it"))
        if len(cells) > len(head):
            found = f"has {len(cells)} cells, and the head {len(head)}"
            remedy = "write numbers without thousands (1234), and texts with a comma in quotes"
            raise InputError(Problem(f"{place} line {number}", found, remedy))
        row = {
            key: "" if n is None or n >= len(cells) else cells[n].strip() for key, n in at.items()
        }
        gone = deleted is not None and deleted < len(cells) and cells[deleted].lower() == "true"
        if row["value"] not in _MISSING and not gone:
            yield Value(**row)

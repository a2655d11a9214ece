"""Periods of a time series: a column of the counts, or ``{period}`` in a file name.

``counts.period`` names the column. Reading a configuration chooses one period for the run:
``config.period``.
"""

from __future__ import annotations

import codecs
import glob
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from geo.core.errors import InputError, Problem, name_first
from geo.core.period_text import ACCEPTED, NAME, natural_key, read_periods, time_order, unlike_most
from pipeline.config.series import replaced
from pipeline.config.values import PERIOD
from pipeline.storage.input_cache import local_copy
from pipeline.storage.location import Location, Storage, is_object_address, is_remote

MARK = "{period}"


def place_period(
    data: dict[str, Any],
    base: Path,
    requested: str | None,
    problems: list[Problem],
    source: str,
    *,
    storage: Storage,
    fallback_period: str | None = None,
) -> dict[str, Any]:
    """Choose the run's period, in a configuration that is not yet validated.

    Parameters
    ----------
    data : dict
        The YAML's keys and values.
    base : Path
        Base directory of relative paths.
    requested : str or None
        The period; by default that of the key ``period``, or the latest with counts.
    problems : list of Problem
        Errors are appended.
    source : str
        The file's name, for problems.
    storage : Storage
        Connection settings of object stores, for the counts.
    fallback_period : str, optional
        Period to use if there are no counts; by default, a problem is appended.

    Returns
    -------
    dict
        With ``period`` set and ``{period}`` replaced, if the configuration has periods.
    """
    requested = str(requested) if requested is not None else data.get("period")
    if not has_periods(data):
        if requested is not None:
            found = f"period {requested} requested, but the configuration has no periods"
            remedy = f"give counts.period (a column), or {MARK} in the path of the counts"
            problems.append(Problem(source, found, remedy))
        return {key: value for key, value in data.items() if key != "period"}
    where = _response(data)
    if requested is None:
        try:
            found_periods = periods_of(data, base, storage)
        except InputError as error:
            if fallback_period is None:
                problems.extend(error.problems)
                return data
            found_periods = []
        if not found_periods and fallback_period is None:
            found = f"no period found in {where.get('path')}"
            remedy = "check the path, or give the period (--period, or `period:`)"
            problems.append(Problem(f"{source}: counts.path", found, remedy))
            return data
        requested = found_periods[-1] if found_periods else fallback_period
    requested = str(requested)
    if _column(where) is not None:
        (read,), refused = read_periods([requested], _dayfirst(where))
        if read is None:
            found, remedy = refused.get(requested, ("is empty", f"write it as {ACCEPTED}"))
            problems.append(Problem(f"{source}: period", f"{requested!r} {found}", remedy))
            return data
        requested = read
    if not NAME.fullmatch(requested):
        found = f"{requested!r} is not a period"
        problems.append(Problem(f"{source}: period", found, f"write it as {ACCEPTED}"))
        return data
    mapped: dict[str, Any] = replaced(data, {MARK: requested})
    return {**mapped, "period": requested}


def has_periods(data: dict[str, Any]) -> bool:
    """Return whether a configuration has periods."""
    return _column(_response(data)) is not None or any(MARK in text for text in _texts(data))


def periods_of(data: dict[str, Any], base: Path, storage: Storage) -> list[str]:
    """List the periods that have counts, the earliest first.

    Raises
    ------
    InputError
        If the table cannot be read, or its periods, or their order in time cannot be told.
    """
    where = _response(data)
    path = where.get("path")
    if not isinstance(path, str):
        return []
    if MARK in path and where.get("period"):
        found = f"{path} has a file for each period, and `period: {where['period']}` names a column"
        remedy = f"remove `period`, or give the path of one table, without {MARK}"
        raise InputError(Problem("counts", found, remedy))
    if MARK in path:
        files = [period for period, _ in period_files(path, base, storage)]
        return _in_order(files, path, where)
    column = _column(where)
    if column is None:
        return []
    # These import pandas: only where it is needed.
    from geo.core.columns import column_periods, has_column, is_missing
    from geo.tables.registry import TABLES, read_table

    full: str | Path | None = path
    if is_object_address(path):
        full = local_copy(path, storage)
    elif not is_remote(path):
        full = base / Path(path).expanduser()
    if full is None:
        return []
    chosen = {key: where[key] for key in ("sheet", "layer") if isinstance(where.get(key), str)}
    name, problems = f"counts ({path if is_object_address(path) else full})", list[Problem]()
    wide = (str(column), str(where.get("value"))) if _is_wide(where) else None
    table, rows = read_table(
        full,
        name,
        encoding=_encoding(where),
        **_layout(where),
        wide=wide,
        dayfirst=_dayfirst(where),
        **chosen,
    )
    word, dayfirst = TABLES.of(full).row_word, _dayfirst(where)
    if has_column(table.columns, str(column), name, "counts.period", problems):
        texts = column_periods(table[str(column)], rows, name, word, dayfirst, problems)
    if problems:
        raise InputError(problems)
    if where.get("value") in table.columns:
        # A template may have the rows of coming periods, still without counts.
        texts = texts[[not is_missing(value) for value in table[where["value"]]]]
    texts = texts.dropna()
    if time_order(texts, dayfirst) is None and (odd := unlike_most(texts, dayfirst)):
        # One slip among many: the row helps, a list of those that are right does not.
        at = {text: rows[place] for place, text in reversed(list(texts.items()))}
        place = f"{name} {word} {name_first([f'{at[text]} ({text!r})' for text in odd])}"
        like = next(text for text in texts if text not in odd)
        found = f"column {column!r} has a period in another form than most"
        raise InputError(Problem(place, found, f"write it as the others are, such as {like}"))
    return _in_order(texts, f"{name} column {column!r}", where)


def _in_order(periods: Iterable[str], place: str, where: dict[str, Any]) -> list[str]:
    found = list(dict.fromkeys(periods))
    ordered = time_order(found, _dayfirst(where))
    if ordered is None:
        what = f"which period is the latest cannot be told: {name_first(found, 12)}"
        remedy = f"name one (--period, or `period:`), or write all as one of {ACCEPTED}"
        raise InputError(Problem(place, what, remedy))
    return ordered


def _is_wide(where: dict[str, Any]) -> bool:
    # Without a table, the validation reports it.
    return where.get("periods") == "columns" and where.get("path") is not None


def _column(where: dict[str, Any]) -> Any:
    """Return the column with the periods, or the one that is made of columns."""
    return where.get("period") or (PERIOD if _is_wide(where) else None)


def _dayfirst(where: dict[str, Any]) -> bool | None:
    """Return a key of a section that is not yet validated."""
    given = where.get("dayfirst")
    return given if isinstance(given, bool) else None


def _layout(where: dict[str, Any]) -> dict[str, Any]:
    skip, delimiter = where.get("skip_rows"), where.get("delimiter")
    found = {"skip_rows": skip} if isinstance(skip, int) and skip > 0 else {}
    return found | ({"delimiter": delimiter} if delimiter in (",", ";", "\t", "|") else {})


def _encoding(where: dict[str, Any]) -> str | None:
    given = where.get("encoding")
    try:
        codecs.lookup(given or "utf-8")
    except (LookupError, TypeError):  # the validation reports it
        return None
    return given


def can_be_listed(path: str) -> bool:
    """Return whether :func:`period_files` can look for files of a path: a web server lists none."""
    return not is_remote(path) or is_object_address(path)


def period_files(
    path: str, base: Path, storage: Storage | None = None, mark: str = MARK
) -> list[tuple[str, str]]:
    """List (period, path) of the files that match a path with ``{period}``, or another mark."""
    remote = "://" in path
    full = path if remote else str(base / Path(path).expanduser())
    before, _, after = full.partition(mark)
    if mark in after:  # cases/{period}/cases_{period}.csv
        inner = after.partition(mark)[0]
        below = inner.rpartition("/")[0]
        return [
            (period, full.replace(mark, period))
            for period, _ in period_files(f"{before}{mark}{below}", Path(), storage, mark)
        ]
    if is_object_address(full):
        names = _object_names(before, after, storage or Storage())
    elif remote:
        import fsspec

        system, plain = fsspec.core.url_to_fs(f"{before}*{after}")
        names = [system.unstrip_protocol(name) for name in system.glob(plain)]
    else:
        names = glob.glob(f"{glob.escape(before)}*{glob.escape(after)}")
    found = [(name[len(before) : len(name) - len(after)], name) for name in names]
    return [(period, name) for period, name in found if NAME.fullmatch(period)]


def _object_names(before: str, after: str, storage: Storage) -> list[str]:
    """List the objects or prefixes whose address is ``before``, a name and ``after``."""
    above, _, head = before.rpartition("/")
    tail, _, below = after.partition("/")
    names = Location(above, storage).children()
    found = [f"{above}/{n}" for n in names if n.startswith(head) and n.endswith(tail)]
    if not below:
        return found
    inside = [Location(f"{name}/{below}", storage) for name in found]
    return [place.url for place in inside if place.info() is not None]


def select_periods(periods: Sequence[str], first: str, last: str) -> list[str]:
    """Return the periods from ``first`` to ``last``, both included.

    Raises
    ------
    InputError
        If there is none.
    """
    chosen = [p for p in periods if natural_key(first) <= natural_key(p) <= natural_key(last)]
    if not chosen:
        found = f"no counts of any period from {first} to {last}"
        known = f"the periods are {name_first(list(periods), 12)}" if periods else "there are none"
        raise InputError(Problem("period", found, f"choose others: {known}"))
    return chosen


def _response(data: dict[str, Any]) -> dict[str, Any]:
    for key in ("counts", "labels"):
        if isinstance(data.get(key), dict):
            section: dict[str, Any] = data[key]
            return section
    return {}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)

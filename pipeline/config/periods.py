"""Periods of a time series: a column of the counts, or ``{period}`` in a file name.

``counts.period`` names the column. Reading a configuration chooses one period for the run:
``config.period``.
"""

from __future__ import annotations

import codecs
import glob
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from geo.errors import InputError, Problem, name_first
from geo.spelling import DAY, Spelling
from pipeline.storage.input_cache import local_copy
from pipeline.storage.location import Location, Storage, is_object_address, is_remote

MARK = "{period}"
_PERIOD = re.compile(r"^\w[\w.-]*$")


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
        found_periods = periods_of(data, base, storage)
        if not found_periods and fallback_period is None:
            found = f"no period found in {where.get('path')}"
            remedy = "check the path, or give the period (--period, or `period:`)"
            problems.append(Problem(f"{source}: counts.path", found, remedy))
            return data
        requested = found_periods[-1] if found_periods else fallback_period
    requested = str(requested)
    if where.get("period") is not None:
        requested = str(_spelling(where).periods([requested])[0])
    if not _PERIOD.match(requested):
        found, remedy = f"{requested!r} is not a period", "write it as 2026-03 or 2026-W11"
        if DAY.match(requested) and where.get("dayfirst") is None:
            found = f"the day and the month of {requested!r} cannot be told apart"
            remedy = "set counts.dayfirst: true if its first number is the day, else false"
        problems.append(Problem(f"{source}: period", found, remedy))
        return data
    replaced: dict[str, Any] = _replace(data, requested)
    return {**replaced, "period": requested}


def has_periods(data: dict[str, Any]) -> bool:
    """Return whether a configuration has periods."""
    return _response(data).get("period") is not None or any(MARK in text for text in _texts(data))


def periods_of(data: dict[str, Any], base: Path, storage: Storage) -> list[str]:
    """List the periods that have counts, the earliest first.

    An unreadable table has none: the check of the inputs reports the error.
    """
    where = _response(data)
    path = where.get("path")
    if not isinstance(path, str):
        return []
    if MARK in path:
        return sorted({period for period, _ in period_files(path, base, storage)}, key=natural_key)
    column = where.get("period")
    if column is None:
        return []
    from geo.tables import column_texts  # pandas: only where it is needed

    full: str | Path | None = path
    if is_object_address(path):
        full = local_copy(path, storage)
    elif not is_remote(path):
        full = base / Path(path).expanduser()
    if full is None:
        return []
    chosen = {key: where[key] for key in ("sheet", "layer") if isinstance(where.get(key), str)}
    # A template may have the rows of coming periods, still without counts.
    texts = column_texts(
        full, str(column), given=str(where.get("value")), spelling=_spelling(where), **chosen
    )
    return sorted(set(texts), key=natural_key)


def _spelling(where: dict[str, Any]) -> Spelling:
    """Return how a table is written, of a section that is not yet validated."""
    dayfirst, encoding = where.get("dayfirst"), where.get("encoding")
    try:
        codecs.lookup(encoding or "utf-8")
    except (LookupError, TypeError):  # the validation reports it
        encoding = None
    return Spelling(encoding, dayfirst=dayfirst if isinstance(dayfirst, bool) else None)


def period_files(path: str, base: Path, storage: Storage | None = None) -> list[tuple[str, str]]:
    """List (period, path) of the files that match a path with ``{period}``."""
    remote = "://" in path
    full = path if remote else str(base / Path(path).expanduser())
    before, _, after = full.partition(MARK)
    if MARK in after:  # cases/{period}/cases_{period}.csv
        inner = after.partition(MARK)[0]
        below = inner.rpartition("/")[0]
        return [
            (period, full.replace(MARK, period))
            for period, _ in period_files(f"{before}{MARK}{below}", Path(), storage)
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
    return [(period, name) for period, name in found if _PERIOD.match(period)]


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


def natural_key(period: str) -> tuple[tuple[int, int | str], ...]:
    """Return a sort key that places 2026-9 before 2026-10."""
    parts = re.split(r"(\d+)", period)
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in parts if part)


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


def _replace(value: Any, period: str) -> Any:
    if isinstance(value, str):
        return value.replace(MARK, period)
    if isinstance(value, dict):
        return {key: _replace(item, period) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace(item, period) for item in value]
    return value

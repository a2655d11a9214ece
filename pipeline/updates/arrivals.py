"""New data, sensed from outside: size and time of files, the ETag of objects; nothing is read."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geo.errors import InputError, Problem
from pipeline.config.periods import MARK, natural, period_files, periods_of
from pipeline.config.reader import read_config
from pipeline.config.schema import Config
from pipeline.storage.files import text_digest, write_json
from pipeline.storage.location import Location, Storage, is_object_address


@dataclass(frozen=True)
class Arrival:
    """Counts that are there and have not been seen before.

    Attributes
    ----------
    address : str
        The file or object.
    period : str or None
        Where its name says it.
    token : str
        Changes when the file does.
    """

    address: str
    period: str | None
    token: str


def new_counts(config: str | Path, now: float | None = None) -> list[Arrival]:
    """Look for counts (or labels) that are new or have changed since `mark_seen`.

    Where a map has never been looked at, only the latest period counts as new: the others are
    history, for a backfill. A file that was touched less than ``update.settle_s`` ago is not
    taken up yet: somebody may still be writing it.

    Parameters
    ----------
    config : path
        The YAML file.
    now : float, optional
        Seconds since the epoch.

    Returns
    -------
    list of Arrival
        The earliest period first.

    Raises
    ------
    geo.errors.InputError
        If the configuration is unusable for another reason than that its files are missing.
    """
    loaded = load_watched(config)
    seen, storage = _seen(loaded), loaded.storage.open()
    now = time.time() if now is None else now
    arrivals = []
    for period, address in _addresses(loaded):
        state = look(address, storage)
        if state is None:
            continue
        token, modified = state
        settled = modified is None or now - modified >= loaded.update.settle_s
        if settled and (seen or {}).get(address) != token:
            arrivals.append(Arrival(address, period, token))
    arrivals.sort(key=lambda each: natural(each.period or ""))
    if seen is None and len(arrivals) > 1:
        for each in arrivals[:-1]:
            mark_seen(loaded, each)
        arrivals = arrivals[-1:]
    return arrivals


def mark_seen(config: Config | str | Path, arrival: Arrival) -> None:
    """Remember that a run was started for an arrival."""
    loaded = config if isinstance(config, Config) else load_watched(config)
    path = _memory(loaded)
    seen = {**(_seen(loaded) or {}), arrival.address: arrival.token}
    write_json(path, dict(sorted(seen.items())), unique=True)


def look(address: str, storage: Storage) -> tuple[str, float | None] | None:
    """Tell a file's or object's state without reading it.

    Returns
    -------
    (str, float or None) or None
        A token of size and time, or of the ETag, and the time of the last change (seconds since
        the epoch) of a file; an object is whole as soon as it is there, and has none. None where
        nothing is there.
    """
    if is_object_address(address):
        found = Location(address, storage).info()
        return None if found is None else (_token(address, found.tag, str(found.size)), None)
    if "://" in address:
        import fsspec

        system, path = fsspec.core.url_to_fs(address)
        system.invalidate_cache()
        try:
            info: dict[str, Any] = system.info(path)
        except FileNotFoundError:
            return None
        said = [str(info.get(key, "")) for key in ("ETag", "etag", "size", "LastModified")]
        return _token(address, *said), None
    try:
        state = os.stat(address)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _token(address, str(state.st_size), str(state.st_mtime_ns)), state.st_mtime


def known_periods(config: str | Path) -> list[str]:
    """List the periods that there are counts of, the earliest first."""
    loaded = load_watched(config)
    values, base = _values(loaded)
    return periods_of(values, base, loaded.storage.open())


def _addresses(config: Config) -> list[tuple[str | None, str]]:
    values, base = _values(config)
    path = values[config.model.responses].get("path")
    if isinstance(path, str) and MARK in path:
        return list(period_files(path, base, config.storage.open()))
    if config.response.path is None:  # a column of the areas
        return [(None, config.areas.path)]
    return [(None, config.response.path)]


def load_watched(config: str | Path) -> Config:
    """Read a configuration without asking whether its files are there: they may yet come."""
    problems: list[Problem] = []
    loaded = read_config(config, problems, otherwise="0")
    if loaded is None or problems:
        raise InputError(problems)
    return loaded


def _values(config: Config) -> tuple[dict[str, Any], Path]:
    """Return a configuration's values before one period became its own, and their directory."""
    document = config.document
    if document is None:
        message = "a configuration that is watched was read from no file"
        raise RuntimeError(message)
    return document.values, document.path.resolve().parent


def _memory(config: Config) -> Path:
    return config.output.dir / "work" / "seen.json"


def _seen(config: Config) -> dict[str, str] | None:
    try:
        seen = json.loads(_memory(config).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return seen if isinstance(seen, dict) else None


def _token(*parts: str) -> str:
    return text_digest("\0".join(parts), 24)

"""Detect new counts by size and time of files, or by ETag of objects, without reading them."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geo.core.addresses import redacted
from geo.core.errors import InputError, Problem
from geo.core.period_text import natural_key
from pipeline.config.periods import MARK, period_files, periods_of
from pipeline.config.reader import read_config
from pipeline.config.schema import Config
from pipeline.storage.files import make_private, text_digest, write_json
from pipeline.storage.location import Location, Storage, is_object_address


@dataclass(frozen=True)
class Arrival:
    """A new or changed file of counts.

    Attributes
    ----------
    address : str
        The file or object.
    period : str or None
        Period in its name.
    token : str
        Changes with the file.
    """

    address: str
    period: str | None
    token: str


def new_counts(config: str | Path, now: float | None = None) -> list[Arrival]:
    """Return counts (or labels) that are new or have changed since `mark_seen`.

    At the first check of a map, only the latest period is new: the earlier ones are for a
    backfill. A file that changed less than ``update.settle_s`` ago may be incomplete: skip it.

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
    geo.core.errors.InputError
        If the configuration is invalid; missing files are allowed.
    """
    loaded = load_watched(config)
    seen, storage = _seen(loaded), loaded.storage.open()
    now = time.time() if now is None else now
    arrivals = []
    for period, address in _addresses(loaded):
        state = read_state(address, storage)
        if state is None:
            continue
        token, modified = state
        settled = modified is None or now - modified >= loaded.update.settle_s
        if settled and (seen or {}).get(seen_key(address)) != token:
            arrivals.append(Arrival(address, period, token))
    arrivals.sort(key=lambda each: natural_key(each.period or ""))
    if seen is None and len(arrivals) > 1:
        for each in arrivals[:-1]:
            mark_seen(loaded, each)
        arrivals = arrivals[-1:]
    return arrivals


def mark_seen(config: Config | str | Path, arrival: Arrival) -> None:
    """Record that a run was started for an arrival."""
    loaded = config if isinstance(config, Config) else load_watched(config)
    path = _seen_path(loaded)
    # Earlier versions kept addresses with their secrets.
    kept = {key: token for key, token in (_seen(loaded) or {}).items() if redacted(key) == key}
    seen = {**kept, seen_key(arrival.address): arrival.token}
    make_private(path.parent)
    write_json(path, dict(sorted(seen.items())), unique=True)


def read_state(address: str, storage: Storage) -> tuple[str, float | None] | None:
    """Return the state of a file or object without reading its content.

    Returns
    -------
    (str, float or None) or None
        A token (of size and time, or of the ETag), and the time of the last change of a file in
        seconds since the epoch. An object is complete at once: its time is None. None if absent.
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
        tags = [str(info.get(key, "")) for key in ("ETag", "etag", "size", "LastModified")]
        return _token(address, *tags), None
    try:
        state = os.stat(address)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _token(address, str(state.st_size), str(state.st_mtime_ns)), state.st_mtime


def known_periods(config: str | Path) -> list[str]:
    """List the periods that have counts, the earliest first."""
    loaded = load_watched(config)
    values, base = _values(loaded)
    return periods_of(values, base, loaded.storage.open())


def counts_before(config: Config, arrival: Arrival) -> str | None:
    """Return the file of the period before an arrival's; None of a file without a period."""
    known = sorted(_addresses(config), key=lambda each: natural_key(each[0] or ""))
    before = [
        path
        for period, path in known
        if natural_key(period or "") < natural_key(arrival.period or "")
    ]
    return before[-1] if before else None


def _addresses(config: Config) -> list[tuple[str | None, str]]:
    values, base = _values(config)
    path = values[config.model.responses].get("path")
    if isinstance(path, str) and MARK in path:
        return list(period_files(path, base, config.storage.open()))
    if config.response.path is None:  # a column of the areas
        return [(None, config.areas.path)]
    return [(None, config.response.path)]


def load_watched(config: str | Path) -> Config:
    """Read a configuration whose input files may still be missing."""
    problems: list[Problem] = []
    loaded = read_config(config, problems, fallback_period="0")
    if loaded is None or problems:
        raise InputError(problems)
    return loaded


def _values(config: Config) -> tuple[dict[str, Any], Path]:
    """Return a configuration's values before a period was chosen, and its directory."""
    document = config.document
    if document is None:
        message = "a watched configuration must be read from a file"
        raise RuntimeError(message)
    return document.values, document.directory


def seen_key(address: str) -> str:
    """Return the name of an address in ``seen.json``, without its secrets."""
    shown = redacted(address)
    return shown if shown == address else f"{shown} {text_digest(address, 8)}"


def _seen_path(config: Config) -> Path:
    return config.shared_dir / "work" / "seen.json"


def _seen(config: Config) -> dict[str, str] | None:
    try:
        seen = json.loads(_seen_path(config).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return seen if isinstance(seen, dict) else None


def _token(*parts: str) -> str:
    return text_digest("\0".join(parts), 24)

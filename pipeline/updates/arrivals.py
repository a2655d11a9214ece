"""New data, sensed from outside: size and time of files, the ETag of objects; nothing is read."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.periods import MARK, has_periods, natural, period_files, periods_of
from pipeline.config.schema import Config
from pipeline.storage.location import use_storage


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
    seen = _seen(loaded)
    now = time.time() if now is None else now
    arrivals = []
    for period, address in _addresses(Path(config), loaded):
        state = look(address)
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
    path.parent.mkdir(parents=True, exist_ok=True)
    seen = {**(_seen(loaded) or {}), arrival.address: arrival.token}
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(seen, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(partial, path)


def look(address: str) -> tuple[str, float | None] | None:
    """Tell a file's or object's state without reading it.

    Returns
    -------
    (str, float or None) or None
        A token of size and time, or of the ETag, and the time of the last change (seconds since
        the epoch) of a file; an object is whole as soon as it is there, and has none. None where
        nothing is there.
    """
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
    source = Path(config)
    load_watched(source)  # says what is wrong, if anything is
    return _periods(source, read_data(source))


def read_data(source: Path) -> dict[str, Any]:
    """Read a configuration's keys and values as they are, ``${NAME}`` replaced."""
    text = os.path.expandvars(source.read_text(encoding="utf-8"))
    data: dict[str, Any] = yaml.safe_load(text)
    return data


def _addresses(source: Path, config: Config) -> list[tuple[str | None, str]]:
    data = read_data(source)
    path = (data.get("counts") or data.get("labels") or {}).get("path")
    if isinstance(path, str) and MARK in path:
        return list(period_files(path, source.resolve().parent))
    if config.response.path is None:  # a column of the areas
        return [(None, config.areas.path)]
    return [(None, config.response.path)]


def load_watched(config: str | Path) -> Config:
    """Read a configuration without asking whether its files are there: they may yet come."""
    from geo.errors import InputError
    from pipeline.config.reader import read_config

    problems: list[Any] = []
    loaded = read_config(config, problems)
    if loaded is None and _waits_for_its_first(Path(config)):
        problems.clear()
        loaded = read_config(config, problems, "0")  # any period: what is asked of it has none
    if loaded is None or problems:
        raise InputError(problems)
    use_storage(loaded.storage.options())
    return loaded


def _waits_for_its_first(source: Path) -> bool:
    try:
        data = read_data(source)
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return isinstance(data, dict) and has_periods(data) and not _periods(source, data)


def _periods(source: Path, data: dict[str, Any]) -> list[str]:
    return periods_of(data, source.resolve().parent)


def _memory(config: Config) -> Path:
    return config.output.dir / "work" / "seen.json"


def _seen(config: Config) -> dict[str, str] | None:
    try:
        seen = json.loads(_memory(config).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return seen if isinstance(seen, dict) else None


def _token(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()

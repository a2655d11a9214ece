"""Repeat a run from its ``run.json``: the same configuration, inputs and, if possible, libraries.

The record has the configuration with all defaults, so that a later version with other defaults
repeats the run as it was. Its inputs are compared by content. Code and libraries cannot be chosen
here: where they differ the user is warned that bytes may differ, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from geo.core.addresses import HIDDEN
from geo.core.errors import InputError, Problem
from pipeline.config.covariate_schema import INPUT_KEYS
from pipeline.config.document import Document, merged
from pipeline.config.explain import explain_errors
from pipeline.config.local_inputs import local_inputs
from pipeline.config.reader import missing_files
from pipeline.config.recorded import without_idle
from pipeline.config.schema import Config
from pipeline.core.code import run_versions
from pipeline.core.plugins import load_plugins
from pipeline.core.sources import code_hashes
from pipeline.run.fingerprints import Fingerprints
from pipeline.storage.fingerprint import fingerprint_file
from pipeline.storage.location import Storage, is_remote

FORMAT, VERSION = "disagg-run", 1
_REMEDY = "give the run.json that a run left in its output directory"


@dataclass(frozen=True)
class Repetition:
    """A run to repeat.

    Attributes
    ----------
    config : Config
        That of the run, with the output directory of the repetition.
    warnings : tuple of str
        A line for each library whose version differs, and for each input that cannot be compared.
    """

    config: Config
    warnings: tuple[str, ...]


def read_repetition(path: Path, into: Path | None = None) -> Repetition:
    """Read a record, and compare inputs and versions with it.

    Parameters
    ----------
    path : Path
        ``run.json``. Inputs that are no longer at their recorded places are looked for at the
        same place relative to it: a folder with data and results may be moved.
    into : Path, optional
        Output directory; by default the recorded one.

    Raises
    ------
    InputError
        If the file is no record, or with a line for each input that is missing or has changed.
    """
    load_plugins()
    record = _read(path)
    config = _config(path, record, into)
    problems: list[Problem] = []
    missing_files(config, problems)
    if problems:
        raise InputError(problems)
    warnings = [*_compare_versions(record), *_compare_inputs(path, config, record, problems)]
    if problems:
        raise InputError(problems)
    return Repetition(config, tuple(warnings))


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(Problem(str(path), "no such file", _REMEDY)) from None
    except IsADirectoryError:
        raise InputError(Problem(str(path), "a directory", f"give {path / 'run.json'}")) from None
    except OSError as error:
        found = str(error.strerror).lower()
        raise InputError(Problem(str(path), found, "change the permissions")) from None
    except ValueError:  # no JSON, or no UTF-8
        raise InputError(Problem(str(path), "not JSON", _REMEDY)) from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InputError(Problem(str(path), "not the record of a run", _REMEDY))
    if record.get("version") != VERSION:
        found = f"version {record.get('version')!r} of the record; this disagg reads {VERSION}"
        raise InputError(Problem(str(path), found, "repeat it with the disagg that wrote it"))
    for key in ("config", "fingerprints", "versions"):
        if not isinstance(record.get(key), dict):
            raise InputError(Problem(f"{path}: {key}", "missing or damaged", _REMEDY))
    return record


def _config(path: Path, record: Mapping[str, Any], into: Path | None) -> Config:
    """Return the configuration of a record; raise InputError if it is not valid here."""
    recorded = record["config"]
    hidden = [key for key, text in _texts(recorded) if HIDDEN in text]
    if hidden:
        why = "the address had a password or a key, which a record does not keep"
        source = record.get("config_file") or "CONFIG"
        raise InputError(
            [Problem(f"{path}: config.{key}", why, f"disagg run {source}") for key in hidden]
        )
    # Which keys were set counts for some models; records of earlier versions do not tell.
    given = record.get("given") or recorded
    found = _validated(path, _placed(path, record, given), record)
    now = found.model_dump(mode="json")
    changed = _differences(now, recorded)  # defaults that are others today
    if changed:
        found = _validated(path, _placed(path, record, merged(given, changed)), record)
    if into is None:
        return found
    where = {"dir": Path(os.path.abspath(into)), "url": None}
    moved = found.model_copy(update={"output": found.output.model_copy(update=where)})
    moved._document = found.document
    return moved


def _validated(path: Path, data: dict[str, Any], record: Mapping[str, Any]) -> Config:
    # The folder of the configuration's file is one that virtual rasters may refer to.
    source = Storage().place(record.get("config_file") or path)
    document = Document(source, data, {})
    try:
        base = {"base": path.resolve().parent}
        config = Config.model_validate(without_idle(data), context=base)
    except ValidationError as error:
        shown = Document(path, data, {})
        details = error.errors(include_url=False)
        problems = [p for d in details for p in explain_errors(d, data, [], shown)]
        raise InputError(problems) from None
    config._document = document
    return config


def _differences(now: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded values that differ; keys that today's configuration lacks, too."""
    found: dict[str, Any] = {}
    for key, value in recorded.items():
        have = now.get(key)
        if isinstance(value, dict) and isinstance(have, Mapping):
            inner = _differences(have, value)
            if inner and not _is_path_of(inner):
                found[key] = inner
        elif have != value and not _is_path(key, value):
            found[key] = value
    return found


def _is_path(key: str, value: Any) -> bool:
    """Return whether a value is a local path: it may have been found elsewhere."""
    return isinstance(value, str) and (key in (*INPUT_KEYS, "dir") or os.path.isabs(value))


def _is_path_of(values: Mapping[str, Any]) -> bool:
    return all(_is_path(key, value) for key, value in values.items())


def _placed(path: Path, record: Mapping[str, Any], data: Any) -> Any:
    """Copy the configuration; look for files that are gone relative to the record."""
    old = Path(record["config"]["output"]["dir"])

    def place(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: place(item) for key, item in value.items()}
        if isinstance(value, list):
            return [place(item) for item in value]
        if not isinstance(value, str) or not os.path.isabs(value) or os.path.exists(value):
            return value
        moved = (path.resolve().parent / os.path.relpath(value, old)).resolve()
        return str(moved) if moved.is_file() else value

    return place(data)


def _compare_inputs(
    path: Path, config: Config, record: Mapping[str, Any], problems: list[Problem]
) -> Iterator[str]:
    """Compare inputs with the recorded fingerprints; yield a line for what cannot be compared."""
    places = config.input_paths()
    with local_inputs(config) as local:
        now = Fingerprints(local).inputs()
        for key, fingerprint in now.items():
            was = record["fingerprints"].get(key)
            if fingerprint == was:
                continue
            place = f"{key} ({places[key]})"
            unstable = is_remote(places[key]) and fingerprint != fingerprint_file(
                local.input_paths()[key], local.storage.open()
            )
            if unstable:
                yield f"{place} does not say whether it changed since the run"
                continue
            found = f"has changed since the run of {path} ({_short(was)} -> {_short(fingerprint)})"
            source = record.get("config_file") or "CONFIG"
            remedy = f"restore the file, or map what it holds now: disagg run {source}"
            problems.append(Problem(place, found, remedy))


def _compare_versions(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each library, and each package of disagg, that differs."""
    now = run_versions()
    for name in {**now, **record["versions"]}:
        was, there = record["versions"].get(name, "none"), now.get(name, "none")
        if name != "platform" and was != there:
            yield f"the run had {name} {was}, this is {there}: bytes may differ"
    code = record.get("code") or {}
    for name, there in code_hashes().items():
        was = code.get(name, "none")
        if was != there:
            yield f"the code of {name} is not that of the run ({_short(was)} -> {_short(there)})"


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _texts(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)
    elif isinstance(value, str):
        yield key, value


def _short(fingerprint: Any) -> str:
    return str(fingerprint or "none")[:8]

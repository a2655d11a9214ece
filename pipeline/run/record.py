"""The record of a run: what each stage read and left, and why one has to run again.

``work/stages.json`` holds fingerprints of contents: a changed byte of an input, a changed key of
the configuration, or a missing or damaged output makes a stage stale.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.config.schema import Config
from pipeline.run.stages import STAGES, Stage
from pipeline.storage.files import write_json
from pipeline.storage.fingerprint import fingerprint_file, fingerprint_value

_PACKAGES = ("dask", "exactextract", "geopandas", "numpy", "rasterio", "scipy", "shapely", "zarr")


def stage_inputs(stage: Stage, config: Config) -> dict[str, str]:
    """Fingerprint everything that a stage depends on, by name.

    Parameters
    ----------
    stage : Stage
        Which.
    config : Config
        The run's.

    Returns
    -------
    dict of str to str
        Configuration keys, files by their key, and what earlier stages left.
    """
    inputs = {"disagg": _version("disagg")}
    dump = config.model_dump(mode="json")
    for key in stage.config:
        inputs[key] = fingerprint_value(_without_paths(_at(dump, key)))
    inputs |= file_fingerprints(config, stage.files)
    if stage.products:
        inputs["products"] = fingerprint_value(list(stage.products))
    for output in stage.needs:
        inputs[output] = fingerprint_file(config.output.dir / output)
    return inputs


def file_fingerprints(config: Config, sections: Sequence[str] | None = None) -> dict[str, str]:
    """Fingerprint the input files of some sections of the configuration, or of all."""
    known: dict[str, str] = {}  # grid.like mostly is a file that another key names too
    prints = {}
    for key, path in config.input_paths().items():
        if sections is None or key.split(".")[0] in sections:
            known.setdefault(path, "")
            known[path] = known[path] or fingerprint_file(path)
            prints[key] = known[path]
    return prints


def write_run(config: Config, fingerprints: Mapping[str, str] | None = None) -> Path:
    """Write ``run.json``: versions, configuration, fingerprints of every input, timings.

    Parameters
    ----------
    config : Config
    fingerprints : mapping, optional
        Of the inputs as they were read; those of now where not given.

    Returns
    -------
    Path
        The file.
    """
    record = read_record(config.output.dir)
    run = {
        "format": "disagg-run",
        "version": 1,
        "name": config.name,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "disagg": _version("disagg"),
            **{package: _version(package) for package in _PACKAGES},
        },
        "config_file": None if config.source is None else str(config.source),
        "config": config.model_dump(mode="json"),
        "fingerprints": dict(fingerprints or file_fingerprints(config)),
        "stages": record,
        "seconds": round(sum(entry["seconds"] for entry in record.values()), 3),
    }
    path = config.output.dir / "run.json"
    write_json(path, run)
    return path


def read_record(directory: Path) -> dict[str, Any]:
    """Read ``work/stages.json``; empty where there is none, or a damaged one."""
    try:
        record = json.loads(record_path(directory).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, UnicodeDecodeError):
        return {}
    if not isinstance(record, dict):
        return {}
    return {name: entry for name, entry in record.items() if is_sound(entry)}


def record_path(directory: Path) -> Path:
    """Return where the record of an output directory lies."""
    return directory / "work" / "stages.json"


def stale_reason(record: Any, inputs: Mapping[str, str], directory: Path) -> str:
    """Say why a stage has to run; empty where it need not."""
    if record is None:
        return "first run"
    before = record["inputs"]
    changed = [key for key in {**before, **inputs} if before.get(key) != inputs.get(key)]
    if changed:
        return f"changed: {', '.join(changed)}"
    for name, fingerprint in record["outputs"].items():
        if output_fingerprint(directory / name) != fingerprint:
            return f"{name} is missing or damaged"
    return "" if record["outputs"] else "left nothing"


def output_fingerprints(patterns: Sequence[str], directory: Path) -> dict[str, str]:
    """Fingerprint all that matches some patterns, by path relative to the directory."""
    paths = sorted({path for pattern in patterns for path in directory.glob(pattern)})
    return {p.relative_to(directory).as_posix(): output_fingerprint(p) for p in paths}


def output_fingerprint(path: Path) -> str:
    """Fingerprint an output; of a style only that it is there."""
    # A style is made to be edited: that it is there is enough.
    if path.suffix == ".qml" and path.is_file():
        return "present"
    return fingerprint_file(path)


def is_undamaged(path: Path, fingerprint: str) -> bool:
    """Say whether an output is as its stage left it."""
    return output_fingerprint(path) == fingerprint


def stage_key(name: str, config: Config) -> tuple[str, bool]:
    """Return the fingerprint of all that a stage depends on, and whether it is up to date.

    The code's version and the place of the results are part of it: two maps share no result.
    """
    stage = STAGES[name]
    inputs = stage_inputs(stage, config)
    record = read_record(config.output.dir).get(name)
    current = record is not None and not stale_reason(record, inputs, config.output.dir)
    key = fingerprint_value({"stage": name, "dir": str(config.output.dir), "inputs": inputs})
    return key, current


def _at(dump: Any, key: str) -> Any:
    for part in key.split("."):
        dump = dump[part]
    return dump


def _without_paths(value: Any) -> Any:
    """Leave out where files are: what they hold is fingerprinted by itself."""
    if not isinstance(value, dict):
        return value
    return {
        key: _without_paths(item)
        for key, item in value.items()
        if key not in ("path", "like", "dir", "url") or isinstance(item, dict)
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def is_sound(entry: Any) -> bool:
    """Say whether an entry of the stages' record is as it was written.

    One without a check is of an earlier version, and is taken as it is.
    """
    if not isinstance(entry, dict):
        return False
    rest = {key: value for key, value in entry.items() if key != "check"}
    return "check" not in entry or bool(entry["check"] == fingerprint_value(rest))

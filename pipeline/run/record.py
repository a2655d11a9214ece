"""The record of a run: what each stage read and left, and why one has to run again.

``work/stages.json`` holds fingerprints of contents: a changed byte of an input, a changed key of
the configuration, other code or libraries, or a missing or damaged output makes a stage stale.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.config.schema import Config
from pipeline.core.code import (
    code_hashes,
    code_inputs,
    describe_changes,
    installed_version,
    library_versions,
)
from pipeline.run.fingerprints import Fingerprints, output_fingerprint
from pipeline.run.stages import STAGES, Stage
from pipeline.storage.files import write_json
from pipeline.storage.fingerprint import fingerprint_value


def stage_inputs(
    stage: Stage, config: Config, prints: Fingerprints | None = None
) -> dict[str, str]:
    """Fingerprint everything that a stage depends on, by name.

    Parameters
    ----------
    stage : Stage
        Which.
    config : Config
        The run's.
    prints : Fingerprints, optional
        The run's; made anew where not given.

    Returns
    -------
    dict of str to str
        Code and libraries, configuration keys, files by their key, and what earlier stages left.
    """
    prints = prints or Fingerprints(config)
    inputs = code_inputs()
    dump = config.model_dump(mode="json")
    for key in stage.config:
        inputs[key] = fingerprint_value(_without_paths(_at(dump, key)))
    inputs |= prints.inputs(stage.files)
    if stage.products:
        inputs["products"] = fingerprint_value(list(stage.products))
    return inputs | {output: prints.output(output) for output in stage.needs}


def write_run(config: Config, fingerprints: Mapping[str, str]) -> Path:
    """Write ``run.json``: versions, configuration, fingerprints of every input, timings.

    Parameters
    ----------
    config : Config
    fingerprints : mapping
        Of the inputs as they were read.

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
            "disagg": installed_version("disagg"),
            **library_versions(),
        },
        "code": code_hashes(),
        "config_file": None if config.source is None else str(config.source),
        "config": config.model_dump(mode="json"),
        "fingerprints": dict(fingerprints),
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


def stale_reason(record: Any, inputs: Mapping[str, str], prints: Fingerprints) -> str:
    """Say why a stage has to run; empty where it need not."""
    if record is None:
        return "first run"
    if record["inputs"] != dict(inputs):
        return f"changed: {', '.join(describe_changes(record['inputs'], inputs))}"
    for name, fingerprint in record["outputs"].items():
        if prints.output(name) != fingerprint:
            return f"{name} is missing or damaged"
    return "" if record["outputs"] else "left nothing"


def is_undamaged(path: Path, fingerprint: str) -> bool:
    """Say whether an output is as its stage left it."""
    return output_fingerprint(path) == fingerprint


def stage_key(name: str, config: Config, prints: Fingerprints) -> tuple[str, bool]:
    """Return the fingerprint of all that a stage depends on, and whether it is up to date.

    The code and the place of the results are part of it: two maps share no result.
    """
    inputs = stage_inputs(STAGES[name], config, prints)
    record = read_record(config.output.dir).get(name)
    current = record is not None and not stale_reason(record, inputs, prints)
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


def is_sound(entry: Any) -> bool:
    """Say whether an entry of the stages' record is as it was written.

    One without a check is of an earlier version, and is taken as it is.
    """
    if not isinstance(entry, dict):
        return False
    rest = {key: value for key, value in entry.items() if key != "check"}
    return "check" not in entry or bool(entry["check"] == fingerprint_value(rest))

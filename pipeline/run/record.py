"""The record of a run, and the decision whether a stage is stale.

``work/stages.json`` has fingerprints of each stage's inputs and outputs. A changed input, a changed
key of the configuration, other code or libraries, or a missing or damaged output makes it stale.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from geo.core.addresses import redacted_values
from geo.core.errors import InputError, Problem
from pipeline.config.covariate_schema import INPUT_KEYS
from pipeline.config.schema import Config
from pipeline.core.code import code_inputs, describe_changes, run_versions
from pipeline.core.sources import code_hashes
from pipeline.run.fingerprints import Fingerprints
from pipeline.run.stages import RESPONSE, STAGES, Stage
from pipeline.storage.files import write_json
from pipeline.storage.fingerprint import fingerprint_value


def stage_inputs(
    stage: Stage, config: Config, fingerprints: Fingerprints | None = None
) -> dict[str, str]:
    """Return the fingerprints of all inputs of a stage, by name.

    Parameters
    ----------
    stage : Stage
    config : Config
        The run's.
    fingerprints : Fingerprints, optional
        Those of the run; new by default.

    Returns
    -------
    dict of str to str
        Code, libraries, configuration keys, files by key, and outputs of earlier stages.
    """
    fingerprints = fingerprints or Fingerprints(config)
    inputs = code_inputs(stage.module, stage.registered(config))
    dump = {**config.model_dump(mode="json"), RESPONSE: _told_response(config)}
    for key in stage.config:
        if key.startswith("-"):
            _drop(dump, key[1:])
    for key in stage.config:
        if not key.startswith("-"):
            inputs[key] = fingerprint_value(_without_paths(_at(dump, key)))
    inputs |= fingerprints.inputs(stage.files)
    if stage.products:
        inputs["products"] = fingerprint_value(list(stage.products))
    inputs |= {output: fingerprints.output(output) for output in stage.needs}
    found = {output: fingerprints.output(output) for output in stage.may_need}
    found |= fingerprints.outputs(stage.reads)
    return inputs | {output: value for output, value in found.items() if value != "absent"}


def write_run(config: Config, fingerprints: Mapping[str, str]) -> Path:
    """Write ``run.json``: versions, configuration, fingerprints of every input, timings.

    Secrets in addresses are hidden: the file is published.

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
        "versions": run_versions(),
        "code": code_hashes(),
        "config_file": None if config.source is None else str(config.source),
        "config": redacted_values(config.model_dump(mode="json")),
        # Which of its keys were set: to repeat the run (`disagg run --from run.json`).
        "given": redacted_values(config.model_dump(mode="json", exclude_unset=True)),
        # What `auto` stood for, and everything else that --within may choose.
        "settings": _settings(record),
        "fingerprints": dict(fingerprints),
        "stages": record,
        "seconds": round(sum(entry["seconds"] for entry in record.values()), 3),
    }
    path = config.output.dir / "run.json"
    write_json(path, run)
    return path


def _settings(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings that made what is there, each section of the stage that it is about.

    Any stage may be newer than the others. ``stages`` has the settings of each.
    """
    fit, predict, evaluate = (
        record.get(name, {}).get("summary", {}).get("settings")
        for name in ("fit", "predict", "evaluate")
    )
    if not fit:
        return fit
    # Records of earlier versions have none of predict.
    maps = predict or evaluate or fit
    return {**fit, "evaluate": (evaluate or fit)["evaluate"], "output": maps["output"]}


def read_record(directory: Path) -> dict[str, Any]:
    """Read ``work/stages.json``; empty if it is absent or damaged."""
    try:
        record = json.loads(record_path(directory).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, UnicodeDecodeError):
        return {}
    if not isinstance(record, dict):
        return {}
    return {name: entry for name, entry in record.items() if is_sound(entry)}


def record_path(directory: Path) -> Path:
    """Return the path of the record of an output directory."""
    return directory / "work" / "stages.json"


def stale_reason(record: Any, inputs: Mapping[str, str], fingerprints: Fingerprints) -> str:
    """Return why a stage has to run; empty if it is up to date."""
    if record is None:
        return "first run"
    if record["inputs"] != dict(inputs):
        return f"changed: {', '.join(describe_changes(record['inputs'], inputs))}"
    for name, fingerprint in record["outputs"].items():
        if fingerprints.output(name) != fingerprint:
            return f"{name} is missing or damaged"
    return "" if record["outputs"] else "no outputs"


def check_period(config: Config, makers: Iterable[str], command: str) -> None:
    """Raise InputError if what some stages left is of another period than the configuration's.

    Parameters
    ----------
    config : Config
    makers : iterable of str
        The stages.
    command : str
        What was to run, for the remedy.
    """
    record = read_record(config.output.dir)
    ran = {name: record[name]["inputs"].get("period") for name in makers if name in record}
    ran = {name: period for name, period in ran.items() if period is not None}
    other = [name for name, period in ran.items() if period != fingerprint_value(config.period)]
    if not other:
        return
    there, own = period_there(config.output.dir), config.period
    known = there is not None and fingerprint_value(there) == ran[other[-1]]
    source = config.source or "CONFIG"
    found = f"{other[-1]} ran there for {f'period {there}' if known else 'another period'}, not "
    remedy = f"run `disagg run {source}{f' --period {own}' if own else ''}` for its own map"
    if known and len(set(ran.values())) == 1:
        remedy += f", or `disagg {command} {source} --period {there}` for the one that is there"
    raise InputError(Problem(str(config.output.dir), f"{found}{own or 'all counts'}", remedy))


def period_there(directory: Path) -> str | None:
    """Return the period of the last run in a directory; None if there is none."""
    try:
        run = json.loads((directory / "run.json").read_text(encoding="utf-8"))
        period: str | None = run["config"]["period"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return period


def stage_key(name: str, config: Config, fingerprints: Fingerprints) -> tuple[str, bool]:
    """Return a cache key of a stage, and whether the stage is up to date.

    The key covers all inputs, the code and the output directory: two maps share no result.
    """
    inputs = stage_inputs(STAGES[name], config, fingerprints)
    record = read_record(config.output.dir).get(name)
    current = record is not None and not stale_reason(record, inputs, fingerprints)
    key = fingerprint_value({"stage": name, "dir": str(config.output.dir), "inputs": inputs})
    return key, current


def _told_response(config: Config) -> dict[str, Any]:
    """Return what a stage asks the likelihood, instead of its code: formulas are not in it."""
    response = config.model.response
    asked = ("counts", "averages", "needs_trials", "responses")
    return {**{name: getattr(response, name) for name in asked}, "of": config.response_kind.name}


def _at(dump: Any, key: str) -> Any:
    for part in (key,) if key in dump else key.split("."):
        dump = None if dump is None else dump[part]  # of a section that is not given
    return dump


def _drop(dump: Any, key: str) -> None:
    """Remove a key of a section, if the section is given."""
    section, _, name = key.rpartition(".")
    found = _at(dump, section)
    if found is not None:
        del found[name]


def _without_paths(value: Any) -> Any:
    """Remove paths: the content of files has its own fingerprint."""
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _without_paths(item)
        for key, item in value.items()
        if key not in (*INPUT_KEYS, "dir", "url") or isinstance(item, dict)
    }


def is_sound(entry: Any) -> bool:
    """Return whether an entry of the record is undamaged.

    Entries of earlier versions have no checksum; they count as undamaged.
    """
    if not isinstance(entry, dict):
        return False
    rest = {key: value for key, value in entry.items() if key != "check"}
    return "check" not in entry or bool(entry["check"] == fingerprint_value(rest))

"""Stages and what they need: a stage whose inputs have not changed is skipped.

``work/stages.json`` keeps, for each stage, the fingerprints of what it read and of what it left.
A stage is up to date when both still hold, by content: a changed byte of an input, a changed key of
its part of the configuration, other code, or a missing or damaged output runs it again.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from geo.errors import InputError, Problem
from pipeline.config.context import StageContext
from pipeline.config.local_inputs import local_inputs
from pipeline.config.schema import Config
from pipeline.core.progress import Progress
from pipeline.run.fingerprints import Fingerprints
from pipeline.run.record import (
    read_record,
    record_path,
    stage_inputs,
    stale_reason,
    write_run,
)
from pipeline.run.stages import MAKER, STAGES, Stage
from pipeline.storage.files import write_json
from pipeline.storage.fingerprint import fingerprint_value
from pipeline.storage.location import Location
from pipeline.storage.lock import exclusive
from pipeline.storage.mirror import mirrored
from pipeline.storage.object_commit import MARKER

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class StageResult:
    """What became of a stage: its summary, whether it was skipped, and why it ran."""

    name: str
    skipped: bool
    seconds: float
    reason: str
    summary: dict[str, Any]


def run_stage(
    name: str,
    inputs: Mapping[str, str],
    outputs: Sequence[str],
    function: Callable[[], dict[str, Any]],
    prints: Fingerprints,
    *,
    force: bool = False,
) -> StageResult:
    """Run a stage unless it is up to date, and remember what it read and left.

    Parameters
    ----------
    name : str
        The stage.
    inputs : mapping of str to str
        Fingerprints of what it depends on.
    outputs : sequence of str
        Glob patterns in the output directory of what it leaves.
    function : callable
        Does the work; returns a JSON-able summary.
    prints : Fingerprints
        The run's; the record is ``work/stages.json`` in its directory.
    force : bool, optional
        Run even if up to date.

    Returns
    -------
    StageResult
        With ``skipped`` true and the summary of the last time where nothing had changed.
    """
    directory = prints.directory
    record = read_record(directory).get(name)
    reason = "forced" if force else stale_reason(record, inputs, prints)
    if record is not None and not reason:
        return StageResult(name, True, record["seconds"], "", record["summary"])
    _LOG.info("%s runs: %s", name, reason)
    _remove_damaged(record, inputs, prints)
    prints.forget(outputs)
    started = datetime.now(UTC)
    clock = time.perf_counter()
    summary = function()
    seconds = time.perf_counter() - clock
    entry = {
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "inputs": dict(inputs),
        "outputs": prints.outputs(outputs),
        "summary": summary,
    }
    entry["check"] = fingerprint_value(entry)
    # Read again: nothing else writes the record, but a stage may take hours.
    write_json(record_path(directory), {**read_record(directory), name: entry})
    return StageResult(name, False, seconds, reason, summary)


def run_stages(
    config: Config,
    names: Sequence[str],
    progress: Progress,
    *,
    force: bool = False,
    on_start: Callable[[str], None] | None = None,
    prints: Fingerprints | None = None,
) -> list[StageResult]:
    """Run stages in order, each skipped when up to date, and write ``run.json``.

    Parameters
    ----------
    config : Config
        The run's.
    names : sequence of str
        Which stages.
    progress : Progress
        Where they report to.
    force : bool, optional
        Run even what is up to date.
    on_start : callable, optional
        Called with each stage's name before it.
    prints : Fingerprints, optional
        Where some have been made already.

    Returns
    -------
    list of StageResult
        One for each name.

    Raises
    ------
    geo.errors.InputError
        If another run is writing to the directory, or an earlier stage has left nothing.
    """
    results = []
    with (
        exclusive(config.output.dir),
        mirrored(config.output.dir, config.output.url, config.storage.open()) as mirror,
        local_inputs(config) as local,
    ):
        prints = prints or Fingerprints(local)
        for name in names:
            stage = STAGES[name]
            if on_start is not None:
                on_start(name)
            _check_needs(stage, config)
            result = _run_one(stage, local, progress, prints, force=force)
            if mirror is not None:
                mirror.push()
            results.append(result)
            progress.log(_describe(result))
        write_run(config, prints.inputs())
        if mirror is not None:
            mirror.push()
    return results


def _run_one(
    stage: Stage, config: Config, progress: Progress, prints: Fingerprints, *, force: bool
) -> StageResult:
    inputs = stage_inputs(stage, config, prints)

    def work() -> dict[str, Any]:
        return stage.load()(StageContext(config, progress, fingerprint_value(inputs)))

    return run_stage(stage.name, inputs, stage.outputs, work, prints, force=force)


def stale_stages(config: Config, name: str, prints: Fingerprints | None = None) -> list[str]:
    """List the stages before ``name`` whose own inputs have changed since they ran."""
    prints = prints or Fingerprints(config)
    stale = []
    for stage in STAGES.values():
        if stage.name == name:
            break
        record = read_record(config.output.dir).get(stage.name)
        if record is not None and stale_reason(record, stage_inputs(stage, config, prints), prints):
            stale.append(stage.name)
    return stale


def _remove_damaged(record: Any, inputs: Mapping[str, str], prints: Fingerprints) -> None:
    """Remove stores of the same inputs that are no longer what the stage left.

    A store of these inputs is otherwise taken as it stands, and looks finished: names and sizes of
    its files are as they were.
    """
    if record is None or record["inputs"] != dict(inputs):
        return
    for name, fingerprint in record["outputs"].items():
        path = prints.directory / name
        if path.is_dir() and prints.output(name) != fingerprint:
            place = prints.storage.place(path)
            if isinstance(place, Location):  # the link stays, or the new store would be local
                place.remove([MARKER])
            else:
                shutil.rmtree(path)


def _check_needs(stage: Stage, config: Config) -> None:
    problems = []
    source = config.source.name if config.source is not None else "CONFIG"
    for maker in dict.fromkeys(MAKER[need] for need in stage.needs):
        absent = [
            need
            for need in stage.needs
            if MAKER[need] == maker and not (config.output.dir / need).exists()
        ]
        if absent:
            problems.append(
                Problem(
                    str(config.output.dir / absent[0]),
                    f"not there, and {stage.name} needs it",
                    f"run `disagg {maker} {source}` first, or `disagg run {source}` for all",
                )
            )
    if problems:
        raise InputError(problems)


def summarise_stages(results: Sequence[StageResult]) -> list[dict[str, Any]]:
    """Turn results into what ``--json`` prints."""
    return [asdict(result) for result in results]


def _describe(result: StageResult) -> str:
    if result.skipped:
        return f"{result.name}: up to date, skipped"
    return f"{result.name}: done in {result.seconds:.1f} s"

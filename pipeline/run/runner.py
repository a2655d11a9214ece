"""Run stages in order; skip those that are up to date (see `pipeline.run.record`)."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from geo.core.errors import InputError, Problem
from pipeline.cluster.cluster import check_scheduler
from pipeline.config.context import StageContext, Updating
from pipeline.config.local_inputs import local_inputs
from pipeline.config.schema import Config
from pipeline.core.progress import Progress
from pipeline.run.fingerprints import Fingerprints
from pipeline.run.ownership import claim, owned
from pipeline.run.record import (
    check_period,
    period_there,
    read_record,
    record_path,
    stage_inputs,
    stale_reason,
    write_run,
)
from pipeline.run.stages import STAGE_OF, STAGES, Stage
from pipeline.storage.files import write_json
from pipeline.storage.fingerprint import fingerprint_value
from pipeline.storage.mirror import mirrored

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class StageResult:
    """Result of a stage: its summary, whether it was skipped, and why it ran."""

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
    fingerprints: Fingerprints,
    *,
    force: bool = False,
    keeps: Sequence[str] = (),
) -> StageResult:
    """Run a stage unless it is up to date; record its inputs and outputs.

    Parameters
    ----------
    name : str
        Name of the stage.
    inputs : mapping of str to str
        Fingerprints of its inputs.
    outputs : sequence of str
        Glob patterns of its outputs, in the output directory.
    function : callable
        Runs the stage; returns a JSON-able summary.
    fingerprints : Fingerprints
        Those of the run.
    force : bool, optional
        Run even if up to date, and from the beginning.
    keeps : sequence of str, optional
        Directories of what an interrupted run of it goes on from.

    Returns
    -------
    StageResult
        If skipped, with the summary of the previous run.
    """
    directory = fingerprints.directory
    record = read_record(directory).get(name)
    reason = "forced" if force else stale_reason(record, inputs, fingerprints)
    if record is not None and not reason:
        return StageResult(name, True, record["seconds"], "", record["summary"])
    _LOG.info("%s runs: %s", name, reason)
    for kept in keeps if force else ():
        shutil.rmtree(directory / kept, ignore_errors=True)
    fingerprints.forget(outputs)
    started = datetime.now(UTC)
    clock = time.perf_counter()
    summary = function()
    seconds = time.perf_counter() - clock
    entry = {
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "inputs": dict(inputs),
        "outputs": fingerprints.outputs(outputs),
        "summary": summary,
    }
    entry["check"] = fingerprint_value(entry)
    # Read the record again: the stage may have taken hours.
    write_json(record_path(directory), {**read_record(directory), name: entry})
    return StageResult(name, False, seconds, reason, summary)


def run_stages(
    config: Config,
    names: Sequence[str],
    progress: Progress,
    *,
    force: bool = False,
    update: Updating | None = None,
    on_start: Callable[[str], None] | None = None,
    on_done: Callable[[StageResult], None] | None = None,
    fingerprints: Fingerprints | None = None,
) -> list[StageResult]:
    """Run stages in order, skip those that are up to date, and write ``run.json``.

    Parameters
    ----------
    config : Config
        The run's.
    names : sequence of str
        Names of the stages.
    progress : Progress
        Receiver of their progress.
    force : bool, optional
        Run even what is up to date.
    update : {"only", "first"}, optional
        Let a fitted series take in what is new, instead of a new fit: see
        :data:`pipeline.config.context.Updating`.
    on_start : callable, optional
        Called with each stage's name before it.
    on_done : callable, optional
        Called with each stage's result after it.
    fingerprints : Fingerprints, optional
        Fingerprints that were computed before.

    Returns
    -------
    list of StageResult
        One for each name.

    Raises
    ------
    geo.core.errors.InputError
        If another run writes to the directory, or outputs of an earlier stage are missing.
    """
    results = []
    with (
        owned(config),
        mirrored(config.output.dir, config.output.url, config.storage.open()) as mirror,
        local_inputs(config) as local,
    ):
        fingerprints = fingerprints or Fingerprints(local)
        if "predict" in names:
            _tell_replaced(config, progress)
        for name in names:
            stage = STAGES[name]
            if on_start is not None:
                on_start(name)
            _check_needs(stage, config)
            check_period(config, [n for n in stage.makers if n not in names], name)
            clustered = name == "ingest" and "fit" in names  # told before hours of ingest
            result = _run_one(
                stage, local, progress, fingerprints, clustered, force=force, update=update
            )
            claim(config.output.dir, config, "output.dir")
            if mirror is not None:
                mirror.push()
            results.append(result)
            if on_done is not None:
                on_done(result)
            progress.log(_describe(result))
        write_run(config, fingerprints.inputs())
        if mirror is not None:
            mirror.push()
    return results


def _tell_replaced(config: Config, progress: Progress) -> None:
    """Say that the map of another period in the directory gives way to this run's."""
    there = period_there(config.output.dir)
    if config.series is not None:  # the maps of a series go on
        return
    if there is not None and there != config.period:
        keep = f"{config.output.dir.name}/{{period}}"
        progress.log(
            f"note: the map of {there} in {config.output.place} is replaced by that of "
            f"{config.period}; to keep each, write `output.dir: {keep}`"
        )


def _run_one(
    stage: Stage,
    config: Config,
    progress: Progress,
    fingerprints: Fingerprints,
    clustered: bool,
    *,
    force: bool,
    update: Updating | None,
) -> StageResult:
    inputs = stage_inputs(stage, config, fingerprints)

    if stage.name == "fit" and update == "first":  # a new fit that an earlier update proposed
        summary = read_record(config.output.dir).get("fit", {}).get("summary", {})
        force = force or bool(summary.get("refit"))

    def work() -> dict[str, Any]:
        if clustered:
            check_scheduler(config.compute)
        record, run = read_record(config.output.dir), stage.load()
        from models.backend.blas import one_blas_thread

        # Stages divide their work among threads and processes of their own. Beside other work
        # threads of BLAS wait for one another longer than they compute.
        with one_blas_thread():
            return run(
                StageContext(config, progress, fingerprint_value(inputs), record, inputs, update)
            )

    return run_stage(
        stage.name, inputs, stage.outputs, work, fingerprints, force=force, keeps=stage.keeps
    )


def stale_stages(config: Config, name: str, fingerprints: Fingerprints | None = None) -> list[str]:
    """List the stages before ``name`` whose inputs have changed since they ran."""
    fingerprints = fingerprints or Fingerprints(config)
    stale = []
    for stage in STAGES.values():
        if stage.name == name:
            break
        record = read_record(config.output.dir).get(stage.name)
        if record is not None and stale_reason(
            record, stage_inputs(stage, config, fingerprints), fingerprints
        ):
            stale.append(stage.name)
    return stale


def _check_needs(stage: Stage, config: Config) -> None:
    problems = []
    source = config.source.name if config.source is not None else "CONFIG"
    for maker in dict.fromkeys(STAGE_OF[need] for need in stage.needs):
        absent = [
            need
            for need in stage.needs
            if STAGE_OF[need] == maker and not (config.output.dir / need).exists()
        ]
        if absent:
            problems.append(
                Problem(
                    str(config.output.dir / absent[0]),
                    f"missing, but {stage.name} needs it",
                    f"run `disagg {maker} {source}` first, or `disagg run {source}` for all",
                )
            )
    if problems:
        raise InputError(problems)


def summarise_stages(results: Sequence[StageResult]) -> list[dict[str, Any]]:
    """Convert results for ``--json``."""
    return [asdict(result) for result in results]


def _describe(result: StageResult) -> str:
    if result.skipped:
        return f"{result.name}: up to date, skipped"
    return f"{result.name}: done in {result.seconds:.1f} s"

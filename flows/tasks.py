"""The tasks that flows are made of: one for each stage, and publishing.

They get a run's address and a fingerprint, never data. A stage's result is cached by the key that
`pipeline.run.record.stage_key` makes of its inputs' content, its part of the configuration and the
code; and only while what it left on the disk is still there (`refresh_cache` otherwise:
Prefect's record may outlive the files).
"""

from __future__ import annotations

from typing import Any

from prefect import Task, task
from prefect.context import TaskRunContext
from prefect.logging import get_run_logger
from prefect.states import State
from prefect.task_engine import TaskRunTimeoutError
from prefect.tasks import exponential_backoff

from flows.show import progress_of
from pipeline.config.schema import Config
from pipeline.publishing.publish import publish
from pipeline.run.fingerprints import Fingerprints
from pipeline.run.record import stage_key
from pipeline.run.runner import run_stages, summarise_stages
from pipeline.updates.map_run import MapRun
from pipeline.updates.retry import is_transient


def may_pass(_task: Task[..., Any], _run: Any, state: State[Any]) -> bool:
    """Say whether a failed task is worth another try."""
    error = state.result(raise_on_failure=False)
    if isinstance(error, TaskRunTimeoutError):  # it would take as long again: a person decides
        return False
    return isinstance(error, BaseException) and is_transient(error)


def by_key(_context: TaskRunContext, parameters: dict[str, Any]) -> str:
    """Cache a stage by the key that it was given."""
    key: str = parameters["key"]
    return key


@task(
    name="stage",
    task_run_name="{stage}",
    cache_key_fn=by_key,
    persist_result=True,
    result_serializer="json",
    retry_condition_fn=may_pass,
)
def stage_task(
    run: MapRun,
    stage: str,
    key: str,  # noqa: ARG001 (by_key reads it)
    prints: Fingerprints,
) -> dict[str, Any]:
    """Run one stage, unless it is up to date; open the Dask client inside, if it needs one."""
    config = run.load()
    results = run_stages(config, (stage,), progress_of(config), prints=prints)
    return summarise_stages(results)[0]


@task(name="publish", persist_result=False, retry_condition_fn=may_pass)
def publish_task(run: MapRun, force: bool = False) -> Any:
    """Ask the gates, and give the map to readers if they allow."""
    config = run.load()
    publication = publish(config, force=force)
    for reason in publication.reasons:
        get_run_logger().warning("%s: %s", config.name, reason)
    return publication


def do_stage(run: MapRun, config: Config, stage: str, prints: Fingerprints) -> dict[str, Any]:
    """Call `stage_task` as the configuration says: key, retries, time-out."""
    key, current = stage_key(stage, config, prints)
    chosen = stage_task.with_options(refresh_cache=not current, **_patience(config))
    state = chosen(run, stage, key, prints, return_state=True)
    result = state.result()
    return {**result, "skipped": result["skipped"] or state.name == "Cached"}


def do_publish(run: MapRun, config: Config, force: bool) -> Any:
    """Call `publish_task` as the configuration says."""
    return publish_task.with_options(**_patience(config))(run, force)


def _patience(config: Config) -> dict[str, Any]:
    update = config.update
    return {
        "retries": update.retries,
        "retry_delay_seconds": exponential_backoff(update.retry_delay_s),
        "retry_jitter_factor": 0.2,
        "timeout_seconds": update.timeout_s,
    }

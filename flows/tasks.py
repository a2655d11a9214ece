"""Prefect tasks: one for each stage, and one that publishes.

A task receives a run's address and a fingerprint, never data. Its cache key
(`pipeline.run.record.stage_key`) covers the content of its inputs, its part of the configuration
and the code. Prefect's record may outlive the files: a missing output refreshes the cache.
"""

from __future__ import annotations

from typing import Any

from prefect import Task, task
from prefect.logging import get_run_logger
from prefect.states import State
from prefect.task_engine import TaskRunTimeoutError

from flows.show import progress_of
from pipeline.config.context import Updating
from pipeline.config.schema import Config
from pipeline.publishing.publish import publish
from pipeline.run.fingerprints import Fingerprints
from pipeline.run.record import stage_key
from pipeline.run.runner import run_stages, summarise_stages
from pipeline.updates.map_run import MapRun
from pipeline.updates.retry import JITTER, RetryPolicy, is_transient


def is_retryable(_task: Task[..., Any], _run: Any, state: State[Any]) -> bool:
    """Return whether Prefect should retry a failed task."""
    error = state.result(raise_on_failure=False)
    if isinstance(error, TaskRunTimeoutError):  # a retry would take as long again
        return False
    return isinstance(error, BaseException) and is_transient(error)


@task(
    name="stage",
    task_run_name="{stage}",
    cache_key_fn=lambda _context, parameters: parameters["key"],
    persist_result=True,
    result_serializer="json",
    retry_condition_fn=is_retryable,
)
def stage_task(
    run: MapRun,
    stage: str,
    key: str,  # noqa: ARG001 (the cache key)
    fingerprints: Fingerprints,
) -> dict[str, Any]:
    """Run one stage unless it is up to date. The stage itself opens its Dask client."""
    config = run.load()
    update: Updating | None = "first" if config.update.refit == "proposed" else None
    results = run_stages(
        config, (stage,), progress_of(config), update=update, fingerprints=fingerprints
    )
    return summarise_stages(results)[0]


@task(name="publish", persist_result=False, retry_condition_fn=is_retryable)
def publish_task(run: MapRun, force: bool = False) -> Any:
    """Publish the map if it passes its gates."""
    config = run.load()
    publication = publish(config, force=force)
    for reason in publication.reasons:
        get_run_logger().warning("%s: %s", config.name, reason)
    return publication


def run_stage_task(
    run: MapRun, config: Config, stage: str, fingerprints: Fingerprints
) -> dict[str, Any]:
    """Call `stage_task` with the configured cache key, retries and time-out."""
    key, current = stage_key(stage, config, fingerprints)
    chosen = stage_task.with_options(refresh_cache=not current, **_retry_options(config))
    state = chosen(run, stage, key, fingerprints, return_state=True)
    result = state.result()
    return {**result, "skipped": result["skipped"] or state.name == "Cached"}


def run_publish_task(run: MapRun, config: Config, force: bool) -> Any:
    """Call `publish_task` with the configured retries and time-out."""
    return publish_task.with_options(**_retry_options(config))(run, force)


def _retry_options(config: Config) -> dict[str, Any]:
    delays = RetryPolicy.of(config).delays()
    return {
        "retries": len(delays),
        "retry_delay_seconds": delays or 0,
        "retry_jitter_factor": JITTER,
        "timeout_seconds": config.update.timeout_s,
    }

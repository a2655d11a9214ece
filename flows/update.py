"""The flow that updates a map: ingest, fit, predict, evaluate, report, publish."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from prefect import flow
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.flows import Flow
from prefect.logging import get_logger, get_run_logger
from prefect.runtime import flow_run as this_run
from prefect.states import Completed, Failed, State
from prefect.task_engine import TaskRunTimeoutError

from flows.show import show_run
from flows.tasks import run_publish_task, run_stage_task
from pipeline.publishing.metrics import recorded_metrics
from pipeline.publishing.publish import Publication, check_publishable
from pipeline.publishing.summary import headline
from pipeline.run.fingerprints import Fingerprints
from pipeline.storage.lock import MapBusyError, hold_map
from pipeline.updates.arrivals import load_watched
from pipeline.updates.attended import HELD, notify_end
from pipeline.updates.map_run import MapRun, error_message, slug, title

SKIPPED = "Skipped"
STAGES = ("ingest", "fit", "predict", "evaluate", "report")
WhenBusy = Literal["queue", "skip"]


def name_run() -> str:
    """Name a flow run by its map, period and start."""
    given = this_run.parameters
    start = this_run.scheduled_start_time
    return slug(str(given.get("config")).rsplit("/", 1)[-1].rsplit(".", 1)[0],
                given.get("period"), f"{start:%Y%m%d-%H%M%S}")  # fmt: skip


def notify_on_end(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:  # noqa: ARG001
    """Send a notification of a failed run, or of a map that did not pass its gates."""
    if state.name == HELD:
        event: Literal["gate", "failure"] = "gate"
    elif state.type in (StateType.FAILED, StateType.CRASHED):
        event = "failure"
    else:
        return
    given = flow_run.parameters
    try:
        config = load_watched(given["config"])  # missing inputs may be the failure to report
    except Exception as error:
        get_logger("flows").error("%s: no notification was sent: %s", flow_run.name, error)
        return
    text = f"{flow_run.name}: {state.message}"
    for failure in notify_end(config, event, str(state.name), text):
        get_logger("flows").error("%s: %s", flow_run.name, failure)


FLOW_OPTIONS: dict[str, Any] = {
    "flow_run_name": name_run,
    "persist_result": False,
    "on_completion": [notify_on_end],
    "on_failure": [notify_on_end],
    "on_crashed": [notify_on_end],
}


@flow(name="update-map", **FLOW_OPTIONS)
def update_map(
    config: str,
    period: str | None = None,
    changes: dict[str, Any] | None = None,
    when_busy: WhenBusy | None = None,
    force: bool = False,
) -> State[Any]:
    """Update a map, and publish it if it passes its gates.

    Parameters
    ----------
    config : str
        Path of the configuration.
    period : str, optional
        Period of a time series; the latest by default.
    changes : dict, optional
        Values that replace those of the file: ``{"fit": {"seed": 2}}``. They are validated.
    when_busy : {"queue", "skip"}, optional
        What to do while another run updates the map; ``update.when_busy`` by default.
    force : bool
        Publish even if a gate fails.
    """
    run = MapRun(config, period, changes or {})
    return run_map(run, STAGES, publishes=True, force=force, when_busy=when_busy)


def run_map(
    run: MapRun,
    stages: tuple[str, ...],
    *,
    publishes: bool,
    force: bool = False,
    when_busy: WhenBusy | None = None,
) -> State[Any]:
    """Run stages of a map, and publish it, under the map's lock; return the final state.

    Errors that a user can correct become the message of the state; other errors pass.
    """
    try:
        return _run_locked(run, stages, publishes, force, when_busy)
    except MapBusyError as busy:
        return Completed(name=SKIPPED, message=str(busy))
    except TaskRunTimeoutError:
        late = "a stage took longer than update.timeout_s; retry to continue from its checkpoint"
        return Failed(name="TimedOut", message=late)
    except Exception as error:
        message = error_message(error)
        if message is None:
            raise
        get_run_logger().error("%s", message)
        return Failed(message=message)


def _run_locked(
    run: MapRun, stages: tuple[str, ...], publishes: bool, force: bool, when_busy: WhenBusy | None
) -> State[Any]:
    config = run.load()
    run = replace(run, period=config.period)  # counts may arrive during the run
    logger = get_run_logger()
    logger.info("%s: %s", title(config), ", ".join(stages) or "publish")
    if publishes:
        check_publishable(config)

    with (
        hold_map(
            config.output.dir,
            f"flow run {this_run.name} {this_run.id}",
            when_busy=when_busy or config.update.when_busy,
            on_wait=lambda owner: logger.info("%s: waits for %s", title(config), owner),
        ),
        recorded_metrics(config, logger.warning) as metrics,
    ):
        fingerprints = Fingerprints(config)
        for stage in stages:
            metrics.add(run_stage_task(run, config, stage, fingerprints))
        if not publishes:
            metrics.end_stages()
            return Completed(message=f"{title(config)}: {', '.join(stages)} up to date")
        publication: Publication = run_publish_task(run, config, force)
        metrics.end(publication)
        show_run(config, publication)
    message = headline(config, publication)
    logger.info("%s", message)
    if publication.status == "held":
        return Completed(name=HELD, message=message)
    return Completed(message=message)

"""The flow that brings a map up to date: ingest, fit, predict, evaluate, publish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from prefect import flow
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.flows import Flow
from prefect.logging import get_logger, get_run_logger
from prefect.runtime import flow_run as this_run
from prefect.states import Completed, Failed, State
from prefect.task_engine import TaskRunTimeoutError

from flows.show import show_run
from flows.tasks import do_publish, do_stage
from pipeline.publishing.metrics import recorded
from pipeline.publishing.notify import tell
from pipeline.publishing.publish import Publication
from pipeline.publishing.summary import headline
from pipeline.run.fingerprints import Fingerprints
from pipeline.storage.lock import MapBusyError, hold_map
from pipeline.updates.arrivals import load_watched
from pipeline.updates.map_run import MapRun, slug, state_line, title

HELD = "Finished, not fit to publish"
SKIPPED = "Skipped"
STAGES = ("ingest", "fit", "predict", "evaluate")
WhenBusy = Literal["queue", "skip"]


def name_run() -> str:
    """Name a flow run by its map, period and start."""
    given = this_run.parameters
    start = this_run.scheduled_start_time
    return slug(str(given.get("config")).rsplit("/", 1)[-1].rsplit(".", 1)[0],
                given.get("period"), f"{start:%Y%m%d-%H%M%S}")  # fmt: skip


def tell_of_end(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:  # noqa: ARG001
    """Tell those on duty of a failure, or of a map that was held back."""
    if state.name == HELD:
        event: Literal["gate", "failure"] = "gate"
    elif state.type in (StateType.FAILED, StateType.CRASHED):
        event = "failure"
    else:
        return
    given = flow_run.parameters
    try:
        config = load_watched(given["config"])  # a file that is missing is what there is to tell
    except Exception as error:  # a configuration that cannot be read tells nobody
        get_logger("flows").error("%s: nobody was told: %s", flow_run.name, error)
        return
    told = tell(
        config, event, f"{title(config)}: {state.name}", f"{flow_run.name}: {state.message}"
    )
    for trouble in told:
        get_logger("flows").error("%s: %s", flow_run.name, trouble)


@flow(
    name="update-map",
    flow_run_name=name_run,
    persist_result=False,
    on_completion=[tell_of_end],
    on_failure=[tell_of_end],
    on_crashed=[tell_of_end],
)
def update_map(
    config: str,
    period: str | None = None,
    changes: dict[str, Any] | None = None,
    when_busy: WhenBusy | None = None,
    force: bool = False,
) -> State[Any]:
    """Bring a map up to date and publish it, if its gates allow.

    Parameters
    ----------
    config : str
        Address of the configuration.
    period : str, optional
        Of a time series; the latest by default.
    changes : dict, optional
        Values in the place of the file's, checked as the file is: ``{"fit": {"seed": 2}}``.
    when_busy : {"queue", "skip"}, optional
        While another run updates the map; the configuration's ``update.when_busy`` by default.
    force : bool
        Publish whatever the gates say.
    """
    return run_map(
        MapRun(config, period, changes or {}), STAGES, publishes=True, force=force,
        when_busy=when_busy,
    )  # fmt: skip


def run_map(
    run: MapRun,
    stages: tuple[str, ...],
    *,
    publishes: bool,
    force: bool = False,
    when_busy: WhenBusy | None = None,
) -> State[Any]:
    """Run stages of a map, and publish it, under the map's lock; return how it ended."""
    return _said(lambda: _run_locked(run, stages, publishes, force, when_busy))


def _run_locked(
    run: MapRun, stages: tuple[str, ...], publishes: bool, force: bool, when_busy: WhenBusy | None
) -> State[Any]:
    config = run.load()
    run = run.fixed(config)
    logger = get_run_logger()
    logger.info("%s: %s", title(config), ", ".join(stages) or "publish")

    def waiting(owner: str) -> None:
        logger.info("%s: waits for %s", title(config), owner)

    with (
        hold_map(
            config.output.dir,
            f"flow run {this_run.name} {this_run.id}",
            when_busy=when_busy or config.update.when_busy,
            on_wait=waiting,
        ),
        recorded(config, logger.warning) as record,
    ):
        prints = Fingerprints(config)
        for stage in stages:
            record.add(do_stage(run, config, stage, prints))
        if not publishes:
            record.outcome = "unchanged"
            return Completed(message=f"{title(config)}: {', '.join(stages)} up to date")
        publication: Publication = do_publish(run, config, force)
        record.end(publication)
        show_run(config, publication)
    said = headline(config, publication)
    logger.info("%s", said)
    if publication.status == "held":
        return Completed(name=HELD, message=said)
    return Completed(message=said)


def _said(work: Callable[[], State[Any]]) -> State[Any]:
    """Turn what a person can mend into the state's message; let defects be tracebacks."""
    try:
        return work()
    except MapBusyError as busy:
        return Completed(name=SKIPPED, message=str(busy))
    except TaskRunTimeoutError:
        late = "a stage took longer than update.timeout_s; retry, and it goes on where it stopped"
        return Failed(name="TimedOut", message=late)
    except Exception as error:
        line = state_line(error)
        if line is None:
            raise
        get_run_logger().error("%s", line)
        return Failed(message=line)

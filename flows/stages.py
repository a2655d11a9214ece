"""One flow for each stage, to be started by hand."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.states import State

from flows.update import FLOW_OPTIONS, WhenBusy, run_map
from pipeline.updates.map_run import MapRun


@flow(name="ingest", **FLOW_OPTIONS)
def ingest(
    config: str,
    period: str | None = None,
    changes: dict[str, Any] | None = None,
    when_busy: WhenBusy | None = None,
) -> State[Any]:
    """Align the inputs of a map to one grid, and write its bag store."""
    run = MapRun(config, period, changes or {})
    return run_map(run, ("ingest",), publishes=False, when_busy=when_busy)


@flow(name="fit", **FLOW_OPTIONS)
def fit(
    config: str,
    period: str | None = None,
    changes: dict[str, Any] | None = None,
    when_busy: WhenBusy | None = None,
) -> State[Any]:
    """Fit the model; an interrupted fit continues from its checkpoint."""
    run = MapRun(config, period, changes or {})
    return run_map(run, ("fit",), publishes=False, when_busy=when_busy)


@flow(name="predict", **FLOW_OPTIONS)
def predict(
    config: str,
    period: str | None = None,
    changes: dict[str, Any] | None = None,
    when_busy: WhenBusy | None = None,
) -> State[Any]:
    """Write the maps, evaluate them and write the report."""
    run = MapRun(config, period, changes or {})
    return run_map(run, ("predict", "evaluate", "report"), publishes=False, when_busy=when_busy)


@flow(name="publish", **FLOW_OPTIONS)
def publish(
    config: str,
    period: str | None = None,
    changes: dict[str, Any] | None = None,
    when_busy: WhenBusy | None = None,
    force: bool = False,
) -> State[Any]:
    """Publish a finished run if it passes its gates, or by force."""
    run = MapRun(config, period, changes or {})
    return run_map(run, (), publishes=True, force=force, when_busy=when_busy)

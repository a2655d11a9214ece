"""One stage as a flow of its own, for the person on duty who wants just that."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.states import State

from flows.update import WhenBusy, name_run, run_map, tell_of_end
from pipeline.updates.map_run import MapRun

_TOLD: dict[str, Any] = {
    "flow_run_name": name_run,
    "persist_result": False,
    "on_completion": [tell_of_end],
    "on_failure": [tell_of_end],
    "on_crashed": [tell_of_end],
}


@flow(name="ingest", **_TOLD)
def ingest(
    config: str,
    period: str | None = None,
    changes: dict[str, Any] | None = None,
    when_busy: WhenBusy | None = None,
) -> State[Any]:
    """Bring the inputs of a map to one grid and one store."""
    run = MapRun(config, period, changes or {})
    return run_map(run, ("ingest",), publishes=False, when_busy=when_busy)


@flow(name="fit", **_TOLD)
def fit(
    config: str,
    period: str | None = None,
    changes: dict[str, Any] | None = None,
    when_busy: WhenBusy | None = None,
) -> State[Any]:
    """Fit the model; one that was interrupted goes on from its checkpoint."""
    run = MapRun(config, period, changes or {})
    return run_map(run, ("fit",), publishes=False, when_busy=when_busy)


@flow(name="predict", **_TOLD)
def predict(
    config: str,
    period: str | None = None,
    changes: dict[str, Any] | None = None,
    when_busy: WhenBusy | None = None,
) -> State[Any]:
    """Write the maps, and evaluate them."""
    run = MapRun(config, period, changes or {})
    return run_map(run, ("predict", "evaluate"), publishes=False, when_busy=when_busy)


@flow(name="publish", **_TOLD)
def publish(
    config: str,
    period: str | None = None,
    changes: dict[str, Any] | None = None,
    when_busy: WhenBusy | None = None,
    force: bool = False,
) -> State[Any]:
    """Publish what a finished run left, if its gates allow, or by force."""
    run = MapRun(config, period, changes or {})
    return run_map(run, (), publishes=True, force=force, when_busy=when_busy)

"""Map a range of periods in sequence; a failed period does not stop the others."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import StateType
from prefect.logging import get_run_logger
from prefect.states import Completed, Failed, State

from flows.update import HELD, name_run, update_map
from geo.core.errors import InputError
from pipeline.config.periods import select_periods
from pipeline.updates.arrivals import known_periods


@flow(name="backfill", flow_run_name=name_run, persist_result=False)
def backfill(
    config: str, first: str, last: str, changes: dict[str, Any] | None = None
) -> State[Any]:
    """Map every period from ``first`` to ``last`` that has counts.

    Each period is a run of `update_map` and publishes a version. The version of the latest period
    stays current.
    """
    try:
        periods = select_periods(known_periods(config), first, last)
    except InputError as error:
        return Failed(message=str(error))
    lines, failed = [], False
    for period in periods:
        state = update_map(config, period, changes, when_busy="queue", return_state=True)
        lines.append(f"{period}: {state.name}: {state.message}")
        get_run_logger().info("%s", lines[-1])
        failed = failed or state.type != StateType.COMPLETED
    message = "\n".join(lines)
    if failed:
        return Failed(message=message)
    held = any(f": {HELD}: " in line for line in lines)
    return Completed(name=HELD, message=message) if held else Completed(message=message)

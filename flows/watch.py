"""Watch maps: start a run for new counts, restart a run whose process died, report late runs.

    python -m flows.watch CONFIG... [--deployment NAME] [--every SECONDS] [--once] [--take]

Needs a Prefect server with the deployment: `python -m flows.serve CONFIG` starts both, and a watch.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import datetime
from typing import Any

from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateName,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import AwaitingRetry, Cancelled, Crashed, State
from prefect.types._datetime import now

from flows.login import check_server
from geo.core.addresses import redacted
from pipeline.config.schema import Config
from pipeline.storage.location import absolute
from pipeline.updates.arrivals import load_watched, mark_seen, new_counts
from pipeline.updates.cut_off import held_back, take
from pipeline.updates.late import report_late_runs
from pipeline.updates.map_run import slug
from pipeline.updates.recovery import RecoveryAction, recovery_action

GRACE_S = 120.0  # too short a time would start a live run a second time


@flow(name="watch", persist_result=False)
def watch_map(config: str, deployment: str | None = None, grace_s: float = GRACE_S) -> list[str]:
    """Check a map once; return a line for each action.

    Parameters
    ----------
    config : str
        Address of the configuration.
    deployment : str, optional
        Deployment that updates the map; ``update-map/NAME`` by default.
    grace_s : float
        Seconds without the map's lock after which a run counts as dead.
    """
    config = absolute(config)  # runs have another working directory
    loaded = load_watched(config)
    name = deployment or deployment_of(loaded)
    done = []
    for arrival in new_counts(config):
        held = held_back(loaded, arrival)
        if held is not None:
            done.extend(held)
            continue
        # A series takes in all that is new and maps the latest, a correction of the past included.
        period = arrival.period if loaded.time is None else None
        run: Any = run_deployment(
            name,
            parameters={"config": config, "period": period},
            timeout=0,
            idempotency_key=slug(loaded.name, arrival.token),
            tags=["new-counts"],
        )
        mark_seen(loaded, arrival)
        done.append(f"{redacted(arrival.address)}: new, {run.name} started")
    with get_client(sync_client=True) as client:
        for flow_run in _unfinished(client, name):
            if _of_map(flow_run, config):
                done.extend(_recover(client, loaded, flow_run, grace_s))
        late = {str(each.id): each.name for each in _late(client, name)}
    return done + report_late_runs(loaded, late)


def deployment_of(config: Config) -> str:
    """Name the deployment that updates a map."""
    return f"update-map/{slug(config.name)}"


def _of_map(run: FlowRun, config: str) -> bool:
    """Return whether a run does nothing but update this map; others are never started again."""
    return run.parameters.get("config") == config and not run.job_variables


def _unfinished(client: SyncPrefectClient, deployment: str) -> list[FlowRun]:
    types = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
    return _runs(client, deployment, FlowRunFilterState(type=FlowRunFilterStateType(any_=types)))


def _late(client: SyncPrefectClient, deployment: str) -> list[FlowRun]:
    """Return the runs whose start is overdue: the server names their state so."""
    return _runs(client, deployment, FlowRunFilterState(name=FlowRunFilterStateName(any_=["Late"])))


def _runs(client: SyncPrefectClient, deployment: str, state: FlowRunFilterState) -> list[FlowRun]:
    found = client.read_deployment_by_name(deployment)
    # The synchronous client would send null for sort and limit, which the server rejects.
    return client.read_flow_runs(
        sort=FlowRunSort.EXPECTED_START_TIME_ASC,
        limit=200,
        flow_run_filter=FlowRunFilter(state=state),
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[found.id])),
    )


def _recover(client: SyncPrefectClient, config: Config, run: FlowRun, grace_s: float) -> list[str]:
    """Restart a dead run from its checkpoint; give up after repeated deaths."""
    if run.state is None:
        return []
    since: datetime = run.state.timestamp
    action = recovery_action(config, run.state.type.value, since, run.run_count, grace_s=grace_s)
    if action is RecoveryAction.NONE:
        return []
    # The run may have ended during the check of its lock. A worker fails if it receives a run
    # whose process it still has.
    fresh = client.read_flow_run(run.id).state
    if fresh is None or fresh.id != run.state.id:
        return []
    states: dict[RecoveryAction, State[Any]] = {
        RecoveryAction.RETRY: AwaitingRetry(
            scheduled_time=now("UTC"), message="the process died; restarted from the checkpoint"
        ),
        RecoveryAction.CANCELLED: Cancelled(message="the process ended; finished results are kept"),
        RecoveryAction.GIVE_UP: Crashed(
            message="the process died repeatedly; see the worker's log"
        ),
    }
    client.set_flow_run_state(run.id, states[action], force=True)
    return [f"{run.name}: {states[action].message}"]


def main() -> None:
    """Run the command line: check at a fixed interval."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="+")
    parser.add_argument("--deployment")
    parser.add_argument("--every", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--grace", type=float, default=GRACE_S, metavar="SECONDS")
    parser.add_argument("--once", action="store_true", help="check once, and end")
    parser.add_argument(
        "--take", action="store_true", help="take new counts that look cut off, and end"
    )
    options = parser.parse_args()
    if options.take:
        n_taken = 0
        for config in options.config:
            for arrival in new_counts(config):
                take(load_watched(config), arrival)
                print(f"{redacted(arrival.address)}: taken as it is")
                n_taken += 1
        if not n_taken:
            print("nothing is new: no counts were taken")
        return
    every = None if options.once else options.every
    if not watch(options.config, options.deployment, every, options.grace):
        sys.exit(1)


def watch(
    configs: list[str], deployment: str | None, every_s: float | None, grace_s: float
) -> bool:
    """Watch maps until interrupted, or once; an error in one map does not stop the others.

    Returns
    -------
    bool
        Whether all maps could be looked at; of one round.
    """
    while True:
        looked = True
        for config in configs:
            try:
                check_server()
                for line in watch_map.fn(config, deployment, grace_s):
                    print(line, flush=True)
            except ObjectNotFound:
                looked = False
                print(
                    f"{config}: the server has no deployment of this map; start it with "
                    f"`python -m flows.serve {config}`, or `python -m flows.deploy {config}`",
                    flush=True,
                )
            except Exception as error:
                looked = False
                print(f"{config}: {error}", flush=True)
        if every_s is None:
            return looked
        time.sleep(every_s)


if __name__ == "__main__":
    main()

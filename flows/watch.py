"""Looking after a map: new counts start a run, and a run whose process died is started again.

    python -m flows.watch CONFIG... [--deployment update-map/NAME] [--every SECONDS]

One look is also a flow, to be deployed with a schedule where no process should stay.
"""

from __future__ import annotations

import argparse
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.deployments import run_deployment
from prefect.states import AwaitingRetry, Cancelled, Crashed, State
from prefect.types._datetime import now

from pipeline.config.schema import Config
from pipeline.updates.arrivals import load_watched, mark_seen, new_counts
from pipeline.updates.map_run import slug
from pipeline.updates.recovery import Verdict, judge_run

GRACE_S = 120.0  # a live run that is taken for dead would be started a second time


@flow(name="watch", persist_result=False)
def watch_map(config: str, deployment: str | None = None, grace_s: float = GRACE_S) -> list[str]:
    """Look once; return a line for each thing that was done.

    Parameters
    ----------
    config : str
        Address of the configuration.
    deployment : str, optional
        ``flow/deployment`` that updates the map; ``update-map/NAME`` by default.
    grace_s : float
        Seconds for which a run may be without the map's lock before it is taken for dead.
    """
    config = str(Path(config).resolve())  # runs have another working directory
    loaded = load_watched(config)
    name = deployment or deployment_of(loaded)
    done = []
    for arrival in new_counts(config):
        run: Any = run_deployment(
            name,
            parameters={"config": config, "period": arrival.period},
            timeout=0,
            idempotency_key=slug(loaded.name, arrival.token),
            tags=["new-counts"],
        )
        mark_seen(loaded, arrival)
        done.append(f"{arrival.address}: new, {run.name} started")
    with get_client(sync_client=True) as client:
        for flow_run in _unfinished(client, name):
            done.extend(_mend(client, loaded, flow_run, grace_s))
    return done


def deployment_of(config: Config) -> str:
    """Name the deployment that updates a map."""
    return f"update-map/{slug(config.name)}"


def _unfinished(client: SyncPrefectClient, deployment: str) -> list[FlowRun]:
    found = client.read_deployment_by_name(deployment)
    types = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
    # Order and limit are said: the synchronous client sends null for them, and that is refused.
    return client.read_flow_runs(
        sort=FlowRunSort.EXPECTED_START_TIME_ASC,
        limit=200,
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=types))
        ),
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[found.id])),
    )


def _mend(client: SyncPrefectClient, config: Config, run: FlowRun, grace_s: float) -> list[str]:
    """Start a dead run again, from its checkpoint; give up one that dies again and again."""
    if run.state is None:
        return []
    since: datetime = run.state.timestamp
    verdict = judge_run(config, run.state.type.value, since, run.run_count, grace_s=grace_s)
    if verdict is Verdict.ALIVE:
        return []
    # Read again: it may have ended while its lock was looked at. A worker that is handed a run
    # whose process it still has breaks down.
    fresh = client.read_flow_run(run.id).state
    if fresh is None or fresh.id != run.state.id:
        return []
    states: dict[Verdict, State[Any]] = {
        Verdict.RETRY: AwaitingRetry(
            scheduled_time=now("UTC"), message="its process died; goes on from the checkpoint"
        ),
        Verdict.CANCELLED: Cancelled(message="its process had ended; what it left is kept"),
        Verdict.GIVE_UP: Crashed(message="its process died again and again: see the worker's log"),
    }
    client.set_flow_run_state(run.id, states[verdict], force=True)
    return [f"{run.name}: {states[verdict].message}"]


def main() -> None:
    """Look again and again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="+")
    parser.add_argument("--deployment")
    parser.add_argument("--every", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--grace", type=float, default=GRACE_S, metavar="SECONDS")
    options = parser.parse_args()
    watch(options.config, options.deployment, options.every, options.grace)


def watch(configs: list[str], deployment: str | None, every_s: float, grace_s: float) -> None:
    """Look after maps until interrupted; one that cannot be looked after does not stop others."""
    while True:
        for config in configs:
            try:
                for line in watch_map.fn(config, deployment, grace_s):
                    print(line, flush=True)
            except Exception as error:
                print(f"{config}: {error}", flush=True)
        time.sleep(every_s)


if __name__ == "__main__":
    main()

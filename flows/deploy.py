"""Create Prefect deployments: one for each map, on a work pool.

    python -m flows.deploy CONFIG... [--cron "0 6 * * *"] [--pool maps] [--type process]

`prefect.yaml` is the equivalent for `prefect deploy`. `flows.watch` reports late runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection, Sequence
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    DeploymentFilterTags,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.sorting import DeploymentSort, FlowRunSort
from prefect.deployments.runner import EntrypointType
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from flows.login import check_server
from flows.update import update_map
from geo.core.errors import InputError
from pipeline.config.schema import Config
from pipeline.core.exit_status import ExitStatus
from pipeline.storage.location import absolute
from pipeline.updates.arrivals import load_watched
from pipeline.updates.map_run import check_maps, slug

POOL = "maps"
SERVED = "flows.serve"  # tag of its deployments
SETTLE_S = 3.0  # in which the server ends to make the runs of a schedule
#: Job template of processes, without variables: a run chooses neither its command, nor its
#: environment, nor its directory. Nor has it a key `env`, to which Prefect would add a run's own.
PROCESS: dict[str, Any] = {
    "job_configuration": {
        "command": None,
        "labels": {},
        "name": None,
        "stream_output": True,
        "working_dir": None,
    },
    "variables": {"type": "object", "properties": {}},
}


def deploy(
    config: str,
    cron: str | None = None,
    pool: str = POOL,
    kind: str = "process",
    tags: Sequence[str] = (),
) -> str:
    """Deploy `update_map` for one map; return the deployment's name."""
    address = absolute(config)
    loaded = load_watched(address)
    with get_client(sync_client=True) as client:
        make_pool(client, pool, kind)
        remove_former_alert(client, loaded)
    deployment: Any = update_map.to_deployment(
        slug(loaded.name),
        cron=cron,
        parameters={"config": address},
        work_pool_name=pool,
        entrypoint_type=EntrypointType.MODULE_PATH,
        tags=["disagg", loaded.name, *tags],
        description=f"Updates {loaded.name} ({address}).",
    )
    deployment.apply()
    return f"update-map/{slug(loaded.name)}"


def unschedule(kept: Collection[str]) -> list[str]:
    """Remove the schedules of maps that `flows.serve` had before; return their names.

    A map of `flows.deploy`, or of another program, keeps its own.

    Parameters
    ----------
    kept : collection of str
        Names of the deployments that are served now.
    """
    with get_client(sync_client=True) as client:
        served = DeploymentFilter(tags=DeploymentFilterTags(all_=[SERVED]))
        dropped = [
            each
            for each in client.read_deployments(
                deployment_filter=served, limit=200, sort=DeploymentSort.NAME_ASC
            )
            if f"{update_map.name}/{each.name}" not in kept and each.schedules
        ]
        for each in dropped:
            for schedule in each.schedules:
                client.delete_deployment_schedule(each.id, schedule.id)
        if dropped:  # runs that it has made for later; a service may be making some just now
            time.sleep(SETTLE_S)
            ids = DeploymentFilterId(any_=[each.id for each in dropped])
            scheduled = FlowRunFilterStateType(any_=[StateType.SCHEDULED])
            for run in client.read_flow_runs(
                deployment_filter=DeploymentFilter(id=ids),
                flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=scheduled)),
                sort=FlowRunSort.EXPECTED_START_TIME_ASC,
                limit=200,
            ):
                if run.auto_scheduled:
                    client.delete_flow_run(run.id)
    return [f"{update_map.name}/{each.name}" for each in dropped]


def make_pool(client: SyncPrefectClient, pool: str, kind: str) -> None:
    """Create a work pool unless it exists; one of processes takes no command from a run."""
    template = PROCESS if kind == "process" else {}
    try:
        client.create_work_pool(WorkPoolCreate(name=pool, type=kind, base_job_template=template))
    except ObjectAlreadyExists:
        if template:
            client.update_work_pool(pool, WorkPoolUpdate(base_job_template=template))


def remove_former_alert(client: SyncPrefectClient, config: Config) -> None:
    """Delete the automation and the block with the webhook's address of disagg 0.1.

    The server gives a block's secrets to all who can reach it; the watch reports late runs now.
    """
    name = slug(config.name, "late")
    for old in client.read_automations_by_name(name):
        client.delete_automation(old.id)
    try:
        block = client.read_block_document_by_name(name, "webhook", include_secrets=False)
    except ObjectNotFound:
        return
    if block.id is not None:
        client.delete_block_document(block.id)


def main() -> int:
    """Deploy the maps of the command line; return an exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="+")
    parser.add_argument("--cron")
    parser.add_argument("--pool", default=POOL)
    parser.add_argument("--type", default="process")
    options = parser.parse_args()
    try:
        check_maps(options.config)
        check_server()
        for config in options.config:
            print(deploy(config, options.cron, options.pool, options.type))
    except (InputError, ValueError) as error:  # ValueError: the cron expression
        print(f"error: {error}", file=sys.stderr)
        return ExitStatus.BAD_INPUT
    except httpx.TransportError as error:
        reason = str(error) or type(error).__name__
        remedy = "start the server, or set PREFECT_API_URL"
        print(f"error: Prefect's server does not answer ({reason}); {remedy}", file=sys.stderr)
        return ExitStatus.TRANSIENT
    return ExitStatus.DONE


if __name__ == "__main__":
    sys.exit(main())

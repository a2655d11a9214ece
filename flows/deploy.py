"""Create Prefect deployments: one for each map, on a work pool.

    python -m flows.deploy CONFIG... [--cron "0 6 * * *"] [--pool maps] [--type process]

`prefect.yaml` is the equivalent for `prefect deploy`. With ``notify.webhook``, the server itself
reports late runs: without a worker, no run could.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.deployments.runner import EntrypointType
from prefect.events.actions import CallWebhook
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectAlreadyExists

from flows.update import update_map
from geo.errors import InputError
from pipeline.config.schema import Config
from pipeline.updates.arrivals import load_watched
from pipeline.updates.map_run import check_names, slug

POOL = "maps"


def deploy(config: str, cron: str | None = None, pool: str = POOL, kind: str = "process") -> str:
    """Deploy `update_map` for one map; return the deployment's name."""
    address = str(Path(config).resolve())
    loaded = load_watched(address)
    with get_client(sync_client=True) as client:
        make_pool(client, pool, kind)
    deployment: Any = update_map.to_deployment(
        slug(loaded.name),
        cron=cron,
        parameters={"config": address},
        work_pool_name=pool,
        entrypoint_type=EntrypointType.MODULE_PATH,
        tags=["disagg", loaded.name],
        description=f"Updates {loaded.name} ({address}).",
    )
    found = deployment.apply()
    if loaded.notify.webhook is not None and "late" in loaded.notify.on:
        notify_when_late(loaded, str(found))
    return f"update-map/{slug(loaded.name)}"


def make_pool(client: SyncPrefectClient, pool: str, kind: str) -> None:
    """Create a work pool unless it exists."""
    try:
        client.create_work_pool(WorkPoolCreate(name=pool, type=kind))
    except ObjectAlreadyExists:
        return


def notify_when_late(config: Config, deployment_id: str) -> None:
    """Create an automation that calls the webhook when a run of a deployment is late."""
    webhook = config.notify.webhook
    if webhook is None:
        return
    name = slug(config.name, "late")
    block = Webhook(method="POST", url=webhook, allow_private_urls=True)
    block_id = block.save(name, overwrite=True)
    text = f"{config.name}: a run is late: {{{{ flow_run.name }}}}"
    automation = AutomationCore(
        name=name,
        description=f"Late runs of {config.name}",
        trigger=EventTrigger(
            expect={"prefect.flow-run.Late"},
            match_related={"prefect.resource.id": f"prefect.deployment.{deployment_id}"},
            posture=Posture.Reactive,
            threshold=1,
        ),
        actions=[
            CallWebhook(
                block_document_id=block_id,
                payload=json.dumps({"text": text, "map": config.name, "event": "late"}),
            )
        ],
    )
    with get_client(sync_client=True) as client:
        for old in client.read_automations_by_name(name):
            client.delete_automation(old.id)
        client.create_automation(automation)


def main() -> None:
    """Deploy the maps of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="+")
    parser.add_argument("--cron")
    parser.add_argument("--pool", default=POOL)
    parser.add_argument("--type", default="process")
    options = parser.parse_args()
    try:
        check_names(options.config)
        for config in options.config:
            print(deploy(config, options.cron, options.pool, options.type))
    except (InputError, ValueError) as error:  # ValueError: the cron expression
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

"""Turn what `disagg plan` foresees into the resources that a map's pods ask for.

    disagg plan my.yaml --json | python infra/kubernetes/resources.py [--cpus 4] > patch.yaml

The result is a patch for a kustomization:

    patches: [{path: patch.yaml, target: {kind: CronJob, name: map}}]

Memory has a quarter to spare, disk a half, and the time limit is three times what is foreseen. Disk
is that of output.dir and of the copies of inputs at addresses; an emptyDir counts in a pod's limit.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

import yaml

CONTAINER = "/spec/jobTemplate/spec/template/spec/containers/0/resources"
MEMORY_SPARE, DISK_SPARE, TIME_SPARE = 1.25, 1.5, 3.0
LEAST_MEMORY, LEAST_DISK, LEAST_SECONDS = 1 << 30, 1 << 30, 3600


def patch(plan: dict[str, Any], cpus: int) -> list[dict[str, Any]]:
    """Return a JSON patch of a CronJob.

    Parameters
    ----------
    plan : dict
        Of ``disagg plan --json``.
    cpus : int
        Cores of the pod.
    """
    stages = plan["stages"].values()
    peak = max(stage["peak_bytes"] for stage in stages)
    memory = _mebibytes(max(peak * MEMORY_SPARE, LEAST_MEMORY))
    disk = _mebibytes(needed_disk(plan))
    # The time of a stage is known for numbers of workers; the fewest take longest.
    seconds = sum(max(stage["seconds"].values(), default=0.0) for stage in stages)
    limits = {"memory": memory, "ephemeral-storage": disk}
    value = {"requests": {"cpu": str(cpus), **limits}, "limits": limits}
    deadline = max(math.ceil(seconds * TIME_SPARE), LEAST_SECONDS)
    return [
        {"op": "replace", "path": CONTAINER, "value": value},
        {
            "op": "replace",
            "path": "/spec/jobTemplate/spec/activeDeadlineSeconds",
            "value": deadline,
        },
    ]


def needed_disk(plan: dict[str, Any]) -> float:
    """Return the bytes of disk that a run's pod or machine must have."""
    copies: int = plan["bytes"]["copies"]
    return max((plan["disk_bytes"] + copies) * DISK_SPARE, LEAST_DISK)


def _mebibytes(n_bytes: float) -> str:
    return f"{math.ceil(n_bytes / (1 << 20))}Mi"


def main() -> int:
    """Read a plan from standard input, write the patch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpus", type=int, default=2)
    options = parser.parse_args()
    try:
        made = patch(json.load(sys.stdin), options.cpus)
    except (ValueError, KeyError, TypeError) as error:
        print(f"error: no plan ({error!r}); pipe `disagg plan CONFIG --json` in", file=sys.stderr)
        return 2
    print(yaml.safe_dump(made, sort_keys=False), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

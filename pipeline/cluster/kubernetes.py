"""The cluster requested from the Dask operator of Kubernetes: its pods, as plain data.

The image is that of ``infra/Dockerfile``. Its entry point starts the program that a pod's arguments
name; its user may write nowhere but in ``/data``. The pods run as the manifests of
``infra/kubernetes`` do: as nobody, on a read-only root, without privileges.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dask.utils import parse_bytes

if TYPE_CHECKING:
    from pipeline.config.compute_schema import Compute

SCHEDULER_PORT, DASHBOARD_PORT, WORKER_DASHBOARD = 8786, 8787, 8788
DATA = "data"  # the volume that the image's user may write to
SCHEDULER_MEMORY = 2 << 30  # bytes: it holds no pixels
ONE_BLAS_THREAD = {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
}
#: The image's user, and what Kubernetes' restricted standard for pods asks for.
NOBODY = 65534
POD_SECURITY: dict[str, Any] = {
    "runAsNonRoot": True,
    "runAsUser": NOBODY,
    "runAsGroup": NOBODY,
    "fsGroup": NOBODY,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def cluster_spec(compute: Compute) -> dict[str, Any]:
    """Return the ``DaskCluster`` resource of a configuration.

    Requests are limits: a pod is promised what it may use, so that a node is never oversubscribed.
    Keys of ``compute.kubernetes.pod`` (pull secrets, selectors, tolerations, volumes) hold for
    workers and scheduler. If this process is in a pod that names itself (``$DISAGG_POD_NAME`` and
    ``$DISAGG_POD_UID``), the cluster belongs to that pod and is deleted with it.
    ``$DISAGG_INSTANCE`` is its label ``app.kubernetes.io/instance``: network policies look for it.

    Parameters
    ----------
    compute : Compute
        With ``scheduler: kubernetes``.
    """
    wanted = compute.kubernetes
    if wanted is None:
        message = "compute.kubernetes is not given"
        raise ValueError(message)
    threads, memory = int(compute.threads), int(parse_bytes(compute.memory))
    gpu = compute.device == "gpu"
    env = [{"name": k, "value": v} for k, v in {**ONE_BLAS_THREAD, **wanted.env}.items()]
    command = ["dask", "worker", "--name", "$(DASK_WORKER_NAME)", "--nworkers", "1"]
    scratch = f"/{DATA}/dask"
    command += ["--nthreads", str(threads), "--memory-limit", str(memory)]
    command += ["--dashboard-address", str(WORKER_DASHBOARD), "--local-directory", scratch]
    command += ["--resources", "GPU=1"] if gpu else []
    worker = {
        "name": "worker",
        "image": wanted.image,
        "args": command,
        "env": env,
        "resources": _exactly(threads, memory, gpu=gpu),
        "ports": [_port("http-dashboard", WORKER_DASHBOARD)],
    }
    scheduler = {
        "name": "scheduler",
        "image": wanted.image,
        "args": ["dask", "scheduler", "--host", "0.0.0.0", "--port", str(SCHEDULER_PORT)],
        "env": env,
        "resources": _exactly(1, SCHEDULER_MEMORY, gpu=False),
        "ports": [_port("tcp-comm", SCHEDULER_PORT), _port("http-dashboard", DASHBOARD_PORT)],
        "readinessProbe": {"httpGet": {"port": "http-dashboard", "path": "/health"}},
        "livenessProbe": {
            "httpGet": {"port": "http-dashboard", "path": "/health"},
            "initialDelaySeconds": 15,
            "periodSeconds": 20,
        },
    }
    return {
        "apiVersion": "kubernetes.dask.org/v1",
        "kind": "DaskCluster",
        "metadata": {"name": wanted.name, **_metadata(os.environ)},
        "spec": {
            "idleTimeout": 0,
            "worker": {
                "replicas": int(compute.workers),
                "spec": _pod(wanted.pod, worker),
            },
            "scheduler": {
                "spec": _pod({**wanted.pod, **wanted.scheduler_pod}, scheduler),
                "service": {
                    "type": "ClusterIP",
                    "selector": {
                        "dask.org/cluster-name": wanted.name,
                        "dask.org/component": "scheduler",
                    },
                    "ports": [
                        _service_port("tcp-comm", SCHEDULER_PORT),
                        _service_port("http-dashboard", DASHBOARD_PORT),
                    ],
                },
            },
        },
    }


def _exactly(cores: int, memory: int, *, gpu: bool) -> dict[str, dict[str, str]]:
    amount = {"cpu": str(cores), "memory": str(memory)}
    if gpu:
        amount["nvidia.com/gpu"] = "1"
    return {"requests": amount, "limits": dict(amount)}


def _pod(keys: Mapping[str, Any], container: dict[str, Any]) -> dict[str, Any]:
    """Return a pod's spec: the user's keys, and a volume to write to if none of theirs is at /data.

    Each volume is mounted at ``/NAME``.
    """
    volumes = list(keys.get("volumes", []))
    if DATA not in [volume["name"] for volume in volumes]:
        volumes.append({"name": DATA, "emptyDir": {}})
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    secured = {**container, "securityContext": CONTAINER_SECURITY, "volumeMounts": mounts}
    # Workers ask nothing of Kubernetes: they get no token for it.
    defaults = {"securityContext": POD_SECURITY, "automountServiceAccountToken": False}
    return {**defaults, **keys, "volumes": volumes, "containers": [secured]}


def _metadata(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata that make a cluster go with the pod that asked for it, and its label."""
    found: dict[str, Any] = {}
    if instance := environment.get("DISAGG_INSTANCE"):
        found["labels"] = {"app.kubernetes.io/instance": instance}
    name, uid = (environment.get(f"DISAGG_POD_{key}") for key in ("NAME", "UID"))
    if name and uid:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
        found["ownerReferences"] = [owner]
    return found


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _service_port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "protocol": "TCP", "port": number, "targetPort": name}

"""The cluster requested from the Dask operator of Kubernetes: its pods, as plain data.

The image is that of ``infra/Dockerfile``. Its entry point is ``disagg``, so that every pod says its
own command; its user may write nowhere but in ``/tmp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask.utils import parse_bytes

if TYPE_CHECKING:
    from pipeline.config.compute_schema import Compute

SCHEDULER_PORT, DASHBOARD_PORT, WORKER_DASHBOARD = 8786, 8787, 8788
SCHEDULER_MEMORY = 2 << 30  # bytes: it holds no pixels
ONE_BLAS_THREAD = {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
}


def cluster_spec(compute: Compute) -> dict[str, Any]:
    """Return the ``DaskCluster`` resource of a configuration.

    Requests are limits: a pod is promised what it may use, so that a node is never oversubscribed.

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
    command += ["--nthreads", str(threads), "--memory-limit", str(memory)]
    command += ["--dashboard-address", str(WORKER_DASHBOARD), "--local-directory", "/tmp/dask"]
    command += ["--resources", "GPU=1"] if gpu else []
    worker = {
        "name": "worker",
        "image": wanted.image,
        "command": command[:2],
        "args": command[2:],
        "env": env,
        "resources": _exactly(threads, memory, gpu=gpu),
        "ports": [_port("http-dashboard", WORKER_DASHBOARD)],
    }
    scheduler = {
        "name": "scheduler",
        "image": wanted.image,
        "command": ["dask", "scheduler"],
        "args": ["--host", "0.0.0.0", "--port", str(SCHEDULER_PORT)],
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
        "metadata": {"name": wanted.name},
        "spec": {
            "idleTimeout": 0,
            "worker": {
                "replicas": int(compute.workers),
                "spec": {**wanted.pod, "containers": [_with_volumes(worker, wanted.pod)]},
            },
            "scheduler": {
                "spec": {"containers": [scheduler]},
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


def _with_volumes(container: dict[str, Any], pod: dict[str, Any]) -> dict[str, Any]:
    """Mount each volume of the pod at ``/NAME``: where else is nobody's wish so far."""
    mounts = [
        {"name": volume["name"], "mountPath": f"/{volume['name']}"}
        for volume in pod.get("volumes", [])
    ]
    return {**container, "volumeMounts": mounts} if mounts else container


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _service_port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "protocol": "TCP", "port": number, "targetPort": name}

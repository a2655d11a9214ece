"""Section ``compute`` of the configuration: cluster, workers, devices."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.config.base import Section, config_error
from pipeline.config.values import InputPath, LocalDir, Memory, Scheduler, Seconds, Workers


class Tls(Section):
    """``compute.tls``: certificates for a cluster with TLS."""

    ca: InputPath = Field(examples=["tls/ca.pem"], description="certificate authority (PEM)")
    cert: InputPath = Field(examples=["tls/client.pem"], description="client certificate (PEM)")
    key: InputPath = Field(examples=["tls/client.key"], description="client key (PEM)")


class Kubernetes(Section):
    """``compute.kubernetes``: workers in pods, by the Dask operator."""

    image: str = Field(
        examples=["registry.example.org/disagg:1.0"],
        description="image of scheduler and workers: infra/Dockerfile, pushed",
    )
    namespace: str = Field("default", description="namespace of the pods")
    name: Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$")] = Field(
        "disagg", description="name of the cluster; by default made of the map's name and address"
    )
    timeout: Seconds = Field(300, description="seconds to wait for pods")
    env: dict[str, str] = Field(
        default_factory=dict,
        examples=[{"OMP_NUM_THREADS": "1"}],
        description="variables of the pods",
    )
    pod: dict[str, Any] = Field(
        default_factory=dict,
        examples=[{"imagePullSecrets": [{"name": "registry"}]}],
        description="further keys of the pods' spec, such as imagePullSecrets and volumes",
    )
    scheduler_pod: dict[str, Any] = Field(
        default_factory=dict,
        examples=[{"nodeSelector": {"disk": "ssd"}}],
        description="keys of the scheduler's pod that replace those of pod",
    )


class Gateway(Section):
    """``compute.gateway``: a cluster from a Dask Gateway server."""

    address: str = Field(
        examples=["https://dask.example.org"],
        description="address of the server, such as https://dask.example.org",
    )
    proxy_address: str | None = Field(
        None,
        examples=["tls://dask.example.org:8786"],
        description="address of its schedulers, if different",
    )
    auth: Literal["basic", "kerberos", "jupyterhub"] | None = Field(
        None, description="authentication; by default, that of the Dask Gateway configuration"
    )
    timeout: Seconds = Field(300, description="seconds to wait for workers")
    options: dict[str, Any] = Field(
        default_factory=dict,
        examples=[{"worker_memory": 8}],
        description="cluster options of the server, such as worker_memory",
    )


class Jobqueue(Section):
    """``compute.jobqueue``: workers in jobs of a batch system, by dask-jobqueue."""

    system: Literal["slurm", "pbs"] = Field(examples=["slurm"], description="the batch system")
    walltime: Annotated[str, Field(pattern=r"^(\d{1,3}-)?\d{1,4}:[0-5]\d:[0-5]\d$")] = Field(
        examples=["2:00:00"],
        description="time of a job, H:MM:SS; what ends is submitted again while the run lasts",
    )
    queue: str | None = Field(None, examples=["short"], description="queue, or partition")
    account: str | None = Field(None, examples=["epi"], description="account that is charged")
    directives: tuple[str, ...] = Field(
        (),
        examples=[["--constraint=ib"]],
        description="further options of the job, such as --constraint=ib",
    )
    prologue: tuple[str, ...] = Field(
        (),
        examples=[["module load python"]],
        description="lines of shell before the worker, such as module load",
    )
    interface: str | None = Field(
        None, examples=["ib0"], description="network interface, such as ib0"
    )
    local_dir: str | None = Field(
        None, examples=["/scratch"], description="scratch directory of the nodes"
    )
    dir: LocalDir | None = Field(
        None,
        examples=["/shared/jobs"],
        description="directory that all nodes see, for certificates and logs of jobs; "
        "~/.cache/disagg/jobs by default",
    )
    timeout: Seconds = Field(
        3600,
        description="seconds to wait for the first job",
    )

    @model_validator(mode="after")
    def _time_for_work(self) -> Jobqueue:
        if not re.sub(r"[-:0]", "", self.walltime[:-3]):
            raise config_error(
                found=f"jobqueue.walltime {self.walltime}, under a minute",
                remedy="give the time of a job, such as 2:00:00",
            )
        return self


class Compute(Section):
    """``compute``: where stages run; docs/clusters.md has examples."""

    scheduler: Scheduler = Field(
        "local",
        examples=["tcp://host:8786"],
        description="'local' (threads), 'processes' of this machine, a Dask scheduler's address, "
        "'kubernetes', 'gateway' or 'jobqueue'",
    )
    tls: Tls | None = Field(
        None, description="certificates, for a scheduler at tls://... (or of jobqueue)"
    )
    workers: Workers = Field("auto", examples=[8], description="number of workers")
    device: Literal["auto", "cpu", "gpu"] = Field("auto", description="device for the arithmetic")
    memory: Memory = Field(
        "auto",
        examples=["8GiB"],
        description="memory of a worker, such as 8GiB",
    )
    threads: Workers = Field(
        "auto",
        examples=[4],
        description="threads of a worker: concurrent blocks, with one BLAS thread each",
    )
    device_memory: Memory = Field(
        "auto",
        examples=["12GiB"],
        description="limit of GPU memory, such as 12GiB; auto: most of it",
    )
    wait: Seconds = Field(
        60,
        description="seconds to wait for a worker if none is left",
    )
    kubernetes: Kubernetes | None = Field(None, description="for scheduler: kubernetes")
    gateway: Gateway | None = Field(None, description="for scheduler: gateway")
    jobqueue: Jobqueue | None = Field(None, description="for scheduler: jobqueue")

    @model_validator(mode="after")
    def _sections_fit(self) -> Compute:
        for name in ("kubernetes", "gateway", "jobqueue"):
            if (getattr(self, name) is not None) != (self.scheduler == name):
                raise config_error(
                    found=f"compute.{name} and scheduler: {name}, one without the other",
                    remedy="give both, or neither",
                )
        if self.scheduler == "local" and self.threads != "auto":
            raise config_error(
                found="compute.threads with scheduler: local, whose threads are its workers",
                remedy="give compute.workers, or scheduler: processes",
            )
        if self.scheduler in ("kubernetes", "gateway", "jobqueue") and self.workers == "auto":
            raise config_error(
                found=f"scheduler: {self.scheduler} without a number of workers",
                remedy="give compute.workers",
            )
        sized = self.scheduler in ("kubernetes", "jobqueue")
        if sized and "auto" in (self.memory, self.threads):
            raise config_error(
                found=f"scheduler: {self.scheduler} without the size of a worker",
                remedy="give compute.threads and compute.memory: pods and jobs request them",
            )
        if self.scheduler == "gateway" and (self.memory, self.threads) != ("auto", "auto"):
            raise config_error(
                found="compute.memory or compute.threads with scheduler: gateway",
                remedy="give them in compute.gateway.options, with the server's names",
            )
        return self

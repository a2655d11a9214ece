"""Section ``compute`` of the configuration: cluster, workers, devices."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.config.base import Section, config_error
from pipeline.config.values import InputPath, Memory, Number, Scheduler, Workers


class Tls(Section):
    """``compute.tls``: certificates for a cluster with TLS."""

    ca: InputPath = Field(description="certificate authority (PEM)")
    cert: InputPath = Field(description="client certificate (PEM)")
    key: InputPath = Field(description="client key (PEM)")


class Kubernetes(Section):
    """``compute.kubernetes``: workers in pods, by the Dask operator."""

    image: str = Field(description="image of scheduler and workers: infra/Dockerfile, pushed")
    namespace: str = Field("default", description="namespace of the pods")
    name: Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$")] = Field(
        "disagg", description="name of the cluster; by default made of the map's name and address"
    )
    timeout: Annotated[Number, Field(gt=0)] = Field(300, description="seconds to wait for pods")
    env: dict[str, str] = Field(default_factory=dict, description="variables of the pods")
    pod: dict[str, Any] = Field(
        default_factory=dict,
        description="further keys of the pods' spec, such as imagePullSecrets and volumes",
    )
    scheduler_pod: dict[str, Any] = Field(
        default_factory=dict, description="keys of the scheduler's pod that replace those of pod"
    )


class Gateway(Section):
    """``compute.gateway``: a cluster from a Dask Gateway server."""

    address: str = Field(description="address of the server, such as https://dask.example.org")
    proxy_address: str | None = Field(None, description="address of its schedulers, if different")
    auth: Literal["basic", "kerberos", "jupyterhub"] | None = Field(
        None, description="authentication; by default, that of the Dask Gateway configuration"
    )
    timeout: Annotated[Number, Field(gt=0)] = Field(300, description="seconds to wait for workers")
    options: dict[str, Any] = Field(
        default_factory=dict, description="cluster options of the server, such as worker_memory"
    )


class Compute(Section):
    """``compute``: where stages run; docs/clusters.md has examples."""

    scheduler: Scheduler = Field(
        "local",
        description="'local' (threads), 'processes' of this machine, a Dask scheduler's address, "
        "'kubernetes' or 'gateway'",
    )
    tls: Tls | None = Field(None, description="certificates, for a scheduler at tls://...")
    workers: Workers = Field("auto", description="number of workers")
    device: Literal["auto", "cpu", "gpu"] = Field("auto", description="device for the arithmetic")
    memory: Memory = Field("auto", description="memory of a worker, such as 8GiB")
    threads: Workers = Field(
        "auto", description="threads of a worker: concurrent blocks, with one BLAS thread each"
    )
    device_memory: Memory = Field(
        "auto", description="limit of GPU memory, such as 12GiB; auto: most of it"
    )
    wait: Annotated[Number, Field(gt=0)] = Field(
        60, description="seconds to wait for a worker if none is left"
    )
    kubernetes: Kubernetes | None = Field(None, description="for scheduler: kubernetes")
    gateway: Gateway | None = Field(None, description="for scheduler: gateway")

    @model_validator(mode="after")
    def _sections_fit(self) -> Compute:
        for name in ("kubernetes", "gateway"):
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
        if self.scheduler in ("kubernetes", "gateway") and self.workers == "auto":
            raise config_error(
                found=f"scheduler: {self.scheduler} without a number of workers",
                remedy="give compute.workers",
            )
        if self.scheduler == "kubernetes" and "auto" in (self.memory, self.threads):
            raise config_error(
                found="scheduler: kubernetes without the size of a worker",
                remedy="give compute.threads and compute.memory: pods request them",
            )
        if self.scheduler == "gateway" and (self.memory, self.threads) != ("auto", "auto"):
            raise config_error(
                found="compute.memory or compute.threads with scheduler: gateway",
                remedy="give them in compute.gateway.options, with the server's names",
            )
        return self

"""Clusters made to order: what is asked of whom, no machine overbooked, one line for each error.

Neither Kubernetes nor a gateway nor a GPU is at hand in tests: modules that record what they are
asked for stand in for the managers, and what pods run is checked against Dask's own command line
and the image of infra/Dockerfile.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import psutil
import pytest
from pydantic import ValidationError

from geo.core.errors import InputError
from pipeline.cluster import cluster
from pipeline.cluster import kubernetes as pods
from pipeline.cluster import local as machine
from pipeline.cluster.cluster import open_cluster
from pipeline.config.compute_schema import Compute
from pipeline.config.schema import Config

ROOT = Path(__file__).parents[3]
PODS = {
    "scheduler": "kubernetes",
    "workers": 3,
    "threads": 2,
    "memory": "8GiB",
    "kubernetes": {"image": "example.org/disagg:1", "namespace": "maps", "env": {"A": "b"}},
}


class Recorder:
    """A cluster manager, a cluster and a client in one: keeps what it was called with."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.calls: list[tuple[str, tuple, dict]] = []
        self.fails = fails

    def __getattr__(self, name: str):
        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            if self.fails is not None and name in ("KubeCluster", "new_cluster"):
                raise self.fails
            return self

        return call

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.calls.append(("close", (), {}))

    def __iter__(self):
        return iter(self.calls)

    def of(self, name: str) -> dict:
        (found,) = [kwargs for called, _, kwargs in self.calls if called == name]
        return found


def _module(name: str, **names) -> ModuleType:
    made = ModuleType(name)
    for key, value in names.items():
        setattr(made, key, value)
    return made


@pytest.fixture
def operator(monkeypatch):
    recorder = Recorder()
    made = _module("dask_kubernetes.operator", KubeCluster=recorder.KubeCluster)
    monkeypatch.setitem(sys.modules, "dask_kubernetes", _module("dask_kubernetes", operator=made))
    monkeypatch.setitem(sys.modules, "dask_kubernetes.operator", made)
    monkeypatch.setattr(cluster, "_client_of", lambda _: recorder)
    return recorder


def test_kubernetes_is_asked_for_the_spec_and_waited_for(operator):
    with open_cluster(Compute(**PODS)) as client:
        assert client is operator
        asked = operator.of("KubeCluster")
        assert asked["custom_cluster_spec"] == pods.cluster_spec(Compute(**PODS))
        assert (asked["namespace"], asked["resource_timeout"]) == ("maps", 300)
        ((_, (count,), how),) = [c for c in operator.calls if c[0] == "wait_for_workers"]
        assert (count, how) == (3, {"timeout": 300})
        assert not [c for c in operator.calls if c[0] == "close"]
    assert [c[0] for c in operator.calls[-2:]] == ["close", "close"]  # client, then cluster


def test_pods_that_do_not_come_are_one_line(operator):
    operator.fails = RuntimeError("ImagePullBackOff\nand a page more")
    with (
        pytest.raises(InputError, match=r"^compute.kubernetes: .*\(ImagePullBackOff\); see"),
        open_cluster(Compute(**PODS)),
    ):
        pass


def _container(spec: dict, role: str) -> dict:
    (container,) = spec["spec"][role]["spec"]["containers"]
    return container


@pytest.mark.parametrize("device", ["auto", "gpu"])
def test_pods_run_commands_that_dask_has_in_the_image_of_infra(device):
    from distributed.cli import dask_scheduler, dask_worker

    spec = pods.cluster_spec(Compute(**PODS, device=device))
    json.dumps(spec)  # plain data
    docker = (ROOT / "infra/Dockerfile").read_text()
    # The entry point starts what the arguments name.
    assert re.search(r'^ENTRYPOINT \["/opt/disagg/bin/entry"\]', docker, re.MULTILINE)
    assert (ROOT / "infra/image/entry.sh").read_text().endswith('exec "$@"\n')
    for role, tool in (("worker", dask_worker), ("scheduler", dask_scheduler)):
        container = _container(spec, role)
        assert "command" not in container
        assert container["args"][:2] == ["dask", role]
        parsed = tool.main.make_context(role, container["args"][2:])  # raises on unknown options
        assert container["image"] == "example.org/disagg:1"
        if role == "worker":
            assert (parsed.params["nthreads"], parsed.params["memory_limit"]) == (2, str(8 << 30))
            assert parsed.params["name"] == "$(DASK_WORKER_NAME)"
            assert parsed.params["resources"] == ("GPU=1" if device == "gpu" else None)
            # The root is read-only: only /data can be written to.
            assert parsed.params["local_directory"].startswith("/data/")
            assert "VOLUME /data" in docker
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert f"USER {pods.NOBODY}:{pods.NOBODY}" in docker
    worker = _container(spec, "worker")
    env = {each["name"]: each["value"] for each in worker["env"]}
    assert env == {
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "A": "b",
    }  # fmt: skip
    amount = {"cpu": "2", "memory": str(8 << 30)}
    if device == "gpu":
        amount["nvidia.com/gpu"] = "1"
    assert worker["resources"] == {"requests": amount, "limits": amount}
    assert spec["spec"]["worker"]["replicas"] == 3


def test_ports_of_the_service_are_those_that_the_scheduler_opens():
    spec = pods.cluster_spec(Compute(**PODS))
    opened = {p["name"]: p["containerPort"] for p in _container(spec, "scheduler")["ports"]}
    service = spec["spec"]["scheduler"]["service"]
    assert {p["targetPort"]: p["port"] for p in service["ports"]} == opened
    assert service["selector"]["dask.org/cluster-name"] == spec["metadata"]["name"]


def test_a_pod_takes_further_keys_and_mounts_its_volumes():
    pod = {
        "nodeSelector": {"disk": "ssd"},
        "volumes": [{"name": "store", "persistentVolumeClaim": {"claimName": "bags"}}],
    }
    spec = pods.cluster_spec(Compute(**{**PODS, "kubernetes": {"image": "i", "pod": pod}}))
    found = spec["spec"]["worker"]["spec"]
    assert found["nodeSelector"] == {"disk": "ssd"}
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("store", "data")]
    assert _container(spec, "worker")["volumeMounts"] == mounts


def test_the_scheduler_has_the_keys_of_the_pods_and_its_own():
    pod = {"imagePullSecrets": [{"name": "registry"}], "nodeSelector": {"gpu": "yes"}}
    wanted = {"image": "i", "pod": pod, "scheduler_pod": {"nodeSelector": {"gpu": "no"}}}
    spec = pods.cluster_spec(Compute(**{**PODS, "kubernetes": wanted}))["spec"]
    assert spec["worker"]["spec"]["nodeSelector"] == {"gpu": "yes"}
    assert spec["scheduler"]["spec"]["nodeSelector"] == {"gpu": "no"}
    for role in ("worker", "scheduler"):
        assert spec[role]["spec"]["imagePullSecrets"] == [{"name": "registry"}]
        assert spec[role]["spec"]["securityContext"]["runAsNonRoot"]
        assert spec[role]["spec"]["automountServiceAccountToken"] is False


def test_a_cluster_goes_with_the_pod_that_asked_for_it(monkeypatch):
    assert "ownerReferences" not in pods.cluster_spec(Compute(**PODS))["metadata"]
    monkeypatch.setenv("DISAGG_POD_NAME", "map-1")
    monkeypatch.setenv("DISAGG_POD_UID", "1-2-3")
    (owner,) = pods.cluster_spec(Compute(**PODS))["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Pod", "name": "map-1", "uid": "1-2-3"}


def _named(base: str = "/maps", **keys) -> str:
    data = {
        "areas": {"path": "a.gpkg", "id": "i"},
        "counts": {"path": "c.csv", "value": "n"},
        "population": {"path": "p.tif"},
        "covariates": {"x": {"path": "x.tif"}},
        "compute": PODS,
    }
    config = Config.model_validate({**data, **keys}, context={"base": Path(base)})
    return config.compute.kubernetes.name


def test_each_map_has_a_cluster_of_its_own():
    first = _named(name="Malaria (2026)")
    assert re.fullmatch(r"disagg-malaria-2026-[0-9a-f]{8}", first)
    assert first == _named(name="Malaria (2026)")
    others = [_named(name="Malaria"), _named(name="Malária"), _named(output={"dir": "b"})]
    assert len({first, *others, _named(), _named("/other")}) == 6
    own = {**PODS, "kubernetes": {**PODS["kubernetes"], "name": "mine"}}
    assert _named(name="Malaria", compute=own) == "mine"
    wrong = {**PODS, "kubernetes": {**PODS["kubernetes"], "name": "Mine!"}}
    with pytest.raises(ValidationError, match="pattern"):
        _named(compute=wrong)


def test_spec_has_the_shape_of_the_operators_own():
    made = pytest.importorskip("dask_kubernetes.operator", reason="needs disagg[kubernetes]")
    theirs = made.make_cluster_spec("disagg", n_workers=3)
    ours = pods.cluster_spec(Compute(**PODS))
    assert set(theirs) == set(ours)
    for role in ("worker", "scheduler"):
        assert set(theirs["spec"][role]) == set(ours["spec"][role])
        assert set(_container(theirs, role)) - {*_container(ours, role)} == set()
    assert theirs["spec"]["scheduler"]["service"] == ours["spec"]["scheduler"]["service"]


GATEWAY = {
    "scheduler": "gateway",
    "workers": 4,
    "gateway": {
        "address": "https://dask.example.org",
        "auth": "jupyterhub",
        "options": {"worker_memory": 8, "image": "example.org/disagg:1"},
    },
}


@pytest.fixture
def server(monkeypatch):
    recorder = Recorder()
    made = _module("dask_gateway", Gateway=recorder.Gateway)
    monkeypatch.setitem(sys.modules, "dask_gateway", made)
    return recorder


def test_gateway_is_asked_for_a_cluster_of_its_options(server):
    with open_cluster(Compute(**GATEWAY)):
        assert server.of("Gateway") == {
            "address": "https://dask.example.org", "proxy_address": None, "auth": "jupyterhub",
        }  # fmt: skip
        assert server.of("new_cluster") == {"worker_memory": 8, "image": "example.org/disagg:1"}
        assert ("scale", (4,), {}) in server.calls
        assert ("wait_for_workers", (4,), {"timeout": 300}) in server.calls
    assert [c[0] for c in server.calls[-3:]] == ["close"] * 3  # client, cluster, connection


def test_a_gateway_that_does_not_answer_is_one_line(server):
    server.fails = OSError("Cannot connect to host dask.example.org:443")
    with (
        pytest.raises(InputError, match=r"no cluster from https://dask.example.org \(Cannot con"),
        open_cluster(Compute(**GATEWAY)),
    ):
        pass


def test_wiring_is_that_of_the_real_packages():
    import inspect

    gateway = pytest.importorskip("dask_gateway", reason="needs disagg[gateway]")
    inspect.signature(gateway.Gateway).bind(address="a", proxy_address=None, auth=None)
    inspect.signature(gateway.GatewayCluster.get_client).bind(None, set_as_default=False)


@pytest.mark.parametrize(
    ("compute", "package", "extra"),
    [(PODS, "dask_kubernetes", "kubernetes"), (GATEWAY, "dask_gateway", "gateway")],
)
def test_a_missing_package_is_one_line_with_the_extra(compute, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.operator", None)
    with (
        pytest.raises(InputError, match=rf"{package.replace('_', '-')}.*'disagg\[{extra}\]'$"),
        open_cluster(Compute(**compute)),
    ):
        pass
    project = (ROOT / "pyproject.toml").read_text()
    assert re.search(rf'^{extra} = \["{package.replace("_", "-")}', project, re.MULTILINE)


@pytest.mark.parametrize(
    ("compute", "found"),
    [
        ({"scheduler": "kubernetes"}, "one without the other"),
        ({"kubernetes": {"image": "i"}}, "one without the other"),
        ({**PODS, "workers": "auto"}, "without a number of workers"),
        ({**PODS, "memory": "auto"}, "without the size of a worker"),
        ({**PODS, "threads": "auto"}, "without the size of a worker"),
        ({**GATEWAY, "memory": "8GiB"}, "in compute.gateway.options"),
        ({"threads": 2}, "whose threads are its workers"),
    ],
)
def test_what_does_not_go_together_is_refused(compute, found):
    with pytest.raises(ValidationError, match=found):
        Compute(**compute)


# -- this machine ----------------------------------------------------------------------------------


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 8)
    monkeypatch.setattr(machine, "memory", lambda: 32 << 30)


@pytest.mark.parametrize("workers", ["auto", 1, 2, 3, 8])
@pytest.mark.parametrize("threads", ["auto", 1, 2, 4])
@pytest.mark.parametrize("n_gpu", [0, 1, 3])
def test_no_core_and_no_byte_is_given_twice(host, workers, threads, n_gpu):
    compute = Compute(scheduler="processes", workers=workers, threads=threads)
    try:
        found = machine.allocate_workers(compute, n_gpu)
    except InputError:
        asked = n_gpu if n_gpu and workers == "auto" else workers
        too_many = asked != "auto" and asked * (1 if threads == "auto" else threads) > 8
        assert too_many or (n_gpu and workers != "auto" and workers > n_gpu)
        return
    assert found.n_worker * found.n_thread <= 8
    assert found.n_worker * found.memory <= 32 << 30
    assert workers in ("auto", found.n_worker)
    assert threads in ("auto", found.n_thread)
    if workers == threads == "auto":
        assert found.n_worker == (n_gpu or 8)
        assert found.n_worker * found.n_thread > 8 - found.n_worker  # and no core is left idle


def test_workers_elsewhere_are_no_threads_here():
    assert machine.local_threads(Compute(workers=3)) == 3
    assert machine.local_threads(Compute(scheduler="processes", workers=2)) == 2
    assert machine.local_threads(Compute()) is None
    assert machine.local_threads(Compute(**PODS)) is None
    assert machine.local_threads(Compute(scheduler="tcp://host:8786", workers=40)) is None


def test_more_than_there_is_is_one_line(host):
    with pytest.raises(InputError, match="5 workers of 2 threads, and 8 cores"):
        machine.allocate_workers(Compute(scheduler="processes", workers=5, threads=2))
    with pytest.raises(InputError, match=r"4 workers of 9GiB, and 32.00 GiB"):
        machine.allocate_workers(Compute(scheduler="processes", workers=4, memory="9GiB"))
    with pytest.raises(InputError, match="2 workers for 1 GPU;"):
        machine.allocate_workers(Compute(scheduler="processes", workers=2), 1)


def test_cores_are_those_of_the_control_group_and_of_the_affinity(monkeypatch):
    import os

    assert 1 <= machine.cores() <= len(os.sched_getaffinity(0))
    assert 0 < machine.memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _blas_of_a_worker() -> dict:
    import os

    import numpy  # noqa: F401
    from threadpoolctl import threadpool_info

    return {
        "env": os.environ.get("OMP_NUM_THREADS"),
        "blas": [each["num_threads"] for each in threadpool_info()],
        "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def test_workers_load_blas_with_one_thread_whatever_the_environment_says(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    compute = Compute(scheduler="processes", workers=1, memory="500MiB", device="cpu")
    with open_cluster(compute) as client:
        (found,) = client.run(_blas_of_a_worker).values()
        (worker,) = client.scheduler_info()["workers"].values()
        # They and their dashboard listen on loopback alone.
        me = psutil.Process()
        listening = [
            connection.laddr.ip
            for process in [me, *me.children(recursive=True)]
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
    assert len(listening) >= 3  # scheduler, dashboard, worker
    assert set(listening) == {"127.0.0.1"}
    assert found["env"] == "1"
    assert set(found["blas"]) == {1}
    assert (worker["nthreads"], worker["memory_limit"]) == (1, 500 << 20)
    import os

    assert os.environ["OMP_NUM_THREADS"] == "2"


@pytest.mark.ci
def test_one_process_a_gpu_sees_this_one_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask_cuda", None)
    monkeypatch.setattr(cluster, "visible_gpus", lambda: ["3", "GPU-dae76d0e", "5"])
    monkeypatch.setattr(machine, "cores", lambda: 4)
    compute = Compute(scheduler="processes", workers=2, device="gpu", memory="500MiB")
    with open_cluster(compute) as client:
        client.wait_for_workers(2, timeout=60)
        seen = client.run(_blas_of_a_worker)
        workers = client.scheduler_info()["workers"].values()
        assert sorted(each["gpu"] for each in seen.values()) == ["3", "GPU-dae76d0e"]
        assert [w["resources"] for w in workers] == [{"GPU": 1}] * 2
        assert [w["nthreads"] for w in workers] == [2, 2]
        assert client.submit(abs, -1, resources={"GPU": 1}).result(timeout=60) == 1


def test_dask_cuda_makes_the_cluster_where_it_is_installed(monkeypatch):
    asked = {}

    @contextmanager
    def make(**kwargs):
        from distributed import LocalCluster

        asked.update(kwargs)
        with LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as made:
            yield made

    monkeypatch.setitem(sys.modules, "dask_cuda", SimpleNamespace(LocalCUDACluster=make))
    monkeypatch.setattr(cluster, "visible_gpus", lambda: ["0", "1"])
    monkeypatch.setattr(machine, "cores", lambda: 6)
    monkeypatch.setattr(machine, "memory", lambda: 20 << 30)
    with open_cluster(Compute(scheduler="processes", device="gpu")):
        pass
    assert asked == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "n_workers": 2,
        "threads_per_worker": 3,
        "memory_limit": 9 << 30,
        "resources": {"GPU": 1},
        **cluster.LOOPBACK,
    }


def test_a_gpu_asked_for_where_there_is_none_is_one_line(monkeypatch):
    monkeypatch.setattr(cluster, "visible_gpus", list)
    with (
        pytest.raises(InputError, match=r"compute.device: gpu, and no GPU.*disagg\[gpu\]"),
        open_cluster(Compute(scheduler="processes", device="gpu")),
    ):
        pass

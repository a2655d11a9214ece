"""Maps of one namespace, each with a ``namePrefix``: no name dangles, no pod is shared."""

from __future__ import annotations

import copy

import pytest

from pipeline.cluster import kubernetes
from pipeline.config.compute_schema import Compute
from tests.infra.references import Pod, dangling, pods, selectors, selects
from tests.infra.test_kubernetes import OVERLAYS, prefect_job

PREFIXES = ("", "a-", "b-")


def asked_for(prefix: str, monkeypatch: pytest.MonkeyPatch) -> list[Pod]:
    """Return the pods that a run, and Prefect's worker, ask for beside those of the manifests."""
    monkeypatch.setenv("DISAGG_INSTANCE", f"{prefix}map")
    wanted = {"image": "registry.example.org/disagg"}
    size = {"workers": 2, "threads": 2, "memory": "8GiB"}
    cluster = kubernetes.cluster_spec(Compute(scheduler="kubernetes", kubernetes=wanted, **size))
    job = prefect_job(prefix)
    return pods([cluster, job])


@pytest.mark.parametrize("prefix", PREFIXES[:2])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_name_dangles(overlay, prefix, prefixed, monkeypatch):
    assert dangling(prefixed(overlay, prefix), asked_for(prefix, monkeypatch)) == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_two_prefixes_select_nothing_of_each_other(overlay, prefixed, monkeypatch):
    built = {
        prefix: (prefixed(overlay, prefix), asked_for(prefix, monkeypatch)) for prefix in PREFIXES
    }
    found = [
        f"{place} selects {pod.owner}"
        for mine, (resources, _) in built.items()
        for place, selector in selectors(resources)
        for other, (theirs, more) in built.items()
        for pod in pods(theirs) + more
        if mine != other and selects(selector, pod.labels)
    ]
    assert found == []
    keys = [
        {
            (each["kind"], each["metadata"]["name"])
            for each in resources
            if each["kind"] != "Namespace"
        }
        for resources, _ in built.values()
    ]
    assert not keys[1] & keys[2]  # one does not overwrite the other's


@pytest.mark.parametrize(
    ("kind", "spoil", "told"),
    [
        ("DaskAutoscaler", lambda spec: spec.update(cluster="maps"), "no DaskCluster maps"),
        (
            "DaskCluster",
            lambda spec: spec["worker"]["spec"].update(serviceAccountName="disagg"),
            "no ServiceAccount disagg",
        ),
        (
            "DaskCluster",
            lambda spec: spec["worker"]["spec"]["containers"][0]["env"].pop(0),
            "$(DASK_CLUSTER)-scheduler:8786 is not expanded",
        ),
        (
            "CronJob",
            lambda spec: spec["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["env"][
                -2
            ].update(value="maps"),
            "no Service maps-scheduler",
        ),
        (
            "NetworkPolicy",
            lambda spec: spec["podSelector"].update(matchLabels={"a": "b"}),
            "no pod",
        ),
    ],
)
def test_what_dangles_is_found(kind, spoil, told, prefixed, monkeypatch):
    resources = copy.deepcopy(prefixed("dask", "a-"))
    spoil(next(each for each in resources if each["kind"] == kind)["spec"])
    assert any(told in line for line in dangling(resources, asked_for("a-", monkeypatch)))

"""Names that resources of Kubernetes use of one another: which are there, and which dangle."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Resource = dict[str, Any]
#: Made by hand (docs/deployment.md): no prefix reaches them, all maps of a namespace share them.
SECRETS = {"object-store", "dask-tls", "prefect-auth"}
#: The operator adds both to a worker's container.
OPERATOR = {"DASK_WORKER_NAME", "DASK_SCHEDULER_ADDRESS"}
INSTANCE = "app.kubernetes.io/instance"


@dataclass(frozen=True)
class Pod:
    """A pod that a resource makes: whose it is, its labels, its spec."""

    owner: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]


def names(resources: list[Resource], kind: str) -> set[str]:
    found = {each["metadata"]["name"] for each in resources if each["kind"] == kind}
    if kind == "Service":  # the operator makes one for each cluster
        found |= {f"{name}-scheduler" for name in names(resources, "DaskCluster")}
    return found


def pods(resources: list[Resource]) -> list[Pod]:
    """Return the pods of CronJobs, Jobs, Deployments and of the Dask operator's resources."""
    found = []
    for each in resources:
        spec, owner = each.get("spec", {}), f"{each['kind']} {each['metadata'].get('name')}"
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if each["kind"] in ("CronJob", "Job", "Deployment"):
            template = spec["template"]
            found.append(Pod(owner, template["metadata"]["labels"], template["spec"]))
        for role in ("worker", "scheduler"):
            if each["apiVersion"].startswith("kubernetes.dask.org/") and role in spec:
                # The operator gives a cluster's labels to its pods, and adds two.
                labels = {
                    **each["metadata"].get("labels", {}),
                    "dask.org/cluster-name": spec.get("cluster", each["metadata"]["name"]),
                    "dask.org/component": role,
                }
                found.append(Pod(f"{owner} ({role})", labels, spec[role]["spec"]))
    return found


def selectors(resources: list[Resource]) -> Iterator[tuple[str, Resource]]:
    """Yield the place and the content of every selector of pods in this namespace."""
    for each in resources:
        spec, place = each.get("spec", {}), f"{each['kind']} {each['metadata']['name']}"
        if each["kind"] == "Deployment":
            yield place, spec["selector"]
        if each["kind"] == "DaskCluster":
            yield f"{place}, service", {"matchLabels": spec["scheduler"]["service"]["selector"]}
        if each["kind"] == "NetworkPolicy":
            rules = [*spec.get("ingress", []), *spec.get("egress", [])]
            if rules or spec["podSelector"]:
                yield place, spec["podSelector"]
            for peer in (
                peer for rule in rules for end in ("from", "to") for peer in rule.get(end, [])
            ):
                if "podSelector" in peer:
                    yield f"{place}, a rule", peer["podSelector"]


def selects(selector: Resource, labels: Mapping[str, str]) -> bool:
    for each in selector.get("matchExpressions", []):
        assert each["operator"] == "Exists", each
        if each["key"] not in labels:
            return False
    return selector.get("matchLabels", {}).items() <= labels.items()


def settings(container: Mapping[str, Any], pod: Pod, resources: list[Resource]) -> dict[str, str]:
    """Return the variables of a container as its programs see them; a secret's value is empty."""
    maps = {r["metadata"]["name"]: r.get("data", {}) for r in resources if r["kind"] == "ConfigMap"}
    found = dict.fromkeys(OPERATOR & set(re.findall(r"\$\((\w+)\)", str(container["args"]))), "")
    for each in container.get("envFrom", []):
        found |= maps.get(each.get("configMapRef", {}).get("name"), {})
    for each in container.get("env", []):
        field = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        label = re.fullmatch(r"metadata\.labels\['(.+)'\]", field)
        value = pod.labels.get(label[1], f"no label {label[1]}") if label else each.get("value", "")
        found[each["name"]] = expanded(value, found)
    return found


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` as Kubernetes does: what it does not know stays."""
    return re.sub(r"\$\((\w+)\)", lambda m: variables.get(m[1], m[0]), text)


def dangling(resources: list[Resource], others: list[Pod]) -> list[str]:
    """Return each name that leads nowhere, and each selector without a pod.

    Parameters
    ----------
    resources : list of dict
        As kustomize builds them.
    others : list of Pod
        Pods that runs may ask for besides.
    """
    found: list[str] = []

    def need(place: str, kind: str, name: str) -> None:
        if name not in (SECRETS if kind == "Secret" else names(resources, kind)):
            found.append(f"{place}: no {kind} {name}")

    for pod in pods(resources):
        need(pod.owner, "ServiceAccount", pod.spec["serviceAccountName"])
        for volume in pod.spec.get("volumes", []):
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                need(pod.owner, "PersistentVolumeClaim", claim)
            if "secret" in volume:
                need(pod.owner, "Secret", volume["secret"]["secretName"])
            if "configMap" in volume:
                need(pod.owner, "ConfigMap", volume["configMap"]["name"])
        for container in pod.spec["containers"]:
            for source in container.get("envFrom", []) + [
                each["valueFrom"] for each in container.get("env", []) if "valueFrom" in each
            ]:
                for key, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
                    for reference in (source.get(f"{key}Ref"), source.get(f"{key}KeyRef")):
                        if reference:
                            need(pod.owner, kind, reference["name"])
            known = settings(container, pod, resources)
            for name, value in known.items():
                if name.endswith("_SECRET_NAME"):
                    need(pod.owner, "Secret", value)
            words = [expanded(word, known) for word in container["args"]] + list(known.values())
            found += [f"{pod.owner}: {word} is not expanded" for word in words if "$(" in word]
            found += [f"{pod.owner}: {word}" for word in words if word.startswith("no label")]
            for word in words:
                host = re.search(r"\b(?:tls|tcp|https?)://([^:/]+)", word)
                if host and ("." not in host[1] or ".svc" in host[1]):
                    need(pod.owner, "Service", host[1].partition(".")[0])
    for each in resources:
        place = f"{each['kind']} {each['metadata']['name']}"
        if each["kind"] == "RoleBinding":
            need(place, each["roleRef"]["kind"], each["roleRef"]["name"])
            for subject in each["subjects"]:
                need(place, subject["kind"], subject["name"])
        if each["kind"] in ("DaskAutoscaler", "DaskWorkerGroup"):
            need(place, "DaskCluster", each["spec"]["cluster"])
    every = pods(resources) + others
    for place, selector in selectors(resources):
        if not any(selects(selector, pod.labels) for pod in every):
            found.append(f"{place}: {selector} selects no pod")
    return found

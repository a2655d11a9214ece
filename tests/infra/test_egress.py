"""What pods may reach: the table of docs/deployment.md against the network policies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.operation_schema import Email
from tests.infra.references import INSTANCE, pods, selects
from tests.infra.test_kubernetes import KUBERNETES, OVERLAYS, built

DOCS = Path(__file__).parents[2] / "docs"
OWN = "the map's own runs and pods of Dask"
#: Components that change what pods may reach.
OPENING = sorted(path.name for path in (KUBERNETES / "components").glob("[ei]*-*"))
Reach = set[tuple[str, str]]


def table() -> dict[str, Reach]:
    """Return where to and to which port each part of the manifests lets pods connect."""
    page = (DOCS / "deployment.md").read_text().partition("### What pods may reach")[2]
    rows = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in page.partition("\nWhat the manifests promise")[0].splitlines()
        if line.startswith("|")
    ]
    assert rows[0] == ["to", "ports", "for", "opened by"]
    found: dict[str, Reach] = {}
    for to, ports, _, opened_by in rows[2:]:
        reached = {(to.strip("`"), port) for port in ports.split(", ")}
        found.setdefault(opened_by.strip("`"), set()).update(reached)
    return found


def reach(resources: list[dict[str, Any]], labels: dict[str, str]) -> Reach:
    """Return what network policies let a pod with these labels connect to."""
    found: Reach = set()
    policies = [each["spec"] for each in resources if each["kind"] == "NetworkPolicy"]
    assert {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]} in policies  # else: all
    for spec in policies:
        for rule in spec.get("egress", []) if selects(spec["podSelector"], labels) else []:
            ports = [f"{each['protocol']} {each['port']}" for each in rule.get("ports", [])]
            for peer in rule.get("to", [{}]):
                to = "anywhere"
                if "ipBlock" in peer:
                    to = peer["ipBlock"]["cidr"].removesuffix("/32")
                elif "namespaceSelector" in peer:
                    (to,) = peer["namespaceSelector"]["matchLabels"].values()
                elif peer:
                    assert peer["podSelector"]["matchLabels"][INSTANCE] == labels[INSTANCE]
                    to = OWN
                found |= {(to, port) for port in ports or ["all"]}
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_of_an_overlay_reach_what_the_table_says(overlay):
    resources = built(overlay)
    for pod in pods(resources):
        expected = set(table()["base"])
        if pod.owner.startswith("Deployment"):  # Prefect's worker has no business with Dask
            expected.discard((OWN, "all"))
        assert reach(resources, dict(pod.labels)) == expected, pod.owner


@pytest.mark.parametrize("component", OPENING)
def test_a_component_opens_what_the_table_says(component, prefixed):
    resources = prefixed("bucket", "a-", component)
    (run,) = pods(resources)
    assert reach(resources, dict(run.labels)) == table()["base"] | table()[component]
    stranger = {**run.labels, INSTANCE: "b-map"}
    assert reach(resources, stranger) == set()


def test_the_table_is_whole():
    assert set(table()) == {"base", *OPENING}
    ports = {int(port.split()[-1]) for row in table().values() for _, port in row if port != "all"}
    for page in DOCS.glob("*.md"):
        for host, port in re.findall(r"\b([a-z][a-z0-9.-]*):(\d{2,5})\b", page.read_text()):
            assert host == "localhost" or int(port) in ports, f"{page.name}: {host}:{port}"
    address = {"to": ("a@example.org",), "sender": "b@example.org"}
    for encryption in ("tls", "starttls", "none"):
        assert Email(**address, encryption=encryption).server_port in ports

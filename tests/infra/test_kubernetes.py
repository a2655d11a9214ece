"""The manifests as kustomize builds them, by the schemas of Kubernetes and of the Dask operator."""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from pipeline.cli.main import main
from pipeline.cluster import kubernetes as pods
from pipeline.config.compute_schema import Compute
from pipeline.core.exit_status import ExitStatus
from tests.infra.test_image_files import _tool

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "infra/kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
RELEASE = "1.37"
OLDEST = "1.31"  # pod failure policies are stable since


@functools.cache
def _build(overlay: str) -> str:
    command = [_tool("kubectl"), "kustomize", str(KUBERNETES / "overlays" / overlay)]
    return subprocess.check_output(command, text=True)


def parsed(text: str | bytes) -> list[dict[str, Any]]:
    return list(yaml.load_all(text, yaml.CSafeLoader))  # ten times as fast as the one in Python


def built(overlay: str) -> list[dict[str, Any]]:
    return parsed(_build(overlay))


@functools.cache
def _operator_schemas() -> dict[str, dict[str, Any]]:
    """Return the operator's own definitions; a field that they do not name is refused."""
    found = {}
    chart = "operator/deployment/helm/dask-kubernetes-operator/crds"
    for path in (importlib.resources.files("dask_kubernetes") / chart).iterdir():
        definition = parsed(path.read_text())[0]["spec"]
        (version,) = definition["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        schema["properties"] |= {key: {} for key in ("apiVersion", "kind", "metadata")}
        found[definition["names"]["kind"]] = _closed(schema)
    return found


def _closed(schema: Any) -> Any:
    if isinstance(schema, dict):
        kept = schema.get("x-kubernetes-preserve-unknown-fields")
        if "properties" in schema and not kept and "additionalProperties" not in schema:
            schema["additionalProperties"] = False
        for value in schema.values():
            _closed(value)
    return schema


def validate(resource: dict[str, Any], release: str = RELEASE) -> None:
    """Validate a resource by the schema of its kind; pods inside of others by that of pods."""
    if resource["apiVersion"].startswith("kubernetes.dask.org/"):
        jsonschema.validate(resource, _operator_schemas()[resource["kind"]])
        spec = resource["spec"]
        for role in ("worker", "scheduler"):
            if role in spec:
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role}}
                validate({**pod, "spec": spec[role]["spec"]})
        if "scheduler" in spec:
            service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
            validate({**service, "spec": spec["scheduler"]["service"]})
        return
    kubernetes_validate.validate(resource, release, strict=True)


def pod_specs(resources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for each in resources:
        spec = each.get("spec", {})
        if each["kind"] == "CronJob":
            found.append(spec["jobTemplate"]["spec"]["template"]["spec"])
        elif each["kind"] == "Deployment":
            found.append(spec["template"]["spec"])
        elif each["apiVersion"].startswith("kubernetes.dask.org/"):
            found += [spec[role]["spec"] for role in ("worker", "scheduler") if role in spec]
    return found


@pytest.mark.ci
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_resource_is_valid(overlay):
    resources = built(overlay)
    assert {"CronJob", "NetworkPolicy", "Role", "ServiceAccount"} <= {r["kind"] for r in resources}
    for each in resources:
        validate(each)
        if each["kind"] != "Namespace":
            assert each["metadata"]["namespace"] == "disagg"


def test_an_older_kubernetes_takes_them_too():
    for each in built("volume"):
        validate(each, OLDEST)


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("CronJob", lambda spec: spec.update(shedule="* * * * *")),
        ("CronJob", lambda spec: spec["jobTemplate"]["spec"].update(backoffLimit="six")),
        ("DaskCluster", lambda spec: spec["worker"].update(replica=3)),
        ("DaskCluster", lambda spec: spec["worker"]["spec"].update(tolerations={"key": "a"})),
        ("DaskAutoscaler", lambda spec: spec.pop("maximum")),
    ],
)
def test_a_spoilt_resource_is_not(kind, spoil):
    (found,) = [each for each in built("dask") if each["kind"] == kind]
    spoil(found["spec"])
    errors = (jsonschema.ValidationError, kubernetes_validate.ValidationError)
    with pytest.raises(errors):
        validate(found)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_meet_the_restricted_standard(overlay):
    specs = pod_specs(built(overlay))
    assert specs
    for spec in specs:
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            assert container["securityContext"] == pods.CONTAINER_SECURITY
            assert container["image"].startswith("registry.example.org/disagg")
            assert "command" not in container  # the image's entry point reads secrets, makes caches
            assert container["resources"]["limits"]["memory"]
            assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_secrets_are_references_and_tokens_go_to_nobody_else(overlay):
    resources = built(overlay)
    assert not [each for each in resources if each["kind"] == "Secret"]
    for spec in pod_specs(resources):
        account = spec.get("serviceAccountName")
        speaks = account in ("prefect-worker", "disagg-clusters")
        assert spec.get("automountServiceAccountToken", True) == speaks
        for container in spec["containers"]:
            for each in container.get("env", []):
                named = each["name"].endswith(("_SECRET_NAME", "_SECRET_KEY"))  # of a reference
                if re.search("SECRET|AUTH|KEY_ID|PASSWORD", each["name"]) and not named:
                    assert set(each["valueFrom"]) == {"secretKeyRef"}


def _job(overlay: str = "bucket") -> dict[str, Any]:
    (found,) = [each for each in built(overlay) if each["kind"] == "CronJob"]
    return found["spec"]["jobTemplate"]["spec"]


def _actions(status: int) -> list[str]:
    """Return what Kubernetes does with a container's exit status: the first rule that matches."""
    found = []
    for rule in _job()["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        if codes and (status in codes["values"]) == (codes["operator"] == "In"):
            found.append(rule["action"])
    return found[:1]


def test_exit_statuses_decide_what_is_tried_again():
    for status in (ExitStatus.DEFECT, ExitStatus.BAD_INPUT, ExitStatus.HELD):
        assert _actions(status) == ["FailJob"]
    for status in (ExitStatus.TRANSIENT, ExitStatus.INTERRUPTED, ExitStatus.TERMINATED):
        assert _actions(status) == ["Count"]
    (lost,) = [r for r in _job()["podFailurePolicy"]["rules"] if "onPodConditions" in r]
    assert lost["action"] == "Ignore"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_accepts_the_failure_policy(overlay):
    """What its API server checks beyond the schema."""
    job = _job(overlay)
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    rules = job["podFailurePolicy"]["rules"]
    assert len(rules) <= 20
    names = {c["name"] for c in job["template"]["spec"]["containers"]}
    for rule in rules:
        assert ("onExitCodes" in rule) != ("onPodConditions" in rule)
        codes = rule.get("onExitCodes", {})
        assert codes.get("containerName") in {None, *names}
        assert codes.get("values", []) == sorted(set(codes.get("values", [])))
        assert 0 not in codes.get("values", [])


@pytest.mark.parametrize("name", ["identity-eks", "identity-gke"])
def test_a_cloud_gives_the_role(name, tmp_path):
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    (tmp_path / "my").mkdir()
    (tmp_path / "my/kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: disagg\n"
        "resources: [../kubernetes/overlays/bucket]\n"
        f"components: [../kubernetes/components/{name}]\n"
    )
    text = subprocess.check_output([_tool("kubectl"), "kustomize", tmp_path / "my"], text=True)
    resources = parsed(text)
    for each in resources:
        validate(each)
    (policy,) = [each for each in resources if each["metadata"]["name"] == "identity"]
    cidrs = [to["ipBlock"]["cidr"] for rule in policy["spec"]["egress"] for to in rule["to"]]
    # Node-local addresses alone; on EKS not the one that gives the node's own role.
    assert all(cidr.startswith("169.254.") and cidr.endswith("/32") for cidr in cidrs)
    assert (name == "identity-gke") == ("169.254.169.254/32" in cidrs)


def test_crashed_pods_of_the_worker_s_namespace_alone_are_watched():
    (worker,) = [each for each in built("prefect") if each["kind"] == "Deployment"]
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    (watched,) = [each for each in container["env"] if each["name"].endswith("OBSERVER_NAMESPACES")]
    assert watched["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
    kinds = {each["kind"] for each in built("prefect")}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding"}


@pytest.mark.parametrize("overlay", ["bucket", "volume"])
def test_a_map_that_passes_its_gates_is_published(overlay):
    (container,) = _job(overlay)["template"]["spec"]["containers"]
    assert container["args"][:2] == ["disagg", "run"]
    assert "--publish" in container["args"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_programs_are_those_of_the_image(overlay, tmp_path):
    from distributed.cli import dask_scheduler, dask_worker

    for name in ("ca", "cert", "key"):
        (tmp_path / f"{name}.pem").touch()

    for spec in pod_specs(built(overlay)):
        for container in spec["containers"]:
            program, *rest = container["args"]
            assert program in ("disagg", "dask", "prefect")
            if program == "dask":
                tool = {"worker": dask_worker, "scheduler": dask_scheduler}[rest[0]]
                options = [each.replace("=/tls/", f"={tmp_path}/") for each in rest[1:]]
                parsed = tool.main.make_context(rest[0], options)  # raises on unknown options
                assert parsed.params["tls_ca_file"] == f"{tmp_path}/ca.pem"
                assert {"name": "tls", "mountPath": "/tls", "readOnly": True} in container[
                    "volumeMounts"
                ]


def test_the_operator_can_scale_a_cluster_on_tls():
    """It asks the scheduler's HTTP API: its own client speaks TCP without TLS."""
    (cluster,) = [each for each in built("dask") if each["kind"] == "DaskCluster"]
    (scheduler,) = cluster["spec"]["scheduler"]["spec"]["containers"]
    (routes,) = [e["value"] for e in scheduler["env"] if e["name"].endswith("HTTP__ROUTES")]
    assert "distributed.http.scheduler.api" in yaml.safe_load(routes)
    for module in yaml.safe_load(routes):
        assert importlib.import_module(module).routes


@pytest.mark.ci
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_pods_that_a_run_asks_for_are_valid_and_the_same(device):
    wanted = {"image": "registry.example.org/disagg", "pod": {"imagePullSecrets": [{"name": "r"}]}}
    compute = Compute(
        scheduler="kubernetes",
        workers=2,
        threads=2,
        memory="8GiB",
        device=device,
        kubernetes=wanted,
    )
    spec = pods.cluster_spec(compute)
    spec["spec"].pop("idleTimeout")  # the operator reads it; its definition does not name it
    validate(spec)
    (standing,) = [each for each in built("dask") if each["kind"] == "DaskCluster"]
    for role in ("worker", "scheduler"):
        ours, theirs = spec["spec"][role]["spec"], standing["spec"][role]["spec"]
        assert ours["securityContext"] == theirs["securityContext"]
        assert ours["automountServiceAccountToken"] == theirs["automountServiceAccountToken"]


def prefect_job(prefix: str = "") -> dict[str, Any]:
    """Return a run's Job: the pool's template with its defaults and what Prefect adds to a run."""
    text = (KUBERNETES / "prefect-pool.json").read_text()
    for name in ('"app.kubernetes.io/instance": "', '"serviceAccountName": "'):
        text = text.replace(name, name + prefix)
    template = json.loads(text)
    known = template["variables"]["properties"]
    given = {name: each["default"] for name, each in known.items() if "default" in each}

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(each) for key, each in value.items()}
        if isinstance(value, list):
            return [filled(each) for each in value]
        named = re.fullmatch(r"\{\{ (\w+) \}\}", value) if isinstance(value, str) else None
        return given[named[1]] if named else value

    job = filled(template["job_configuration"]["job_manifest"])
    pod = job["spec"]["template"]
    # Its worker refuses a template without these two, which Kubernetes does not know there.
    assert (pod["spec"].pop("parallelism"), pod["spec"].pop("completions")) == (1, 1)
    labels = {"app.kubernetes.io/name": "a-deployment", "prefect.io/flow-run-name": "run"}
    labels |= template["job_configuration"]["labels"]  # a run's own, if it may have any
    job["metadata"] |= {"generateName": "run-", "namespace": "disagg", "labels": labels}
    pod["metadata"] = {"labels": labels}
    pod["spec"]["containers"][0] |= {
        "args": ["prefect", "flow-run", "execute"],
        "env": [{"name": "PREFECT__FLOW_RUN_ID", "value": "1"}],
    }
    return job


def test_a_run_of_prefect_chooses_its_size_alone():
    """Whoever may start a run says neither its command nor its image, account, labels or files."""
    template = json.loads((KUBERNETES / "prefect-pool.json").read_text())
    asked = json.dumps(template["job_configuration"])
    times = {"finished_job_ttl", "job_watch_timeout_seconds", "pod_watch_timeout_seconds"}
    free = {"cpu", "memory", "stream_output"} | times
    # A run fills any placeholder, whether the pool has such a variable or not.
    assert set(re.findall(r"\{\{\s*([^}]*?)\s*\}\}", asked)) == free
    assert set(template["variables"]["properties"]) == free
    assert "env" not in template["job_configuration"]  # Prefect would add a run's own


def test_jobs_of_prefect_are_valid_and_confined():
    job = prefect_job()
    validate(job)
    ours, theirs = job["spec"]["template"]["spec"], _job()["template"]["spec"]
    for key in ("terminationGracePeriodSeconds", "automountServiceAccountToken", "restartPolicy"):
        assert ours[key] == theirs[key]
    assert ours["securityContext"].items() <= theirs["securityContext"].items()
    (container,) = ours["containers"]
    assert container["securityContext"] == pods.CONTAINER_SECURITY
    assert "command" not in container
    # The network's rules know a run by its labels.
    ours, theirs = job["spec"]["template"], _job()["template"]
    assert theirs["metadata"]["labels"].items() <= ours["metadata"]["labels"].items()


def _hold_disk(plan: dict[str, Any], patched: int) -> None:
    """The rule of docs/deployment.md: output.dir and copies of inputs, and a half to spare."""
    needed = math.ceil(1.5 * (plan["disk_bytes"] + plan["bytes"]["copies"]) / 2**20)
    (job,) = yaml.safe_load_all((KUBERNETES / "base/map.yaml").read_text())
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    limit = 1024 * int(container["resources"]["limits"]["ephemeral-storage"].removesuffix("Gi"))
    google = json.loads((KUBERNETES.parent / "batch/google/job.json").read_text())
    task = google["taskGroups"][0]["taskSpec"]["computeResource"]
    assert needed <= patched <= limit <= int(task["bootDiskMib"])
    # With rasters at addresses, their copies are within the limit too.
    plan["bytes"]["copies"] += 10 << 30
    script = [sys.executable, KUBERNETES / "resources.py"]
    text = subprocess.check_output(script, input=json.dumps(plan), text=True)
    more = yaml.safe_load(text)[0]["value"]["limits"]["ephemeral-storage"]
    assert int(more.removesuffix("Mi")) >= needed + 15 * 1024


@pytest.mark.ci
def test_resources_follow_the_plan(country, capsys, tmp_path):
    assert main(["plan", str(country / "disagg.yaml"), "--json"]) == 0
    plan = capsys.readouterr().out
    script = [sys.executable, KUBERNETES / "resources.py", "--cpus", "4"]
    text = subprocess.run(script, input=plan, capture_output=True, text=True, check=True).stdout
    patch = {each["path"]: each["value"] for each in yaml.safe_load(text)}
    resources = next(value for path, value in patch.items() if path.endswith("resources"))
    peak = max(stage["peak_bytes"] for stage in json.loads(plan)["stages"].values())
    asked = int(resources["limits"]["memory"].removesuffix("Mi")) << 20
    assert peak <= asked <= max(2 * peak, 2 << 30)
    assert resources["requests"]["cpu"] == "4"
    _hold_disk(json.loads(plan), int(resources["limits"]["ephemeral-storage"].removesuffix("Mi")))
    (tmp_path / "patch.yaml").write_text(text)
    at = KUBERNETES / "overlays/bucket"
    (tmp_path / "kustomization.yaml").write_text(
        f"resources: [{Path(*['..'] * (len(tmp_path.parts) - 1), *at.parts[1:])}]\n"
        "patches: [{path: patch.yaml, target: {kind: CronJob, name: map}}]\n"
    )
    command = [_tool("kubectl"), "kustomize", "--load-restrictor=LoadRestrictionsNone", tmp_path]
    for each in parsed(subprocess.check_output(command, text=True)):
        validate(each)
    done = subprocess.run(script, input="{}", capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no plan")

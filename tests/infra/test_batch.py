"""Job definitions of cloud batch by the services' own schemas, array jobs, rights of buckets."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import boto3
import pytest
import yaml
from google.cloud import batch_v1
from moto import mock_aws

from pipeline.cli.main import main
from pipeline.core.exit_status import ExitStatus
from tests.pipeline.storage.s3_server import Weather, request, stormy
from tests.pipeline.storage.test_s3 import SAME, Run

INFRA = Path(__file__).parents[2] / "infra"
AWS = INFRA / "batch/aws"


def _json(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.fixture
def account(monkeypatch):
    """Give an empty account of AWS, with the roles and networks that the files name."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield boto3.session.Session(region_name="us-east-1")


@pytest.mark.ci
def test_aws_takes_the_definitions_and_an_array_job(account):
    batch, iam, ec2 = (account.client(name) for name in ("batch", "iam", "ec2"))
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    environment = _json(AWS / "compute-environment.json")
    # botocore checks each key and type by Amazon's own description; moto keeps what came.
    role = iam.create_role(RoleName="aws-batch-service", AssumeRolePolicyDocument=trust)
    profile = iam.create_instance_profile(InstanceProfileName="ecs-instance")
    network = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=network, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="g", Description="d", VpcId=network)["GroupId"]
    environment["serviceRole"] = role["Role"]["Arn"]
    environment["computeResources"] |= {
        "subnets": [subnet],
        "securityGroupIds": [group],
        "instanceRole": profile["InstanceProfile"]["Arn"],
    }
    made = batch.create_compute_environment(**environment)
    queue = _json(AWS / "job-queue.json")
    queue["computeEnvironmentOrder"][0]["computeEnvironment"] = made["computeEnvironmentArn"]
    batch.create_job_queue(**queue)
    definition = _json(AWS / "job-definition.json")
    batch.register_job_definition(**definition)
    (kept,) = batch.describe_job_definitions(jobDefinitionName="disagg-map")["jobDefinitions"]
    container = kept["containerProperties"]
    assert kept["status"] == "ACTIVE"
    assert kept["retryStrategy"]["attempts"] == 10
    assert container["readonlyRootFilesystem"]
    assert container["user"] == "65534:65534"
    assert "--publish" in container["command"]
    assert batch.describe_job_queues(jobQueues=["disagg"])["jobQueues"]
    job = _json(AWS / "array-job.json")
    n_map = len(job["containerOverrides"]["environment"][0]["value"].split())
    assert job["arrayProperties"]["size"] == n_map


def test_the_array_job_is_one_that_aws_would_take():
    from botocore.loaders import Loader
    from botocore.model import ServiceModel
    from botocore.validate import ParamValidator

    service = ServiceModel(Loader().load_service_model("batch", "service-2"))
    shape = service.operation_model("SubmitJob").input_shape
    job = _json(AWS / "array-job.json")
    assert not ParamValidator().validate(job, shape).has_errors()
    assert ParamValidator().validate({**job, "arraySize": 2}, shape).has_errors()


def _aws_retries(status: int) -> bool:
    for rule in _json(AWS / "job-definition.json")["retryStrategy"]["evaluateOnExit"]:
        if fnmatch.fnmatchcase(str(status), rule.get("onExitCode", "-")):
            return rule["action"] == "RETRY"
    return True


def test_aws_tries_again_what_passes_and_nothing_else():
    rules = _json(AWS / "job-definition.json")["retryStrategy"]["evaluateOnExit"]
    assert len(rules) <= 5  # Amazon's limit
    assert {"onStatusReason": "Host EC2*", "action": "RETRY"} in rules  # a spot machine taken back
    assert [s for s in range(256) if _aws_retries(s)] == [
        ExitStatus.TRANSIENT,
        ExitStatus.INTERRUPTED,
        ExitStatus.TERMINATED,
    ]


def test_google_takes_the_job():
    text = (INFRA / "batch/google/job.json").read_text()
    job = batch_v1.Job.from_json(text)  # refuses keys and values that the service does not know
    (group,) = job.task_groups
    spec = group.task_spec
    variables = spec.environment.variables
    assert group.task_count == len(variables["DISAGG_MAPS"].split())
    assert spec.runnables[0].container.commands[0] == "disagg-map"
    actions = {
        status: policy.action.name
        for policy in spec.lifecycle_policies
        for status in policy.action_condition.exit_codes
    }
    for status in (
        ExitStatus.TRANSIENT,
        ExitStatus.INTERRUPTED,
        ExitStatus.TERMINATED,
        50001,
    ):  # the last: a spot machine taken back
        assert actions.pop(status) == "RETRY_TASK"
    # 137: killed, most often for want of memory, which the next try has not either.
    assert actions == dict.fromkeys(
        (ExitStatus.DEFECT, ExitStatus.BAD_INPUT, ExitStatus.HELD, 137), "FAIL_TASK"
    )
    with pytest.raises(Exception, match="taskCout"):
        batch_v1.Job.from_json(text.replace("taskCount", "taskCout"))


@pytest.mark.parametrize(
    "variable",
    [
        "AWS_BATCH_JOB_ARRAY_INDEX",
        "BATCH_TASK_INDEX",
        "JOB_COMPLETION_INDEX",
        "SLURM_ARRAY_TASK_ID",
    ],
)
def test_each_task_runs_its_map(tmp_path, variable):
    program = tmp_path / "disagg"
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    program.chmod(0o755)

    def task(number: int, *options: str) -> subprocess.CompletedProcess:
        environment = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "DISAGG_MAPS": "s3://m/a.yaml  s3://m/b.yaml\ns3://m/c.yaml",
            variable: str(number),
        }
        command = ["sh", INFRA / "image/map.sh", *options]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    options = ["--quiet", "--log-file", "a b"]
    assert task(0).stdout == "run|s3://m/a.yaml|"
    assert task(1, *options).stdout == "run|s3://m/b.yaml|--quiet|--log-file|a b|"
    assert task(2, *options).stdout == "run|s3://m/c.yaml|--quiet|--log-file|a b|"
    beyond = task(3, *options)
    assert beyond.returncode == ExitStatus.BAD_INPUT
    assert beyond.stderr.startswith("error: DISAGG_MAPS: 3 maps, and this is task 3 (from 0)")


# -- rights of buckets -----------------------------------------------------------------------------


def _asked(method: str, path: str) -> tuple[str, str, str]:
    """Return action, key and prefix of a request of S3's protocol."""
    parts = urlsplit(path)
    _, _, key = unquote(parts.path).lstrip("/").partition("/")
    query = parse_qs(parts.query, keep_blank_values=True)
    prefix = query.get("prefix", [""])[0]
    if not key:
        if method == "POST" and "delete" in query:
            return "s3:DeleteObject", "my/out/*", prefix  # the keys are in the body
        return "s3:ListBucket", "", prefix
    if method in ("PUT", "POST"):
        return "s3:PutObject", key, prefix
    if method == "DELETE":
        aborts = "uploadId" in query
        return ("s3:AbortMultipartUpload" if aborts else "s3:DeleteObject"), key, prefix
    return "s3:GetObject", key, prefix


def _allows(policy: dict, method: str, path: str) -> bool:
    action, key, prefix = _asked(method, path)
    for each in policy["Statement"]:
        if action not in each["Action"]:
            continue
        names = [resource.partition(":::maps")[2].lstrip("/") for resource in each["Resource"]]
        prefixes = each.get("Condition", {}).get("StringLike", {}).get("s3:prefix", ["*"])
        right_key = any(fnmatch.fnmatchcase(key, name) for name in names)
        if right_key and any(fnmatch.fnmatchcase(prefix, each) for each in prefixes):
            return True
    return False


@pytest.mark.ci
def test_a_run_needs_no_more_rights_than_the_policy_gives(s3, tmp_path, monkeypatch, capsys):
    """A proxy denies whatever the policy does not allow."""
    policy = _json(INFRA / "policies/s3-run.json")
    country = Run(tmp_path / "country")
    assert request(s3, "PUT", "/maps")[0] == 200
    for path in filter(Path.is_file, country.directory.iterdir()):
        request(s3, "PUT", f"/maps/my/{path.name}", path.read_bytes())
    text = country.local.read_text() + "gates: {better_than_constant: false}\n"
    request(s3, "PUT", "/maps/my/disagg.yaml", text.encode())
    text = text.replace("dir: out", "dir: s3://maps/other")
    request(s3, "PUT", "/maps/my/outside.yaml", text.encode())
    weather = Weather(denied=1.0, only=lambda method, path: not _allows(policy, method, path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with stormy(s3, weather) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        (here := tmp_path / "here").mkdir()
        monkeypatch.chdir(here)
        address = "s3://maps/my/disagg.yaml"
        status = main(["run", address, "--publish"])
        assert [each for each in weather.log if each[2] == "denied"] == []
        assert status == 0
        assert "All results: s3://maps/my/out" in capsys.readouterr().out
        assert list(here.iterdir()) == []
        actions = {_asked(method, path)[0] for method, path, _ in weather.log}
        given = {action for each in policy["Statement"] for action in each["Action"]}
        # No right that nothing needs: an upload in parts is aborted where one of them fails.
        assert given - actions == {"s3:AbortMultipartUpload"}
        assert main(["run", address]) == 0
        assert "up to date" in capsys.readouterr().err
        assert main(["run", "s3://maps/my/outside.yaml"]) == ExitStatus.BAD_INPUT
        assert weather.count("denied") > 0
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error:")]
    assert "s3://maps/other" in line
    for name in (*SAME, "rate_mean.tif"):
        status, data = request(s3, "GET", f"/maps/my/out/{name}")
        assert (status, data) == (200, (country.out / name).read_bytes()), name
    assert json.loads(request(s3, "GET", "/maps/my/out/run.json")[1])["config_file"] == address
    # A reader's rights are enough for what is published, and for nothing else.
    read = _json(INFRA / "policies/s3-read.json")
    at = "/maps/my/out/published"
    version = json.loads(request(s3, "GET", f"{at}/current.json")[1])["path"]
    assert request(s3, "GET", f"{at}/{version}/rate_mean.tif")[1] == data
    for path in (f"{at}/current.json", f"{at}/{version}/rate_mean.tif"):
        assert _allows(read, "GET", path)
        assert not _allows(read, "PUT", path)
    assert not _allows(read, "GET", "/maps/my/cases.csv")


def test_policies_name_no_more_than_one_prefix():
    for path in sorted((INFRA / "policies").glob("*.json")):
        for each in _json(path)["Statement"]:
            if each["Effect"] == "Allow":
                assert not [a for a in each["Action"] if "*" in a]
                assert not [r for r in each["Resource"] if r in ("*", "arn:aws:s3:::*")]
                assert "Condition" in each or all("maps/my/" in r for r in each["Resource"])
    role = yaml.safe_load((INFRA / "policies/gcs-run.yaml").read_text())
    assert all(re.fullmatch(r"storage\.\w+\.\w+", each) for each in role["includedPermissions"])

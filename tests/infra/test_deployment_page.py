"""Blocks of docs/deployment.md: commands parse and name what exists, YAML is what it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.infra.test_image_files import _tool
from tests.infra.test_kubernetes import parsed, validate

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/deployment.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S)
COMMANDS = [text for kind, text in BLOCKS if not kind]


def test_the_page_has_blocks_of_both_kinds():
    assert len(COMMANDS) > 8
    assert {kind for kind, _ in BLOCKS} == {"", "yaml"}


@pytest.mark.parametrize("text", COMMANDS, ids=lambda text: text.split("\n")[0][:40])
def test_commands_are_of_a_shell_and_name_what_exists(text):
    # SC2155: a page shows the short way; SC2154: a variable of the reader.
    options = ["--shell=sh", "--exclude=SC2155,SC2154", "-"]
    done = subprocess.run(
        [_tool("shellcheck"), *options], input=text, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    for path in re.findall(r"(?<![\w/])infra/[\w./-]+\w", text):
        assert (ROOT / path).exists(), path


def test_yaml_is_yaml_and_the_overlay_builds(tmp_path):
    overlay = next(text for kind, text in BLOCKS if kind == "yaml" and "kustomize" in text)
    for kind, text in BLOCKS:
        if kind == "yaml":
            assert isinstance(yaml.safe_load(text), dict)
    at = tmp_path / "infra/kubernetes"
    at.mkdir(parents=True)
    subprocess.run(["cp", "-R", f"{ROOT}/infra/kubernetes/.", at], check=True)
    own = tmp_path / "my"
    own.mkdir()
    (own / "kustomization.yaml").write_text(overlay.replace('"sha256:..."', '"sha256:0"'))
    (own / "resources.yaml").write_text("[]\n")
    command = [_tool("kubectl"), "kustomize", str(own)]
    made = parsed(subprocess.check_output(command, text=True))
    for each in made:
        validate(each)
    (job,) = [each for each in made if each["kind"] == "CronJob"]
    assert job["metadata"]["name"] == "my-map"
    spec = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
    assert spec["image"] == "registry.my.org/disagg@sha256:0"
    (settings,) = [each for each in made if each["kind"] == "ConfigMap"]
    assert settings["data"]["DISAGG_CONFIG"] == "s3://maps/my/disagg.yaml"
    assert spec["envFrom"][0]["configMapRef"]["name"] == settings["metadata"]["name"]
    subjects = [each["subjects"][0]["name"] for each in made if each["kind"] == "RoleBinding"]
    assert subjects == ["my-disagg-clusters"]

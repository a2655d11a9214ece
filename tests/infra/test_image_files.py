"""The image's files: locked packages, lists of components, the audit, scripts, Dockerfile."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "infra/image"
SCRIPTS = sorted([*(ROOT / "infra").rglob("*.sh"), ROOT / ".ci/run"])
_PIN = re.compile(r"^(\S+)==(\S+) \\\n    --hash=sha256:([0-9a-f]{64})$", re.M)


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def _locked(file: str) -> dict[str, str]:
    text = (IMAGE / file).read_text()
    found = {name: version for name, version, _ in _PIN.findall(text)}
    assert len(found) == text.count("==") == text.count("--hash")
    return found


def _constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    return {_name(name): version for name, version in pins}


def _tool(name: str) -> str:
    """Return a program that a development package brings."""
    found = shutil.which(name, path=f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
    assert found is not None, f"{name}: run make dev"
    return found


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-cuda.txt"])
def test_the_lock_has_the_versions_that_were_tested(file):
    constraints, locked = _constraints(), _locked(file)
    assert {name: constraints[name] for name in locked if name in constraints} == {
        name: version for name, version in locked.items() if name in constraints
    }
    loose = {name for name in locked if name not in constraints}
    # NVIDIA's libraries follow CuPy's release; nothing of ours is tested on them here.
    assert {n for n in loose if not n.startswith(("nvidia-", "cuda-"))} == {"setuptools"}


def _needed(extras: tuple[str, ...]) -> set[str]:
    """Return what the installed packages say that disagg needs, all the way down."""
    environment = {"python_full_version": "3.11.2", "python_version": "3.11"}
    todo, found = [("disagg", frozenset(extras))], set()
    done = set()
    while todo:
        name, chosen = todo.pop()
        if (name, chosen) in done:
            continue
        done.add((name, chosen))
        found.add(name)
        for text in importlib.metadata.requires(name) or []:
            each = Requirement(text)
            wanted = each.marker is None or any(
                each.marker.evaluate({**environment, "extra": extra}) for extra in (*chosen, "")
            )
            if wanted and _name(each.name) not in ("disagg", "async-timeout"):
                todo.append((_name(each.name), frozenset(each.extras)))
    return found - {"disagg"}


def test_the_lock_is_complete():
    project = (ROOT / "pyproject.toml").read_text()
    assert 'kubernetes = ["dask-kubernetes>=2025", "prefect-kubernetes>=0.8"]' in project
    locked = _locked("requirements.txt")
    assert _needed(("flows", "s3")) - set(locked) == set()
    assert set(locked) > {"dask-kubernetes", "prefect-kubernetes", "async-timeout", "s3fs"}
    cuda = _locked("requirements-cuda.txt")
    assert set(cuda) > set(locked) | {"cupy-cuda12x", "nvidia-cublas-cu12"}
    backend = re.search(r'requires = \["setuptools==([\d.]+)"\]', project)
    assert locked["setuptools"] == backend[1]


@pytest.mark.ci
def test_what_the_image_consists_of_is_a_valid_bill_of_materials(tmp_path):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    subprocess.run([sys.executable, IMAGE / "components.py", tmp_path], check=True)
    text = (tmp_path / "sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {each["name"]: each for each in json.loads(text)["components"]}
    assert listed["numpy"]["version"] == importlib.metadata.version("numpy")
    assert listed["numpy"]["licenses"]
    rows = (tmp_path / "licences.tsv").read_text().splitlines()
    assert all(row.count("\t") == 2 for row in rows)


OSV = {
    "id": "TEST-1",
    "summary": "it leaks",
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "Num_Py"},
            "ranges": [
                {"type": "ECOSYSTEM", "events": [{"introduced": "1.0"}, {"fixed": "2.1"}]},
                {"type": "GIT", "events": [{"introduced": "0"}]},
            ],
        },
        {"package": {"ecosystem": "Debian:12", "name": "libexpat1"}, "versions": ["2.5.0-1"]},
    ],
}


@pytest.mark.parametrize(
    ("kind", "name", "version", "status"),
    [
        ("pypi", "num-py", "2.0.9", 3),
        ("pypi", "num-py", "1.0", 3),
        ("pypi", "num-py", "2.1", 0),
        ("pypi", "num-py", "0.9", 0),
        ("pypi", "libexpat1", "2.5.0-1", 0),
        ("deb/debian", "libexpat1", "2.5.0-1", 3),
        ("deb/debian", "libexpat1", "2.5.0-1+deb12u2", 0),
    ],
)
def test_the_audit_finds_affected_versions(tmp_path, kind, name, version, status):
    component = {"name": name, "version": version, "purl": f"pkg:{kind}/{name}@{version}"}
    (tmp_path / "sbom.json").write_text(json.dumps({"components": [component]}))
    (tmp_path / "osv").mkdir()
    (tmp_path / "osv/1.json").write_text(json.dumps(OSV))
    (tmp_path / "osv/2.json").write_text(json.dumps({**OSV, "id": "OLD", "withdrawn": "2026"}))
    command = [sys.executable, IMAGE / "audit.py", tmp_path / "sbom.json", tmp_path / "osv"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert (f"{name} {version}: TEST-1: it leaks" in done.stdout) == (status == 3)
    assert done.stdout.endswith(f"1 packages, 1 advisories, {status // 3} found\n")
    accepted = subprocess.run([*command, "--accept", "TEST-1"], capture_output=True)
    assert accepted.returncode == 0


def test_the_audit_tells_that_there_is_nothing_to_compare_with(tmp_path):
    (tmp_path / "sbom.json").write_text('{"components": []}')
    (tmp_path / "none").mkdir()
    command = [sys.executable, IMAGE / "audit.py", tmp_path / "sbom.json"]
    for where in ("none", "nowhere"):
        done = subprocess.run([*command, tmp_path / where], capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    done = subprocess.run([_tool("shellcheck"), script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", sorted((ROOT / "infra").rglob("*.sh")), ids=lambda p: p.name)
def test_a_script_without_arguments_tells_what_it_needs(script):
    if script.name in ("version.sh", "entry.sh", "bump.sh"):
        return
    done = subprocess.run(["sh", script], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")


def test_hadolint_finds_nothing():
    for file in sorted((ROOT / "infra").glob("Dockerfile*")):
        done = subprocess.run([_tool("hadolint"), file], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_an_image_on_a_base_without_a_digest_is_refused():
    script = IMAGE / "build.sh"
    for base in ("", "debian:bookworm-slim", "debian@sha256:abc"):
        done = subprocess.run(
            ["sh", script, "disagg"],
            env={**os.environ, "BASE": base},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert "names no digest" in done.stderr


def test_the_version_of_a_checkout_is_one_of_python():
    text = subprocess.check_output(["sh", IMAGE / "version.sh"], text=True).strip()
    assert str(Version(text)) == text
    assert text.startswith(importlib.metadata.version("disagg") + "+g")


def test_what_the_dockerfile_copies_is_sent_to_the_builder():
    docker = (ROOT / "infra/Dockerfile").read_text()
    sent = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"
    }
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", docker, re.M)
    names = {name for line in copied for name in line.split()}
    assert {
        name for name in names if not any(name == s or name.startswith(s + "/") for s in sent)
    } == set()

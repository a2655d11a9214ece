"""Files of one machine: the compose file by its specification's schema, units by systemd."""

from __future__ import annotations

import importlib.resources
import json
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from pipeline.core.exit_status import ExitStatus

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
UNITS = sorted((INFRA / "systemd").iterdir())
COMPOSE = yaml.safe_load((INFRA / "compose.yaml").read_text())
OWN = [name for name, each in COMPOSE["services"].items() if "DISAGG_IMAGE" in each["image"]]


def test_the_compose_file_is_one_of_the_specification():
    vendor = importlib.resources.files("check_jsonschema") / "builtin_schemas/vendor"
    schema = json.loads((vendor / "compose-spec.json").read_text())
    jsonschema.validate(COMPOSE, schema)
    spoilt = {**COMPOSE, "services": {"a": {"image": "i", "restrat": "always"}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spoilt, schema)


def test_containers_may_do_no_more_than_they_need():
    assert {"server", "deploy", "worker", "watch", "scheduler", "dask-worker"} == set(OWN)
    for name in OWN:
        service = COMPOSE["services"][name]
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
    for name, service in COMPOSE["services"].items():
        # Nothing listens beyond this machine, and nothing on it without a login.
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert ("ports" in service) == (name == "server")
    assert COMPOSE["networks"]["inside"] == {"internal": True}


def test_secrets_are_files_and_every_name_is_known():
    text = (INFRA / "compose.yaml").read_text()
    given = set(re.findall(r"^([A-Z0-9_]+)=", (INFRA / "compose.env.example").read_text(), re.M))
    needed = set(re.findall(r"\$\{(\w+):\?", text))
    assert needed <= given <= set(re.findall(r"\$\{(\w+)", text))
    for service in COMPOSE["services"].values():
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|AUTH|KEY|SECRET|_URL_FILE", name):
                assert name.endswith("_FILE"), name
                assert value.removeprefix("/run/secrets/") in service["secrets"], name


@pytest.mark.ci
def test_the_script_makes_the_secrets_that_are_read(tmp_path):
    def make() -> None:
        command = ["sh", INFRA / "secrets.sh", tmp_path / "s", "65534"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    make()
    made = {p.relative_to(tmp_path / "s").as_posix() for p in (tmp_path / "s").rglob("*.*")}
    made |= {p.name for p in (tmp_path / "s").iterdir() if p.is_file()}
    for each in COMPOSE["secrets"].values():
        assert each["file"].partition("}/")[2] in made
    for unit in UNITS:
        for path in re.findall(
            r"LoadCredential=[\w-]+:/etc/disagg/secrets/(\S+)", unit.read_text()
        ):
            assert path in made
    before = {p: p.read_text() for p in (tmp_path / "s").rglob("*") if p.is_file()}
    assert all(p.stat().st_mode & 0o377 == 0 for p in before)
    assert before[tmp_path / "s/postgres-password"].strip() in before[tmp_path / "s/database-url"]
    make()
    assert before == {p: p.read_text() for p in before}


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    """Lay out a root file system with the units, for systemd's own check of them."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd here (Debian: apt-get install systemd)")
    root = tmp_path_factory.mktemp("system")
    units = root / "etc/systemd/system"
    units.mkdir(parents=True)
    for unit in UNITS:
        shutil.copy(unit, units)
    known = Path("/lib/systemd/system")
    (root / "lib/systemd/system").mkdir(parents=True)
    for path in known.glob("*.*"):  # targets and slices that units belong to by default
        if path.suffix in (".target", ".slice", ".socket", ".mount"):
            shutil.copy(path, root / "lib/systemd/system", follow_symlinks=True)
    entry = root / "opt/disagg/bin/entry"
    entry.parent.mkdir(parents=True)
    entry.write_text("#!/bin/sh\n")
    entry.chmod(0o755)
    return root


def _analyze(system: Path, unit: str, *options: str) -> subprocess.CompletedProcess:
    name = unit.replace("@.", "@one.")
    command = ["systemd-analyze", *options, f"--root={system}", name]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("unit", [unit.name for unit in UNITS])
def test_systemd_finds_nothing_wrong(system, unit):
    done = _analyze(system, unit, "verify", "--man=no", "--recursive-errors=no")
    told = [line for line in done.stderr.splitlines() if unit.split("@")[0].split(".")[0] in line]
    assert told == []
    assert done.returncode == 0, done.stderr


def test_systemd_finds_what_is_wrong(system):
    text = (INFRA / "systemd/disagg-worker.service").read_text().replace("Restart=", "Restrat=")
    (system / "etc/systemd/system/spoilt.service").write_text(text)
    done = _analyze(system, "spoilt.service", "verify", "--man=no", "--recursive-errors=no")
    assert "Restrat" in done.stderr


@pytest.mark.parametrize("unit", [unit.name for unit in UNITS if unit.suffix == ".service"])
def test_units_are_confined(system, unit):
    """systemd's own score: 0 is closed, 10 is open."""
    done = _analyze(system, unit, "security", "--offline=yes", "--threshold=25", "--no-pager")
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def test_the_unit_that_publishes_alone_writes_what_others_may_read():
    readable = [unit.name for unit in UNITS if "UMask=0022\n" in unit.read_text()]
    closed = [unit.name for unit in UNITS if "UMask=0077\n" in unit.read_text()]
    assert readable == ["disagg@.service"]
    assert {*readable, *closed} == {unit.name for unit in UNITS if unit.suffix == ".service"}


def test_only_what_passes_is_tried_again():
    text = (INFRA / "systemd/disagg@.service").read_text()
    assert f"RestartPreventExitStatus={ExitStatus.DEFECT} {ExitStatus.BAD_INPUT}\n" in text
    assert str(ExitStatus.TRANSIENT) not in re.findall(r"ExitStatus=(.*)", text)
    assert "Restart=on-failure\n" in text
    assert f"SuccessExitStatus={ExitStatus.HELD} {ExitStatus.TERMINATED}\n" in text

"""``docs/operations.md``, typed as it stands: each block after the other, in an empty directory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "operations.md"
TEXT = PAGE.read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_commands_work_as_they_stand(tmp_path: Path) -> None:
    """What a new engineer types, and nothing else; `disagg` is the one of this checkout."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "disagg").write_text(f'#!/bin/sh\nexec {sys.executable} -m pipeline.cli "$@"\n')
    (programs / "disagg").chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    environ = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
    }
    typed = blocks("sh")
    assert len(typed) >= 5
    for block in typed:
        done = subprocess.run(
            ["sh", "-eux", "-c", block], cwd=work, env=environ, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    assert (work / "demo/out/published/current/report.html").is_file()
    assert (work / "restored/demo/out/published/current").is_symlink()


def test_the_sizing_table_is_what_was_planned() -> None:
    made = json.loads((ROOT / "benchmarks/results/sizing.json").read_text())["sizes"]
    for size in made.values():
        minutes = ", ".join(f"{size['minutes'][n]:g}" for n in ("1", "2", "4"))
        row = (
            f"| {size['areas']:,} | {size['pixels']:,} | {size['covariates']} | "
            f"{size['memory_gb']:g} | {size['disk_gb']:g} | {minutes} |"
        )
        assert row in TEXT


def test_messages_are_those_that_the_code_prints() -> None:
    """A message that was reworded would leave the reader of the table alone."""
    section = TEXT[TEXT.index("## Troubleshooting by message") :]
    first = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    messages = [text for cell in first for text in re.findall(r"`([^`]+)`", cell)]
    assert len(messages) >= 15
    sources = "\n".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        for package in ("geo", "models", "pipeline", "flows")
        for path in (ROOT / package).rglob("*.py")
    )
    unknown = [text for text in messages if text not in sources and text != "disagg versions"]
    assert unknown == []


def test_formats_are_those_of_the_code() -> None:
    from pipeline.updates.migrate import FORMATS

    for each in FORMATS:
        reads = ", ".join(map(str, each.readable))
        assert re.search(
            rf"^\| `{each.name}`.*\| {each.readable[-1]} \| {reads} \|", TEXT, re.MULTILINE
        ), each


def test_the_bump_holds_back_what_the_constraints_say() -> None:
    head = [
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("#")
    ]
    script = (ROOT / "infra" / "bump.sh").read_text()
    for package in re.findall(r"^([a-z]+)<[\d.]+$", script, re.MULTILINE):
        assert package in " ".join(head).lower()
    named = re.findall(r"(?:tests/[\w/]+(?:\.py)?)", script)
    assert named
    assert all((ROOT / name).exists() for name in named)


@pytest.mark.parametrize("newer", [False, True])
def test_a_bump_that_ends_early_changes_nothing(tmp_path: Path, newer: bool) -> None:
    """The resolver of this test finds what is there, or one newer version; then Python fails."""
    pins = ["constraints.txt", "infra/image/requirements.txt", "infra/image/requirements-cuda.txt"]
    (tmp_path / "infra/image").mkdir(parents=True)
    for name in (*pins, "infra/bump.sh", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    before = {name: (tmp_path / name).read_bytes() for name in pins}
    resolver = tmp_path / "uv"
    change = "s/^numpy==.*/numpy==99.0/" if newer else ""
    resolver.write_text(
        '#!/bin/sh\nwhile [ "$1" != --output-file ]; do shift; done\n'
        f"sed -e '/^#/d' -e '{change}' constraints.txt > \"$2\"\n"
    )
    resolver.chmod(0o755)
    done = subprocess.run(
        ["sh", tmp_path / "infra/bump.sh"], env={**os.environ, "UV": str(resolver),
        "PYTHON": "false"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if newer:
        assert done.returncode == 1
        assert "+numpy==99.0" in done.stdout
        assert "constraints.txt is as it was" in done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert "newest versions already" in done.stdout
    assert {name: (tmp_path / name).read_bytes() for name in pins} == before

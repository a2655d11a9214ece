"""The commit is in `disagg --version` and in what a run records."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pipeline.cli.main import main
from pipeline.core import revision as module
from pipeline.core.code import run_versions
from pipeline.core.revision import full_version, revision

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISAGG_REVISION", raising=False)
    revision.cache_clear()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout")
def test_a_checkout_tells_its_commit(capsys: pytest.CaptureFixture[str]) -> None:
    head = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert main(["--version"]) == 0
    found = re.fullmatch(r"disagg [\d.]+\+g([0-9a-f]{7,})(\.dirty)?\n", capsys.readouterr().out)
    assert found
    assert head.startswith(found[1])
    assert run_versions()["disagg"] == full_version()


def test_an_image_and_a_wheel_tell_it_and_nonsense_is_no_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as wheel:
        wheel.setattr(module.importlib.metadata, "version", lambda _: "0.1.0+gabc1234")
        assert full_version() == "0.1.0+gabc1234"
    for given, told in (("abc1234", "abc1234"), ("; rm -rf", None), ("x" * 65, None)):
        revision.cache_clear()
        monkeypatch.setenv("DISAGG_REVISION", given)
        assert revision() == told
        assert full_version().endswith("+gabc1234") == (told is not None)


def test_without_git_there_is_the_number_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_ROOT", tmp_path)
    assert re.fullmatch(r"[\d.]+", full_version())
    (tmp_path / ".git").write_text("no repository")
    revision.cache_clear()
    assert re.fullmatch(r"[\d.]+", full_version())

"""Code of users: imported where DISAGG_PLUGINS names it, and part of what makes a stage stale."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from geo.core.errors import InputError
from models.likelihoods.registry import LIKELIHOODS, unregister
from pipeline.config.reader import load_config
from pipeline.core.plugins import VARIABLE, load_plugins
from pipeline.run.record import stage_inputs
from pipeline.run.stages import STAGES

PLUGIN = """
from models.likelihoods.poisson import Poisson
from models.likelihoods.registry import register

class Plain(Poisson):
    name = "plain"

register(Plain())
FACTOR = 1
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a module that registers a likelihood; forget it afterwards."""
    path = tmp_path / "a_plugin_of_a_user.py"
    path.write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(VARIABLE, f" {path.stem} ,")
    yield path
    unregister("plain")
    sys.modules.pop(path.stem, None)
    importlib.invalidate_caches()


def test_a_configuration_may_name_what_a_plugin_registers(files: Any, plugin: Path) -> None:
    import yaml

    path = files.directory / "run.yaml"
    path.write_text(yaml.safe_dump({**files.mapping(), "model": {"likelihood": "plain"}}))
    config = load_config(path)
    assert config.model.likelihood == "plain"
    assert "plain" in LIKELIHOODS


def test_a_change_of_a_plugin_makes_the_stages_stale_that_use_it(files: Any, plugin: Path) -> None:
    without = stage_inputs(STAGES["fit"], files.config())["code.plugins"]
    assert without == "none"
    load_plugins()
    before = stage_inputs(STAGES["fit"], files.config())
    assert before["code.plugins"] not in ("none", without)
    plugin.write_text(PLUGIN.replace("FACTOR = 1", "FACTOR = 2"))
    after = stage_inputs(STAGES["fit"], files.config())
    assert {key for key in after if after[key] != before[key]} == {"code.plugins"}
    assert stage_inputs(STAGES["ingest"], files.config())["code.plugins"] == "none"


def test_a_plugin_that_cannot_be_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "there_is_no_such_module")
    with pytest.raises(InputError, match=r"PLUGINS: cannot import 'there_is_no_such_module'"):
        load_config(tmp_path / "any.yaml")

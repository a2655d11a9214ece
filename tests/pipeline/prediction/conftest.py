"""The little country's maps and tables, made once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.context import StageContext
from pipeline.prediction.stage import predict_stage


@pytest.fixture(scope="session")
def predicted(world: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Run the stage on a copy of the world; tests must leave its files as they are."""
    out = tmp_path_factory.mktemp("predicted") / "out"
    shutil.copytree(world.directory / "out", out)
    (out / "exceedance_7.tif").write_bytes(b"of an older configuration")
    (out / "rate_mean.tif.aux.xml").write_text("statistics of an older map")
    return out, predict_stage(StageContext(world.with_config(output={"dir": str(out)})))

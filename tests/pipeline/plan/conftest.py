"""A simulated country, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.demo.country import simulate_country


@pytest.fixture(scope="session")
def country(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rasters of other CRSs and resolutions, areas of many corners: the configuration."""
    return simulate_country(tmp_path_factory.mktemp("country"), "small")

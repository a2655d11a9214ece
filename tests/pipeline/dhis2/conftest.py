"""A fake server, and configurations that pull from it and push to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from pipeline.config.dhis2_schema import PASSWORD, TOKEN, USER
from tests.pipeline.dhis2 import fake_server as fake
from tests.servers import running

PULL = {"level": 2, "data": [fake.CASES], "periods": ["202401..202402"]}


@pytest.fixture
def dhis2(monkeypatch: pytest.MonkeyPatch) -> fake.Dhis2:
    """What the server knows; its login is in the environment, and nobody waits."""
    known = fake.Dhis2()
    waiting = SimpleNamespace(sleep=known.waits.append)
    monkeypatch.setattr("pipeline.dhis2.server.time", waiting)
    monkeypatch.setattr("pipeline.dhis2.server.PAGE_SIZE", 4)
    monkeypatch.delenv(USER, raising=False)
    monkeypatch.delenv(PASSWORD, raising=False)
    monkeypatch.setenv(TOKEN, fake.TOKEN)
    return known


@pytest.fixture
def url(dhis2: fake.Dhis2) -> Iterator[str]:
    """Address of the server."""
    with running(fake.serve(dhis2)) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def write(tmp_path: Path, url: str) -> Callable[..., Path]:
    """Write a configuration with some of its sections changed."""

    def written(**sections: Any) -> Path:
        mapping = {
            "name": "malaria",
            "areas": {"path": "areas.geojson", "id": "uid", "name": "name"},
            "counts": {"path": "cases.csv", "id": "uid", "value": "cases", "period": "month"},
            "population": {"path": "people.tif"},
            "time": {"step": "month"},
            "output": {"dir": "out"},
            "storage": {"retries": 3, "timeout": 5},
            "dhis2": {"url": url, "pull": PULL},
        } | sections
        path = tmp_path / "malaria.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in mapping.items() if v is not None}))
        return path

    return written

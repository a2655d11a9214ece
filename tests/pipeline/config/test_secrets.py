"""A secret that is written out in a configuration is refused, and not repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from geo.core.errors import InputError
from pipeline.config.reader import load_config

SECRET = "planted-4711"
HOOK = f"https://hooks.example.org/services/{SECRET}"


@pytest.mark.parametrize(
    "notify",
    [
        {"webhook": HOOK},
        {"webhook": f"https://hooks.example.org/?key={SECRET}"},
        {"email": {"to": ["a@b.org"], "sender": "c@b.org", "user": "u", "password": SECRET}},
    ],
)
def test_a_secret_in_the_file_is_refused(files: Any, notify: dict[str, Any]) -> None:
    with pytest.raises(InputError) as found:
        load_config(files.written(notify=notify))
    (problem,) = found.value.problems
    assert "written out in a file" in problem.found
    assert "${DISAGG_" in problem.remedy
    assert problem.place.startswith("map.yaml line ")
    assert "4711" not in str(problem)


def test_a_reference_and_what_is_none_are_taken(
    files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", HOOK)
    config = load_config(files.written(notify={"webhook": "${HOOK}"}))
    assert config.notify.webhook is not None
    assert config.notify.webhook.get_secret_value() == HOOK
    assert "4711" not in repr(config)
    for webhook in ("http://127.0.0.1:9000/token", "http://alerts.internal/"):
        assert load_config(files.written(notify={"webhook": webhook})).notify.webhook is not None


def test_a_password_in_an_address_is_refused(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def configured(address: str) -> Path:
        path: Path = files.directory / "map.yaml"
        wave = {"wave": {"path": address}}
        given = files.mapping()
        path.write_text(yaml.safe_dump(given | {"covariates": given["covariates"] | wave}))
        return path

    with pytest.raises(InputError) as found:
        load_config(configured("https://me:planted-4711@maps.example.org/wave.tif"))
    (problem,) = found.value.problems
    assert problem.place.startswith("map.yaml line ")
    assert problem.place.endswith(": covariates.wave.path")
    assert "written out in a file" in problem.found
    assert "4711" not in str(problem)
    monkeypatch.setenv("DISAGG_LOGIN", "me:planted-4711")
    config = load_config(configured("https://${DISAGG_LOGIN}@maps.example.org/wave.tif"))
    assert (
        str(config.covariates["wave"].path) == "https://me:planted-4711@maps.example.org/wave.tif"
    )

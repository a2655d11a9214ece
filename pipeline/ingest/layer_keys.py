"""The layers of a configuration by name, and their keys among the inputs of a run."""

from __future__ import annotations

from typing import Any

from pipeline.config.covariate_schema import KINDS
from pipeline.config.schema import Config


def head_of(name: str) -> str:
    """Return the key of a layer's section."""
    return name if name == "population" else f"covariates.{name}"


def layers_of(config: Config) -> dict[str, Any]:
    """Return the sections of the covariates, and that of the population, by name."""
    people = {} if config.population is None else {"population": config.population}
    return {**config.covariates, **people}


def described_of(section: Any) -> dict[str, Any]:
    """Return what a section says of its file: all but the path, and what kind of file it is."""
    found: dict[str, Any] = section.model_dump(mode="json", exclude={*KINDS, "stac"})
    return {**found, "kind": getattr(section, "kind", "path")}

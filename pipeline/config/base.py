"""Base class of the configuration's sections."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A mapping of the configuration: immutable, without unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        coerce_numbers_to_str=True,  # a column named 2020 is a number to YAML
        validate_default=True,
    )


def config_error(*, remedy: str, found: str = "") -> PydanticCustomError:
    """Return a validation error with a remedy, and optionally a finding, for the user."""
    return PydanticCustomError("disagg", "{found}; {remedy}", {"found": found, "remedy": remedy})

"""What every section of the configuration is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """Any mapping of the configuration: frozen, and no key that it does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        coerce_numbers_to_str=True,  # a column named 2020 is a number to YAML
        validate_default=True,
    )


def config_error(*, remedy: str, found: str = "") -> PydanticCustomError:
    """Build an error whose remedy (and, if it says more than the value, finding) is ours."""
    return PydanticCustomError("disagg", "{found}; {remedy}", {"found": found, "remedy": remedy})

"""What every section of the configuration is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Any mapping of the configuration: frozen, and no key that it does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        coerce_numbers_to_str=True,  # a column named 2020 is a number to YAML
        validate_default=True,
    )

"""Base class of the configuration's sections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def config_errors(wrong: Sequence[tuple[str, str, str]]) -> PydanticCustomError:
    """Return one validation error for several (key, finding, remedy); a key may be empty."""
    text = "; ".join(f"{key}: {found}; {remedy}" for key, found, remedy in wrong)
    return PydanticCustomError("disagg_many", "{text}", {"text": text, "each": list(wrong)})


def or_one(schema: dict[str, Any]) -> None:
    """Let the JSON Schema of a list have one value for a list of one, as our validators do."""
    lists = schema.get("anyOf") or [{name: schema.pop(name) for name in ("type", "items")}]
    schema["anyOf"] = [*lists, lists[0]["items"]]

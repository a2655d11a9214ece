"""The reference of the configuration, from its schema: a page, a JSON Schema, a key in words.

    python -m pipeline.config.reference docs

writes ``configuration.md`` and ``disagg.schema.json`` into a folder. Everything is said where a key
is defined: its type and range by its annotation, and in its ``Field`` the meaning, the unit
(``json_schema_extra={"unit": ...}``) and an example, where neither a default nor a choice is one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.schema import Config
from pipeline.config.suggestions import suggest_value

PAGE, SCHEMA = "configuration.md", "disagg.schema.json"
# Bounds behind a validator of ours keep pydantic's names.
_BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
_RANGES = {
    "exclusiveMinimum": "above {:,.6g}",
    "minimum": "at least {:,.6g}",
    "exclusiveMaximum": "below {:,.6g}",
    "maximum": "at most {:,.6g}",
}
_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "keys and values",
}
_HEAD = """# The configuration, key by key

Made from the schema by `make reference`; `disagg config KEY` prints the same of one key or section.
A key in **bold** is required in its section. Where there is no default, the meaning says what is.
Paths are relative to the file; `${NAME}` is a variable of the environment.

Editors complete and check keys by [disagg.schema.json](disagg.schema.json), which `disagg config
--schema` prints: with the YAML language server, by a first line such as

```
# yaml-language-server: $schema=disagg.schema.json
```
"""


@dataclass(frozen=True)
class Key:
    """What is to be known of a key: ``path`` as ``fit.seed`` or ``covariates.NAME.band``."""

    path: str
    type: str
    default: str
    unit: str
    range: str
    meaning: str
    example: Any
    required: bool
    is_section: bool


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a configuration, with an example of every key."""
    found: dict[str, Any] = _tidied(Config.model_json_schema())
    found["required"].remove("grid")  # by default that of the population
    for section in (found, *found["$defs"].values()):
        for key in section["properties"].values():
            key["examples"] = [_example(key, found["$defs"]), *key.get("examples", [])[1:]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **found,
        "title": "Configuration of disagg",
    }


def _tidied(value: Any) -> Any:
    if isinstance(value, list):
        return [_tidied(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {
        _BOUNDS.get(key, key): _tidied(each)
        for key, each in value.items()
        if not (key == "title" and isinstance(each, str))
    }
    if value.get("type") == "string" and not value.keys() & {"enum", "const", "pattern", "format"}:
        found["type"] = ["string", "number"]  # a column named 2020 is a number to YAML
    return found


def _members(key: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what a key may be, without null."""
    members: list[Any] = key.get("anyOf", [key])
    return [each for each in members if each.get("type") != "null"]


def _sections(key: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return each section that a key holds: what follows the key in a path, and its name."""
    found = []
    for each in _members(key):
        for at, inner in (
            ("", each),
            ("[]", each.get("items", {})),
            (".NAME", each.get("additionalProperties", {})),
        ):
            if isinstance(inner, dict) and "$ref" in inner:
                found.append((at, inner["$ref"].rpartition("/")[2]))
    return found


def _example(key: Mapping[str, Any], sections: Mapping[str, Any]) -> Any:
    """Return the example of a key: one that is given, another choice, the default, a section's."""
    if "examples" in key:
        return key["examples"][0]
    first = _members(key)[0]
    if first.get("type") == "boolean":
        return not key.get("default")
    choices = [each for each in first.get("enum", ()) if each != key.get("default")]
    if choices:
        return choices[0]
    if key.get("default") not in (None, []):
        return key["default"]
    ((at, name), *_) = _sections(key)
    inner = sections[name]["properties"]
    names = sections[name].get("required") or [next(iter(inner))]
    found = {each: _example(inner[each], sections) for each in names}
    return [found] if at else found


def keys() -> Iterator[Key]:
    """Yield every key of a configuration, sections before their own keys."""
    whole = schema()
    yield from _keys("", whole, whole["$defs"])


def _keys(above: str, section: Mapping[str, Any], sections: Mapping[str, Any]) -> Iterator[Key]:
    for name, key in section["properties"].items():
        path = f"{above}.{name}" if above else name
        inner = _sections(key)
        about = key.get("description") or _about(sections[inner[0][1]])
        default = key.get("default")
        yield Key(
            path,
            _type(key),
            "" if default is None else _yaml(default),
            key.get("unit", ""),
            ", ".join(text.format(each[bound]) for each in (key, *key.get("anyOf", ()))
                      for bound, text in _RANGES.items() if bound in each),
            about,
            key["examples"][0],
            name in section.get("required", ()),
            bool(inner),
        )  # fmt: skip
        for at, of in inner:
            yield from _keys(path + at, sections[of], sections)


def _about(section: Mapping[str, Any]) -> str:
    first: str = section["description"].partition("\n\n")[0]
    return " ".join(first.partition(": ")[2].rstrip(".").split())


def _type(key: Mapping[str, Any]) -> str:
    return " or ".join(dict.fromkeys(_type_of(each) for each in _members(key)))


def _type_of(key: Mapping[str, Any]) -> str:
    choices = key.get("enum") or ([key["const"]] if "const" in key else [])
    if choices:
        return ", ".join(f"`{each}`" for each in choices).replace("\t", "\\t")
    if "$ref" in key:
        return "section"
    kind = key.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "array" and "prefixItems" in key:
        return f"[{', '.join(_type_of(each) for each in key['prefixItems'])}]"
    if kind == "array":
        return f"list of {_type(key['items'])}"
    return _TYPES.get(str(kind), "anything")


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def page() -> str:
    """Return the page of all keys, in Markdown."""
    tables: dict[str, list[str]] = {}
    for key in keys():
        top = key.path.partition(".")[0]
        own = key.is_section or top != key.path
        name = f"**`{key.path}`**" if key.required else f"`{key.path}`"
        kind = ", ".join(text for text in (key.type, key.range, key.unit) if text)
        kind = kind.replace("`|`", "<code>&#124;</code>")  # a bar ends a cell
        default = f"`{key.default}`" if key.default else ""
        cells = (name, kind, default, key.meaning, f"`{_yaml(key.example)}`")
        tables.setdefault(top if own else "The map", []).append(f"| {' | '.join(cells)} |")
    head = "| key | type | default | meaning | example |\n|---|---|---|---|---|\n"
    parts = (f"\n## {top}\n\n{head}" + "\n".join(rows) for top, rows in tables.items())
    return _HEAD + "\n".join(parts) + "\n"


def describe(path: str = "") -> str:
    """Describe a key, the keys of a section, or the sections, for a terminal.

    Raises
    ------
    LookupError
        If there is no such key; the message has the nearest one.
    """
    found = {key.path: key for key in keys()}
    if not path:
        shown = [key for key in found.values() if "." not in key.path]
        return "\n".join(f"{key.path:<12} {key.meaning}" for key in shown)
    if path not in found:
        last = path.rpartition(".")[2]
        near = [each for each in found if each.rpartition(".")[2] == last]
        raise LookupError(suggest_value(path, near or list(found)).partition(" (choose")[0])
    key = found[path]
    facts = {
        "type": key.type.replace("`", ""),
        "range": key.range,
        "unit": key.unit,
        "default": "required" if key.required else key.default,
        "example": f"{path.rpartition('.')[2]}: {_yaml(key.example)}",
    }
    lines = [f"{path}: {key.meaning}"]
    lines += [f"  {name:<8} {text}" for name, text in facts.items() if text]
    inner = [each for each in found.values() if each.path.startswith((f"{path}.", f"{path}[]"))]
    return "\n".join(lines + [f"  {each.path:<28} {each.meaning}" for each in inner])


def write(folder: Path) -> None:
    """Write the page and the JSON Schema."""
    (folder / PAGE).write_text(page(), encoding="utf-8")
    (folder / SCHEMA).write_text(json.dumps(schema(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))

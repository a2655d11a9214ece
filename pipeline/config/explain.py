"""Turn validation errors into problems: key and line, finding, remedy."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from typing import Any

from geo.core.errors import Problem
from pipeline.config.base import Section
from pipeline.config.covariate_schema import Covariate
from pipeline.config.document import Document, Key, dotted
from pipeline.config.schema import Config
from pipeline.config.suggestions import near, suggest_value

_MEMBERS = {"FoldsFile", "constrained-int"}
_TYPES = ("literal[", "function-")  # members of unions without a name of their own


def in_data(data: Any, loc: tuple[int | str, ...]) -> Key:
    """Reduce an error's location to keys of the data: pydantic adds members of unions."""
    key: list[int | str] = []
    for part in loc:
        inside = isinstance(data, list) and isinstance(part, int)
        if inside or (isinstance(data, dict) and part in data):
            data = data[part]
        elif part is not loc[-1] or part in _MEMBERS or str(part).startswith(_TYPES):
            continue
        key.append(part)
    return tuple(key)


def remove_key(data: Any, key: Key) -> None:
    """Remove a key from nested data."""
    for part in key[:-1]:
        data = data[part]
    data.pop(key[-1], None)


def _section(key: Key) -> type[Section] | None:
    """Return the section class of a key."""
    if len(key) == 2 and key[0] == "covariates":
        return Covariate
    model: type[Section] = Config
    for part in key:
        if isinstance(part, int):  # an item of a list of sections
            continue
        field = model.model_fields.get(str(part))
        members = [] if field is None else list(_members(field.annotation))
        sections = [m for m in members if isinstance(m, type) and issubclass(m, Section)]
        if not sections:
            return None
        model = sections[0]
    return model


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the types in an annotation."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated or origin is tuple:
        yield from _members(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def explain_errors(detail: Any, data: Any, unknown: list[Key], document: Document) -> list[Problem]:
    """Turn an error of pydantic into problems; none if other errors cover it."""
    if detail["type"] != "disagg_many":
        problem = explain_error(detail, data, unknown, document)
        return [] if problem is None else [problem]
    key = in_data(data, detail["loc"])
    return [
        Problem(document.place((*key, *name.split(".")) if name else key), found, remedy)
        for name, found, remedy in detail["ctx"]["each"]
    ]


def explain_error(detail: Any, data: Any, unknown: list[Key], document: Document) -> Problem | None:
    """Turn an error of pydantic into a problem; None if another error covers it."""
    key = in_data(data, detail["loc"])
    kind, value = detail["type"], detail["input"]
    if detail["loc"][-1:] == ("constrained-int",) and isinstance(value, dict):
        return None  # the other half of a union reports the mapping's errors
    if kind == "too_short" and value:
        return None  # the items have their own errors
    parent, last = key[:-1], str(key[-1]) if key else ""
    place = document.place(key)
    model = _section(parent)
    fields = model.model_fields if model is not None else {}
    if kind == "extra_forbidden":
        return Problem(place, "unknown key", _suggest_key(last, parent, list(fields)))
    if kind == "missing":
        misspelt = [
            k for k in unknown if k[:-1] == parent and last in near(str(k[-1]), list(fields))
        ]
        if misspelt:  # reported as an unknown key
            return None
        what = fields[last].description if last in fields else ""
        if last == "grid":
            what = "{like: raster.tif}, or {crs: ..., resolution: ...}, or give a population"
        return Problem(place, "missing", f"add '{last}: ...'" + (f" ({what})" if what else ""))
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", detail["ctx"]["expected"])
        return Problem(place, f"{value!r} is not a choice", suggest_value(value, choices))
    if kind == "disagg":
        return Problem(place, detail["ctx"]["found"] or _shown(value), detail["ctx"]["remedy"])
    found = _shown(value)
    if kind.startswith(("tuple", "list")) and isinstance(value, dict):
        found = "a mapping instead of a list"
    return Problem(place, found, _remedy(kind, detail, last, fields))


def _shown(value: Any) -> str:
    if value is None:
        return "no value"
    if isinstance(value, dict):
        return "a mapping instead of one value"
    return "a list" if isinstance(value, list) else repr(value)


def _remedy(kind: str, detail: Any, last: str, fields: dict[str, Any]) -> str:
    """Describe a valid value, from the bound or type in pydantic's error."""
    ctx = detail.get("ctx", {})
    bounds = {
        "greater_than": lambda: f"give a number above {ctx['gt']:g}",
        "greater_than_equal": lambda: f"give a number of at least {ctx['ge']:g}",
        "less_than": lambda: f"give a number below {ctx['lt']:g}",
        "less_than_equal": lambda: f"give a number of at most {_short(ctx['le'])}",
        "too_short": lambda: f"give at least {ctx['min_length']}",
    }
    if kind in bounds:
        return bounds[kind]()
    if kind.startswith(("int", "whole")):
        return "give a whole number"
    if kind.startswith(("float", "finite", "number")):
        return "give a number"
    if kind.startswith("bool"):
        return "give true or false"
    if kind.startswith(("string", "path")):
        return "give text, in quotes if it looks like something else"
    if kind.startswith(("model_type", "dict_type", "model_attributes")):
        return "give keys and values, such as {path: ...}"
    if kind.startswith(("tuple", "list")):
        return f"give a list, such as {_example(fields.get(last))}"
    what = fields[last].description if last in fields else ""
    return f"give the {what}" if what else "correct it"


def _example(field: Any) -> str:
    """Return a list as a field takes it."""
    item = None if field is None else next(_members(field.annotation), None)
    if isinstance(item, type) and issubclass(item, Section):
        given = ", ".join(
            f"{name}: ..." for name, each in item.model_fields.items() if each.is_required()
        )
        return f"[{{{given}}}]"
    if typing.get_origin(item) is typing.Literal:
        return f"[{', '.join(map(str, typing.get_args(item)))}]"
    if item is str:
        first = field.default[0] if isinstance(field.default, tuple) and field.default else "..."
        return f"[{first}]"
    return "[50, 100]"


def _suggest_key(word: str, parent: Key, words: list[str]) -> str:
    found = near(word, words)
    if found:
        return f"did you mean {dotted((*parent, found[0]))}?"
    if not words:
        return "remove it"
    # The key may belong to another section.
    for section in Config.model_fields:
        model = _section((section,))
        if model is not None and word in model.model_fields and (section,) != parent:
            return f"did you mean {section}.{word}?"
    return f"remove it; {dotted(parent) or 'a configuration'} has {', '.join(words)}"


def _short(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"

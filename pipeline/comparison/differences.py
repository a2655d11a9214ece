"""What differed between two runs: data, configuration and code, from their ``run.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Sections that change no number of a map.
_NO_MATTER = ("compute", "publish", "update", "notify", "metrics", "storage", "gates", "check")
_PLACES = ("path", "like", "dir", "url")  # the content of files has fingerprints


def what_differed(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Compare two ``run.json``.

    Returns
    -------
    dict
        ``data``: keys of the files whose content differs; ``configuration``: key to the two values;
        ``code``: ``disagg`` if the code differs, and the libraries of other versions with both.
    """
    files = [each.get("fingerprints") or {} for each in (a, b)]
    configs = [_flat(each.get("config") or {}) for each in (a, b)]
    versions = [dict(each.get("versions") or {}) for each in (a, b)]
    code: dict[str, Any] = {}
    if (a.get("code") or {}) != (b.get("code") or {}):
        code["disagg"] = [each.get("disagg", "?") for each in versions]
    for each in versions:
        each.pop("platform", None)
    code |= {name: found for name, found in _differing(*versions).items() if name != "disagg"}
    return {
        "data": sorted(_differing(*files)),
        "configuration": _differing(*configs),
        "code": code,
    }


MOST_NAMED = 6  # in the line of what differed


def in_words(differed: Mapping[str, Any]) -> str:
    """Say in one line what differed."""
    config = [f"{key} ({a} -> {b})" for key, (a, b) in differed["configuration"].items()]
    code = [
        "the code of disagg" if name == "disagg" else f"{name} {a} -> {b}"
        for name, (a, b) in differed["code"].items()
    ]
    data = [f"the content of {key}" for key in differed["data"]]
    every = [*data, *config, *code]
    if not every:
        return "nothing: the same data, configuration and code"
    more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
    return ", ".join(every[:MOST_NAMED]) + more


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    names = [*a, *(name for name in b if name not in a)]
    return {name: [a.get(name), b.get(name)] for name in names if a.get(name) != b.get(name)}


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    """Return the values of nested sections by dotted key, without those that change no map."""
    if not isinstance(value, dict):
        return {key: value}
    found: dict[str, Any] = {}
    for name, item in value.items():
        if (not key and name in _NO_MATTER) or (name in _PLACES and not isinstance(item, dict)):
            continue
        found |= _flat(item, f"{key}.{name}" if key else name)
    return found

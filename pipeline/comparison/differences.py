"""What differed between two runs: data, configuration and code, from their ``run.json``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Sections that change no number of a map.
_NO_MATTER = ("compute", "publish", "update", "notify", "metrics", "storage", "gates", "check")
_PLACES = ("path", "like", "dir", "url")  # the content of files has fingerprints
_OF_PERIOD = re.compile(r"(.+?)\.(\d[^.]*)\.((?:later\.)?path)")  # covariates.rain.2023-07.path


def what_differed(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Compare two ``run.json``.

    Returns
    -------
    dict
        ``data``: keys of the files whose content differs, ``new`` and ``gone``: those of B and of A
        alone; ``configuration``: key to the two values;
        ``code``: ``disagg`` if the code differs, and the libraries of other versions with both.
    """
    files = _by_period(a, b)
    configs = [_flat(each.get("config") or {}) for each in (a, b)]
    versions = [dict(each.get("versions") or {}) for each in (a, b)]
    code: dict[str, Any] = {}
    if (a.get("code") or {}) != (b.get("code") or {}):
        code["disagg"] = [each.get("disagg", "?") for each in versions]
    for each in versions:
        each.pop("platform", None)
    code |= {name: found for name, found in _differing(*versions).items() if name != "disagg"}
    return {
        "data": sorted(name for name in _differing(*files) if all(name in each for each in files)),
        "new": sorted(files[1].keys() - files[0]),
        "gone": sorted(files[0].keys() - files[1]),
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
    files = [f"{word} {key}" for word in ("new", "gone") for key in differed.get(word, ())]
    every = [*data, *files, *config, *code]
    if not every:
        return "nothing: the same data, configuration and code"
    more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
    return ", ".join(every[:MOST_NAMED]) + more


def _by_period(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the fingerprints of both runs, by keys with the period where files have one.

    A run names the files of its own period without it: ``covariates.rain.path`` is another month in
    each run of a series.
    """
    files: list[dict[str, str]] = [dict(each.get("fingerprints") or {}) for each in (a, b)]
    found = [_OF_PERIOD.fullmatch(key) for each in files for key in each]
    moving = {f"{own[1]}.{own[3]}": (own[1], own[3]) for own in found if own is not None}
    named = list[dict[str, str]]()
    for run, own in zip((a, b), files, strict=True):
        period = (run.get("config") or {}).get("period")
        whole = {key: f"{head}.{period}.{place}" for key, (head, place) in moving.items() if period}
        named.append({whole.get(key, key): value for key, value in own.items()})
    return named


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

"""Relative paths of a configuration that lies on an object store itself.

Inputs, ``output.dir`` and ``publish.dir`` are relative to the configuration's prefix, as those of a
local file are to its directory. What must be on a disk (``storage.scratch``, certificates) has no
such place there and is given as an absolute path.
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

from geo.core.errors import Problem
from pipeline.config.covariate_schema import INPUT_KEYS
from pipeline.storage.location import Location, is_remote

_SECTIONS = ("areas", "counts", "labels", "population", "covariates", "grid", "evaluate", "truth")
_ON_DISK = (
    ("storage", "scratch"),
    ("metrics", "textfile"),
    ("compute", "tls", "ca"),
    ("compute", "tls", "cert"),
    ("compute", "tls", "key"),
)


def anchored(
    data: dict[str, Any], prefix: Location, name: str, problems: list[Problem]
) -> dict[str, Any]:
    """Return a configuration's data with addresses in place of relative paths.

    Parameters
    ----------
    data : dict
        The YAML's keys and values.
    prefix : Location
        Where the configuration lies.
    name : str
        The configuration's name, for problems.
    problems : list of Problem
        Relative paths that must be on a disk are appended.
    """
    found = {
        key: _inputs(value, prefix) if key in _SECTIONS else value for key, value in data.items()
    }
    output = data.get("output") or {}
    if isinstance(output, dict):
        output = {**output, "dir": _at(output.get("dir", "out"), prefix)}
        if "areas" in output:
            output["areas"] = _inputs(output["areas"], prefix)
    found["output"] = output
    publish = data.get("publish")
    if isinstance(publish, dict) and "dir" in publish:
        found["publish"] = {**publish, "dir": _at(publish["dir"], prefix)}
    for key in _ON_DISK:
        value: Any = data
        for part in key:
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, str) and _is_relative(value):
            text = f"{value}, relative to a configuration on an object store"
            remedy = "give the absolute path of a local file or directory"
            problems.append(Problem(f"{name}: {'.'.join(key)}", text, remedy))
    return found


def _inputs(value: Any, prefix: Location) -> Any:
    if isinstance(value, list):
        return [_inputs(each, prefix) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _at(each, prefix) if key in INPUT_KEYS else _inputs(each, prefix)
        for key, each in value.items()
    }


def _at(value: Any, prefix: Location) -> Any:
    if not isinstance(value, str) or not value or not _is_relative(value):
        return value
    scheme, _, key = prefix.url.partition("://")
    bucket, _, folder = key.partition("/")
    return f"{scheme}://{bucket}{posixpath.normpath(posixpath.join('/', folder, value))}"


def _is_relative(value: str) -> bool:
    return not (is_remote(value) or Path(value).expanduser().is_absolute() or value.startswith("$"))

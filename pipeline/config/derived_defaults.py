"""Defaults of a section that follow from other sections of the configuration."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from pipeline.responses.registry import words


def directory_of_its_name(data: dict[str, Any], base: Path) -> Any:
    """Return ``output`` with a directory of the map's name, if unset: one map, one directory."""
    output, name = data["output"], data.get("name")
    if not isinstance(output, dict) or "dir" in output or not isinstance(name, str):
        return output
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    # Maps of before, which lie in `out` itself, stay there.
    if not slug or (isinstance(base, Path) and (base / "out" / "run.json").is_file()):
        return output
    return {**output, "dir": f"out/{slug}"}


def cluster_named(data: dict[str, Any], base: Path) -> Any:
    """Return ``compute`` with a Kubernetes cluster of the map's own name, if unset.

    Two maps at once would otherwise share a cluster, and the first to end would delete it.
    """
    compute, output = data.get("compute"), data["output"]
    if not isinstance(compute, dict):
        return compute
    wanted = compute.get("kubernetes")
    if not isinstance(wanted, dict) or wanted.get("name") is not None:
        return compute
    name = re.sub("[^a-z0-9]+", "-", str(data.get("name") or "map").lower()).strip("-")[:20]
    given = output if isinstance(output, dict) else {}
    place = given.get("url") or (base / str(given.get("dir", "out"))).resolve()
    digest = hashlib.sha256(f"{data.get('name')} {place}".encode()).hexdigest()[:8]
    named = "-".join(part for part in ("disagg", name.strip("-"), digest) if part)
    return {**compute, "kubernetes": {**wanted, "name": named}}


def rate_per_one(data: dict[str, Any]) -> Any:
    """Return ``output`` with a rate_per of 1 for values of a weight, or averages, if unset."""
    output, counts = data["output"], data.get("counts")
    if not isinstance(output, dict) or not isinstance(counts, dict):
        return output
    asked = words().get(str(counts.get("of")))
    if counts.get("weight") is None and (asked is None or asked.adds_up):
        return output
    return {"rate_per": 1, **output}


SPACE_TIME = "space_time"


def model_of_time(data: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration's values with the model of several periods, where it has ``time``."""
    model = data.get("model", {})
    if data.get("time") is None or not isinstance(model, dict):
        return data
    if model.get("kind", "vbagg") != "vbagg":
        return data
    return {**data, "model": {**model, "kind": SPACE_TIME}}

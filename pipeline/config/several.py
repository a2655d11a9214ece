"""Covariates that are several: one of each class of a raster, and both parts of an aspect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from geo.core.errors import InputError, Problem
from geo.sources.class_names import class_names
from geo.sources.mosaic import files_of, is_pattern
from pipeline.config.document import nearest_file
from pipeline.config.series import moves
from pipeline.config.suggestions import suggest_value
from pipeline.storage.location import is_remote

MOST_CLASSES = 20  # of a raster: each is a covariate
COMPONENTS = ("northness", "eastness")


def several_of(
    name: str, section: Any, base: Path, problems: list[Problem], place: str
) -> dict[str, Any]:
    """Return a covariate's sections by name, in a configuration that is not yet validated.

    What a run has recorded, a section of one class or component, keeps its name.

    Parameters
    ----------
    name : str
    section : Any
        What is wrong with its shape is left to the validation.
    base : Path
        Base directory of relative paths.
    problems : list of Problem
        Errors are appended.
    place : str
        Of the section, for problems.
    """
    if not isinstance(section, Mapping):
        return {name: section}
    if section.get("aspect") is not None:
        given = section.get("component")
        each = {part: {"component": part} for part in ([given] if given else COMPONENTS)}
    elif section.get("classes") is not None:
        try:
            classes = _classes(section, base)
        except InputError as error:
            problems.extend(
                Problem(f"{place}.classes", f"{each.place} {each.found}".strip(), each.remedy)
                for each in error.problems
            )
            return {}
        if len(classes) > MOST_CLASSES:
            found = f"{len(classes)} classes, each of which would be a covariate"
            remedy = f"give {MOST_CLASSES} at most: leave out rare ones, or join several: "
            remedy += "{forest: [1, 2]}"
            problems.append(Problem(f"{place}.classes", found, remedy))
            return {}
        each = {part: {"classes": {part: values}} for part, values in classes.items()}
    else:
        return {name: section}
    alone = len(each) == 1
    return {
        name if alone and name.endswith(f"_{part}") else f"{name}_{part}": {**section, **own}
        for part, own in each.items()
    }


def _classes(section: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return the values of each class that a section wants, by name; raise InputError."""
    given = section["classes"]
    if isinstance(given, Mapping):
        return {str(name): values for name, values in given.items()}
    wanted = given if isinstance(given, list | tuple) else [given]
    known = _named(section, base)
    by_name: dict[str, list[float]] = {}
    for value, name in known.items():
        by_name.setdefault(_slug(name), []).append(value)
    if given == "all":
        return by_name
    found: dict[str, list[float]] = {}
    for each in wanted:
        name = _slug(str(each))
        if isinstance(each, int):
            found[_slug(known.get(float(each), name))] = [float(each)]
        elif name in by_name:
            found[name] = by_name[name]
        else:
            remedy = suggest_value(name, sorted(by_name))
            raise InputError(Problem(str(section["path"]), f"has no class named {each!r}", remedy))
    return found


def _named(section: Mapping[str, Any], base: Path) -> dict[float, str]:
    stac = section.get("stac") is not None
    path, band = "stac" if stac else str(section.get("path")), section.get("band")
    write = "write them out: classes: {forest: [1, 2], urban: 13}"
    if stac or is_remote(path) or moves(path):
        raise InputError(Problem(path, "is no local file whose names of classes are read", write))
    file = (base / Path(path).expanduser()).resolve()
    if not file.exists() and not (is_pattern(str(file)) and files_of(str(file))):
        raise InputError(Problem("", f"no file {file}", nearest_file(file) or "correct the path"))
    known = class_names(str(file), band if isinstance(band, int) else 1)
    if not known:
        found = "has no table that names its classes (.aux.xml)"
        raise InputError(Problem(path, found, f"{write}; `disagg check` then lists those found"))
    return known


def _slug(name: str) -> str:
    """Return a name in small letters, and _ for what is no letter or digit."""
    return re.sub(r"\W+", "_", name.strip().lower()).strip("_")

"""What moves from period to period, in a configuration that is not yet validated.

A covariate of several classes or lags becomes one of each, and a cube, or a table with a column of
periods, has the run's period as its time. So :func:`pipeline.config.series.moves` tells what moves
by the marks of a period alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from geo.core.errors import Problem
from pipeline.config.series import MARKS, moves
from pipeline.config.several import several_of

PERIOD = MARKS[0]


def spread(
    data: Mapping[str, Any], problems: list[Problem], source: str, base: Path
) -> dict[str, Any]:
    """Return a configuration's values with a covariate of each class and lag.

    Cubes have the run's period.

    Parameters
    ----------
    data : mapping
        The YAML's keys and values.
    problems : list of Problem
        Errors are appended; what else is wrong is left to the validation.
    source : str
        The file's name, for problems.
    base : Path
        Base directory of relative paths.
    """
    found, covariates = dict(data), data.get("covariates")
    if isinstance(data.get("population"), Mapping):
        found["population"] = _of_period(data["population"])
    if not isinstance(covariates, Mapping):
        return found
    several, areas = isinstance(data.get("time"), Mapping), data.get("areas")
    each: dict[str, Any] = {}
    single: dict[str, Any] = {}
    for name, given in covariates.items():
        place = f"{source}: covariates.{name}"
        for own, section in several_of(str(name), given, base, problems, place).items():
            if own in single or (own != name and own in covariates):
                found_twice = f"{own!r} is a covariate already"
                problems.append(Problem(place, found_twice, "give one of them another name"))
            single[own] = section
    for name, given in single.items():
        section = _of_period(given)
        if isinstance(section, Mapping) and section.get("table") is not None:
            own_id = areas.get("id") if isinstance(areas, Mapping) else None
            section = {"id": own_id, "value": str(name), **section}
        given_here = section if isinstance(section, Mapping) else {}
        if "/" in str(given_here.get("time", "")) and given_here.get("window", 1) != 1:
            remedy = "give the days of the whole window, or a period such as 2024-03"
            where = f"{source}: covariates.{name}.window"
            problems.append(Problem(where, "given with first and last day", remedy))
        lags = _lags(section)
        place = f"{source}: covariates.{name}.lag"
        if lags is None or lags == [0]:
            each[name] = section
            continue
        if not several:
            remedy = "add `time: {step: month}`, or remove it"
            problems.append(Problem(place, "given without `time`", remedy))
        elif not moves(section) and not _misspelt(section, "aggregate"):
            remedy = f"give a path with {PERIOD}, or a cube with `aggregate`, or remove it"
            problems.append(Problem(place, "of a layer that stands still", remedy))
        for lag in lags:
            own = name if lag == 0 or str(name).endswith(f"_lag{lag}") else f"{name}_lag{lag}"
            if own in each or (own != name and own in single):
                found_twice = f"{own!r} is a covariate already"
                problems.append(Problem(place, found_twice, "give one of them another name"))
            each[own] = {**section, "lag": lag}
    return {**found, "covariates": each}


def _misspelt(section: Mapping[str, Any], key: str) -> bool:
    """Return whether a section has a key that looks like another: an unknown one, which is told."""
    return bool(difflib.get_close_matches(key, [str(own) for own in section if own != key], 1, 0.8))


def _of_period(section: Any) -> Any:
    """Return a section with the run's period as the time of a cube or table that has none."""
    if not isinstance(section, Mapping) or section.get("time") is not None:
        return section
    of_table = section.get("table") is not None and section.get("period") is not None
    return {**section, "time": PERIOD} if of_table or section.get("aggregate") else section


def _lags(section: Any) -> list[int] | None:
    """Return the lags of a section; None where it has none, or none that is valid."""
    given = section.get("lag") if isinstance(section, Mapping) else None
    lags: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    whole = all(isinstance(k, int) and not isinstance(k, bool) and k >= 0 for k in lags)
    return lags if whole and lags and len(set(lags)) == len(lags) else None

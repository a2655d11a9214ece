"""The files of all periods of a series, by their headers: ingest reads them one after another.

A series has hundreds of files, and ingest meets the one that is damaged after hours. Their headers
are read in seconds. Forecasts may lack a file; one that is there has to be readable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from geo.core.errors import Problem, name_first
from pipeline.config.schema import Config
from pipeline.ingest.inputs import open_layers
from pipeline.ingest.layer_keys import head_of, layers_of
from pipeline.storage.location import is_remote

N_NAMED = 12  # periods named in one message


def period_problems(config: Config) -> list[Problem]:
    """Return the problems of the files of other periods than the run's, and of forecasts.

    Files that are missing are reported with the configuration; addresses are left to ingest.

    Parameters
    ----------
    config : Config
        With the inputs on this machine.
    """
    found: dict[tuple[str, str, str], list[tuple[str, Problem]]] = {}
    for label, name in _others(config):
        own, problems = config.at(label), list[Problem]()
        covariates, people = open_layers(own, [name], problems)
        for layer in [*covariates.values(), *([people] if people is not None else [])]:
            layer.source.close()
        for each in problems:
            key = name, each.found.replace(layers_of(own)[name].path, ""), each.remedy
            found.setdefault(key, []).append((label, each))
    return [_of_periods(each) for each in found.values()]


def _others(config: Config) -> Iterator[tuple[str, str]]:
    """Yield (period, name) of each layer that moves, whose file is on this machine."""
    series = config.series
    if series is None:
        return
    for label in (*series.periods, *series.following(config.output.forecast)):
        for name in config.moving():
            section = layers_of(config.at(label))[name]
            # A file of several times need not reach to the forecasts.
            beyond = label not in series.periods and section.time is not None
            own = label != config.period and not _has_steps(section) and not beyond
            if own and not is_remote(section.path) and Path(section.path).exists():
                yield label, name


def _has_steps(section: Any) -> bool:
    """Return whether a layer is a cube or a table: ingest counts its steps or rows."""
    return getattr(section, "table", None) is not None or section.aggregate is not None


def _of_periods(each: list[tuple[str, Problem]]) -> Problem:
    """Return one problem of all periods that share it."""
    labels, (_, first) = [label for label, _ in each], each[0]
    return replace(first, found=f"{name_first(labels, N_NAMED)}: {first.found}")


def period_states(config: Config) -> dict[str, list[str]]:
    """Return which files there are of each layer with one a period.

    A cube or a table has all periods in one file, and is left out.

    Parameters
    ----------
    config : Config

    Returns
    -------
    dict of str to list of str
        By configuration key: ``file``, ``no file`` or ``unknown`` (at an address) of each period
        of the series, then of the forecasts.
    """
    series = config.series
    if series is None:
        return {}
    labels = (*series.periods, *series.following(config.output.forecast))
    return {
        head_of(name): [_state(layers_of(config.at(label))[name].path) for label in labels]
        for name in config.moving()
        if not _has_steps(layers_of(config)[name])
    }


def _state(path: str) -> str:
    if is_remote(path):
        return "unknown"
    return "file" if Path(path).exists() else "no file"

"""The files of all periods of a series, by their headers: ingest reads them one after another.

A series has hundreds of files, and ingest meets the one that is damaged after hours. Their headers
are read in seconds. Forecasts may lack a file; one that is there has to be readable. Of a cube, the
times say whether each period has its steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from geo.core.calendar import days_of
from geo.core.errors import InputError, Problem, name_first
from geo.sources.aggregated import steps_within
from geo.sources.raster_header import BandChoice, RasterHeader
from geo.sources.registry import source_of
from geo.sources.source import Description
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
    lacking = [problem for name in config.moving() for problem in _without_steps(config, name)]
    return [*(_of_periods(each) for each in found.values()), *lacking]


def _without_steps(config: Config, name: str) -> list[Problem]:
    """Return the problem of the periods, the run's excepted, whose steps a cube lacks."""
    series, bands = config.series, dict[str, Description | None]()
    wrong: list[tuple[str, Problem]] = []
    for label in () if series is None else series.periods:
        section = layers_of(config.at(label))[name]
        path, choice = str(section.path), section.choice
        whole = label == config.period or choice.aggregate is None
        if whole or is_remote(path) or not Path(path).exists():
            continue
        if path not in bands:
            bands[path] = _described(path, choice, section.header)
        about, span = bands[path], days_of(choice.time or "", choice.window)
        if about is None or span is None:  # what the run's own period reports as well
            continue
        try:
            steps_within(path, about.bands, span, about.calendar)
        except InputError as error:
            wrong += [
                (label, replace(each, place=f"{head_of(name)} ({path})")) for each in error.problems
            ]
    return [_of_periods(wrong)] if wrong else []


def _described(path: str, choice: BandChoice, header: RasterHeader) -> Description | None:
    """Return what a cube says of all its steps; None where it cannot be read."""
    every = replace(choice, time=None, aggregate=None, window=1, climatology=None)
    try:
        source = source_of(path, every, header)
    except InputError:
        return None
    try:
        return source.describe()
    finally:
        source.close()


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

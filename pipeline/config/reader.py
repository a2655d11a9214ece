"""Read a configuration from YAML: return a valid `Config`, or report all problems."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from geo.core.errors import InputError, Problem, name_first
from geo.sources.mosaic import files_of, is_pattern
from pipeline.config.covariate_schema import INPUT_KEYS
from pipeline.config.document import Document, Key, dotted, merged, nearest_file
from pipeline.config.explain import explain_errors, in_data, remove_key
from pipeline.config.level_schema import fixed_total
from pipeline.config.moving import spread
from pipeline.config.period_names import named_files, other_name, remedy_of
from pipeline.config.periods import has_periods, periods_of, place_period
from pipeline.config.remote_base import anchored
from pipeline.config.schema import Config, StorageSection
from pipeline.config.secrets import check_secrets
from pipeline.config.series import Series, series_of
from pipeline.config.values import bare_variables
from pipeline.config.years import no_people, years_of
from pipeline.core.plugins import load_plugins
from pipeline.storage.location import Location, Storage, is_remote

_LAG = re.compile(r"_lag\d+$")  # of a covariate's name: one of several lags of a section


def read_config(
    path: str | Path | Location,
    problems: list[Problem],
    period: str | None = None,
    changes: Mapping[str, Any] | None = None,
    *,
    fallback_period: str | None = None,
) -> Config | None:
    """Read a configuration; append its errors to ``problems``.

    Unknown keys are reported and removed, so that the other keys can still be validated.

    Parameters
    ----------
    path : path
        The YAML file, or its address on an object store.
    problems : list of Problem
        Errors are appended.
    period, changes : str, mapping, optional
        See `pipeline.config.reader.load_config`.
    fallback_period : str, optional
        Period to use if a time series has no counts yet; with ``time``, that of the day. No input
        file needs to be there.

    Returns
    -------
    Config or None
        None if the file is not a valid configuration.
    """
    place = Storage().place(path)
    try:
        load_plugins()
    except InputError as error:
        problems.extend(error.problems)
        return None
    document = Document.read(place, problems)
    if document is None:
        return None
    check_secrets(document, problems)
    n_before, base = len(problems), document.directory
    document.values = merged(document.expanded(problems), changes or {})
    if isinstance(place, Location):
        document.values = anchored(document.values, place.parent, place.name, problems)
        if len(problems) > n_before:
            return None
    document.written = document.values
    document.values = spread(document.values, problems, place.name, base)
    data = document.values
    storage = _storage(data, base)
    series = series_of(data, base, period, problems, place.name, storage, periods_of)
    if len(problems) > n_before and fallback_period is not None:
        del problems[n_before:]  # of the counts; those of `time` come again
        series = series_of(data, base, period, problems, place.name, storage, _today)
    if len(problems) > n_before:
        problems[n_before:] = _not_pulled(data, base, path) or problems[n_before:]
        return None
    if series is not None:
        if fixed_total(data) and data["output"].get("periods", "latest") != "latest":
            column = data["output"]["reconcile"]["to"]
            where = document.place(("output", "reconcile", "to"))
            what = f"column {column!r} has one total of an area, and output.periods maps several"
            remedy = f"name a column of each period, such as {column}_{{period}}, or give counts"
            problems.append(Problem(where, what, remedy))
            return None
        series = replace(series, years=years_of(data, base, storage))
        series = replace(series, named=named_files(data, base, series, storage))
        data = series.of(data, series.periods[-1])
    elif has_periods(data) or period is not None or "period" in data:
        data = place_period(
            data,
            base,
            period,
            problems,
            place.name,
            storage=storage,
            fallback_period=fallback_period,
        )
        if len(problems) > n_before:
            problems[n_before:] = _not_pulled(data, base, path) or problems[n_before:]
            return None
    context = {"base": base}
    try:
        config = Config.model_validate(data, context=context)
    except ValidationError as error:
        details = error.errors(include_url=False)
    else:
        return _with_document(config, document, series)
    unknown = [in_data(data, d["loc"]) for d in details if d["type"] == "extra_forbidden"]
    for detail in details:
        problems.extend(explain_errors(detail, data, unknown, document))
    for key in unknown:
        remove_key(data, key)
        if series is not None:  # other periods are made of it
            remove_key(document.values, key)
    try:
        found = Config.model_validate(data, context=context)
        return _with_document(found, document, series)
    except ValidationError:
        # Without a configuration, only missing files can still be reported: where they are to be
        # there already.
        if fallback_period is None:
            _missing_in(data, base, document, problems)
        return None


def load_config(
    path: str | Path | Location, period: str | None = None, changes: Mapping[str, Any] | None = None
) -> Config:
    """Read a configuration file.

    Parameters
    ----------
    path : path
        The YAML file, or its address. Relative paths in it are relative to its directory or
        prefix; ``${NAME}`` in any
        text is the environment variable NAME.
    period : str, optional
        Period of a time series; by default the file's ``period``, or the latest.
    changes : mapping, optional
        Values that replace those of the file: ``{"fit": {"max_epochs": 500}}``.

    Returns
    -------
    Config
        With all defaults.

    Raises
    ------
    geo.core.errors.InputError
        With all errors of the file, and all missing local inputs.
    """
    problems: list[Problem] = []
    config = read_config(path, problems, period, changes)
    if config is not None:
        missing_files(config, problems)
    if config is None or problems:
        raise InputError(problems)
    return config


def missing_files(config: Config, problems: list[Problem]) -> set[str]:
    """Append a problem for each missing local input, one for all periods of a layer.

    Returns
    -------
    set of str
        The paths that are missing.
    """
    reported: set[str] = set()
    missing = no_people(config)
    if missing is not None:
        # One line, not one of each year.
        problems.append(missing)
        reported.update(
            path
            for name, path in config.input_paths().items()
            if name.startswith("population.") or name == "grid.like"
        )
    found = set(reported)
    of_periods: dict[str, list[tuple[str, str]]] = {}
    for name, path in config.input_paths().items():
        if path in reported:  # grid.like mostly repeats another key
            continue
        reported.add(path)
        if not _is_missing(path):
            continue
        found.add(path)
        layer, label = _moving_layer(config, name)
        if label:
            of_periods.setdefault(layer, []).append((label, path))
        else:
            _report_missing(path, _split(name), config.document, problems)
    for layer, each in of_periods.items():
        problems.append(_missing_periods(config, layer, sorted(each)))
    return found


def _moving_layer(config: Config, name: str) -> tuple[str, str]:
    """Return the layer and the period of a key of ``input_paths``; empty for what stands still."""
    for layer in config.moving() if config.series is not None else ():
        head = layer if layer == "population" else f"covariates.{layer}"
        if name == f"{head}.path" or name.startswith(f"{head}."):
            label = name.removeprefix(f"{head}.").rpartition(".")[0].removesuffix(".later")
            if label in ("", *config.series.periods):  # type: ignore[union-attr]
                return head, label or str(config.period)
    return "", ""


def _missing_periods(config: Config, layer: str, each: list[tuple[str, str]]) -> Problem:
    """Return the problem of the periods that lack a file of a layer."""
    labels, path = [label for label, _ in each], each[0][1]
    written = layer if _has(config, layer) else _LAG.sub("", layer)  # of several lags
    place = config.document.place(_split(f"{written}.path")) if config.document else layer
    section, series = _section(config, written), config.series
    near = nearest_file(Path(path))
    remedy = remedy_of(Path(path), section, series, labels[0]) if series else near
    remedy = remedy or "correct the path"
    periods = config.series.periods if config.series is not None else ()
    by_period = len(each) > 1 or labels[0][:4] in Path(path).name  # else one file is of all periods
    if by_period and len(each) < len(periods):  # the path is right: another name is another thing
        what = "it" if len(each) == 1 else "them"
        remedy = f"add {what}, or let time.from and time.to leave what lacks one out"
        if labels[-1] in periods[-1:]:  # a slip in the table asks for files of years
            remedy += f"; the last period is {labels[-1]}: is it right?"
    other = other_name(section, series, labels[0]) if series else ""
    path += f" nor {other}" if other else ""
    if len(each) == 1:
        of = f", of {labels[0]}" if by_period else ""
        return Problem(place, f"no file {path}{of}", remedy)
    n = len(periods)
    found = f"no file of {len(each)} of {n} periods: {name_first(labels, 12)} (no file {path})"
    return Problem(place, found, remedy)


def _section(config: Config, layer: str) -> Mapping[str, Any]:
    """Return a layer, or the one that has several lags, as the configuration writes it."""
    values: Mapping[str, Any] = config.document.values if config.document else {}
    head, _, name = layer.partition(".")
    every = values.get(head, {})
    found = every.get(name) if name else every
    return found if isinstance(found, Mapping) else {}


def _has(config: Config, layer: str) -> bool:
    """Return whether the configuration has a section of that name."""
    covariates = config.document.values.get("covariates") if config.document else None
    name = layer.removeprefix("covariates.")
    return name == layer or (isinstance(covariates, Mapping) and name in covariates)


def _split(name: str) -> Key:
    # A covariate's name may contain dots: split at the first and the last one.
    head, _, rest = name.partition(".")
    middle, _, tail = rest.rpartition(".")
    if head == "output":  # an item of a list: output.areas.0.path
        return tuple(int(part) if part.isdigit() else part for part in name.split("."))
    return (head, middle, tail) if middle else (head, tail)


def _not_pulled(data: Mapping[str, Any], base: Path, source: Any) -> list[Problem]:
    """Return the problem of counts that a pull from DHIS2 has still to write, or none."""
    counts, dhis2 = data.get("counts"), data.get("dhis2")
    given = counts.get("path") if isinstance(counts, Mapping) else None
    pulls = isinstance(dhis2, Mapping) and dhis2.get("pull") is not None
    if not pulls or not isinstance(given, str) or (base / Path(given).expanduser()).exists():
        return []
    remedy = f"run `disagg dhis2 pull {source}` first"
    return [Problem("counts.path", f"no file {given}", remedy)]


def _today(*_: Any) -> list[str]:
    """List the day: the period of a series whose counts cannot be read (yet)."""
    return [date.today().isoformat()]


def _storage(data: Mapping[str, Any], base: Path) -> Storage:
    """Return the connection settings of a configuration that is not yet validated."""
    try:
        section = StorageSection.model_validate(data.get("storage") or {}, context={"base": base})
    except ValidationError:  # validating the whole reports this error
        return Storage()
    return section.open()


def _with_document(config: Config, document: Document, series: Series | None) -> Config:
    config._document, config._series = document, series
    return config


def _missing_in(data: Any, base: Path, document: Document, problems: list[Problem]) -> None:
    """Append a problem for each missing file of an invalid configuration."""
    reported = set()
    for key in document.lines:
        value: Any = data
        for part in key:
            value = value[part] if isinstance(value, dict) and part in value else None
        if key[-1] not in INPUT_KEYS or not isinstance(value, str) or is_remote(value):
            continue
        full = str((base / Path(value).expanduser()).resolve())
        if full not in reported and "${" not in value and not bare_variables(value):
            reported.add(full)
            _report_missing(full, key, document, problems)


def _is_missing(path: str) -> bool:
    there = Path(path).exists() or (is_pattern(path) and bool(files_of(path)))
    return not (is_remote(path) or "${" in path or there)


def _report_missing(
    path: str, key: Key, document: Document | None, problems: list[Problem]
) -> None:
    if not _is_missing(path):
        return
    place = document.place(key) if document is not None else dotted(key)
    remedy = nearest_file(Path(path)) or "correct the path"
    problems.append(Problem(place, f"no file {path}", remedy))

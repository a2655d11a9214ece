"""The one reader of configurations: YAML in; out comes a checked `Config`, or all that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from geo.errors import InputError, Problem
from pipeline.config.document import Document, Key, dotted, merged, nearest_file
from pipeline.config.explain import explain_error, in_data, remove_key
from pipeline.config.periods import has_periods, place_period
from pipeline.config.schema import Config, StorageSection
from pipeline.config.values import bare_variables
from pipeline.storage.location import Storage, is_remote


def read_config(
    path: str | Path,
    problems: list[Problem],
    period: str | None = None,
    changes: Mapping[str, Any] | None = None,
    *,
    otherwise: str | None = None,
) -> Config | None:
    """Read a configuration, and append to ``problems`` what is wrong with it.

    A key that is not known is reported and left out, so that the rest can still be checked.

    Parameters
    ----------
    path : path
        The YAML file.
    problems : list of Problem
        Appended to.
    period, changes : str, mapping, optional
        See `pipeline.config.reader.load_config`.
    otherwise : str, optional
        Of a time series without counts as yet, the period to take: nothing is mapped of it.

    Returns
    -------
    Config or None
        None where too little is usable for a configuration.
    """
    path = Path(path)
    document = Document.read(path, problems)
    if document is None:
        return None
    document.values = merged(document.expanded(problems), changes or {})
    data = document.values
    n_before, base = len(problems), path.resolve().parent
    if has_periods(data) or period is not None or "period" in data:
        storage = _storage(data, path.parent)
        data = place_period(
            data, base, period, problems, path.name, storage=storage, otherwise=otherwise
        )
        if len(problems) > n_before:
            return None
    context = {"base": path.parent}
    try:
        config = Config.model_validate(data, context=context)
    except ValidationError as error:
        details = error.errors(include_url=False)
    else:
        return _with_document(config, document)
    unknown = [in_data(data, d["loc"]) for d in details if d["type"] == "extra_forbidden"]
    for detail in details:
        problem = explain_error(detail, data, unknown, document)
        if problem is not None:
            problems.append(problem)
    for key in unknown:
        remove_key(data, key)
    try:
        return _with_document(Config.model_validate(data, context=context), document)
    except ValidationError:
        # Too little is left to look further into, except for files that are not there.
        _missing_in(data, path.parent, document, problems)
        return None


def load_config(
    path: str | Path, period: str | None = None, changes: Mapping[str, Any] | None = None
) -> Config:
    """Read a configuration file.

    Parameters
    ----------
    path : path
        The YAML file. Relative paths in it are relative to its directory; ``${NAME}`` in any
        text is the environment variable NAME.
    period : str, optional
        Of a time series, the period to map; by default the file's ``period``, or the latest.
    changes : mapping, optional
        Values to take instead of the file's: ``{"fit": {"max_epochs": 500}}``.

    Returns
    -------
    Config
        Complete, with every default filled in.

    Raises
    ------
    geo.errors.InputError
        Everything that is wrong with the file, and every local input that does not exist, at once.
    """
    problems: list[Problem] = []
    config = read_config(path, problems, period, changes)
    if config is not None:
        missing_files(config, problems)
    if config is None or problems:
        raise InputError(problems)
    return config


def missing_files(config: Config, problems: list[Problem]) -> None:
    """Append a problem for each local input of a configuration that does not exist."""
    told = set()
    for name, path in config.input_paths().items():
        if path not in told:  # grid.like mostly repeats another key
            told.add(path)
            _report_missing(path, _split(name), config.document, problems)


def _split(name: str) -> Key:
    # A covariate's own name may hold dots: only the ends are ours.
    head, _, rest = name.partition(".")
    middle, _, tail = rest.rpartition(".")
    return (head, middle, tail) if middle else (head, tail)


def _storage(data: Mapping[str, Any], base: Path) -> Storage:
    """Return the storage of a configuration that is not yet checked: its counts may lie there."""
    try:
        section = StorageSection.model_validate(data.get("storage") or {}, context={"base": base})
    except ValidationError:  # told when the whole is checked
        return Storage()
    return section.open()


def _with_document(config: Config, document: Document) -> Config:
    config._document = document
    return config


def _missing_in(data: Any, base: Path, document: Document, problems: list[Problem]) -> None:
    """Look for files that are not there in a document that is not a configuration."""
    told = set()
    for key in document.lines:
        value: Any = data
        for part in key:
            value = value[part] if isinstance(value, dict) and part in value else None
        if key[-1] not in ("path", "like") or not isinstance(value, str) or is_remote(value):
            continue
        full = str((base / Path(value).expanduser()).resolve())
        if full not in told and "${" not in value and not bare_variables(value):
            told.add(full)
            _report_missing(full, key, document, problems)


def _report_missing(
    path: str, key: Key, document: Document | None, problems: list[Problem]
) -> None:
    if is_remote(path) or Path(path).exists() or "${" in path:
        return
    place = document.place(key) if document is not None else dotted(key)
    remedy = nearest_file(Path(path)) or "correct the path"
    problems.append(Problem(place, f"no file {path}", remedy))

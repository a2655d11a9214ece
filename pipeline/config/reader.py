"""Reading the configuration's YAML, with every mistake placed by line and full key path."""

from __future__ import annotations

import difflib
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from geo.errors import InputError, Problem
from pipeline.config.base import Section
from pipeline.config.input_schema import Covariate
from pipeline.config.periods import has_periods, place_period
from pipeline.config.schema import Config
from pipeline.config.suggestions import near, suggest_value
from pipeline.storage.location import is_remote

Key = tuple[str | int, ...]

_VARIABLE = re.compile(r"\$\{([^}]*)\}")


def read_config(
    path: str | Path,
    problems: list[Problem],
    period: str | None = None,
    changes: Mapping[str, Any] | None = None,
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

    Returns
    -------
    Config or None
        None where too little is usable for a configuration.
    """
    path = Path(path)
    document = _Document.read(path, problems)
    if document is None:
        return None
    data: dict[str, Any] = merged(document.expanded(problems), changes or {})
    n_before = len(problems)
    if has_periods(data) or period is not None or "period" in data:
        data = place_period(data, path.resolve().parent, period, problems, path.name)
        if len(problems) > n_before:
            return None
    context = {"base": path.parent}
    try:
        config = Config.model_validate(data, context=context)
    except ValidationError as error:
        details = error.errors(include_url=False)
    else:
        return _with_source(config, path)
    unknown = [_in_data(data, d["loc"]) for d in details if d["type"] == "extra_forbidden"]
    for detail in details:
        problem = _explain(detail, data, unknown, document)
        if problem is not None:
            problems.append(problem)
    for key in unknown:
        _remove(data, key)
    try:
        return _with_source(Config.model_validate(data, context=context), path)
    except ValidationError:
        # Too little is left to look further into, except for files that are not there.
        _missing_in(data, path.parent, document, problems)
        return None


def merged(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Put changes into a configuration's data, key by key in every section."""
    result = dict(data)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = merged(old, value)
        else:
            result[key] = value
    return result


def missing_files(config: Config, problems: list[Problem]) -> None:
    """Append a problem for each local input of a configuration that does not exist."""
    document = None if config.source is None else _Document.read(config.source, [])
    told = set()
    for name, path in config.input_paths().items():
        if path not in told:  # grid.like mostly repeats another key
            told.add(path)
            _report_missing(path, _split(name), document, problems)


def _split(name: str) -> Key:
    # A covariate's own name may hold dots: only the ends are ours.
    head, _, rest = name.partition(".")
    middle, _, tail = rest.rpartition(".")
    return (head, middle, tail) if middle else (head, tail)


def _with_source(config: Config, path: Path) -> Config:
    config._source = path.resolve()
    return config


class _Document:
    """A YAML document as plain data, with the line of each key."""

    def __init__(self, name: str, data: dict[str, Any], lines: dict[Key, int]) -> None:
        self.name = name
        self.data = data
        self.lines = lines

    @classmethod
    def read(cls, path: Path, problems: list[Problem]) -> _Document | None:
        text = _read_text(path, problems)
        if text is None:
            return None
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            data = yaml.safe_load(text)
        except yaml.YAMLError as error:
            problems.append(_explain_yaml(error, path.name))
            return None
        if not isinstance(data, dict):
            found = "an empty file" if data is None else f"a {type(data).__name__}, not keys"
            problems.append(
                Problem(path.name, found, "write keys and values, such as 'areas: {path: ...}'")
            )
            return None
        lines: dict[Key, int] = {}
        for key, line, again in _keys(node, ()):
            if again:
                problems.append(
                    Problem(
                        f"{path.name} line {line}: {dotted(key)}",
                        f"given a second time (first in line {lines[key]})",
                        "keep one of the two",
                    )
                )
            lines[key] = line
        return cls(path.name, data, lines)

    def place(self, key: Key) -> str:
        """Name a key in full, with its line or that of the nearest key around it."""
        line = next(
            (self.lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self.lines), 0
        )
        where = f"{self.name} line {line}" if line else self.name
        return f"{where}: {dotted(key)}" if key else where

    def expanded(self, problems: list[Problem]) -> Any:
        """Copy the data with ``${NAME}`` replaced by the environment's values."""

        def expand(value: Any, key: Key) -> Any:
            if isinstance(value, dict):
                return {k: expand(v, (*key, k)) for k, v in value.items()}
            if isinstance(value, list):
                return [expand(v, (*key, n)) for n, v in enumerate(value)]
            if not isinstance(value, str):
                return value

            def replace(match: re.Match[str]) -> str:
                name = match[1]
                if name in os.environ:
                    return os.environ[name]
                near = difflib.get_close_matches(name, os.environ, 1, cutoff=0.8)
                hint = f"; did you mean ${{{near[0]}}}?" if near else ""
                problems.append(
                    Problem(
                        self.place(key),
                        f"the environment has no variable {name}",
                        f"set it before the run: export {name}=...{hint}",
                    )
                )
                return match[0]

            return _VARIABLE.sub(replace, value)

        return expand(self.data, ())


def dotted(key: Key) -> str:
    """Write a key path as people do: ``output.exceedance[1]``."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _read_text(path: Path, problems: list[Problem]) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        remedy = (
            _nearest_file(path) or "give the path of a configuration; `disagg demo DIR` writes one"
        )
        problems.append(Problem(str(path), "no such file", remedy))
    except IsADirectoryError:
        inside = sorted(p.name for p in path.glob("*.y*ml"))
        remedy = f"give {path / inside[0]}" if inside else "give the path of a YAML file"
        problems.append(Problem(str(path), "a directory, not a file", remedy))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        problems.append(Problem(f"{path.name} line {line}", "not UTF-8 text", "save it as UTF-8"))
    except OSError as error:
        problems.append(Problem(str(path), str(error.strerror).lower(), "make it readable"))
    return None


def _explain_yaml(error: yaml.YAMLError, name: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    place = f"{name} line {mark.line + 1}, column {mark.column + 1}" if mark else name
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    if "'\\t'" in what:
        return Problem(place, "a tab in the indentation", "indent with spaces")
    context = getattr(error, "context", None)
    found = f"not YAML: {what}" + (f" {context}" if context else "")
    return Problem(place, found, "check the indentation, colons, quotes and brackets just before")


def _keys(node: Any, key: Key) -> Iterator[tuple[Key, int, bool]]:
    """Yield (key path, line, whether it was there already) for all that a document holds."""
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key_node, value in node.value:
            part = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
            inner = (*key, part)
            yield inner, key_node.start_mark.line + 1, part in seen
            seen.add(part)
            yield from _keys(value, inner)
    elif isinstance(node, yaml.SequenceNode):
        for n, item in enumerate(node.value):
            yield (*key, n), item.start_mark.line + 1, False
            yield from _keys(item, (*key, n))


def _in_data(data: Any, loc: tuple[int | str, ...]) -> Key:
    """Keep of an error's location what is a key of the data: pydantic adds a union's members."""
    key: list[int | str] = []
    for part in loc:
        inside = isinstance(data, list) and isinstance(part, int)
        if inside or (isinstance(data, dict) and part in data):
            data = data[part]
        elif part is not loc[-1] or part in _MEMBERS:
            continue
        key.append(part)
    return tuple(key)


_MEMBERS = {"FoldsFile", "int", "literal['auto']"}


def _remove(data: Any, key: Key) -> None:
    for part in key[:-1]:
        data = data[part]
    data.pop(key[-1], None)


def _section(key: Key) -> type[Section] | None:
    """Find the model that describes the mapping at a key."""
    if len(key) == 2 and key[0] == "covariates":
        return Covariate
    model: type[Section] = Config
    for part in key:
        field = model.model_fields.get(str(part))
        members = [] if field is None else list(_members(field.annotation))
        sections = [m for m in members if isinstance(m, type) and issubclass(m, Section)]
        if not sections:
            return None
        model = sections[0]
    return model


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation is built of."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _members(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _explain(detail: Any, data: Any, unknown: list[Key], document: _Document) -> Problem | None:
    key = _in_data(data, detail["loc"])
    kind, value = detail["type"], detail["input"]
    if detail["loc"][-1:] == ("int",) and isinstance(value, dict):
        return None  # the other half of a union: what the mapping lacks is told by itself
    if kind == "too_short" and value:
        return None  # so is what is wrong with its items
    parent, last = key[:-1], str(key[-1]) if key else ""
    place = document.place(key)
    model = _section(parent)
    fields = model.model_fields if model is not None else {}
    if kind == "extra_forbidden":
        return Problem(place, "unknown key", _suggest_key(last, parent, list(fields)))
    if kind == "missing":
        misspelt = [
            k for k in unknown if k[:-1] == parent and last in near(str(k[-1]), list(fields))
        ]
        if misspelt:  # the misspelt key says it already
            return None
        what = fields[last].description if last in fields else ""
        if last == "grid":
            what = "{like: raster.tif}, or {crs: ..., resolution: ...}, or give a population"
        return Problem(place, "missing", f"add '{last}: ...'" + (f" ({what})" if what else ""))
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", detail["ctx"]["expected"])
        return Problem(place, f"{value!r} is not a choice", suggest_value(value, choices))
    if kind == "disagg":
        return Problem(place, detail["ctx"]["found"] or _shown(value), detail["ctx"]["remedy"])
    return Problem(place, _shown(value), _remedy(kind, detail, last, fields))


def _shown(value: Any) -> str:
    if value is None:
        return "no value"
    if isinstance(value, dict):
        return "keys where one value belongs"
    return "a list" if isinstance(value, list) else repr(value)


def _remedy(kind: str, detail: Any, last: str, fields: dict[str, Any]) -> str:
    """Say what would be right, from the bound or type that pydantic names."""
    ctx = detail.get("ctx", {})
    bounds = {
        "greater_than": lambda: f"give a number above {ctx['gt']:g}",
        "greater_than_equal": lambda: f"give a number of at least {ctx['ge']:g}",
        "less_than": lambda: f"give a number below {ctx['lt']:g}",
        "less_than_equal": lambda: f"give a number of at most {ctx['le']:g}",
        "too_short": lambda: f"give at least {ctx['min_length']}",
    }
    if kind in bounds:
        return bounds[kind]()
    if kind.startswith(("int", "whole")):
        return "give a whole number"
    if kind.startswith(("float", "finite", "number")):
        return "give a number"
    if kind.startswith("bool"):
        return "give true or false"
    if kind.startswith(("string", "path")):
        return "give text, in quotes if it looks like something else"
    if kind.startswith(("model_type", "dict_type", "model_attributes")):
        return "give keys and values, such as {path: ...}"
    if kind.startswith(("tuple", "list")):
        return "give a list, such as [50, 100]"
    what = fields[last].description if last in fields else ""
    return f"give the {what}" if what else "correct it"


def _suggest_key(word: str, parent: Key, words: list[str]) -> str:
    found = near(word, words)
    if found:
        return f"did you mean {dotted((*parent, found[0]))}?"
    if not words:
        return "remove it"
    # Perhaps right, but a level too high or too low.
    for section in Config.model_fields:
        model = _section((section,))
        if model is not None and word in model.model_fields and (section,) != parent:
            return f"did you mean {section}.{word}?"
    return f"remove it; {dotted(parent) or 'a configuration'} has {', '.join(words)}"


def _missing_in(data: Any, base: Path, document: _Document, problems: list[Problem]) -> None:
    """Look for files that are not there in a document that is not a configuration."""
    told = set()
    for key in document.lines:
        value: Any = data
        for part in key:
            value = value[part] if isinstance(value, dict) and part in value else None
        if key[-1] not in ("path", "like") or not isinstance(value, str) or is_remote(value):
            continue
        full = str((base / Path(value).expanduser()).resolve())
        if full not in told and "${" not in value:
            told.add(full)
            _report_missing(full, key, document, problems)


def _report_missing(
    path: str, key: Key, document: _Document | None, problems: list[Problem]
) -> None:
    if is_remote(path) or Path(path).exists() or "${" in path:
        return
    place = document.place(key) if document is not None else dotted(key)
    remedy = _nearest_file(Path(path)) or "correct the path"
    problems.append(Problem(place, f"no file {path}", remedy))


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no directory {path.parent}"
    names = [p.name for p in path.parent.iterdir()]
    near = difflib.get_close_matches(path.name, names, 1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""


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

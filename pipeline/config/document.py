"""A configuration's YAML as plain data, with the line of each key.

Every key is text: YAML 1.1 would read the keys ``on``, ``yes`` and ``no`` as booleans, ``2020`` as
a number. Values follow YAML 1.1: ``density: yes`` is true.

``${NAME}`` in any text is the environment variable NAME. ``$NAME`` stays text: a password or a
column name may contain a dollar sign. `pipeline.config.values` rejects ``$NAME`` in a path,
because the braces were probably forgotten.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from geo.core.errors import Problem
from pipeline.core.errors import StoreError
from pipeline.storage.location import Location

Key = tuple[str | int, ...]

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
N_KEYS = 100_000  # of a document, aliases expanded
YEAR_DIGITS = 4  # in the name of a file: from so many on they may be a date
_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


def merged(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge changes into a configuration's data, section by section."""
    result = dict(data)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = merged(old, value)
        else:
            result[key] = value
    return result


class Document:
    """A YAML document as plain data, with the line of each key.

    Attributes
    ----------
    path : Path or Location
    data : dict
        Content of the file.
    lines : dict
        Line of each key.
    values : dict
        The data with variables and changes applied; ``{period}`` is not yet replaced.
    written : dict
        The same, before covariates of several lags are told apart.
    """

    def __init__(self, path: Path | Location, data: dict[str, Any], lines: dict[Key, int]) -> None:
        self.path = path
        self.data = data
        self.lines = lines
        self.values = data
        self.written = data

    @classmethod
    def read(cls, path: Path | Location, problems: list[Problem]) -> Document | None:
        """Read a file; if it has no keys, append to ``problems`` and return None."""
        text = _read_text(path, problems)
        if text is None:
            return None
        try:
            keys, data = _compose(text)
        except yaml.YAMLError as error:
            problems.append(_explain_yaml(error, path.name))
            return None
        except RecursionError:
            found = "nested too deeply, or an alias (*name) contains itself"
            problems.append(Problem(path.name, found, "write the keys and values out"))
            return None
        except _TooManyKeysError:
            found = f"aliases (*name) repeat more than {N_KEYS:,} keys and values"
            problems.append(Problem(path.name, found, "write the keys and values out"))
            return None
        if not isinstance(data, dict):
            found = "the file is empty" if data is None else f"a {type(data).__name__}, not keys"
            problems.append(
                Problem(path.name, found, "write keys and values, such as 'areas: {path: ...}'")
            )
            return None
        lines: dict[Key, int] = {}
        for key, line, again in keys:
            if again:
                problems.append(
                    Problem(
                        f"{path.name} line {line}: {dotted(key)}",
                        f"duplicate key (first in line {lines[key]})",
                        "remove one of the two",
                    )
                )
            lines[key] = line
        return cls(path, data, lines)

    @property
    def directory(self) -> Path:
        """Directory of a file; of an object, whose paths are absolute, the current one."""
        return Path.cwd() if isinstance(self.path, Location) else self.path.resolve().parent

    def place(self, key: Key) -> str:
        """Return a key's full name, with its line or that of the nearest enclosing key."""
        line = next(
            (self.lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self.lines), 0
        )
        where = f"{self.path.name} line {line}" if line else self.path.name
        return f"{where}: {dotted(key)}" if key else where

    def expanded(self, problems: list[Problem]) -> Any:
        """Copy the data; replace ``${NAME}`` by environment variables.

        A variable that is not set is one problem, however many keys name it.
        """
        unset: dict[str, list[Key]] = {}

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
                unset.setdefault(name, []).append(key)
                return match[0]

            return _VARIABLE.sub(replace, value)

        data = expand(self.data, ())
        for name, keys in unset.items():
            near = difflib.get_close_matches(name, os.environ, 1, cutoff=0.8)
            hint = f"; did you mean ${{{near[0]}}}?" if near else ""
            many = f" ({len(set(keys))} keys name it)" if len(set(keys)) > 1 else ""
            found = f"environment variable {name} is not set{many}"
            remedy = f"set it before the run: export {name}=...{hint}"
            problems.append(Problem(self.place(keys[0]), found, remedy))
        return data


def dotted(key: Key) -> str:
    """Format a key path: ``output.exceedance[1]``."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _read_text(path: Path | Location, problems: list[Problem]) -> str | None:
    try:
        if isinstance(path, Location):
            return path.read().decode("utf-8")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if isinstance(path, Location):
            problems.append(Problem(str(path), "no such object", "correct the address"))
            return None
        remedy = (
            nearest_file(path) or "give the path of a configuration; `disagg demo DIR` writes one"
        )
        problems.append(Problem(str(path), "no such file", remedy))
    except IsADirectoryError:
        inside = sorted(p.name for p in Path(str(path)).glob("*.y*ml"))
        remedy = f"give {path / inside[0]}" if inside else "give the path of a YAML file"
        problems.append(Problem(str(path), "a directory, not a file", remedy))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        problems.append(Problem(f"{path.name} line {line}", "not UTF-8 text", "save it as UTF-8"))
    except StoreError:
        raise
    except OSError as error:
        problems.append(Problem(str(path), str(error.strerror).lower(), "change the permissions"))
    return None


#: What PyYAML says; the same as a finding, and its remedy.
_YAML = (
    (r"constructor for the tag '([^']*)'", r"tag \1 is not read", "remove the tag"),
    (r"undefined alias '([^']*)'", r"alias *\1 has no anchor", r"write &\1 at what it stands for"),
    (r"found another document", "a second document begins (---)", "keep one document"),
)


def _explain_yaml(error: yaml.YAMLError, name: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    place = f"{name} line {mark.line + 1}, column {mark.column + 1}" if mark else name
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    if "'\\t'" in what:
        return Problem(place, "a tab in the indentation", "indent with spaces")
    for pattern, found, remedy in _YAML:
        match = re.search(pattern, what)
        if match:
            return Problem(place, match.expand(found), match.expand(remedy))
    context = getattr(error, "context", None)
    found = f"not YAML: {what}" + (f" {context}" if context else "")
    return Problem(place, found, "check the indentation, colons, quotes and brackets just before")


class _TooManyKeysError(Exception):
    """Aliases of aliases: a few lines can stand for billions of values."""


def _keys(node: Any, key: Key) -> Iterator[tuple[Key, int, bool]]:
    """Yield (key path, line, whether it is a duplicate) for every key of a document."""
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


def _compose(text: str) -> tuple[list[tuple[Key, int, bool]], Any]:
    """Parse YAML with keys as text; return the result of `_keys`, and the data."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return [], None
        _keys_as_text(node, set())
        # Before merge keys (`<<`) are resolved.
        keys = list(itertools.islice(_keys(node, ()), N_KEYS + 1))
        if len(keys) > N_KEYS:
            raise _TooManyKeysError
        return keys, loader.construct_document(node)
    finally:
        loader.dispose()


def _keys_as_text(node: Any, seen: set[int]) -> None:
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                key.tag = _TEXT
            _keys_as_text(value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _keys_as_text(item, seen)


def nearest_file(path: Path) -> str:
    """Suggest the file of a directory with a similar name; empty if there is none."""
    if not path.parent.is_dir():
        return f"there is no directory {path.parent}"
    # A name that differs in the digits of a date alone is the file of another period.
    dated = len(re.findall(r"\d", path.name)) >= YEAR_DIGITS
    names = [
        p.name
        for p in path.parent.iterdir()
        if not dated or re.sub(r"\d", "0", p.name) != re.sub(r"\d", "0", path.name)
    ]
    # Nor is rain_2024-05.tif near truth_2024-05.tif: their dates and endings are alike, no more.
    alike = {n.lower(): n for n in names if _alike(_letters(n), _letters(path.name))}
    near = difflib.get_close_matches(path.name.lower(), alike, 1, cutoff=0.6)
    return f"did you mean {alike[near[0]]}?" if near else ""


def _letters(name: str) -> str:
    return re.sub(r"\d", "", Path(name).stem).lower()


def _alike(one: str, other: str) -> bool:
    return one == other or difflib.SequenceMatcher(None, one, other).ratio() >= 0.6

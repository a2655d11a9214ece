"""Mends of a configuration, as ``disagg check --fix`` proposes them: safe, told, never applied.

A mend looks at what a check found and returns changes of keys. It is safe if no second reading of
the inputs is as likely: a column whose name differs in capitals alone, a known number of missing
pixels, a file that is one folder further. Units, a CRS, bands and layers that several fit are left
to the user. A further mend is a function and a line of :data:`MENDS`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import geopandas as gpd
import pandas as pd
import pyogrio
import yaml

from geo.core.columns import attribute_columns, folded, id_text, same_but_for_spelling
from geo.core.errors import InputError, Problem
from geo.sources.boundary_formats import BOUNDARIES
from geo.sources.vector_access import vector_path
from geo.tables.registry import read_table
from pipeline.config.document import Document, Key, dotted
from pipeline.config.schema import Config
from pipeline.ingest.raster_suspicions import HUGE, SENTINELS, Suspicion
from pipeline.storage.location import is_remote

SURE = 0.8  # likeness from which a misspelt key is the nearest one
N_FILES = 20_000  # of a folder that is looked through for a file
#: Suffixes of one format.
ALIKE = ({".tif", ".tiff"}, {".geojson", ".json"}, {".csv", ".tsv", ".txt"}, {".yaml", ".yml"})


@dataclass(frozen=True)
class Change:
    """One change of a configuration.

    Attributes
    ----------
    key : tuple
        The key that is set.
    value : object
        What YAML can write.
    why : str
        The rest of a sentence: "cases.csv has it as 'Cases'".
    old : str
        A misspelt key that `key` replaces, of the same section; "" mostly.
    beside : (str, bytes) or None
        A file that is proposed beside the configuration: its name, and what it holds.
    """

    key: Key
    value: Any
    why: str
    old: str = ""
    beside: tuple[str, bytes] | None = None

    def __str__(self) -> str:
        shown = yaml.safe_dump(self.value, default_flow_style=True, width=1000).strip()
        what = f"{self.old} becomes {self.key[-1]}" if self.old else shown.removesuffix("\n...")
        return f"{dotted(self.key)}: {what} ({self.why})"


@dataclass(frozen=True)
class Findings:
    """What a check found in a configuration.

    Attributes
    ----------
    document : Document
        With the file's path, and its keys as they are written.
    config : Config or None
        None if it is invalid.
    problems : sequence of Problem
    suspicions : sequence of Suspicion
    """

    document: Document
    config: Config | None
    problems: Sequence[Problem]
    suspicions: Sequence[Suspicion] = field(default=())

    @property
    def base(self) -> Path:
        """Directory of relative paths."""
        return self.document.directory


@dataclass(frozen=True)
class Mend:
    """A mend: its name, what it mends, and the function that returns its changes."""

    name: str
    what: str
    apply: Callable[[Findings], Iterable[Change]]


def mend_keys(found: Findings) -> Iterator[Change]:
    """Replace an unknown key by the nearest one, if that is not given and no other is near."""
    for problem in found.problems:
        key = next(
            (k for k in found.document.lines if found.document.place(k) == problem.place), ()
        )
        near = re.fullmatch(r"did you mean (?:.*\.)?(\w+)\?", problem.remedy)
        if problem.found != "unknown key" or not key or near is None:
            continue
        new, old = (*key[:-1], near[1]), str(key[-1])
        here = problem.remedy == f"did you mean {dotted(new)}?"  # not of another section
        sure = difflib.SequenceMatcher(None, old.lower(), near[1]).ratio() >= SURE
        if here and sure and new not in found.document.lines:
            yield Change(new, _value(found.document.data, key), "misspelt", old)


def mend_paths(found: Findings) -> Iterator[Change]:
    """Correct the path of a file that one other file alone can be."""
    for key in found.document.lines:
        path = _value(found.document.data, key)
        if key[-1] not in ("path", "like", "table") or not isinstance(path, str):
            continue
        if is_remote(path) or re.search(r"[${]", path):
            continue
        full = found.base / Path(path).expanduser()
        if full.exists():
            continue
        others = sorted({each for each in _others(full, found.base) if each.is_file()})
        if len(others) == 1:
            given = os.path.relpath(others[0], found.base)
            yield Change(key, Path(given).as_posix(), f"there is no {path}")


def _others(full: Path, base: Path) -> Iterator[Path]:
    """Yield files that a missing path may mean."""
    if full.parent.is_dir():
        for each in full.parent.iterdir():
            same = folded(each.stem) == folded(full.stem)
            suffix, wanted = each.suffix.lower(), full.suffix.lower()
            alike = suffix == wanted or any({suffix, wanted} <= group for group in ALIKE)
            if same and alike:
                yield each
    for n, each in enumerate(base.rglob("*")):
        if n > N_FILES:
            break
        if each.name == full.name and ".partial" not in each.name:
            yield each


def mend_columns(found: Findings) -> Iterator[Change]:
    """Name the column that differs from the given one in capitals, accents or blanks alone."""
    for key, columns, file in _columns_wanted(found):
        given = _value(found.document.data, key)
        if not isinstance(given, str) or given in columns:
            continue
        same = [name for name in columns if folded(name) == folded(given)]
        if len(same) == 1:
            yield Change(key, same[0], f"so {file} has it")


def _columns_wanted(found: Findings) -> Iterator[tuple[Key, list[str], str]]:
    """Yield each key that names a column, the columns that there are, and the file's name."""
    config, document = found.config, found.document
    if config is None:
        return
    areas = _areas(config)
    tables: list[tuple[str, list[str], str, tuple[str, ...]]] = []
    if areas is not None:
        own = [str(name) for name in attribute_columns(areas)]
        tables.append(("areas", own, Path(config.areas.path).name, ("id", "name")))
    section, table = config.model.responses, _counts(config)
    if table is not None:
        name = Path(str(config.response.path)).name
        of_table = [str(column) for column in table.columns]
        tables.append((section, of_table, name, ("id", "value", "tested", "weight", "period")))
    elif config.response.path is None and areas is not None:
        tables.append((section, tables[0][1], tables[0][2], ("value", "tested", "weight")))
    for head, columns, file, keys in tables:
        for key in keys:
            if (head, key) in document.lines:
                yield (head, key), columns, file


def mend_layer(found: Findings) -> Iterator[Change]:
    """Choose the layer of the boundaries, if one alone has polygons and the column of ids."""
    config = found.config
    if config is None or config.areas.layer is not None or not Path(config.areas.path).is_file():
        return
    source = vector_path(config.areas.path)
    try:
        layers = pyogrio.list_layers(source)
    except pyogrio.errors.DataSourceError:
        return
    fit = [
        str(name)
        for name, kind in layers
        if "Polygon" in str(kind)
        and config.areas.id in pyogrio.read_info(source, layer=name)["fields"]
    ]
    if len(layers) > 1 and len(fit) == 1:
        yield Change(("areas", "layer"), fit[0], "the only one with polygons and these ids")


def mend_polygons(found: Findings) -> Iterator[Change]:
    """Let invalid polygons be repaired: the check tells what that does."""
    key = ("areas", "repair")
    broken = [
        p for p in found.problems if p.place.startswith("areas (") and "invalid poly" in p.found
    ]
    if broken and key not in found.document.lines:
        yield Change(key, value=True, why="the next check says what it mends")


def mend_ids(found: Findings) -> Iterator[Change]:
    """Pair ids that differ in their spelling alone, if that pairs all that are unknown."""
    config = found.config
    if config is None or config.response.match != "exact":
        return
    areas, table = _areas(config), _counts(config)
    column = config.response.id
    if areas is None or table is None or column not in table.columns:
        return
    if config.areas.id not in areas.columns:
        return
    known = set(id_text(areas[config.areas.id]).dropna())
    given = set(id_text(table[column]).dropna())
    pairs = same_but_for_spelling(given - known, known - given)
    if pairs and len(pairs) == len(given - known):
        (theirs, ours), n = pairs[0], len(pairs)
        why = f"{n} id{'' if n == 1 else 's'}, such as {theirs!r} for {ours!r}"
        yield Change((config.model.responses, "match"), "spelling", why)


def mend_nodata(found: Findings) -> Iterator[Change]:
    """Declare numbers that programs write for missing pixels, where they stand apart."""
    done = set()
    for each in found.suspicions:
        match = re.search(r"set ([\w.\- ]+)\.nodata: (.+)$", each.remedy)
        if each.code != "nodata" or match is None or match[1] in done:
            continue
        value = yaml.safe_load(match[2])
        numbers = [float(v) for v in (value if isinstance(value, list) else [value])]
        if all(v in SENTINELS or abs(v) >= HUGE for v in numbers):
            done.add(match[1])
            head, _, name = match[1].partition(".")
            plain = [int(v) if v.is_integer() and abs(v) < HUGE else v for v in numbers]
            key = (head, name, "nodata") if name else (head, "nodata")
            yield Change(key, plain[0] if len(plain) == 1 else plain, each.found)


MENDS: list[Mend] = [
    Mend("keys", "a key that is misspelt", mend_keys),
    Mend("paths", "a path whose file is near", mend_paths),
    Mend("layer", "boundaries of several layers", mend_layer),
    Mend("columns", "a column in other capitals, accents or blanks", mend_columns),
    Mend("polygons", "polygons that cross themselves", mend_polygons),
    Mend("ids", "ids in another spelling", mend_ids),
    Mend("nodata", "a known number of missing pixels that the header leaves out", mend_nodata),
]


def changes_of(found: Findings) -> list[Change]:
    """Return the changes of all mends, of each key the first."""
    each: dict[Key, Change] = {}
    for mend in MENDS:
        for change in mend.apply(found):
            each.setdefault(change.key, change)
    # What is below a misspelt key is mended once that is: the next time.
    olds = [(*change.key[:-1], change.old) for change in each.values() if change.old]
    return [c for c in each.values() if not any(c.key[: len(old)] == old for old in olds)]


def _value(data: Any, key: Key) -> Any:
    for part in key:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _areas(config: Config) -> gpd.GeoDataFrame | None:
    spec = config.areas
    if is_remote(spec.path) or not Path(spec.path).exists():
        return None
    try:
        return BOUNDARIES.of(spec.path)(spec.path, spec.layer)
    except InputError:
        return None


def _counts(config: Config) -> pd.DataFrame | None:
    spec = config.response
    if spec.path is None or is_remote(spec.path) or not Path(spec.path).exists():
        return None
    try:
        return read_table(
            spec.path, "", sheet=spec.sheet, layer=spec.layer, **spec.spelling.layout
        )[0]
    except InputError:
        return None

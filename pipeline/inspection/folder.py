"""What lies in a folder: boundaries, tables and rasters, with what tells one from another."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import geopandas as gpd
import openpyxl
import pandas as pd
import pyogrio

from geo.core.columns import is_missing
from geo.core.errors import InputError, Problem, VariablesError, one_line
from geo.core.spelling import USUAL
from geo.core.suppressed import Suppression
from geo.sources.boundary_formats import BOUNDARIES, read_geoparquet
from geo.sources.raster_header import BandChoice
from geo.sources.registry import source_of
from geo.sources.source import Description
from geo.tables.registry import read_table
from geo.tables.response_column import below_rows

VECTORS = {".gpkg", ".shp", ".geojson", ".json", ".kml", ".fgb", ".geoparquet", ".parquet"}
TABLES = {".csv", ".tsv", ".txt", ".xlsx", ".parquet"}
RASTERS = {".tif", ".tiff", ".vrt", ".nc", ".img", ".asc", ".grib", ".grb", ".zarr", ".icechunk"}
DEPTH = 2  # folders below
N_TITLE = 1000  # bytes of a title
_SUPPRESSED = Suppression()
N_FILES = 5_000
TITLED = {".csv", ".tsv", ".txt", ".xlsx"}  # tables that may have a title above the names
_UNNAMED = re.compile(r"|column [A-Z]+|Unnamed: \d+")
#: A date in a file's name: 2024, 2024-03, 2024.03, 202403, 2024_03_31, 2024-W13, 2024Q1.
DATE = re.compile(
    r"(?<!\d)(?:19|20)\d\d(?:[-_.]?[WwQq]\d\d?|[-_.]?(?:0[1-9]|1[0-2])(?:[-_.]?[0-3]\d)?)?(?!\d)"
)


@dataclass(frozen=True)
class Boundary:
    """A layer with polygons."""

    path: str
    layer: str | None
    frame: gpd.GeoDataFrame

    @property
    def title(self) -> str:
        """How a user names it."""
        return self.path if self.layer is None else f"{self.path}:{self.layer}"


@dataclass(frozen=True)
class TableFile:
    """A table, or a sheet of a workbook; ``{period}`` in its path stands for several files.

    Attributes
    ----------
    path : str
    sheet : str or None
    frame : DataFrame
        Of the first file of several.
    labels : tuple of str
        What stands for ``{period}``.
    skip_rows : int
        Rows above the names of the columns, such as a title.
    """

    path: str
    sheet: str | None
    frame: pd.DataFrame
    labels: tuple[str, ...] = ()
    skip_rows: int = 0

    @property
    def title(self) -> str:
        """How a user names it."""
        return self.path if self.sheet is None else f"{self.path}:{self.sheet}"


@dataclass(frozen=True)
class RasterFile:
    """A raster, or a variable of one; ``{period}`` in its path stands for several files.

    Attributes
    ----------
    path : str
    about : Description
    labels : tuple of str
        What stands for ``{period}``.
    variable : str
        "" where it has one.
    by_time : bool
        Whether it has a band of each period of the counts.
    sibling : str
        A file in another folder whose name differs in its date alone; "" where there is none.
    """

    path: str
    about: Description
    labels: tuple[str, ...] = ()
    variable: str = ""
    by_time: bool = False
    sibling: str = ""

    @property
    def title(self) -> str:
        """How a user names it."""
        return f"{self.path}:{self.variable}" if self.variable else self.path

    @property
    def years(self) -> bool:
        """Whether its files are of years."""
        return bool(self.labels) and all(len(label) == 4 for label in self.labels)

    @property
    def paths(self) -> list[str]:
        """Each of its files."""
        return [self.path.replace("{period}", label) for label in self.labels] or [self.path]

    @property
    def name(self) -> str:
        """Return a name of a covariate: that of the file, without a date."""
        stem = self.variable or Path(self.path.replace("{period}", "")).stem
        return re.sub(r"\W+", "_", stem).strip("_").lower() or "raster"


@dataclass
class Folder:
    """The files of a folder, by what they are.

    Attributes
    ----------
    path : Path
    boundaries, tables, rasters : lists
    left : list of str
        What was left out, and why.
    unread : list of Problem
        Of the tables among it, by their name.
    """

    path: Path
    boundaries: list[Boundary] = field(default_factory=list)
    tables: list[TableFile] = field(default_factory=list)
    rasters: list[RasterFile] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    unread: list[Problem] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Folder:
        """Look into a folder: headers of rasters, whole tables and boundaries."""
        found = cls(path)
        seen: set[str] = set()
        for pattern, files in _grouped(_files(path), path).items():
            name = pattern.rpartition("/")[2]
            if name in seen:  # a copy, or a later delivery, in a folder further down
                found.left.append(f"{pattern}: {name} is nearer")
                continue
            if found._take(pattern, files):
                seen.add(name)
        found.rasters = _with_siblings(found.rasters)
        return found

    def _take(self, pattern: str, files: list[tuple[str, Path]]) -> bool:
        """Add what a file, or several of one name, are; return whether they are something."""
        first, suffix = files[-1][1], Path(pattern).suffix.lower()
        labels = tuple(label for label, _ in files if label)
        n_before = len(self.boundaries), len(self.tables), len(self.rasters)
        try:
            if suffix in VECTORS and not labels:
                self._vector(pattern, first)
            elif suffix in VECTORS - TABLES:  # of several dates: which one is asked
                for label, path in files:
                    self._vector(pattern.replace("{period}", label), path)
            if suffix in TABLES and n_before[0] == len(self.boundaries):
                for sheet in _sheets(first):
                    self._table(pattern, first, sheet, labels)
            if suffix in RASTERS:
                self.rasters += _variables(pattern, first, labels)
        except InputError as error:
            self.left.append(f"{pattern}: {error.problems[0].found}")
        return n_before != (len(self.boundaries), len(self.tables), len(self.rasters))

    def _table(self, pattern: str, path: Path, sheet: str | None, labels: tuple[str, ...]) -> None:
        """Add a table, or say why it is none: another sheet of the workbook may be one."""
        try:
            frame, skip = _below_title(path, pattern, sheet)
        except InputError as error:
            own = pattern if sheet is None else f"{pattern}:{sheet}"
            self.left.append(f"{own}: {error.problems[0].found}")
            if path.suffix.lower() in (".csv", ".xlsx"):  # a text may be notes
                self.unread.append(replace(error.problems[0], place=own))
        else:
            self.tables.append(TableFile(pattern, sheet, frame, labels, skip))

    def _vector(self, pattern: str, path: Path) -> None:
        if path.suffix.lower().endswith("parquet"):
            if path.suffix.lower() == ".parquet":
                try:
                    self.boundaries.append(Boundary(pattern, None, read_geoparquet(path, None)))
                except InputError:  # a table
                    return
            return
        try:
            layers = pyogrio.list_layers(path)
        except pyogrio.errors.DataSourceError as error:
            self.left.append(f"{pattern}: {one_line(error)}")
            return
        fit = [str(name) for name, kind in layers if "Polygon" in str(kind) or kind == "Unknown"]
        if not fit and path.suffix.lower() not in TABLES:
            self.left.append(f"{pattern}: no polygons (`distance: {pattern}` makes a covariate)")
        for name in fit:
            layer = name if len(layers) > 1 else None
            frame = BOUNDARIES.of(path)(path, layer)
            if frame.geom_type.isin(["Polygon", "MultiPolygon"]).any():
                self.boundaries.append(Boundary(pattern, layer, frame))
            else:
                self.left.append(f"{Boundary(pattern, layer, frame).title}: no polygons")


def _variables(pattern: str, path: Path, labels: tuple[str, ...]) -> list[RasterFile]:
    """Return a raster, or each variable of one that has several."""
    names: tuple[str, ...] = ("",)
    try:
        source_of(path).close()
    except VariablesError as error:
        names = error.names
    found = []
    for name in names:
        source = source_of(path, BandChoice(variable=name or None))
        found.append(RasterFile(pattern, source.describe(), labels, name))
        source.close()
    return found


def _with_siblings(rasters: list[RasterFile]) -> list[RasterFile]:
    """Note of each raster of one date which other, in another folder, is of other dates."""
    first: dict[tuple[str, str], list[str]] = {}
    for each in rasters:
        paths = first.setdefault((_undated(each), each.variable), [])
        paths += [each.path] if each.path not in paths else []
    return [
        replace(each, sibling=next(path for path in paths if path != each.path))
        if not each.labels and "{period}" in _undated(each) and len(paths) > 1
        else each
        for each, paths in ((one, first[_undated(one), one.variable]) for one in rasters)
    ]


def _undated(each: RasterFile) -> str:
    """Return the name of a raster with ``{period}`` for the dates in it."""
    return DATE.sub("{period}", each.path.rpartition("/")[2])


def _below_title(path: Path, name: str, sheet: str | None) -> tuple[pd.DataFrame, int]:
    """Read a table, and how many rows stand above its names: those of a title, if it has one.

    A title is one cell of several words, the first of its row. Names are texts, one of each column.
    """
    frame, failed = None, None
    try:
        frame, _ = read_table(path, name, sheet=sheet)
    except InputError as error:
        failed = error
    if _has_title(path, frame):
        for skip, below in below_rows(path, sheet=sheet):
            if below.shape[1] > 1 and _are_names(list(map(str, below.columns))):
                return below, skip
    if frame is None:
        assert failed is not None
        raise failed
    return frame, 0


def _has_title(path: Path, frame: pd.DataFrame | None) -> bool:
    """Return whether the first row has one cell, of several words; None: it could not be read."""
    suffix = path.suffix.lower()
    if frame is not None:
        first, *others = map(str, frame.columns)
        return suffix in TITLED and " " in first and all(map(_UNNAMED.fullmatch, others))
    if suffix == ".xlsx":  # merged with other cells
        return True
    if suffix not in TITLED:
        return False
    with path.open("rb") as file:
        line = file.readline(N_TITLE).strip().rstrip(b",;\t|")
    return b" " in line and not re.search(rb"[,;\t|]", line)


def _are_names(texts: list[str]) -> bool:
    """Return whether cells may name columns: none is empty, a number, a hidden count."""
    dates = [text for text in texts if DATE.fullmatch(text)]  # of a column for each period
    rest = [text for text in texts if text not in dates]
    data = any(
        _UNNAMED.fullmatch(text)
        or is_missing(text)
        or not math.isnan(USUAL.number_or_nan(text))
        or _SUPPRESSED.interval(text) is not None
        for text in rest
    )
    return bool(rest) and not data and len(dates) != 1


def _sheets(path: Path) -> list[str | None]:
    """Return the sheets of a workbook that has several, else the only part of a table."""
    if path.suffix.lower() != ".xlsx":
        return [None]
    book = openpyxl.load_workbook(path, read_only=True)
    names: list[str | None] = list(book.sheetnames)
    book.close()
    return names if len(names) > 1 else [None]


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder and those below, the nearest first, without results."""
    return [path for _, path in sorted((len(p.parts), p) for p in _walk(folder))][:N_FILES]


def _walk(folder: Path) -> Iterator[Path]:
    for top, folders, files in os.walk(folder):
        here = Path(top)
        depth = len(here.relative_to(folder).parts)
        results = "run.json" in files and depth > 0
        stores = [name for name in folders if name.endswith((".zarr", ".icechunk"))]
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "__")) and name not in stores and depth < DEPTH
        ]
        if results:
            folders.clear()
            continue
        yield from (here / name for name in [*files, *stores] if not name.startswith("."))


def _grouped(files: list[Path], folder: Path) -> dict[str, list[tuple[str, Path]]]:
    """Return files by their path, those that differ in a date alone under ``{period}``."""
    dated: dict[str, list[tuple[str, Path]]] = {}
    for path in files:
        name = path.relative_to(folder).as_posix()
        dates = set(DATE.findall(name))
        label = dates.pop() if len(dates) == 1 else ""
        pattern = name.replace(label, "{period}") if label else name
        dated.setdefault(pattern, []).append((label, path))
    found: dict[str, list[tuple[str, Path]]] = {}
    for pattern, each in dated.items():
        if len(each) > 1 and "{period}" in pattern:
            found[pattern] = sorted(each)
        else:
            found |= {p.relative_to(folder).as_posix(): [("", p)] for _, p in each}
    return found

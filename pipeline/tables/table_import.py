"""Import a table of instances into a bag store.

The table is read in batches into a temporary file beside the store, so that memory has a few
numbers for each instance, whatever the number of features.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from geo.core.columns import LABELS, MISSING, has_column, id_text
from geo.core.errors import InputError, Problem, name_first
from geo.core.temporary import temporary_directory
from geo.tables.registry import find_table, table_errors
from geo.tables.table_format import TableFormat
from pipeline.storage.fingerprint import fingerprint_file
from pipeline.storage.location import Location
from pipeline.storage.object_commit import place_of
from pipeline.store.bag_store import BagStore, NewBags, PixelRows, StoreLayout, write_bags

DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
NO_NUMBER = "correct it, or leave a column of text out with --drop"
BLOCK_PIXELS = 8192  # of a block: bags of a table are mostly small


@dataclass(frozen=True)
class InstanceColumns:
    """The roles of the columns of a table of instances.

    Attributes
    ----------
    bag : str
        Which bag an instance is in.
    label : str
        That bag's label, the same in all its rows: 1 or 0 (or yes or no, true or false), or
        another number for models that take one.
    positive : str, optional
        The label of positive bags, as the table has it; all other labels are then negative.
    features : sequence of str, optional
        Features; all others but ``drop`` where not given.
    drop : sequence of str
        Columns that are no features.
    """

    bag: str
    label: str
    features: Sequence[str] | None = None
    drop: Sequence[str] = ()
    positive: str | None = None

    def choose_features(self, path: Path, names: list[str]) -> list[str]:
        """Return the features among a table's columns.

        Raises
        ------
        InputError
            If a column is absent or two have one name.
        """
        problems: list[Problem] = []
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        if twice:
            found = f"has more than one column {twice[0]!r}"
            raise InputError(Problem(str(path), found, "give each column a name of its own"))
        if self.bag == self.label:
            found = f"--bag and --label both name {self.bag!r}"
            raise InputError(Problem(str(path), found, "name the column of each"))
        wanted = [("--bag", self.bag), ("--label", self.label)]
        wanted += [("--feature", name) for name in self.features or ()]
        wanted += [("--drop", name) for name in self.drop]
        for option, name in wanted:
            has_column(names, name, str(path), option, problems)
        chosen = [n for n in self.features or names if n not in (self.bag, self.label, *self.drop)]
        if not problems and not chosen:
            problems.append(Problem(str(path), "has no column left for features", "drop fewer"))
        if problems:
            raise InputError(problems)
        return chosen


def import_table(
    path: str | Path,
    store: str | Path,
    columns: InstanceColumns,
    *,
    seed: int = 0,
    advance: Callable[[int], object] | None = None,
) -> BagStore:
    """Write the instances of a table to a bag store.

    Parameters
    ----------
    path : path
        Table, one row an instance; see :data:`geo.tables.registry.TABLES`.
    store : path, or address
        Where the store will stand, here or on an object store; it appears when complete.
    columns : InstanceColumns
    seed : int
        Of the order of the bags.
    advance : callable, optional
        Called with the number of rows read, batch by batch.

    Returns
    -------
    BagStore
        Its pixels are the instances; ``read_pixel`` gives their rows in the table, from 0.

    Raises
    ------
    InputError
        Everything that is wrong with the table, at once.
    """
    path, place = Path(path), place_of(store)
    reader = find_table(path, str(path))
    with table_errors(str(path)):
        names = columns.choose_features(path, reader.columns(path))
    beside = None if isinstance(place, Location) else place.parent
    if beside is not None:
        beside.mkdir(parents=True, exist_ok=True)
    with temporary_directory(f".{place.name}-", beside) as scratch:
        table = _Table(path, reader, columns, names)
        found = table.read(scratch / "x", advance)
        n_bag = len(found.ids)
        order = np.argsort(found.code, kind="stable")
        sizes = np.bincount(found.code, minlength=n_bag)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        x: Any = np.memmap(found.file, np.float32, "r", shape=(order.size, len(names)))

        def rows(of: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
            base = offsets[of]
            at = np.concatenate(
                [order[b + i : b + j] for b, i, j in zip(base, start, stop, strict=True)]
            )
            n = at.shape[0]
            return PixelRows(np.asarray(x[at]), np.ones(n), np.full((n, 2), np.nan), at)

        wanted = repr([columns.bag, columns.label, columns.positive, names, seed]).encode()
        write_bags(
            place,
            NewBags(
                sizes=sizes,
                rows=rows,
                y=found.label,
                ids=found.ids,
                covariates=names,
                has_coords=False,
                attrs={
                    "name": path.stem,
                    "weight_unit": "instances",
                    "source": str(path.resolve()),
                },
            ),
            seed=seed,
            fingerprint=hashlib.sha256(fingerprint_file(path).encode() + wanted).hexdigest(),
            layout=StoreLayout(
                block_pixels=BLOCK_PIXELS,
                block_bags=max(8, int(BLOCK_PIXELS // max(1, sizes.mean()))),
            ),
        )
    return BagStore.open(place)


@dataclass
class _Found:
    """The table but its features, which are in ``file``."""

    file: Path
    ids: list[str] = field(default_factory=list)
    code: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    label: np.ndarray = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class _Table:
    """A table of instances and its features."""

    path: Path
    format: TableFormat
    columns: InstanceColumns
    names: list[str]

    def problem(self, rows: Sequence[int], found: str, remedy: str) -> Problem:
        """Return a problem of some rows, counted from 0."""
        which = name_first([row + self.format.first_row for row in rows])
        return Problem(f"{self.path} row {which}", found, remedy)

    def read(self, file: Path, advance: Callable[[int], object] | None) -> _Found:
        """Read features to ``file`` and the rest to memory; raise InputError with all problems."""
        bag, label, names = self.columns.bag, self.columns.label, self.names
        number: dict[str, int] = {}
        codes, texts, gaps, n_row = [], [], dict.fromkeys(names, 0), 0
        lacking: dict[str, list[int]] = {name: [] for name in names}
        large: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
        nameless: list[int] = []
        try:
            with file.open("wb") as out:
                for batch in self.format.batches(self.path, [bag, label], names):
                    ids = id_text(batch.column(bag).to_pylist())
                    absent = ids.isna().to_numpy()
                    nameless += (np.flatnonzero(absent)[:5] + n_row).tolist()
                    codes.append(np.array([number.setdefault(i or "", len(number)) for i in ids]))
                    texts += batch.column(label).to_pylist()
                    x = np.empty((batch.num_rows, len(names)), np.float32)
                    for k, name in enumerate(names):
                        given = _numbers(self.path, batch.column(name), name)
                        with np.errstate(over="ignore"):  # reported below, as too large
                            x[:, k] = given
                        missing = ~np.isfinite(given)
                        bad, far = np.flatnonzero(missing), ~np.isfinite(x[:, k]) & ~missing
                        gaps[name] += bad.size
                        lacking[name] += (bad[:5] + n_row).tolist()
                        large[name] += [(at + n_row, given[at]) for at in np.flatnonzero(far)[:5]]
                    x.tofile(out)
                    n_row += batch.num_rows
                    if advance:
                        advance(batch.num_rows)
        except pa.ArrowInvalid as error:
            raise InputError(self._no_number(error)) from None
        problems: list[Problem] = []
        if n_row == 0:
            raise InputError(Problem(str(self.path), "holds no rows", "give a table of instances"))
        if nameless:
            problems.append(self.problem(nameless, f"no bag in {bag!r}", "name each its bag"))
        for name in [n for n in names if gaps[n]]:
            found = f"column {name!r} is missing or not finite in {gaps[name]:,} rows"
            remedy = (
                "fill them in, leave those instances out, or leave the column out with --drop "
                "(only BLRT in Python takes what is missing)"
            )
            problems.append(self.problem(lacking[name], found, remedy))
        for name in [n for n in names if large[n]]:
            first = large[name][0][1]
            found = f"column {name!r} has {first:g}, which is too large"
            remedy = (
                f"give values of at most {np.finfo(np.float32).max:.1g} in size: change the unit"
            )
            problems.append(self.problem([row for row, _ in large[name]], found, remedy))
        code = np.concatenate(codes)
        y = self._bag_labels(texts, code, list(number), problems)
        if problems:
            raise InputError(problems)
        return _Found(file, list(number), code, y)

    def _no_number(self, error: pa.ArrowInvalid) -> Problem:
        """Say which cell is no number: the table is read once more, as text.

        A reader in batches tells the number of the column, and not the row.
        """
        with suppress(pa.ArrowInvalid):  # no table at all
            n_row = 0
            for batch in self.format.batches(self.path, self.names, []):
                for name in self.names:
                    cells = batch.column(name).to_pylist()
                    at = next((k for k, cell in enumerate(cells) if _is_wrong(cell)), None)
                    if at is not None:
                        text = str(cells[at])
                        found = f"column {name!r} cannot be read as numbers: it has {text!r}"
                        comma = DECIMAL_COMMA.fullmatch(text.strip())
                        remedy = "write decimal points, not commas" if comma else NO_NUMBER
                        return self.problem([at + n_row], found, remedy)
                n_row += batch.num_rows
        found = f"cannot be read as numbers: {' '.join(str(error).split())}"
        return Problem(str(self.path), found, NO_NUMBER)

    def _bag_labels(
        self, texts: list[Any], code: np.ndarray, ids: list[str], problems: list[Problem]
    ) -> np.ndarray:
        """Return one label a bag; append a problem for invalid and for inconsistent labels."""
        known: dict[Any, float] = {}
        wrong: dict[str, int] = {}
        positive = self.columns.positive
        values = np.empty(len(texts))
        for row, text in enumerate(texts):
            if text not in known:
                known[text] = _label(text) if positive is None else _is_label(text, positive)
            values[row] = known[text]
            if np.isnan(values[row]):
                wrong.setdefault(repr(text), row)
        for text, row in list(wrong.items())[:5]:
            what = "missing" if text in ("None", repr("")) else text
            found = f"column {self.columns.label!r} is {what}"
            remedy = "give each bag a label, 1 or 0"
            if what != "missing":
                remedy += f", or say which is positive, such as --positive {text}"
            problems.append(self.problem([row], found, remedy))
        if positive is not None and not wrong and 1.0 not in known.values():
            have = name_first([str(text) for text in known])
            found = f"column {self.columns.label!r} never is {positive!r}; it has {have}"
            problems.append(Problem("--positive", found, "give one of its values"))
        y = np.full(len(ids), np.nan)
        y[code[::-1]] = values[::-1]  # the first row of each bag
        differs = np.flatnonzero((values != y[code]) & ~np.isnan(values) & ~np.isnan(y[code]))
        if differs.size:
            bags = list(dict.fromkeys(ids[k] for k in code[differs]))
            found = f"{len(bags)} bags have more than one label: {name_first(bags)}"
            remedy = (
                "give all instances of a bag the bag's label; labels of instances are no labels"
            )
            problems.append(self.problem(differs[:5].tolist(), found, remedy))
        return y


def _is_wrong(cell: Any) -> bool:
    """Say whether a cell's text is neither a number nor a word for none."""
    if cell is None or str(cell).lower() in MISSING:
        return False
    try:
        pa.scalar(str(cell)).cast(pa.float64())
    except pa.ArrowInvalid:
        return True
    return False


def _numbers(path: Path, column: Any, name: str) -> np.ndarray:
    kind = column.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        remedy = "leave it out with --drop, or make numbers of it"
        raise InputError(Problem(str(path), f"column {name!r} holds {kind}, no numbers", remedy))
    return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))


def _label(text: Any) -> float:
    if text is None:
        return float("nan")
    word = str(text).strip().lower()
    if word in LABELS:
        return LABELS[word]
    try:
        value = float(word)
    except ValueError:
        return float("nan")
    return value if np.isfinite(value) else float("nan")


def _is_label(text: Any, positive: str) -> float:
    """Return 1 where a label is ``positive``, as text or as a number; NaN where it is missing."""
    word = "" if text is None else str(text).strip()
    if not word:
        return float("nan")
    try:
        return float(float(word) == float(positive))
    except ValueError:
        return float(word == positive.strip())


def read_column(path: Path, name: str, place: str) -> np.ndarray:
    """Read one column of numbers of a table: (n_row,) float64, NaN where missing."""
    table = find_table(path, place)
    with table_errors(place):
        names = table.columns(path)
    problems: list[Problem] = []
    if not has_column(names, name, str(path), place, problems):
        raise InputError(problems)
    try:
        parts = [
            _numbers(path, batch.column(name), name) for batch in table.batches(path, [], [name])
        ]
    except pa.ArrowInvalid as error:
        found = f"column {name!r} cannot be read as numbers: {' '.join(str(error).split())}"
        raise InputError(Problem(place, found, "give labels 1 and 0")) from None
    return np.concatenate(parts) if parts else np.zeros(0)

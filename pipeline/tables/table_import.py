"""A table of instances (CSV, Parquet) becomes a bag store.

The table is read in batches into a temporary file of numbers beside the store, so that memory
holds a few numbers an instance, whatever the number of features.
"""

from __future__ import annotations

import csv
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from geo.counts import LABELS, MISSING, choose, id_text
from geo.errors import InputError, Problem, name_first
from pipeline.storage.fingerprint import fingerprint_file
from pipeline.storage.location import Location
from pipeline.storage.object_commit import place_of
from pipeline.store.bag_store import BagStore, PixelRows, write_bags

BLOCK_PIXELS = 8192  # of a block: bags of a table are mostly small
BATCH = 65536  # rows read at once


def import_table(
    path: str | Path,
    store: str | Path,
    *,
    bag: str,
    label: str,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    seed: int = 0,
    advance: Callable[[int], object] | None = None,
) -> BagStore:
    """Write the instances of a table to a bag store.

    Parameters
    ----------
    path : path
        CSV (comma, semicolon or tab) or Parquet, one row an instance.
    store : path, or address
        Where the store will stand, here or on an object store; it appears when complete.
    bag, label : str
        Columns: which bag an instance is in, and that bag's label, the same in all its rows:
        1 or 0 (or yes or no, true or false), or another number for models that take one.
    features : sequence of str, optional
        Columns of features; all others but ``drop`` where not given.
    drop : sequence of str
        Columns that are no features.
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
    reader = _reader(path)
    names = _choose_features(path, reader.names, bag, label, features, drop)
    beside = None if isinstance(place, Location) else place.parent
    if beside is not None:
        beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=beside) as scratch:
        found = _read(path, reader, names, bag, label, Path(scratch) / "x", advance)
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

        asked = repr([bag, label, names, seed]).encode()
        write_bags(
            place,
            sizes=sizes,
            rows=rows,
            y=found.label,
            ids=found.ids,
            covariates=names,
            seed=seed,
            fingerprint=hashlib.sha256(fingerprint_file(path).encode() + asked).hexdigest(),
            has_coords=False,
            attrs={"name": path.stem, "weight_unit": "instances", "source": str(path.resolve())},
            block_pixels=BLOCK_PIXELS,
            block_bags=max(8, int(BLOCK_PIXELS // max(1, sizes.mean()))),
        )
    return BagStore.open(place)


@dataclass(frozen=True)
class _Reader:
    """How a table is read: its columns, and batches of those asked for."""

    names: list[str]
    batches: Callable[[list[str], list[str]], Iterator[pa.RecordBatch]]


@dataclass
class _Found:
    """The table but its features, which are in ``file``."""

    file: Path
    ids: list[str] = field(default_factory=list)
    code: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    label: np.ndarray = field(default_factory=lambda: np.zeros(0))


def _reader(path: Path) -> _Reader:
    if path.suffix.lower() in (".xlsx", ".xls", ".ods"):
        found, remedy = "a spreadsheet", "save it as CSV (UTF-8) and give that"
        raise InputError(Problem(str(path), found, remedy))
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "no such file"
        raise InputError(Problem(str(path), what, "give a CSV or Parquet file"))
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return _Reader(list(pa.parquet.read_schema(path).names), _parquet(path))
        with path.open(encoding="utf-8-sig") as file:
            first = file.readline()
        mark = max(",;\t", key=first.count)
        names = [name.strip() for name in next(csv.reader([first], delimiter=mark), [])]
        if not any(names):
            raise InputError(Problem(str(path), "is empty", "give a table with a header"))
        return _Reader(names, _csv(path, mark, names))
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        found = f"cannot be read as a table ({str(error).splitlines()[0]})"
        raise InputError(Problem(str(path), found, "give a CSV or Parquet file")) from None


def _parquet(path: Path) -> Any:
    def batches(texts: list[str], numbers: list[str]) -> Iterator[pa.RecordBatch]:
        with pa.parquet.ParquetFile(path) as file:
            yield from file.iter_batches(BATCH, columns=[*texts, *numbers])

    return batches


def _csv(path: Path, mark: str, names: list[str]) -> Any:
    def batches(texts: list[str], numbers: list[str]) -> Iterator[pa.RecordBatch]:
        missing = [m for text in MISSING for m in {text, text.upper(), text.capitalize()}]
        types = {**dict.fromkeys(texts, pa.string()), **dict.fromkeys(numbers, pa.float64())}
        with pa.csv.open_csv(
            path,
            pa.csv.ReadOptions(column_names=names, skip_rows=1, block_size=1 << 24),
            pa.csv.ParseOptions(delimiter=mark),
            pa.csv.ConvertOptions(
                column_types=types, include_columns=[*texts, *numbers], null_values=missing
            ),
        ) as file:
            yield from file

    return batches


def _choose_features(
    path: Path,
    names: list[str],
    bag: str,
    label: str,
    features: Sequence[str] | None,
    drop: Sequence[str],
) -> list[str]:
    problems = []
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        found = f"has more than one column {twice[0]!r}"
        raise InputError(Problem(str(path), found, "give each column a name of its own"))
    if bag == label:
        found = f"--bag and --label both name {bag!r}"
        raise InputError(Problem(str(path), found, "name the column of each"))
    asked = [("--bag", bag), ("--label", label)]
    asked += [("--feature", name) for name in features or ()] + [("--drop", name) for name in drop]
    for option, name in asked:
        if name not in names:
            found = f"has no column {name!r}, asked for by {option}"
            problems.append(Problem(str(path), found, choose(name, names, "column")))
    chosen = [n for n in features or names if n not in (bag, label, *drop)]
    if not problems and not chosen:
        problems.append(Problem(str(path), "has no column left for features", "drop fewer"))
    if problems:
        raise InputError(problems)
    return chosen


def _read(
    path: Path,
    reader: _Reader,
    names: list[str],
    bag: str,
    label: str,
    file: Path,
    advance: Callable[[int], object] | None,
) -> _Found:
    """Read the table once: features to ``file``, the rest to memory; tell all that is wrong."""
    first = 2 if path.suffix.lower() not in (".parquet", ".pq") else 1  # as a spreadsheet numbers
    number: dict[str, int] = {}
    codes, texts, gaps, n_row = [], [], dict.fromkeys(names, 0), 0
    lacking: dict[str, list[int]] = {name: [] for name in names}
    nameless: list[int] = []
    try:
        with file.open("wb") as out:
            for batch in reader.batches([bag, label], names):
                ids = id_text(batch.column(bag).to_pylist())
                absent = ids.isna().to_numpy()
                nameless += (np.flatnonzero(absent)[:5] + n_row + first).tolist()
                codes.append(np.array([number.setdefault(i or "", len(number)) for i in ids]))
                texts += batch.column(label).to_pylist()
                x = np.empty((batch.num_rows, len(names)), np.float32)
                for k, name in enumerate(names):
                    with np.errstate(over="ignore"):  # told below, as not finite
                        x[:, k] = _numbers(path, batch.column(name), name)
                    bad = np.flatnonzero(~np.isfinite(x[:, k]))
                    gaps[name] += bad.size
                    lacking[name] += (bad[:5] + n_row + first).tolist()
                x.tofile(out)
                n_row += batch.num_rows
                if advance:
                    advance(batch.num_rows)
    except pa.ArrowInvalid as error:
        found = " ".join(str(error).split())
        remedy = "correct it, or leave a column of text out with --drop"
        raise InputError(
            Problem(str(path), f"cannot be read as numbers: {found}", remedy)
        ) from None
    problems = []
    if n_row == 0:
        raise InputError(Problem(str(path), "holds no rows", "give a table of instances"))
    if nameless:
        rows = name_first(nameless)
        problems.append(Problem(f"{path} row {rows}", f"no bag in {bag!r}", "name each its bag"))
    for name in [n for n in names if gaps[n]]:
        found = f"column {name!r} is missing or not finite in {gaps[name]:,} rows"
        remedy = (
            "fill them in, leave those instances out, or leave the column out with --drop "
            "(only BLRT in Python takes what is missing)"
        )
        problems.append(Problem(f"{path} row {name_first(lacking[name])}", found, remedy))
    code = np.concatenate(codes)
    y = _bag_labels(path, texts, code, list(number), label, first, problems)
    if problems:
        raise InputError(problems)
    return _Found(file, list(number), code, y)


def _numbers(path: Path, column: Any, name: str) -> np.ndarray:
    kind = column.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        remedy = "leave it out with --drop, or make numbers of it"
        raise InputError(Problem(str(path), f"column {name!r} holds {kind}, no numbers", remedy))
    return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))


def _bag_labels(
    path: Path,
    texts: list[Any],
    code: np.ndarray,
    ids: list[str],
    label: str,
    first: int,
    problems: list[Problem],
) -> np.ndarray:
    """Return one label a bag; append a problem where it is none, or not the same throughout."""
    known: dict[Any, float] = {}
    wrong: dict[str, int] = {}
    values = np.empty(len(texts))
    for row, text in enumerate(texts):
        if text not in known:
            known[text] = _label(text)
        values[row] = known[text]
        if np.isnan(values[row]):
            wrong.setdefault(repr(text), row + first)
    for text, row in list(wrong.items())[:5]:
        found = f"column {label!r} is {'missing' if text in ('None', repr('')) else text}"
        problems.append(Problem(f"{path} row {row}", found, "give each bag a label, 1 or 0"))
    y = np.full(len(ids), np.nan)
    y[code[::-1]] = values[::-1]  # the first row of each bag
    differs = np.flatnonzero((values != y[code]) & ~np.isnan(values) & ~np.isnan(y[code]))
    if differs.size:
        bags = list(dict.fromkeys(ids[k] for k in code[differs]))
        rows = name_first((differs[:5] + first).tolist())
        found = f"{len(bags)} bags have more than one label: {name_first(bags)}"
        remedy = "give all instances of a bag the bag's label; labels of instances are no labels"
        problems.append(Problem(f"{path} row {rows}", found, remedy))
    return y


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


def read_column(path: Path, name: str, place: str) -> np.ndarray:
    """Read one column of numbers of a table: (n_row,) float64, NaN where missing."""
    reader = _reader(path)
    if name not in reader.names:
        raise InputError(
            Problem(place, f"{path} has no column {name!r}", choose(name, reader.names, "column"))
        )
    try:
        parts = [_numbers(path, batch.column(name), name) for batch in reader.batches([], [name])]
    except pa.ArrowInvalid as error:
        found = f"column {name!r} cannot be read as numbers: {' '.join(str(error).split())}"
        raise InputError(Problem(place, found, "give labels 1 and 0")) from None
    return np.concatenate(parts) if parts else np.zeros(0)

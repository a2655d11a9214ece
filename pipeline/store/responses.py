"""The responses of areas: a Parquet table beside their pixels, one row an area, period and source.

An area without a row is an area to predict. Rows of a period come and go without a pixel being
touched; ``docs/bag-store.md`` specifies the table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from models.core.unions import OWN
from pipeline.core.errors import StoreError, StoreInputError
from pipeline.storage.files import atomic_write
from pipeline.storage.location import Place
from pipeline.storage.place import read_place

FILE = "responses.parquet"
FORMAT, VERSION = "disagg-responses", 2
READABLE = (1, VERSION)  # version 1 has no unions
_ABOUT = b"disagg"  # key of the file's metadata
SCHEMA = pa.schema(
    [
        pa.field("area", pa.string(), nullable=False),
        pa.field("period", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        *(pa.field(name, pa.float64()) for name in ("value", "tested", "weight", "lower", "upper")),
        pa.field("training", pa.bool_(), nullable=False),
        pa.field("union", pa.string()),
    ]
)


@dataclass(frozen=True)
class Responses:
    """What is known of each area in one period, in the order of the areas.

    Attributes
    ----------
    value : (n_bag,) float64 array
        Count, value or label; NaN where there is none. Of an interval, its middle.
    training : (n_bag,) bool array
        Whether a model may be fitted to it; false where there is no value.
    tested : (n_bag,) float64 array or None
        People tested, where ``value`` counts the positives among them; NaN where unknown.
    weight : (n_bag,) float64 array or None
        Exposure, where a table gives it: the pixels' weights are scaled to it. NaN where unknown.
    margin : (n_bag,) float64 array or None
        Half of the width of the interval that is known of a suppressed count, else 0; None where
        no count is suppressed.
    averaged : bool
        Whether values are averages over the exposure: the response of a model is their total.
    scaled : bool
        Whether the pixels' weights add up to ``weight`` already.
    fingerprint : str
        Of the inputs.
    union : (n_bag,) str array or None
        Name of the union whose response ``value`` is a share of, as are ``tested``, ``weight`` and
        ``margin``; empty where they are the area's own. None where all are.
    """

    value: np.ndarray
    training: np.ndarray
    tested: np.ndarray | None = None
    weight: np.ndarray | None = None
    margin: np.ndarray | None = None
    averaged: bool = False
    scaled: bool = False
    fingerprint: str = ""
    union: np.ndarray | None = None

    def at(self, bags: np.ndarray) -> Responses:
        """Return those of areas ``bags`` (int), in that order."""
        names = ("value", "training", "tested", "weight", "margin", "union")
        given = {name: getattr(self, name) for name in names}
        return replace(self, **{name: a[bags] for name, a in given.items() if a is not None})

    def with_values(self, bags: np.ndarray, y: np.ndarray) -> Responses:
        """Return them with other values of the areas ``bags`` (int), to train on them alone.

        Raises
        ------
        ValueError
            If ``y`` has another shape, or a value that is not finite.
        """
        y = np.array(y, dtype=np.float64)
        if y.shape != bags.shape or not np.isfinite(y).all():
            found = f"y has shape {y.shape}, or values that are not finite; give ({bags.size},)"
            raise ValueError(found)
        value, training = np.full(self.value.shape, np.nan), np.zeros(self.value.shape, bool)
        value[bags], training[bags] = y, True
        digest = hashlib.sha256(y.tobytes()).hexdigest()
        return replace(
            self,
            value=value,
            training=training,
            margin=None,
            averaged=False,
            union=None,
            fingerprint=f"{self.fingerprint}/responses {digest}",
        )

    @property
    def unions(self) -> np.ndarray | None:
        """Number of each area's union, :data:`OWN` for none: (n_bag,) int64; None without any."""
        if self.union is None or not (self.union != "").any():
            return None
        _, number = np.unique(self.union.astype(str), return_inverse=True)
        found: np.ndarray = np.where(self.union == "", OWN, number)
        return found

    def frame(self, ids: Sequence[str], period: str = "", source: str = "") -> pd.DataFrame:
        """Return their rows of the table; an area of which nothing is known has none."""
        none = np.full(self.value.shape, np.nan)
        margin = np.zeros(self.value.shape) if self.margin is None else self.margin
        suppressed = margin > 0
        columns = {
            "value": np.where(suppressed, np.nan, self.value),
            "tested": none if self.tested is None else self.tested,
            "weight": none if self.weight is None else self.weight,
            "lower": np.where(suppressed, self.value - margin, np.nan),
            "upper": np.where(suppressed, self.value + margin, np.nan),
        }
        known = np.isfinite(np.stack(list(columns.values()))).any(axis=0)
        keys = {"area": list(ids), "period": period, "source": source}
        union = np.full(self.value.shape, "", object) if self.union is None else self.union
        last = {"training": self.training, "union": [each or None for each in union]}
        return pd.DataFrame({**keys, **columns, **last})[known]


def write_responses(
    directory: Place,
    frame: pd.DataFrame,
    *,
    averages: bool = False,
    fingerprint: str = "",
    periods: Sequence[str] = (),
) -> None:
    """Write the table of a store; it takes the place of the one there in one move.

    Parameters
    ----------
    directory : Place
        Of the store's arrays.
    frame : DataFrame
        Of :meth:`Responses.frame`, rows of several periods one after the other.
    averages : bool
        See :class:`Responses`.
    fingerprint : str
        Of the inputs.
    periods : sequence of str
        Those of a series, with responses or without; none for a run of one period.

    Raises
    ------
    StoreInputError
        If an area has two rows of one period and source.
    """
    key = ["area", "period", "source"]
    twice = frame.duplicated(key)
    if twice.any():
        row = frame[twice].iloc[0]
        found = f"two responses of area {row['area']} in period {row['period']!r}; give one of them"
        raise StoreInputError(found)
    table = pa.Table.from_pandas(frame, schema=SCHEMA, preserve_index=False)
    about: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "averages": averages,
        "fingerprint": fingerprint,
    }
    if periods:
        about["periods"] = list(periods)
    table = table.replace_schema_metadata({_ABOUT: json.dumps(about)})
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(table, sink, write_page_checksum=True)
    data = sink.getvalue().to_pybytes()
    if isinstance(directory, Path):
        with atomic_write(directory / FILE) as file:
            file.write(data)
    else:
        (directory / FILE).write(data)


def read_responses(directory: Place) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read the table of a store, and what it says of itself.

    Raises
    ------
    StoreError
        If it is missing, damaged or of a version that this disagg does not know.
    """
    path, again = directory / FILE, "delete the store and ingest again"
    try:
        source = pa.BufferReader(read_place(path))
        table = pa.parquet.read_table(source, page_checksum_verification=True)
        about = dict(json.loads(table.schema.metadata[_ABOUT]))
        version = int(about["version"])
    except FileNotFoundError as error:
        found = f"{path}: the responses of the store are missing; {again}"
        raise StoreError(found) from error
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        found = f"{path}: damaged ({error}); {again}"
        raise StoreError(found) from error
    if version not in READABLE:
        found = f"{path}: version {version}, expected {VERSION}; use the disagg that wrote it"
        raise StoreError(found)
    found = table.to_pandas()
    return found if "union" in found else found.assign(union=None), about


def rows_text(rows: pd.DataFrame) -> str:
    """Return rows of the table as text, whose fingerprint tells whether one has changed."""
    kept = rows if rows["union"].notna().any() else rows.drop(columns="union")
    return kept.sort_values("area").to_csv(index=False)


def no_responses(
    directory: Place, ids: Sequence[str], before: Sequence[str], fingerprint: str
) -> Responses:
    """Return the responses of a period of which none is known.

    Parameters
    ----------
    directory : Place
        Of the table.
    ids : (n_bag,) sequence of str
    before : sequence of str
        Periods whose last exposure of each area holds.
    fingerprint : str
    """
    frame, about = read_responses(directory)
    unknown = np.full(len(ids), np.nan)
    return Responses(
        unknown,
        np.zeros(len(ids), bool),
        tested=unknown if frame["tested"].notna().any() else None,
        weight=last_weights(frame, ids, before),
        averaged=bool(about["averages"]),
        fingerprint=fingerprint,
    )


def last_weights(
    frame: pd.DataFrame, ids: Sequence[str], periods: Sequence[str]
) -> np.ndarray | None:
    """Return the last exposure of each area, (n_bag,) float64, NaN where none is known.

    Parameters
    ----------
    frame : DataFrame
        Of :func:`read_responses`.
    ids : (n_bag,) sequence of str
    periods : sequence of str
        By rising time.

    Returns
    -------
    array or None
        None where no exposures are given.
    """
    known = frame[frame["weight"].notna()]
    if known.empty:
        return None
    order = {label: k for k, label in enumerate(periods)}
    at = known["period"].map(order)
    own = known[at.notna()].assign(at=at[at.notna()]).sort_values("at")
    last = own.drop_duplicates("area", keep="last").set_index("area")["weight"]
    found: np.ndarray = last.reindex(list(ids)).to_numpy(np.float64)
    return found


def responses_of(
    frame: pd.DataFrame,
    about: Mapping[str, Any],
    ids: Sequence[str],
    period: str | None,
    place: Place,
    *,
    unions: bool = False,
) -> Responses:
    """Return the responses of one period, in the order of the areas ``ids``.

    Parameters
    ----------
    frame, about
        Of :func:`read_responses`.
    ids : (n_bag,) sequence of str
    period : str or None
        None where the table has one period alone.
    place : Place
        For messages.
    unions : bool
        Whether areas have their share of what is known of their union alone; else nothing is known
        of them.

    Raises
    ------
    StoreError
        If the period is not there, or has to be chosen; if its rows are of several sources, or of
        an area that is not there.
    """
    there = list(dict.fromkeys(frame["period"]))
    if period is None and len(there) > 1:
        found = f"{place}: has the periods {', '.join(there)}; choose one"
        raise StoreError(found)
    known = [*there, *about.get("periods", ())]
    if period is not None and period not in known:
        found = f"{place}: has no responses of period {period!r}, but of {', '.join(there)}"
        raise StoreError(found)
    chosen = frame if period is None else frame[frame["period"] == period]
    sources = list(dict.fromkeys(chosen["source"]))
    if len(sources) > 1:
        found = f"{place}: has the responses of several sources ({', '.join(sources)}); keep one"
        raise StoreError(found)
    number = {name: k for k, name in enumerate(ids)}
    at = np.array([number.get(name, -1) for name in chosen["area"]], np.int64)
    if (at < 0).any():
        name = chosen["area"].iloc[int(np.argmax(at < 0))]
        found = f"{place}: has a response of {name}, an area that the pixels do not have"
        raise StoreError(found)

    is_union = chosen["union"].notna().to_numpy()
    used = np.ones(len(chosen), bool) if unions else ~is_union

    def column(name: str, rows: np.ndarray = used) -> np.ndarray:
        values = np.full(len(ids), np.nan)
        values[at[rows]] = chosen[name].to_numpy(np.float64)[rows]
        values.setflags(write=False)
        return values

    fingerprint = str(about["fingerprint"])
    if period is not None and len(there) > 1:  # of its own rows: another month may be corrected
        fingerprint = hashlib.sha256(rows_text(chosen).encode()).hexdigest()
    training = np.zeros(len(ids), bool)
    training[at[used]] = chosen["training"].to_numpy(bool)[used]
    names = ("tested", "weight", "lower")
    columns = {name: bool(frame[name].notna().any()) for name in names}
    union = None
    if unions and is_union.any():
        union = np.full(len(ids), "", object)
        union[at] = chosen["union"].where(is_union, "").to_numpy(object)
    value, margin = column("value"), None
    if columns["lower"]:
        lower, upper = column("lower"), column("upper")
        suppressed = np.isfinite(lower)
        value = np.where(suppressed, 0.5 * (lower + upper), value)
        margin = np.where(suppressed, 0.5 * (upper - lower), 0.0)
    return Responses(
        value=value,
        training=training,
        tested=column("tested") if columns["tested"] else None,
        # A share of the exposure is as good as any: rates do not depend on it.
        weight=column("weight", np.ones(len(chosen), bool)) if columns["weight"] else None,
        margin=margin,
        averaged=bool(about["averages"]),
        fingerprint=fingerprint,
        union=union,
    )

"""Write a table as CSV that reads back to the same numbers and texts."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd

from geo.core.text_safety import spreadsheet_safe, spreadsheet_safe_frame

#: Columns of texts that may look like numbers.
_TEXTS = {"id", "name", "source", "area", "observed_why", "counted_in", "period"}
WHOLE = 1e16  # beyond it, digits of a whole number say nothing


def write_csv(table: pd.DataFrame, path: Path, *, index: bool = False) -> None:
    """Write a table as CSV, numbers in full, texts harmless in spreadsheets.

    A number has the fewest digits that read back to the same number, and no decimals if it is
    whole; a missing one is empty.

    Parameters
    ----------
    table : DataFrame
    path : Path
    index : bool, optional
        Whether to write the index, too.
    """
    written = spreadsheet_safe_frame(table)
    if index:
        written.index = written.index.map(spreadsheet_safe)
    for place, dtype in enumerate(table.dtypes):
        if pd.api.types.is_float_dtype(dtype):
            values = table.iloc[:, place].to_numpy()  # its items keep their type
            written.isetitem(place, [_shortest(value) for value in values])
    written.to_csv(path, index=index, lineterminator="\n")


def read_csv(path: Path) -> pd.DataFrame:
    """Read what :func:`write_csv` wrote: ids and names stay texts, with their zeros, ``NA`` too.

    The first column is one of texts, as in all tables of a run.
    """
    whole = path.read_bytes()
    head = list(pd.read_csv(io.BytesIO(whole), nrows=0).columns)
    texts = dict.fromkeys([*head[:1], *_TEXTS.intersection(head)], str)
    return pd.read_csv(io.BytesIO(whole), dtype=texts, keep_default_na=False, na_values=[""])


def _shortest(value: Any) -> str | None:
    if pd.isna(value):
        return None
    if abs(value) < WHOLE and value == int(value):
        return str(int(value))
    # NumPy's text is the shortest of the number's own type: float32 needs fewer digits.
    return str(value)

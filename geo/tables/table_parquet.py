"""Parquet tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from geo.tables import table_format
from geo.tables.table_format import TableFormat


class Parquet(TableFormat):
    """Reads Parquet files."""

    name = "Parquet"
    first_row = 1

    def read(self, path: str | Path) -> pd.DataFrame:
        """Read a whole table."""
        table = pd.read_parquet(path)
        table.index = pd.RangeIndex(1, len(table) + 1)
        return table

    def columns(self, path: str | Path) -> list[str]:
        """Return the names of the columns."""
        return list(pa.parquet.read_schema(path).names)

    def batches(
        self, path: str | Path, texts: list[str], numbers: list[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read some columns in batches."""
        with pa.parquet.ParquetFile(path) as file:
            yield from file.iter_batches(table_format.BATCH, columns=[*texts, *numbers])

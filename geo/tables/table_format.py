"""Base class of table formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa

from geo.core.errors import InputError, Problem

#: Rows of a batch.
BATCH = 65536


class TableFormat(ABC):
    """Reads tables of one format.

    A format must implement :meth:`read`. One that can read a part of a table overrides the other
    methods, too, so that tables larger than memory can be imported.

    Attributes
    ----------
    name : str
        Name in messages.
    first_row : int
        Number of the first row of data, as a spreadsheet shows it.
    row_word : str
        Word for a row in messages.
    part : str
        What a file may have several of, each a table: "sheet" or "layer"; empty if it has one
        table. This is also the configuration key that chooses one.
    """

    name: str
    first_row: int = 2
    row_word: str = "row"
    part: str = ""

    def laid_out(
        self, encoding: str | None = None, delimiter: str | None = None, skip_rows: int = 0
    ) -> TableFormat:
        """Return the reader of a file so written; refuse what the format has of its own."""
        for key, value in (("encoding", encoding), ("delimiter", delimiter)):
            if value is not None:
                found = f"`{key}: {value}` is given, but {self.name} files have their own"
                raise InputError(Problem("", found, "remove the key"))
        if skip_rows:
            found = f"`skip_rows: {skip_rows}` is given, but {self.name} files begin with the names"
            raise InputError(Problem("", found, "remove the key"))
        return self

    @abstractmethod
    def read(self, path: str | Path) -> pd.DataFrame:
        """Read a whole table; its index has the number of each row, as a spreadsheet shows it.

        Raises
        ------
        OSError, ValueError
            If the file cannot be read; users see the message.
        """

    def read_part(self, path: str | Path, part: str | None) -> pd.DataFrame:
        """Read one sheet or layer, or the only table for None; see :meth:`read`."""
        if part is not None:
            found = f"{self.name} files have a single table"
            raise InputError(Problem(str(path), found, "remove the keys `sheet` and `layer`"))
        return self.read(path)

    def columns(self, path: str | Path) -> list[str]:
        """Return the names of the columns."""
        return [str(name) for name in self.read(path).columns]

    def batches(
        self, path: str | Path, texts: list[str], numbers: list[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read some columns in batches.

        Parameters
        ----------
        path : str or Path
        texts, numbers : list of str
            Columns of text and of numbers.
        """
        frame = self.read(path)[[*texts, *numbers]]
        yield from pa.Table.from_pandas(frame, preserve_index=False).to_batches(BATCH)

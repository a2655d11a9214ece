"""The table of the responses, as a kind of response reads it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


@dataclass(frozen=True)
class Columns:
    """Columns of the responses, each by area, None where it is not given or cannot be read.

    Attributes
    ----------
    counts : Series or None
        Counts, values or labels; NaN for areas without one.
    tested : Series or None
        Numbers tested.
    weights : Series or None
        Exposures.
    margins : Series or None
        Of counts that are intervals, half of the width; ``counts`` has their middles. 0 of others;
        None where there are no intervals.
    """

    counts: pd.Series | None = None
    tested: pd.Series | None = None
    weights: pd.Series | None = None
    margins: pd.Series | None = None

    @property
    def given(self) -> dict[str, pd.Series]:
        """The columns that are given, by name."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: values for name, values in named.items() if values is not None}

    def arrays(self, order: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns that are given as float64 arrays, of the areas ``order`` (int)."""
        return {name: values.to_numpy("float64")[order] for name, values in self.given.items()}

    @property
    def least(self) -> pd.Series | None:
        """The smallest that each count may be."""
        if self.counts is None or self.margins is None:
            return self.counts
        return self.counts - self.margins

    @property
    def known(self) -> pd.Series | None:
        """The counts that are given as numbers; NaN where an interval is."""
        if self.counts is None or self.margins is None:
            return self.counts
        return self.counts.where(self.margins == 0)


class Table(Protocol):
    """The table that a configuration names, opened; problems are collected in it."""

    @property
    def n_problem(self) -> int:
        """Number of problems so far."""

    def numbers(self, column: str, **options: Any) -> pd.Series | None:
        """Return numbers by area; options as of :func:`geo.tables.counts.read_counts`."""

    def margins(self, column: str) -> pd.Series | None:
        """Return half of the width of counts that are intervals; None where none is."""

    def labels(self, column: str) -> pd.Series | None:
        """Return the labels of a column by area, 0 or 1."""

    def report(self, found: str, remedy: str, chosen: pd.Series | None = None) -> None:
        """Add a problem: of the rows of the chosen areas, (n_area,) bool by id, or of the table."""

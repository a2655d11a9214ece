"""Counts of several areas together, such as of before a split: whose they are, and how many.

A map has no count of any of these areas. The table of its areas says which count each is a part
of, and keeps the counts among its attributes, for the totals of levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pipeline.store.earlier_store import responses_beside

COUNTED_IN = "counted_in"
N_NAMED = 3  # areas of a union that its title names
ALONE = -1  # number of an area that is in no such count
_KEY = "together"  # of the attributes of a table, which are JSON


@dataclass(frozen=True)
class Together:
    """The counts of several areas together, of one period.

    Attributes
    ----------
    names : (n_union,) object array of str
        What a reader calls each union of areas: its areas of before, or the rest of a zone.
    ids : (n_area,) object array of str
        Of the areas.
    number : (n_area,) int64 array
        Of each area's union, :data:`ALONE` for none.
    cases, tested : (n_union,) float64 arrays
        NaN where unknown.
    suppressed : (n_union,) bool array
        Whether a count is known as an interval alone.
    """

    names: np.ndarray
    ids: np.ndarray
    number: np.ndarray
    cases: np.ndarray
    tested: np.ndarray
    suppressed: np.ndarray

    @classmethod
    def of_store(cls, store: Any) -> Together | None:
        """Return what the responses of a store have that its bags lack; None if nothing.

        Parameters
        ----------
        store : BagStore
            Of one period of a series, opened without the shares of unions.
        """
        reference = store.reference
        if reference.period is None or reference.responses is not None or store.together is None:
            return None
        found = responses_beside(store.pixels, reference.period, unions=True)
        found = found if reference.bags is None else found.at(reference.bags)
        if found.union is None or not (found.union != "").any():
            return None
        names, number = np.unique(found.union.astype(str), return_inverse=True)
        shift = int(names[0] == "")  # areas with a count of their own
        number, n = number - shift, names.size - shift
        inside = number >= 0
        nothing = np.full(number.shape, np.nan)

        def total(shares: np.ndarray) -> np.ndarray:
            return np.bincount(number[inside], shares[inside], n)

        hidden = np.zeros(n, bool) if found.margin is None else total(found.margin) > 0
        # An average is no count: how many cases it stands for is not asked.
        cases = total(nothing if found.averaged else found.value)
        return cls(
            names[shift:].astype(object),
            np.array(store.ids, object),
            np.where(inside, number, ALONE),
            np.where(hidden, np.nan, cases),
            total(nothing if found.tested is None else found.tested),
            hidden,
        )

    @classmethod
    def of_table(cls, table: pd.DataFrame, ids: Sequence[str]) -> Together | None:
        """Return what :meth:`keep` left in a table, for areas in another order; None if nothing."""
        kept = table.attrs.get(_KEY)
        if kept is None:
            return None
        return cls(
            np.array(kept["names"], object),
            np.array(list(ids), object),
            np.array([kept["area"].get(name, ALONE) for name in ids], np.int64),
            np.array(kept["cases"], np.float64),
            np.array(kept["tested"], np.float64),
            np.array(kept["suppressed"], bool),
        )

    def keep(self, table: pd.DataFrame) -> None:
        """Leave it among the attributes of a table of the areas."""
        pairs = zip(self.ids.tolist(), self.number.tolist(), strict=True)

        def plain(values: np.ndarray) -> list[float | None]:
            return [None if np.isnan(value) else float(value) for value in values]

        table.attrs[_KEY] = {
            "names": self.names.tolist(),
            "area": {name: number for name, number in pairs if number != ALONE},
            "cases": plain(self.cases),
            "tested": plain(self.tested),
            "suppressed": self.suppressed.tolist(),
        }

    @property
    def titles(self) -> np.ndarray:
        """Name of each union with its areas, as messages have it: ``0254 (0900 + 0901)``."""
        titles = []
        for k, name in enumerate(self.names):
            own = self.ids[self.number == k]
            more = f" + {own.size - N_NAMED} more" if own.size > N_NAMED else ""
            titles.append(f"{name} ({' + '.join(own[:N_NAMED])}{more})")
        return np.array(titles, object)

    def counted_in(self) -> np.ndarray:
        """Return the name of each area's union, empty for none: (n_area,) object array of str."""
        return np.array([*self.names, ""], object)[self.number]


def with_counted_in(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of areas with the column ``counted_in`` behind what was observed, if any."""
    found = Together.of_table(table, list(table.index))
    if found is None:
        return table
    result = table.copy()
    place = sum(str(name) in ("observed", "observed_lower", "observed_upper") for name in table)
    result.insert(place, COUNTED_IN, found.counted_in())
    return result

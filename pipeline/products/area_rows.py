"""Rows of the table of areas that are not as others: amounts unknown, or nobody lives there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pipeline.store.bag_store import BagStore

_KEY = "uninhabited"  # of the attributes of a table
#: Columns that still have a meaning if the exposure of an area's total is unknown.
_RATES = ("fitted_rate", "fitted_rate_lower", "fitted_rate_upper")


def with_uninhabited(table: pd.DataFrame, store: BagStore) -> pd.DataFrame:
    """Return a table of areas with a row for each uninhabited one that has a count.

    The bag store lacks these areas, but totals of areas around them have their counts.

    Parameters
    ----------
    table : DataFrame
        From :func:`pipeline.products.areas.tabulate_areas`, with ``in_training``, by id.
    store : BagStore
        Its areas, in any order.
    """
    left = store.attrs.get("left_out", {})
    empty, zero = left.get(_KEY, []), left.get("zero", [])  # stores of before have none
    result = table.reindex([*table.index, *zero])
    result["in_training"] = np.arange(len(result)) < len(table)
    result.loc[table.index, "in_training"] = table["in_training"]
    if "observed" in result:
        result.loc[zero, "observed"] = 0.0
    result.attrs[_KEY] = empty
    return result


def uninhabited(table: pd.DataFrame, ids: Sequence[str]) -> np.ndarray:
    """Return which areas nobody inhabits, as :func:`with_uninhabited` told a table: (n_area,)."""
    return np.isin(np.asarray(ids, str), np.asarray(table.attrs.get(_KEY, []), str))


def blank_unknown(table: pd.DataFrame, store: BagStore) -> pd.DataFrame:
    """Leave only the rates of areas whose number tested, or whose exposure, is unknown.

    Parameters
    ----------
    table : DataFrame
        From :func:`pipeline.products.areas.tabulate_areas`; computed for one person tested, or
        for the people of the pixels.
    store : BagStore
        The areas, in the same order.
    """
    known = store.known_trials & store.known_exposure
    blank = [column for column in table.columns if column not in (*_RATES, "people")]
    return table.assign(
        people=table["people"].where(store.known_exposure),
        **{column: table[column].where(known) for column in blank},
    )

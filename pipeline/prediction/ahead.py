"""Which covariates the forecasts have, told in a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from geo.core.errors import name_first

N_NAMED = 6  # periods


def told_ahead(known: Mapping[str, Any], names: Sequence[str], labels: Sequence[str]) -> str:
    """Return what each covariate of forecasts is: its own, or that of other periods.

    Parameters
    ----------
    known : mapping
        Of :func:`pipeline.training.series.read_ahead`.
    names : sequence of str
        Of what moves.
    labels : sequence of str
        Of the forecasts, by rising time.

    Returns
    -------
    str
        ``rain: 2024-07 as given, 2024-08 as in 2023-08 (no file)``; empty where nothing moves.
    """
    there = [label for label in labels if label in known]
    told = []
    for name in names if there else ():
        each = [(label, _source(known[label], name)) for label in there]
        parts = []
        for source, group in groupby(each, lambda pair: pair[1]):
            parts.append(f"{name_first([label for label, _ in group], N_NAMED)} {source}")
        told.append(f"{name}: {', '.join(parts)}")
    return "; ".join(told)


def _source(found: Mapping[str, Any], name: str) -> str:
    if name in found["known"]:
        return "as given"
    like, why = list(found["like"]), found["lacking"][name]
    where = f"in {like[0]}" if len(like) == 1 else f"the mean of {name_first(like, N_NAMED)}"
    return f"as {where} ({why})"

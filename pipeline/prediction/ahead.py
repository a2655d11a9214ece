"""Which covariates the forecasts have, told in a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from geo.core.errors import name_first

N_NAMED = 6  # periods


def told_ahead(
    known: Mapping[str, Any],
    names: Sequence[str],
    labels: Sequence[str],
    taken: Mapping[str, Sequence[str]],
) -> str:
    """Return what each covariate of forecasts is: its own, or that of other periods.

    Parameters
    ----------
    known : mapping
        Of :func:`pipeline.training.series.read_ahead`.
    names : sequence of str
        Of what moves.
    labels : sequence of str
        Of the forecasts, by rising time.
    taken : mapping of str to sequence of str
        Periods that each forecast takes from what it does not know, each for one part of the
        draws; some several times.

    Returns
    -------
    str
        ``rain: 2024-07 as given, 2024-08 as in 2023-07, 2023-08 or 2023-09 (no file)``; empty where
        nothing moves.
    """
    there = [label for label in labels if label in known]
    told = []
    for name in names if there else ():
        each = [(label, _source(known[label], name, taken[label])) for label in there]
        parts = []
        for source, group in groupby(each, lambda pair: pair[1]):
            parts.append(f"{name_first([label for label, _ in group], N_NAMED)} {source}")
        told.append(f"{name}: {', '.join(parts)}")
    return "; ".join(told)


def _source(found: Mapping[str, Any], name: str, taken: Sequence[str]) -> str:
    if name in found["known"]:
        return "as given"
    parts = Counter(taken or found["like"])
    said = list(parts)
    if len(set(parts.values())) > 1:
        said = [f"{label} ({n} in {parts.total()} draws)" for label, n in parts.items()]
    if len(said) > N_NAMED:
        where = name_first(said, N_NAMED)
    else:
        where = " or ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)
    return f"as in {where} ({found['lacking'][name]})"

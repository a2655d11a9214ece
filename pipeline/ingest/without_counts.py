"""Areas without a count (or label): they are predicted, and no part of the training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from geo.core.errors import Problem, name_first
from geo.sources.repair import Repairs
from pipeline.config.schema import Config
from pipeline.core.progress import Progress
from pipeline.store.bag_store import BagStore

#: Share of areas without a count above which the message is a warning.
MUCH = 0.2
N_NAMED = 5


def own_file(config: Config) -> bool:
    """Return whether the counts are a column of the areas: without a path, or with the same."""
    spec, areas = config.response, config.areas
    if spec.path is None:
        return True
    same = spec.path == areas.path and spec.layer in (None, areas.layer)
    return same and spec.id in (None, areas.id) and getattr(spec, "period", None) is None


def check_merged(config: Config, repairs: Repairs, place: str, problems: list[Problem]) -> None:
    """Append a problem if features of one area, now merged, have different counts."""
    spec = config.response
    for column in (spec.value, getattr(spec, "tested", None)):
        areas = repairs.differing.get(column or "", [])
        if areas:
            found = f"column {column!r} differs between the merged features of {name_first(areas)}"
            remedy = "give the same value in each, or the counts as a table with one row an area"
            problems.append(Problem(place, found, remedy))


def describe_missing(
    absent: Sequence[str], n_area: int, config: Config, unpredicted: Sequence[str] = ()
) -> str:
    """Say how many areas have no response, and which; of a series, in its last period.

    Parameters
    ----------
    absent : sequence of str
        All of them.
    n_area : int
    config : Config
    unpredicted : sequence of str, optional
        Those of them that no pixel has all values of, where that is known.
    """
    share = len(absent) / n_area
    when, how, noun = "", "predicted only", config.response_kind.noun
    if config.series is not None:
        when, how = f" in {config.period}", "predicted there, from other areas and periods"
    text = (
        f"{len(absent):,} of {n_area:,} areas ({100 * share:.3g} %) have no {noun}{when} (0 is one)"
    )
    predicted = [each for each in absent if each not in set(unpredicted)]
    parts = [
        f"{word} {name_first(some, N_NAMED)}"
        for word, some in (
            (f"{how}:", predicted),
            ("not predicted, for want of a pixel with all values:", unpredicted),
        )
        if some
    ]
    text = f"{text}; {'; '.join(parts)}"
    return f"warning: {text}" if share > MUCH else text


def summarise(store: BagStore, config: Config, progress: Progress) -> dict[str, Any]:
    """Log and return number, share and exposure of the areas without a count, and the repairs.

    Parameters
    ----------
    store : BagStore
        With the areas without a count.
    config : Config
    progress : Progress
    """
    left = store.attrs["left_out"]
    unpredicted = left.get("unpredicted", [])
    others = ~store.in_training
    absent = sorted([*(store.ids[k] for k in np.flatnonzero(others)), *unpredicted])
    result: dict[str, Any] = {}
    if absent:
        n_all = store.n_bag + len(unpredicted) + len(left["areas"])
        exposure = float(store.bag_weight[others].sum())
        result["areas_without_counts"] = {
            "n": len(absent),
            "share": len(absent) / n_all,
            "exposure": exposure,
            "unpredicted": unpredicted,
        }
        unit = store.attrs["weight_unit"]
        text = describe_missing(absent, n_all, config, unpredicted)
        progress.log(f"ingest: {text}; {exposure:,.0f} {unit} in them")
    if "repairs" in store.attrs:
        result["repairs"] = store.attrs["repairs"]
    return result

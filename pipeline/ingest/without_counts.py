"""Areas without a count (or label): they are predicted, and no part of the training.

They have a bag store of their own, ``work/areas_without_counts.zarr``, so that everything that
trains or scores a model reads what it always read (``docs/design/areas-without-counts.md``).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from geo.errors import Problem, name_first
from geo.repair import Repairs
from pipeline.config.schema import Config
from pipeline.core.progress import Progress
from pipeline.storage.local_commit import is_current
from pipeline.storage.location import Location, Place
from pipeline.storage.object_commit import MARKER
from pipeline.store.bag_store import BagStore
from pipeline.store.bag_writer import FORMAT, VERSION

#: A :class:`pipeline.ingest.selection.Bags`.
BagsT = TypeVar("BagsT", bound=Any)

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


def describe_missing(absent: Sequence[str], n_area: int) -> str:
    """Say how many areas have no count or label, and which."""
    share = len(absent) / n_area
    text = (
        f"{len(absent):,} of {n_area:,} areas ({100 * share:.3g} %) have no count or label (0 "
        f"is one) and are predicted only: {name_first(absent, N_NAMED)}"
    )
    return f"warning: {text}" if share > MUCH else text


def split_bags(bags: BagsT, counted: np.ndarray) -> tuple[BagsT, BagsT | None]:
    """Separate the bags of areas with a count from the others.

    Parameters
    ----------
    bags : Bags
        Of all areas that have a usable pixel.
    counted : (n_area,) bool array
        Whether each area has a count.

    Returns
    -------
    Bags
        Of the areas with a count.
    Bags or None
        Of the others; None if there are none.
    """
    chosen = counted[bags.area]
    if chosen.all():
        return bags, None
    return _subset(bags, chosen), _subset(bags, ~chosen)


def _subset(bags: BagsT, chosen: np.ndarray) -> BagsT:
    sizes = np.diff(bags.offsets)
    pixel = np.repeat(chosen, sizes)
    result: BagsT = replace(
        bags,
        area=bags.area[chosen],
        offsets=np.concatenate([[0], np.cumsum(sizes[chosen])]).astype(np.int64),
        pixel=bags.pixel[pixel],
        fraction=bags.fraction[pixel],
    )
    return result


def is_store_current(bags_path: Place, path: Place, fingerprint: str) -> bool:
    """Return whether the store of areas without counts is what the bag store says it is."""
    if not BagStore.open(bags_path).attrs.get("n_without_counts", 0):
        return True
    return is_current(path, FORMAT, VERSION, fingerprint)


def remove_store(path: Place) -> None:
    """Remove the store of an earlier run."""
    if isinstance(path, Location):
        path.remove([MARKER])  # keep the link, or the next store would be local
    else:
        shutil.rmtree(path, ignore_errors=True)


def store_attrs(y: pd.Series, bags: Any, repairs: Repairs) -> dict[str, Any]:
    """Return attributes of the bag store: the areas without a count, and what was repaired.

    Parameters
    ----------
    y : (n_area,) Series
    bags : Bags
        Of the store: areas with a count, or areas without.
    repairs : Repairs
    """
    counted = y.notna().to_numpy()
    if not counted[bags.area].all():
        return {}
    unpredicted = set(bags.left_out["unpredicted"])
    absent = [str(area) for area in y.index[~counted]]
    found: dict[str, Any] = {}
    if absent:
        found["n_without_counts"] = sum(area not in unpredicted for area in absent)
        found["without_counts"] = absent
    if repairs:
        found["repairs"] = repairs.to_dict()
    return found


def summarise(store: BagStore, others: BagStore | None, progress: Progress) -> dict[str, Any]:
    """Log and return number, share and exposure of the areas without a count, and the repairs."""
    absent = store.attrs.get("without_counts", [])
    unpredicted = store.attrs["left_out"].get("unpredicted", [])
    result: dict[str, Any] = {}
    if absent:
        n_all = store.n_bag + len(absent) + len(store.attrs["left_out"]["areas"])
        exposure = 0.0 if others is None else float(others.bag_weight.sum())
        result["areas_without_counts"] = {
            "n": len(absent),
            "share": len(absent) / n_all,
            "exposure": exposure,
            "unpredicted": unpredicted,
        }
        unit = store.attrs["weight_unit"]
        progress.log(f"ingest: {describe_missing(absent, n_all)}; {exposure:,.0f} {unit} in them")
    if unpredicted:
        named = name_first(unpredicted, N_NAMED)
        progress.log(f"ingest: not predicted, for want of a pixel with all values: {named}")
    if "repairs" in store.attrs:
        result["repairs"] = store.attrs["repairs"]
    return result

"""What moves from period to period: covariates and weights of one period, beside the pixels.

The pixels of a store and their order stand still. A period is a group of its own,
``periods/<period>`` in the store, written and replaced without touching another.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import zarr

from pipeline.core.errors import StoreInputError
from pipeline.core.threads import run_tasks
from pipeline.storage.local_commit import staged
from pipeline.storage.location import Place
from pipeline.storage.object_commit import zarr_at
from pipeline.store.bag_writer import (
    PERIODS,
    StoredOrder,
    merge_pieces,
    new_pixel_array,
    shard_ranges,
    write_tables,
)
from pipeline.store.moments import moments_of
from pipeline.store.pixel_store import PERIOD_FORMAT, PERIOD_VERSION, PixelStore

#: ``rows(bag, start, stop)``: covariates (n_pix, n_moving) float32 of pixels ``start[k]:stop[k]``
#: of area ``bag[k]``, numbers of the store, one after the other; and their weights, or None.
MovingRows = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray | None]]


def write_period(
    store: PixelStore,
    period: str,
    covariates: Sequence[str],
    units: Sequence[str],
    rows: MovingRows,
    *,
    has_weight: bool = False,
    workers: int | None = None,
    fingerprint: str = "",
    place: Place | None = None,
) -> None:
    """Write the covariates, and the weights, of one period; it appears when complete.

    Parameters
    ----------
    store : PixelStore
    period : str
        Its label, which names a directory: letters, digits, ``-`` and ``_``.
    covariates, units : sequences of str
        Of what moves.
    rows : callable
    has_weight : bool
        Whether ``rows`` returns weights: people of that period.
    workers : int, optional
        Threads; the result does not depend on it.
    fingerprint : str
        Of what it is made of.
    place : Place, optional
        Where, for a period after the series: another place than the store's.

    Raises
    ------
    StoreInputError
        If values are not finite or shapes disagree, or a covariate is in the store already.
    """
    known = [name for name in covariates if name in store.attrs["covariates"]]
    if (
        not (covariates or has_weight)
        or known
        or not period.replace("-", "").replace("_", "").isalnum()
    ):
        found = (
            f"period {period!r} with the covariates {', '.join(covariates)}: give a label of "
            "letters, digits, - and _, and covariates that the store does not have"
        )
        raise StoreInputError(found)
    shard = store.chunks[1]
    stored = StoredOrder(np.arange(store.n_bag), store.offsets)
    n_feat = len(covariates)
    with staged(
        place or store.data / PERIODS / period, PERIOD_FORMAT, PERIOD_VERSION, store.fingerprint
    ) as staging:
        group = zarr.create_group(zarr_at(staging), zarr_format=3)
        names = (*(["x"] if covariates else []), *(["weight"] if has_weight else []))
        unit = str(store.attrs.get("weight_unit", "people"))
        arrays = {
            name: new_pixel_array(
                group, name, store.n_pix, n_feat if name == "x" else None, store.chunks, unit
            )
            for name in names
        }

        def write(start: int, stop: int) -> tuple[np.ndarray, ...]:
            bag, begin, end = stored.pieces(start, stop)
            x, weight = rows(bag, begin, end)
            if x.shape != (stop - start, n_feat) or not np.isfinite(x).all():
                found = f"x of period {period} has shape {x.shape}, or values that are not finite"
                raise StoreInputError(found)
            if has_weight and (weight is None or not (np.isfinite(weight) & (weight >= 0)).all()):
                found = f"weight of period {period} is missing, negative or not finite"
                raise StoreInputError(found)
            if covariates:
                arrays["x"][start:stop] = x
            if has_weight:
                arrays["weight"][start:stop] = weight
            cuts = np.concatenate([[0], np.cumsum(end - begin)])
            spans = [slice(a, b) for a, b in itertools.pairwise(cuts)]
            sums = [0.0 if weight is None else float(weight[s].sum()) for s in spans]
            return bag, end - begin, np.array(sums), np.stack([moments_of(x[s]) for s in spans])

        parts: Any = run_tasks(write, shard_ranges(store.n_pix, shard), workers)
        weight, moments = merge_pieces(parts, store.n_bag, n_feat)
        tables = {"moments": moments} if covariates else {}
        write_tables(group, unit, **tables, **({"bag_weight": weight} if has_weight else {}))
        group.attrs.update(
            {
                "format": PERIOD_FORMAT,
                "version": PERIOD_VERSION,
                "period": period,
                "fingerprint": fingerprint,
                "covariates": list(covariates),
                "units": list(units),
            }
        )

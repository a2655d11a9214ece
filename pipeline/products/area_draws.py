"""The posterior draws of the counted areas, as predict leaves them for evaluate."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.products.areas import AreaDraws
from pipeline.storage.files import atomic_write
from pipeline.store.balance import made_of

#: In the output directory.
AREA_DRAWS = "work/area_draws.npz"
MOST = 20_000_000  # numbers: of more, drawing them again is little beside the rest of a run


def write_area_draws(out: Path, store: Any, draws: AreaDraws, ids: list[str], seed: int) -> None:
    """Write the draws of expected counts, and what they are of.

    Parameters
    ----------
    out : Path
        Output directory.
    store : BagStore
        The counted areas.
    draws : AreaDraws
        Of all areas.
    ids : list of str
        Of all areas, in the order of ``draws``.
    seed : int
        Of the functions drawn.
    """
    path = out / AREA_DRAWS
    if draws.expected.shape[0] * store.n_bag > MOST:
        path.unlink(missing_ok=True)
        return
    place = {name: number for number, name in enumerate(ids)}
    expected = draws.expected[:, [place[name] for name in store.ids]]
    with atomic_write(path) as file:
        np.savez(file, of=_key(out, store, seed), expected=expected)


def read_area_draws(out: Path, store: Any, seed: int, n_draws: int) -> np.ndarray | None:
    """Read what predict wrote; None if there is nothing of this store, model and seed.

    Returns
    -------
    (n_draws, n_bag) float64 array, or None
        Expected counts, in the order of the store.
    """
    try:
        with (out / AREA_DRAWS).open("rb") as raw, np.load(raw, allow_pickle=False) as arrays:
            key, expected = str(arrays["of"]), np.asarray(arrays["expected"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    right = key == _key(out, store, seed) and expected.shape == (n_draws, store.n_bag)
    return expected if right else None


def _key(out: Path, store: Any, seed: int) -> str:
    return json.dumps([made_of(out, store), seed], sort_keys=True)

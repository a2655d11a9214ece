"""Suspicions about a file of some period that has values in fewer areas than all others."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from geo.core.errors import name_first
from pipeline.ingest.period_sample import LayerPeriods
from pipeline.ingest.raster_suspicions import Suspicion

N_NAMED = 5
N_FILE = 5  # from which one can stand apart
FEW = 0.1  # share of the files; more of them are how the layer is
EMPTY = 0.05  # share of an area's pixels with a value; what is cut off has fewer, below clouds more
CLEAR = 0.8  # share of the usual pixels with a value that the other areas have in a cut raster
LOST, TIMES = 0.1, 3.0  # share of the areas; times what any other file lacks


def cut_suspicions(layers: Iterable[LayerPeriods]) -> list[Suspicion]:
    """Return a suspicion about each layer of which few files cover clearly fewer of the areas.

    A file lacks an area where hardly a pixel has a value. It is suspicious if it lacks a tenth of
    the areas that most files cover, 3 times as many as any other and more than in the same season
    of other years, and has its usual pixels in the others: clouds are not cut.

    Parameters
    ----------
    layers : iterable of LayerPeriods
    """
    found = []
    for layer in layers:
        usual, lost = _lost(layer)
        odd = _odd(layer, usual, lost)
        if not odd:
            continue
        n, of = lost.sum(axis=0), int(usual.sum())
        each = [f"{layer.labels[t]} ({of - n[t]:,} of {of:,} areas)" for t in odd]
        text = f"covers fewer areas than in other periods in {name_first(each, N_NAMED)}"
        remedy = "give the whole raster: it may be cut, or no whole download"
        place = f"{layer.key} ({layer.paths[odd[0]]})"
        found.append(Suspicion("coverage", place, text, remedy))
    return found


def _lost(layer: LayerPeriods) -> tuple[np.ndarray, np.ndarray]:
    """Return which areas most files cover, and which of these each does not."""
    covered = layer.known > EMPTY
    usual: np.ndarray = covered.mean(axis=1) > 0.5
    return usual, ~covered & usual[:, None]


def _odd(layer: LayerPeriods, usual: np.ndarray, lost: np.ndarray) -> list[int]:
    """Return the files that cover clearly fewer areas."""
    n = lost.shape[1]
    if n < N_FILE or not usual.any():
        return []
    share = lost[usual].mean(axis=0)
    order = np.argsort(-share, kind="stable")
    odd: list[int] = []
    for k in range(1, max(1, int(FEW * n)) + 1):
        if share[order[k - 1]] >= max(LOST, TIMES * share[order[k]], 1e-9):
            odd = order[:k].tolist()
    return sorted(t for t in odd if _is_cut(layer, usual & ~lost[:, t], t, odd))


def _is_cut(layer: LayerPeriods, kept: np.ndarray, t: int, odd: list[int]) -> bool:
    """Return whether no clouds look so: these come again each year, and the other areas have some.

    Parameters
    ----------
    layer : LayerPeriods
    kept : (n_area,) bool array
        The other areas, which the file covers.
    t : int
        Number of the file.
    odd : list of int
        All files that cover fewer areas.
    """
    years = np.flatnonzero(layer.same_season(t))
    if years.size and np.isin(years, odd).all():
        return False
    if not kept.any():
        return True
    whole = np.median(layer.known[kept], axis=1)
    return bool(np.median(layer.known[kept, t] / whole) >= CLEAR)

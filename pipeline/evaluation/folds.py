"""Assign areas to cross-validation folds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from geo.core.columns import MISSING, check_ids, has_column, id_text
from geo.core.errors import InputError, Problem, name_first
from geo.tables.registry import read_table
from models.training.folds import stratified_folds as stratified_folds


def random_folds(n_bag: int, n_fold: int, seed: int) -> np.ndarray:
    """Assign areas at random to folds whose sizes differ by at most one.

    Returns
    -------
    (n_bag,) int64 array
        Fold of each area, 0 to ``min(n_fold, n_bag) - 1``.
    """
    order = np.random.default_rng([seed, 11]).permutation(n_bag)
    fold = np.empty(n_bag, dtype=np.int64)
    fold[order] = np.arange(n_bag) % max(1, min(n_fold, n_bag))
    return fold


def block_folds(centres: np.ndarray, n_fold: int) -> np.ndarray:
    """Divide the areas into one compact region a fold, as equal in number as can be.

    The areas are halved across the direction in which they stretch furthest, and the halves again
    (recursive inertial bisection): each region is what some straight lines cut out. Regions by
    k-means are compact too, but where areas crowd one of them has most, and decides the score.
    Held-out areas have neighbours in the training set only at the region's edge: the scores are
    those of a map of places without any counts.

    Parameters
    ----------
    centres : (n_bag, n_axis) array, km
        Centre of each area; the first axis points east.
    n_fold : int
        Number of folds; fewer are returned if there are fewer distinct centres.

    Returns
    -------
    (n_bag,) int64 array
        Fold of each area, numbered from 0 without gaps, from west to east.

    Raises
    ------
    InputError
        If there are no positions.
    """
    if not centres.shape[1]:
        found = "'block' needs positions, and the bag store has none"
        raise InputError([Problem("evaluate.schemes", found, "use schemes: [area]")])
    n_distinct = np.unique(centres, axis=0).shape[0]
    parts = _bisect(centres, np.arange(centres.shape[0]), max(1, min(n_fold, n_distinct)))
    parts.sort(key=lambda part: float(centres[part, 0].mean()))
    fold = np.empty(centres.shape[0], dtype=np.int64)
    for number, part in enumerate(parts):
        fold[part] = number
    return fold


def _bisect(centres: np.ndarray, part: np.ndarray, n_fold: int) -> list[np.ndarray]:
    """Divide some areas into regions; areas of one place stay together."""
    if n_fold == 1:
        return [part]
    off = centres[part] - centres[part].mean(axis=0)
    along = off @ np.linalg.svd(off, full_matrices=False)[2][0]
    along = np.round(along / max(float(np.abs(along).max()), 1e-300), 9)
    order = np.argsort(along, kind="stable")
    cuts = 1 + np.flatnonzero(np.diff(along[order]) > 0)
    if cuts.size == 0:
        return [part]
    first = n_fold // 2
    cut = int(cuts[np.argmin(np.abs(cuts - part.size * first / n_fold))])
    one, other = np.sort(part[order[:cut]]), np.sort(part[order[cut:]])
    return _bisect(centres, one, first) + _bisect(centres, other, n_fold - first)


LEAST_TRAINING = 0.5  # share of the areas outside a region that an automatic buffer leaves


def buffered(centres: np.ndarray, fold: np.ndarray, km: float, *, shrink: bool) -> np.ndarray:
    """Return the areas that each region's fit must not see: the region and a buffer around it.

    An area is in the buffer if its centre is nearer than ``km`` to that of an area of the region.

    Parameters
    ----------
    centres : (n_bag, n_axis) array, km
    fold : (n_bag,) int array
        Region of each area.
    km : float
        Width of the buffer; 0 for none.
    shrink : bool
        Whether the buffer of a region is narrowed so that the fit keeps at least half of the areas
        outside it.

    Returns
    -------
    (n_fold, n_bag) bool array

    Raises
    ------
    InputError
        If fewer than two areas are left to train on.
    """
    unseen = fold == np.arange(int(fold.max()) + 1)[:, None]
    if km <= 0:
        return unseen
    for held_out in unseen:
        outside = np.flatnonzero(~held_out)
        far = cKDTree(centres[held_out]).query(centres[outside])[0]
        near = far < km
        if shrink and near.mean() > 1 - LEAST_TRAINING:
            near = far < np.sort(far)[int((1 - LEAST_TRAINING) * far.size)]
        left = int((~near).sum())
        if left < 2:
            found = f"a buffer of {km:g} km leaves {left} areas to train on"
            raise InputError([Problem("evaluate.buffer", found, "give a narrower one, or auto")])
        held_out[outside[near]] = True
    return unseen


def block_centres(block: Any) -> np.ndarray:
    """Return the centre of the pixels of each area of a block, (n_bag, n_axis), km.

    Without positions there are no axes.
    """
    if block.coords is None:
        return np.empty((block.n_bag, 0))
    sums = np.add.reduceat(np.asarray(block.coords, np.float64), block.offsets[:-1], axis=0)
    return np.asarray(sums / np.diff(block.offsets)[:, None])


def area_centres(store: Any) -> np.ndarray:
    """Return the centre of each area of a store, (n_bag, n_axis), km: one pass over it."""
    return np.concatenate([block_centres(block) for block in store.blocks()])


def read_folds(path: Path | str, id_column: str, fold_column: str, ids: list[str]) -> np.ndarray:
    """Read the fold of each area from a table (see :data:`geo.tables.registry.TABLES`).

    Areas that the store lacks are ignored. An area whose fold is empty (-1) is in every training
    set.

    Returns
    -------
    (n_bag,) int64 array
        Fold of each area in the order of ``ids``, numbered from 0 in the order of their labels.

    Raises
    ------
    InputError
        If the file, a column or the fold of an area is missing, or an area appears twice.
    """
    place = Path(path).name
    if not Path(path).is_file():
        raise InputError([Problem("evaluate.folds.path", f"no file {path}", "correct the path")])
    table, rows = read_table(path, place)
    problems: list[Problem] = []
    for key, column in (("id", id_column), ("fold", fold_column)):
        has_column(table.columns, column, place, f"evaluate.folds.{key}", problems)
    if problems:
        raise InputError(problems)
    keys = id_text(table[id_column])
    check_ids(keys, rows, place, "row", problems, "keep one of each")
    by_id = dict(zip(keys, id_text(table[fold_column]), strict=True))
    missing = [area for area in ids if area not in by_id]
    if missing:
        found = f"{len(missing)} areas have no row: {name_first(missing)}"
        remedy = "give each area a fold, or leave its fold empty to train on it always"
        problems.append(Problem(place, found, remedy))
    if problems:
        raise InputError(problems)
    labels = [by_id[area] for area in ids]
    labels = [None if label is None or label.lower() in MISSING else label for label in labels]
    known = _in_order({label for label in labels if label is not None})
    if len(known) < 2:
        found = f"{len(known)} folds in {fold_column!r}"
        raise InputError([Problem(place, found, "give two folds or more")])
    rank = {label: number for number, label in enumerate(known)}
    return np.array([-1 if label is None else rank[label] for label in labels], dtype=np.int64)


def _in_order(labels: set[str]) -> list[str]:
    """Sort labels as numbers where all are numbers, else as text."""
    try:
        return sorted(labels, key=float)
    except ValueError:
        return sorted(labels)

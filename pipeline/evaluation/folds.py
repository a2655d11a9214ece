"""Assign areas to cross-validation folds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans

from geo.columns import MISSING, check_ids, has_column, id_text
from geo.errors import InputError, Problem, name_first
from geo.tables import read_table


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


def stratified_folds(y: np.ndarray, n_fold: int, seed: int) -> np.ndarray:
    """Assign areas at random to folds with equal shares of each label.

    Returns
    -------
    (n_bag,) int64 array
        Fold of each area, 0 to ``min(n_fold, n_bag) - 1``.
    """
    n_bag = y.shape[0]
    order = np.lexsort((np.random.default_rng([seed, 11]).permutation(n_bag), y))
    fold = np.empty(n_bag, dtype=np.int64)
    fold[order] = np.arange(n_bag) % max(1, min(n_fold, n_bag))
    return fold


def block_folds(centres: np.ndarray, n_fold: int, seed: int) -> np.ndarray:
    """Group the areas into one compact region a fold, by k-means of their centres.

    Held-out areas then have neighbours in the training set only at the region's edge: the scores
    are those of a map of places without any counts.

    Parameters
    ----------
    centres : (n_bag, n_axis) array, km
        Centre of each area; the first axis points east.
    n_fold : int
        Number of folds; fewer are returned if there are fewer distinct centres.
    seed : int
        Of the k-means starts.

    Returns
    -------
    (n_bag,) int64 array
        Fold of each area, numbered from 0 without gaps, from west to east.
    """
    n_distinct = np.unique(centres, axis=0).shape[0]
    n_fold = max(1, min(n_fold, n_distinct))
    scale = max(float(np.abs(centres - centres.mean(axis=0)).max()), 1e-300)
    found = KMeans(n_fold, n_init=10, random_state=seed).fit(
        (centres - centres.mean(axis=0)) / scale
    )
    west_first = np.argsort(found.cluster_centers_[:, 0], kind="stable")
    rank = np.empty(n_fold, dtype=np.int64)
    rank[west_first] = np.arange(n_fold)
    return rank[found.labels_]


def read_folds(path: Path | str, id_column: str, fold_column: str, ids: list[str]) -> np.ndarray:
    """Read the fold of each area from a table (see :data:`geo.tables.TABLES`).

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

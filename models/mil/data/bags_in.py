"""Bags as users hold them: rows with an id each, or one array a bag.

Every method of a classifier that scikit-learn's users know takes ``X`` in one of these shapes:

* rows, (n_instance, n_feat), with ``bags``, one id of any kind a row;
* one element a bag, each (n_instance of the bag, n_feat): a list, an object array or a
  three-dimensional array; scikit-learn then splits bags;
* rows without ``bags``: every row is a bag of one instance.

Rows are arrays, data frames or sparse matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.utils.validation import column_or_1d, validate_data

from models.core.errors import BagsError

DENSE_VALUES = 4_000_000  # of a sparse matrix that a prediction holds densely at a time


@dataclass(frozen=True)
class GivenBags:
    """Rows grouped into bags, and the way back to the order in which the user sees them.

    Bags are stored by rising id, the instances of a bag in the order of the rows: a fit does not
    depend on how the rows of different bags are mixed. What a user gets back has the bags in the
    order in which their ids first appear.

    Attributes
    ----------
    x : (n_row, n_feat) float array or scipy CSR matrix
        Instances, those of a bag together.
    coords : (n_row, n_axis) float64 or None
        Their positions, km.
    offsets : (n_bag + 1,) int64
        Instances of stored bag ``a`` are ``offsets[a]:offsets[a + 1]``.
    rows : (n_row,) int64
        Row of the user's ``X`` that each instance was; of a list of bags, of all its rows.
    ids : (n_bag,) array
        Id of each stored bag.
    shown : (n_bag,) int64
        Stored bags in the order of first appearance.
    together : bool
        Whether the rows of each bag stand together, so that the order of the bags is plain.
    listed : bool
        Whether one element a bag was given.
    """

    x: Any
    coords: np.ndarray | None
    offsets: np.ndarray
    rows: np.ndarray
    ids: np.ndarray
    shown: np.ndarray
    together: bool
    listed: bool

    @property
    def n_bag(self) -> int:
        """Number of bags."""
        return int(self.ids.shape[0])

    @property
    def n_row(self) -> int:
        """Number of instances."""
        return int(self.rows.shape[0])

    def dense(self) -> np.ndarray:
        """Return all instances as a dense array: (n_row, n_feat)."""
        return _dense(self.x)

    def pieces(self) -> Iterator[tuple[slice, np.ndarray, np.ndarray | None, np.ndarray]]:
        """Yield whole bags: which, their instances as a dense array, positions and offsets.

        A dense matrix comes in one piece, a sparse one in pieces of ``DENSE_VALUES`` numbers, or of
        one bag.
        """
        first, n_feat = 0, max(self.x.shape[1], 1)
        while first < self.n_bag:
            stop = self.n_bag
            if sparse.issparse(self.x):
                most = self.offsets[first] + DENSE_VALUES // n_feat
                stop = max(int(np.searchsorted(self.offsets, most, "right")) - 1, first + 1)
            rows = slice(int(self.offsets[first]), int(self.offsets[stop]))
            coords = None if self.coords is None else self.coords[rows]
            offsets = self.offsets[first : stop + 1] - self.offsets[first]
            yield slice(first, stop), _dense(self.x[rows]), coords, offsets
            first = stop

    def as_shown(self, values: np.ndarray) -> np.ndarray:
        """Put values of the stored bags (n_bag, ...) in the order that the user sees."""
        return values[self.shown]

    def as_stored(self, values: np.ndarray) -> np.ndarray:
        """Undo :meth:`as_shown`."""
        out = np.empty_like(values)
        out[self.shown] = values
        return out

    def of_bags(self, values: Any, what: str) -> np.ndarray:
        """Return a user's values, one a bag or one a row, for each bag as the user sees them.

        Parameters
        ----------
        values : array_like, Series, or dict by id
            One a row, the same in all rows of a bag; or one a bag: in the order of first appearance
            where the rows of each bag stand together, by id where they do not. A Series of one a
            bag is by id where its index has ids, and in that order where it is pandas' default.
        what : str
            Name of the argument, for messages.

        Returns
        -------
        (n_bag,) array

        Raises
        ------
        BagsError
            If their number or order is not clear, or a bag's rows differ.
        """
        by_id = self._by_id(values, what)
        if by_id is not None:
            return by_id
        values = column_or_1d(plain_values(values), warn=True)
        if not self.listed and values.shape[0] == self.n_row:
            return self._constant(values, what)
        if values.shape[0] != self.n_bag:
            rows = "" if self.listed or self.n_row == self.n_bag else f" or {self.n_row} rows"
            msg = (
                f"{what} has {values.shape[0]} values; give one for each of {self.n_bag} bags{rows}"
            )
            raise BagsError(msg)
        if not self.together and not (np.diff(self.shown) > 0).all():
            msg = (
                f"{what} has one value a bag, but the rows of bags are mixed: their order is not "
                f"clear; give {what} as a dict by bag id, or one value a row"
            )
            raise BagsError(msg)
        return values

    def _by_id(self, values: Any, what: str) -> np.ndarray | None:
        """Return values by id as the user sees the bags; None where they are not by id."""
        if isinstance(values, dict):
            values = pd.Series(values)
        else:
            fits = isinstance(values, pd.Series) and len(values) == self.n_bag < self.n_row
            # The default index numbers the values, and names no bags even where ids are numbers.
            if self.listed or not fits or is_default(values.index):
                return None
        wanted = pd.Index(self.as_shown(self.ids))
        if values.index.is_unique and wanted.isin(values.index).all():
            return plain_values(values.loc[wanted])
        lost = next((each for each in wanted if each not in values.index), wanted[0])
        msg = f"{what} has no value for bag {show(lost)}; give one for each id in bags"
        raise BagsError(msg)

    def _constant(self, values: np.ndarray, what: str) -> np.ndarray:
        stored = values[self.rows]
        first = stored[self.offsets[:-1]]
        same = stored == np.repeat(first, np.diff(self.offsets))
        same |= pd.isna(stored) & np.repeat(pd.isna(first), np.diff(self.offsets))
        if not same.all():
            at = int(np.argmin(same))
            bag = int(np.searchsorted(self.offsets, at, "right")) - 1
            msg = (
                f"{what} differs inside bag {show(self.ids[bag])}: {show(first[bag])} and "
                f"{show(stored[at])}; give all rows of a bag one value"
            )
            raise BagsError(msg)
        return self.as_shown(first)


def read_bags(
    model: Any, X: Any, bags: Any, coords: Any, *, reset: bool, allow_missing: bool
) -> GivenBags:
    """Check what a user gave as ``X``, ``bags`` and ``coords``, and group it.

    Parameters
    ----------
    model : Estimator
        Its ``n_features_in_`` and ``feature_names_in_`` are set, or checked.
    X, bags
        See the module.
    coords : (n_row, n_axis) array_like, list of such by bag, or None
        Positions, km.
    reset : bool
        Set the number and names of the features, do not check them.
    allow_missing : bool
        Let ``X`` hold NaN.

    Raises
    ------
    BagsError
        If they are unusable: one line that says where, and what to do.
    """
    listed = is_list_of_bags(X)
    if listed:
        if bags is not None:
            msg = "X is a list of bags, and bags is given too; give bags with rows alone"
            raise BagsError(msg)
        sizes, X = joined(X, "X")
        if coords is not None and is_list_of_bags(coords):
            coords = joined(coords, "coords")[1]
        codes, ids = np.repeat(np.arange(sizes.size), sizes), np.arange(sizes.size)
    x = _checked(model, X, reset)
    n_row = x.shape[0]
    if not listed:
        codes, ids = bag_codes(bags, n_row)
    given = grouped(x, codes, ids, coords, listed=listed)
    _refuse_unusable(model, given, allow_missing)
    return given


def grouped(
    x: Any, codes: np.ndarray, ids: np.ndarray, coords: Any = None, *, listed: bool = False
) -> GivenBags:
    """Group rows into bags.

    Parameters
    ----------
    x : (n_row, n_feat) array or CSR matrix
    codes : (n_row,) int
        Number of each row's bag, by first appearance.
    ids : (n_bag,) array
    coords : (n_row, n_axis) array_like, km, or None
    listed : bool
    """
    n_row, place = codes.shape[0], _places(ids)
    stored = place[codes]
    rows = np.argsort(stored, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(stored, minlength=ids.shape[0]))])
    if coords is not None:
        coords = np.asarray(coords, dtype=np.float64)
        if coords.ndim != 2 or coords.shape[0] != n_row:
            msg = f"coords has shape {coords.shape}; give two or three columns for {n_row} rows"
            raise BagsError(msg)
        coords = coords[rows]
    return GivenBags(
        x if (np.diff(rows) == 1).all() else x[rows],
        coords,
        offsets.astype(np.int64),
        rows,
        ids[np.argsort(place)],
        place,
        bool(np.count_nonzero(np.diff(codes)) == ids.shape[0] - 1),
        listed,
    )


def is_list_of_bags(X: Any) -> bool:
    """Say whether ``X`` has one element a bag, each with rows of its own."""
    if isinstance(X, pd.Series):
        X = X.to_numpy()
    if isinstance(X, np.ndarray):
        return X.ndim == 3 or (X.dtype == object and X.ndim == 1 and X.size > 0 and _is_bag(X[0]))
    return isinstance(X, list | tuple) and len(X) > 0 and _is_bag(X[0])


def bag_ids(bags: Any) -> np.ndarray:
    """Return the id of each bag in the order in which predictions list them.

    Parameters
    ----------
    bags : (n_row,) array_like
        Id of the bag of each row, of any type.

    Returns
    -------
    (n_bag,) array
        The distinct ids, in the order of first appearance.
    """
    return bag_codes(bags)[1]


def is_default(index: pd.Index) -> bool:
    """Say whether an index is pandas' default, or a slice of it: a range without a name."""
    return isinstance(index, pd.RangeIndex) and index.name is None


def plain_values(values: Any) -> np.ndarray:
    """Return values of a pandas type as those of a NumPy type, objects where there is none."""
    found = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    return found if isinstance(found, np.ndarray) else np.asarray(found, dtype=object)


def show(value: Any) -> str:
    """Write an id or a label as its user wrote it."""
    return repr(value.item() if isinstance(value, np.generic) else value)


def _is_bag(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) > 0 and isinstance(value[0], list | tuple | np.ndarray)
    return getattr(value, "ndim", 0) == 2


def joined(X: Any, what: str) -> tuple[np.ndarray, Any]:
    """Return the sizes of listed bags, and their rows one bag after the other."""
    parts: list[Any] = [part if hasattr(part, "ndim") else np.asarray(part) for part in X]
    n_feat = parts[0].shape[1]
    for a, part in enumerate(parts):
        found = None
        if part.ndim != 2:
            found = f"has shape {part.shape}; give (n_instance, n_feat)"
        elif part.shape[0] == 0:
            found = "is empty; leave it out"
        elif part.shape[1] != n_feat:
            found = f"has {part.shape[1]} columns, bag 0 has {n_feat}; give all the same"
        if found:
            msg = f"bag {a} of {what} {found}"
            raise BagsError(msg)
    sizes = np.array([part.shape[0] for part in parts])
    if all(sparse.issparse(part) for part in parts):
        return sizes, sparse.vstack(parts, format="csr")
    if all(isinstance(part, pd.DataFrame) for part in parts):
        names = list(parts[0].columns)
        for a, part in enumerate(parts):
            if list(part.columns) != names:
                msg = f"bag {a} of {what} has other columns than bag 0; give all the same"
                raise BagsError(msg)
        return sizes, pd.concat(parts, ignore_index=True)
    dense = [_dense(part) if sparse.issparse(part) else np.asarray(part) for part in parts]
    return sizes, np.concatenate(dense)


def _checked(model: Any, X: Any, reset: bool) -> Any:
    try:
        return validate_data(
            model,
            X,
            reset=reset,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            ensure_all_finite=False,
        )
    except ValueError as error:
        raise BagsError(str(error)) from error


def bag_codes(bags: Any, n_row: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of each row's bag, and the bags' ids: in the order of appearance."""
    if bags is None:
        return np.arange(n_row or 0), np.arange(n_row or 0)
    if isinstance(bags, list | tuple):
        held, bags = bags, np.empty(len(bags), dtype=object)
        bags[:] = held  # np.array would make strings of mixed ids, and columns of tuples
        found = np.asarray(pd.Series(bags).infer_objects())
    else:
        found = plain_values(bags)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1 or (n_row is not None and found.shape[0] != n_row):
        msg = f"bags has shape {found.shape} for {n_row} rows; give the id of its bag for each row"
        raise BagsError(msg)
    codes, ids = pd.factorize(found)
    if (codes < 0).any():
        msg = f"bags holds no id (NaN or None) in row {int(np.argmax(codes < 0))}; give one"
        raise BagsError(msg)
    return np.asarray(codes), np.asarray(ids)


def _places(ids: np.ndarray) -> np.ndarray:
    """Return the rank of each id; ids that cannot be compared keep their order."""
    try:
        order = np.argsort(ids, kind="stable")
    except TypeError:
        return np.arange(ids.shape[0])
    place = np.empty(ids.shape[0], dtype=np.int64)
    place[order] = np.arange(ids.shape[0])
    return place


def _refuse_unusable(model: Any, given: GivenBags, allow_missing: bool) -> None:
    """Raise BagsError where a value is infinite, or missing and must not be."""
    values = given.x.data if sparse.issparse(given.x) else given.x
    with np.errstate(invalid="ignore"):
        plain = bool(np.isfinite(values.sum(dtype=np.float64)))
    if plain:
        return
    wrong = np.isinf(values) if allow_missing else ~np.isfinite(values)
    if not wrong.any():
        return
    if sparse.issparse(given.x):
        found = given.x.tocoo()
        first = int(np.argmax(wrong))
        at, column = int(found.row[first]), int(found.col[first])
    else:
        at = int(np.argmax(wrong.any(axis=1)))
        column = int(np.argmax(wrong[at]))
    name = getattr(model, "feature_names_in_", None)
    where = f"column {column}" if name is None else f"column {show(name[column])}"
    bag = int(np.searchsorted(given.offsets, at, "right")) - 1
    kind = "NaN" if np.isnan(values[wrong].flat[0]) else "infinity"
    remedy = "leave such rows out or impute them"
    if not allow_missing:
        remedy += ", or use BLRT(missing=True)"
    msg = f"X holds {kind} in bag {show(given.ids[bag])}, row {given.rows[at]}, {where}; {remedy}"
    raise BagsError(msg)


def _dense(x: Any) -> np.ndarray:
    if not sparse.issparse(x):
        return np.asarray(x)
    try:
        return np.asarray(x.toarray())
    except MemoryError as error:
        gib = x.shape[0] * x.shape[1] * x.dtype.itemsize / 2**30
        msg = (
            f"X is sparse and takes {gib:,.0f} GiB as a dense array; reduce its columns first "
            "(sklearn.decomposition.TruncatedSVD)"
        )
        raise BagsError(msg) from error

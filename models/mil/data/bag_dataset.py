"""Bags with their labels, from and to other people's data structures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import pandas as pd

from models.core.block import Bags
from models.core.errors import BagsError
from models.mil.data.bags_in import bag_codes, grouped, joined, show
from models.mil.data.labels_in import classes_in, codes_of, labels_of


@dataclass(frozen=True, eq=False)
class BagDataset:
    """Labelled bags, one array each: ``model.fit(data.X, data.y)``.

    Attributes
    ----------
    X : list of (n_instance, n_feat) float arrays
        Instances of each bag.
    y : (n_bag,) array
        Label of each bag, of any kind.
    ids : (n_bag,) array
        Their ids.
    names : list of str or None
        Names of the features.
    instance_y : list of (n_instance,) arrays, or None
        Labels of the instances, where they are known. No model looks at them.
    coords : list of (n_instance, n_axis) arrays, or None
        Positions of the instances.

    Raises
    ------
    BagsError
        If their numbers disagree.
    """

    X: Sequence[np.ndarray]
    y: np.ndarray
    ids: np.ndarray
    names: list[str] | None = None
    instance_y: Sequence[np.ndarray] | None = None
    coords: Sequence[np.ndarray] | None = None

    def __post_init__(self) -> None:
        sizes = joined(self.X, "X")[0]
        for name in ("y", "ids"):
            if len(getattr(self, name)) != len(self.X):
                msg = f"{name} has {len(getattr(self, name))} values for {len(self.X)} bags"
                raise BagsError(msg)
        for name in ("instance_y", "coords"):
            held = getattr(self, name)
            for a, size in enumerate(sizes if held is not None else ()):
                if len(held) != len(self.X) or len(held[a]) != size:
                    found = len(held[a]) if a < len(held) else "no"
                    msg = f"{name} of bag {show(self.ids[a])} has {found} values for {size} rows"
                    raise BagsError(msg)

    def __len__(self) -> int:
        """Return the number of bags."""
        return len(self.X)

    def __repr__(self) -> str:
        sizes, n_feat = [len(each) for each in self.X], self.X[0].shape[1] if self.X else 0
        beside = [
            name for name in ("names", "instance_y", "coords") if getattr(self, name) is not None
        ]
        more = f", with {', '.join(beside)}" if beside else ""
        return f"BagDataset({len(sizes)} bags of {sum(sizes)} instances, {n_feat} features{more})"

    # -- rows and tables -----------------------------------------------------------------------

    @classmethod
    def from_rows(cls, X: Any, y: Any, bags: Any) -> Self:
        """Group rows.

        Parameters
        ----------
        X : (n_row, n_feat) array or data frame
        y, bags
            As of :meth:`models.mil.data.classifier.Classifier.fit`.
        """
        names = [str(each) for each in X.columns] if isinstance(X, pd.DataFrame) else None
        x = np.asarray(X)
        given = grouped(x, *bag_codes(bags, x.shape[0]))
        parts = np.split(given.x, given.offsets[1:-1])
        shown = [parts[a] for a in given.shown]
        return cls(shown, labels_of(y, given), given.as_shown(given.ids), names)

    @classmethod
    def from_table(
        cls,
        table: pd.DataFrame,
        bag: str,
        label: str,
        *,
        instance_label: str | None = None,
        coords: Sequence[str] = (),
        drop: Sequence[str] = (),
    ) -> Self:
        """Read a table of one row an instance; its other columns are the features.

        Parameters
        ----------
        table : DataFrame
        bag, label : str
            Columns of the bag's id, and of its label, the same in all its rows.
        instance_label : str, optional
            Column of the labels of the instances.
        coords : sequence of str
            Columns of the positions, km.
        drop : sequence of str
            Columns that are no features.

        Raises
        ------
        BagsError
            If a column is absent, a feature is no number, or the rows of a bag differ in the label.
        """
        named = [bag, label, *([] if instance_label is None else [instance_label]), *coords, *drop]
        for column in named:
            if column not in table.columns:
                msg = f"the table has no column {column!r}; it has {', '.join(map(str, table))}"
                raise BagsError(msg)
        features = table.drop(columns=named)
        for column, kind in features.dtypes.items():
            if not pd.api.types.is_numeric_dtype(kind):
                msg = f"column {column!r} holds no numbers; encode it, or name it in drop"
                raise BagsError(msg)
        whole = cls.from_rows(features.astype(np.float64), table[label], table[bag])
        codes = bag_codes(table[bag])[0]
        rows = np.argsort(codes, kind="stable")
        cuts = np.cumsum([len(part) for part in whole.X])[:-1]

        def by_bag(values: np.ndarray) -> list[np.ndarray]:
            return np.split(values[rows], cuts)

        return cls(
            whole.X,
            whole.y,
            whole.ids,
            whole.names,
            None if instance_label is None else by_bag(table[instance_label].to_numpy()),
            by_bag(table[list(coords)].to_numpy(np.float64)) if coords else None,
        )

    def to_table(self, bag: str = "bag", label: str = "label") -> pd.DataFrame:
        """Return one row an instance: id, label, ``instance_label`` and positions, features."""
        sizes, x = joined(self.X, "X")
        names = self.names or [f"x{k}" for k in range(x.shape[1])]
        beside: dict[str, Any] = {bag: np.repeat(self.ids, sizes), label: np.repeat(self.y, sizes)}
        if self.instance_y is not None:
            beside["instance_label"] = np.concatenate(self.instance_y)
        if self.coords is not None:
            for axis, values in zip("xyz", np.concatenate(self.coords).T, strict=False):
                beside[f"{axis}_km"] = values
        twice = sorted(set(beside) & set(names))
        if twice:
            msg = f"{twice[0]!r} is a feature too; give bag= or label= another name"
            raise BagsError(msg)
        return pd.DataFrame({**beside, **dict(zip(names, x.T, strict=True))})

    def to_rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ``X`` (n_row, n_feat), ``y`` (n_row,) and ``bags`` (n_row,)."""
        sizes, x = joined(self.X, "X")
        return x, np.repeat(self.y, sizes), np.repeat(self.ids, sizes)

    def to_bags(self) -> Bags:
        """Return the bags with labels 0 and 1: the positive class is 1, see ``classes_in``."""
        sizes, x = joined(self.X, "X")
        coords = None if self.coords is None else np.concatenate(self.coords)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return Bags(x, offsets, self._codes(), coords=coords, allow_missing=True)

    # -- torchmil ------------------------------------------------------------------------------

    @classmethod
    def from_torchmil(cls, dataset: Any, *, label: str = "Y") -> Self:
        """Read the bags of a ``torchmil`` data set, or any of that form.

        Parameters
        ----------
        dataset : sequence of dicts or TensorDicts; or a batch
            A bag has ``X`` (n_instance, n_feat) and ``Y``, and may have ``y_inst`` and ``coords``,
            as NumPy arrays or tensors; other keys, as ``adj``, are not read. A batch is one such
            dict of padded arrays with a ``mask``, as ``torchmil.data.collate_fn`` makes them.
        label : str
            Key of the bag's label.

        Raises
        ------
        BagsError
            If a bag lacks a key or has another shape.
        """
        if isinstance(dataset, Mapping) or (hasattr(dataset, "keys") and hasattr(dataset, "get")):
            bags: Iterable[dict[str, Any]] = _unpadded(dataset)
        else:
            bags = (dataset[k] for k in range(len(dataset)))
        x, y, more = [], [], {"y_inst": [], "coords": []}  # type: ignore[var-annotated]
        for a, bag in enumerate(bags):
            held = {key: _array(bag[key]) for key in bag.keys() if key in {"X", label, *more}}  # noqa: SIM118
            for key in ("X", label):
                if key not in held:
                    msg = f"bag {a} has no {key!r}; it has {', '.join(sorted(bag.keys()))}"
                    raise BagsError(msg)
            if held["X"].ndim != 2:
                msg = (
                    f"X of bag {a} has shape {held['X'].shape}; give (n_instance, n_feat): pass "
                    "images through a network first"
                )
                raise BagsError(msg)
            if held[label].size != 1:
                msg = f"{label} of bag {a} has shape {held[label].shape}; give one label"
                raise BagsError(msg)
            x.append(held["X"])
            y.append(held[label].reshape(())[()])
            for key, values in more.items():
                if key in held:
                    values.append(held[key] if key == "coords" else held[key].reshape(-1))
        for key, values in more.items():
            if values and len(values) != len(x):
                msg = f"{len(values)} of {len(x)} bags have {key!r}; give it to all or to none"
                raise BagsError(msg)
        if not x:
            msg = "the data set has no bags"
            raise BagsError(msg)
        named = getattr(dataset, "get_bag_names", None)
        ids = np.array(named()) if named is not None else np.arange(len(x))
        return cls(x, np.array(y), ids, None, more["y_inst"] or None, more["coords"] or None)

    def to_torchmil(self, kind: Literal["numpy", "torch"] = "numpy") -> list[dict[str, Any]]:
        """Return the bags as ``torchmil`` has them, a data set for ``torch.utils.data.DataLoader``.

        Parameters
        ----------
        kind : {"numpy", "torch"}
            What holds the numbers. Tensors: ``X`` and ``coords`` float32, labels int64.

        Returns
        -------
        list of dict
            ``X``, ``Y`` (0, or 1 for the positive class), and ``y_inst`` and ``coords`` where
            they are known. ``torchmil.data.collate_fn`` makes batches of them.

        Raises
        ------
        ImportError
            If tensors are wanted and ``torch`` is not installed.
        """
        codes = self._codes().astype(np.int64)
        bags: list[dict[str, Any]] = [
            {"X": x, "Y": code} for x, code in zip(self.X, codes, strict=True)
        ]
        for key, held in (("y_inst", self.instance_y), ("coords", self.coords)):
            for bag, values in zip(bags, held or (), strict=False):
                bag[key] = values
        if kind == "numpy":
            return [{key: np.asarray(value) for key, value in bag.items()} for bag in bags]
        try:
            import torch
        except ImportError as error:
            msg = 'torch is not installed; pip install torch, or use kind="numpy"'
            raise ImportError(msg) from error
        kinds = {
            "X": torch.float32,
            "coords": torch.float32,
            "Y": torch.int64,
            "y_inst": torch.int64,
        }
        return [
            {key: torch.as_tensor(value, dtype=kinds[key]) for key, value in bag.items()}
            for bag in bags
        ]

    def _codes(self) -> np.ndarray:
        labels = np.asarray(self.y)
        return codes_of(labels, classes_in(labels, several=False))


def _array(value: Any) -> np.ndarray:
    """Return a tensor of any device, or an array, as an array."""
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def _unpadded(batch: Any) -> list[dict[str, Any]]:
    """Cut a padded batch into bags by its ``mask`` (n_bag, n_most)."""
    if "mask" not in list(batch.keys()):
        msg = "a batch needs its mask; give a list with one dict a bag"
        raise BagsError(msg)
    mask = _array(batch["mask"]).astype(bool)
    held = {key: _array(batch[key]) for key in batch.keys() if key not in {"mask", "adj"}}  # noqa: SIM118
    return [
        {
            key: value[a][keep] if value.ndim > 1 and value.shape[1] == keep.size else value[a]
            for key, value in held.items()
        }
        for a, keep in enumerate(mask)
    ]

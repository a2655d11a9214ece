"""Bags from and to tables, rows and the form of torchmil, with tensors that are no NumPy arrays."""

from __future__ import annotations

import builtins
import sys
import types

import numpy as np
import pandas as pd
import pytest

import models
from models import BagDataset
from models.core.errors import BagsError


def dataset(n_bag=12, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, n_bag)
    x = [rng.normal(size=(size, 3)) for size in sizes]
    inside = [(each[:, 0] > 0.7).astype(int) for each in x]
    y = np.where([each.any() for each in inside], "sick", "healthy")
    ids = np.array([f"p{k}" for k in range(n_bag)])
    km = [rng.normal(size=(size, 2)) for size in sizes]
    return BagDataset(x, y, ids, ["a", "b", "c"], inside, km)


def same(one, other, *, names=True):
    assert one.y.tolist() == other.y.tolist()
    assert one.ids.tolist() == other.ids.tolist()
    if names:
        assert one.names == other.names
    for key in ("X", "instance_y", "coords"):
        assert (getattr(one, key) is None) == (getattr(other, key) is None)
        for left, right in zip(getattr(one, key) or [], getattr(other, key) or [], strict=True):
            np.testing.assert_array_equal(left, right)


def test_to_a_table_and_back():
    data = dataset()
    table = data.to_table("patient", "state")
    assert list(table) == ["patient", "state", "instance_label", "x_km", "y_km", "a", "b", "c"]
    read = {"instance_label": "instance_label", "coords": ["x_km", "y_km"]}
    same(data, BagDataset.from_table(table, "patient", "state", **read))
    # Rows mixed, the order of first appearance and that inside the bags kept.
    rng = np.random.default_rng(1)
    rank = table.groupby("patient").cumcount()
    mixed = table.iloc[np.lexsort((rng.random(len(table)), rank))]
    again = BagDataset.from_table(mixed, "patient", "state", **read)
    assert again.ids.tolist() == mixed.patient.drop_duplicates().tolist() != data.ids.tolist()
    order = [data.ids.tolist().index(each) for each in again.ids]
    for a, b in enumerate(order):
        np.testing.assert_array_equal(again.X[a], data.X[b])
        np.testing.assert_array_equal(again.coords[a], data.coords[b])
        np.testing.assert_array_equal(again.instance_y[a], data.instance_y[b])
        assert again.y[a] == data.y[b]


def test_to_rows_and_bags_and_back():
    data = dataset()
    x, y, ids = data.to_rows()
    again = BagDataset.from_rows(pd.DataFrame(x, columns=data.names), y, ids)
    for left, right in zip(data.X, again.X, strict=True):
        np.testing.assert_array_equal(left, right)
    assert again.names == data.names
    assert again.y.tolist() == data.y.tolist()
    model = models.VWSGP(n_inducing=5, max_epochs=5, kernel="rbf(x) + rbf(space)")
    one = model.fit(data.to_bags()).predict_proba(data.X, coords=data.coords)
    other = model.fit(data.X, data.y, coords=data.coords).predict_proba(data.X, coords=data.coords)
    np.testing.assert_array_equal(one, other)
    assert data.to_bags().y.tolist() == (data.y == "sick").astype(float).tolist()


def test_to_torchmil_and_back_without_torch():
    data = dataset()
    bags = data.to_torchmil()
    assert sorted(bags[0]) == ["X", "Y", "coords", "y_inst"]
    assert [int(bag["Y"]) for bag in bags] == (data.y == "sick").astype(int).tolist()
    again = BagDataset.from_torchmil(bags)
    same(
        BagDataset(
            data.X, (data.y == "sick") * 1, np.arange(12), None, data.instance_y, data.coords
        ),
        again,
    )


def test_a_padded_batch_is_cut_by_its_mask():
    data = dataset()
    bags = data.to_torchmil()
    most = max(len(bag["X"]) for bag in bags)
    batch = {
        key: np.stack(
            [
                np.pad(bag[key], [(0, most - len(bag[key])), *[(0, 0)] * (bag[key].ndim - 1)])
                if bag[key].ndim
                else bag[key]
                for bag in bags
            ]
        )
        for key in bags[0]
    }
    batch["mask"] = np.array([np.arange(most) < len(bag["X"]) for bag in bags], dtype=np.uint8)
    batch["adj"] = np.zeros((12, most, most))
    same(BagDataset.from_torchmil(bags), BagDataset.from_torchmil(batch))
    del batch["mask"]
    with pytest.raises(BagsError, match="a batch needs its mask"):
        BagDataset.from_torchmil(batch)


class Tensor:
    """What the converter uses of ``torch.Tensor``, which NumPy cannot read by itself on a GPU."""

    def __init__(self, values, dtype=None):
        self.values, self.dtype = np.asarray(values), dtype

    def __array__(self, *args, **kwargs):
        msg = "can't convert cuda:0 device type tensor to numpy"
        raise TypeError(msg)

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self.values


class Stored:
    """As ``torchmil.datasets.ProcessedMILDataset``: bags by number, names, TensorDicts."""

    class Bag:
        def __init__(self, held):
            self._held = held

        def keys(self):
            return self._held.keys()

        def __getitem__(self, key):
            return self._held[key]

        def __contains__(self, key):  # as tensordict has it
            raise NotImplementedError

        def __iter__(self):  # over the batch, not over the keys
            return iter(())

    def __init__(self, data):
        self._data = data

    def __len__(self):
        return len(self._data)

    def __getitem__(self, number):
        d = self._data
        return self.Bag(
            {
                "X": Tensor(d.X[number]),
                "Y": Tensor(np.array([int(d.y[number] == "sick")])),
                "y_inst": Tensor(d.instance_y[number][:, None]),
                "adj": Tensor(np.eye(len(d.X[number]))),
                "coords": Tensor(d.coords[number]),
            }
        )

    def get_bag_names(self):
        return list(self._data.ids)


def test_tensors_of_a_stored_data_set():
    data = dataset()
    again = BagDataset.from_torchmil(Stored(data))
    same(
        BagDataset(data.X, (data.y == "sick") * 1, data.ids, None, data.instance_y, data.coords),
        again,
    )


def test_tensors_are_made_where_torch_is_and_refused_where_it_is_not(monkeypatch):
    data = dataset()
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "torch":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="torch is not installed; pip install torch, or use kind"):
        data.to_torchmil("torch")
    monkeypatch.undo()
    torch = types.ModuleType("torch")
    torch.float32, torch.int64, torch.as_tensor = "float32", "int64", Tensor
    monkeypatch.setitem(sys.modules, "torch", torch)
    bags = data.to_torchmil("torch")
    assert {key: value.dtype for key, value in bags[0].items()} == {
        "X": "float32",
        "Y": "int64",
        "y_inst": "int64",
        "coords": "float32",
    }
    np.testing.assert_array_equal(bags[3]["X"].values, data.X[3])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: BagDataset.from_torchmil([{"X": np.ones((2, 3))}]), "bag 0 has no 'Y'; it has X"),
        (
            lambda: BagDataset.from_torchmil([{"X": np.ones((2, 3, 8, 8)), "Y": 1}]),
            r"X of bag 0 has shape \(2, 3, 8, 8\).*through a network first",
        ),
        (
            lambda: BagDataset.from_torchmil([{"X": np.ones((2, 3)), "Y": np.ones(2)}]),
            r"Y of bag 0 has shape \(2,\); give one label",
        ),
        (lambda: BagDataset.from_torchmil([]), "the data set has no bags"),
        (
            lambda: BagDataset.from_torchmil(
                [
                    {"X": np.ones((2, 3)), "Y": 1, "y_inst": np.ones(2)},
                    {"X": np.ones((2, 3)), "Y": 0},
                ]
            ),
            "1 of 2 bags have 'y_inst'; give it to all or to none",
        ),
        (
            lambda: BagDataset([np.ones((2, 3))], np.ones(2), np.arange(1)),
            "y has 2 values for 1 bags",
        ),
        (
            lambda: BagDataset([np.ones((2, 3))], np.ones(1), ["p"], None, [np.ones(3)]),
            "instance_y of bag 'p' has 3 values for 2 rows",
        ),
        (
            lambda: BagDataset.from_table(dataset().to_table(), "bagg", "label"),
            "the table has no column 'bagg'; it has bag, label",
        ),
        (
            lambda: BagDataset.from_table(dataset().to_table().assign(c="x"), "bag", "label"),
            "column 'c' holds no numbers; encode it, or name it in drop",
        ),
        (
            lambda: BagDataset.from_table(
                dataset().to_table().assign(label=lambda t: np.arange(len(t)) % 2), "bag", "label"
            ),
            "y differs inside bag 'p0'",
        ),
        (lambda: dataset().to_table("a"), "'a' is a feature too"),
    ],
)
def test_unusable_data_sets_are_refused(wrong, says):
    with pytest.raises(BagsError, match=says):
        wrong()

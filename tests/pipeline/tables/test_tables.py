"""Bags from tables: CSV and Parquet alike, every mistake told, and the way to results."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

import models
from geo.core.errors import InputError
from geo.tables.registry import TABLES
from geo.tables.table_format import TableFormat
from pipeline.cli.main import main
from pipeline.evaluation.label_scores import label_scores, unranked, weighted_label_scores
from pipeline.store.bag_store import BagStore
from pipeline.tables.table_import import InstanceColumns, import_table


def _table(n_bag: int = 30, seed: int = 0) -> pd.DataFrame:
    """Instances in mixed order; a bag is positive where one of them has x0 above 1.5."""
    rng = np.random.default_rng(seed)
    bag = np.repeat(np.arange(n_bag), rng.integers(1, 9, n_bag))
    x = rng.normal(size=(bag.size, 3)).astype(np.float32)
    hot = x[:, 0] > 1.0
    label = np.zeros(n_bag, int)
    np.maximum.at(label, bag, hot.astype(int))
    table = pd.DataFrame(x, columns=["x0", "x1", "x2"])
    table["slide"] = [f"s{b:03d}" for b in bag]
    table["tumour"] = label[bag]
    table["patch"] = hot.astype(int)
    return table.sample(frac=1, random_state=0).reset_index(drop=True)


def _import(path: Any, out: Any, **options: Any) -> BagStore:
    return import_table(path, out, InstanceColumns("slide", "tumour", drop=["patch"]), **options)


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_csv_parquet_and_a_format_from_outside_make_the_same_store(tmp_path, mark, monkeypatch):
    class Pickle(TableFormat):
        name = "pickle"

        def read(self, path):
            return pd.read_pickle(path)

    monkeypatch.setitem(TABLES.by_suffix, ".pickle", Pickle())
    table = _table()
    table.to_pickle(tmp_path / "t.pickle")
    table.to_csv(tmp_path / "t.csv", index=False, sep=mark)
    table.to_parquet(tmp_path / "t.parquet")
    stores = [
        _import(tmp_path / f"t.{kind}", tmp_path / kind) for kind in ("csv", "parquet", "pickle")
    ]
    for store in stores:
        assert store.covariates == ("x0", "x1", "x2")
        assert store.read_block(0).coords is None
        for number in range(store.n_block):
            block, row = store.read_block(number), store.read_pixel(number)
            np.testing.assert_allclose(
                block.x, table[["x0", "x1", "x2"]].to_numpy()[row], rtol=1e-6
            )
            of = np.repeat(block.bag, np.diff(block.offsets))
            assert [store.ids[b] for b in of] == table["slide"].iloc[row].tolist()
            np.testing.assert_array_equal(block.y[of - block.bag[0]], table["tumour"].iloc[row])
    assert sorted(stores[0].ids) == sorted(table["slide"].unique())
    for other in stores[1:]:
        np.testing.assert_array_equal(stores[0].y, other.y)
    names = ("csv", "parquet", "pickle")
    assert {path.name for path in tmp_path.iterdir()} == {*names, *(f"t.{n}" for n in names)}


def test_a_table_of_many_batches(tmp_path, monkeypatch):
    monkeypatch.setattr("geo.tables.table_format.BATCH", 7)
    table = _table()
    table.to_parquet(tmp_path / "t.parquet")
    seen: list[int] = []
    store = _import(tmp_path / "t.parquet", tmp_path / "s", advance=seen.append)
    assert sum(seen) == len(table) == store.n_pix
    assert max(seen) == 7


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        ({"slide": None}, {}, r"t.csv row 2: no bag in 'slide'"),
        ({"tumour": 7.5}, {}, r"t.csv row \d+.*1 bags have more than one label"),
        ({"tumour": None}, {}, r"t.csv row 2: column 'tumour' is missing"),
        ({"tumour": "maybe"}, {}, r"t.csv row 2: column 'tumour' is 'maybe'.*--positive 'maybe'"),
        ({}, {"positive": "ill"}, r"--positive: column 'tumour' never is 'ill'; it has [01], [01]"),
        ({"x1": np.nan}, {}, r"t.csv row 2: column 'x1' is missing or not finite in 1 rows"),
        ({"x1": np.inf}, {}, r"column 'x1' is missing or not finite"),
        ({"x1": "high"}, {}, r"cannot be read as numbers.*high.*--drop"),
        ({}, {"features": ["x0", "x9"]}, r"no column 'x9', which --feature names"),
        ({}, {"drop": ["x0", "x1", "x2", "patch"]}, "no column left"),
    ],
)
def test_what_is_wrong_with_a_table_is_told_and_nothing_is_left(tmp_path, change, options, says):
    table = _table().astype({name: object for name in change})
    for name, value in change.items():
        table.loc[0, name] = value
    table.to_csv(tmp_path / "t.csv", index=False)
    columns = InstanceColumns(**{"bag": "slide", "label": "tumour", "drop": ["patch"], **options})
    with pytest.raises(InputError, match=says):
        import_table(tmp_path / "t.csv", tmp_path / "s", columns)
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


def _cells(tmp_path: Any, mark: str, **cells: str) -> Any:
    """Write a table of three rows whose second has these cells."""
    row = {"slide": "a", "x0": "1", "tumour": "1", "x1": "2", "x2": "3"}
    rows = [row, {**row, **cells}, {**row, "slide": "b", "tumour": "0"}]
    text = [mark.join(row), *(mark.join(each.values()) for each in rows)]
    (tmp_path / "t.csv").write_text("\n".join(text) + "\n")
    return tmp_path / "t.csv"


@pytest.mark.parametrize(
    ("mark", "cells", "says"),
    [
        (
            ",",
            {"x1": "abc"},
            "t.csv row 3: column 'x1' cannot be read as numbers: it has 'abc'; corr",
        ),
        (
            ",",
            {"x0": "NA", "x2": "?"},
            "t.csv row 3: column 'x2' .* it has '\\?'; correct it, or .*--drop",
        ),
        (
            ";",
            {"x1": "2,5"},
            "row 3: column 'x1' .* it has '2,5'; write decimal points, not commas",
        ),
        (";", {"x2": "-0,5e-3"}, "column 'x2' .* it has '-0,5e-3'; write decimal points"),
        (";", {"x2": "1,2,3"}, "column 'x2' .* it has '1,2,3'; correct it"),
        (
            ",",
            {"x1": "1e300"},
            r"row 3: column 'x1' has 1e\+300, which is too large; .* at most 3e\+38",
        ),
        (",", {"x1": "inf"}, "row 3: column 'x1' is missing or not finite in 1 rows"),
        (",", {"x1": "2,3,4"}, "cannot be read as numbers: CSV parse error"),
    ],
)
def test_cell_that_is_no_number_is_told_by_row_and_name(tmp_path, mark, cells, says):
    path = _cells(tmp_path, mark, **cells)
    with pytest.raises(InputError, match=says):
        import_table(path, tmp_path / "s", InstanceColumns("slide", "tumour"))


def test_cell_far_down_is_told_by_its_row(tmp_path, monkeypatch):
    monkeypatch.setattr("geo.tables.table_csv._BLOCK_BYTES", 200)
    table = _table().astype({"x1": object})
    table.loc[77, "x1"] = "abc"
    table.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=r"row 79: column 'x1' .* it has 'abc'"):
        _import(tmp_path / "t.csv", tmp_path / "s")


@pytest.mark.parametrize(
    ("one", "zero", "positive"), [("sick", "healthy", "sick"), ("1", "-1", "1.0"), ("0", "1", "0")]
)
def test_labels_of_any_kind_once_the_positive_one_is_named(tmp_path, one, zero, positive):
    table, path = _table(), tmp_path / "named.csv"
    named = np.where(table["tumour"] > 0, one, zero)
    table.assign(tumour=named).to_csv(path, index=False)
    columns = InstanceColumns("slide", "tumour", drop=["patch"], positive=positive)
    store = import_table(path, tmp_path / "named.zarr", columns)
    by_bag = table.groupby("slide")["tumour"].first()
    np.testing.assert_array_equal(store.y, by_bag[list(store.ids)])


def test_text_in_a_parquet_column_and_files_that_are_no_tables(tmp_path):
    _table().assign(name="a").to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"column 'name' holds .*string, no numbers; leave it out"):
        _import(tmp_path / "t.parquet", tmp_path / "s")
    (tmp_path / "e.csv").write_text("")
    (tmp_path / "d.parquet").write_text("no parquet")
    for name, says in (
        ("e.csv", "is empty"),
        ("d.parquet", "cannot be read"),
        ("n.csv", "no such"),
    ):
        with pytest.raises(InputError, match=says):
            _import(tmp_path / name, tmp_path / "s")


def test_from_a_table_to_results_on_the_command_line(tmp_path, capsys):
    table = _table(n_bag=60)
    table.to_csv(tmp_path / "t.csv", index=False)
    store, out = str(tmp_path / "s.zarr"), tmp_path / "out"
    asked = ["--bag", "slide", "--label", "tumour", "--drop", "patch", "--out", store]
    assert main(["bags", "import", str(tmp_path / "t.csv"), *asked]) == 0
    assert "60 in" in capsys.readouterr().out
    assert main(["bags", "info", store, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["n_bags"], found["n_features"]) == (60, 3)
    assert sum(found["responses"].values()) == 60
    settings = ("n_inducing=10", "aggregate=sum", "lengthscale=1", "variance=1")
    more = [word for each in settings for word in ("--set", each)]
    more += ["--truth", "patch", "--folds", "2", "--out", str(out), "--quiet"]
    assert main(["bags", "fit", store, "--model", "vwsgp", *more]) == 0
    assert sorted(p.name for p in out.iterdir()) == [
        *("bags.csv", "evaluation.json", "instances.parquet", "model")
    ]
    model = models.load(out / "model")
    assert model.n_inducing == 10
    said = pd.read_parquet(out / "instances.parquet")
    x = table[["x0", "x1", "x2"]].to_numpy()
    np.testing.assert_allclose(said["probability"], model.predict_pixels(x).mean, rtol=1e-6)
    assert said["bag"].tolist() == table["slide"].tolist()
    report = json.loads((out / "evaluation.json").read_text())
    assert report["instances"]["auc"] > 0.8
    assert report["held_out"]["bag"]["model"]["auc"] > 0.6
    assert next(iter(report)) == "better_than_constant"
    first = report["better_than_constant"]["sentence"]
    assert first.startswith("better than one probability for all bags: by bag yes (+")
    assert first.endswith(" nats a bag)")
    constant = report["held_out"]["bag"]["constant"]  # each fold has its own: they rank nothing
    assert (constant["auc"], constant["average_precision"]) == (0.5, constant["positive"])
    assert constant["log_loss"] == pytest.approx(0.6, abs=0.15)
    assert len(pd.read_csv(out / "bags.csv")) == 60


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "vbagg"], "no model 'vbagg' that learns from labels"),
        (["--set", "n_inducing"], "not NAME=VALUE"),
        (["--set", "inducing=3"], "did you mean 'n_inducing'"),
        (["--set", "n_inducing=0"], "n_inducing"),
        (["--truth", "spots"], "has no column 'spots'"),
        (["--truth", "x1"], "is not 1 or 0"),
        (["--folds", "31"], "--folds: 31 folds are more than the 30 bags; give 30 at most"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(tmp_path, arguments, says, capsys):
    _table().to_csv(tmp_path / "t.csv", index=False)
    _import(tmp_path / "t.csv", tmp_path / "s")
    how = ["--model", "vwsgp", *arguments, "--out", str(tmp_path / "out")]
    assert main(["bags", "fit", str(tmp_path / "s"), *how]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert says in line


def test_scores_of_a_constant_rank_nothing():
    y = np.array([1.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    p = np.array([0.25, 0.25, 0.25, 0.4, 0.4, 0.4])  # by fold
    both = label_scores(y, p) | {"by_people": weighted_label_scores(y, p, np.arange(1.0, 7.0))}
    found = unranked(both)
    assert both["auc"] < 0.5  # as if folds ranked
    assert (found["auc"], found["average_precision"]) == (0.5, 0.5)
    weighed = found["by_people"]
    assert (weighed["auc"], weighed["average_precision"]) == (0.5, 7 / 21)
    same = {"auc", "average_precision", "by_people"}
    assert all(found[name] == both[name] for name in both.keys() - same)
    assert np.isnan(unranked(label_scores(np.ones(3), p[:3]))["auc"])  # of one label


def test_labels_that_no_classifier_takes(tmp_path, capsys):
    _table().assign(tumour=1).to_csv(tmp_path / "t.csv", index=False)
    asked = ["--bag", "slide", "--label", "tumour", "--drop", "patch", "--out", str(tmp_path / "s")]
    assert main(["bags", "import", str(tmp_path / "t.csv"), *asked]) == 0
    assert "Import again with --positive LABEL" in capsys.readouterr().out
    run = ["bags", "fit", str(tmp_path / "s"), "--model", "vwsgp", "--out", str(tmp_path / "o")]
    assert main(run) == 2
    assert "all 30 bags are labelled 1" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    asked[-1] = str(tmp_path / "other")
    assert main(["bags", "import", str(tmp_path / "t.csv"), *asked]) == 2
    assert "exists, but is not a bag store" in capsys.readouterr().err

"""Suppressed counts, ``<5`` among the others, from the table to the page."""

from __future__ import annotations

import json
import re

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import yaml

import models
from pipeline.cli.main import main
from pipeline.store.bag_store import BagStore
from pipeline.store.series_store import SeriesStore
from tests.pipeline.conftest import Files
from tests.pipeline.series_inputs import MONTHS, counts, write_inputs
from tests.typed import run_each

pytestmark = pytest.mark.ci

CASES = ["<5", "12", "< 5", "0", "<=4", "9", "1-4", "*", ""]


def _configuration(directory, cases, **sections):
    files = Files(directory)
    frame = gpd.GeoDataFrame({"code": files.ids}, geometry=files.polygons, crs=files.crs)
    frame.to_file(directory / "areas.gpkg", layer="districts")
    given = dict(zip(files.ids, cases, strict=False))
    rows = [f"{i},{given.get(i, '8')},{20 + k}" for k, i in enumerate(files.ids)]
    (directory / "cases.csv").write_text("\n".join(["code,cases,n", *rows]) + "\n", "utf-8")
    files.options = {
        "counts": {"path": "cases.csv", "value": "cases", "suppressed": {"*": [1, 4]}},
        "model": {"kernel": "ard", "inducing": 8, "integrate": "none"},
        "fit": {"max_epochs": 10, "seed": 4},
        "output": {"dir": "out", "draws": 60},
        "evaluate": {"folds": 2, "schemes": ["area"], "calibration": "none"},
    }
    for name, own in sections.items():
        files.options[name] = {**files.options[name], **own}
    path = directory / "run.yaml"
    path.write_text(yaml.safe_dump(files.mapping()), encoding="utf-8")
    return path, files.ids


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    path, ids = _configuration(tmp_path_factory.mktemp("suppressed"), CASES)
    assert main(["run", str(path), "--quiet"]) == 0
    return path, ids


def _areas(path, name="areas.csv"):
    return pd.read_csv(path.parent / "out" / name, dtype={"code": str}).set_index("code")


def test_the_store_has_the_ends_of_each_interval(ran):
    path, ids = ran
    table = pd.read_parquet(next((path.parent / "out/work").rglob("responses.parquet")))
    table = table.set_index("area")
    hidden = table[table["lower"].notna()]
    expected = {"<5": (0, 4), "< 5": (0, 4), "<=4": (0, 4), "1-4": (1, 4), "*": (1, 4)}
    given = {i: expected[c] for i, c in zip(ids, CASES, strict=False) if c in expected}
    assert {i: tuple(hidden.loc[i, ["lower", "upper"]]) for i in hidden.index} == given
    assert hidden["value"].isna().all()
    assert hidden["training"].all()
    store = BagStore(path.parent / "out/work/bags.zarr")
    assert np.isnan(store.observed).sum() == len(given) + 1  # and one without a count


def test_tables_have_ends_and_no_number(ran):
    path, ids = ran
    areas = _areas(path)
    first = areas.loc[ids[0]]
    assert np.isnan(first[["observed", "residual"]].astype(float)).all()
    assert (first["observed_lower"], first["observed_upper"]) == (0, 4)
    assert areas["observed"].sum() == 12 + 0 + 9
    assert bool(first["in_training"])
    summary = json.loads((path.parent / "out/work/stages.json").read_text())["predict"]["summary"]
    assert summary["n_suppressed"] == 5
    assert summary["observed_most"] - summary["observed_total"] == 20


def test_held_out_intervals_are_scored_by_their_probability(ran):
    """The log density in the store's order, from draws of the fitted model by another route."""
    path, _ = ran
    out = path.parent / "out"
    evaluation = json.loads((out / "evaluation.json").read_text())
    for found in (evaluation["in_sample"], evaluation["held_out"]["area"]["constant"]):
        assert found["n_suppressed"] == 5
        assert np.isfinite([found["nll"], found["crps"]]).all()
    store = BagStore(out / "work/bags.zarr")
    model = models.load(out / "work/model")
    block = store.training.read_block(0)
    prediction = model.predict_bags(block, n_draws=50)
    law = prediction.likelihood
    hidden = block.margin > 0
    each = law.draw(
        np.repeat(prediction.draws[:, hidden], 400, axis=0),
        {k: np.repeat(v, 400, axis=0) if np.ndim(v) else v for k, v in prediction.params.items()},
        prediction.bag_data[..., hidden],
        np.random.default_rng(0),
    )
    low, high = (block.y + s * block.margin for s in (-1, 1))
    share = ((each >= low[hidden]) & (each <= high[hidden])).mean(axis=0)
    np.testing.assert_allclose(np.exp(prediction.log_density(block.y))[hidden], share, atol=0.03)


def test_the_page_and_the_console_say_so(ran, capsys):
    path, _ = ran
    text = (path.parent / "out/report.html").read_text(encoding="utf-8")
    assert "and 5 suppressed)" in text
    assert re.search(r"&lt;5|\\u003c5|<5", text)
    capsys.readouterr()
    assert main(["check", str(path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "5 more suppressed" in printed


@pytest.mark.parametrize("zeros", [False, True])
def test_zeros_that_are_published_are_no_suppressed_count(tmp_path, zeros):
    path, ids = _configuration(
        tmp_path, CASES, counts={"zeros_published": zeros, "tested": "n"},
        model={"likelihood": "beta_binomial"},
    )  # fmt: skip
    run_each(path, "ingest", "fit")
    table = pd.read_parquet(next((tmp_path / "out/work").rglob("responses.parquet")))
    assert table.set_index("area").loc[ids[0], "lower"] == float(zeros)


@pytest.mark.slow
def test_of_a_series_each_period_has_its_own(tmp_path):
    config = write_inputs(tmp_path, 3, more="evaluate: {schemes: [], calibration: none}\n")
    table = counts(3)
    number = pd.to_numeric(table["cases"])
    limit = int(number[table["month"] != MONTHS[1]].median())
    few = number < limit
    few &= table["month"] != MONTHS[1]  # a period without any
    table.loc[few, "cases"] = f"<{limit}"
    table.to_csv(tmp_path / "cases.csv", index=False)
    assert main(["run", str(config), "--quiet"]) == 0
    found = pd.read_csv(tmp_path / "out/periods.csv")
    hidden = found["observed_upper"].notna()
    assert hidden.sum() == few.sum() > 0
    assert (found.loc[hidden, "observed_upper"] == limit - 1).all()
    assert found.loc[hidden, "observed"].isna().all()
    assert set(found.loc[hidden, "period"]) == {MONTHS[0], MONTHS[2]}
    stores = SeriesStore(tmp_path / "out/work/bags.zarr", MONTHS[:3], [0.0, 1.0, 2.0])
    first = stores.at(MONTHS[0])
    assert (first.margin > 0).sum() == (few & (table["month"] == MONTHS[0])).sum()
    assert (found.loc[hidden, "count_lower"] < limit).mean() > 0.9

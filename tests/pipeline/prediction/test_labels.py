"""Labelled areas through every stage: read, fitted, mapped and scored; and what is refused."""

from __future__ import annotations

import json
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import rasterio
import yaml
from sklearn.metrics import roc_auc_score

import models
from geo.core.errors import InputError
from pipeline.cli.main import main
from pipeline.config.context import StageContext
from pipeline.config.reader import load_config
from pipeline.demo.country import CountrySpec, simulate_country
from pipeline.evaluation.folds import stratified_folds
from pipeline.evaluation.label_scores import label_scores
from pipeline.ingest.stage import ingest
from pipeline.store.bag_store import BagStore
from tests.bands import read
from tests.typed import edit, run_each

SPEC = CountrySpec(
    (36, 40), 1 / 12, 700, 16, 6, 4e5, covariates=("elevation", "temperature"), n_inducing=12
)
LARGER = CountrySpec(
    (60, 66), 1 / 24, 2500, 60, 10, 1e6, covariates=("elevation", "temperature", "rainfall", "evi")
)
ONE = {"variance": 1.0, "lengthscale": 1.0, "calibrate": "none"}  # one fit
LABELS = dict(zip((f"M{k:02d}" for k in range(9)), "100110010", strict=True))


def _labels(files: Any, labels: dict[str, str], name: str = "outbreaks.csv") -> None:
    lines = ["code,outbreak", *(f"{i},{value}" for i, value in labels.items())]
    (files.directory / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _config(files: Any, **sections: Any) -> Any:
    mapping = files.mapping()
    del mapping["counts"]
    mapping |= {
        "labels": {"path": "outbreaks.csv", "value": "outbreak"},
        "model": {"kind": "vwsgp", "inducing": 10, "options": ONE},
        "fit": {"max_epochs": 5, "seed": 1},
        "evaluate": {"folds": 3, "schemes": ["area"]},
        "output": {"dir": str(files.directory / "out")},
        **sections,
    }
    path = files.directory / "run.yaml"
    path.write_text(yaml.safe_dump(mapping))
    return path


@pytest.fixture
def labelled(files):
    _labels(files, LABELS)
    return files


@pytest.mark.ci
def test_labels_become_maps_tables_and_scores(labelled):
    hot = np.where(labelled.x["wave"] > 0, 1.0, 0.0)
    labelled.raster("hot.tif", hot)
    path = _config(labelled, truth={"path": "hot.tif"})
    assert main(["run", str(path), "--quiet"]) == 0
    out = labelled.directory / "out"
    store, model = BagStore.open(out / "work/bags.zarr"), models.load(out / "work/model")
    assert dict(zip(store.ids, store.y, strict=True)) == {k: float(v) for k, v in LABELS.items()}

    # The raster holds what the model says of the stored pixels.
    maps = {}
    for name in ("mean", "sd", "lower", "upper"):
        with rasterio.open(out / f"probability_{name}.tif") as tif:
            maps[name] = tif.read(1).ravel()
            assert tif.tags()["model"] == "vwsgp"
            assert "rate_per" not in tif.tags()
    pixel = np.concatenate([store.read_pixel(k) for k in range(store.n_block)])
    blocks = list(store.blocks())
    said = models.Probability(
        "logistic",
        *(
            np.concatenate([getattr(model.predict_pixels(b.x, b.coords), n) for b in blocks])
            for n in ("m", "s")
        ),
    )
    np.testing.assert_allclose(maps["mean"][pixel], said.mean, rtol=1e-5)
    np.testing.assert_allclose(maps["sd"][pixel], said.sd, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(maps["lower"][pixel], said.quantile(0.05), rtol=1e-4)
    np.testing.assert_allclose(maps["upper"][pixel], said.quantile(0.95), rtol=1e-4)
    assert not list(out.glob("rate_*.tif"))

    table = pd.read_csv(out / "areas.csv", dtype={"code": str}).set_index("code")
    bags = np.concatenate([model.predict_bags(b).mean for b in blocks])
    np.testing.assert_allclose(table["probability"].loc[list(store.ids)], bags, rtol=1e-4)
    assert len(gpd.read_file(out / "areas.gpkg", layer="areas")) == 9

    report = json.loads((out / "evaluation.json").read_text())
    assert report["in_sample"]["auc"] == pytest.approx(roc_auc_score(store.y, bags))
    assert report["held_out"]["area"]["model"]["n"] == 9
    truth, label = (
        hot.ravel()[pixel],
        np.concatenate([np.repeat(b.y, np.diff(b.offsets)) for b in blocks]),
    )
    assert report["truth"]["pixels"]["auc"] == pytest.approx(roc_auc_score(truth, said.mean))
    assert report["truth"]["area_label"]["auc"] == pytest.approx(roc_auc_score(truth, label))
    people = np.concatenate([b.weight for b in blocks])
    assert report["truth"]["people"]["auc"] == pytest.approx(
        roc_auc_score(truth, said.mean, sample_weight=people)
    )
    assert report["in_sample"]["by_people"]["auc"] == pytest.approx(
        roc_auc_score(store.y, bags, sample_weight=store.bag_weight)
    )
    verdict, held_out = report["better_than_constant"], report["held_out"]["area"]
    assert verdict["sentence"].startswith("better than one probability for the whole country: by ")
    gain = held_out["constant"]["log_loss"] - held_out["model"]["log_loss"]
    assert verdict["area"]["gain"] == pytest.approx(gain)
    low, high = verdict["area"]["interval"]
    assert verdict["area"]["answer"] == ("yes" if low > 0 else "no" if high < 0 else "unclear")
    assert report["truth"]["area_label"]["accuracy"] == pytest.approx((truth == label).mean())
    # Another kind of model leaves no maps of the old one.
    mapping = {**labelled.mapping(), "model": {"kind": "constant"}}
    mapping["output"] = {"dir": str(out), "draws": 5}
    path.write_text(yaml.safe_dump(mapping))
    run_each(path, "ingest", "fit", "predict")
    assert (out / "rate_mean.tif").is_file()
    assert not list(out.glob("probability_*"))


def test_labels_may_be_words_and_a_column_of_the_areas(labelled):
    frame = gpd.read_file(labelled.directory / "areas.gpkg")
    frame["outbreak"] = ["Yes" if LABELS[i] == "1" else "no" for i in frame["code"]]
    (labelled.directory / "areas.gpkg").unlink()
    frame.to_file(labelled.directory / "areas.gpkg", layer="districts")
    config = load_config(_config(labelled, labels={"value": "outbreak"}))
    ingest(StageContext(config))
    store = BagStore.open(labelled.directory / "out/work/bags.zarr")
    assert dict(zip(store.ids, store.y, strict=True)) == {k: float(v) for k, v in LABELS.items()}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"M03": "2"}, r"outbreaks.csv\) row 5 \(id M03: '2'\): column 'outbreak' is not a label"),
        ({"M03": "?"}, r"row 5 \(id M03: '\?'\): column 'outbreak' is not a label"),
        (dict.fromkeys(LABELS, ""), "column 'outbreak' has no label for any area"),
        (dict.fromkeys(LABELS, "1"), "column 'outbreak' is 1 for every area"),
        ({"M99": "1"}, r"1 label\(s\) match no area: M99 \(row 11\)"),
    ],
)
def test_labels_that_cannot_be_used_are_told_by_row(change, says, files):
    _labels(files, {**LABELS, **change})
    path = _config(files)
    with pytest.raises(InputError, match=says):
        ingest(StageContext(load_config(path)))
    assert not (files.directory / "out/work/bags.zarr").exists()


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"model": {"kind": "vbagg"}}, "labels given, but model.kind: vbagg learns from counts"),
        ({"counts": {"path": "cases.csv", "value": "cases"}}, "counts and labels given"),
        (
            {"model": {"kind": "vwsgp", "likelihood": "binomial"}},
            "likelihood is for models of counts",
        ),
        ({"model": {"kind": "vwsgp", "options": {"varianc": 2}}}, "did you mean 'variance'"),
        ({"model": {"kind": "vwsg"}}, "vwsgp"),
    ],
)
def test_what_does_not_go_together_is_refused(sections, says, labelled):
    with pytest.raises(InputError, match=says):
        load_config(_config(labelled, **sections))


def test_options_reach_the_model_and_defaults_are_its_own(labelled):
    from pipeline.config.model_factory import new_model

    plain = new_model(load_config(_config(labelled, model={"kind": "vwsgp"}, fit={"seed": 3})))
    assert plain.get_params() == models.VWSGP(seed=3).get_params()
    path = _config(labelled, model={"kind": "vwsgp", "options": {"variance": 2.5}, "inducing": 7})
    model = new_model(load_config(path))
    assert (model.variance, model.n_inducing) == (2.5, 7)


def test_stratified_folds_share_the_positives_out():
    y = (np.arange(50) % 5 == 0).astype(float)
    fold = stratified_folds(y, 5, 0)
    assert np.bincount(fold).tolist() == [10] * 5
    assert [y[fold == k].sum() for k in range(5)] == [2] * 5
    assert (fold != stratified_folds(y, 5, 1)).any()


def test_scores_of_labels_by_hand():
    y, p = np.array([1, 0, 1, 0]), np.array([0.9, 0.2, 0.4, 0.6])
    scores = label_scores(y, p)
    assert scores["accuracy"] == 0.5
    assert scores["auc"] == pytest.approx(3 / 4)
    assert scores["f1"] == pytest.approx(0.5)
    assert scores["log_loss"] == pytest.approx(-np.log([0.9, 0.8, 0.4, 0.4]).mean())
    assert scores["brier"] == pytest.approx(np.mean([0.01, 0.04, 0.36, 0.36]))
    assert np.isnan(label_scores(np.ones(3), p[:3])["auc"])
    rng = np.random.default_rng(0)
    p = rng.uniform(size=100_000)
    honest = label_scores((rng.uniform(size=p.size) < p).astype(float), p)
    assert honest["calibration"]["error"] < 0.01
    assert label_scores((p > 0.5).astype(float), p)["calibration"]["error"] > 0.2


def test_equal_probabilities_are_calibrated_together_whatever_their_order():
    rng = np.random.default_rng(4)
    y = (np.arange(120) < 60) * 1.0
    assert label_scores(y, np.full(120, 0.5))["calibration"]["error"] == pytest.approx(0.0)
    assert label_scores(y, np.full(120, 0.3))["calibration"]["error"] == pytest.approx(0.2)
    p = rng.choice([0.1, 0.2, 0.7], 120)
    mixed = rng.permutation(120)
    one, other = (label_scores(*each)["calibration"] for each in ((y, p), (y[mixed], p[mixed])))
    assert one["error"] == pytest.approx(other["error"], rel=1e-12)


def test_a_simulated_country_of_labels(tmp_path):
    config = load_config(simulate_country(tmp_path, SPEC, seed=3, labels=True))
    labels = pd.read_csv(tmp_path / "outbreaks.csv")
    assert labels["outbreak"].mean() == pytest.approx(0.5, abs=0.02)
    rate = read(tmp_path / "truth_rate.tif")
    with rasterio.open(tmp_path / "truth_hotspot.tif") as tif:
        hot = tif.read(1, masked=True)
    inside = ~np.ma.getmaskarray(hot)
    assert rate[inside & (hot == 1)].min() >= rate[inside & (hot == 0)].max()
    assert 0.005 < hot.mean() < 0.3
    assert config.labels is not None
    assert config.model.responses == "labels"


@pytest.mark.ci
def test_a_map_from_labels_knows_more_than_the_labels(tmp_path):
    path = simulate_country(tmp_path, LARGER, labels=True)
    edit(path, {"schemes: [area, block]": "schemes: []"})
    run_each(path, "ingest", "fit", "predict", "evaluate")
    truth = json.loads((tmp_path / "out/evaluation.json").read_text())["truth"]
    assert truth["pixels"]["auc"] > truth["area_label"]["auc"] + 0.08
    # Inside the positive areas, where the label says the same of every pixel.
    assert truth["positive_areas"]["auc"] > 0.7

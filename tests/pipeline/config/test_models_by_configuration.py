"""Every model and law that a configuration can name goes through all stages, to maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import rasterio
import yaml

from geo.core.errors import InputError
from pipeline.config.catalogue import catalogue
from pipeline.config.context import StageContext
from pipeline.config.reader import load_config
from pipeline.core.progress import Silent
from pipeline.evaluation.calibration_summary import KEY as CALIBRATION
from pipeline.ingest.stage import ingest
from pipeline.run.runner import run_stages
from pipeline.store.bag_store import BagStore
from tests.bands import read
from tests.pipeline.conftest import Files

FAST: dict[str, Any] = {
    "fit": {"max_epochs": 3, "batch_areas": 4, "seed": 1},
    "evaluate": {"folds": 2, "schemes": ["area"], "calibration": "none"},
}
STAGES = ("ingest", "fit", "predict", "evaluate")  # the report is the same for all


def _written(files: Any, **sections: Any) -> Path:
    mapping = {**files.mapping(), **FAST, **sections}
    mapping["output"] = {"dir": str(files.directory / "out"), "draws": 20}
    path: Path = files.directory / "run.yaml"
    path.write_text(yaml.safe_dump(mapping))
    return path


def _run(files: Any, model: dict[str, Any], **sections: Any) -> Path:
    """Run the stages; return the directory of the results."""
    if model.get("kind", "vbagg") == "vbagg":
        model = {"integrate": "none", "inducing": 5} | model
    config = load_config(_written(files, model=model, **sections))
    run_stages(config, STAGES, Silent())
    return config.output.dir


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Good inputs, that one ingest serves."""
    return Files(tmp_path_factory.mktemp("models"))


def _tested(files: Any, tested: dict[str, int]) -> None:
    rows = [f"{i},{n},{tested[i]}" for i, n in files.cases.items()]
    text = "\n".join(["code,cases,n", *rows]) + "\n"
    (files.directory / "cases.csv").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "constant"},
        {"kind": "bag_pixel", "inducing": 5},
        {"kind": "nystrom", "inducing": 5},
        {"kind": "network"},
        {"kernel": "linear(x) + additive", "likelihood": "negative_binomial", "link": "square"},
        {"estimator": "monte_carlo", "area_effect": False},
        {"precision": "float32", "pair_pixels": 16, "integrate": "auto"},
    ],
    ids=lambda model: "-".join(map(str, model.values())),
)
def test_every_model_makes_maps_and_an_evaluation(model, shared):
    out = _run(shared, model)
    rate = read(out / "rate_mean.tif")
    assert (rate[np.isfinite(rate)] > 0).any()
    assert json.loads((out / "evaluation.json").read_text())["held_out"]["area"]
    fit = json.loads((out / "run.json").read_text())["stages"]["fit"]["summary"]
    # The default kernel of VBAgg has a linear part as well.
    kind = model.get("kind", "vbagg")
    linear = "linear" in model.get("kernel", "") or kind == "vbagg"
    assert set(fit["coefficients"]) == ({"wave", "north"} if linear else set())
    # What has no uncertainty says so wherever an end or a probability is named.
    flat = bool((read(out / "rate_sd.tif")[np.isfinite(rate)] == 0).all())
    assert flat != next(each.has_spread for each in catalogue() if each.kind == kind)
    evaluation = json.loads((out / "evaluation.json").read_text())
    cautions = evaluation[CALIBRATION]["cautions"]
    assert ([fit["no_uncertainty"]] == cautions) == flat
    assert f"{kind} has no uncertainty" in fit["no_uncertainty"] or not flat
    for name in ("rate_lower", "rate_upper", "rate_sd"):
        with rasterio.open(out / f"{name}.tif") as source:
            assert ("(the model has no uncertainty)" in source.descriptions[0]) == flat
    with rasterio.open(out / "rate_mean.tif") as source:
        assert source.descriptions[0] == "mean rate"


def test_the_list_of_models_says_which_have_no_uncertainty():
    flat = {each.kind for each in catalogue() if not each.has_spread}
    assert flat == {"constant", "network", "nystrom"}
    assert flat == {each.kind for each in catalogue() if "no uncertainty" in each.about}


SURVEY = {"path": "cases.csv", "value": "cases", "tested": "n"}


@pytest.mark.ci
def test_positives_of_tested_make_a_map_of_proportions(files):
    tested = {i: 4 * int(n) for i, n in files.cases.items()}
    _tested(files, tested)
    out = _run(files, {"likelihood": "binomial"}, counts=SURVEY)
    store = BagStore.open(out / "work/bags.zarr")
    by_id = dict(zip(store.ids, store.trials, strict=True))
    assert by_id == {i: float(n) for i, n in tested.items()}
    first = store.trials[: store.block_offsets[1]]
    np.testing.assert_array_equal(store.read_block(0).trials, first)
    # A quarter is positive everywhere, told per 1000.
    assert np.nanmean(read(out / "rate_mean.tif")) == pytest.approx(250, abs=60)
    table = pd.read_csv(out / "areas.csv").set_index("code").loc[list(store.ids)]
    np.testing.assert_array_equal(table["tested"], [tested[i] for i in store.ids])
    np.testing.assert_allclose(table["people"], store.bag_weight, rtol=1e-5)
    np.testing.assert_allclose(table["observed_rate"], 250, rtol=1e-6)


def test_more_positives_than_tested_is_told_by_area(files):
    _tested(files, {i: int(n) - (i == "M03") for i, n in files.cases.items()})
    path = _written(files, counts=SURVEY, model={"likelihood": "binomial"})
    told = r"row 5 \(id M03\): column 'cases' has more positives than column 'n' .*\(13 of 12\)"
    with pytest.raises(InputError, match=told):
        ingest(StageContext(load_config(path)))


def _values(files: Any, scale: float, shift: float) -> None:
    """Give the areas values instead of counts: their own rate times their people."""
    for k, name in enumerate(files.ids):
        people = files.population[files.pixels(k)].sum()
        files.cases[name] = f"{people * (scale * np.cos(k) + shift):.6g}"
    files.counts()


@pytest.mark.parametrize(
    ("likelihood", "shift", "options"),
    [
        ("normal", -0.02, {"link": "identity"}),
        ("exponential", 0.2, {"estimator": "bound"}),
        ("gamma", 0.2, {}),
    ],
)
def test_values_that_are_no_counts_make_maps(likelihood, shift, options, files):
    _values(files, 0.1, shift)
    out = _run(files, {"likelihood": likelihood, **options})
    rate = read(out / "rate_mean.tif")
    with rasterio.open(out / "rate_mean.tif") as tif:
        assert tif.units[0] == "cases per 1,000 people"
    assert np.nanmin(rate) < 0 if likelihood == "normal" else np.nanmin(rate) > 0
    assert not (out / "cases_mean.tif").exists()  # a value is no number of cases
    report = json.loads((out / "evaluation.json").read_text())
    assert "poisson_deviance" not in report["in_sample"]
    for scores in (report["held_out"]["area"]["model"], report["held_out"]["area"]["constant"]):
        assert np.isfinite(scores["nll"])
        assert scores["n_impossible"] == 0
    table = (out / "areas.csv").read_text().splitlines()
    assert len(table) == len(files.ids) + 1


def test_negative_counts_are_refused(files):
    _values(files, 0.1, -0.02)
    path = _written(files, model={"likelihood": "exponential"})
    with pytest.raises(InputError, match="is negative"):
        ingest(StageContext(load_config(path)))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"likelihood": "poison"}, r"did you mean poisson\?"),
        ({"link": "sqare"}, r"mean square\?"),
        ({"likelihood": "binomial"}, "counts.tested and model.likelihood"),
        ({"likelihood": "poisson", "link": "probit"}, "give link: exp or square"),
        ({"likelihood": "poisson", "area_effect": True, "estimator": "bound"}, "estimator"),
    ],
)
def test_what_does_not_go_together_is_refused(model, says, files):
    with pytest.raises(InputError, match=says):
        load_config(_written(files, model=model))

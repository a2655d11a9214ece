"""Every model and law that a configuration can name goes through all stages, to maps."""

from __future__ import annotations

import csv
import json
from typing import Any

import numpy as np
import pytest
import rasterio
import yaml

from geo.core.errors import InputError
from pipeline.cli.main import main
from pipeline.config.context import StageContext
from pipeline.config.reader import load_config
from pipeline.ingest.stage import ingest
from pipeline.store.bag_store import BagStore

FAST: dict[str, Any] = {
    "fit": {"max_epochs": 3, "batch_areas": 4, "seed": 1},
    "evaluate": {"folds": 3, "schemes": ["area"]},
}


def _run(files: Any, **sections: Any) -> Any:
    mapping = {**files.mapping(), **FAST, **sections}
    mapping["output"] = {"dir": str(files.directory / "out"), "draws": 20}
    path = files.directory / "run.yaml"
    path.write_text(yaml.safe_dump(mapping))
    return path


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
        {"inducing": 5, "kernel": "linear(x) + additive"},
        {"inducing": 5, "likelihood": "negative_binomial", "link": "square"},
        {"inducing": 5, "estimator": "monte_carlo", "area_effect": False},
        {"inducing": 5, "precision": "float32", "pair_pixels": 16},
    ],
    ids=lambda model: "-".join(map(str, model.values())),
)
def test_every_model_makes_maps_and_an_evaluation(model, files):
    assert main(["run", str(_run(files, model=model)), "--quiet"]) == 0
    with rasterio.open(files.directory / "out/rate_mean.tif") as tif:
        rate = tif.read(1)
    assert (rate[np.isfinite(rate)] > 0).any()
    fit = json.loads((files.directory / "out/run.json").read_text())["stages"]["fit"]["summary"]
    slopes = set(fit["coefficients"])
    # The default kernel of VBAgg has a linear part as well.
    linear = "linear" in model.get("kernel", "") or model.get("kind", "vbagg") == "vbagg"
    assert slopes == ({"wave", "north"} if linear else set())


def test_positives_of_tested_make_a_map_of_proportions(files):
    tested = {i: 4 * int(n) for i, n in files.cases.items()}
    _tested(files, tested)
    path = _run(
        files,
        counts={"path": "cases.csv", "value": "cases", "tested": "n"},
        model={"likelihood": "binomial", "inducing": 5},
    )
    assert main(["run", str(path), "--quiet"]) == 0
    store = BagStore.open(files.directory / "out/work/bags.zarr")
    by_id = dict(zip(store.ids, store.trials, strict=True))
    assert by_id == {i: float(n) for i, n in tested.items()}
    np.testing.assert_array_equal(
        store.read_block(0).trials, store.trials[: store.block_offsets[1]]
    )
    with rasterio.open(files.directory / "out/rate_mean.tif") as tif:
        rate = tif.read(1)
    # A quarter is positive everywhere, told per 1000.
    assert np.nanmean(rate) == pytest.approx(250, abs=60)
    with (files.directory / "out/areas.csv").open(encoding="utf-8") as file:
        rows = {row["code"]: row for row in csv.DictReader(file)}
    people = dict(zip(store.ids, store.bag_weight, strict=True))
    for area, row in rows.items():
        assert float(row["tested"]) == tested[area]
        assert float(row["people"]) == pytest.approx(people[area], rel=1e-5)
        assert float(row["observed_rate"]) == pytest.approx(250)


def test_more_positives_than_tested_is_told_by_area(files):
    _tested(files, {i: int(n) - (i == "M03") for i, n in files.cases.items()})
    path = _run(
        files,
        counts={"path": "cases.csv", "value": "cases", "tested": "n"},
        model={"likelihood": "binomial"},
    )
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
    path = _run(files, model={"likelihood": likelihood, "inducing": 5, **options})
    assert main(["run", str(path), "--quiet"]) == 0
    out = files.directory / "out"
    with rasterio.open(out / "rate_mean.tif") as tif:
        rate = tif.read(1)
        assert tif.units[0] == "value per 1,000 people"
    assert np.nanmin(rate) < 0 if likelihood == "normal" else np.nanmin(rate) > 0
    assert not (out / "cases_mean.tif").exists()  # a value is no number of cases
    assert (out / "preview.png").is_file()
    report = json.loads((out / "evaluation.json").read_text())
    assert "poisson_deviance" not in report["in_sample"]
    for scores in (report["held_out"]["area"]["model"], report["held_out"]["area"]["constant"]):
        assert np.isfinite(scores["nll"])
        assert scores["n_impossible"] == 0
    table = (out / "areas.csv").read_text().splitlines()
    assert len(table) == len(files.ids) + 1


def test_negative_counts_are_refused(files):
    _values(files, 0.1, -0.02)
    with pytest.raises(InputError, match="is negative"):
        ingest(StageContext(load_config(_run(files, model={"likelihood": "exponential"}))))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [("likelihood", "poison", r"did you mean poisson\?"), ("link", "sqare", r"mean square\?")],
)
def test_a_misspelt_likelihood_or_link_is_told_the_nearest(key, value, says, files):
    with pytest.raises(InputError, match=says):
        load_config(_run(files, model={key: value}))


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"model": {"likelihood": "binomial"}}, "counts.tested and model.likelihood"),
        ({"model": {"likelihood": "poisson", "link": "probit"}}, "give link: exp or square"),
        (
            {"model": {"likelihood": "poisson", "area_effect": True, "estimator": "bound"}},
            "estimator",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(sections, says, files):
    with pytest.raises(InputError, match=says):
        load_config(_run(files, **sections))

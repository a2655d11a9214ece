"""The list of products: the README's table, and a raster that other code adds."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rasterio
from rio_cogeo import cog_validate

from pipeline.config.context import StageContext
from pipeline.prediction.stage import predict_stage
from pipeline.products import products
from pipeline.products.products import (
    Product,
    RasterProduct,
    announced_files,
    is_product,
    layers,
    register,
)
from pipeline.run.fingerprints import Fingerprints
from pipeline.run.record import stage_inputs
from pipeline.run.stages import STAGES

RATE_RATIO = RasterProduct(
    file="rate_ratio.tif",
    description="mean rate over that of the country",
    unit="1",
    values=lambda p, _, at: p.mean / at.mean_rate,
    wanted=lambda config: config.output.rate_per > 1,
    low=0.0,
    high=4.0,
)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(products, "PRODUCTS", list(products.PRODUCTS))
    register(RATE_RATIO)


@pytest.mark.ci
def test_a_product_from_outside_is_written_described_checked_and_cleaned_up(
    world, registered, tmp_path
):
    out = tmp_path / "out"
    shutil.copytree(world.directory / "out", out)
    config = world.with_config(output={"dir": str(out)})
    summary = predict_stage(StageContext(config))
    path = out / "rate_ratio.tif"
    assert {"rate_ratio.tif", "rate_ratio.qml"} <= set(summary["files"])
    assert cog_validate(path, quiet=True)[0]
    with rasterio.open(path) as raster, rasterio.open(out / "rate_mean.tif") as rate:
        assert raster.units == ("1",)
        assert raster.descriptions == ("mean rate over that of the country",)
        assert raster.tags()["fingerprint"] == "of-the-inputs"
        rows = world.store.read_rows(0, world.store.n_pix)
        mean = 1000 * world.store.y.sum() / rows.weight.sum()
        np.testing.assert_allclose(raster.read(1), rate.read(1) / mean, rtol=1e-6)
    style = path.with_suffix(".qml").read_text()
    assert 'minimumValue="0" maximumValue="4"' in style
    assert 'label="4"' in style  # a ratio has no unit to show
    assert "rate_ratio.tif" in Fingerprints(config).outputs(STAGES["predict"].outputs)
    assert is_product("rate_ratio.tif")

    predict_stage(StageContext(world.with_config(output={"dir": str(out), "rate_per": 1})))
    assert (out / "rate_mean.tif").is_file()
    assert not list(out.glob("rate_ratio*"))


def test_a_new_product_makes_the_stage_stale_that_writes_it(world, monkeypatch):
    def inputs(name):
        stage = STAGES[name]
        return stage_inputs(stage, world.config).get("products")

    before = {name: inputs(name) for name in ("fit", "predict", "evaluate")}
    monkeypatch.setattr(products, "PRODUCTS", [*products.PRODUCTS, RATE_RATIO])
    after = {name: inputs(name) for name in ("fit", "predict", "evaluate")}
    assert before["fit"] is None
    assert before["predict"] != after["predict"]
    assert before["evaluate"] == after["evaluate"]


def test_two_products_of_one_file_are_refused(registered):
    with pytest.raises(ValueError, match=r"rate_ratio\.tif: already registered"):
        register(Product(file="rate_ratio.tif", description="another"))


def test_each_threshold_is_a_raster_and_its_words_are_filled_in(world):
    found = layers(world.with_config(output={"exceedance": [50, 62.5, 50]}))
    exceedance = [layer for layer in found if layer.name.startswith("exceedance")]
    assert [layer.name for layer in exceedance] == ["exceedance_50", "exceedance_62.5"]
    assert exceedance[1].description.endswith("above 62.5 cases per 1,000 people")
    by_name = {layer.name: layer for layer in found}
    assert by_name["rate_lower"].description == "lower end of the central 90 % interval of the rate"


def test_the_command_line_names_maps_and_tables_that_are_there(tmp_path):
    for name in ("areas.csv", "rate_mean.tif", "rate_sd.tif", "probability_mean.tif", "notes.txt"):
        (tmp_path / name).touch()
    assert announced_files(tmp_path) == ["rate_mean.tif", "probability_mean.tif", "areas.csv"]


def test_the_readme_lists_every_product_and_nothing_else():
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    section = readme.split("A run leaves these files in `output.dir`:")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    patterns = {pattern for product in products.PRODUCTS for pattern in product.patterns}
    for product in products.PRODUCTS:
        assert any(fnmatch.fnmatch(name, product.patterns[0]) for name in named), product.file
    for name in named - {"*.qml", "*.sld"}:
        assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns), name


def test_the_list_is_read_without_numpy_or_gdal():
    code = (
        "import sys, pipeline.products.products;"
        "print([m for m in ('numpy', 'pandas', 'rasterio', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_mean_rate_of_positives_is_per_person_tested(world):
    trials = np.full(world.store.n_bag, 400.0)
    store = SimpleNamespace(y=world.store.y, bag_weight=world.store.bag_weight, trials=trials)
    cases = products.RasterContext(world.config, store)
    assert cases.mean_rate == pytest.approx(store.y.sum() / store.bag_weight.sum())
    model = {"likelihood": "binomial", "link": "probit", "area_effect": False}
    positives = world.with_config(model=model, counts={"tested": "n"})
    rate = products.RasterContext(positives, store).mean_rate
    assert rate == pytest.approx(store.y.sum() / trials.sum())
    nobody = SimpleNamespace(y=np.zeros(2), bag_weight=np.zeros(2), trials=None)
    assert np.isnan(products.RasterContext(world.config, nobody).mean_rate)

"""The main job, typed as a user types it, on a country of a few areas."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import rasterio
from rio_cogeo.cogeo import cog_validate

from tests.bands import read

RATES = ("rate_mean", "rate_sd", "rate_lower", "rate_upper", "rate_median")


@pytest.fixture
def ran(country):
    return country / "disagg.yaml"


def test_every_map_is_there_and_is_a_valid_cog(ran):
    out = ran.parent / "out"
    names = [*RATES, "cases_mean", "exceedance_50", "exceedance_100"]
    for name in names:
        valid, errors, warnings = cog_validate(out / f"{name}.tif", strict=True)
        assert valid, (name, errors, warnings)
        assert (out / f"{name}.qml").is_file()
        with rasterio.open(out / f"{name}.tif") as tif:
            assert np.isnan(tif.nodata)
            assert tif.descriptions[0]
            assert tif.units[0]
            assert tif.tags()["link"] == "exp"
    maps = {}
    for name in RATES:
        maps[name] = read(out / f"{name}.tif")
    inside = np.isfinite(maps["rate_mean"])
    assert inside.sum() > 400
    low, mid, high = (maps[f"rate_{n}"][inside] for n in ("lower", "median", "upper"))
    assert (low <= mid).all()
    assert (mid <= high).all()
    assert (maps["rate_sd"][inside] > 0).all()

    areas = pd.read_csv(out / "areas.csv")
    with rasterio.open(out / "cases_mean.tif") as tif:
        mapped = np.nansum(tif.read(1, out_dtype="float64"))
    # The table has joint draws of shares of pixels, the map means of whole pixels.
    assert mapped == pytest.approx(areas["fitted"].sum(), rel=0.1)
    assert areas["observed"].sum() == pytest.approx(areas["fitted"].sum(), rel=0.5)

    def refuse(word):
        raise AssertionError(word)

    text = (out / "evaluation.json").read_text()
    assert "truth" in json.loads(text, parse_constant=refuse)  # no NaN, no Infinity


def test_the_same_job_in_python_gives_the_same_map(ran, tmp_path):
    from pipeline import BagStore, fit, predict_raster
    from pipeline.config.reader import load_config
    from pipeline.products.products import layers
    from pipeline.training.stage import new_model

    config = load_config(ran)
    work = ran.parent / "out/work"
    model = new_model(config)
    assert fit(model, BagStore.open(work / "bags.zarr")).epoch == 4
    n_pix = predict_raster(model, work / "grid.zarr", tmp_path, layers(config)[:1])
    with (
        rasterio.open(tmp_path / "rate_mean.tif") as again,
        rasterio.open(ran.parent / "out/rate_mean.tif") as first,
    ):
        np.testing.assert_array_equal(again.read(1), first.read(1))
        assert np.isfinite(again.read(1)).sum() == n_pix

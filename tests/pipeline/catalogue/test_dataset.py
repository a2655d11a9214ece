"""What a run leaves opens in xarray in one line, and has the values of its files."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import rasterio
import rioxarray  # noqa: F401 (registers .rio)
import xarray as xr

import pipeline
from geo.core.errors import InputError
from pipeline.catalogue.dataset import RunBackend
from pipeline.config.context import StageContext
from pipeline.prediction.stage import predict_stage

# affine warns of its own operator, which rioxarray uses.
pytestmark = [
    pytest.mark.ci,
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),
]


@pytest.fixture(scope="module")
def out(world, tmp_path_factory):
    """The directory of a run of one period."""
    out = tmp_path_factory.mktemp("results") / "out"
    shutil.copytree(world.directory / "out", out)
    predict_stage(StageContext(world.with_config(output={"dir": str(out), "draws": 50})))
    return out


def test_a_run_of_one_period_is_one_dataset(out, world):
    data = xr.open_dataset(out, engine=RunBackend)
    rasters = sorted(path.stem for path in out.glob("*.tif"))
    assert {"rate_mean", "coverage", "population", "cases_mean"} <= set(rasters) <= set(data)
    for name in rasters:
        with rasterio.open(out / f"{name}.tif") as file:
            np.testing.assert_array_equal(data[name], file.read(1, masked=True).filled(np.nan))
            assert data[name].attrs["long_name"] == file.descriptions[0]
            assert data[name].attrs["units"] == file.units[0]
            assert data.rio.crs == file.crs
            assert data[name].rio.transform() == file.transform
    table = pd.read_csv(out / "areas.csv", dtype={0: str})
    assert list(data.area.to_numpy()) == list(table.iloc[:, 0])
    np.testing.assert_array_equal(data.area_fitted, table["fitted"])
    total = world.config.response_kind.fill("{total}")
    assert {data[f"area_{name}"].attrs["units"] for name in ("fitted", "expected")} == {total}
    assert data.area_people.attrs["units"] == "people"


def test_the_intervals_of_areas_are_those_of_the_draws(out, world):
    data = pipeline.open_results(out)
    assert data.area_expected.dims == ("area", "draw")
    assert data.sizes["draw"] == 50
    half = (1 - world.config.output.interval) / 2
    for column, values, share in (
        ("fitted_lower", data.area_expected, half),
        ("fitted_upper", data.area_expected, 1 - half),
        ("count_upper", data.area_count, 1 - half),
    ):
        # The ends of an interval of counts are counts themselves.
        method = "inverted_cdf" if column == "count_upper" else "linear"
        found = values.quantile(share, "draw", method=method)
        known = data[f"area_{column}"].notnull() & found.notnull()
        assert known.sum() > 5
        np.testing.assert_allclose(found[known], data[f"area_{column}"][known], rtol=1e-5)


def test_a_series_has_its_periods(quarters):
    data = xr.open_dataset(quarters, engine=RunBackend)
    cube = xr.open_zarr(quarters / "rates.zarr")
    assert data.rate_mean.dims == ("time", "y", "x")
    assert data.rate_mean.attrs["units"]
    np.testing.assert_array_equal(data.rate_mean, cube.rate_mean)
    assert list(data.period.to_numpy()) == list(cube.period.to_numpy())
    assert data.population.dims == ("y", "x")
    assert data.rio.crs is not None
    assert data.area_expected.sizes["draw"] > 1


def test_xarray_knows_it_by_its_entry_point(out, tmp_path):
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["xarray.backends"] == {
        "disagg": f"{RunBackend.__module__}:{RunBackend.__name__}"
    }
    assert not RunBackend().guess_can_open(tmp_path)
    assert not RunBackend().guess_can_open(out)  # no run has ended there: no run.json
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    assert RunBackend().guess_can_open(str(tmp_path))
    with pytest.raises(InputError, match=r"has no areas\.csv; give the output\.dir of a run"):
        xr.open_dataset(tmp_path, engine=RunBackend)

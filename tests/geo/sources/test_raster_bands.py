"""Of several bands, variables and times one is named; a file that needs a choice says which."""

import numpy as np
import pytest
import rasterio
import rasterio.shutil
import xarray as xr
from affine import Affine

from geo.sources.raster_header import BandChoice, RasterHeader
from geo.sources.registry import open_source

VALUES = np.arange(24, dtype="f4").reshape(2, 3, 4)


def cf(**attrs):
    """Return two months of a temperature on longitudes and latitudes, without a grid mapping."""
    axes = {
        "lat": ("lat", [-19.5, -18.5, -17.5], {"units": "degrees_north", **attrs}),
        "lon": ("lon", [40.5, 41.5, 42.5, 43.5], {"units": "degrees_east", **attrs}),
        "time": np.array(["2023-01-15", "2023-02-15"], "datetime64[ns]"),
    }
    return xr.Dataset({"t2m": (("time", "lat", "lon"), VALUES)}, axes)


def opened(path, **choice):
    problems = []
    source = open_source(path, "covariates.heat", problems, BandChoice(**choice))
    return source, "; ".join(map(str, problems))


@pytest.fixture
def months(tmp_path):
    cf().to_netcdf(tmp_path / "months.nc", engine="scipy")
    return tmp_path / "months.nc"


def test_a_time_is_asked_for_and_found(months):
    source, said = opened(months)
    assert source is None
    assert "has 2 times (2023-01-15, 2023-02-15); choose one with the key `time`" in said
    source, said = opened(months, time="2023-02")
    assert said == ""
    np.testing.assert_array_equal(source.read(), VALUES[1, ::-1])
    assert opened(months, time="2023-02-15", variable="t2m")[0].band_of().number == 2
    assert opened(months, band=1)[0].band_of().number == 1
    assert opened(months, time="2023-1")[0].band_of().number == 1  # January, not October to 15
    _, said = opened(months, time="2023-01-1")  # not a beginning of 2023-01-15
    assert "has no time '2023-01-1'; did you mean" in said
    _, said = opened(months, variable="t2n")
    assert "has no variable 't2n'; did you mean 't2m'?" in said
    _, said = opened(months, time="time")  # the axis alone chooses nothing
    assert "has 2 times" in said
    _, said = opened(months, band=3)
    assert "has 2 band(s), but band 3 is requested" in said


def test_a_variable_is_asked_for_and_each_remedy_works(tmp_path):
    data = cf()
    data.assign(tp=2 * data.t2m).to_netcdf(tmp_path / "two.nc", engine="scipy")
    _, said = opened(tmp_path / "two.nc")
    assert "has 2 variables (t2m, tp); choose one with the key `variable`" in said
    source, _ = opened(tmp_path / "two.nc", variable="tp", time="2023-01")
    np.testing.assert_array_equal(source.read(), 2 * VALUES[0, ::-1])
    _, said = opened(tmp_path / "two.nc", variable="q")
    assert "has no variable 'q'; choose another: the variables are t2m, tp" in said
    named = f"netcdf:{tmp_path / 'two.nc'}:tp"  # a part of a file, which GDAL reads
    assert opened(named, time="2023-01")[0].shape == (3, 4)


@pytest.mark.parametrize("by_gdal", [True, False])
def test_levels_are_bands(tmp_path, by_gdal):
    data = cf().expand_dims(level=[500.0, 850.0], axis=1)
    data.to_netcdf(tmp_path / "l.nc", engine="scipy")
    path = f"netcdf:{tmp_path / 'l.nc'}:t2m" if by_gdal else tmp_path / "l.nc"
    _, said = opened(path, time="2023-02")
    assert "has 2 levels (500, 850); choose one with the key `level`, such as `level: 500`" in said
    for choice in ({"band": 4}, {"level": (("", "850"),)}, {"level": (("level", "850.0"),)}):
        assert opened(path, time="2023-02", **choice)[0].band_of().number == 4
    _, said = opened(path, time="2023-02", level=(("", "700"),))
    assert "has no level '700'; did you mean '500'? the levels are 500, 850" in said


@pytest.mark.parametrize("by_gdal", [True, False])
def test_days_of_other_calendars_are_told(tmp_path, by_gdal):
    days = ("time", [0.0, 59.0], {"units": "days since 2023-01-01", "calendar": "360_day"})
    cf().assign_coords(time=days).to_netcdf(tmp_path / "c.nc", engine="scipy")
    path = f"netcdf:{tmp_path / 'c.nc'}:t2m" if by_gdal else tmp_path / "c.nc"
    assert "has 2 times (2023-01-01, 2023-02-30)" in opened(path)[1]
    assert opened(path, time="2023-02-30")[0].band_of().number == 2


def test_longitudes_need_no_grid_mapping(months, tmp_path):
    assert opened(months, band=1)[0].crs.to_epsg() == 4326
    data = cf().isel(time=0, drop=True)
    metres = data.assign_coords(lat=("lat", [7.9e6, 8e6, 8.1e6], {"units": "degrees_north"}))
    metres.to_netcdf(tmp_path / "m.nc", engine="scipy")
    data.lat.attrs.clear()
    data.to_netcdf(tmp_path / "bare.nc", engine="scipy")
    for name in ("m.nc", "bare.nc"):
        source, said = opened(tmp_path / name)
        assert source is None
        assert "has no coordinate reference system" in said


@pytest.mark.parametrize("crs", [None, "EPSG:4326"])
@pytest.mark.parametrize("by_gdal", [True, False])
def test_uneven_and_exchanged_axes_have_remedies_that_work(tmp_path, crs, by_gdal):
    data = cf().isel(time=0, drop=True)
    header, turned = RasterHeader(crs=crs), tmp_path / "t.nc"
    east = data.assign_coords(lon=("lon", data.lon.data + 200, data.lon.attrs))
    east.transpose("lon", "lat").to_netcdf(turned, engine="scipy")
    named = "netcdf:{}:t2m" if by_gdal else "{}"
    if not by_gdal:  # axes in any order are no trouble to xarray
        about = open_source(turned, "covariates.t", [], header=header)
        np.testing.assert_array_equal(about.read(), VALUES[0, ::-1])
    uneven = data.assign_coords(lat=data.lat + np.array([0, 0.3, 0]))
    uneven["lat"].attrs = data["lat"].attrs
    uneven.to_netcdf(tmp_path / "u.nc", engine="scipy")
    wrong = [(turned, "longitudes (lon) down")] * by_gdal + [(tmp_path / "u.nc", "uneven steps of")]
    for path, says in wrong:
        problems = []
        assert open_source(named.format(path), "covariates.t", problems, header=header) is None
        (problem,) = problems
        assert says in problem.found
    again = xr.open_dataset(turned).transpose(..., "lat", "lon").sortby("lon")
    again.to_netcdf(tmp_path / "again.nc", engine="scipy")
    d = xr.open_dataset(tmp_path / "u.nc")
    d = d.interp(lat=np.linspace(*d.lat.data[[0, -1]], d.lat.size))
    d.to_netcdf(tmp_path / "even.nc", engine="scipy")
    for name in ("again.nc", "even.nc"):
        header = RasterHeader(crs="EPSG:4326")
        assert open_source(tmp_path / name, "covariates.t", [], header=header).north_up


def test_bands_of_a_geotiff(write_tif):
    path = write_tif("a.tif", VALUES[0])
    with rasterio.open(path) as file:
        profile = {**file.profile, "count": 3}
    with rasterio.open(path, "w", **profile) as file:
        file.write(np.stack([*VALUES, VALUES[0]]))
    _, said = opened(path)
    assert "has 3 bands (1, 2, 3); choose one with the key `band`, such as `band: 1`" in said
    with rasterio.open(path, "w", **{**profile, "count": 2}, alpha="YES") as file:
        file.write(np.stack([VALUES[0], np.full((3, 4), 255, "f4")]))
    assert opened(path)[0].band_of().number == 1  # a stored mask is no choice


def test_tables_of_a_geopackage(write_tif, tmp_path):
    path = write_tif("a.tif", VALUES[0])
    for name, more in (("A", {}), ("B", {"APPEND_SUBDATASET": "YES"})):
        options = {"RASTER_TABLE": name, **more}
        rasterio.shutil.copy(path, tmp_path / "two.gpkg", driver="GPKG", **options)
    assert "has 2 variables (A, B)" in opened(tmp_path / "two.gpkg")[1]
    source, said = opened(tmp_path / "two.gpkg", variable="B")
    assert said == ""
    np.testing.assert_array_equal(source.read(), VALUES[0])
    assert opened(f"GPKG:{tmp_path}/two.gpkg:A")[1] == ""


GRIB_VALUES = np.stack([np.arange(12.0).reshape(3, 4) + 10 * k for k in range(3)])


@pytest.fixture
def grib(tmp_path):
    """Write three fields of January, January and February, as GDAL does; the third 10 m up."""
    place = Affine(1, 0, 40, 0, -1, -17)
    profile = {"driver": "GTiff", "height": 3, "width": 4, "count": 3, "dtype": "float64"}
    with rasterio.open(
        tmp_path / "a.tif", "w", **profile, crs="EPSG:4326", transform=place
    ) as file:
        file.write(GRIB_VALUES)
    options = {}
    for k, (day, height) in enumerate((("01-01", 2), ("01-16", 2), ("02-01", 10)), start=1):
        options |= {
            f"BAND_{k}_DISCIPLINE": "0",
            f"BAND_{k}_IDS": f"CENTER=98 SIGNF_REF_TIME=1 REF_TIME=2024-{day}T00:00:00Z TYPE=1",
            f"BAND_{k}_PDS_PDTN": "0",  # an analysis of the temperature so many metres up
            f"BAND_{k}_PDS_TEMPLATE_NUMBERS": "0 0 2 0 0 0 0 0 1 0 0 0 0 103 0 0 0 0 "
            f"{height} 255 0 0 0 0 0",
        }
    path = tmp_path / "heat.grib2"
    rasterio.shutil.copy(tmp_path / "a.tif", path, driver="GRIB", **options)
    return path


def test_a_field_of_a_grib_file_is_chosen_by_level_and_time(grib):
    source, said = opened(grib, time="2024-02")
    assert said == ""
    np.testing.assert_allclose(source.read(), GRIB_VALUES[2], atol=1e-3)
    about = source.describe()
    assert (about.unit, about.bands[0].variable) == ("C", "TMP")  # GDAL makes kelvins degrees
    _, said = opened(grib)
    assert "has 2 levels (2-HTGL, 10-HTGL); choose one with the key `level`" in said
    source, said = opened(grib, level=(("", "2-HTGL"),), time="2024-01", aggregate="mean")
    assert said == ""
    np.testing.assert_allclose(source.read(), GRIB_VALUES[:2].mean(axis=0), atol=1e-3)

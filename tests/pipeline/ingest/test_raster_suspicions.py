"""Suspicions about rasters: each fires on what it is for, and on none of many ordinary rasters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from affine import Affine

from geo.sources.source import Description
from pipeline.ingest.raster_sample import RasterSample
from pipeline.ingest.raster_suspicions import population_suspicions, raster_suspicions

RNG = np.random.default_rng(5)
N = 4000


def suspicions(values: Any, key: str = "covariates.x", **header: Any) -> list[Any]:
    """Return the suspicions about a raster whose pixels are all in areas, as stored."""
    stored = np.asarray(values, float)
    nodata = [header.pop("nodata", None), *header.pop("more_nodata", ())]
    about = described(nodata=tuple(each for each in nodata if each is not None), **header)
    source: Any = SimpleNamespace(describe=lambda: about)
    sample = RasterSample(
        stored * about.scale + about.offset, np.empty(0), stored.size, sampled=False
    )
    return raster_suspicions(key, "/data/file.tif", source, sample)


def described(**header: Any) -> Description:
    return Description(None, Affine.identity(), (1, 1), **{"dtype": "float32", **header})


def gaussian(mean: float, sd: float, n: int = N) -> np.ndarray:
    return np.asarray(RNG.normal(mean, sd, n))


elevation = np.maximum(RNG.gamma(1.2, 300, N), 0) - 20
rainfall = RNG.gamma(8, 150, N)
travel = RNG.lognormal(5, 1, N)
lights = np.where(RNG.random(N) < 0.9, 0, RNG.gamma(0.5, 8, N))
percent = np.clip(np.rint(RNG.normal(50, 40, N)), 0, 100)
land_cover = RNG.choice([10, 20, 30, 40, 60, 100, 210], N).astype(float)

SPIKES = [
    (elevation, -99, {}),
    (elevation, 32767, {"dtype": "int16"}),
    (RNG.integers(-1900, 9900, N), -3000, {"dtype": "int16"}),
    (rainfall, -999, {}),
    (percent, 255, {"dtype": "uint8"}),
    (land_cover, 255, {"dtype": "uint8"}),
    (lights, 1e20, {}),
    (travel, float(np.finfo("f4").min), {}),
    (gaussian(14_500, 400).round(), 65535, {"dtype": "uint16"}),
    (gaussian(295, 5), 0, {}),  # kelvin, 0 where there is none: no known number, but frequent
]


@pytest.mark.parametrize(("values", "number", "header"), SPIKES)
def test_an_undeclared_number_of_missing_pixels_is_told(
    values: np.ndarray, number: float, header: dict[str, Any]
) -> None:
    if header:
        values = np.rint(values)
    assert suspicions(values, **header) == []
    values = values.astype(float)
    values[100:140] = number
    (found,) = suspicions(values, **header)
    assert found.code == "nodata"
    assert "in 40 pixels (40 of them in areas)" in found.found
    assert float(found.remedy.rpartition(" ")[2]) == number


def test_two_spikes_and_a_declared_number_are_named_together_as_they_are_stored() -> None:
    values = elevation.copy()
    values[:30], values[30:60] = -9999, 99999
    found = suspicions(values, nodata=-32768.0)
    assert [each.code for each in found] == ["nodata", "nodata"]
    assert all(each.remedy.endswith("[-32768, -9999, 99999]") for each in found)
    assert all(f"({elevation[60:].min():.6g} to" in each.found for each in found)
    stored = np.rint(gaussian(4000, 1000))
    stored[:30] = -28672
    (one,) = suspicions(stored, dtype="int16", scale=1e-4, key="covariates.ndvi")
    assert one.found.startswith("-28672 in 30 pixels")
    assert "nodata: -28672" in one.remedy


ORDINARY = {
    "normal": gaussian(0, 1),
    "elevation": elevation,
    "integers": np.rint(elevation),
    "heavy tail": RNG.lognormal(3, 2, N),
    "heavier tail": RNG.pareto(0.8, N),
    "mostly zero": lights,
    "population": np.where(RNG.random(N) < 0.5, 0, RNG.lognormal(2, 2, N)),
    "one outlier": np.append(gaussian(20, 2), -9999),
    "two outliers": np.append(gaussian(20, 2), [1e6, 1e6]),
    "mask": RNG.integers(0, 2, N).astype(float),
    "rare mask": (RNG.random(N) < 0.01) * 255.0,
    "classes": land_cover,
    "image that saturates": np.minimum(np.rint(RNG.gamma(4, 50, N)), 255),
    "sensor that saturates": np.minimum(np.rint(RNG.gamma(4, 12_000, N)), 65_535),
    "percentages with many at both ends": percent,
    "distance with many zeros": np.maximum(gaussian(5, 10), 0),
    "two plateaus": np.concatenate([gaussian(5, 0.1), gaussian(900, 5)]),
    "constant": np.full(N, 7.0),
    "longitudes near -99": gaussian(-99, 0.01).round(2),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_rasters_raise_no_suspicion(name: str) -> None:
    for key in ("covariates.x", "covariates.elevation", "population"):
        assert suspicions(ORDINARY[name], key) == []


@pytest.mark.parametrize(
    ("key", "values", "header", "remedy"),
    [
        ("ndvi", gaussian(4500, 1500), {"dtype": "int16"}, "covariates.ndvi.scale: 0.0001"),
        ("evi_2020", gaussian(3000, 800), {}, "covariates.evi_2020.scale: 0.0001"),
        ("NDVI", gaussian(140, 20), {"dtype": "uint8"}, "as its documentation says"),
        ("lst_mean", gaussian(14_900, 300), {"dtype": "uint16"}, "scale: 0.02 and offset: -273.15"),
        ("temp", gaussian(2960, 40), {"dtype": "int16"}, "scale: 0.1 and offset: -273.15"),
        ("tmean", gaussian(170, 12), {"dtype": "int16"}, "scale: 0.1"),
        ("MOD13A3_x", gaussian(3000, 800), {"dtype": "int16"}, "scale: 0.0001"),
        # A file of a vegetation index whose name says nothing.
        ("green", gaussian(3000, 800), {"dtype": "int16", "nodata": -3000.0}, "scale: 0.0001"),
    ],
)
def test_a_known_multiple_of_a_unit_is_told(
    key: str, values: np.ndarray, header: dict[str, Any], remedy: str
) -> None:
    (found,) = suspicions(np.rint(values), f"covariates.{key}", **header)
    assert found.code == "scale"
    assert remedy in found.remedy
    assert suspicions(np.rint(values), f"covariates.{key}", **header, scale=0.5) == []


def test_ordinary_units_raise_no_suspicion() -> None:
    for key, values in (
        ("ndvi", gaussian(0.5, 0.2)),
        ("evi", gaussian(0, 1)),  # standardised
        ("levity", gaussian(4000, 800)),  # no index, though it has the letters
        ("elevation", gaussian(14_900, 300)),
        ("temperature", gaussian(24, 3)),  # degrees Celsius, kelvin, degrees Fahrenheit
        ("temperature", gaussian(297, 5)),
        ("temperature", gaussian(75, 6)),
        ("temperature_suitability", gaussian(0.4, 0.1)),
        ("lst_mean", gaussian(0, 1)),
    ):
        assert suspicions(values, f"covariates.{key}") == [], key


def people(path: str = "population.tif", **options: Any) -> list[str]:
    names = ("unit", "description", "scale")
    about = described(**{k: options.pop(k) for k in names if k in options})
    source: Any = SimpleNamespace(describe=lambda: about)
    settings = {"density": False, "total": 2e7, "km2": 5e5, "densest": 2e4, "pixel": 1.0, **options}
    return [each.code for each in population_suspicions(f"/data/{path}", source, **settings)]


DENSITY: list[dict[str, Any]] = [
    {"unit": "people/km2"},
    {"unit": "persons km-2"},
    {"description": "Population density"},
    {"path": "mdg_pd_2020_1km.tif"},
    {"path": "pop_per_sqkm.tif"},
    {"path": "gpw_population_count.tif", "density": True},
    {"unit": "people per pixel", "density": True},
    {"densest": 2e6},
    {"total": 4e9},
]
SMALL = {"total": 1_100, "km2": 216_000, "densest": 2.0}
TINY = {"total": 531.0, "km2": 8_560.0, "pixel": 1.93, "densest": 0.4}
COUNTRY = {"total": 2e4, "km2": 5e5, "densest": 20.0}
THOUSANDS: list[dict[str, Any]] = [
    *({"unit": u} for u in ("thousand people", "1000 people", "millions", "10^3 people")),
    SMALL,  # without a unit they leave a country empty,
    SMALL | {"unit": "thousands"},
    TINY,  # no person in any pixel,
    COUNTRY,  # or no town
]
NEITHER: list[dict[str, Any]] = [
    *({"unit": u, "scale": 1000.0} for u in ("thousand people", "millions")),
    {"total": 0, "km2": 216_000, "densest": 0.0},  # a problem already
    {"total": 11, "km2": 2_160, "densest": 2.0},  # an island
    TINY | {"densest": 1.0},  # a hamlet of two
    TINY | {"pixel": 0.001},  # no room for a whole person
    COUNTRY | {"pixel": 100.0},  # a town is a part of a pixel
    COUNTRY | {"densest": 800.0},
    {},
    {"unit": "people"},
    {"unit": "people per pixel"},
    {"path": "mdg_ppp_2020.tif"},
    {"path": "country_population.tif", "density": True},
    {"unit": "people/km2", "density": True},
    {"path": "gpw_v4_population_density.tif", "density": True},
    {"total": 3e4, "km2": 2e6, "densest": 40.0},  # Greenland
    {"total": 9e6, "km2": 1.1e3, "densest": 1.5e5},  # a city state
    dict.fromkeys(("total", "km2", "densest"), float("nan")),
]


def test_people_per_km2_or_in_thousands_taken_for_people_per_pixel() -> None:
    for said, cases in ((["density"], DENSITY), (["thousands"], THOUSANDS), ([], NEITHER)):
        for options in cases:
            assert people(**options) == said, options

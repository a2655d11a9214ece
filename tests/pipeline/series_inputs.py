"""Inputs of a few months: a grid of 16 areas, rain that moves, a count that is missing."""

from __future__ import annotations

from pathlib import Path

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely
from affine import Affine

from pipeline.config.reader import load_config
from pipeline.store.series_store import SeriesStore
from tests.bands import write

SIDE, PARTS = 16, 4  # pixels of a side, areas of a side
CRS = "EPSG:32736"
RES = 1000.0
QUARTERS = ("2022-Q1", "2022-Q2", "2022-Q3", "2022-Q4", "2023-Q1", "2023-Q2")
LIKE = (0, 1, 2, 3, 0, 1)  # the month whose rain and rate each quarter has
#: One period that is mapped, one over a forecast, and one that is not whole yet.
WINDOWS = ("2022-Q1", "last 4", "2022-Q4..2023-Q3", "2023-Q1..2023-Q4")
N_DRAW = 400  # of a run of quarters
MONTHS = ("2024-01", "2024-02", "2024-03", "2024-04", "2024-05", "2024-06")


SMALL_OPTIONS = "  options: {n_moving: 4, n_season: 2}\n"
SMALL = f"""\
model:
  inducing: 6
  integrate: none
{SMALL_OPTIONS}\
fit:         {{seed: 1, max_epochs: 3}}
"""
GOOD = """\
model:
  inducing: 9
  integrate: 2
  options: {n_moving: 9, n_season: 4}
fit:         {seed: 1, max_epochs: 300}
"""


def write_raster(path: Path, values: np.ndarray) -> None:
    """Write a band on the grid; NaN is missing."""
    place = Affine(RES, 0.0, 500_000.0, 0.0, -RES, 9_000_000.0)
    write(path, values, dtype="float64", crs=CRS, transform=place, nodata=np.nan)


def areas() -> gpd.GeoDataFrame:
    """Return the areas: squares, row by row from the north."""
    width = SIDE // PARTS * RES
    boxes = [
        shapely.box(
            500_000 + c * width,
            9_000_000 - (r + 1) * width,
            500_000 + (c + 1) * width,
            9_000_000 - r * width,
        )
        for r in range(PARTS)
        for c in range(PARTS)
    ]
    return gpd.GeoDataFrame({"id": [f"A{k:02d}" for k in range(16)]}, geometry=boxes, crs=CRS)


def rain(month: int) -> np.ndarray:
    """Return the rain of a month from 0: it moves over the map."""
    row, col = np.mgrid[:SIDE, :SIDE] / SIDE
    return 50.0 + 40.0 * np.sin(2 * np.pi * (col + month / 6.0)) + 10.0 * row


def elevation() -> np.ndarray:
    """Return what stands still."""
    row, col = np.mgrid[:SIDE, :SIDE] / SIDE
    return 1000.0 * row * col + 100.0 * np.cos(9.0 * col)


def people() -> np.ndarray:
    """Return the people of each pixel."""
    return np.random.default_rng(3).gamma(2.0, 100.0, (SIDE, SIDE))


def area_of_pixel() -> np.ndarray:
    """Return the number of each pixel's area."""
    row, col = np.mgrid[:SIDE, :SIDE] // (SIDE // PARTS)
    return row * PARTS + col


def true_rate(month: int) -> np.ndarray:
    """Return cases per person and month."""
    return 0.02 * np.exp(0.015 * (rain(month) - 50.0) + 0.4 * np.sin(month / 2.0))


def counts(n: int = len(MONTHS), seed: int = 5) -> pd.DataFrame:
    """Return the long table of the counts."""
    rng, rows = np.random.default_rng(seed), []
    for month, label in enumerate(MONTHS[:n]):
        expected = np.bincount(
            area_of_pixel().ravel(), (people() * true_rate(month)).ravel(), PARTS**2
        )
        for area, value in enumerate(rng.poisson(expected)):
            rows.append((f"A{area:02d}", label, str(value)))
    table = pd.DataFrame(rows, columns=["id", "month", "cases"])
    table.loc[(table["id"] == "A05") & (table["month"] == "2024-02"), "cases"] = ""
    return table


def write_months(directory: Path, n: int) -> None:
    """Write what comes each month: rain of months that have no file, the table of all counts."""
    for month, label in enumerate(MONTHS[:n]):
        if not (directory / f"rain_{label}.tif").exists():
            write_raster(directory / f"rain_{label}.tif", rain(month))
    counts(n).to_csv(directory / "cases.csv", index=False)


def write_inputs(
    directory: Path, n: int = len(MONTHS), *, more: str = "", fit: str = SMALL
) -> Path:
    """Write the inputs of the first months; return the configuration.

    ``fit`` is :data:`SMALL` for tests of what goes into a fit and comes of it, :data:`GOOD` for
    those of how near its map is.
    """
    areas().to_file(directory / "areas.gpkg", driver="GPKG")
    write_raster(directory / "people.tif", people())
    write_raster(directory / "elevation.tif", elevation())
    write_months(directory, n)
    text = f"""\
name: months
areas:       {{path: areas.gpkg, id: id}}
counts:      {{path: cases.csv, id: id, value: cases, period: month}}
population:  {{path: people.tif}}
covariates:
  elevation: {{path: elevation.tif}}
  rain:      {{path: "rain_{{period}}.tif"}}
time:        {{step: month}}
{fit}compute:     {{workers: 1}}
output:      {{dir: out, draws: 40, periods: ["2024-01"], forecast: 1}}
{more}"""
    config = directory / "disagg.yaml"
    config.write_text(text, encoding="utf-8")
    return config


def store_of(config: Path) -> SeriesStore:
    """Return the store of a series whose results are in ``out`` beside its configuration."""
    series = load_config(config).known_series
    place = config.parent / "out/work/bags.zarr"
    return SeriesStore(place, series.periods, series.times, series.season_length)


def write_quarters(directory: Path) -> Path:
    """Write six quarters; A00 is one pixel of what it was, areas far from it have more in 2023."""
    config = write_inputs(directory, fit=GOOD)
    frame = areas()
    west, _, _, north = frame.geometry[0].bounds
    frame.loc[0, "geometry"] = shapely.box(west, north - RES, west + RES, north)
    gpd.GeoDataFrame(frame).to_file(directory / "areas.gpkg", driver="GPKG")
    rng, rows, inside = np.random.default_rng(5), [], area_of_pixel().ravel()
    inside = np.where((inside == 0) & (np.arange(inside.size) > 0), PARTS**2, inside)
    for quarter, month in zip(QUARTERS, LIKE, strict=True):
        write_raster(directory / f"rain_{quarter}.tif", rain(month))
        expected = np.bincount(inside, (people() * true_rate(month)).ravel())[: PARTS**2]
        if quarter >= "2023":
            expected[PARTS**2 // 2 :] *= 1.3
        rows += [(f"A{k:02d}", quarter, n) for k, n in enumerate(rng.poisson(expected))]
    table = pd.DataFrame(rows, columns=["id", "month", "cases"])
    table.to_csv(directory / "cases.csv", index=False)
    text = config.read_text(encoding="utf-8").replace("{step: month}", "{step: quarter}")
    text = text.replace("draws: 40", f"draws: {N_DRAW}").replace('["2024-01"]', '["2022-Q1"]')
    text = text.replace("forecast: 1", f"forecast: 1, windows: {list(WINDOWS)}")
    config.write_text(text + "evaluate: {schemes: []}\n", encoding="utf-8")
    return config

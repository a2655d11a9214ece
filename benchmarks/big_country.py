"""A simulated country of any size, written window by window.

No array of the size of the grid is in memory. Covariates are sums of waves along both axes plus
grain. People live where the first covariate is high. Areas are irregular quadrilaterals that share
corners and midpoints of edges with their neighbours. The counts are drawn from a rate that depends
on four covariates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import geopandas as gpd
import numpy as np
import pandas as pd
import rasterio
import shapely
from rasterio.windows import Window

RES_M = 100.0
WEST, NORTH = 200_000.0, 9_000_000.0
CRS = "EPSG:32738"
N_WAVE = 4  # waves of a covariate
GRAIN = 0.3  # standard deviation of the grain; the amplitude of a wave is 1
WINDOW = 1024  # pixels a side written at once
N_EFFECT = 4  # covariates that the rate depends on
BASE_RATE = 0.02

CONFIG = """name: big-country
areas:       {{path: areas.gpkg, layer: areas, id: area_id}}
counts:      {{path: counts.csv, id: area_id, value: cases}}
population:  {{path: population.tif}}
covariates:
{covariates}
model:       {{inducing: {inducing}, kernel: additive, likelihood: poisson, link: exp,
              estimator: bound, area_effect: false, precision: float32}}
fit:         {{batch_areas: {batch_areas}, max_epochs: 1, seed: 1}}
compute:     {{workers: {workers}}}
output:      {{dir: out}}
evaluate:    {{schemes: []}}
"""


@dataclass(frozen=True)
class Waves:
    """One covariate: waves along rows times waves along columns, each an outer product."""

    rows: np.ndarray  # (N_WAVE, n_row) float32
    cols: np.ndarray  # (N_WAVE, n_col) float32

    def window(self, row: slice, col: slice) -> np.ndarray:
        """Return the values of a window, (n_row, n_col) float32."""
        return self.rows[:, row].T @ self.cols[:, col]


def make_waves(side: int, rng: np.random.Generator) -> Waves:
    """Draw one covariate: wavelengths from a twentieth of the country to all of it."""
    at = np.arange(side) / side
    rows, cols = (
        np.sin(
            2 * np.pi * rng.uniform(0.5, 20, (N_WAVE, 1)) * at + rng.uniform(0, 7, (N_WAVE, 1))
        ).astype(np.float32)
        for _ in range(2)
    )
    return Waves(rows, cols)


def make_areas(side: int, across: int, rng: np.random.Generator) -> gpd.GeoDataFrame:
    """Cut the country into ``across`` squared irregular quadrilaterals of eight corners."""
    cell = side / across
    # Corners and midpoints of edges, in pixels; points on the rim stay there.
    n = 2 * across + 1
    x, y = (v.astype(float) * cell / 2 for v in np.meshgrid(np.arange(n), np.arange(n)))
    reach = np.where((np.arange(n)[:, None] + np.arange(n)) % 2, 0.1, 0.2) * cell
    for axis, v in enumerate((x, y)):
        moved = rng.uniform(-1, 1, v.shape) * reach
        rim = [slice(None), slice(None)]
        for end in (0, -1):
            rim[1 - axis] = end  # type: ignore[call-overload]
            moved[tuple(rim)] = 0
        v += moved
    i, j = (v.ravel() for v in np.meshgrid(np.arange(across), np.arange(across), indexing="ij"))
    around = [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0), (0, 0)]
    at = [(2 * i + di, 2 * j + dj) for di, dj in around]
    ring = np.stack([np.stack([x[a], y[a]], axis=1) for a in at], axis=1)
    points = np.array([WEST, NORTH]) + ring * np.array([RES_M, -RES_M])
    ids = [f"A{number:06d}" for number in range(across**2)]
    return gpd.GeoDataFrame({"area_id": ids}, geometry=shapely.polygons(points), crs=CRS)


def log_rate(covariates: Sequence[np.ndarray]) -> np.ndarray:
    """Return the log of the true rate per person from the first ``N_EFFECT`` covariates."""
    linear = sum(0.25 * value.astype(np.float64) for value in covariates[:N_EFFECT])
    return np.asarray(np.log(BASE_RATE) + linear)


def make_country(
    directory: Path,
    side: int,
    *,
    pixels_an_area: int = 1000,
    n_covariate: int = 18,
    inducing: int = 200,
    batch_areas: int = 256,
    workers: int | str = "auto",
    seed: int = 1,
) -> Path:
    """Write rasters, areas, counts and a configuration.

    Parameters
    ----------
    directory : Path
    side : int
        Pixels a side; all are in areas.
    pixels_an_area : int
        Mean number of pixels of an area.
    n_covariate, inducing, batch_areas, workers, seed
        Values for the configuration.

    Returns
    -------
    Path
        The configuration.
    """
    rng = np.random.default_rng(seed)
    directory.mkdir(parents=True, exist_ok=True)
    across = max(2, round(side / np.sqrt(pixels_an_area)))
    areas = make_areas(side, across, rng)
    areas.to_file(directory / "areas.gpkg", layer="areas", driver="GPKG")
    waves = [make_waves(side, rng) for _ in range(n_covariate)]
    grain = rng.standard_normal((n_covariate, 2 * WINDOW, 2 * WINDOW), dtype=np.float32) * GRAIN
    names = [f"x{number:02d}" for number in range(n_covariate)]
    expected = np.zeros((across, across))
    open_as = {
        "driver": "GTiff", "height": side, "width": side, "count": 1, "dtype": "float32",
        "crs": CRS, "transform": rasterio.Affine(RES_M, 0, WEST, 0, -RES_M, NORTH),
        "nodata": -9999.0, "tiled": True, "blockxsize": 512, "blockysize": 512,
    }  # fmt: skip
    with rasterio.Env(GDAL_CACHEMAX=64):
        files = [
            rasterio.open(directory / f"{name}.tif", "w", **open_as)
            for name in [*names, "population"]
        ]
        for top in range(0, side, WINDOW):
            for left in range(0, side, WINDOW):
                row, col = (
                    slice(top, min(top + WINDOW, side)),
                    slice(left, min(left + WINDOW, side)),
                )
                shape = (row.stop - row.start, col.stop - col.start)
                window = Window(left, top, shape[1], shape[0])
                first = []
                for number, each in enumerate(waves):
                    dy, dx = rng.integers(WINDOW, size=2)
                    value = each.window(row, col)
                    value += grain[number, dy : dy + shape[0], dx : dx + shape[1]]
                    files[number].write(value, 1, window=window)
                    if number < N_EFFECT:
                        first.append(value)
                people = np.exp(first[0])
                files[-1].write(people, 1, window=window)
                # The counts are those of the square that the area was before its corners moved.
                cases = people * np.exp(log_rate(first))
                i = np.arange(row.start, row.stop) * across // side
                j = np.arange(col.start, col.stop) * across // side
                by_row = np.add.reduceat(cases, np.flatnonzero(np.diff(i, prepend=-1)), axis=0)
                both = np.add.reduceat(by_row, np.flatnonzero(np.diff(j, prepend=-1)), axis=1)
                expected[np.ix_(np.unique(i), np.unique(j))] += both
        for file in files:
            file.close()
    counts = pd.DataFrame({"area_id": areas["area_id"], "cases": rng.poisson(expected.ravel())})
    counts.to_csv(directory / "counts.csv", index=False)
    covariates = "\n".join(f"  {name}: {{path: {name}.tif}}" for name in names)
    path = directory / "disagg.yaml"
    path.write_text(
        CONFIG.format(
            covariates=covariates, inducing=inducing, batch_areas=batch_areas, workers=workers
        )
    )
    return path

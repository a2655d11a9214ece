"""A simulated cube of forty years of days, brought to monthly means on the grid of a country.

    python -m benchmarks.climate_cube [DIRECTORY]

The cube is a Zarr store of 14,600 days, 720 x 480 pixels of 0.1 degrees, float32: 20 GB, which
compress to few because a chunk holds one pattern. The country is a window of it, on a grid of half
the pixel's size. Every month of two years, then every month of all, is read as ``aggregate: mean``
reads it, and compared with the mean that the pattern has. Writes
``benchmarks/results/climate_cube.json``: bytes and chunks read, time, and the peak of memory.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
import zarr
from zarr.storage import LocalStore

from benchmarks.report import RESULTS, write_results
from geo.grids.grid import Grid
from geo.sources.align import aligned
from geo.sources.raster_header import BandChoice
from geo.sources.registry import source_of

N_DAY, N_ROW, N_COL = 14_600, 480, 720
CHUNK = (73, 120, 120)
RES = 0.1  # degrees
WEST, NORTH = 0.0, 20.0
COUNTRY = (20.0, -8.0, 36.0, 4.0)  # west, south, east, north
FIRST = "1981-01-01"
TWO_YEARS = pd.period_range("2001-01", "2002-12", freq="M")
#: Months whose 12 is the 480 that the days hold; the last of 14,600 days is in December 2020.
ALL = pd.period_range("1981-01", "2020-11", freq="M")


def pattern() -> tuple[np.ndarray, np.ndarray]:
    """Return the part of each day, (n_day,), and of each pixel of a chunk, (n_row, n_col)."""
    day = 300.0 + 10.0 * np.sin(2 * np.pi * np.arange(N_DAY) / 365.25)
    row, col = np.mgrid[: CHUNK[1], : CHUNK[2]]
    return day.astype("f4"), (0.01 * (row // 10) + 0.02 * (col // 10)).astype("f4")


def write_cube(path: Path) -> None:
    """Write the store: each chunk of a range of days is the same file, by hard links."""
    lat = NORTH - RES * (np.arange(N_ROW) + 0.5)
    lon = WEST + RES * (np.arange(N_COL) + 0.5)
    axes = {
        "time": pd.date_range(FIRST, periods=N_DAY),
        "lat": ("lat", lat, {"units": "degrees_north"}),
        "lon": ("lon", lon, {"units": "degrees_east"}),
    }
    xr.Dataset(coords=axes).to_zarr(path, consolidated=False)
    group = zarr.open_group(path, mode="r+")
    array = group.create_array(
        "t2m", shape=(N_DAY, N_ROW, N_COL), chunks=CHUNK, dtype="f4", fill_value=np.nan,
        dimension_names=("time", "lat", "lon"), attributes={"units": "K"},
    )  # fmt: skip
    day, place = pattern()
    for k in range(N_DAY // CHUNK[0]):
        days = slice(k * CHUNK[0], (k + 1) * CHUNK[0])
        array[days, : CHUNK[1], : CHUNK[2]] = day[days, None, None] + place
        first = path / "t2m" / "c" / str(k) / "0" / "0"
        for i in range(N_ROW // CHUNK[1]):
            (first.parents[1] / str(i)).mkdir(exist_ok=True)
            for j in range(N_COL // CHUNK[2]):
                if (i, j) != (0, 0):
                    os.link(first, first.parents[1] / str(i) / str(j))


def expected(month: pd.Period, grid: Grid) -> np.ndarray:
    """Return the mean of a month at the pixels of the grid, by the pattern alone."""
    day, place = pattern()
    start = (month.start_time - pd.Timestamp(FIRST)).days
    tiled = np.tile(place, (N_ROW // CHUNK[1], N_COL // CHUNK[2])).astype("f8")
    top, left = round((NORTH - COUNTRY[3]) / RES), round((COUNTRY[0] - WEST) / RES)
    half = np.repeat(np.repeat(tiled, 2, axis=0), 2, axis=1)
    window = half[2 * top :, 2 * left :][: grid.shape[0], : grid.shape[1]]
    return float(day[start : start + month.days_in_month].mean(dtype="f8")) + window


def measure(path: Path, months: pd.PeriodIndex, grid: Grid) -> dict[str, Any]:
    """Bring months to the grid; return what was read, and the largest error."""
    read: dict[str, list[int]] = {}
    get = LocalStore.get

    async def counted(self: LocalStore, key: str, *rest: Any, **more: Any) -> Any:
        found = await get(self, key, *rest, **more)
        if "t2m/c/" in f"/{key}" and found is not None:
            read.setdefault(key, []).append(len(found))
        return found

    LocalStore.get = counted  # type: ignore[method-assign]
    error, begin, cpu = 0.0, time.perf_counter(), time.process_time()
    try:
        for month in months:
            source = source_of(path, BandChoice(time=str(month), aggregate="mean"))
            found = aligned(source, grid, resampling="nearest")
            error = max(error, float(np.abs(found - expected(month, grid)).max()))
            source.close()
    finally:
        LocalStore.get = get  # type: ignore[method-assign]
    n_chunk = (N_DAY // CHUNK[0]) * (N_ROW // CHUNK[1]) * (N_COL // CHUNK[2])
    compressed = sum(each[0] for each in read.values())
    return {
        "months": len(months),
        "chunks": n_chunk,
        "chunks_read": len(read),
        "chunk_reads": sum(map(len, read.values())),
        "bytes_read": sum(map(sum, read.values())),
        "bytes_of_chunks_read": compressed,
        "values_bytes_of_chunks_read": len(read) * int(np.prod(CHUNK)) * 4,
        "largest_error_K": error,
        "seconds": round(time.perf_counter() - begin, 1),
        "processor_seconds": round(time.process_time() - cpu, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def main(directory: str | None = None) -> None:
    """Write the cube, measure, write the results."""
    west, south, east, north = COUNTRY
    grid = Grid.from_bounds("EPSG:4326", (west, south, east, north), RES / 2)
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        path = Path(folder) / "days.zarr"
        begin = time.perf_counter()
        write_cube(path)
        stored = {p.stat().st_ino: p.stat().st_size for p in path.rglob("*") if p.is_file()}
        found = {
            "cube": [N_DAY, N_ROW, N_COL],
            "chunk": CHUNK,
            "grid": grid.shape,
            "values_bytes": N_DAY * N_ROW * N_COL * 4,
            "disk_bytes": sum(stored.values()),
            "seconds_to_write": round(time.perf_counter() - begin, 1),
            "two_years": measure(path, TWO_YEARS, grid),
            "all": measure(path, ALL, grid),
        }
    write_results(RESULTS / "climate_cube.json", found)


if __name__ == "__main__":
    main(*sys.argv[1:2])

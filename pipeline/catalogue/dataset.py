"""What a run leaves as one xarray dataset: its maps, its areas, their draws, its periods.

xarray finds :class:`RunBackend` by its entry point: ``xarray.open_dataset("out")`` opens a run.
xarray imports this module whenever it looks for who reads a file, so that what is slow is imported
where it is used.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from xarray.backends import BackendEntrypoint

from geo.core.errors import InputError, Problem

if TYPE_CHECKING:
    import xarray as xr

CUBE, RECORD = "rates.zarr", "run.json"
CHUNK = 1024  # pixels, along each side


def open_results(directory: str | os.PathLike[str]) -> xr.Dataset:
    """Open what a run has left, lazily.

    Parameters
    ----------
    directory : path
        ``output.dir`` of the run.

    Returns
    -------
    xarray.Dataset
        Each raster as a variable (y, x) of its name, ``rate_mean`` say, with ``coverage`` and
        ``population``; of a run with ``time`` those of ``rates.zarr`` as (time, y, x). Columns of
        ``areas.csv`` as ``area_fitted`` (area), ...; ``area_expected`` and ``area_count`` (area,
        draw) are the joint draws. Variables have ``long_name`` and ``units``;
        ``dataset.rio.crs``, after ``import rioxarray``, is the CRS.

    Raises
    ------
    InputError
        If no run has ended there.
    """
    import rioxarray
    import xarray as xr

    from pipeline.products.product_types import RasterProduct
    from pipeline.products.products import AREAS_CSV, PRODUCTS

    out = Path(directory)
    if not (out / AREAS_CSV.file).is_file():
        found, remedy = f"has no {AREAS_CSV.file}", "give the output.dir of a run that has ended"
        raise InputError(Problem(str(out), found, remedy))
    record: dict[str, Any] = {}
    if (out / RECORD).is_file():
        record = json.loads((out / RECORD).read_text(encoding="utf-8"))
    found_maps: dict[str, Any] = {}
    rasters = [each for each in PRODUCTS if isinstance(each, RasterProduct)]
    for path in sorted({p for each in rasters for name in each.patterns for p in out.glob(name)}):
        if path.suffix != ".tif":
            continue
        chunks = {"x": CHUNK, "y": CHUNK}
        band: Any = rioxarray.open_rasterio(path, masked=True, chunks=chunks)
        found_maps[path.stem] = band.squeeze("band", drop=True)
    dataset = xr.Dataset(found_maps)
    if (out / CUBE).is_dir():
        cube = xr.open_zarr(out / CUBE)
        dataset = dataset.drop_vars([name for name in cube if name in dataset])
        # Of one grid, computed in two ways: they may differ in the last digit.
        same = {axis: dataset[axis] for axis in ("x", "y") if axis in dataset.coords}
        dataset = dataset.merge(cube.assign_coords(same))
    dataset = dataset.merge(_areas(out))
    configuration = record.get("config", {})
    version = record.get("versions", {}).get("disagg")
    about = {
        "title": record.get("name"),
        "period": configuration.get("period"),
        "source": version and f"disagg {version}",
    }
    return dataset.assign_attrs({k: v for k, v in about.items() if v}, Conventions="CF-1.11")


def _areas(out: Path) -> xr.Dataset:
    """Return the table of the areas and their draws, by the id of the area."""
    import pandas as pd
    import pyarrow.parquet as pq
    import xarray as xr

    from pipeline.products.csv_table import read_csv
    from pipeline.products.products import AREAS_CSV, AREAS_DRAWS

    units: dict[str, str] = {}
    drawn = xr.Dataset()
    if (out / AREAS_DRAWS.file).is_file():
        table = pq.read_table(out / AREAS_DRAWS.file)
        units = json.loads((table.schema.metadata or {}).get(b"units", b"{}"))
        frame = table.to_pandas()
        n_draw = int(frame["draw"].max()) + 1 if len(frame) else 0
        ids = frame["id"].astype(str).to_numpy()[:: max(1, n_draw)]
        drawn = xr.Dataset(coords={"area": ids, "draw": np.arange(n_draw)})
        for name, text in (("expected", "draws of what is expected"),
                           ("count", "draws of what may be observed")):  # fmt: skip
            values = frame[name].to_numpy().reshape(len(ids), n_draw)
            drawn[f"area_{name}"] = (("area", "draw"), values, {"long_name": text})
            drawn[f"area_{name}"].attrs["units"] = units.get(name, "1")
    given = read_csv(out / AREAS_CSV.file)
    given.index = pd.Index(given.iloc[:, 0], name="area")
    columns = xr.Dataset.from_dataframe(given.rename(columns=lambda name: f"area_{name}"))
    for name, unit in units.items():
        if f"area_{name}" in columns:
            columns[f"area_{name}"].attrs["units"] = unit
    return columns.merge(drawn, join="left")


class RunBackend(BackendEntrypoint):
    """Opens the directory of a run in xarray, by ``engine="disagg"`` or as it is."""

    description: ClassVar[str] = "Directory of a run of disagg"

    def open_dataset(self, filename_or_obj: Any, *, drop_variables: Any = None) -> xr.Dataset:
        """Open a run: see :func:`open_results`."""
        return open_results(filename_or_obj).drop_vars(drop_variables or (), errors="ignore")

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether it is the directory of a run."""
        if not isinstance(filename_or_obj, str | os.PathLike):
            return False
        return (Path(filename_or_obj) / RECORD).is_file()

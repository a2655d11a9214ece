"""Names, coordinates and CRS of the stores, by which xarray opens them as labelled arrays.

The arrays of ``work/bags.zarr`` and ``work/grid.zarr`` have ``dimension_names``; the coordinates
here are further arrays beside them. A reader of the formats needs none of them, and stores of
earlier versions have none: :func:`open_labelled` adds them to these.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import zarr
from pyproj import CRS
from zarr.codecs import Crc32cCodec

from geo.grids.conventions import GRID_MAPPING, axis_attributes, geozarr_attributes, grid_mapping
from geo.grids.grid import Grid
from pipeline.core.errors import StoreError
from pipeline.storage.location import Location
from pipeline.storage.object_commit import finished_data, open_finished
from pipeline.store.responses import read_responses

if TYPE_CHECKING:
    import xarray as xr

CONVENTIONS = "CF-1.11"
_MAPPED = {"grid_mapping": GRID_MAPPING}
_AXES = ("east", "north", "up")

#: Dimensions of the arrays. ``row`` counts the pixels of a bag store; a grid has its own rows.
GRID_DIMENSIONS: dict[str, tuple[str, ...]] = {
    "covariates": ("covariate", "y", "x"),
    "population": ("y", "x"),
    "coverage": ("y", "x"),
    "overlap": ("y", "x"),
}
BAG_DIMENSIONS: dict[str, tuple[str, ...]] = {
    "x": ("row", "covariate"),
    "weight": ("row",),
    "coords": ("row", "axis"),
    "pixel": ("row",),
    "offsets": ("bag_edge",),
    "block_offsets": ("block_edge",),
    "bag_weight": ("bag",),
    "moments": ("bag", "moment", "covariate"),
    "id_bytes": ("id_byte",),
    "id_offsets": ("bag_edge",),
}


def grid_attributes(name: str, exposure: str) -> dict[str, Any]:
    """Return the attributes of an array of an aligned grid.

    Parameters
    ----------
    name : str
        A key of :data:`GRID_DIMENSIONS`.
    exposure : str
        Unit of the population: ``people`` or ``km2``.
    """
    about = {
        "covariates": {"long_name": "covariates after resampling and transform"},
        "population": {"long_name": "people, or surface, of the pixel", "units": exposure},
        "coverage": {"long_name": "share of the pixel inside any area", "units": "1"},
        "overlap": {"long_name": "share of the pixel that areas cover again", "units": "1"},
    }
    return {**about[name], **_MAPPED}


def bag_attributes(name: str, weight_unit: str) -> dict[str, Any]:
    """Return the attributes of an array of a bag store; see :func:`grid_attributes`."""
    about: dict[str, dict[str, Any]] = {
        "x": {"long_name": "covariates after transform, not scaled"},
        "weight": {"long_name": "exposure of the pixel inside its bag", "units": weight_unit},
        "coords": {"long_name": "position", "units": "km", "grid_mapping": "coords_crs"},
        "pixel": {"long_name": "index on the grid: row * n_col + column"},
        "offsets": {"long_name": "first row of each bag, and the end"},
        "block_offsets": {"long_name": "first bag of each block, and the end"},
        "bag_weight": {"long_name": "exposure of the bag", "units": weight_unit},
        "moments": {"long_name": "mean, and sum of squared deviations, of each covariate"},
        "id_bytes": {"long_name": "identifiers of the bags, UTF-8"},
        "id_offsets": {"long_name": "first byte of each identifier, and the end"},
    }
    return about[name]


class Coordinate(NamedTuple):
    """What xarray takes for a variable: writing a store need not wait for xarray itself."""

    dims: tuple[str, ...]
    data: np.ndarray
    attrs: dict[str, Any] = {}  # noqa: RUF012 (is copied, never changed)


def grid_coordinates(
    grid: Grid, covariates: Sequence[str], units: Sequence[str] | None = None
) -> dict[str, Coordinate]:
    """Return the coordinates of an aligned grid.

    Parameters
    ----------
    grid : Grid
    covariates : sequence of str
        In the order of the array.
    units : sequence of str, optional
        Their units, before any transform.
    """
    x, y = grid.centres()
    return {
        "x": Coordinate(("x",), x[0].copy(), axis_attributes(grid.crs, "X")),
        "y": Coordinate(("y",), y[:, 0].copy(), axis_attributes(grid.crs, "Y")),
        GRID_MAPPING: Coordinate((), np.array(0), grid_mapping(grid.crs, grid)),
        **_covariate_coordinates(covariates, units),
    }


def bag_coordinates(
    ids: Sequence[str],
    covariates: Sequence[str],
    units: Sequence[str] | None,
    grid: Mapping[str, Any] | None,
    coords_crs: str | None,
    n_axis: int,
) -> dict[str, Coordinate]:
    """Return the coordinates of a bag store.

    Parameters
    ----------
    ids : sequence of str
        Identifier of each bag, in the store's order.
    covariates, units : sequences of str
    grid : mapping or None
        ``Grid.to_dict()``; None for bags without a grid.
    coords_crs : str or None
        WKT of the CRS of ``coords``.
    n_axis : int
        Columns of ``coords``.
    """
    found = {
        "bag": Coordinate(("bag",), _texts(ids), {"long_name": "identifier of the area"}),
        "axis": Coordinate(("axis",), _texts(_AXES[:n_axis]), {"long_name": "axis of coords"}),
        "moment": Coordinate(("moment",), _texts(["mean", "squared_deviations"])),
        **_covariate_coordinates(covariates, units),
    }
    if grid is not None:
        own = Grid.from_dict(dict(grid))
        found[GRID_MAPPING] = Coordinate((), np.array(0), grid_mapping(own.crs, own))
    if coords_crs is not None:
        about = grid_mapping(CRS.from_wkt(coords_crs))
        found["coords_crs"] = Coordinate((), np.array(0), about)
    return found


def label_group(
    group: zarr.Group, coordinates: Mapping[str, Coordinate], grid: Grid | None = None
) -> None:
    """Write coordinates and attributes into the group of a store, and gather its metadata.

    To be called when all arrays of the group exist; their values may follow.

    Parameters
    ----------
    group : zarr.Group
    coordinates : mapping of str to Coordinate
    grid : Grid, optional
        Of the group's arrays (y, x).
    """
    for name, variable in coordinates.items():
        group.create_array(
            name,
            data=variable.data,
            dimension_names=list(variable.dims),
            attributes=variable.attrs,
            compressors=[Crc32cCodec()],
            config={"write_empty_chunks": True},
        )
    dimensions = {dim for variable in coordinates.values() for dim in variable.dims}
    group.attrs.update(
        {
            "Conventions": CONVENTIONS,
            # xarray makes these coordinates rather than variables.
            "coordinates": " ".join(name for name in coordinates if name not in dimensions),
            **({} if grid is None else geozarr_attributes(grid)),
        }
    )
    with warnings.catch_warnings():
        # Metadata in one piece is an extension of the format: readers without it lose nothing.
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not", UserWarning)
        zarr.consolidate_metadata(group.store)


def open_labelled(path: str | os.PathLike[str] | Location) -> xr.Dataset:
    """Open a finished store as a labelled dataset of Dask arrays.

    Parameters
    ----------
    path : path-like, or address
        ``work/bags.zarr`` or ``work/grid.zarr`` of a run, also one on an object store and one of
        an earlier version, which has neither names nor coordinates.

    Returns
    -------
    xarray.Dataset
        ``dataset.rio.crs`` (after ``import rioxarray``) is the CRS of the grid.

    Raises
    ------
    StoreError
        If the store is absent, unfinished, or neither of the two.
    """
    import dask.array as da
    import xarray as xr

    group = open_finished(path)
    attrs: dict[str, Any] = dict(group.attrs)
    known = {"disagg-grid": GRID_DIMENSIONS, "disagg-bags": BAG_DIMENSIONS}
    dimensions = known.get(str(attrs.get("format")))
    responses: dict[str, xr.Variable] = {}
    if dimensions is None:
        found = f"{path}: format {attrs.get('format')!r}; give a bag store or an aligned grid"
        raise StoreError(found)
    names = [name for name in dimensions if name in group]
    if dimensions is GRID_DIMENSIONS:
        grid = Grid.from_dict(attrs["grid"])
        units = _read_texts(group, "covariate_unit")
        coordinates = grid_coordinates(grid, attrs["covariates"], units)
        about = {name: grid_attributes(name, attrs["exposure"]) for name in names}
    else:
        raw, ends = bytes(np.asarray(group["id_bytes"])), np.asarray(group["id_offsets"])
        ids = [raw[a:b].decode() for a, b in itertools.pairwise(ends)]
        coords: Any = group["coords"]
        coordinates = bag_coordinates(
            ids,
            attrs["covariates"],
            attrs["units"],
            attrs["grid"],
            attrs["coords_crs"],
            coords.shape[1],
        )
        unit = attrs.get("weight_unit", "people")
        about = {name: bag_attributes(name, unit) for name in names}
        responses = _responses(path, group, ids)
    variables = {
        name: xr.Variable(dimensions[name], da.from_zarr(group[name]), about[name])
        for name in names
    }
    return xr.Dataset({**variables, **responses}, coordinates, attrs)


def _responses(
    path: str | os.PathLike[str] | Location, group: zarr.Group, ids: Sequence[str]
) -> dict[str, xr.Variable]:
    """Return the columns of the responses as variables (bag), or (period, bag) of several."""
    import xarray as xr

    attrs: dict[str, Any] = dict(group.attrs)
    if attrs["version"] < 3:
        names = [name for name in ("y", "trials") if name in group]
        return {name: xr.Variable("bag", np.asarray(group[name])) for name in names}
    frame, _ = read_responses(finished_data(path))
    shares = frame["union"].notna()  # of what nobody knows by area
    frame.loc[shares, ["value", "tested"]] = np.nan
    found = {}
    for name, about in (
        ("value", {"long_name": "response of the area"}),
        ("tested", {"long_name": "people tested", "units": "people"}),
    ):
        if name == "tested" and not frame[name].notna().any():
            continue
        table = frame.pivot(index="period", columns="area", values=name).reindex(columns=list(ids))
        values, dims = table.to_numpy(np.float64), ("period", "bag")
        found[name] = xr.Variable(dims[1:], values[0], about)
        if len(table) > 1:
            found[name] = xr.Variable(dims, values, about)
            found["period"] = xr.Variable("period", _texts(list(table.index)))
    return found


def _covariate_coordinates(
    covariates: Sequence[str], units: Sequence[str] | None
) -> dict[str, Coordinate]:
    found = {"covariate": Coordinate(("covariate",), _texts(covariates))}
    if units is not None:
        about = {"long_name": "unit before any transform"}
        found["covariate_unit"] = Coordinate(("covariate",), _texts(units), about)
    return found


def _texts(values: Sequence[str]) -> np.ndarray:
    return np.array(list(values), dtype=np.dtypes.StringDType())


def _read_texts(group: zarr.Group, name: str) -> list[str] | None:
    return [str(text) for text in np.asarray(group[name])] if name in group else None

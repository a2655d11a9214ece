"""Attributes by which other programs know a grid and its CRS: CF and GeoZarr.

CF (climate and forecast conventions 1.11, sections 4 and 5.6) describes coordinates and the grid
mapping, as xarray, rioxarray and GDAL read them. GeoZarr is the Zarr conventions ``proj:`` and
``spatial:``.
"""

from __future__ import annotations

from typing import Any

from pyproj import CRS

from geo.grids.grid import Grid

#: Variable that holds the CRS, where rioxarray and GDAL look for it.
GRID_MAPPING = "spatial_ref"

# Spellings of the units of latitudes and longitudes (CF, sections 4.1 and 4.2).
_NORTH, _EAST = (
    {f"{word}{gap}{axis}" for word in ("degree", "degrees") for gap, axis in axes}
    for axes in (
        (("_", "north"), ("_", "N"), ("", "N")),
        (("_", "east"), ("_", "E"), ("", "E")),
    )
)

_LATITUDE, _LONGITUDE = {"lat", "latitude"}, {"lon", "long", "longitude"}

_CONVENTIONS = (
    ("proj:", "geo-proj", "f17cb550-5864-4468-aeb7-f3180cfb622f", "coordinate reference system"),
    ("spatial:", "spatial", "689b58e2-cf7b-45e0-9fff-9cfc0883d6b4", "coordinates of a grid"),
)


def crs_code(crs: CRS) -> str | None:
    """Return the code of a CRS, ``EPSG:4326``; None if no authority has one for just this CRS."""
    found = crs.to_authority(min_confidence=90)  # 90: of another name
    return None if found is None else ":".join(found)


def grid_mapping(crs: CRS, grid: Grid | None = None) -> dict[str, Any]:
    """Return the attributes of a variable that holds a CRS (CF, section 5.6).

    Parameters
    ----------
    crs : pyproj.CRS
        If CF knows no name for its projection, ``crs_wkt`` alone describes it.
    grid : Grid, optional
        Adds GDAL's ``GeoTransform``: x of the left edge, width, 0, y of the top, 0, -height.
    """
    found: dict[str, Any] = {**crs.to_cf(), GRID_MAPPING: crs.to_wkt()}
    if grid is not None:
        t = grid.transform
        found["GeoTransform"] = " ".join(f"{v:.17g}" for v in t.to_gdal())
    return found


def is_latitude(name: str, unit: str) -> bool:
    """Return whether an axis is that of latitudes, by its unit or its name."""
    return unit in _NORTH or name.lower() in _LATITUDE


def is_longitude(name: str, unit: str) -> bool:
    """Return whether an axis is that of longitudes, by its unit or its name."""
    return unit in _EAST or name.lower() in _LONGITUDE


def are_degrees(units: set[str]) -> bool:
    """Return whether the units of all axes say that two are latitudes and longitudes."""
    return bool(units & _NORTH and units & _EAST)


def degrees_by_units(source: Any) -> CRS | None:
    """Return the CRS of a NetCDF file without a grid mapping whose axes are in degrees.

    CF (sections 4.1, 4.2 and 5.6) knows longitudes and latitudes by their units, and asks for a
    grid mapping only where the figure of the Earth matters; WGS 84 is what such files mean.

    Parameters
    ----------
    source : rasterio.io.DatasetReader

    Returns
    -------
    pyproj.CRS or None
        None for other files, also for those on a projection that hold longitudes besides.
    """
    tags = source.tags()
    units = {value for key, value in tags.items() if key.endswith("#units")}
    projected = "projection_x_coordinate" in tags.values()
    if source.transform.is_identity or projected or not are_degrees(units):
        return None
    west, south, east, north = source.bounds
    inside = -361 <= west < east <= 361 and min(south, north) >= -91 and max(south, north) <= 91
    return CRS("EPSG:4326") if inside else None


def axes_trouble(source: Any) -> tuple[str, str] | None:
    """Return what is wrong with the axes of a NetCDF file in degrees, and the remedy; None if OK.

    GDAL has no transform for uneven axes, and takes the last axis for the columns, whatever it is.

    Parameters
    ----------
    source : rasterio.io.DatasetReader
    """
    if source.driver != "netCDF":
        return None
    axes = {key.rpartition("#")[0]: source.tags().get(f"{key.rpartition('#')[0]}#units", "")
            for key in source.tags() if "#" in key}  # fmt: skip
    lat = [name for name, unit in axes.items() if is_latitude(name, unit)]
    lon = [name for name, unit in axes.items() if is_longitude(name, unit)]
    if "projection_x_coordinate" in source.tags().values() or not (lat and lon):
        return None
    y, x = lat[0], lon[0]
    if source.transform.is_identity:
        found = f"has uneven steps of {y} or {x}: its pixels are no grid"
        even = f"numpy.linspace(*d.{y}.data[[0, -1]], d.{y}.size)"
        return found, (
            f"interpolate it to even steps, in Python: d = xarray.open_dataset(...); "
            f"d.interp({y}={even}).to_netcdf(...), the same for {x}; or give a GeoTIFF"
        )
    west, south, east, north = source.bounds
    wide, high = max(abs(west), abs(east)), max(abs(south), abs(north))
    if not (wide <= 91 < high <= 361 or (west > east and wide <= 361)):
        return None
    return f"has its longitudes ({x}) down the rows, or falling along them", (
        f"write it with rows of latitudes, in Python: xarray.open_dataset(...).transpose(..., "
        f"'{y}', '{x}').sortby('{x}').to_netcdf(...); or give a GeoTIFF"
    )


def axis_attributes(crs: CRS, axis: str) -> dict[str, str]:
    """Return the attributes of the coordinates along ``X`` or ``Y``: name, unit (CF, section 4).

    A CRS whose axes CF has no name for, as one of a pole, has the names of a projection.
    """
    for each in crs.cs_to_cf():
        if each.get("axis") == axis:
            return {key: str(value) for key, value in each.items()}
    unit = crs.axis_info[0].unit_name
    name = f"projection_{axis.lower()}_coordinate"
    return {"axis": axis, "standard_name": name, "units": unit}


def geozarr_attributes(grid: Grid) -> dict[str, Any]:
    """Return the attributes of a Zarr group of arrays (y, x) on a grid: GeoZarr."""
    code = crs_code(grid.crs)
    return {
        "zarr_conventions": [
            {
                "schema_url": f"https://raw.githubusercontent.com/zarr-conventions/{repository}"
                "/refs/tags/v1/schema.json",
                "spec_url": f"https://github.com/zarr-conventions/{repository}/blob/v1/README.md",
                "uuid": uuid,
                "name": name,
                "description": about,
            }
            for name, repository, uuid, about in _CONVENTIONS
        ],
        **({} if code is None else {"proj:code": code}),
        "proj:wkt2": grid.crs.to_wkt(),
        "spatial:dimensions": ["y", "x"],
        "spatial:shape": list(grid.shape),
        "spatial:transform": [float(v) for v in tuple(grid.transform)[:6]],
        "spatial:bbox": list(grid.bounds),
        "spatial:registration": "pixel",
    }

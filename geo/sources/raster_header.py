"""What users declare of a raster: which band to read, and what its header lacks or has wrong."""

from __future__ import annotations

from dataclasses import dataclass

from pyproj import CRS

#: How the steps of a period become one value.
AGGREGATES = ("sum", "mean", "max", "min")
#: Values of axes besides rows, columns and time, by name; "" is any axis.
Level = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class BandChoice:
    """What a user says of the band to read; all of it has to fit one band.

    Attributes
    ----------
    band : int or None
        Number of the band, from 1.
    variable : str or None
        Variable of a NetCDF, HDF5 or GRIB file, table of a GeoPackage, or description of a band.
    time : str or None
        Time of the band, or the beginning of it: ``2023-01``.
    aggregate : str or None
        How all steps within ``time``, a period or first and last day, become one value: one of
        :data:`AGGREGATES`.
    level : tuple of (str, str)
        Axis ("" for any) and value: the height of a fourth axis, the member of an ensemble.
    window : int
        Periods, up to and with ``time``, that ``aggregate`` takes together.
    climatology : (int, int, bool) or None
        First and last year whose same days the aggregate is compared with, and whether the
        difference is divided by their standard deviation.
    share : tuple of float or None
        Values of a class whose share is wanted: see :class:`geo.sources.derived.ClassShare`.
    terrain : str or None
        What to make of an elevation: a key of :data:`geo.sources.terrain.TERRAIN`.
    """

    band: int | None = None
    variable: str | None = None
    time: str | None = None
    aggregate: str | None = None
    level: Level = ()
    window: int = 1
    climatology: tuple[int, int, bool] | None = None
    share: tuple[float, ...] | None = None
    terrain: str | None = None


@dataclass(frozen=True)
class RasterHeader:
    """Declared properties of a raster; each replaces that of the file's header.

    A value is ``stored * scale + offset``; ``nodata`` is compared with the stored number.

    Attributes
    ----------
    nodata : tuple of float or None
        Stored numbers that mark missing pixels, () if none does; None keeps the header's.
    crs : str or None
        Anything that ``pyproj.CRS.from_user_input`` accepts; None keeps the header's.
    scale, offset : float or None
        None keeps the header's.
    unit : str or None
        Unit of the values; None keeps the header's.
    """

    nodata: tuple[float, ...] | None = None
    crs: str | None = None
    scale: float | None = None
    offset: float | None = None
    unit: str | None = None


#: The only band.
ANY_BAND = BandChoice()
#: Nothing declared.
AS_IT_IS = RasterHeader()


def crs_text(crs: CRS | None) -> str:
    """Return a short name of a CRS: its code, or its projection where it has none."""
    if crs is None:
        return "no CRS"
    authority = crs.to_authority()
    if authority:
        return ":".join(authority)
    if crs.name.lower() not in ("unknown", "unnamed", ""):
        return str(crs.name)
    operation = crs.coordinate_operation
    return str(operation.method_name) if operation is not None else "geographic"

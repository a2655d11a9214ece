"""What users declare of a raster: which band to read, and what its header lacks or has wrong."""

from __future__ import annotations

from dataclasses import dataclass

from pyproj import CRS

from geo.core.errors import InputError, Problem

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
        Stored numbers that mark missing pixels, () if none does, also not those outside the
        header's valid range; None keeps the header's.
    crs : str or None
        Anything that ``pyproj.CRS.from_user_input`` accepts; None keeps the header's.
    scale, offset : float or None
        None keeps the header's; of a packed raster, both are declared or none
        (:func:`check_packing`).
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


def check_packing(path: str, own: tuple[float, float], header: RasterHeader) -> None:
    """Refuse one of scale and offset for a raster with its own, where the other one's is unclear.

    ``offset: -273.15`` may be meant of the stored numbers, in place of the raster's offset, or of
    its values, in kelvins.

    Parameters
    ----------
    path : str
        For messages.
    own : (float, float)
        Scale and offset of the raster.
    header : RasterHeader

    Raises
    ------
    InputError
        With both numbers for either meaning.
    """
    (scale, offset), given = own, (header.scale, header.offset)
    if header.scale is None and header.offset is not None and offset not in (0.0, header.offset):
        added, key = (scale, offset + header.offset), f"offset: {header.offset:.12g}"
    elif header.offset is None and header.scale not in (None, scale) and own != (1.0, 0.0):
        factor = float(header.scale or 1.0)
        added, key = (scale * factor, offset * factor), f"scale: {factor:.12g}"
    else:
        return
    instead = tuple(o if g is None else g for o, g in zip(own, given, strict=True))
    after, place = (f"`scale: {s:.12g}, offset: {o:.12g}`" for s, o in (added, instead))
    found = (
        f"is packed (scale {scale:.12g}, offset {offset:.12g}), so that `{key}` has two meanings"
    )
    remedy = f"give both: {after} to change its values, {place} to change its packing"
    raise InputError(Problem(path, found, remedy))


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

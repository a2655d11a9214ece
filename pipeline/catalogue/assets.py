"""The files of a run as assets of a STAC item: what each is, its bands, size and checksum."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyogrio
from pyproj import CRS

from geo.grids.conventions import crs_code
from geo.writers.raster_files import RasterFiles
from pipeline.products.products import (
    AREAS_GPKG,
    AREAS_LAYER,
    PRODUCTS,
    RUN_RECORD,
    STAC_COLLECTION,
    STAC_ITEM,
    STAC_PERIOD,
    Product,
    RasterProduct,
)
from pipeline.storage.files import file_digest

if TYPE_CHECKING:
    import pystac

_SHA256 = "1220"  # multihash: SHA-256, 32 bytes
_MEDIA = {
    ".tif": "image/tiff; application=geotiff; profile=cloud-optimized",
    ".gpkg": "application/geopackage+sqlite3",
    ".parquet": "application/vnd.apache.parquet",
    ".csv": "text/csv",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".json": "application/json",
    ".geojson": "application/geo+json",
    ".html": "text/html",
    ".png": "image/png",
    ".pdf": "application/pdf",
    ".qml": "application/xml",
    ".sld": "application/vnd.ogc.sld+xml",
    ".qgz": "application/zip",
}
_STYLES = {".qml": "QGIS style", ".sld": "SLD style"}


def product_files(out: Path) -> dict[Path, Product]:
    """Return the files of a folder and the product that each belongs to, in the products' order."""
    found: dict[Path, Product] = {}
    for product in PRODUCTS:
        if product in (STAC_COLLECTION, STAC_ITEM, STAC_PERIOD):
            continue
        for pattern in product.patterns:
            for path in sorted(out.glob(pattern)):
                if path.is_file():
                    found.setdefault(path, product)
    return found


def asset_key(path: Path) -> str:
    """Return the key of an asset: ``rate_mean`` for the raster, ``rate_mean.qml`` for its style."""
    return path.stem if path.suffix == ".tif" else path.as_posix()


def asset_of(out: Path, path: Path, product: Product, files: RasterFiles) -> pystac.Asset:
    """Return a file as an asset.

    Parameters
    ----------
    out : Path
        The run's directory.
    path : Path
        The file in it.
    product : Product
        What it is.
    files : RasterFiles
        Open files.
    """
    import pystac
    from pystac.extensions.file import FileExtension

    suffix = path.suffix
    title = product.description
    roles = list(product.roles)
    extra: dict[str, Any] = {}
    if suffix in _STYLES:
        title, roles = f"{_STYLES[suffix]} of {path.stem}.tif", ["metadata", "style"]
    elif isinstance(product, RasterProduct):
        extra = _band(path, files)
        title = extra["bands"][0].get("description", path.stem)
    elif path.name == AREAS_GPKG.file:
        extra = projection(str(pyogrio.read_info(path, layer=AREAS_LAYER)["crs"]))
    asset = pystac.Asset(
        href="../" + path.relative_to(out).as_posix(),
        title=title[:1].upper() + title[1:],
        media_type=_MEDIA.get(suffix),
        roles=roles,
        extra_fields=extra,
    )
    if product is not RUN_RECORD:  # which is written last, and has the checksum of this catalogue
        details = FileExtension.ext(asset)
        details.size = path.stat().st_size
        details.checksum = _SHA256 + file_digest(path)
    return asset


def _band(path: Path, files: RasterFiles) -> dict[str, Any]:
    """Return the fields of a raster: its band as STAC 1.1 has it, and as the extension has it."""
    with files.open(path) as source:
        tags = source.tags(1)
        nodata, description = source.nodata, source.descriptions[0]
        band: dict[str, Any] = {"data_type": source.dtypes[0]}
        if nodata is not None:
            band["nodata"] = "nan" if math.isnan(nodata) else nodata
        if source.units[0] not in (None, "", "1"):
            band["unit"] = source.units[0]
        resolution = source.res[0]
        place = {
            **projection(source.crs.to_wkt()),
            "proj:shape": list(source.shape),
            "proj:transform": [float(v) for v in tuple(source.transform)[:6]],
            "proj:bbox": list(source.bounds),
        }
    names = {"minimum": "MINIMUM", "maximum": "MAXIMUM", "mean": "MEAN", "stddev": "STDDEV"}
    names["valid_percent"] = "VALID_PERCENT"
    statistics = {
        name: float(tags[f"STATISTICS_{tag}"])
        for name, tag in names.items()
        if f"STATISTICS_{tag}" in tags
    }
    if statistics:
        band["statistics"] = statistics
    raster = {**band, "sampling": "area", "spatial_resolution": resolution}
    own = {"name": path.stem, **({"description": description} if description else {}), **band}
    return {**place, "bands": [own], "raster:bands": [raster]}


def projection(crs: str) -> dict[str, Any]:
    """Return the fields of a CRS: its code, or its WKT if no authority has one for it."""
    known = CRS.from_user_input(crs)
    code = crs_code(known)
    if code is not None:
        return {"proj:code": code}
    return {"proj:code": None, "proj:wkt2": known.to_wkt()}

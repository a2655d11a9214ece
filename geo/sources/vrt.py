"""Read a GDAL virtual raster (VRT) without following it anywhere but to trusted rasters.

GDAL gets neither the file nor its references: it gets XML that is written anew from the parsed
tree, with elements and attributes of an allow-list alone, the absolute path of each checked source,
and nested VRTs in place of their names. What this module understood is then what GDAL reads.
"""

from __future__ import annotations

import functools
import os
import re
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

from geo.core.errors import InputError, Problem
from geo.core.trust import Trust, is_web_address
from geo.core.web_errors import error_passes

MAX_BYTES = 64 << 20
MAX_DEPTH = 4
MAX_SOURCES = 100_000
TIMEOUT_S = 20.0
# Of GDAL's requests: nothing beside the URL, and seconds until a silent server is given up.
_WEB_OPTIONS = (
    "empty_dir=yes&list_dir=no&max_retry=3&connecttimeout=10&low_speed_time=20&low_speed_limit=1"
)

_REMEDY = "make a GeoTIFF of it (gdal_translate in.vrt out.tif), and give that"
_TRUST_REMEDY = "put the file beside it, or name its folder or server in storage.trusted"

_TAG_NAMES = """\
    VRTDataset SRS GeoTransform GCPList GCP Metadata MDI BlockXSize BlockYSize VRTRasterBand
    Description UnitType Offset Scale CategoryNames Category ColorInterp ColorTable Entry
    NoDataValue NODATA HideNoDataValue SimpleSource ComplexSource AveragedSource
    NoDataFromMaskSource KernelFilteredSource Kernel Size Coefs SourceFilename SourceBand
    SourceProperties SrcRect DstRect ScaleOffset ScaleRatio LUT ColorTableComponent Exponent
    SrcMin SrcMax DstMin DstMax Clamp UseMaskBand MaskBand MaskValueThreshold RemappedValue
    Histograms HistItem HistMin HistMax BucketCount IncludeOutOfRange Approximate HistCounts
    PixelFunctionType SourceTransferType PixelFunctionArguments OverviewList GDALWarpOptions
    WarpMemoryLimit ResampleAlg WorkingDataType Option SourceDataset Transformer
    ApproxTransformer MaxError BaseTransformer GenImgProjTransformer SrcGeoTransform
    SrcInvGeoTransform DstGeoTransform DstInvGeoTransform ReprojectTransformer
    ReprojectionTransformer SourceSRS TargetSRS Options BandList BandMapping SrcNoDataReal
    SrcNoDataImag DstNoDataReal DstNoDataImag SrcAlphaBand DstAlphaBand"""
# Readers of the same XML take an attribute for an element: `<SimpleSource SourceFilename="...">`.
_ATTRIBUTE_NAMES = """\
    rasterXSize rasterYSize subClass dataType band relativeToVRT shared domain format key name
    dataAxisToSRSAxisMapping coordinateEpoch xOff yOff xSize ySize RasterXSize RasterYSize
    DataType BlockXSize BlockYSize blockXSize blockYSize resampling normalized src dst c1 c2 c3
    c4 Id Pixel Line X Y Z Projection default"""
_TAGS, _ATTRIBUTES = frozenset(_TAG_NAMES.split()), frozenset(_ATTRIBUTE_NAMES.split())
_DATASETS = (None, "VRTWarpedDataset")
_BANDS = (None, "VRTSourcedRasterBand", "VRTDerivedRasterBand", "VRTWarpedRasterBand")
_REFERENCES = ("SourceFilename", "SourceDataset")
_BINARY = (
    b"II*\0", b"MM\0*", b"II+\0", b"MM\0+",  # TIFF, BigTIFF
    b"EHFA_HEADER_TAG", b"\x89PNG", b"\xff\xd8\xff", b"\x89HDF", b"CDF\x01", b"CDF\x02", b"CDF\x05",
    b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51", b"GRIB",
)  # fmt: skip
_TIFF = _BINARY[:4]
_GRID_TEXT = re.compile(rb"\s*(ncols|nrows|xll|yll|cellsize|dx|dy)", re.IGNORECASE)
_MARKUP = (b"<VRTDataset", b"<GDAL_WMS", b"<WMS_", b"<GDALTileIndex")
HEAD_BYTES = 1024  # GDAL's drivers look at as many to know their own files


@dataclass
class Vrt:
    """A checked VRT.

    Attributes
    ----------
    xml : str
        What GDAL opens.
    files : list of str
        The VRT files: it and those in it.
    sources : list of str
        Absolute paths and URLs of the rasters that it reads.
    """

    xml: str = ""
    files: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)


def read_vrt(path: str, trust: Trust) -> Vrt:
    """Check a VRT file and everything that it refers to.

    Parameters
    ----------
    path : str
        A local file.
    trust : Trust
        Places beside its own folder that it may refer to.

    Raises
    ------
    InputError
        If it is no VRT, has a part that could reach elsewhere, or refers to an untrusted place.
    """
    found = Vrt()
    found.xml = _read(path, trust, found, ())
    return found


def is_vrt(path: str) -> bool:
    """Return whether a name is that of a VRT: its content alone never makes it one."""
    return path.lower().endswith(".vrt")


def web_path(url: str) -> str:
    """Return GDAL's path of a URL: without requests for side-car files beside it."""
    return f"/vsicurl?{_WEB_OPTIONS}&url={quote(url, safe='')}"


def _read(path: str, trust: Trust, found: Vrt, above: tuple[str, ...]) -> str:
    def refuse(what: str, remedy: str = _REMEDY) -> InputError:
        return InputError(Problem(path, what, remedy))

    real = os.path.realpath(path)
    if real in above:
        msg = "refers to itself"
        raise refuse(msg, "correct the files that it refers to")
    if len(above) >= MAX_DEPTH:
        msg = f"is nested more than {MAX_DEPTH} deep"
        raise refuse(msg)
    try:
        size = Path(real).stat().st_size
        if not Path(real).is_file() or size > MAX_BYTES:
            msg = f"is no VRT (a file of at most {MAX_BYTES >> 20} MiB)"
            raise refuse(msg)
        text = Path(real).read_bytes()
    except OSError as error:
        msg = f"cannot be read ({error.strerror})"
        raise refuse(msg, "correct the path") from error
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        msg = "declares entities"
        raise refuse(msg)
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        msg = f"is no VRT: its XML is damaged ({error})"
        raise refuse(msg, "write it again") from error
    if root.tag != "VRTDataset" or root.get("subClass") not in _DATASETS:
        msg = "is no VRT of rasters in files"
        raise refuse(msg)
    found.files.append(real)
    for element in root.iter():
        _check_element(element, refuse)
        if element.tag in _REFERENCES:
            target = _target(element, Path(real).parent)
            element.text = _follow(path, target, Path(real).parent, trust, found, (*above, real))
            element.attrib = {
                **{k: v for k, v in element.attrib.items() if k != "shared"},
                "relativeToVRT": "0",
            }
    return ElementTree.tostring(root, encoding="unicode")


def _check_element(element: ElementTree.Element, refuse: Callable[[str], InputError]) -> None:
    tag, sub = element.tag, element.get("subClass")
    other = [name for name in element.attrib if name not in _ATTRIBUTES]
    if tag == "PixelFunctionArguments":  # numbers by name
        other = [k for k, v in element.attrib.items() if not re.fullmatch(r"[\w.+-]*", v)]
    if tag not in _TAGS or other:
        what = f"{tag} {other[0]}" if tag in _TAGS else tag
        msg = f"has <{what}>, which is not read here"
        raise refuse(msg)
    if tag == "VRTRasterBand" and sub not in _BANDS:
        msg = f"has a band of class {sub}, not read here"
        raise refuse(msg)
    key = element.get("key") or ""
    if tag == "MDI" and ("OVERVIEW_FILE" in key.upper() or key.upper().endswith("_DATASET")):
        msg = f"names another file in its metadata ({key})"
        raise refuse(msg)


def _target(element: ElementTree.Element, folder: Path) -> str:
    name = (element.text or "").strip()
    if is_web_address(name) or name.startswith("/vsi") or element.get("relativeToVRT") != "1":
        return name
    return str(folder / name)


def _follow(
    path: str, target: str, folder: Path, trust: Trust, found: Vrt, above: tuple[str, ...]
) -> str:
    """Check one source; return what GDAL opens in its place."""
    url = target.removeprefix("/vsicurl/")
    if is_web_address(url):
        if not trust.allows_address(url) or is_vrt(url.partition("?")[0]):
            raise InputError(Problem(path, f"refers to {url}", _TRUST_REMEDY))
        head = _web_head(url)
        if not head.startswith(_BINARY) or any(mark in head for mark in _MARKUP):
            what = f"refers to {url}, which is no GeoTIFF or other raster file"
            raise InputError(Problem(path, what, "correct the address"))
        found.sources.append(url)
        return web_path(url)
    if target.startswith("/vsi") or not (target := os.path.join(folder, target)).startswith("/"):
        raise InputError(Problem(path, f"refers to {target}, not a file", _REMEDY))
    if re.search(r"[:<>]", os.path.basename(target)) or not trust.allows_file(target, str(folder)):
        real = os.path.realpath(target)
        link = f"a link to {real}, " if os.path.islink(target) else ""
        found_there = f"refers to {target}, {link}outside its folder and the configuration's"
        raise InputError(Problem(path, found_there, _TRUST_REMEDY))
    real = os.path.realpath(target)
    if not os.path.isfile(real):
        raise InputError(Problem(path, f"refers to {target}: no such file", "correct the path"))
    if is_vrt(real):
        return _read(real, trust, found, above)
    check_source(real, path)
    found.sources.append(real)
    if len(found.sources) > MAX_SOURCES:
        raise InputError(Problem(path, f"has more than {MAX_SOURCES:,} sources", _REMEDY))
    return real


@functools.lru_cache(4096)
def _web_head(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"Range": f"bytes=0-{HEAD_BYTES - 1}"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:  # http(s) alone
            data: bytes = reply.read(HEAD_BYTES)
    except (OSError, ValueError) as error:
        found = f"cannot be reached ({error})"
        remedy, transient = "check the address and the network", error_passes(error)
        raise InputError(Problem(url, found, remedy, transient=transient)) from error
    return data


def check_source(source: str, path: str) -> None:
    """Refuse a source whose content could select a driver that reaches elsewhere."""
    with open(source, "rb") as stream:
        head = stream.read(HEAD_BYTES)
    known = head.startswith(_BINARY) or _GRID_TEXT.match(head)
    if not known or any(mark in head for mark in _MARKUP):
        found = f"refers to {source}, which is no GeoTIFF or other raster file"
        raise InputError(Problem(path, found, "give rasters, such as GeoTIFFs, as its sources"))
    check_side_cars(source)


def check_side_cars(path: str) -> None:
    """Refuse a mask or overview beside a raster that is not itself a TIFF, or leads elsewhere.

    GDAL opens these by content: a mask that is a VRT would be read as one.
    """
    for suffix in (".msk", ".MSK", ".ovr", ".OVR", ".msk.ovr", ".ovr.msk", ".ovr.ovr"):
        beside = f"{path}{suffix}"
        if os.path.lexists(beside):
            # A link may lead outside the folder; its bytes become pixels only if they are a TIFF.
            head = b""
            if os.path.isfile(beside):
                with open(beside, "rb") as stream:
                    head = stream.read(16)
            if not head.startswith((*_TIFF, b"EHFA_HEADER_TAG")):
                found = "is no TIFF, though a raster's mask or overview"
                raise InputError(Problem(beside, found, "remove it, or make it again (gdaladdo)"))
    beside = f"{path}.aux.xml"
    if os.path.isfile(beside):
        with open(beside, "rb") as stream:
            text = stream.read(MAX_BYTES)
        for value in re.findall(rb"OVERVIEW_FILE[^>]*>([^<]*)<", text):
            if not re.fullmatch(rb"\s*(:::BASE:::)?[\w.-]+\s*", value):
                found = f"names overviews elsewhere ({value.decode(errors='replace')})"
                raise InputError(Problem(beside, found, "remove it"))

"""Assets of STAC items: an item, an item collection (a search's result), a collection.

The path is written ``STAC:"items.json":data``: the file or address, and the key of the asset, which
may be left out where items have one raster.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from affine import Affine
from pyproj import CRS
from pyproj.exceptions import CRSError

from geo.core.copies import Copy, current_copy
from geo.core.errors import InputError, Problem
from geo.core.trust import Trust, current_trust, is_web_address
from geo.core.web_errors import error_passes
from geo.core.web_request import web_request
from geo.sources.mosaic import MosaicSource, Piece, piece_of
from geo.sources.raster_header import BandChoice, RasterHeader
from geo.sources.source import Source, unknown
from geo.sources.stac_address import stac_of

if TYPE_CHECKING:
    import pystac

Reader = Callable[[str, BandChoice, RasterHeader], Source]

MAX_ITEMS = 10_000
TIMEOUT_S = 20.0
#: Media types of rasters and cubes, by their beginnings.
_RASTERS = (
    "image/tiff", "image/vnd.stac.geotiff", "image/jp2", "application/vnd.zarr",
    "application/vnd+zarr", "application/x-netcdf", "application/netcdf",
)  # fmt: skip
_PICTURES = ("thumbnail", "overview", "metadata")


def stac_source(path: str, reader: Reader, choice: BandChoice, header: RasterHeader) -> Source:
    """Open an asset of one item, or the mosaic of the assets of several, by their times.

    Parameters
    ----------
    path : str
        See :func:`geo.sources.stac_address.stac_path`.
    reader : callable
        Opens an asset.
    choice : BandChoice
        ``time`` is that of items; the rest is of the assets.
    header : RasterHeader

    Raises
    ------
    InputError
        If items cannot be read, refer to a place that is not trusted, or several assets fit.
    """
    place, asset = stac_of(path) or (path, "")
    within = BandChoice(choice.band, choice.variable, None, level=choice.level)
    pieces = []
    for item, href, about in assets_of(place, asset):
        open_one = partial(_opened, reader, current_copy(), href, within, header)
        piece = _by_projection(item, about, href, header, open_one, item_time(item))
        pieces.append(piece or piece_of(open_one(), item_time(item)))
    if not pieces:
        raise InputError(Problem(place, "has no item", "give a file of items, or search again"))
    return MosaicSource(path, pieces, choice.time)


def assets_of(place: str, asset: str) -> Iterator[tuple[pystac.Item, str, pystac.Asset]]:
    """Yield items with file or address of their asset; see :func:`stac_source`."""
    trust = current_trust()
    for item in _items(place, trust):
        found = _asset(place, item, asset)
        href = found.get_absolute_href() or found.href
        _check(place, href, trust)
        yield item, href, found


def item_time(item: pystac.Item) -> str:
    """Return the time of an item: its datetime, or the beginning of its range; "" for none."""
    when = item.datetime or item.common_metadata.start_datetime
    if when is None:
        return ""
    text = when.strftime("%Y-%m-%dT%H:%M")
    return text.removesuffix("T00:00")


def _opened(
    reader: Reader, copy: Copy, href: str, choice: BandChoice, header: RasterHeader
) -> Source:
    source = reader(copy(href) if is_web_address(href) else href, choice, header)
    source.band_of()
    return source


def _by_projection(
    item: pystac.Item,
    asset: pystac.Asset,
    href: str,
    header: RasterHeader,
    open_one: Callable[[], Source],
    time: str,
) -> Piece | None:
    """Return a piece by what its item says of its grid (STAC's projection extension), if it does.

    Its file need not be opened unless one of its pixels is read.
    """
    said = {**item.properties, **asset.extra_fields}
    numbers, shape = said.get("proj:transform"), said.get("proj:shape")
    code = header.crs or said.get("proj:code") or said.get("proj:wkt2")
    if code is None and said.get("proj:epsg"):
        code = f"EPSG:{said['proj:epsg']}"
    if code is None or not isinstance(numbers, list) or not isinstance(shape, list):
        return None
    try:
        crs = CRS.from_user_input(code)
        transform = Affine(*(float(each) for each in numbers[:6]))
        return Piece(href, crs, transform, (int(shape[0]), int(shape[1])), open_one, time)
    except (CRSError, TypeError, ValueError, IndexError):
        return None


def _asset(place: str, item: pystac.Item, wanted: str) -> pystac.Asset:
    """Return the asset of a key, or the only raster."""
    if wanted:
        if wanted not in item.assets:
            error = unknown(place, "asset", wanted, list(item.assets))
            raise InputError(
                [Problem(place, f"item {item.id} {p.found}", p.remedy) for p in error.problems]
            )
        return item.assets[wanted]
    rasters = {
        key: each
        for key, each in item.assets.items()
        if not set(each.roles or ()) & set(_PICTURES)
        and (
            str(each.media_type or "").lower().startswith(_RASTERS)
            or re.search(r"\.(tiff?|nc4?|zarr)(\?|/?$)", each.href, re.IGNORECASE)
        )
    }
    if len(rasters) != 1:
        named = ", ".join(rasters or item.assets) or "none"
        found = f"item {item.id} has {len(rasters)} rasters among its assets ({named})"
        one = next(iter(rasters or item.assets), "data")
        raise InputError(Problem(place, found, f"choose one with the key `asset`, such as {one}"))
    return next(iter(rasters.values()))


def _items(place: str, trust: Trust) -> Iterator[pystac.Item]:
    import pystac

    class Reading(pystac.StacIO):
        """Reads documents from trusted places alone."""

        def read_text(self, source: Any, *args: Any, **kwargs: Any) -> str:
            del args, kwargs
            name = str(getattr(source, "absolute_href", source))
            if name != place:
                _check(place, name, trust)
            return _text(name)

        def write_text(self, *args: Any, **kwargs: Any) -> None:
            """Refuse to write."""
            raise NotImplementedError

    reading = Reading()
    try:
        document = json.loads(reading.read_text(place))
        kind = document.get("type")
        if kind == "FeatureCollection":
            for feature in document["features"]:
                own = pystac.Item.from_dict(feature, href=_self(feature, place))
                yield own
            return
        whole = pystac.read_file(place, stac_io=reading)
    except InputError:
        raise
    except Exception as error:  # of pystac's own kinds
        cause = (str(error) or type(error).__name__).splitlines()[0]
        found = f"is no STAC item, item collection or collection ({cause})"
        raise InputError(Problem(place, found, "give the JSON of a STAC catalogue")) from error
    if isinstance(whole, pystac.Item):
        yield whole
        return
    for n, item in enumerate(whole.get_items(recursive=True)):  # type: ignore[attr-defined]
        if n >= MAX_ITEMS:
            found = f"has more than {MAX_ITEMS:,} items"
            raise InputError(Problem(place, found, "search for those of the country and the time"))
        yield item


def _self(feature: dict[str, Any], place: str) -> str:
    """Return the address that an item's relative links begin at."""
    links = {each.get("rel"): each.get("href") for each in feature.get("links", ())}
    own = links.get("self")
    return own if isinstance(own, str) and is_web_address(own) else place


def _check(place: str, href: str, trust: Trust) -> None:
    """Refuse a file or server that neither lies beside the items nor is trusted."""
    own = os.path.dirname(os.path.abspath(place)) if not is_web_address(place) else ""
    allowed = (
        trust.allows_address(href)
        if "://" in href
        else bool(own and not href.startswith("/vsi") and trust.allows_file(href, own))
    )
    if is_web_address(place) and is_web_address(href):
        allowed = allowed or href.split("/")[:3] == place.split("/")[:3]
    if not allowed:
        remedy = "put the file beside it, or name its folder or server in storage.trusted"
        raise InputError(Problem(place, f"refers to {href}", remedy))


def _text(place: str) -> str:
    if "://" in place and not is_web_address(place):
        remedy = "give a file, or an address at https://"
        raise InputError(Problem(place, "is no address that items are read from", remedy))
    try:
        if not is_web_address(place):
            return Path(place).read_text(encoding="utf-8")
        with urllib.request.urlopen(web_request(place), timeout=TIMEOUT_S) as reply:
            return str(reply.read().decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        web = is_web_address(place)
        found = "no such file" if not web and not os.path.exists(place) else "cannot be read"
        found += f" ({error})" if "cannot" in found else ""
        remedy = "check the server and the network, or correct the address"
        problem = Problem(place, found, remedy if web else "correct the path")
        if web and error_passes(error):
            problem = replace(problem, transient=True)
        raise InputError(problem) from error

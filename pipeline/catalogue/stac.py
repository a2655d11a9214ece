"""The STAC catalogue of a run: a static collection with an item, whose assets are its files.

A run of several periods has an item for each that is mapped, and for each window of periods; the
latest period's is the run's.

Links are relative, so that the directory may be moved, published or served as it is. The
catalogue is of STAC 1.1 with the extensions projection, raster, file, version and processing.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyogrio
from pyproj import CRS

from geo.grids.footprint import Footprint, footprint
from geo.writers.raster_files import RasterFiles
from pipeline.catalogue.assets import asset_key, asset_of, product_files
from pipeline.catalogue.dates import days_of
from pipeline.config.model_factory import model_settings
from pipeline.config.no_spread import NO_SPREAD
from pipeline.config.schema import Config
from pipeline.core.code import library_versions
from pipeline.core.progress import Progress
from pipeline.core.revision import full_version
from pipeline.prediction.cube import CUBE
from pipeline.products.periods import period_folders, window_folders
from pipeline.products.products import (
    AREAS_GPKG,
    AREAS_LAYER,
    RUN_RECORD,
    STAC_COLLECTION,
    STAC_ITEM,
    STAC_PERIOD,
)
from pipeline.storage.files import text_digest, write_json

if TYPE_CHECKING:
    import pystac

_ZARR = "application/vnd.zarr; version=3"
_PROCESSING = "https://stac-extensions.github.io/processing/v1.2.0/schema.json"
#: Fields of a raster that all of a run share: they are the item's, too.
_SHARED = ("proj:code", "proj:wkt2", "proj:shape", "proj:transform", "proj:bbox")


def write_stac(
    config: Config,
    out: Path,
    model: Any,
    progress: Progress,
    files: RasterFiles,
    verdict: str = "",
) -> list[str]:
    """Write the catalogue of a run into its directory.

    Parameters
    ----------
    config : Config
    out : Path
        Directory with the finished results.
    model : fitted model or None
        Its settings are then in the item, as in the rasters' tags.
    progress : Progress
    files : RasterFiles
        Open files.
    verdict : str, optional
        Whether the map is better than one rate; a property of the item.

    Returns
    -------
    list of str
        Names of the files, the collection's first.
    """
    import pystac

    mapped = _mapped(config, out)
    found = {name: product_files(each.folder) for name, each in mapped.items()}
    found[STAC_ITEM.file][out / RUN_RECORD.file] = RUN_RECORD  # which the run writes last
    items = {}
    with progress.task("catalogue", sum(map(len, found.values()))) as task:
        for name, each in mapped.items():
            assets = {}
            for path, product in found[name].items():
                assets[asset_key(path.relative_to(each.folder))] = asset_of(
                    out, path, product, files
                )
                task.advance(1)
            items[name] = _item(each, assets, files)
    latest = items[STAC_ITEM.file]
    if (out / CUBE).is_dir():
        latest.assets[CUBE] = pystac.Asset(
            f"../{CUBE}", "Maps of all periods as one cube (time, y, x)", None, _ZARR, ["data"]
        )
    if verdict:
        latest.properties["disagg:verdict"] = verdict
    if model is not None:
        latest.properties["disagg:model"] = model_settings(config, model)
    collection = _collection(config, list(items.values()))
    collection.add_items(items.values())
    # Links are relative to these; they themselves are not written.
    collection.set_self_href(str(out / STAC_COLLECTION.file))
    for name, item in items.items():
        item.set_self_href(str(out / name))
    collection.catalog_type = pystac.CatalogType.SELF_CONTAINED
    for path in out.glob(STAC_PERIOD.patterns[0]):
        path.unlink()  # of periods that are mapped no more
    for name, made in {STAC_COLLECTION.file: collection, **items}.items():
        write_json(out / name, made.to_dict(include_self_link=False))
    return [STAC_COLLECTION.file, *items]


def slug(name: str) -> str:
    """Return a name as an id: small letters, figures, dots and hyphens."""
    return re.sub(r"[^\w.]+", "-", name.lower()).strip("-") or "map"


def content_version(assets: dict[str, pystac.Asset]) -> str:
    """Return the version of a run's files: the same for the same bytes, 12 digits.

    Styles and the project, which users may edit, and the evaluation do not count: the version is
    that of the maps and tables.
    """
    counted = [
        f"{key} {asset.extra_fields['file:checksum']}"
        for key, asset in sorted(assets.items())
        if "data" in (asset.roles or []) and "file:checksum" in asset.extra_fields
    ]
    return text_digest("\n".join(counted), 12)


@dataclass(frozen=True)
class _Mapped:
    """The maps of a period, or of a window of periods.

    Attributes
    ----------
    config : Config
        Names it as its period.
    folder : Path
    labels : tuple of str
        Its periods; empty where counts have none.
    """

    config: Config
    folder: Path
    labels: tuple[str, ...]
    name: str | None

    @property
    def days(self) -> tuple[datetime, datetime] | None:
        """Its first and last second."""
        ends = [days_of(label, self.config.series) for label in self.labels]
        known = [each for each in ends if each is not None]
        return (known[0][0], known[-1][1]) if known else None


def _mapped(config: Config, out: Path) -> dict[str, _Mapped]:
    """Return what is mapped by the name of its item, the latest period's first."""
    own = () if config.period is None else (config.period,)
    found = {STAC_ITEM.file: _Mapped(config, out, own, config.period)}
    for label, folder in period_folders(config, out).items():
        if folder != out:
            named = config.model_copy(update={"period": label})
            found[STAC_PERIOD.file.format(period=label)] = _Mapped(named, folder, (label,), label)
    for window, folder in window_folders(config, out):
        named = config.model_copy(update={"period": window.title})
        name = STAC_PERIOD.file.format(period=f"window_{window.name}")
        found[name] = _Mapped(named, folder, window.labels, f"window-{window.name}")
    return found


def _item(mapped: _Mapped, assets: dict[str, pystac.Asset], files: RasterFiles) -> pystac.Item:
    """Return the item of maps."""
    import pystac
    from pystac.extensions.file import FileExtension
    from pystac.extensions.projection import ProjectionExtension
    from pystac.extensions.raster import RasterExtension
    from pystac.extensions.version import ItemVersionExtension

    config, series = mapped.config, mapped.config.series
    rasters = [path for path in product_files(mapped.folder) if path.suffix == ".tif"]
    areas = mapped.folder / AREAS_GPKG.file
    written = datetime.fromtimestamp(max(int(p.stat().st_mtime) for p in rasters or [areas]), UTC)
    place = _place(rasters, areas, files)
    days = mapped.days
    item = pystac.Item(
        id=slug("-".join(filter(None, (config.name, mapped.name)))),
        geometry=place.geometry,
        bbox=place.bbox,
        # Counts of a named period have its days; others have no date but the maps' own.
        datetime=None if days else written,
        start_datetime=days[0] if days else None,
        end_datetime=days[1] if days else None,
        properties={
            "title": _title(config),
            "description": _about(config),
            "created": pystac.utils.datetime_to_str(written),
            "processing:level": "L4",
            "processing:lineage": _lineage(config),
            "processing:software": {
                "disagg": full_version(),
                "python": platform.python_version(),
                **library_versions(),
            },
        },
        stac_extensions=[_PROCESSING],
        assets=assets,
    )
    if series is not None:
        item.properties["disagg:forecast"] = not set(mapped.labels) <= set(series.periods)
    fields = [each.extra_fields for each in assets.values()]
    if any("bands" in each for each in fields):
        RasterExtension.add_to(item)
    placed = next((each for each in fields if "proj:code" in each), {})
    item.properties |= {key: placed[key] for key in _SHARED if key in placed}
    for extension in (ProjectionExtension, FileExtension):
        extension.add_to(item)
    version = content_version(assets)
    ItemVersionExtension.ext(item, add_if_missing=True).apply(version=version, deprecated=False)
    return item


def _collection(config: Config, items: Sequence[pystac.Item]) -> pystac.Collection:
    """Return the collection of items, the latest period's first."""
    import pystac

    item, times = items[0], [each.common_metadata for each in items]
    starts = [each.start_datetime for each in times if each.start_datetime]
    ends = [each.end_datetime for each in times if each.end_datetime]
    when = [min(starts, default=item.datetime), max(ends, default=item.datetime)]
    collection = pystac.Collection(
        id=slug(config.name),
        title=config.name,
        description=_about(config),
        extent=pystac.Extent(
            pystac.SpatialExtent([item.bbox or []]), pystac.TemporalExtent([when])
        ),
        license="other",  # that of the counts, which the run does not know
        keywords=["disease mapping", "disaggregation", config.response_kind.quantity],
        catalog_type=pystac.CatalogType.SELF_CONTAINED,
    )
    collection.summaries.add("processing:level", [item.properties["processing:level"]])
    if "proj:code" in item.properties:
        collection.summaries.add("proj:code", [item.properties["proj:code"]])
    return collection


def _place(rasters: list[Path], areas: Path, files: RasterFiles) -> Footprint:
    """Return the footprint of the maps; of the areas where a model maps no pixel."""
    if rasters:
        with files.open(rasters[0]) as source:
            return footprint(CRS.from_wkt(source.crs.to_wkt()), tuple(source.bounds))
    about = pyogrio.read_info(areas, layer=AREAS_LAYER, force_total_bounds=True)
    return footprint(CRS.from_user_input(about["crs"]), tuple(about["total_bounds"]))


def _title(config: Config) -> str:
    return config.name if config.period is None else f"{config.name}, {config.period}"


def _about(config: Config) -> str:
    response = config.response_kind
    spread = "with its uncertainty" if config.model.has_spread else NO_SPREAD
    return (
        f"{response.quantity.capitalize()}{response.in_unit(' ({})')} in every pixel, {spread}, "
        f"from {config.model.responses} of areas"
    )


def _lineage(config: Config) -> str:
    names = ", ".join(config.covariates)
    model = config.model
    return (
        f"Areas and their {config.response_kind.source}, covariates ({names}) and "
        f"{'population' if config.population else 'surface'} aligned to one grid; model "
        f"{model.kind} fitted to areas as sums over their pixels; pixels and areas predicted from "
        "its posterior; evaluated by cross-validation. run.json has the whole configuration and "
        "the fingerprints of all inputs."
    )

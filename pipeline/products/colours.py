"""Colour scales and styles of a run's rasters: one for each, shared where values compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from geo.writers.colours import Scale
from geo.writers.raster_files import RasterFiles
from geo.writers.styles import write_style
from pipeline.config.schema import Config
from pipeline.products.products import Layer, RasterProduct, layers, raster


def scales(
    directory: Path, wanted: Sequence[Layer], files: RasterFiles | None = None
) -> dict[str, Scale]:
    """Return the colour scale of each raster by its name, from the files in a directory.

    Parameters
    ----------
    directory : Path
    wanted : sequence of Layer
    files : RasterFiles, optional
        Open files; each is opened anew if not given.
    """
    scale_of = Scale.of_rasters if files is None else files.scale
    groups: dict[str, list[Layer]] = {}
    for layer in wanted:
        groups.setdefault(layer.product.stretch or layer.name, []).append(layer)
    found: dict[str, Scale] = {}
    for members in groups.values():
        paths = [directory / f"{layer.name}.tif" for layer in members]
        product = members[0].product
        scale = scale_of(paths, low=product.low, high=product.high, ramp=product.ramp)
        found |= {layer.name: scale for layer in members}
    return found


def write_styles(directory: Path, wanted: Sequence[Layer]) -> None:
    """Write a QGIS style beside each raster of a directory."""
    by_name = scales(directory, wanted)
    for layer in wanted:
        unit = "" if layer.unit == "1" else layer.unit
        write_style(directory / f"{layer.name}.tif", by_name[layer.name], unit)


def level_product(config: Config) -> RasterProduct:
    """Return the raster of the mean: of the rate, or of the probability."""
    return raster(config.response_kind.mean_map)


def raster_scale(
    config: Config, directory: Path, product: RasterProduct, files: RasterFiles | None = None
) -> Scale | None:
    """Return the colour scale of a raster; None where a directory does not have it.

    Parameters
    ----------
    config : Config
    directory : Path
    product : RasterProduct
    files : RasterFiles, optional
        See :func:`scales`.
    """
    if not (directory / product.file).is_file():
        return None
    members = [
        layer
        for layer in layers(config)
        if layer.product is product
        or (product.stretch and layer.product.stretch == product.stretch)
    ]
    return scales(directory, members, files)[Path(product.file).stem]

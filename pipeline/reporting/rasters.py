"""Rasters of the page: compressed pictures with a palette, and their legends."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rasterio.enums import Resampling

from geo.writers.colours import Scale
from geo.writers.raster_files import RasterFiles
from pipeline.config.schema import Config
from pipeline.products.colours import level_product, scales
from pipeline.products.periods import window_folders, window_layers
from pipeline.products.product_types import Layer
from pipeline.products.products import layers
from pipeline.reporting.words import number

#: Pixels of all pictures together: even if nothing could be compressed, the page has 16 MB.
PIXELS = 12_000_000
#: Colours of a picture; one more is transparent.
N_COLOUR = 255
LEVEL = 7  # of compression: 9 takes five times as long, for a hundredth of the bytes
COMPARISON = "compare.json"
OF_WINDOWS = ("rate_mean", "rate_sd")  # rasters of a window that the page has
CHANGES = ("difference_mean", "change_probability")  # rasters of a comparison


@dataclass(frozen=True)
class Picture:
    """A raster of the page.

    Attributes
    ----------
    name, title, unit : str
        Of the layer.
    uri : str
        The picture as a ``data:`` address.
    legend : list of tuple
        Colour and text of each break, the lowest first.
    palette : list of int
        Colours of the picture, red * 65536 + green * 256 + blue.
    values : list of str
        What each of them stands for.
    shrunk : float
        Side of a shown pixel over that of the raster's; 1 if none was left out.
    """

    name: str
    title: str
    unit: str
    uri: str
    legend: list[tuple[str, str]]
    palette: list[int]
    values: list[str]
    shrunk: float

    @classmethod
    def of(
        cls, name: str, title: str, unit: str, values: np.ndarray, scale: Scale, shrunk: float
    ) -> Picture:
        """Draw values (n_row, n_col) by a scale; NaN is transparent."""
        return cls(
            name,
            title,
            unit,
            data_uri(values, scale),
            shrunk=shrunk,
            **key_of(scale),
        )


def pictures(
    config: Config, directory: Path, files: RasterFiles, n_pixel: int = PIXELS
) -> list[Picture]:
    """Return a picture of every raster of a run, the mean first, of windows, and of the change.

    Parameters
    ----------
    config : Config
    directory : Path
        Has the rasters.
    files : RasterFiles
        Open files.
    n_pixel : int
        Pixels of all pictures together.
    """
    wanted = [
        each
        for each in [*layers(config), *layers(config, from_draws=True)]
        if (directory / f"{each.name}.tif").is_file()
    ]
    windows = window_folders(config, directory)
    limit = n_pixel // max(len(wanted) + len(windows) * len(OF_WINDOWS), 1)
    by_name = scales(directory, wanted, files)
    found = [_picture(each, directory, by_name, files, limit) for each in wanted]
    for window, folder in windows:
        of_window = window_layers(config, window)
        by_name = scales(folder, of_window, files)
        found += [
            _picture(each, folder, by_name, files, limit, f"{window.name}_")
            for each in of_window
            if each.name in OF_WINDOWS
        ]
    return [*found, *_changes(config, directory, files, limit)]


def _picture(
    layer: Layer,
    folder: Path,
    by_name: Mapping[str, Scale],
    files: RasterFiles,
    limit: int,
    before: str = "",
) -> Picture:
    """Return the picture of a raster in a folder; ``before`` is put before its name."""
    values, shrunk = read_limited(files, folder / f"{layer.name}.tif", limit)
    unit = "" if layer.unit == "1" else layer.unit
    title = layer.description[:1].upper() + layer.description[1:]
    name = f"{before}{layer.name}"
    return Picture.of(name, title, unit, values, by_name[layer.name], shrunk)


def comparison_of(config: Config, directory: Path) -> Path | None:
    """Return the folder of the run's comparison; None if there is none, or one of older maps.

    It is the output directory, or ``compare`` in it.
    """
    made = directory / level_product(config).file
    for folder in (directory, directory / "compare"):
        report = folder / COMPARISON
        if report.is_file():
            old = made.is_file() and report.stat().st_mtime < made.stat().st_mtime
            return None if old else folder
    return None


def _changes(config: Config, directory: Path, files: RasterFiles, limit: int) -> list[Picture]:
    """Return pictures of the change from another map, if the run has been compared with one."""
    folder = comparison_of(config, directory)
    level = directory / level_product(config).file
    if folder is None or not level.is_file():
        return []
    found = []
    for name in CHANGES:
        path = folder / f"{name}.tif"
        if not path.is_file() or _frame(files, path) != _frame(files, level):
            continue
        values, shrunk = read_limited(files, path, limit)
        if name == CHANGES[0]:
            far = files.scale([path], ramp="change").breaks
            end = max(abs(far[0]), abs(far[-1]))
        low, high = (-end, end) if name == CHANGES[0] else (0.0, 1.0)
        scale = files.scale([path], low=low, high=high, ramp="change")
        with files.open(path) as source:
            title, unit = source.descriptions[0] or name, source.units[0] or ""
        title, unit = f"Change: {title}", "" if unit == "1" else unit
        found.append(Picture.of(name, title, unit, values, scale, shrunk))
    return found


def _frame(files: RasterFiles, path: Path) -> tuple[Any, ...]:
    with files.open(path) as source:
        return source.shape, source.transform, source.crs


def read_limited(files: RasterFiles, path: Path, limit: int) -> tuple[np.ndarray, float]:
    """Read a raster with ``limit`` pixels at most, averages of its own; return the side of one."""
    with files.open(path) as source:
        side = max(1.0, float(np.sqrt(source.height * source.width / limit)))
        shape = (max(1, int(source.height / side)), max(1, int(source.width / side)))
        # A whole raster is read as it is: averaging by 1 would only take time.
        how = Resampling.nearest if side == 1.0 else Resampling.average
        band = source.read(1, out_shape=shape, resampling=how, masked=True)
    return band.astype(np.float64).filled(np.nan), side


def key_of(scale: Scale) -> dict[str, Any]:
    """Return ``legend``, ``palette`` and ``values`` of a scale, as :class:`Picture` has them."""
    return {
        "legend": legend(scale),
        "palette": (_palette(scale).astype(np.int64) @ [1 << 16, 1 << 8, 1]).tolist(),
        "values": _stand_for(scale),
    }


def shade(values: np.ndarray, scale: Scale) -> np.ndarray:
    """Return the place of each value among the colours of a scale, int64; 0 for NaN."""
    places = np.interp(np.nan_to_num(values), scale.breaks, scale.places)
    return np.round(places * (N_COLOUR - 1)).astype(np.int64)


def data_uri(values: np.ndarray, scale: Scale) -> str:
    """Return values (n_row, n_col) as a picture with a palette, as a ``data:`` address.

    Colours are those of the scale to a 255th of its length; NaN is transparent.
    """
    index = np.where(np.isfinite(values), 1 + shade(values, scale), 0)
    image = Image.fromarray(index.astype(np.uint8))
    image.putpalette([0, 0, 0, *_palette(scale).ravel().tolist()])
    buffer = io.BytesIO()
    image.save(buffer, "PNG", transparency=0, compress_level=LEVEL)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _stand_for(scale: Scale) -> list[str]:
    """Return the value of each colour along a scale as a text, (255,)."""
    values = np.interp(np.linspace(0.0, 1.0, N_COLOUR), scale.places, scale.breaks)
    texts = [number(float(value)) for value in values]
    texts[0] = f"\u2264 {texts[0]}" if scale.below else texts[0]
    texts[-1] = f"\u2265 {texts[-1]}" if scale.above else texts[-1]
    return texts


def _palette(scale: Scale) -> np.ndarray:
    """Return the colours along a scale, (255, 3) uint8."""
    parts = np.array([[int(c[k : k + 2], 16) for k in (1, 3, 5)] for c in scale.colours])
    at = np.linspace(0.0, 1.0, N_COLOUR)
    mixed = [np.interp(at, scale.places, part) for part in parts.T]
    return np.round(np.stack(mixed, axis=1)).astype(np.uint8)


def legend(scale: Scale) -> list[tuple[str, str]]:
    """Return colour and text of each break of a scale, the lowest first."""
    return list(zip(scale.colours, scale.labels(), strict=True))


def area_colours(values: Any, scale: Scale) -> list[str | None]:
    """Return the colour of each value (n,); None where it is not known."""
    known = np.asarray(values, dtype=np.float64)
    return [scale.colour(float(v)) if np.isfinite(v) else None for v in known]

"""Maps of several periods: where they lie, and which belong together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.schema import Config
from pipeline.config.windows import Window, windows_of
from pipeline.products.product_types import Layer
from pipeline.products.products import ANOMALY, OUTBREAK, layers

PERIODS = "periods"
WINDOWS = "windows"
#: Maps that are made in one pass: what holds still is evaluated once for them, and what the
#: posterior of each period takes is in memory for all.
TOGETHER = 4
#: Past periods whose covariates the maps of a forecast are evaluated with, at most: each costs a
#: map. Few of them have the spread of many.
MOST_MAPPED = 6
#: Families of rasters that a window has: those of a rate, and no totals.
_OF_RATES = ("rate", "relative")


@dataclass(frozen=True)
class WindowLayer(Layer):
    """A raster of one period, of the mean over a window.

    Attributes
    ----------
    title : str
        Of the window.
    """

    title: str

    @property
    def description(self) -> str:
        """Description of the band."""
        return f"{super().description}, {self.title}"


def window_layers(config: Config, window: Window, store: Any = None) -> list[WindowLayer]:
    """Return the rasters of a window: of those of one period, all that a mean rate has.

    Parameters
    ----------
    config : Config
    window : Window
    store : BagStore, optional
        See :func:`pipeline.products.products.layers`.
    """
    return [
        WindowLayer(each.product, each.context, window.title)
        for each in layers(config, store)
        if each.product.shows in _OF_RATES
        and not (each.product.conditioned or each.product.of_pixels)
    ]


def window_folders(config: Config, out: Path) -> list[tuple[Window, Path]]:
    """Return the windows that are mapped, with their folders in the output directory."""
    series, output = config.series, config.output
    if series is None:
        return []
    found, _ = windows_of(series, output.windows, output.forecast)
    folders = [(window, out / WINDOWS / window.name) for window in found]
    return [(window, folder) for window, folder in folders if folder.is_dir()]


def period_folders(config: Config, out: Path) -> dict[str, Path]:
    """Return the folder of each period that is mapped, by rising time; none for one period.

    Parameters
    ----------
    config : Config
    out : Path
        Output directory: it has the latest period itself.
    """
    series = config.series
    if series is None:
        return {}
    labels = (*series.periods, *series.following(config.output.forecast))
    folders = {label: out / PERIODS / label for label in labels}
    if config.period in folders:
        folders[config.period] = out
    return {label: folder for label, folder in folders.items() if folder.is_dir()}


def over_time(config: Config) -> list[Layer]:
    """Return the layers that are shown over time: the mean, and what is unusual of the season."""
    names = (config.response_kind.mean_map, Path(OUTBREAK.file).stem, Path(ANOMALY.file).stem)
    known = {each.name: each for each in (*layers(config), *layers(config, from_draws=True))}
    return [known[name] for name in names if name in known]


def rasters_over_time(config: Config, out: Path) -> list[tuple[Layer, dict[str, Path]]]:
    """Return the layers of which there are rasters of two periods or more, and these."""
    folders, found = period_folders(config, out), []
    for layer in over_time(config):
        paths = {label: folder / f"{layer.name}.tif" for label, folder in folders.items()}
        there = {label: path for label, path in paths.items() if path.is_file()}
        if len(there) > 1:
            found.append((layer, there))
    return found

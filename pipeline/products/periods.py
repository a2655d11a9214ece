"""Maps of several periods: where they lie, and which belong together."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.schema import Config
from pipeline.products.product_types import Layer
from pipeline.products.products import ANOMALY, OUTBREAK, layers

PERIODS = "periods"


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

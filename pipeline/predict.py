"""The predict stage: the posterior over the whole grid, tile by tile, and over the areas.

Everything is written into a hidden directory beside the results and moved over at the end, file by
file, so that a reader never sees half a raster and a run that dies leaves the last maps standing.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import models
from geo.boundary import read_areas
from geo.errors import InputError, Problem
from geo.geotiff import TiledWriter, write_style
from geo.grid import Grid, Tile, coords_km
from models.device import DEVICE_PIXELS, Wanted, find_device, placed
from models.xp import Device, to_host
from pipeline.areas import draw_areas, tabulate_areas, write_areas
from pipeline.config import Config
from pipeline.cube import open_cube, read_part
from pipeline.fitting import n_thread, where_here
from pipeline.kinds import model_settings
from pipeline.label_preview import render_label_preview
from pipeline.labels import LabelPredictor, tabulate_labels
from pipeline.ordered import map_in_order
from pipeline.preview import render_preview
from pipeline.progress import Silent
from pipeline.signals import endings_wait
from pipeline.store import BagStore

#: Pixels predicted at once: with 400 inducing points about 50 MB a thread.
CHUNK_PIXELS = 16384


@dataclass(frozen=True)
class Layer:
    """One raster of the results.

    Attributes
    ----------
    name : str
        Of the file, without its suffix.
    description, unit : str
        Written into the band.
    values : callable
        From a prediction of n_pix pixels and their people (n_pix,) to (n_pix,) values.
    """

    name: str
    description: str
    unit: str
    values: Callable[[Any, np.ndarray], np.ndarray]


def predict_stage(config: Config, progress: Any) -> dict[str, Any]:
    """Write the maps, the table of areas and the preview.

    Parameters
    ----------
    config : Config
        Its ``output.dir`` holds ``work/`` with the cube, the bag store and the fitted model.
    progress : Progress
        Told of tiles and areas as they are done.

    Returns
    -------
    dict
        ``n_pix`` predicted, ``files`` written, total of observed and fitted counts, and the share
        of areas inside their predictive interval.

    Raises
    ------
    InputError
        If the areas can no longer be read.
    StoreError
        If the bag store is absent or damaged.
    """
    out = Path(config.output.dir)
    work = out / "work"
    model = models.load(work / "model")
    store = BagStore.open(work / "bags.zarr")
    tags = _tags(config, store, model)
    with _staging(out) as staging:
        n_pix = 0
        if "pixels" in model.predicts:
            n_pix = predict_raster(
                model,
                work / "grid.zarr",
                staging,
                layers(config),
                mask=config.output.mask,
                tags=tags,
                progress=progress,
                n_thread=n_thread(config),
                **where_here(config),
            )
        with progress.task("areas", store.n_bag) as task:
            table = _table(config, model, store, task.advance)
        write_areas(_areas(config), table, config.areas.id, staging)
        preview = staging / "preview.png"
        if config.labels is None:
            interval, unit = config.output.interval, rate_unit(config)
            render_preview(staging, preview, config.name, interval, unit)
        else:
            render_label_preview(staging, preview, config.name, config.output.interval)
        files = _publish(staging, out)
    if "pixels" not in model.predicts:
        progress.log(
            f"predict: {config.model.kind} labels areas alone, and repeats the labels of those it "
            "has seen: evaluation.json says how it does on others"
        )
    return {"n_pix": n_pix, "n_areas": len(table), **_totals(table), "files": files}


def _table(
    config: Config, model: Any, store: BagStore, advance: Callable[[int], None]
) -> pd.DataFrame:
    """Say what the model makes of each area."""
    interval, ids = config.output.interval, list(store.ids)
    if config.labels is not None:
        said = LabelPredictor(store, interval, n_thread(config)).predict(model, advance=advance)
        return tabulate_labels(said, ids)
    draws = draw_areas(
        model,
        store,
        config.output.draws,
        config.fit.seed,
        advance=advance,
        n_thread=n_thread(config),
    )
    return tabulate_areas(draws, ids, interval, config.output.rate_per)


def _totals(table: pd.DataFrame) -> dict[str, float]:
    observed = table["observed"]
    if "probability" in table:
        return {
            "observed_positive": float(observed.sum()),
            "expected_positive": float(table["probability"].sum()),
        }
    inside = (table["count_lower"] <= observed) & (observed <= table["count_upper"])
    return {
        "observed_total": float(observed.sum()),
        "fitted_total": float(table["fitted"].sum()),
        "share_inside_interval": float(inside.mean()),
    }


def rate_unit(config: Config) -> str:
    """Say what a rate is: ``cases per 1,000 people``, or per km2 without a population."""
    per = f"{config.output.rate_per:,g}" if config.output.rate_per != 1 else ""
    what = "people" if config.population is not None else "km2"
    return " ".join(part for part in ("cases per", per, what) if part)


def layers(config: Config) -> list[Layer]:
    """List the rasters that a configuration asks for.

    Rates are per ``output.rate_per`` people; ``lower`` and ``upper`` bound the central
    ``output.interval`` of the rate (or probability) itself, without the noise of counts.
    """
    per, interval = config.output.rate_per, config.output.interval
    low, high = (1 - interval) / 2, (1 + interval) / 2
    unit, percent = rate_unit(config), f"{100 * interval:g} %"
    if config.labels is not None:
        return [
            Layer("probability_mean", "probability to be positive", "1", lambda p, _: p.mean),
            Layer(
                "probability_sd", "standard deviation of the probability", "1", lambda p, _: p.sd
            ),
            Layer(
                "probability_lower",
                f"lower end of the central {percent} interval of the probability",
                "1",
                lambda p, _: p.quantile(low),
            ),
            Layer(
                "probability_upper",
                f"upper end of the central {percent} interval of the probability",
                "1",
                lambda p, _: p.quantile(high),
            ),
        ]
    result = [
        Layer("rate_mean", "mean rate", unit, lambda p, _: per * p.mean),
        Layer("rate_sd", "standard deviation of the rate", unit, lambda p, _: per * p.sd),
        Layer(
            "rate_lower",
            f"lower end of the central {percent} interval of the rate",
            unit,
            lambda p, _: per * p.quantile(low),
        ),
        Layer(
            "rate_upper",
            f"upper end of the central {percent} interval of the rate",
            unit,
            lambda p, _: per * p.quantile(high),
        ),
        Layer("rate_median", "median rate", unit, lambda p, _: per * p.quantile(0.5)),
        Layer("cases_mean", "expected cases", "cases", lambda p, people: p.mean * people),
    ]
    for threshold in dict.fromkeys(config.output.exceedance):
        result.append(
            Layer(
                f"exceedance_{threshold:g}",
                f"probability that the rate is above {threshold:g} {unit}",
                "1",
                _exceedance(threshold / per),
            )
        )
    return result


def _exceedance(rate: float) -> Callable[[Any, np.ndarray], np.ndarray]:
    return lambda prediction, _: prediction.exceed(rate)


def predict_tile(
    model: Any,
    cube: Any,
    grid: Grid,
    tile: Tile,
    wanted: list[Layer],
    mask: str,
    device: Device | None = None,
) -> np.ndarray:
    """Predict one tile.

    Parameters
    ----------
    model : fitted model
        With ``predict_pixels``.
    cube : zarr group
        ``covariates`` (n_feat, n_row, n_col), ``population`` and ``coverage`` (n_row, n_col).
    grid : Grid
        Of the cube.
    tile : Tile
        What to predict.
    wanted : list of Layer
        What of it.
    mask : {"areas", "all"}
        Pixels in areas only, or every pixel with all its covariates.
    device : Device, optional
        Where the pixels are computed; the host where not given.

    Returns
    -------
    (n_layer, n_row, n_col) float32 array
        NaN where there is no prediction.
    """
    result = np.full((len(wanted), tile.n_row, tile.n_col), np.nan, dtype=np.float32)
    rows, cols = tile.slices
    inside = np.ones((tile.n_row, tile.n_col), dtype=bool)
    if mask == "areas":
        inside = read_part(cube, "coverage", rows, cols) > 0
        if not inside.any():
            return result
    x = read_part(cube, "covariates", slice(None), rows, cols)
    valid = inside & np.isfinite(x).all(axis=0)
    row, col = np.nonzero(valid)
    people = read_part(cube, "population", rows, cols).astype(np.float64)
    step = CHUNK_PIXELS if device is None else DEVICE_PIXELS
    for start in range(0, row.shape[0], step):
        at = row[start : start + step], col[start : start + step]
        with placed(device) as put:
            prediction = model.predict_pixels(
                put(x[:, at[0], at[1]].T), put(coords_km(grid, tile.row + at[0], tile.col + at[1]))
            )
            there = put(people[at])
            for number, layer in enumerate(wanted):
                result[number, at[0], at[1]] = to_host(layer.values(prediction, there))
    return result


def predict_raster(
    model: Any,
    cube_path: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    wanted: list[Layer],
    *,
    mask: str = "areas",
    tags: dict[str, str] | None = None,
    progress: Any = None,
    n_thread: int | None = None,
    device: Wanted = "cpu",
    device_memory: int | None = None,
) -> int:
    """Stream an aligned grid through a model into cloud-optimised GeoTIFFs, tile by tile.

    Parameters
    ----------
    model : fitted model
        With ``predict_pixels``.
    cube_path : path-like
        ``work/grid.zarr``, as ingest leaves it.
    directory : path-like
        Where ``NAME.tif`` and ``NAME.qml`` of each layer go.
    wanted : list of Layer
        What to map; :func:`layers` lists those of a configuration.
    mask : {"areas", "all"}
        Pixels in areas only, or every pixel with all its covariates.
    tags : dict, optional
        For every file.
    progress : Progress, optional
    n_thread : int, optional
        Threads over tiles; one a core where not given. It changes no number.
    device : {"cpu", "gpu", "auto"}
        What computes the pixels.
    device_memory : int, optional
        Bytes of the GPU's memory that we may fill.

    Returns
    -------
    int
        Pixels predicted.
    """
    directory = Path(directory)
    progress = progress or Silent()
    cube = open_cube(cube_path)
    described: Any = cube.attrs["grid"]
    grid = Grid.from_dict(described)
    tiles = list(grid.tiles(int(cube.attrs["tile"])))
    n_pix = 0
    found = find_device(device, device_memory) if model.on_device else None

    def compute(tile: Tile) -> np.ndarray:
        return predict_tile(model, cube, grid, tile, wanted, mask, found)

    with contextlib.ExitStack() as stack:
        task = stack.enter_context(progress.task("predict", len(tiles)))
        writers = [
            stack.enter_context(
                TiledWriter(
                    directory / f"{layer.name}.tif",
                    grid,
                    description=layer.description,
                    unit=layer.unit,
                    tags=tags or {},
                )
            )
            for layer in wanted
        ]
        for tile, values in zip(tiles, map_in_order(compute, tiles, n_thread), strict=True):
            for writer, band in zip(writers, values, strict=True):
                writer.write(tile, band)
            n_pix += int(np.isfinite(values[0]).sum())
            task.advance(1)
    for layer in wanted:
        probability = layer.name.startswith(("exceedance", "probability"))
        write_style(
            directory / f"{layer.name}.tif",
            low=0.0 if probability else None,
            high=1.0 if probability and layer.name != "probability_sd" else None,
            label="" if probability else layer.unit,
        )
    return n_pix


def _tags(config: Config, store: BagStore, model: Any) -> dict[str, str]:
    """Describe the run, for the rasters' tags."""
    own = {}
    if config.labels is None:
        own = {
            "likelihood": config.model.likelihood,
            "link": config.model.link,
            "rate_per": f"{config.output.rate_per:g}",
        }
    return {
        "TIFFTAG_SOFTWARE": f"disagg {software_version()}",
        "name": config.name,
        "model": config.model.kind,
        "model_parameters": json.dumps(model_settings(config, model), sort_keys=True),
        "interval": f"{config.output.interval:g}",
        "fingerprint": store.fingerprint,
        **own,
    }


def software_version() -> str:
    """Version of this software, as installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("disagg")
    return "not installed"


def _areas(config: Config) -> Any:
    problems: list[Problem] = []
    areas = read_areas(config.areas.path, config.areas.layer, config.areas.id, "areas", problems)
    if areas is None:
        raise InputError(problems)
    return areas


@contextlib.contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """Give a hidden, empty directory in ``out``, gone afterwards whatever happens."""
    staging = out / ".predict.partial"
    shutil.rmtree(staging, ignore_errors=True)  # of a run that was killed
    staging.mkdir(parents=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: Path, out: Path) -> list[str]:
    """Move every file to where users look, and drop maps that are no longer asked for."""
    names = sorted(path.name for path in staging.iterdir() if path.is_file())
    # run.json vouches for the maps beside it: it goes before the first of them changes, and comes
    # back when the run has ended well. Where it is not, maps of two runs may stand side by side.
    (out / "run.json").unlink(missing_ok=True)
    with endings_wait():
        _move(staging, out, names)
    return names


def _move(staging: Path, out: Path, names: list[str]) -> None:
    for name in names:
        (staging / name).replace(out / name)
    # A threshold taken out of the configuration, or another kind of model, must not leave the map
    # of an older fit behind.
    for name in ("exceedance", "probability", "rate", "cases"):
        for path in [*out.glob(f"{name}_*.tif"), *out.glob(f"{name}_*.qml")]:
            if path.name not in names:
                path.unlink()
    for path in out.glob("*.tif.aux.xml"):  # statistics that GIS programs keep of older values
        path.unlink()

"""What a run fetches of inputs at addresses, and how large their local copies become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from geo.grids.grid import Grid, Tile
from geo.sources.align import source_windows
from geo.sources.registry import source_of
from pipeline.config.schema import Config
from pipeline.ingest.balance import counts_outside
from pipeline.ingest.inputs import Inputs
from pipeline.ingest.raster_sample import N_SAMPLED
from pipeline.storage.windows import copy_at
from pipeline.store.aligned_grid import Layer


def foresee_copies(config: Config, inputs: Inputs, strips: Sequence[Tile]) -> Mapping[str, int]:
    """Return bytes of copies, from the headers of rasters alone.

    Parameters
    ----------
    config : Config
        With local inputs (:func:`pipeline.config.local_inputs.local_inputs`).
    inputs : Inputs
    strips : sequence of Tile
        Of the grid: what the areas meet.

    Returns
    -------
    dict of str to int
        ``copies``: of all local copies after ingest and evaluation; ``fetched``: what is still to
        come. At most, as rasters by windows also have what other commands read.
    """
    paths = {path: Path(path) for path in config.input_paths().values()}
    grid, read = inputs.grid, dict[str, list[tuple[list[Tile], int]]]()
    layers = [*inputs.covariates.values(), *([inputs.population] if inputs.population else [])]
    if config.truth is not None and copy_at(config.truth.path):
        source = source_of(config.truth.path, config.truth.choice, config.truth.header)
        layers.append(Layer("truth", source, "auto"))
    for layer in layers:
        if grid is None or copy_at(layer.source.path) is None:
            continue
        whole = layer is inputs.population and counts_outside(layer, grid, inputs.areas)
        windows = [Tile(0, 0, *layer.source.shape)] if whole else _windows(layer, grid, strips)
        read.setdefault(layer.source.path, []).append((windows, layer.source.band_of().number))
    held = fetched = 0
    cache = (config.storage.open().scratch_dir / "inputs").resolve()
    for name, path in paths.items():
        copy = copy_at(name)
        if copy is not None:
            here, missing = copy.n_bytes(read.get(name, []))
            held, fetched = held + here, fetched + missing
        elif cache in path.resolve().parents:
            held += sum(each.stat().st_size for each in path.parent.iterdir())
    return {"copies": held, "fetched": fetched}


def _windows(layer: Layer, grid: Grid, strips: Sequence[Tile]) -> list[Tile]:
    """Return the windows of a raster that ingest and the check of its values read, at most."""
    found = [
        window
        for strip in strips
        for window in source_windows(layer.source, grid, strip, layer.resampling)
    ]
    if not found:
        return []
    top, left = min(w.row for w in found), min(w.col for w in found)
    bottom, right = max(w.row + w.n_row for w in found), max(w.col + w.n_col for w in found)
    around = Tile(top, left, bottom - top, right - left)
    # A sample of values is drawn from all of a small window (pipeline.ingest.raster_sample).
    return [around] if around.n_row * around.n_col <= N_SAMPLED else found

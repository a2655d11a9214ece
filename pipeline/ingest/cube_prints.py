"""Fingerprints of the values of cubes, by period: a cube grows, and its past stays.

The fingerprint of a file changes with each month that it is extended by. That of the values of a
period, where the run reads them, changes only with them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from geo.core.errors import Problem
from geo.grids.grid import Grid, Tile
from geo.sources.align import source_windows
from geo.sources.source import Source
from pipeline.config.context import StageContext
from pipeline.config.schema import Config, later_key, path_key
from pipeline.ingest.inputs import open_layers
from pipeline.ingest.layer_keys import described_of, head_of, layers_of
from pipeline.ingest.table_layers import AreaTables
from pipeline.storage.files import write_json
from pipeline.storage.fingerprint import fingerprint_value

#: What is known of cubes, in the output directory: no value is read again of a file that stays.
CUBES_FILE = "work/cubes.json"
N_ROW = 512  # rows read at once


@dataclass
class CubePrints:
    """The fingerprints of the cubes of a run.

    Parameters
    ----------
    path : Path
        Where they are kept.
    grid : Grid
        Of the run: only what it is made from is read.
    """

    path: Path
    grid: Grid
    _known: dict[str, str] = field(default_factory=dict)
    _kept: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what is known."""
        if self.path.is_file():
            self._known = dict(json.loads(self.path.read_text(encoding="utf-8")))

    def of(
        self,
        config: Config,
        name: str,
        file: str,
        described: Mapping[str, Any],
        problems: list[Problem],
    ) -> str:
        """Return the fingerprint of a cube's values in the period of a configuration.

        Parameters
        ----------
        config : Config
            Of the period.
        name : str
            Of the covariate, or ``population``.
        file : str
            Fingerprint of the file.
        described : mapping
            The section, without its path.
        problems : list of Problem
            Appended to if the cube does not have the period.
        """
        key = fingerprint_value([file, dict(described), self.grid.to_dict()])
        if key not in self._kept:
            self._kept[key] = self._known.get(key) or self._read(config, name, problems)
        return self._kept[key]

    def write(self) -> None:
        """Keep what is known."""
        write_json(self.path, {key: value for key, value in self._kept.items() if value})

    def _read(self, config: Config, name: str, problems: list[Problem]) -> str:
        covariates, population = open_layers(config, [name], problems)
        layer = covariates.get(name) or population
        if layer is None or layer.source.crs is None:
            return ""
        return _values(layer.source, self.grid, layer.resampling)


def moving_print(
    context: StageContext,
    label: str,
    name: str,
    cubes: CubePrints,
    tables: AreaTables | None,
    problems: list[Problem],
) -> list[Any]:
    """Return what the fingerprint of something that moves is made of, in one period.

    Parameters
    ----------
    context : StageContext
    label : str
        The period.
    name : str
        Of the covariate, or ``population``.
    cubes : CubePrints
        What is known of the values of cubes; more is added.
    tables : AreaTables or None
        Of covariates that are tables.
    problems : list of Problem
        Appended to.

    Returns
    -------
    list
        The fingerprint of the values, "" if they cannot be read; the section without its path; of
        a population between those of two years, that of the later one and the share of it.
    """
    config, given = context.config, context.inputs
    own = config.at(label)
    section = layers_of(own)[name]
    key = head_of(name) if label == config.period else f"{head_of(name)}.{label}"
    file, described = given.get(path_key(key, section), ""), described_of(section)
    if tables is not None and name != "population" and section.table is not None:
        values = tables.values(own, name, problems)
        file = "" if values is None else fingerprint_value(values.tolist())
    elif section.aggregate is not None:
        file = cubes.of(own, name, file, described, problems)
    later = own.later_people() if name == "population" else None
    more = [] if later is None else [given.get(later_key(key), ""), later[1]]
    return [file, described, *more]


def _values(source: Source, grid: Grid, resampling: str) -> str:
    """Hash the values of a source that a grid is made from."""
    about, digest = source.describe(), hashlib.blake2b(digest_size=16)
    crs = "" if about.crs is None else about.crs.to_wkt()
    digest.update(json.dumps([crs, list(about.transform), about.shape, about.unit]).encode())
    for tile in source_windows(source, grid, grid.whole, resampling):
        digest.update(json.dumps([tile.row, tile.col, tile.n_row, tile.n_col]).encode())
        for row in range(tile.row, tile.row + tile.n_row, N_ROW):
            n_row = min(N_ROW, tile.row + tile.n_row - row)
            values = source.read(Tile(row, tile.col, n_row, tile.n_col))
            digest.update(np.ascontiguousarray(values + 0.0).tobytes())
    return digest.hexdigest()


def joined(problems: Sequence[Problem]) -> list[Problem]:
    """Return one problem of each place: a cube that ends lacks every period after it."""
    first: dict[str, Problem] = {}
    more: dict[str, int] = {}
    for each in problems:
        more[each.place] = more.get(each.place, -1) + 1
        first.setdefault(each.place, each)
    return [
        replace(each, found=f"{each.found}, and so for {n} more period{'s' * (n > 1)}")
        if (n := more[place])
        else each
        for place, each in first.items()
    ]

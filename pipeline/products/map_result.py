"""What the predict stage hands to the tables of levels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.schema import Config
from pipeline.products.area_factors import AreaFactors, TileFactors
from pipeline.products.exposures import Exposures
from pipeline.products.tile_pixels import TileReader


@dataclass(frozen=True)
class MapResult:
    """What all products of the drawn functions are made from.

    Attributes
    ----------
    config : Config
    reader : TileReader
        Of the areas of every level.
    functions : RateDraws
        The functions that ``areas.csv`` was drawn from.
    limits : (2, n_feat) array
        Of the covariates in the training.
    directory : Path
        Holds the rasters.
    tags : dict of str
    n_thread : int
    factors : AreaFactors
        What the counts of the areas add to the surface.
    exposures : Exposures, optional
        Where the exposure is not the people.
    """

    config: Config
    reader: TileReader
    functions: Any
    limits: np.ndarray
    directory: Path
    tags: dict[str, str]
    n_thread: int | None
    factors: AreaFactors
    exposures: Exposures | None = None

    @cached_property
    def tile_factors(self) -> TileFactors:
        """Factors of the rates of the training areas."""
        exposure = None if self.exposures is None else self.exposures.factor
        return self.factors.of_tiles(list(self.reader.levels[0].ids), exposure)

"""What the predict stage hands to the tables of levels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.config.schema import Config
from pipeline.prediction.area_factors import AreaFactors


@dataclass(frozen=True)
class MapResult:
    """What the predict stage has made before the levels.

    Attributes
    ----------
    config : Config
    model : fitted model
    functions : RateDraws
        The functions that ``areas.csv`` was drawn from.
    cube : Place
        The aligned grid.
    areas : GeoDataFrame
        The training areas.
    table : DataFrame
        That of ``areas.csv``.
    limits : (2, n_feat) array
        Of the covariates in the training.
    directory : Path
        Holds the rasters.
    tags : dict of str
    n_thread : int
    factors : AreaFactors, optional
        What the counts of the areas add to the surface.
    """

    config: Config
    model: Any
    functions: Any
    cube: Any
    areas: Any
    table: pd.DataFrame
    limits: np.ndarray
    directory: Path
    tags: dict[str, str]
    n_thread: int | None
    factors: AreaFactors | None = None

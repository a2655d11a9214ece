"""The stages of a run, what each reads and what it leaves."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.config.context import StageContext

StageFunction = Callable[[StageContext], dict[str, Any]]


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    Parameters
    ----------
    name : str
        As the command line says it.
    function : str
        ``module:function``, imported when the stage runs.
    config : tuple of str
        Keys of the configuration that change what the stage does.
    files : tuple of str
        Configuration keys (or their first words) whose files the stage reads.
    needs : tuple of str
        Paths in the output directory that an earlier stage must have left.
    outputs : tuple of str
        Glob patterns, in the output directory, of what the stage leaves.
    """

    name: str
    function: str
    config: tuple[str, ...]
    files: tuple[str, ...]
    needs: tuple[str, ...]
    outputs: tuple[str, ...]

    def load(self) -> StageFunction:
        """Import the stage's function."""
        module, _, function = self.function.partition(":")
        loaded: StageFunction = getattr(importlib.import_module(module), function)
        return loaded


_BAGS, _CUBE, _MODEL = "work/bags.zarr", "work/grid.zarr", "work/model"


STAGES = {
    stage.name: stage
    for stage in (
        Stage(
            "ingest",
            "pipeline.ingest.stage:ingest",
            config=(
                "areas",
                "counts",
                "period",
                "labels",
                "population",
                "covariates",
                "grid",
                "fit.seed",
                "output.mask",
            ),
            files=("areas", "counts", "labels", "population", "covariates", "grid"),
            needs=(),
            outputs=(_CUBE, _BAGS),
        ),
        Stage(
            "fit",
            "pipeline.training.stage:fit_stage",
            config=("model", "fit"),
            files=(),
            needs=(_BAGS,),
            outputs=(_MODEL,),
        ),
        Stage(
            "predict",
            "pipeline.prediction.stage:predict_stage",
            config=("name", "areas", "fit.seed", "output"),
            files=("areas",),
            needs=(_CUBE, _BAGS, _MODEL),
            outputs=(
                "rate_*.tif",
                "cases_*.tif",
                "exceedance_*.tif",
                "probability_*.tif",
                "*.qml",
                "areas.gpkg",
                "areas.csv",
                "preview.png",
            ),
        ),
        Stage(
            "evaluate",
            "pipeline.evaluation.stage:evaluate_stage",
            config=("name", "model", "fit", "output.draws", "output.interval", "evaluate", "truth"),
            files=("evaluate", "truth"),
            needs=(_BAGS, _MODEL),
            outputs=("evaluation.json",),
        ),
    )
}
"""The stages of a run, in order."""


MAKER = {output: stage.name for stage in STAGES.values() for output in stage.outputs}

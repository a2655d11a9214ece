"""The stages of a run, what each reads and what it leaves."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.config.context import StageContext
from pipeline.prediction.products import output_patterns

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
    leaves : tuple of str
        Paths in the output directory of what the stage leaves for later stages.
    """

    name: str
    function: str
    config: tuple[str, ...]
    files: tuple[str, ...]
    needs: tuple[str, ...]
    leaves: tuple[str, ...] = ()

    @property
    def outputs(self) -> tuple[str, ...]:
        """Glob patterns, in the output directory, of all that the stage leaves."""
        return *self.leaves, *self.products

    @property
    def products(self) -> tuple[str, ...]:
        """Glob patterns, in the output directory, of what the stage leaves for users."""
        return output_patterns(self.name)

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
            leaves=(_CUBE, _BAGS),
        ),
        Stage(
            "fit",
            "pipeline.training.stage:fit_stage",
            config=("model", "fit"),
            files=(),
            needs=(_BAGS,),
            leaves=(_MODEL,),
        ),
        Stage(
            "predict",
            "pipeline.prediction.stage:predict_stage",
            config=("name", "areas", "fit.seed", "output"),
            files=("areas",),
            needs=(_CUBE, _BAGS, _MODEL),
        ),
        Stage(
            "evaluate",
            "pipeline.evaluation.stage:evaluate_stage",
            config=("name", "model", "fit", "output.draws", "output.interval", "evaluate", "truth"),
            files=("evaluate", "truth"),
            needs=(_BAGS, _MODEL),
        ),
    )
}
"""The stages of a run, in order."""


MAKER = {path: stage.name for stage in STAGES.values() for path in stage.leaves}

"""The stages of a run, with their inputs and outputs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.config.catalogue import model_class
from pipeline.config.context import StageContext
from pipeline.config.schema import Config
from pipeline.products.products import output_patterns, product_functions
from pipeline.responses.registry import RESPONSES

StageFunction = Callable[[StageContext], dict[str, Any]]


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    Parameters
    ----------
    name : str
        Name of the command.
    function : str
        ``module:function``, imported when the stage runs.
    config : tuple of str
        Keys of the configuration that affect the result; ``-a.b`` for a key of ``a`` that does not.
    files : tuple of str
        Sections of the configuration whose files the stage reads.
    needs : tuple of str
        Outputs of earlier stages, in the output directory.
    leaves : tuple of str
        Outputs for later stages, in the output directory.
    may_need, may_leave : tuple of str
        The same, of outputs that some runs have and others have not.
    products_of : tuple of str
        Earlier stages whose outputs for users the stage reads, as far as they are there.
    also : tuple of str
        Glob patterns of files in the output directory that it reads where they are.
    keeps : tuple of str
        Directories, in the output directory, of what an interrupted run of it goes on from.
    """

    name: str
    function: str
    config: tuple[str, ...]
    files: tuple[str, ...]
    needs: tuple[str, ...]
    leaves: tuple[str, ...] = ()
    may_need: tuple[str, ...] = ()
    may_leave: tuple[str, ...] = ()
    products_of: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()

    @property
    def makers(self) -> tuple[str, ...]:
        """Names of the stages whose outputs it reads."""
        return tuple(dict.fromkeys((*(STAGE_OF[need] for need in self.needs), *self.products_of)))

    @property
    def reads(self) -> tuple[str, ...]:
        """Glob patterns of the products that it reads, in the output directory."""
        made = (pattern for stage in self.products_of for pattern in output_patterns(stage))
        return *made, *self.also

    @property
    def outputs(self) -> tuple[str, ...]:
        """Glob patterns of all outputs, in the output directory."""
        return *self.leaves, *self.may_leave, *self.products

    @property
    def products(self) -> tuple[str, ...]:
        """Glob patterns of the outputs for users, in the output directory."""
        return output_patterns(self.name)

    def registered(self, config: Config) -> list[Callable[..., Any]]:
        """Return what the stage takes from registries: products, responses, class of the model."""
        models = [model_class(config.model.kind)] if _MODEL in (*self.needs, *self.leaves) else []
        return [*product_functions(self.name), *RESPONSES.values(), *models]

    @property
    def module(self) -> str:
        """Name of the module of its function."""
        return self.function.partition(":")[0]

    def load(self) -> StageFunction:
        """Import the stage's function."""
        function = self.function.partition(":")[2]
        loaded: StageFunction = getattr(importlib.import_module(self.module), function)
        return loaded


_BAGS, _CUBE, _MODEL = "work/bags.zarr", "work/grid.zarr", "work/model"
_POINTS = "work/points.zarr"
_BALANCE = "work/balance.json"
_SUPPORT = "work/support.json"
_AREA_DRAWS = "work/area_draws.npz"
_SERIES, _AHEAD = "work/series.json", "work/ahead"

#: Key of what the likelihood says of a response: whether it is a count, or a value, and its range.
RESPONSE = "model.likelihood (response)"

# What `disagg compare` leaves, and a page shows.
_COMPARISON = ("compare.json", "difference_mean.tif", "change_probability.tif")
# What a page says of a run: everything but how and where it was computed, and who is told.
_OF_THE_MAP = (
    *("name", "areas", "counts", "period", "labels", "population", "covariates", "points", "grid"),
    *("model", "fit", "output", "evaluate", "truth"),
)


STAGES = {
    stage.name: stage
    for stage in (
        Stage(
            "ingest",
            "pipeline.ingest.stage:ingest",
            config=(
                "areas",
                "counts",
                "-counts.unit",  # for texts alone: a new unit is no reason to fit again
                "-areas.name",
                "period",
                "time",
                "labels",
                "population",
                "covariates",
                "points",
                "grid",
                "fit.seed",
                "output.mask",
                "output.forecast",
                RESPONSE,
            ),
            files=("areas", "counts", "labels", "population", "covariates", "points", "grid"),
            needs=(),
            leaves=(_CUBE, _BAGS),
            may_leave=(_SERIES, _AHEAD, _POINTS),
        ),
        Stage(
            "fit",
            "pipeline.training.stage:fit_stage",
            config=("model", "fit", "points"),
            files=(),
            needs=(_BAGS,),
            may_need=(_SERIES, _POINTS),
            leaves=(_MODEL,),
            keeps=("work/checkpoint", "work/thinned-fit.zarr"),
        ),
        Stage(
            "predict",
            "pipeline.prediction.stage:predict_stage",
            config=(
                "name",
                "period",
                "time",
                "areas",
                "counts.unit",
                "population",
                "points",
                "fit.seed",
                "output",
            ),
            files=("areas", "population", "output"),
            needs=(_CUBE, _BAGS, _MODEL),
            may_need=(_SERIES, _AHEAD, _POINTS),
            leaves=(_BALANCE,),
            may_leave=(_SUPPORT, _AREA_DRAWS, "periods", "windows", "rates.zarr"),
        ),
        Stage(
            "evaluate",
            "pipeline.evaluation.stage:evaluate_stage",
            config=(
                "name",
                "counts.unit",
                "model",
                "fit",
                "points",
                "output.draws",
                "output.interval",
                "evaluate",
                "truth",
                "gates.pixel_coverage",  # a gate that reads simulations asks for more of them
            ),
            files=("evaluate", "truth"),
            needs=(_BAGS, _MODEL),
            may_need=(_BALANCE, _SUPPORT, _AREA_DRAWS, _SERIES, _POINTS),
            keeps=("work/evaluate", "work/thinned-evaluate.zarr", "work/thinned-calibration.zarr"),
        ),
        Stage(
            "report",
            "pipeline.reporting.stage:report_stage",
            config=_OF_THE_MAP,
            files=(),
            needs=(_BAGS, _MODEL),
            may_need=(_BALANCE,),
            products_of=("predict", "evaluate"),
            also=(*_COMPARISON, *(f"compare/{name}" for name in _COMPARISON)),
        ),
    )
}
"""The stages of a run, in order."""


STAGE_OF = {path: stage.name for stage in STAGES.values() for path in stage.leaves}

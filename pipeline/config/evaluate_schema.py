"""``evaluate`` in a configuration: how a map is scored on areas that it was not fitted to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pipeline.config.base import Section, config_error
from pipeline.config.input_schema import FoldsFile
from pipeline.config.model_schema import AreaPixels
from pipeline.config.values import AtLeast1, AtLeast2, Kilometres, Seed, whole_or


def _folds(value: Any) -> Any:
    if isinstance(value, dict | FoldsFile):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 2:
        return value
    raise config_error(
        remedy="give a whole number of at least 2, or a file: {path: ..., id: ..., fold: ...}"
    )


class Evaluate(Section):
    """``evaluate``: cross-validation."""

    folds: Annotated[AtLeast2 | FoldsFile, BeforeValidator(_folds)] = Field(
        5, examples=[10], description="number of folds, or a file with the fold of each area"
    )
    schemes: tuple[Literal["area", "block"], ...] = Field(
        ("area", "block"),
        description="hold out areas at random, or in spatial blocks; [] for no cross-validation",
    )
    seed: Seed = Field(0, description="seed of the folds")
    area_pixels: AreaPixels = Field(
        "auto",
        json_schema_extra={"unit": "pixels"},
        examples=[1000],
        description="pixels that represent an area in the folds' fits and in the scores of areas, "
        "as fit.area_pixels",
    )
    start: Literal["auto", "cold", "warm"] = Field(
        "auto",
        description="start of the folds' fits: cold as the fit's own, warm at its optimum (by "
        "mini-batches without what is known of the surface); auto: warm for leave_out importance "
        "and for large problems of vbagg",
    )
    epochs: Annotated[AtLeast1 | Literal["auto"], whole_or("auto", least=1)] = Field(
        "auto",
        examples=[60],
        description="maximum number of epochs of a fold; auto: fit.max_epochs, at most 60 "
        "where start is set to warm, or in a large problem is warm by itself",
    )
    leave_out: Literal["auto", "refit", "importance"] = Field(
        "auto",
        description="how areas and regions are left out: refit the model without each fold, or "
        "weigh the draws of the posterior (PSIS; one area, or one region, at a time), with "
        "regression between the other areas where weights fail, or for a file of folds; auto: "
        "importance, where the model has it",
    )
    buffer: Kilometres = Field(
        0.0,
        json_schema_extra={"unit": "km"},
        examples=[50],
        description="scheme block: km around a region whose areas are neither trained on nor "
        "scored; auto: the learnt range",
    )
    calibration: Annotated[
        AtLeast1 | Literal["auto", "none"], whole_or("auto", "none", least=1)
    ] = Field(
        "auto",
        examples=[10],
        description="refits to data simulated from the fitted map, which tell how many of the "
        "true rates of pixels its intervals cover: their number, or none; auto: 2 in small "
        "problems of one period, 10 where gates.pixel_coverage reads them",
    )

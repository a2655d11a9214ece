"""Sections of the configuration with input files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.config.base import Section, config_error
from pipeline.config.values import Crs, InputPath, Number, Whole


class Areas(Section):
    """``areas``: the boundaries, and the column of their identifiers."""

    path: InputPath = Field(description="boundaries: GeoPackage, Shapefile, GeoJSON or GeoParquet")
    layer: str | None = Field(None, description="layer of the file; required if it has several")
    id: str = Field(description="column that identifies an area")
    repair: bool = Field(
        False,
        description="mend invalid polygons, merge features that share an id, drop empty ones",
    )


class Counts(Section):
    """``counts``: cases of each area; without a path, a column of the areas file."""

    path: InputPath | None = Field(
        None,
        description="table of counts: CSV, Parquet, .xlsx, or a vector file such as the areas' own",
    )
    sheet: str | None = Field(None, description="sheet of an .xlsx; the first by default")
    layer: str | None = Field(
        None, description="layer of a vector file; required if it has several"
    )
    id: str | None = Field(None, description="column with the area's id; areas.id by default")
    value: str = Field(description="column with the counts, or the areas' values")
    tested: str | None = Field(
        None, description="column with the numbers tested, for the binomial likelihood"
    )
    period: str | None = Field(None, description="column with the period, for a time series")


class Labels(Section):
    """``labels``: 1 or 0 of each area; without a path, a column of the areas file."""

    path: InputPath | None = Field(
        None,
        description="table of labels: CSV, Parquet, .xlsx, or a vector file such as the areas' own",
    )
    sheet: str | None = Field(None, description="sheet of an .xlsx; the first by default")
    layer: str | None = Field(
        None, description="layer of a vector file; required if it has several"
    )
    id: str | None = Field(None, description="column with the area's id; areas.id by default")
    value: str = Field(description="column with the labels: 1 or 0, yes or no, true or false")


class Population(Section):
    """``population``: people per pixel, or per km2 with ``density``."""

    path: InputPath = Field(description="raster of people per pixel")
    density: bool = Field(False, description="true if the raster is people per km2")


class Covariate(Section):
    """``covariates.<name>``: a raster, its resampling and its transform."""

    path: InputPath = Field(description="raster")
    band: Annotated[Whole, Field(ge=1)] = Field(1, description="band of the raster, from 1")
    resampling: Literal["auto", "average", "bilinear", "nearest", "mode", "sum", "cubic"] = Field(
        "auto", description="method of resampling to the grid"
    )
    transform: Literal["none", "log1p", "log", "sqrt"] = Field(
        "none", description="function applied to the resampled values"
    )


class GridSpec(Section):
    """``grid``: the grid of the run, from a raster or by CRS and resolution."""

    like: InputPath | None = Field(None, description="raster whose grid to use")
    crs: Crs | None = Field(None, description="coordinate reference system, such as EPSG:32738")
    resolution: Annotated[Number, Field(gt=0)] | None = Field(
        None, description="pixel size in units of the CRS"
    )

    @model_validator(mode="after")
    def _one_way(self) -> GridSpec:
        by_crs = (self.crs is not None, self.resolution is not None)
        if any(by_crs) if self.like is not None else not all(by_crs):
            raise config_error(
                found="neither, or both, of a raster and a CRS",
                remedy="give either {like: raster.tif}, or {crs: EPSG:..., resolution: ...}",
            )
        return self


class FoldsFile(Section):
    """``evaluate.folds``: a table with the fold of each area."""

    path: InputPath = Field(description="table with a fold for each area")
    id: str = Field(description="column with the area's id")
    fold: str = Field(description="column with the fold")


class Truth(Section):
    """``truth``: the true rate of a simulated country."""

    path: InputPath = Field(description="raster of the true rate per person")

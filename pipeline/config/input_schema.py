"""Sections of the configuration with input files."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from geo.core.spelling import Spelling
from geo.core.suppressed import MOST, Suppression
from pipeline.config.base import Section, config_error
from pipeline.config.suggestions import suggest_value
from pipeline.config.values import PERIOD, Crs, Encoding, InputPath, Number, Text, Whole
from pipeline.responses.registry import words


class Areas(Section):
    """``areas``: the boundaries, and the column of their identifiers."""

    path: InputPath = Field(
        examples=["districts.gpkg"],
        description="boundaries: GeoPackage, Shapefile, GeoJSON, GeoParquet or KML",
    )
    layer: str | None = Field(
        None, examples=["districts"], description="layer of the file; required if it has several"
    )
    id: str = Field(examples=["district_id"], description="column that identifies an area")
    name: str | None = Field(
        None, examples=["district"], description="column with the areas' names, for tables"
    )
    encoding: Encoding | None = Field(
        None,
        examples=["cp1252"],
        description="encoding of a Shapefile; by default what its .cpg says, or Latin-1",
    )
    changes: InputPath | None = Field(
        None,
        examples=["changes.csv"],
        description="table of areas that were split, merged or renamed, for counts of before: "
        "columns period (the first with the new areas), from and to, a row for each pair of ids "
        "that share ground; with `time`",
    )
    repair: bool = Field(
        False,
        description="mend invalid polygons, merge features that share an id, drop empty ones",
    )


class ResponseTable(Section):
    """A table with a row for each area; without a path, columns of the areas file."""

    path: InputPath | None = Field(
        None,
        examples=["cases.csv"],
        description="table: CSV, Parquet, .xlsx, or a vector file such as the areas' own",
    )
    sheet: str | None = Field(
        None, examples=["2024"], description="sheet of an .xlsx; the first by default"
    )
    layer: str | None = Field(
        None, examples=["cases"], description="layer of a vector file; required if it has several"
    )
    id: str | None = Field(
        None, examples=["district_id"], description="column with the area's id; areas.id by default"
    )
    match: Literal["exact", "spelling"] = Field(
        "exact",
        description="which ids are those of areas; spelling: also those that differ in capitals, "
        "accents, spaces, punctuation or leading zeros alone",
    )
    encoding: Encoding | None = Field(
        None,
        examples=["cp1252"],
        description="encoding of a CSV file; by default UTF-8, UTF-16 where its first bytes say "
        "so, or cp1252 if it is neither",
    )
    delimiter: Literal[",", ";", "\t", "|"] | None = Field(
        None, description="what separates the cells of a CSV file; by default as its rows tell"
    )
    skip_rows: Annotated[Whole, Field(ge=0)] = Field(
        0, examples=[2], description="rows above the names of the columns, such as a title"
    )
    crosswalk: InputPath | None = Field(
        None,
        examples=["crosswalk.csv"],
        description="CSV with the columns name, as the table has it, and area_id, and parent where "
        "a name is in several; disagg check --fix proposes one",
    )
    parent: str | None = Field(
        None,
        examples=["province"],
        description="column with the area that holds each, for names that are in several",
    )

    @property
    def spelling(self) -> Spelling:
        """How the table is written."""
        return Spelling(
            encoding=self.encoding,
            delimiter=self.delimiter,
            skip_rows=self.skip_rows,
            loose=self.match == "spelling",
            crosswalk=self.crosswalk,
            parent=self.parent,
        )


def _of(value: str) -> str:
    if value not in words():
        raise config_error(found=f"{value!r} is not a choice", remedy=suggest_value(value, words()))
    return value


def _marks(value: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    for mark, (low, high) in value.items():
        if not 0 <= low <= high < low + MOST:
            raise config_error(
                found=f"{mark!r} is {low} to {high}",
                remedy=f"give the smallest and the largest count, at most {MOST} of them",
            )
    return {mark.strip(): ends for mark, ends in value.items()}


class Counts(ResponseTable):
    """``counts``: cases of each area; without a path, a column of the areas file."""

    value: str = Field(
        examples=["cases"], description="column with the counts, or the areas' values"
    )
    tested: str | None = Field(
        None,
        examples=["examined"],
        description="column with the numbers tested, for beta_binomial or binomial positives",
    )
    weight: str | None = Field(
        None,
        examples=["hectares"],
        description="column with the exposure of each area, such as its harvested hectares; by "
        "default its people, or km2",
    )
    of: Annotated[str, AfterValidator(_of)] | None = Field(
        None,
        examples=["average"],
        description="what a value is: the total of its area, or the average over its exposure; by "
        "default average for values (normal, gamma, exponential) with a weight, else total",
    )
    unit: str | None = Field(
        None,
        examples=["t"],
        description="unit of the values, such as t; by default cases, positives or value",
    )
    weight_unit: str | None = Field(
        None,
        examples=["ha"],
        description="unit of the weight, such as ha; by default the name of its column",
    )
    period: str | None = Field(
        None, examples=["month"], description="column with the period, for a time series"
    )
    periods: Literal["rows", "columns"] = Field(
        "rows",
        description="columns: the table has a column for each period, such as 2024-03, with the "
        "counts, which `value` then names",
    )
    thousands: Literal[",", ".", " ", "'"] | None = Field(
        None, description="separator of thousands in numbers that are text"
    )
    decimal: Literal[".", ","] | None = Field(
        None, description="decimal separator of numbers that are text; a point by default"
    )
    suppressed: Annotated[dict[str, tuple[int, int]], AfterValidator(_marks)] = Field(
        {},
        examples=[{"*": [1, 4]}],
        description="cells that stand for a suppressed count, with the smallest and the largest it "
        "may be; <5, <=4 and 1-4 are understood without it",
    )
    zeros_published: bool = Field(
        False,
        description="whether a count of 0 is given as such: <5 is then 1 to 4, else 0 to 4",
    )
    dayfirst: bool | None = Field(
        None,
        examples=[True],
        description="whether the period 03/04/2024 is 3 April; by default as others tell",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_columns(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("periods") != "columns":
            return data
        for key, wrong in (("path", data.get("path") is None), ("tested", "tested" in data)):
            if wrong:
                found = f"`periods: columns` {'without' if key == 'path' else 'with'} {key}"
                remedy = "give a table with a row for each area and period, and counts.period"
                raise config_error(found=found, remedy=remedy)
        return {**data, "period": data.get("period") or PERIOD}

    @model_validator(mode="after")
    def _two_marks(self) -> Counts:
        if self.thousands is not None and self.thousands == self.decimal:
            raise config_error(
                found=f"thousands and decimal are both {self.decimal!r}", remedy="give one of them"
            )
        return self

    @property
    def suppression(self) -> Suppression:
        """How the table suppresses small counts."""
        return Suppression(self.suppressed, self.zeros_published)

    @property
    def spelling(self) -> Spelling:
        """How the table is written."""
        return replace(
            super().spelling,
            thousands=self.thousands,
            decimal=self.decimal,
            dayfirst=self.dayfirst,
            wide=(self.period, self.value)
            if self.periods == "columns" and self.period is not None
            else None,
        )


class Labels(ResponseTable):
    """``labels``: 1 or 0 of each area; without a path, a column of the areas file."""

    value: str = Field(
        examples=["outbreak"],
        description="column with the labels: 1 or 0, yes or no, true or false",
    )


class TimeSpec(Section):
    """``time``: the periods that one model is fitted to; without it a run maps one."""

    # `from` is no name in Python: a run's record reads back all the same.
    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    step: Literal["day", "week", "month", "quarter", "year"] = Field(
        "month", description="length of a period"
    )
    week: Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"] = (
        Field("monday", description="day that a week begins on")
    )
    from_: Text | None = Field(
        None,
        alias="from",
        examples=["2023-01"],
        description="first period; the first with counts by default",
    )
    to: Text = Field("latest", examples=["2024-12"], description="last period, or latest")


class GridSpec(Section):
    """``grid``: the grid of the run, from a raster or by CRS and resolution."""

    like: InputPath | None = Field(
        None, examples=["population.tif"], description="raster whose grid to use"
    )
    crs: Crs | None = Field(
        None, examples=["EPSG:32738"], description="coordinate reference system, such as EPSG:32738"
    )
    resolution: Annotated[Number, Field(gt=0)] | None = Field(
        None,
        json_schema_extra={"unit": "of the CRS"},
        examples=[1000],
        description="pixel size in units of the CRS",
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

    path: InputPath = Field(examples=["folds.csv"], description="table with a fold for each area")
    id: str = Field(examples=["district_id"], description="column with the area's id")
    fold: str = Field(examples=["fold"], description="column with the fold")

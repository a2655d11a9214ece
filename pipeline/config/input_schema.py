"""Sections of the configuration with input files."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from geo.core.calendar import days_of
from geo.core.spelling import Spelling
from geo.sources.raster_header import BandChoice, RasterHeader
from geo.sources.stac_source import stac_path
from pipeline.config.base import Section, config_error, config_errors, or_one
from pipeline.config.suggestions import suggest_value
from pipeline.config.values import PERIOD, Crs, Encoding, InputPath, Number, Text, Whole
from pipeline.responses.registry import words

MOST_LAG = 120  # periods


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
        description="encoding of a CSV file; by default UTF-8, or cp1252 if it is not",
    )

    @property
    def spelling(self) -> Spelling:
        """How the table is written."""
        return Spelling(encoding=self.encoding, loose=self.match == "spelling")


def _of(value: str) -> str:
    if value not in words():
        raise config_error(found=f"{value!r} is not a choice", remedy=suggest_value(value, words()))
    return value


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


def _nodata(value: Any) -> Any:
    given = value if isinstance(value, list | tuple) else [value]
    numbers = []
    for each in given:
        try:
            number = math.nan if isinstance(each, bool) else float(each)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise config_error(
                remedy="give the number of missing pixels, such as -9999, several as [-9999, 255], "
                "or [] for none; NaN is always missing"
            )
        numbers.append(number)
    return tuple(numbers)


def _level(value: Any) -> Any:
    """Return values of axes by name; a number or text alone is of the only axis, ""."""
    if value is None:
        return None
    given = value if isinstance(value, dict) else {"": value}
    if not given or any(v is None or isinstance(v, list | dict | bool) for v in given.values()):
        remedy = "give a value of the axis, such as level: 850, or level: {number: 0, height: 2}"
        raise config_error(remedy=remedy)
    return {str(axis): str(each) for axis, each in given.items()}


def _or_value(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"type": "number"}, {"type": "string"}, *schema["anyOf"]]


def _factor(value: float) -> float:
    if value == 0:
        raise config_error(remedy="give a number other than 0, such as 0.0001")
    return value


class Raster(Section):
    """A raster: its band, and what replaces its header where that is silent or wrong."""

    path: InputPath = Field(examples=["elevation.tif"], description="raster")
    band: Annotated[Whole, Field(ge=1)] | None = Field(
        None, examples=[2], description="band of the raster, from 1; required if it has several"
    )
    variable: Text | None = Field(
        None,
        examples=["t2m"],
        description="variable of a NetCDF, HDF5 or GRIB file, table of a GeoPackage, or "
        "description of a band; required if it has several",
    )
    time: Text | None = Field(
        None,
        examples=["2023-01"],
        description="time of the band, such as 2023-01, or {period} for that of the run; required "
        "if the file has several",
    )
    level: Annotated[dict[str, str], BeforeValidator(_level)] | None = Field(
        None,
        json_schema_extra=_or_value,
        examples=[850, {"number": 0, "height": 2}],
        description="where a cube has a fourth axis: its value, as the file writes it, or values "
        "by the names of several axes (levels, members of an ensemble); required if there are "
        "several",
    )
    nodata: Annotated[tuple[float, ...], BeforeValidator(_nodata)] | None = Field(
        None,
        json_schema_extra=or_one,
        examples=[-9999, [-9999, 255]],
        description="stored number of missing pixels, or several; the header's by default",
    )
    crs: Crs | None = Field(
        None,
        examples=["EPSG:4326"],
        description="coordinate reference system; the header's by default",
    )
    scale: Annotated[Number, AfterValidator(_factor)] | None = Field(
        None, examples=[0.0001], description="factor of the stored numbers; the header's by default"
    )
    offset: Number | None = Field(
        None, examples=[-273.15], description="added to the scaled numbers; the header's by default"
    )
    units: str | None = Field(
        None, examples=["mm"], description="unit of the values; the header's by default"
    )

    @property
    def choice(self) -> BandChoice:
        """The band to read."""
        level = tuple((self.level or {}).items())
        return BandChoice(self.band, self.variable, self.time, level=level)

    @property
    def header(self) -> RasterHeader:
        """What replaces the header of the file."""
        return RasterHeader(self.nodata, self.crs, self.scale, self.offset, self.units)


class Stac(Section):
    """``stac``: an asset of STAC items, in place of a path."""

    path: InputPath = Field(
        examples=["items.json"],
        description="file or https address of a STAC item, item collection (the result of a "
        "search) or collection",
    )
    asset: str | None = Field(
        None,
        examples=["data"],
        description="key of the asset; required if items have several rasters",
    )


class Cube(Raster):
    """A raster, or a cube of which each period has several steps."""

    stac: Stac | None = Field(
        None,
        description="STAC items in place of `path`: a mosaic of their assets; `time` is that of "
        "items",
    )

    aggregate: Literal["sum", "mean", "max", "min"] | None = Field(
        None,
        description="how the steps of a period become one value, for a NetCDF or Zarr with steps "
        "of a day, say; `time`, the run's period by default, then says which: 2024-03, or first "
        "and last day, 2024-03-01/2024-03-31",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_stac(cls, data: Any) -> Any:
        given = data.get("stac") if isinstance(data, dict) else None
        if not isinstance(given, dict) or not isinstance(given.get("path"), str):
            return data
        path = stac_path(given["path"], given.get("asset"))
        if data.get("path") not in (None, path):
            raise config_error(found="a path and stac", remedy="give one of them")
        return {**data, "path": path}

    @model_validator(mode="after")
    def _of_a_period(self) -> Cube:
        if self.aggregate is None:
            return self
        if self.band is not None:
            found = "aggregate with a band"
            raise config_error(found=found, remedy="remove one: a band is one step")
        if self.time is None:
            remedy = "give the period to aggregate over: time: 2024, say"
            raise config_error(found="aggregate without a period", remedy=remedy)
        if "{" not in self.time and days_of(self.time) is None:
            remedy = "write time as 2024-02, or 2024-02-01/2024-02-29"
            raise config_error(found=f"`time: {self.time}` is no period", remedy=remedy)
        return self

    @property
    def choice(self) -> BandChoice:
        """The bands to read."""
        return replace(super().choice, aggregate=self.aggregate)


class Population(Cube):
    """``population``: people per pixel, or per km2 with ``density``."""

    path: InputPath = Field(examples=["population.tif"], description="raster of people per pixel")
    density: bool = Field(False, description="true if the raster is people per km2")


class Anomaly(Section):
    """``covariates.<name>.anomaly``: against the same season of a range of years."""

    # `from` is no name in Python: a run's record reads back all the same.
    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    from_: Annotated[Whole, Field(ge=1)] = Field(
        alias="from", examples=[1991], description="first year of the climatology"
    )
    to: Annotated[Whole, Field(ge=1)] = Field(
        examples=[2020], description="last year of the climatology"
    )
    standardised: bool = Field(
        False,
        description="divide the difference from the years' mean by their standard deviation",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Anomaly:
        if self.to - self.from_ < 1:
            found = f"years from {self.from_} to {self.to}"
            raise config_error(found=found, remedy="give two years or more, the first one as from")
        return self


def _lags(value: Any) -> Any:
    given = value if isinstance(value, list | tuple) else [value]
    whole = all(isinstance(each, int) and not isinstance(each, bool) for each in given)
    if not given or not whole or not all(0 <= each <= MOST_LAG for each in given):
        raise config_error(remedy=f"give a number of periods from 0 to {MOST_LAG}, or several")
    if len(set(given)) < len(given):
        raise config_error(found="a lag twice", remedy="give each once")
    return tuple(given)


#: Keys of a raster that a table does not have.
_OF_RASTERS = (
    "stac", "band", "variable", "level", "nodata", "crs", "scale", "offset", "aggregate", "window",
    "anomaly", "resampling",
)  # fmt: skip
_OF_TABLES = ("id", "value", "period")


def _default_of(section: type[Section], key: str) -> Any:
    return section.model_fields[key].default


class Covariate(Cube):
    """``covariates.<name>``: a raster, its resampling and its transform; or a table of areas."""

    path: InputPath = Field("", examples=["elevation.tif"], description="raster; or `table`")
    table: InputPath | None = Field(
        None,
        examples=["climate.csv"],
        description="table with a value for each area, which its pixels share: CSV, Parquet, .xlsx",
    )
    id: str | None = Field(
        None,
        examples=["district_id"],
        description="table: column with the area's id; areas.id by default",
    )
    value: str | None = Field(
        None,
        examples=["rainfall"],
        description="table: column with the values; the covariate's name by default",
    )
    period: str | None = Field(
        None,
        examples=["month"],
        description="table: column with the period; without it a value holds for all",
    )
    lag: Annotated[tuple[int, ...], BeforeValidator(_lags)] = Field(
        (0,),
        json_schema_extra=or_one,
        examples=[1, [0, 1, 2]],
        description="periods ago, with `time`; several make a covariate of each: rain_lag1 is rain "
        "of the period before",
    )

    window: Annotated[Whole, Field(ge=1, le=MOST_LAG)] = Field(
        1,
        json_schema_extra={"unit": "periods"},
        examples=[3],
        description="periods up to and with the period that `aggregate` takes together, for rain "
        "of three months, say",
    )
    anomaly: Anomaly | None = Field(
        None,
        description="the difference of a cube from the same months of other years, which its "
        "`aggregate` and `window` hold for as well",
    )

    resampling: Literal["auto", "average", "bilinear", "nearest", "mode", "sum", "cubic"] = Field(
        "auto", description="method of resampling to the grid"
    )
    transform: Literal["none", "log1p", "log", "sqrt"] = Field(
        "none", description="function applied to the resampled values"
    )

    @model_validator(mode="after")
    def _of_a_cube(self) -> Covariate:
        for key, given in (("window", self.window > 1), ("anomaly", self.anomaly is not None)):
            if given and self.aggregate is None:
                remedy = "give `aggregate` as well: it is of the steps of a cube"
                raise config_error(found=f"{key} without aggregate", remedy=remedy)
        return self

    @property
    def choice(self) -> BandChoice:
        """The bands to read."""
        found, anomaly = super().choice, self.anomaly
        years = None if anomaly is None else (anomaly.from_, anomaly.to, anomaly.standardised)
        # The days of a run's period have its window already.
        window = 1 if "/" in (self.time or "") else self.window
        return replace(found, window=window, climatology=years)

    @model_validator(mode="before")
    @classmethod
    def _of_a_table(cls, data: Any) -> Any:
        """Refuse what does not go together; the path of a table's values is the table."""
        if not isinstance(data, dict):
            return data
        table, path = data.get("table"), data.get("path")
        wrong, keys = [], _OF_TABLES if table is None else _OF_RASTERS
        for key in (key for key in keys if key in data and data[key] != _default_of(cls, key)):
            other = "without a table" if table is None else "with a table"
            wrong.append((key, f"given {other}", "remove it"))
        nothing = table is None and path is None and data.get("stac") is None
        if nothing and not set(data) - set(cls.model_fields):
            wrong.append(("path", "missing", "add 'path: ...' (raster), or a table of areas"))
        if table is not None and path not in (None, table):
            wrong.append(("", "a path and a table", "give one of them"))
        if wrong:
            raise config_errors(wrong)
        return data if table is None else {**data, "path": table}


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


class Truth(Raster):
    """``truth``: the true rate of a simulated country."""

    path: InputPath = Field(
        examples=["truth_rate.tif"], description="raster of the true rate per person"
    )

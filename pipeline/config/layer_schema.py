"""Sections of the configuration with rasters and cubes: the population, the truth."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from geo.core.calendar import days_of
from geo.sources.raster_header import BandChoice, RasterHeader
from geo.sources.stac_address import stac_path
from pipeline.config.base import Section, config_error, or_one
from pipeline.config.values import Crs, InputPath, Number, Text, Whole


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


class Truth(Raster):
    """``truth``: the true rate of a simulated country."""

    path: InputPath = Field(
        examples=["truth_rate.tif"], description="raster of the true rate per person"
    )

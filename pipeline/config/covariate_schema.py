"""Section ``covariates.<name>``: a raster, a table of areas, or what is made of another file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from geo.sources.raster_header import BandChoice
from pipeline.config.base import Section, config_error, config_errors, or_one
from pipeline.config.layer_schema import Cube
from pipeline.config.values import InputPath, Whole

MOST_LAG = 120  # periods
#: What a covariate is of: one of these keys is given, and `path` is the same file.
KINDS = ("path", "table", "distance", "slope", "aspect")
#: Keys of input files of all sections, at any depth.
INPUT_KEYS = (*KINDS, "like", "crosswalk", "changes")
_RASTER = (
    "band", "variable", "level", "nodata", "crs", "scale", "offset", "aggregate", "resampling",
)  # fmt: skip
_AREAL = ("auto", "average")  # of classes
#: Keys that not every kind has, and the kinds that have them.
_OF_KINDS = {
    **dict.fromkeys(_RASTER, ("path", "slope", "aspect")),
    **dict.fromkeys(("time", "units"), ("path", "table", "slope", "aspect")),
    **dict.fromkeys(("id", "match", "value", "period"), ("table",)),
    **dict.fromkeys(("layer", "where"), ("distance",)),
    "component": ("aspect",),
    **dict.fromkeys(("classes", "stac", "window", "anomaly"), ("path",)),
}


def _lags(value: Any) -> Any:
    given = value if isinstance(value, list | tuple) else [value]
    whole = all(isinstance(each, int) and not isinstance(each, bool) for each in given)
    if not given or not whole or not all(0 <= each <= MOST_LAG for each in given):
        raise config_error(remedy=f"give a number of periods from 0 to {MOST_LAG}, or several")
    if len(set(given)) < len(given):
        raise config_error(found="a lag twice", remedy="give each once")
    return tuple(given)


def _numbers(value: Any) -> Any:
    given = value if isinstance(value, list | tuple) else [value]
    numbers = [
        float(each) if isinstance(each, int | float) and not isinstance(each, bool) else math.nan
        for each in given
    ]
    if not numbers or not all(map(math.isfinite, numbers)):
        raise config_error(remedy="give the number of the class, or several: [1, 2]")
    return tuple(numbers)


def _columns(value: Any) -> Any:
    if not isinstance(value, Mapping) or not value:
        raise config_error(remedy="give a column and its values: {highway: [primary, trunk]}")
    each = {k: v if isinstance(v, list | tuple) else [v] for k, v in value.items()}
    return {column: [str(text) for text in texts] for column, texts in each.items()}


Numbers = Annotated[tuple[float, ...], BeforeValidator(_numbers), Field(json_schema_extra=or_one)]
Texts = Annotated[tuple[str, ...], Field(json_schema_extra=or_one)]


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


class Covariate(Cube):
    """``covariates.<name>``: a raster, a table of areas, or what is made of another file."""

    path: InputPath = Field(
        "", examples=["elevation.tif"], description="raster; or another of the keys of a file"
    )
    classes: dict[str, Numbers] | list[str | int] | Literal["all"] | None = Field(
        None,
        examples=[{"forest": [1, 2], "urban": 13}],
        description="of a raster of classes, those whose shares are covariates, land_forest say: "
        "names and values, or names of its attribute table, or all of these",
    )
    distance: InputPath | None = Field(
        None,
        examples=["roads.gpkg"],
        description="points, lines or polygons; the covariate is the distance in km to the nearest",
    )
    layer: str | None = Field(
        None, examples=["roads"], description="distance: layer; required if the file has several"
    )
    where: Annotated[dict[str, Texts], BeforeValidator(_columns)] | None = Field(
        None,
        examples=[{"highway": ["primary", "trunk"]}],
        description="distance: columns and the values that features must have; all by default",
    )
    slope: InputPath | None = Field(
        None,
        examples=["elevation.tif"],
        description="elevation in metres; the covariate is its slope in degrees",
    )
    aspect: InputPath | None = Field(
        None,
        examples=["elevation.tif"],
        description="elevation in metres; two covariates are the direction that its slope faces: "
        "northness, the cosine, and eastness, the sine",
    )
    component: Literal["northness", "eastness"] | None = Field(
        None, description="aspect: the one of the two that is wanted; both by default"
    )
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
    match: Literal["exact", "spelling"] = Field(
        "exact",
        description="table: which ids are those of areas; spelling: also those that differ in "
        "capitals, accents, spaces, punctuation or leading zeros alone",
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

    @model_validator(mode="before")
    @classmethod
    def _of_one_file(cls, data: Any) -> Any:
        """Refuse what does not go together; the path is that of whatever file is given."""
        if not isinstance(data, dict):
            return data
        given = [key for key in KINDS[1:] if data.get(key) is not None]
        stac = data.get("stac") is not None
        kind, path = (given or ["path"])[0], data.get("path")
        wrong = []
        for key, kinds in _OF_KINDS.items():
            default = cls.model_fields[key].default
            if key in data and data[key] != default and kind not in kinds:
                other = f"without a {kinds[0]}" if kind == "path" else f"with a {kind}"
                remedy = "remove it"
                if key == "stac" and kind in ("slope", "aspect"):
                    remedy = f"write {kind}: STAC:items.json:asset"
                wrong.append((key, f"given {other}", remedy))
        if not given and path is None and not stac and not set(data) - set(cls.model_fields):
            remedy = f"add 'path: ...' (raster), or one of {', '.join(KINDS[1:])}"
            wrong.append(("path", "missing", remedy))
        if given and not stac and (len(given) > 1 or path not in (None, data[kind])):
            both = given if len(given) > 1 else ["path", kind]
            wrong.append(("", " and ".join(f"a {key}" for key in both), "give one of them"))
        if data.get("classes") is not None:
            if data.get("resampling", "auto") not in _AREAL:
                wrong.append(("resampling", "given with classes", "remove it: shares are averages"))
            if data.get("aggregate") is not None:
                remedy = "remove it, and choose a step with `time`: classes have no order"
                wrong.append(("aggregate", "given with classes", remedy))
        if kind == "aspect" and data.get("component") is None:
            wrong.append(("component", "missing", "give northness or eastness"))
        if wrong:
            raise config_errors(wrong)
        made = {} if kind == "path" else {"path": data[kind]}
        if data.get("classes") is not None:
            made["resampling"] = "average"
        return {**data, **made}

    @model_validator(mode="after")
    def _of_a_cube(self) -> Covariate:
        for key, given in (("window", self.window > 1), ("anomaly", self.anomaly is not None)):
            if given and self.aggregate is None:
                remedy = "give `aggregate` as well: it is of the steps of a cube"
                raise config_error(found=f"{key} without aggregate", remedy=remedy)
        return self

    @property
    def kind(self) -> str:
        """Which of :data:`KINDS` it is."""
        return next((key for key in KINDS[1:] if getattr(self, key) is not None), "path")

    @property
    def choice(self) -> BandChoice:
        """The bands to read, and what to make of them."""
        share = None
        if isinstance(self.classes, dict):
            share = tuple(value for values in self.classes.values() for value in values)
        terrain = "slope" if self.kind == "slope" else self.component
        anomaly = self.anomaly
        years = None if anomaly is None else (anomaly.from_, anomaly.to, anomaly.standardised)
        # The days of a run's period have its window already.
        window = 1 if "/" in (self.time or "") else self.window
        return replace(
            super().choice, window=window, climatology=years, share=share, terrain=terrain
        )

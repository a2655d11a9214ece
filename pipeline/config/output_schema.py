"""``output``: what a run leaves, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.config.base import Section, config_error, or_one
from pipeline.config.level_schema import LevelAreas, Reconcile, check_levels
from pipeline.config.values import LocalDir, Number, ObjectAddress, Text, Whole


class Output(Section):
    """``output``: directory and content of the maps."""

    dir: LocalDir = Field(
        Path("out"),
        examples=["out/{period}"],
        description="directory of the results, or their address (s3://bucket/map); out/NAME by "
        "default where the map has a name; "
        "`{period}` in it keeps the map of each period",
    )
    url: ObjectAddress = Field(
        None,
        examples=["s3://bucket/map"],
        description="address of the results; output.dir is then their local copy",
    )
    rate_per: Annotated[Number, Field(gt=0)] = Field(
        1000, json_schema_extra={"unit": "people"}, description="people per unit of the rate"
    )
    interval: Annotated[Number, Field(gt=0, lt=1)] = Field(
        0.9, description="probability of the intervals"
    )
    exceedance: tuple[Number, ...] = Field(
        (),
        json_schema_extra=or_one,
        examples=[[50, 100]],
        description="thresholds of the exceedance maps, per rate_per people; maybe below 0",
    )
    draws: Annotated[Whole, Field(ge=2, le=1_000_000)] = Field(
        500, description="number of joint posterior draws"
    )
    mask: Literal["areas", "all"] = Field(
        "areas", description="map pixels inside areas only, or all pixels with covariates"
    )
    areas: tuple[LevelAreas, ...] = Field((), description="areas of other levels to tabulate")
    periods: Literal["latest", "all"] | tuple[Text, ...] = Field(
        "latest",
        examples=[["2024-01", "2024-02"]],
        description="periods of a run with `time` to map, each in periods/<period>",
    )
    windows: tuple[Text, ...] = Field(
        (),
        json_schema_extra=or_one,
        examples=[["2023-01..2023-12", "last 12"]],
        description="windows of periods of a run with `time`, each to map the mean of in "
        "windows/<name>",
    )
    forecast: Annotated[Whole, Field(ge=0, le=1000)] = Field(
        0, description="periods after the last of a run with `time` to map"
    )
    reconcile: Reconcile | None = Field(
        None, description="also write maps and columns whose totals are the reported or given ones"
    )

    @field_validator("url")
    @classmethod
    def _lasts(cls, url: str | None) -> str | None:
        if url is not None and url.startswith("memory:"):
            found = f"{url} is in memory, and ends with the process"
            raise config_error(found=found, remedy="give a directory, or s3://...")
        return url

    @model_validator(mode="after")
    def _levels_fit(self) -> Output:
        check_levels(self.areas, self.reconcile)
        return self

    @model_validator(mode="before")
    @classmethod
    def _one_of_several(cls, data: Any) -> Any:
        # Accept one threshold, and one window, for a list of one.
        if not isinstance(data, dict):
            return data
        one = {"exceedance": int | float, "windows": str}
        return data | {k: [data[k]] for k, kind in one.items() if isinstance(data.get(k), kind)}

    @property
    def place(self) -> str:
        """Address or local directory of the results."""
        return self.url or str(self.dir)

"""``dhis2``: the server that boundaries and counts come from, and that results go to.

None of its keys changes a number of a map: `disagg dhis2 pull` writes input files, `disagg dhis2
push` reads results.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pipeline.config.base import Section, config_error, or_one
from pipeline.config.values import InputPath, Text, Whole

#: Variables of the environment that have the login: no key of a configuration takes one.
TOKEN, USER, PASSWORD = "DISAGG_DHIS2_TOKEN", "DISAGG_DHIS2_USER", "DISAGG_DHIS2_PASSWORD"


def _server(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise config_error(remedy="give the server's address, such as https://dhis2.example.org")
    if "@" in parts.netloc:
        raise config_error(
            found="a login in the address",
            remedy=f"remove it, and set {TOKEN}, or {USER} and {PASSWORD}, in the environment",
        )
    return value.rstrip("/").removesuffix("/api")


def _several(value: Any) -> Any:
    return [value] if isinstance(value, str | int) and not isinstance(value, bool) else value


Texts = Annotated[tuple[Text, ...], BeforeValidator(_several), Field(json_schema_extra=or_one)]
Paths = Annotated[tuple[InputPath, ...], BeforeValidator(_several), Field(json_schema_extra=or_one)]


class Pull(Section):
    """``dhis2.pull``: what `disagg dhis2 pull` writes to areas.path and counts.path."""

    level: Annotated[Whole, Field(ge=1)] | None = Field(
        None, examples=[3], description="level of the organisation units; required with a server"
    )
    parents: Texts = Field(
        (),
        examples=[["ImspTQPwCqd"]],
        description="organisation units to take those below; all that the user sees by default",
    )
    data: Texts = Field(
        (),
        examples=[["fbfJHSPpUQD"]],
        description="data elements, ELEMENT.OPTIONCOMBO for one category option combo, or "
        "indicators of the counts; required with a server",
    )
    tested: Texts = Field(
        (),
        examples=[["Ix2HsbDMLea"]],
        description="the same for counts.tested",
    )
    periods: Texts = Field(
        (),
        examples=[["202201..latest"]],
        description="periods in DHIS2's codes: 202401, 202201..202412, 202201..latest (the last "
        "that is over), or LAST_12_MONTHS with the analytics; required with a server",
    )
    sum: bool = Field(
        False,
        description="add up several data elements or option combos of one unit and period, which "
        "are else refused",
    )
    api: Literal["analytics", "analytics/dataValueSet", "dataValueSets"] = Field(
        "analytics",
        description="resource of the server: analytics and analytics/dataValueSet add up the units "
        "below, dataValueSets has what was entered for the units themselves",
    )
    data_set: Text | None = Field(
        None,
        examples=["pBOMPrpg1QX"],
        description="data set of the values, for dataValueSets of servers that ask for one",
    )
    boundaries: Literal["own"] | InputPath | None = Field(
        None,
        examples=["units.geojson"],
        description="file of organisationUnits.geojson in place of the server; own: areas.path "
        "stays as it is, its ids are those of the organisation units",
    )
    values: Paths = Field(
        (),
        examples=[["values.csv"]],
        description="files in place of the server: JSON of any of its resources, or CSV of data "
        "values",
    )


class Element(Section):
    """``dhis2.push.elements``: where a statistic goes."""

    element: Text = Field(examples=["f7n9E0hX8qk"], description="data element")
    combo: Text | None = Field(
        None,
        examples=["bRowv6yZOF2"],
        description="category option combo; the default one where there is none",
    )
    decimals: Annotated[Whole, Field(ge=0, le=12)] | None = Field(
        None, examples=[0], description="decimals; dhis2.push.decimals by default"
    )


def _element(value: Any) -> Any:
    return {"element": value} if isinstance(value, str) else value


class Push(Section):
    """``dhis2.push``: what `disagg dhis2 push` sends."""

    elements: dict[str, Annotated[Element, BeforeValidator(_element)]] = Field(
        min_length=1,
        examples=[{"rate": {"element": "f7n9E0hX8qk"}, "p_above_50": {"element": "Ix2HsbDMLea"}}],
        description="data element of each statistic, a column of periods.csv, areas.csv or "
        "levels_training.csv; also `rate: f7n9E0hX8qk`",
    )
    attribute_combo: Text | None = Field(
        None,
        examples=["HllvX50cXC0"],
        description="attribute option combo; the default one where there is none",
    )
    decimals: Annotated[Whole, Field(ge=0, le=12)] = Field(
        2, description="decimals of the values; halves are rounded away from 0"
    )
    periods: Literal["latest", "all"] | tuple[Text, ...] = Field(
        "latest",
        examples=[["2024-01", "2024-02"]],
        description="periods of a run with `time` to send: latest, all, or a list",
    )
    forecast: bool = Field(True, description="whether forecasts are sent, too")
    period: Text | None = Field(
        None,
        examples=["2024S1"],
        description="period, in DHIS2's code, of a map whose counts have none",
    )
    data_set: Text | None = Field(
        None,
        examples=["pBOMPrpg1QX"],
        description="data set of the elements, for servers that ask for one to read values",
    )

    @model_validator(mode="after")
    def _each_once(self) -> Push:
        taken: dict[tuple[str, str | None], str] = {}
        for name, to in self.elements.items():
            other = taken.setdefault((to.element, to.combo), name)
            if other != name:
                raise config_error(
                    found=f"elements: {other} and {name} go to one data element, {to.element}",
                    remedy="give each an element or a combo of its own",
                )
        return self


class Dhis2(Section):
    """``dhis2``: boundaries and counts from DHIS2, results to it; the login is never here."""

    url: Annotated[str, AfterValidator(_server)] | None = Field(
        None,
        examples=["https://dhis2.example.org"],
        description=f"address of the server; its login is in the environment: {TOKEN}, or {USER} "
        f"and {PASSWORD}",
    )
    pull: Pull | None = Field(
        None, description="what `disagg dhis2 pull` writes to areas.path and counts.path"
    )
    push: Push | None = Field(None, description="what `disagg dhis2 push` sends")

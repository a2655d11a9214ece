"""``points``: survey clusters, facilities and zones beside the counts of areas."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.config.base import Section, config_errors
from pipeline.config.values import Encoding, InputPath, Number
from pipeline.responses.response import Wrong

COUNTS, POSITIVES = ("negative_binomial", "poisson"), ("binomial", "beta_binomial")
PointLikelihood = Literal["binomial", "beta_binomial", "poisson", "negative_binomial"]


class Points(Section):
    """An entry of ``points``: a table with a row for each cluster or facility."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")] = Field(
        examples=["dhs"], description="name of the source, in tables and parameters: a word"
    )
    path: InputPath = Field(
        examples=["clusters.csv"], description="table: CSV, Parquet, .xlsx or a vector file"
    )
    sheet: str | None = Field(
        None, examples=["2024"], description="sheet of an .xlsx; the first by default"
    )
    layer: str | None = Field(
        None,
        examples=["clusters"],
        description="layer of a vector file; required if it has several",
    )
    encoding: Encoding | None = Field(
        None,
        examples=["cp1252"],
        description="encoding of a CSV file; by default UTF-8, or cp1252 if it is not",
    )
    id: str = Field(examples=["DHSCLUST"], description="column that identifies a point")
    lon: str = Field(
        "lon",
        examples=["LONGNUM"],
        json_schema_extra={"unit": "degrees, WGS 84"},
        description="column with the longitude",
    )
    lat: str = Field(
        "lat",
        examples=["LATNUM"],
        json_schema_extra={"unit": "degrees, WGS 84"},
        description="column with the latitude",
    )
    value: str = Field(
        examples=["positive"], description="column with the positives, or the counts"
    )
    tested: str | None = Field(
        None,
        examples=["examined"],
        description="column with the numbers tested; without it values are counts",
    )
    radius: Annotated[Number, Field(ge=0)] | Literal["dhs"] = Field(
        0,
        examples=[5, "dhs"],
        json_schema_extra={"unit": "km"},
        description="how far points were displaced at most, by a uniform angle and distance; dhs: "
        "2 km in towns, else 5 km and for one in a hundred 10 km, with `urban`",
    )
    urban: str | None = Field(
        None,
        examples=["URBAN_RURA"],
        description="column with U or R, for `radius: dhs`",
    )
    catchment: Annotated[Number, Field(gt=0)] | None = Field(
        None,
        examples=[10],
        json_schema_extra={"unit": "km"},
        description="radius of the circle that a facility's people live in; required for counts",
    )
    zone: str | None = Field(
        None,
        examples=["province"],
        description="attribute of areas.path, in place of a place: `id` has its values, and a row "
        "counts all areas with that value; the counts of those that have one are taken off",
    )
    period: str | None = Field(
        None,
        examples=["month"],
        description="column with the period, of totals of zones by period; with `time`",
    )
    likelihood: PointLikelihood | None = Field(
        None,
        description="law of a value; by default negative_binomial for counts, poisson for those "
        "of zones, and for positives binomial beside counts of areas, beta_binomial beside "
        "proportions",
    )
    offset: bool | None = Field(
        None,
        description="whether the scale between source and areas is learnt; false only where both "
        "measure the same rate, as zones do by default; else true",
    )
    effect: bool = Field(
        True,
        description="whether points differ by a log-normal factor, with Poisson counts, and with "
        "binomial positives beside counts of areas",
    )

    @model_validator(mode="after")
    def _together(self) -> Points:
        wrong = []
        if (self.radius == "dhs") != (self.urban is not None):
            wrong.append(("urban", "`radius: dhs` and `urban`, one without the other", "give both"))
        if self.catchment is not None and self.radius != 0:
            wrong.append(("catchment", "given with a radius", "remove one of them"))
        if self.zone is not None:
            placed = ("lon", "lat", "radius", "urban", "catchment")
            more = [key for key in placed if key in self.model_fields_set]
            wrong += [(key, "given with a zone", "remove one of them") for key in more]
        elif self.catchment is None and self.tested is None:
            found = "missing, and values without `tested` are counts"
            wrong.append(("catchment", found, "add it (km), a zone, or the column `tested`"))
        law = self.likelihood
        of, laws = ("counts", COUNTS) if self.tested is None else ("positives", POSITIVES)
        if law is not None and law not in laws:
            wrong.append(("likelihood", f"{law} is no law of {of}", f"give {' or '.join(laws)}"))
        if wrong:
            raise config_errors(wrong)
        return self

    @property
    def source(self) -> dict[str, Any]:
        """What the model is told of it."""
        of_counts = "negative_binomial" if self.zone is None else "poisson"
        law = self.likelihood or (of_counts if self.tested is None else None)
        named = {} if law is None else {"likelihood": law}
        where = {"displaced": True} if self.radius != 0 else {}
        offset = self.zone is None if self.offset is None else self.offset
        return {**named, **where, "offset": offset, "effect": self.effect}


def _wrong_times(config: Any) -> Wrong | None:
    """Return what of points does not go with the periods of a configuration."""
    for each in config.points:
        if config.time is None and each.period is not None:
            found = f"{each.name} has a column with the period, and there is no `time`"
            return "points", found, "give the totals of one period, or `time: {step: ...}`"
        if config.time is None:
            continue
        if each.zone is None:
            found = f"{each.name} has points at places, and `time`: these are of one period"
            return "points", found, "map one period, or leave the points out"
        if each.period is None:
            found = f"{each.name} has totals of zones, and `time`, but no column with the period"
            return "points", found, "name it: period"
    given = {key for each in config.points for key in ("likelihood", "offset", "effect")
             if key in each.model_fields_set}  # fmt: skip
    if config.time is not None and given:
        found = f"{min(given)} given with `time`: totals of zones have the law of the areas"
        return "points", found, "remove it"
    return None


def wrong_points(config: Any) -> Wrong | None:
    """Return what of a configuration does not go with its points."""
    if not config.points:
        return None
    # Here, so that commands that read no points start without NumPy.
    from models.core.errors import ParameterError
    from models.likelihoods.registry import find_likelihood
    from models.likelihoods.sources import several_sources

    names = [each.name for each in config.points]
    if len(set(names)) < len(names):
        return "points", "two sources have the same name", "give each a name of its own"
    wrong = _wrong_times(config)
    if wrong is not None:
        return wrong
    if config.model.kind not in ("vbagg", "space_time"):
        found = f"given with model.kind: {config.model.kind}"
        return "points", found, "give vbagg, or leave the points out"
    zones = [each.name for each in config.points if each.zone is not None]
    if zones and config.counts is not None and config.counts.weight is not None:
        found = f"{zones[0]} has zones, and counts.weight is given, which has none for them"
        return "points", found, "leave one of them out"
    own = config.counts is not None and config.counts.tested is not None
    for each in config.points:
        if each.zone is not None and (each.tested is not None) != own:
            found = f"of {each.name} and counts.tested, one has numbers tested"
            return "points", found, "give both or none: counts of areas are taken off their zone's"
    if config.time is not None:
        return None
    if isinstance(config.evaluate.calibration, int):
        found = "given with points, whose responses it does not simulate"
        return "evaluate.calibration", found, "remove it, or the points"
    spec = config.model
    try:
        areas = find_likelihood(spec.likelihood, area_effect=spec.has_area_effect)
        several_sources(areas, {each.name: each.source for each in config.points})
    except ParameterError as error:
        found, _, remedy = str(error).removeprefix("sources: ").rpartition("; ")
        return "points", found, remedy
    return None

"""Keys ``output.areas`` and ``output.reconcile``: areas of other levels, totals to agree with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from pipeline.config.base import Section, config_error
from pipeline.config.input_schema import Areas
from pipeline.config.series import MARKS
from pipeline.config.values import InputPath

TRAINING, COUNTRY, PIXELS = "training", "country", "pixels"
#: Names that a level cannot have: levels that are always there, and other sheets and curves.
RESERVED = (TRAINING, COUNTRY, PIXELS, "glossary")
COUNTS = "counts"
N_LETTER = 31  # of the name of a sheet of a workbook
_NAME = re.compile(r"\w[\w-]*")


def _level(value: str) -> str:
    if not _NAME.fullmatch(value) or len(value) > N_LETTER:
        raise config_error(
            found=f"{value!r} cannot be part of a file's name",
            remedy=f"give a word of at most {N_LETTER} letters, digits, - and _, such as province",
        )
    if value.casefold() in RESERVED:
        raise config_error(
            found=f"{value!r} is a name of the run's own",
            remedy="give another, such as province",
        )
    return value


class LevelAreas(Areas):
    """``output.areas``: areas of one more level, with or without counts."""

    path: InputPath = Field(
        examples=["provinces.gpkg"],
        description="boundaries: GeoPackage, Shapefile, GeoJSON, GeoParquet or KML",
    )
    layer: str | None = Field(
        None, examples=["provinces"], description="layer of the file; required if it has several"
    )
    id: str = Field(examples=["province_id"], description="column that identifies an area")
    name: str | None = Field(
        None, examples=["province"], description="column with the areas' names"
    )
    level: Annotated[str, AfterValidator(_level)] = Field(
        examples=["province"],
        description="name of the level, such as province; part of the files' names",
    )


class Reconcile(Section):
    """``output.reconcile``: totals that a second set of maps and columns adds up to."""

    to: str = Field(
        examples=["counts"],
        description="'counts', the reported totals, or the column of each level's file with them; "
        "with `time` that of each period, such as total_{period}",
    )
    levels: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        (TRAINING,),
        description="levels whose totals are kept; where they contradict, the first listed holds",
    )

    @model_validator(mode="after")
    def _each_once(self) -> Reconcile:
        if len(set(self.levels)) < len(self.levels):
            raise config_error(found="a level is there twice", remedy="give each once")
        return self


def check_levels(areas: tuple[LevelAreas, ...], reconcile: Reconcile | None) -> None:
    """Raise an error if two levels have one name, or a level to reconcile is not there."""
    names = [each.level for each in areas]
    folded = [name.casefold() for name in names]
    for n, name in enumerate(names):
        if folded.index(folded[n]) < n:
            raise config_error(
                found=f"two of output.areas have the level {name!r}",
                remedy="give each a level of its own",
            )
    if reconcile is None:
        return
    known = [TRAINING, *names, COUNTRY]
    for name in reconcile.levels:
        if name not in known:
            raise config_error(
                found=f"output.reconcile.levels: there is no level {name!r}",
                remedy=f"choose from {', '.join(known)}",
            )
    if reconcile.to != COUNTS and COUNTRY in reconcile.levels:
        raise config_error(
            found=f"output.reconcile: no file has a column {reconcile.to!r} of the country",
            remedy="remove `country` from its levels, or give a level with one area",
        )


def fixed_total(data: Mapping[str, Any]) -> bool:
    """Return whether totals to agree with are of one period, whichever is mapped.

    Parameters
    ----------
    data : mapping
        A configuration with ``time`` that is not yet validated, as it is written.
    """
    output, time = data.get("output"), data.get("time")
    spec = output.get("reconcile") if isinstance(output, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(to := spec.get("to"), str) or to == COUNTS:
        return False
    of_years = isinstance(time, Mapping) and time.get("step") == "year"
    marks = MARKS if of_years else MARKS[:1]
    levels, areas = spec.get("levels", [TRAINING]), output.get("areas") or []  # type: ignore[union-attr]
    if not (isinstance(levels, list) and isinstance(areas, list)):
        return False  # the validation reports it
    paths = {each.get("level"): each.get("path") for each in areas if isinstance(each, Mapping)}
    given = [to], [str(paths.get(name)) for name in levels]
    return not any(all(any(m in text for m in marks) for text in texts) for texts in given)

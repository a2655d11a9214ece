"""Section ``check`` of the configuration: suspicions that the user has looked into."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from pipeline.config.base import Section, config_error
from pipeline.config.suggestions import suggest_value

#: Codes of the suspicions of :mod:`pipeline.ingest.suspicions`, with what each is about.
CODES = {
    "nodata": "a number that stands apart from all others, probably of missing pixels or rows",
    "scale": "values that are a known multiple of their unit",
    "density": "people per km2 taken for people per pixel, or the reverse",
    "thousands": "people in thousands or millions",
    "classes": "numbers of classes read as a quantity, or shares of classes that sum to 1",
    "resolution": "a grid so coarse that people change areas",
    "rate": "more cases than people",
    "count": "a count hundreds of times away from those around it",
    "fraction": "counts that are no whole numbers",
    "separator": "a mark between the digits of a count, where others have none",
    "tested": "fewer people than tested",
    "zeros": "not one case in any area, of all periods or of one",
    "shares": "shares or percentages taken for counts",
    "threshold": "a threshold far outside the rates of the areas",
    "swapped": "latitude and longitude in the wrong order",
    "ids": "ids that differ in capitals, accents, spaces or leading zeros",
    "column": "a column of ids, of people or of one number taken for that of the counts",
    "suppressed": "counts that are intervals in all areas and periods",
    "periods": "periods of the counts after today, years away from others, or without any count",
    "changes": "a part of an area that was split is missing from areas.changes",
    "encoding": "a table that is not UTF-8 text, or names of areas that do not decode",
    "cells": "rows with fewer cells than the header, or a count without its weight",
    "missing": "words such as n/a or - that are taken for no count",
    "coverage": "an area most of whose people live where a covariate has no value",
    "outside": "areas of a level far from those with counts",
    "overlap": "areas that overlap or are there twice",
}


def _accepted(value: str) -> str:
    code = value.partition(":")[0]
    if code not in CODES:
        raise config_error(
            found=f"{code!r} is not a suspicion", remedy=suggest_value(code, list(CODES))
        )
    return value


class Check(Section):
    """``check``: suspicions that are no mistake."""

    accept: tuple[Annotated[str, AfterValidator(_accepted)], ...] = Field(
        (),
        examples=[["scale", "scale:covariates.evi"]],
        description="suspicions not to report: codes such as 'scale', or of one input, "
        "'scale:covariates.evi'",
    )

    def accepts(self, code: str, place: str) -> bool:
        """Return whether a suspicion of a key is accepted."""
        return code in self.accept or f"{code}:{place.partition(' (')[0]}" in self.accept

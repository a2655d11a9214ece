"""Averages: the mean of a quantity over an area's exposure, such as its yield per hectare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.core.plurals import areas_text
from pipeline.responses.response import Given, Response


class Averages(Response):
    """Averages over areas, which do not add up; the map has their own unit."""

    name = "averages"
    about = "average of a quantity over the exposure of an area"
    of = "average"
    adds_up = False
    adds_up_in_time = False
    quantity = "value"
    rates = "averages"
    noun = "value"
    against = "one average"
    totals = "totals"
    per = "", ""

    @classmethod
    def takes(cls, given: Given) -> bool:
        """See :class:`Response`."""
        if given.likelihood is None or given.of is not None:
            return given.of == cls.of
        return given.weight is not None and not given.likelihood.counts

    @property
    def given_values(self) -> str:
        """See :class:`Response`."""
        return self.rates

    def expected_elsewhere(self, found: Mapping[str, Any]) -> str:
        """See :class:`Response`: a sum of values times weights has no meaning of its own."""
        areas, unit = areas_text(found["n"]), self.given.unit
        if found["expected"] is None or not found["people"]:
            return (
                f"{areas} without a value: {self.rates} in areas.csv, but none of all together, as "
                f"the exposure of some ({self.exposure}) is not known"
            )
        mean, low, high = (
            f"{found[key] / found['people']:,.3g}"
            for key in ("expected", "count_lower", "count_upper")
        )
        return (
            f"{areas} without a value: an average of {mean}{f' {unit}' if unit else ''} expected "
            f"({self.texts['interval']} predictive interval {low} to {high}), over "
            f"{found['people']:,.0f} {self.weight_unit}"
        )

"""Averages: the mean of a quantity over an area's exposure, such as its yield per hectare."""

from __future__ import annotations

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

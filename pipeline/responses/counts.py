"""Counts: the number of cases of an area."""

from __future__ import annotations

from pipeline.responses.response import Given, Response


class Counts(Response):
    """Cases among the people of an area, or per unit of a weight."""

    name = "counts"
    about = "number of cases of an area"
    of = "total"
    countable = True
    scores = "counts"
    changes = "counts"
    totals = "counts"

    @classmethod
    def takes(cls, given: Given) -> bool:
        """See :class:`Response`."""
        return given.likelihood is not None and given.likelihood.counts

    @property
    def total(self) -> str:
        """See :class:`Response`."""
        return self.given.unit or "cases"

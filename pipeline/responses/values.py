"""Values: the total of a real-valued quantity in an area, such as its harvest."""

from __future__ import annotations

from pipeline.responses.response import Given, Response


class Values(Response):
    """Totals that are no numbers of cases."""

    name = "values"
    about = "total of a real-valued quantity in an area"
    of = "total"
    noun = "value"
    against = "one value"
    totals = "values"

    @classmethod
    def takes(cls, given: Given) -> bool:
        """See :class:`Response`."""
        return given.likelihood is not None and not given.likelihood.counts

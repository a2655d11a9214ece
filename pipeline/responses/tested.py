"""Tested: the positives among the people tested in an area."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pipeline.responses.response import Given, Response, Wrong
from pipeline.responses.table import Columns, Table

if TYPE_CHECKING:
    from models.likelihoods.likelihood import Likelihood


class Tested(Response):
    """Positives among people tested; the map is of the prevalence."""

    name = "tested"
    about = "number of positives among the people tested in an area"
    countable = True
    adds_up_in_time = False
    sampled = True
    most = 1.0
    quantity = "prevalence"
    rates = "prevalences"
    scores = "counts"
    changes = "trials"
    exposure = "people tested"
    freer: ClassVar[Mapping[str, str]] = {"binomial": "beta_binomial"}
    per = "person tested", "tested"

    @classmethod
    def takes(cls, given: Given) -> bool:
        """See :class:`Response`."""
        return given.likelihood is not None and given.likelihood.needs_trials

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        """See :class:`Response`."""
        return likelihood.needs_trials

    def problem(self) -> Wrong | None:
        """See :class:`Response`."""
        given = self.given
        keys = [key for key in ("weight", "of") if getattr(given, key) is not None]
        if given.tested is not None and keys:
            remedy = "remove it: the number tested is the exposure of positives"
            return "", f"counts.{keys[0]} with counts.tested", remedy
        return super().problem()

    @property
    def without(self) -> Mapping[str, str]:
        """See :class:`Response`."""
        found = "output.reconcile with counts.tested: positives are not those of all people"
        return {**super().without, "output.reconcile": found}

    def read(self, table: Table) -> Columns:
        """See :class:`Response`."""
        value, of = self.given.value, str(self.given.tested)
        counts = table.numbers(value, whole=True)
        tested = None if counts is None else table.numbers(of, whole=True)
        if counts is None or tested is None:
            return Columns(counts)
        margins = table.margins(value)
        if margins is not None:  # among three tested, <5 is 0 to 3
            low, high = counts - margins, (counts + margins).clip(upper=tested)
            high = high.where(margins > 0, counts).clip(lower=low)
            counts, margins = 0.5 * (low + high), 0.5 * (high - low)
        columns = {value: counts, of: tested}
        broken = {name: column % 1 > 0 for name, column in columns.items()}
        if margins is not None:
            broken[value] &= margins == 0
        for name, wrong in broken.items():
            if wrong.any():
                found = f"column {name!r} has a number that is not whole"
                found += f" ({columns[name][wrong].iloc[0]:g})"
                table.report(found, "give numbers of people, not shares", wrong)
        over = (counts > tested) & ~broken[value] & ~broken[of]
        if over.any():
            cases, people = (f"column {name!r} has" for name in columns)
            found = f"{cases} more positives than {people} tested people"
            found += f" ({counts[over].iloc[0]:g} of {tested[over].iloc[0]:g})"
            table.report(found, "correct the counts or the numbers tested", over)
        # Nobody tested tells nothing: such an area has no count.
        return Columns(counts.where(tested > 0), tested, margins=margins)

    @property
    def totals(self) -> str:  # type: ignore[override]
        """See :class:`Response`."""
        return self.total

    @property
    def total(self) -> str:
        """See :class:`Response`."""
        return self.given.unit or "positives"

    @property
    def expected(self) -> str:
        """See :class:`Response`."""
        return f"expected {self.total} if everybody were tested"

    @property
    def fitted(self) -> str:
        """See :class:`Response`."""
        return f"expected {self.total} among those tested"

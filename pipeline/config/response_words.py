"""The words for a run's response: what the areas' values are, and what the map shows of them.

Every text about the response (descriptions and units of rasters, titles, aliases of columns, lines
of the console, tables of scores) takes its words from :meth:`ResponseWords.of`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.config.schema import Config


@dataclass(frozen=True)
class ResponseWords:
    """Words for a response.

    Attributes
    ----------
    quantity : str
        What a pixel of the map has: ``rate``, ``prevalence``, ``value`` or ``probability``.
    total : str
        Unit of an area's total: ``cases``, ``positives``, or ``counts.unit``.
    totals : str
        Name of several totals in titles: ``counts``, ``positives``, ``values`` or, beside averages,
        ``totals``.
    per : str
        Unit of the exposure, in the plural; empty where the map has no denominator.
    each : str
        Unit of the exposure, in the singular.
    exposure : str
        What values are per unit of.
    weight_unit : str
        Unit of the weights of pixels, and of the areas' column ``people``: ``people``, ``km2``, or
        that of ``counts.weight``.
    """

    quantity: str
    total: str
    totals: str
    per: str
    each: str
    exposure: str
    weight_unit: str = ""

    @classmethod
    def of(cls, config: Config) -> ResponseWords:
        """Return the words of a configuration."""
        surface = "people" if config.population is not None else "km2"
        if config.counts is None:
            return cls("probability", "positives", "labels", "", "", "", surface)
        counts, response = config.counts, config.model.response
        if response.needs_trials:
            total = counts.unit or "positives"
            tested = "people tested"
            return cls("prevalence", total, total, "tested", "person tested", tested, surface)
        total = counts.unit or ("cases" if response.counts else "value")
        totals = "counts" if response.counts else "values"
        unit = surface if counts.weight is None else counts.weight_unit or counts.weight
        if config.averages:
            return cls("value", total, "totals", "", "", unit, unit)
        each = "person" if unit == "people" else unit
        return cls("rate", total, totals, unit, each, unit, unit)

    def rate_unit(self, rate_per: float) -> str:
        """Return the unit of the map: ``cases per 1,000 people``, ``t per ha``, or ``1``."""
        if not self.per:
            return "1" if self.quantity == "probability" else self.total
        if rate_per == 1:
            return f"{self.total} per {self.each}"
        return f"{self.total} per {rate_per:,g} {self.per}"

    @property
    def rates(self) -> str:
        """Name of several areas' own quantities: ``rates``, ``prevalences`` or ``averages``."""
        return {"rate": "rates", "prevalence": "prevalences", "value": "averages"}.get(
            self.quantity, "probabilities"
        )

    @property
    def area_total(self) -> str:
        """Unit of an area's total in tables; of averages, the value times its weight."""
        return f"{self.total} x {self.exposure}" if self.quantity == "value" else self.total

    @property
    def expected(self) -> str:
        """The expected total of a pixel: ``expected cases``."""
        if self.quantity == "prevalence":
            return f"expected {self.total} if everybody were tested"
        return f"expected {self.total}"

    @property
    def fitted(self) -> str:
        """The expected total of an area's own exposure: of those tested, not of everybody."""
        tested = self.quantity == "prevalence"
        return f"expected {self.total} among those tested" if tested else self.expected

    @property
    def nothing(self) -> str:
        """Exposure and total of an area that is left out: ``people or cases``."""
        of = "a value" if self.quantity == "value" else self.total
        return f"{self.weight_unit} or {of}"

    @property
    def placeholders(self) -> dict[str, str]:
        """Return the words that templates of texts may name."""
        return {
            "quantity": self.quantity,
            "rates": self.rates,
            "expected": self.expected,
            "fitted": self.fitted,
            "total": self.total,
            "totals": self.totals,
            "area_total": self.area_total,
            "exposure": self.exposure,
            "weight_unit": self.weight_unit,
        }

"""The interface of a response: everything that depends on what an area's value is.

A kind of response is a class in a file of its own and a line of
:mod:`pipeline.responses.registry`. No other module asks which kind it is: it asks the kind for what
it needs. ``docs/design/response.md`` says what belongs here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pipeline.core.plurals import areas_text
from pipeline.responses.table import Columns, Table

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from models.likelihoods.likelihood import Likelihood

#: Words that texts may name, and that `evaluation.json` keeps.
WORDS = (
    *("quantity", "rates", "expected", "fitted"),
    *("total", "totals", "area_total", "exposure", "weight_unit"),
)
_OF_COUNTS = "the map is of counts"

#: Key, finding and remedy.
Wrong = tuple[str, str, str]


@dataclass(frozen=True)
class Given:
    """What a configuration says of its responses.

    Attributes
    ----------
    section : {"counts", "labels"}
        Section of the configuration.
    value : str
        Column of the values.
    likelihood : Likelihood or None
        None for models of labels.
    surface : str
        Unit of the pixels' own weights: ``people``, or ``km2`` without a population.
    rate_per, interval : float
        Of ``output``.
    tested, weight, weight_unit, unit, of : str or None
        Keys of ``counts``.
    step : str
        Length of a period of a series, such as ``month``; empty for a map of one period.
    spread : bool
        Whether the model has an uncertainty.
    """

    section: Literal["counts", "labels"]
    value: str
    likelihood: Likelihood | None
    surface: str = "people"
    rate_per: float = 1000
    interval: float = 0.9
    tested: str | None = None
    weight: str | None = None
    weight_unit: str | None = None
    unit: str | None = None
    of: str | None = None
    step: str = ""
    spread: bool = True


@dataclass(frozen=True)
class Response:
    """A kind of response, with what a configuration says of it.

    A subclass changes the attributes and methods that differ from these, which are those of rates
    with joint draws under a likelihood that the configuration names. Texts may name the words of
    :attr:`texts`, such as ``{quantity}``.

    Attributes
    ----------
    given : Given
    name, about : str
        Its name in the registry, and what a value is.
    of : str
        Word of ``counts.of`` that asks for it; empty if there is none.
    countable : bool
        Whether values are numbers of cases: whole, with the noise of counts, on a logarithmic axis.
    adds_up : bool
        Whether the values of areas add up to that of the country. Others are stored times their
        exposure; their map has their own unit, and no ``rate_per``.
    adds_up_in_time : bool
        Whether the values of periods add up to that of them together: a rate is then of a period.
    sampled : bool
        Whether the exposure says how many were looked at, and not who is at risk.
    classes : bool
        Whether values are classes: folds share them out, and a fit needs two of them.
    drawn : bool
        Whether areas have joint posterior draws, and tables of levels are made of them.
    most : float
        Upper limit of a pixel's quantity, per unit of exposure.
    noun, against : str
        What an area without a value lacks; what the map is compared with.
    quantity, rates, totals : str
        What a pixel of the map has: ``rate``; the same of several areas; name of several values.
    scores : str
        Its task in :data:`pipeline.evaluation.tasks.TASKS`.
    changes : {"counts", "trials", "values"} or None
        Noise of the values, by which changes are told from chance; None: they are not.
    shows : frozenset of str
        Families of rasters that are made (:attr:`RasterProduct.shows`).
    mean_map, spread_maps : str, tuple of str
        Rasters, without suffix, of the mean, and of its spread: the first is shown first, the last
        is the standard deviation.
    fit_picture : str
        Picture of the fit in :data:`pipeline.reporting.preview.FIT_PICTURES`.
    level : str
        Column of ``areas.csv`` with the fitted quantity.
    area_columns : mapping
        Meaning of each column of ``areas.csv``.
    sheet_columns : mapping
        Columns of the page's table of areas, with their headings.
    sheet_note : str
        Note of that table.
    facts : mapping
        What the page says of an area that is chosen on the map: titles with their columns, one, or
        a value with the ends of its interval.
    layers : mapping
        Columns that colour the areas on the page, with their titles.
    freer : mapping
        By a likelihood whose variance follows from its mean: one that learns it.
    without : mapping
        Keys of the configuration that do not go with it, with what is said of them, and after a
        semicolon what to do if that is not to remove them.
    """

    given: Given

    name = ""
    about = ""
    of = ""
    countable = False
    adds_up = True
    adds_up_in_time = True
    sampled = False
    classes = False
    drawn = True
    most = float("inf")
    scores = "values"
    changes: ClassVar[Literal["counts", "trials", "values"] | None] = "values"
    noun = "count"
    against = "one rate"
    quantity = "rate"
    rates = "rates"
    totals = "values"
    mean_map = "rate_mean"
    fit_picture = "scatter"
    level = "fitted_rate"
    freer: ClassVar[Mapping[str, str]] = {"exponential": "gamma"}
    area_columns: ClassVar[Mapping[str, str]] = {
        "observed": "observed {area_total}",
        "observed_lower": "suppressed {area_total}: least that they may be",
        "observed_upper": "suppressed {area_total}: most that they may be",
        "counted": "periods with a count",
        "counted_in": "areas of before whose count it is a part of",
        "fitted": "fitted {area_total}",
        "fitted_sd": "fitted {area_total}: standard deviation",
        "fitted_lower": "fitted {area_total}: {interval} interval, lower end",
        "fitted_upper": "fitted {area_total}: {interval} interval, upper end",
        "people": "{weight_unit}",
        "tested": "people tested",
        "observed_rate": "observed {quantity} ({rate_unit})",
        "fitted_rate": "fitted {quantity} ({rate_unit})",
        "fitted_rate_lower": "fitted {quantity}: {interval} interval, lower end ({rate_unit})",
        "fitted_rate_upper": "fitted {quantity}: {interval} interval, upper end ({rate_unit})",
        "count_lower": "predicted {area_total}: {interval} interval, lower end",
        "count_upper": "predicted {area_total}: {interval} interval, upper end",
        "residual": "observed less fitted, in predictive standard deviations",
        "in_training": "has a count, and is in the fit",
    }
    sheet_columns: ClassVar[Mapping[str, str]] = {
        "people": "{weight_unit}",
        "tested": "tested",
        "observed": "observed {area_total}",
        "fitted": "fitted {area_total}",
        "observed_rate": "observed {quantity}",
        "fitted_rate": "fitted {quantity}",
        "fitted_rate_lower": "from",
        "fitted_rate_upper": "to",
        "residual": "residual",
    }
    sheet_note = (
        "{Rates} are {rate_unit}; from, to: {ends} the fitted {quantity}; residual: "
        "observed less fitted, in predictive standard deviations."
    )
    facts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Fitted {quantity}, {rate_unit}": ("fitted_rate", "fitted_rate_lower", "fitted_rate_upper"),
        "Observed {quantity}, {rate_unit}": ("observed_rate",),
        "Fitted {area_total}": ("fitted", "fitted_lower", "fitted_upper"),
        "Observed {area_total}": ("observed",),
    }
    layers: ClassVar[Mapping[str, str]] = {
        "fitted_rate": "Areas: fitted {quantity}",
        "observed_rate": "Areas: observed {quantity}",
    }

    # Which configurations have it.

    @classmethod
    def takes(cls, given: Given) -> bool:
        """Return whether a configuration has responses of this kind."""
        return bool(cls.of) and given.of == cls.of

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        """Return whether a likelihood is one of such responses."""
        return likelihood.counts == cls.countable and not likelihood.needs_trials

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of an area's value."""
        if self.given.likelihood is None:
            message = f"{self.name}: no likelihood, though the configuration passed its checks"
            raise RuntimeError(message)
        return self.given.likelihood

    def problem(self) -> Wrong | None:
        """Return what is wrong with the section, if anything."""
        given = self.given
        if (given.tested is not None) != self.likelihood.needs_trials:
            return _wrong_trials()
        if not self.fits(self.likelihood):
            found = f"counts.of: {given.of} under the {self.likelihood} likelihood"
            found += ", which is of counts" if self.likelihood.counts else ""
            return "", found, "give totals, or likelihood: normal, gamma or exponential"
        if given.weight_unit is not None and given.weight is None:
            return "", "counts.weight_unit without counts.weight", "give both, or neither"
        if not self.adds_up and given.rate_per != 1:
            per = f"{given.rate_per:.15g}"
            found = f"output.rate_per is {per}, but the map of {self.rates} has their own unit"
            return "", found, "remove it, or give counts.of: total"
        return None

    @property
    def without(self) -> Mapping[str, str]:
        """See the class."""
        found = dict.fromkeys(("gates.max_log_loss", "gates.max_calibration_error"), _OF_COUNTS)
        if not self.maps_totals:
            found["output.reconcile"] = (
                "output.reconcile, but the map shows no cases that could add up to totals; remove "
                "it; counts of people's cases, without counts.weight, have them"
            )
        return found

    def unsized(self, max_epochs: int) -> dict[str, dict[str, Any]]:
        """Return what ``auto`` stands for, by section; empty where it follows the size."""
        del max_epochs
        return {}

    # What is read.

    def read(self, table: Table) -> Columns:
        """Read and check the columns; problems are added to the table's."""
        given, n_before = self.given, table.n_problem
        signed = self.likelihood.responses[0] < 0
        values = table.numbers(given.value, signed=signed, whole=self.countable)
        if values is None:
            return Columns()
        margins = table.margins(given.value) if self.countable else None
        if table.n_problem == n_before:
            self.check(values, table)
        weights = None if given.weight is None else table.numbers(given.weight)
        if weights is None:
            return Columns(values, margins=margins)
        self.check_weights(values, weights, table)
        return Columns(values.where(weights.notna()), None, weights, margins)

    def check(self, values: pd.Series, table: Table) -> None:
        """Check the values (n_area,) of areas, NaN where missing."""
        known = values.dropna()
        # No case at all is a map of upper limits, and a suspicion; equal values have no map.
        if not self.countable and len(known) > 1 and known.nunique() == 1:
            found = f"column {self.given.value!r} is {known.iloc[0]:g} for every area"
            table.report(found, "give the column of the values")

    def check_weights(self, values: pd.Series, weights: pd.Series, table: Table) -> None:
        """Check the exposures (n_area,) of the areas beside their values."""
        value, weight = self.given.value, self.given.weight
        if not (weights > 0).any():
            found = f"column {weight!r} is 0 or missing for every area"
            table.report(found, "give the column of the areas' exposure")
        elif self.adds_up:
            wrong = (weights == 0) & (values != 0) & values.notna()
            if wrong.any():
                found = f"column {value!r} has a value, but column {weight!r} is 0"
                table.report(found, "correct the value or the weight", wrong)

    def described(self, values: pd.Series) -> str:
        """Describe the values of the areas in a line."""
        total = f"{values.sum():,.0f} in all, " if self.countable else ""
        return f"{total}{values.min():g} to {values.max():g}"

    def exposure_of(self, columns: Columns) -> tuple[pd.Series | None, str] | None:
        """Return the given exposure by area and its name; None if it is that of the pixels."""
        if self.given.tested is not None:
            return columns.tested, "tested"
        return None if self.given.weight is None else (columns.weights, self.weight_unit)

    def exposure_in(self, store: Any) -> np.ndarray:
        """Return the exposure of each area of a bag store, (n_bag,)."""
        exposure: np.ndarray = store.bag_weight if self.given.tested is None else store.trials
        return exposure

    def synthetic(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return responses like those of a run from counts (n_bag,), and numbers tested."""
        return (y, None) if self.given.tested is None else (y.clip(max=99.0), 0.0 * y + 100.0)

    # Its words.

    @property
    def rate_per(self) -> float:
        """Exposure per unit of the map."""
        return self.given.rate_per

    @property
    def total(self) -> str:
        """Unit of an area's total: ``cases``, ``positives``, or ``counts.unit``.

        Values without a unit are called what their column is.
        """
        return self.given.unit or self.given.value

    @property
    def given_values(self) -> str:
        """Name of the values as they are given."""
        return self.totals

    @property
    def weight_unit(self) -> str:
        """Unit of the weights of pixels, and of the areas' column ``people``."""
        given = self.given
        return given.surface if given.weight is None else given.weight_unit or given.weight

    @property
    def exposure(self) -> str:
        """What values are per unit of."""
        return self.weight_unit

    @property
    def per(self) -> tuple[str, str]:
        """Unit of the exposure, singular and plural; empty where the map has no denominator."""
        unit = self.weight_unit
        return "person" if unit == "people" else unit, unit

    def unit_per(self, rate_per: float) -> str:
        """Return the unit of a map per so much exposure: ``cases per 1,000 people``, ``t/ha``."""
        return f"{self.total} {self.per_exposure(rate_per)}" if self.per[1] else self.total

    def per_exposure(self, rate_per: float) -> str:
        """Return the denominator: ``per person``, ``per 1,000 people``; a million in full."""
        each, many = self.per
        return f"per {each}" if rate_per == 1 else f"per {rate_per:,.15g} {many}"

    @property
    def rate_unit(self) -> str:
        """Unit of the map; of a series with its period: ``cases per 1,000 people a month``."""
        return self.unit_per(self.rate_per) + self.each_period

    @property
    def each_period(self) -> str:
        """What follows the unit of a rate that is of a period of a series: `` a month``."""
        own = self.weight_unit == self.given.surface  # a weight may hold the time: person-months
        return f" a {self.given.step}" if self.given.step and self.adds_up_in_time and own else ""

    def in_unit(self, text: str) -> str:
        """Return a text with the unit of the map for ``{}``; empty if the map has no unit."""
        return text.format(self.rate_unit)

    @property
    def area_total(self) -> str:
        """Unit of an area's total in tables; of averages, the value times its weight."""
        return self.total if self.adds_up else f"{self.total} x {self.exposure}"

    @property
    def expected(self) -> str:
        """The expected total of a pixel: ``expected cases``."""
        return f"expected {self.total}"

    @property
    def fitted(self) -> str:
        """The expected total of an area's own exposure: of those tested, not of everybody."""
        return self.expected

    @property
    def nothing(self) -> str:
        """Exposure and total of an area that is left out: ``people or cases``."""
        return f"{self.weight_unit} or {self.total if self.adds_up else 'a value'}"

    @property
    def placeholders(self) -> dict[str, str]:
        """The words of the response, by name."""
        return {name: getattr(self, name) for name in WORDS}

    @property
    def texts(self) -> dict[str, str]:
        """All words that texts may name: also `noun`, the unit of the map, and the interval."""
        interval = f"{100 * self.given.interval:g} %"
        more = {"noun": self.noun, "rate_unit": self.rate_unit, "interval": interval}
        people = self.given.surface == "people"
        more["of_pixel"] = "among all people of a pixel" if people else "in the whole of a pixel"
        more["elsewhere"] = f"{'people ' * people}outside every area"
        return {**self.placeholders, **more}

    def fill(self, text: str, **more: str) -> str:
        """Return a text with its words filled in."""
        return text.format(**self.texts, **more)

    # Its maps, tables and pictures.

    @property
    def shows(self) -> frozenset[str]:
        """See the class."""
        found = {"rate"}
        # Only what is positive throughout has a deviation in per cent.
        if self.likelihood.positive:
            found.add("relative")
        if self.countable and self.given.weight is None:
            found.add("total")
        return frozenset(found)

    @property
    def spread_maps(self) -> tuple[str, ...]:
        """See the class."""
        return ("rate_relative_sd",) * ("relative" in self.shows) + ("rate_sd",)

    @property
    def exposure_column(self) -> str:
        """Column of ``areas.csv`` that an area's quantity is per unit of."""
        return "people" if self.given.tested is None else "tested"

    @property
    def maps_totals(self) -> bool:
        """Whether the total of a pixel is its quantity times its people (or km2).

        A value is no number of cases, and a weight of an area is not known by pixel.
        """
        return "total" in self.shows

    @property
    def map_title(self) -> str:
        """Title of the map."""
        return f"Mean {self.quantity}"

    @property
    def map_label(self) -> str:
        """What the colours of the map are."""
        return self.rate_unit

    @property
    def spread_label(self) -> str:
        """What the colours of the first spread map are."""
        unit = "% of the mean" if "relative" in self.shows else self.rate_unit
        return f"standard deviation, {unit}"

    @property
    def source(self) -> str:
        """What areas have, for the lineage: ``poisson responses``."""
        return f"{self.likelihood} responses"

    def expected_elsewhere(self, found: Mapping[str, Any]) -> str:
        """Say what is expected in areas without a value.

        Parameters
        ----------
        found : mapping
            From :mod:`pipeline.prediction.one_map`.
        """
        if found["expected"] is None:
            return (
                f"{areas_text(found['n'])} without a {self.noun}: {self.rates} in areas.csv, but "
                f"no expected {self.total}, as the exposure of some ({self.exposure}) is not known"
            )
        ends = f"{found['count_lower']:,.0f} to {found['count_upper']:,.0f}"
        return (
            f"{areas_text(found['n'])} without a {self.noun}: {found['expected']:,.0f} "
            f"{self.total} expected ({self.texts['interval']} predictive interval {ends}), "
            f"{found['people']:,.0f} {self.weight_unit}"
        )


def _wrong_trials() -> Wrong:
    from models.likelihoods.registry import LIKELIHOODS

    names = " or ".join(name for name, each in LIKELIHOODS.items() if each.needs_trials)
    found = f"counts.tested and model.likelihood: {names}, one without the other"
    remedy = "give both for positives among tested people (beta_binomial), neither for cases"
    return "", found, remedy

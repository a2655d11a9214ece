"""Labels: 1 or 0 of an area, for classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.core.plurals import areas_text
from pipeline.responses.response import Given, Response, Wrong
from pipeline.responses.table import Columns, Table

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from models.likelihoods.likelihood import Likelihood

_OF_RATES = (
    *("evaluate.calibration", "gates.coverage", "gates.pixel_coverage"),
    *("output.areas", "output.exceedance", "output.reconcile"),
)
_ENDS = ("probability", "probability_lower", "probability_upper")


class Labels(Response):
    """Labels of areas; the map is of the probability to be positive."""

    name = "labels"
    about = "1 or 0 of an area"
    classes = True
    adds_up_in_time = False
    drawn = False
    noun = "label"
    against = "one probability"
    quantity = "probability"
    rates = "probabilities"
    total = "positives"
    totals = "labels"
    exposure = ""
    rate_per = 1.0
    scores = "labels"
    changes = None
    shows = frozenset({"probability"})
    mean_map = "probability_mean"
    spread_maps = ("probability_sd",)
    map_title = "Probability to be positive"
    map_label = "mean of the posterior"
    spread_label = "standard deviation"
    fit_picture = "ranked"
    source = "labels"
    level = "probability"
    area_columns: ClassVar[Mapping[str, str]] = {
        "observed": "observed label (1: positive)",
        "probability": "probability to be positive",
        "probability_sd": "probability: standard deviation",
        "probability_lower": "probability: {interval} interval, lower end",
        "probability_upper": "probability: {interval} interval, upper end",
        "in_training": "has a label, and is in the fit",
    }
    sheet_columns: ClassVar[Mapping[str, str]] = {
        "observed": "observed label",
        "probability": "probability",
        "probability_lower": "from",
        "probability_upper": "to",
    }
    sheet_note = "From, to: {ends} the probability to be positive."
    facts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Probability to be positive": _ENDS,
        "Observed label": ("observed",),
    }
    layers: ClassVar[Mapping[str, str]] = {
        "probability": "Areas: probability to be positive",
        "observed": "Areas: observed label",
    }
    without: ClassVar[Mapping[str, str]] = {
        "area_pixels": "area_pixels with labels: one pixel may decide the label of its area",
        **{key: f"{key} with labels: maps of rates have it" for key in _OF_RATES},
    }

    @classmethod
    def takes(cls, given: Given) -> bool:
        """See :class:`Response`."""
        return given.section == "labels"

    @classmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        """See :class:`Response`: a classifier has a loss of its own."""
        del likelihood
        return False

    def problem(self) -> Wrong | None:
        """See :class:`Response`."""

    def unsized(self, max_epochs: int) -> dict[str, dict[str, Any]]:
        """See :class:`Response`: a classifier keeps its own defaults."""
        evaluate = {"start": "cold", "epochs": max_epochs, "leave_out": "refit"}
        evaluate |= {"area_pixels": "all", "calibration": "none"}
        return {"fit": {"area_pixels": "all"}, "evaluate": evaluate}

    def read(self, table: Table) -> Columns:
        """See :class:`Response`."""
        return Columns(table.labels(self.given.value))

    def described(self, values: pd.Series) -> str:
        """See :class:`Response`."""
        return f"{int(values.sum()):,} of {values.count():,} areas are positive"

    def synthetic(self, y: np.ndarray) -> tuple[np.ndarray, None]:
        """See :class:`Response`."""
        labels = 0.0 * y
        labels[1::2] = 1.0
        return labels, None

    def unit_per(self, rate_per: float) -> str:
        """See :class:`Response`: a probability has no unit."""
        del rate_per
        return "1"

    def in_unit(self, text: str) -> str:
        """See :class:`Response`."""
        del text
        return ""

    def expected_elsewhere(self, found: Mapping[str, Any]) -> str:
        """See :class:`Response`."""
        return (
            f"{areas_text(found['n'])} without a label, {found['expected']:.3g} of them expected "
            "to be positive"
        )

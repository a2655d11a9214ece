"""Format what an evaluation says of trust: checks, held-out areas by weights, support, priors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from pipeline.core.plurals import count_text
from pipeline.core.text_tables import text_table

_CHECKS = {
    "zeros": "share of areas without a case",
    "dispersion": "dispersion of residuals",
    "largest": "largest response",
    "moran": "Moran's I of residuals",
}
_NAMED = 5  # areas that a line names
#: By :attr:`pipeline.evaluation.fold_fits.FoldFits.how`; reports of before have fits alone.
#: One of them, and several.
_FITS = {
    "refit": ("fit", "fits"),
    "regression": ("regression between the others", "regressions between the others"),
}


def checks_table(checks: dict[str, Any]) -> Table:
    """Return the predictive checks as a table: observed, predicted, p."""
    table = text_table("predictive checks", "observed", "90 % of replicated data", "p")
    for key, name in _CHECKS.items():
        if key in checks:
            row = checks[key]
            low, high = (_number(value) for value in row["interval"])
            table.add_row(name, _number(row["observed"]), f"{low} to {high}", f"{row['p']:.3f}")
    return table


def trust_lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each thing to know before the map is trusted; none where there is none."""
    yield from report.get("predictive_checks", {}).get("sentences", [])
    for scheme, held in report.get("held_out", {}).items():
        about = held.get("leave_out")
        if about is not None:
            yield from _left_out(scheme, held, about)
    support = report.get("support")
    if support is not None:
        yield (
            f"extrapolation: {_share(support['pixels_extrapolating'])} of the pixels and "
            f"{_share(support['people_extrapolating'])} of the people have a covariate outside the "
            "range of the fitted areas"
        )
        yield (
            f"data support: the prior rules {_share(support['pixels_prior'])} of the pixels and "
            f"{_share(support['people_prior'])} of the people (data_support.tif below "
            f"{support['below']:g})"
        )
    if support is not None and "pixels_wide" in support:  # earlier runs have not counted them
        yield (
            f"wide intervals: {_share(support['pixels_wide'])} of the pixels and "
            f"{_share(support['people_wide'])} of the people, where rate_upper.tif is more than "
            f"{support['times']:g} times rate_lower.tif"
        )
    sensitivity = report.get("prior_sensitivity")
    if sensitivity is not None:
        if "absent" in sensitivity:
            yield f"prior sensitivity: not measured; {sensitivity['absent']}"
        else:
            none = ["no headline figure depends strongly on a prior"]
            yield from (f"prior sensitivity: {said}" for said in sensitivity["sentences"] or none)


def _left_out(scheme: str, held: dict[str, Any], about: dict[str, Any]) -> Iterator[str]:
    again = about["refits"]
    fits = count_text(again, *_FITS[held.get("fits", "refit")])
    if scheme == "block":
        n, by = held["n_folds"], _FITS[held.get("fits", "refit")][again != 1]
        yield f"regions: {n - again} of {n} left out by weights, {again} by {by} without each"
        return
    if about["by_folds"]:
        yield (
            f"areas: left out by {fits}, without a fold each, for the weights of "
            f"{about['above']} cannot be trusted (Pareto k above {about['limit']:.2g})"
        )
        return
    n, moved = about["unreliable"], about["refitted"]
    rest = "" if n else "; all weights can be trusted"
    yield f"areas: left out by weights, {moved} of them by {fits}{rest}"
    if n:
        first = ", ".join(about["unreliable_areas"][:_NAMED]) + (", ..." if n > _NAMED else "")
        yield (
            f"areas: the weights of {n} cannot be trusted (Pareto k above {about['limit']:.2g}), "
            f"and their scores are too good if anything: {first}"
        )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.3g} %"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"

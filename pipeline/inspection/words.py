"""What a profile of the inputs says, as texts for the terminal and for the page."""

from __future__ import annotations

import math
from pathlib import Path

from pipeline.evaluation.calibration_summary import data_cautions
from pipeline.ingest.class_profile import ClassesProfile
from pipeline.ingest.profile import AreaProfile, CountProfile, Extremes, Profile, RasterProfile


def profile_lines(profile: Profile, *, periods: bool = True) -> list[tuple[str, str]]:
    """Return what the areas, people and responses are, by a word each; maybe of each period."""
    lines = []
    areas, people = profile.areas, profile.people
    if areas is not None:
        each = _each(areas.each_km2, " km2")
        lines.append(("areas", f"{areas.n:,} areas, {areas.crs}; {big_text(areas.km2)} km2{each}"))
    if people is not None:
        each = _each(people.each, "")
        text = f"{big_text(people.total)} in the areas, {number_text(people.per_km2)} per km2{each}"
        lines.append(("people", text))
    if profile.positive is not None:
        lines.append(("labels", _labels(*profile.positive, areas)))
    if profile.counts is not None:
        mapped = f"period {profile.counts.period}: " if profile.counts.period else ""
        lines.append((profile.responses, mapped + _counts(profile.counts, profile)))
        n_area = profile.counts.n_area + profile.counts.suppressed
        typical = (profile.counts.total or 0.0) / max(1, n_area)
        said = data_cautions(n_area, typical if profile.countable else None)
        lines += [("beware", each) for each in said]
    if periods:
        lines += [(each.period or "", _counts(each, profile)) for each in profile.periods]
    lines += [("classes", _classes(each)) for each in profile.classes]
    lines += [("output", each) for each in profile.left_out]
    return lines


def _labels(n_positive: int, n_label: int, areas: AreaProfile | None) -> str:
    text = f"{n_positive:,} of {n_label:,} positive"
    n_absent = 0 if areas is None else areas.n - n_label
    return text + (
        f", {n_absent:,} area{'' if n_absent == 1 else 's'} without a label" if n_absent else ""
    )


def _classes(classes: ClassesProfile) -> str:
    each = [
        f"{one.value:g}{one.covariate and f' ({one.covariate})'} {percent_text(one.share)}"
        for one in classes.each
    ]
    n_more = classes.n_class - len(each)
    more = [f"{n_more:,} more"] if n_more else []
    about = "~ " if classes.sampled else ""
    return f"{Path(classes.path).name}: {about}{', '.join([*each, *more])}"


def _counts(counts: CountProfile, profile: Profile) -> str:
    areas = profile.areas
    some = areas is not None and counts.n_area < areas.n
    of = f" of {areas.n:,}" if areas is not None and some else ""
    unit = profile.total and f" {profile.total}"
    total = "" if counts.total is None else f"{big_text(counts.total)}{unit} in "
    text = f"{total}{counts.n_area:,}{of} areas"
    if counts.suppressed:
        text += f", {counts.suppressed:,} more suppressed"
    if counts.tested is not None:
        text += f", of {big_text(counts.tested)} tested"
    if counts.rate is not None:
        text += f"; {number_text(counts.rate)} {profile.rate}{_each(counts.rates, '')}"
    return text


def _each(extremes: Extremes | None, unit: str) -> str:
    if extremes is None:
        return ""
    low, high = number_text(extremes.low), number_text(extremes.high)
    return f", {low} ({extremes.low_id}) to {high}{unit} ({extremes.high_id})"


def raster_cells(raster: RasterProfile) -> tuple[str, ...]:
    """Return name, minimum, median, maximum, missing, nodata, pixel, CRS and unit of a raster."""
    values = [
        "-" if v is None else number_text(v, 3) for v in (raster.low, raster.median, raster.high)
    ]
    missing = "-" if raster.missing is None else percent_text(raster.missing)
    nodata = " ".join(f"{value:.6g}" for value in raster.nodata) or "none"
    x, y = raster.resolution
    size = (
        number_text(x, 3) if abs(x - y) < 1e-3 * x else f"{number_text(x, 3)} x {number_text(y, 3)}"
    )
    unit = {"degree": "°", "metre": " m"}.get(raster.resolution_unit, f" {raster.resolution_unit}")
    name = raster.key.removeprefix("covariates.") + (" ~" if raster.sampled else "")
    return name, *values, missing, nodata, f"{size}{unit}", raster.crs, raster.unit


def percent_text(share: float) -> str:
    """Return a share in per cent."""
    if share == 0:
        return "0 %"
    return "<0.1 %" if share < 1e-3 else f"{100 * share:.1f} %"


def big_text(value: float) -> str:
    """Return a number without decimals, if it is no small one."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"


def number_text(value: float, n_digit: int = 4) -> str:
    """Return about four digits, and no exponent where a reader expects none."""
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.4g}"
    return f"{value:.{n_digit}g}"

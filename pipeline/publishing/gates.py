"""Check a finished map against the thresholds of ``gates``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geo.core.errors import name_first
from pipeline.config.schema import Config
from pipeline.evaluation.calibration_summary import KEY as CALIBRATION
from pipeline.evaluation.verdict import KEY, SCHEMES
from pipeline.products.products import EVALUATION, PROBABILITY_MEAN, RATE_MEAN

MAPS = (RATE_MEAN.file, PROBABILITY_MEAN.file)
MOST = 0.5  # share of the areas from which on most of them have no count
COMMON = 0.9  # minimum share of common pixels for which a change of the map is measured


@dataclass(frozen=True)
class Check:
    """Result of a gate: threshold (``asked``), measured value, and whether it passed.

    ``value`` is None if it could not be measured; then the gate fails.
    """

    gate: str
    value: float | bool | None
    asked: str
    passed: bool
    reason: str


def check_gates(config: Config, before: Path | None) -> list[Check]:
    """Check the map in ``output.dir`` against every gate of the configuration.

    Parameters
    ----------
    config : Config
        Configuration of a finished run.
    before : Path or None
        Directory of the version to compare with; if None, ``max_change`` is not checked.

    Returns
    -------
    list of Check
        One for each configured gate, and by default one for each scheme of ``evaluate.schemes``:
        whether the map is better than one rate for the whole country.
    """
    return list(_checks(config, before))


def _checks(config: Config, before: Path | None) -> Iterator[Check]:
    gates, out = config.gates, config.output.dir
    report = read_json(out / EVALUATION.file)
    stages = read_json(out / "work" / "stages.json")
    if gates.converged:
        converged = stages.get("fit", {}).get("summary", {}).get("converged")
        yield _check("converged", converged, "true", bool, "the fit has not converged", "")
    held_out = report.get("held_out", {}).get(gates.scheme, {})
    score, constant = _score(held_out.get("model")), _score(held_out.get("constant"))
    if gates.min_gain is not None:
        gain = None if score is None or constant is None else constant - score
        said = f"gain over a constant rate on held-out areas ({gates.scheme}) is"
        yield _at_least("held-out gain", gain, gates.min_gain, said, unit=" nats an area")
    if gates.min_correlation is not None:
        value = _association(held_out.get("model"))
        said = f"correlation on held-out areas ({gates.scheme}) is"
        yield _at_least("held-out correlation", value, gates.min_correlation, said)
    if gates.coverage is not None:
        least, largest = gates.coverage
        level = f"{config.output.interval:g}"
        totals = config.response_kind.totals
        covered = (held_out.get("model") or {}).get("intervals", {}).get(level, {}).get("coverage")
        yield _check(
            "coverage",
            covered,
            f"{least:g} to {largest:g}",
            lambda v: least <= v <= largest,
            f"intervals of {level} contain {_say(covered)} of the held-out {totals} "
            f"({gates.scheme}), {least:g} to {largest:g} required",
            "evaluate.schemes",
        )
    yield from _label_checks(config, held_out.get("model") or {})
    if gates.pixel_coverage is not None:
        yield _pixel_coverage(report, gates.pixel_coverage, config.output.interval)
    absent = stages.get("ingest", {}).get("summary", {}).get("areas_without_counts", {})
    if absent or "min_counted" in gates.model_fields_set:
        fewest = gates.min_counted
        counted = 1.0 - absent.get("share", 0.0) if "ingest" in stages else None
        yield _check(
            "areas with counts",
            counted,
            f"at least {fewest:g}",
            lambda v: v >= fewest,
            f"{_say(counted)} of the areas have a count, at least {fewest:g} required",
            "",
        )
    if gates.max_change is not None and before is not None:
        per = config.output.rate_per  # the published map may have another unit
        scale = per / read_json(before / "version.json").get("rate_per", per)
        change = map_change(before, out, scale)
        said = f"the map changed by {_say(change)} from {before.name}"
        yield _at_most("change", change, gates.max_change, said, "the grid")
    by_period = stages.get("fit", {}).get("summary", {}).get("far") or {}
    far = [f"{label}: {text}" for label, texts in by_period.items() for text in texts]
    yield from _better_than_constant(config, report, absent.get("share"), far)


def _label_checks(config: Config, scores: dict[str, Any]) -> Iterator[Check]:
    """Check what held-out areas with labels say of the probabilities themselves."""
    gates = config.gates
    error = (scores.get("calibration") or {}).get("error")
    measured = (
        ("log loss", "max_log_loss", gates.max_log_loss, scores.get("log_loss")),
        ("calibration error", "max_calibration_error", gates.max_calibration_error, error),
    )
    for name, key, most, value in measured:
        if most is None:
            continue
        why = config.response_kind.without.get(f"gates.{key}")
        if why is not None:
            said = f"held-out {name}: {why}; remove gates.{key}"
            yield Check(f"held-out {name}", None, f"at most {most:g}", False, said)
            continue
        said = f"{name} of held-out areas ({gates.scheme}) is {_say(value)}"
        yield _at_most(f"held-out {name}", value, most, said, "evaluate.schemes")


def _pixel_coverage(report: dict[str, Any], limits: tuple[float, float], interval: float) -> Check:
    """Check the share of true rates inside the intervals: the worst of all that was measured.

    By pixel and by people, in refits to simulated data, which must have been measured, and in
    truth, where a truth is known: whose family is not the model's own. A standard error above half
    of the width asked for cannot tell, and holds the map back: else luck would pass bad maps.
    """
    gate, level, (least, largest) = "pixel coverage", f"{interval:g}", limits
    asked = f"{least:g} to {largest:g}"
    simulated, truth = report.get(CALIBRATION) or {}, report.get("truth") or {}
    ways = (("pixels", "by pixel"), ("people", "by people"))
    measured = {
        f"the {where} ({words})": (
            (part.get(way) or {}).get("coverage", {}).get(level),
            (part.get(way) or {}).get("standard_error", {}).get(level),
        )
        for where, part in (("simulated rates", simulated), ("true rates", truth))
        for way, words in ways
        if part is simulated or part
    }
    absent = [where for where, (value, _) in measured.items() if value is None]
    if absent:
        why = simulated.get("skipped") or "run `disagg evaluate` again"
        said = f"{gate}: was not measured ({absent[0]}); {why}, or remove gates.pixel_coverage"
        return Check(gate, None, asked, False, said)
    known = {where: (float(value), error) for where, (value, error) in measured.items()}
    worst = min(known, key=lambda where: min(known[where][0] - least, largest - known[where][0]))
    value, error = known[worst]
    wide = max((each or 0.0 for _, each in known.values()), default=0.0)
    half = (largest - least) / 2
    if wide > half > 0 and least <= value <= largest:
        n = simulated.get("n_simulations", 1)
        enough = math.ceil(n * (wide / half) ** 2)
        said = (
            f"{gate}: the standard error of {n} simulations is {wide:.2g}, more than half of "
            f"{asked}; set evaluate.calibration: {enough}"
        )
        return Check(gate, value, asked, False, said)
    passed = least <= value <= largest
    around = "" if error is None else f" +- {error:.2g}"
    said = f"{gate}: intervals of {level} contain {value:.3g}{around} of {worst}, {asked} required"
    return Check(gate, value, asked, passed, "" if passed else said)


def _better_than_constant(
    config: Config, report: dict[str, Any], absent: float | None, far: Sequence[str] = ()
) -> Iterator[Check]:
    """Check that the map beats one rate by every scheme asked for.

    Where areas are left out the answer must be ``yes``: of 100 maps of shuffled counts 7 had a
    clear gain by chance, where any gain had let 27 through (``benchmarks.verdicts``). By region
    ``no`` holds a map back and ``unclear`` does not: with few regions hardly any gain is clear.
    Only where regions are all that is asked about, or where most areas have no count, must it be
    ``yes`` by region too.

    Parameters
    ----------
    config : Config
    report : dict
        ``evaluation.json``.
    absent : float or None
        Share of the areas that have no count.
    far : sequence of str
        Counts of an update that are far from what was foreseen: they come before other remedies.
    """
    asked = config.gates.better_than_constant
    schemes: tuple[str, ...] = config.evaluate.schemes if asked is True else asked or ()
    off = "set gates.better_than_constant: false"
    if asked is True and not schemes:
        why = f"was not measured; set evaluate.schemes: [area, block], or {off}"
        yield Check(KEY, None, "yes", False, f"{KEY}: {why}")
    for scheme in schemes:
        gate = f"better than a constant {SCHEMES[scheme]}"
        found = (report.get(KEY) or {}).get(scheme) or {}
        gain, answer = found.get("gain"), found.get("answer", "not measured")
        alone, empty = set(schemes) == {"block"}, (absent or 0.0) > MOST
        strict = scheme != "block" or alone or empty
        about = "yes" if strict else "yes or unclear"
        if answer == "not measured":
            again, add = "run `disagg evaluate` again", f"add {scheme} to evaluate.schemes"
            why = found.get("reason") or (again if scheme in config.evaluate.schemes else add)
            said = f"{gate}: was not measured; {why}, or {off}"
            yield Check(gate, None, about, False, said)
            continue
        # A gain of plus or minus infinity has no number in JSON; the answer has what it means.
        size = "infinite" if gain is None else f"{gain:+.3g}"
        low, high = found.get("interval") or (None, None)
        around = (
            "" if low is None or high is None else f" (90 % interval {low:+.2g} to {high:+.2g})"
        )
        passed = answer == "yes" or (answer == "unclear" and not strict)
        why = " where most areas have no count" if empty and scheme == "block" else ""
        allow = off
        if scheme == "block" and not alone:
            allow = "where the map is read only where counts are, set gates.better_than_constant: "
            allow += "[area]"
        look = f"Look at {name_first(far)}. " if far else ""
        more = "More or smaller areas with counts and covariates that explain more raise it"
        said = (
            f"{gate}: {answer}, the gain on held-out areas is {size} nats an area{around}; {about} "
            f"is required{why}. {look}{more}; to publish the map all the same, {allow}"
        )
        if answer == "unclear":
            about += " (unclear: the 90 % interval has 0)"
        value = found.get("better") if gain is None else gain
        yield Check(gate, value, about, passed, "" if passed else said)


def map_change(before: Path, after: Path, scale: float = 1.0) -> float | None:
    """Measure how much a map has changed.

    Parameters
    ----------
    before, after : Path
        Directories with ``rate_mean.tif`` or ``probability_mean.tif``.
    scale : float
        Factor from the unit of the rates before to the unit of those after.

    Returns
    -------
    float or None
        Mean over common pixels of |log(after / before)| for rates, |after - before| for
        probabilities; None if the grids differ, or less than `COMMON` of the larger map's pixels
        are common.
    """
    import numpy as np
    import rasterio

    for name in MAPS:
        if (before / name).is_file() and (after / name).is_file():
            break
    else:
        return None
    total, n_pix, n_old, n_new = 0.0, 0, 0, 0
    with rasterio.open(before / name) as old, rasterio.open(after / name) as new:
        if (old.shape, old.transform, old.crs) != (new.shape, new.transform, new.crs):
            return None
        for _, window in new.block_windows(1):
            a = old.read(1, window=window).astype(np.float64)
            b = new.read(1, window=window).astype(np.float64)
            both = np.isfinite(a) & np.isfinite(b)
            n_old, n_new = n_old + int(np.isfinite(a).sum()), n_new + int(np.isfinite(b).sum())
            if name == MAPS[0]:
                both &= (a > 0) & (b > 0)
                total += float(np.abs(np.log(b[both] / (scale * a[both]))).sum())
            else:
                total += float(np.abs(b[both] - a[both]).sum())
            n_pix += int(both.sum())
    return total / n_pix if n_pix and n_pix >= COMMON * max(n_old, n_new) else None


def _check(
    gate: str, value: Any, asked: str, holds: Callable[[Any], bool], failed: str, source: str
) -> Check:
    if value is None:
        hint = f"; see {source}" if source else ""
        return Check(gate, None, asked, False, f"{gate}: was not measured{hint}")
    passed = bool(holds(value))
    return Check(gate, value, asked, passed, "" if passed else f"{gate}: {failed}")


def _at_least(gate: str, value: Any, least: float, said: str, unit: str = "") -> Check:
    """Check a score of held-out areas; ``said`` comes before its value."""
    failed = f"{said} {_say(value)}{unit}, at least {least:g} required"
    asked = f"at least {least:g}{unit}"
    return _check(gate, value, asked, lambda v: v >= least, failed, "evaluate.schemes")


def _at_most(gate: str, value: Any, most: float, said: str, source: str) -> Check:
    """Check a value that may be too large; ``said`` holds it already."""
    failed = f"{said}, at most {most:g} allowed"
    return _check(gate, value, f"at most {most:g}", lambda v: v <= most, failed, source)


def _score(scores: dict[str, Any] | None) -> float | None:
    """Return minus the log density of held-out responses, nats an area: smaller is better."""
    if not scores:
        return None
    value = scores.get("nll", scores.get("log_loss"))
    return None if value is None else float(value)


def _association(scores: dict[str, Any] | None) -> float | None:
    if not scores:
        return None
    value = scores.get("rates", {}).get("correlation", scores.get("auc"))
    return None if value is None else float(value)


def _say(value: Any) -> str:
    return "?" if value is None else f"{value:.3g}"


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a file; empty if there is no such file, or something else in it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}

"""What simulations say of a map's intervals, with standard errors; in JSON and in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from pipeline.core.plurals import count_text
from pipeline.evaluation.about import WAYS
from pipeline.evaluation.like_this import like_this

if TYPE_CHECKING:
    from pipeline.evaluation.calibration import Found


KEY = "calibration"
ABOUT = (
    "share of simulated true rates inside the intervals of refits: a function drawn from the "
    "fitted map is the truth, counts are drawn from it, the model is fitted to them. It tests the "
    "computation (approximation, optimiser, hyperparameters), not whether the real rates are of "
    "the model's family: a surface rougher than the map's is not found out. standard_error: the "
    "larger of the spread between simulations and the "
    "bound by n_effective, the number of independent pixels that would vary as much"
)
LIMIT = (
    "the simulated truths are the map's own: real rates that are rougher are covered less, and "
    "this does not find it out"
)
FEW_AREAS = 30
NOISY = 0.5
FEW_CASES = 5.0


def summarise(found: Sequence[Found], n_area: int) -> dict[str, Any]:
    """Average simulations.

    Parameters
    ----------
    found : sequence of Found
        One or more, of the same levels.
    n_area : int
        Areas of a simulation.

    Returns
    -------
    dict
        ``pixels`` and ``people`` (every pixel alike, and by the people in it) and ``areas``, each
        with ``coverage``, ``standard_error``, ``between`` (standard deviation between simulations,
        NaN for one) and ``by_simulation`` (lists), by level; ``n_effective``, independent pixels
        of a simulation, of the first two; ``not_converged``, refits.
    """
    levels = found[0].levels
    result: dict[str, Any] = {}
    for way in (*WAYS, "areas"):
        each = np.stack([getattr(one, way) for one in found])
        between = each.std(axis=0, ddof=1) if len(found) > 1 else np.full(levels.shape, np.nan)
        error = between / np.sqrt(len(found))
        result[way] = {}
        if way in WAYS:
            number = float(1.0 / np.mean([1.0 / one.effective[WAYS.index(way)] for one in found]))
            result[way]["n_effective"] = number
            mean = each.mean(axis=0)
            # Of a calibrated map at its level, or of this map at its coverage: the larger.
            spread = np.maximum(levels * (1 - levels), mean * (1 - mean))
            error = np.fmax(error, np.sqrt(spread / (number * len(found))))
        else:
            # Few simulations may agree by chance: no less than areas that err independently.
            mean = each.mean(axis=0)
            spread = np.maximum(levels * (1 - levels), mean * (1 - mean))
            error = np.fmax(error, np.sqrt(spread / (n_area * len(found))))
        result[way] |= {
            "coverage": _by_level(levels, each.mean(axis=0)),
            "standard_error": _by_level(levels, error),
            "between": _by_level(levels, between),
            "by_simulation": {f"{lev:g}": each[:, k].tolist() for k, lev in enumerate(levels)},
        }
    result["areas"]["coverage_by_people"] = _by_level(
        levels, np.mean([one.areas_people for one in found], axis=0)
    )
    result["not_converged"] = sum(not bool(one.converged) for one in found)
    return result


def data_cautions(n_area: int, typical: float | None) -> list[str]:
    """Say of which data maps are known to be surer than they should be.

    Parameters
    ----------
    n_area : int
        Areas with a response.
    typical : float or None
        Count of a typical area; None where responses are no counts.
    """
    said = []
    if 0 < n_area < FEW_AREAS:  # of none, the table tells
        said.append(
            f"{n_area} areas say little of the kernel and of the slopes: with fewer than "
            f"{FEW_AREAS}, a map may be far from the truth ({like_this('areas', n_area)})"
        )
    if typical is not None and n_area and typical < FEW_CASES:
        said.append(
            f"a typical area has a count below {FEW_CASES:g}: the prior, not the data, makes most "
            f"of the intervals ({like_this('cases', typical)})"
        )
    return said


def cautions(model: Any, y: np.ndarray, *, counts: bool) -> list[str]:
    """Say where maps of this design are known to be surer than they should be.

    Parameters
    ----------
    model : fitted model
    y : (n_bag,) array
        Responses of the areas.
    counts : bool
        Whether they are counts.

    Returns
    -------
    list of str
        A sentence each; maybe none.
    """
    typical = float(np.median(y)) if counts and y.size else None
    said = data_cautions(int(y.shape[0]), typical)
    own = model.named_hyperparameters() if hasattr(model, "named_hyperparameters") else {}
    noise = own.get("area_sd")
    if noise is not None and noise >= NOISY:
        said.append(
            f"areas differ by a factor of deviation {noise:.2g} (logarithm) that nothing explains: "
            f"such noise can stand for a rough surface, and the other way round "
            f"({like_this('noise', noise)})"
        )
    return said


def calibration_line(report: dict[str, Any]) -> str | None:
    """Return the calibration in a sentence; None in a report of an earlier version."""
    found = report.get(KEY)
    if not found:
        return None
    if "pixels" not in found:
        return f"calibration of pixels: not measured; {found.get('skipped', '')}"
    level = f"{found['interval']:g}"
    parts = []
    for way, words in (("pixels", "by pixel"), ("people", "by people")):
        share, error = (found[way][key].get(level) for key in ("coverage", "standard_error"))
        parts.append(f"{words} {_with_error(share, error)}")
    refits = count_text(found["n_simulations"], "refit")
    return (
        f"calibration of pixels: {100 * found['interval']:g} % intervals of "
        f"{refits} to data simulated from the map cover {', '.join(parts)}"
    )


def calibration_table(found: dict[str, Any], table: Table) -> Table:
    """Fill a table that has the columns by pixel, by people and areas: a row for each level."""
    for level in found["pixels"]["coverage"]:
        cells = []
        for way in (*WAYS, "areas"):
            share, error = (found[way][key][level] for key in ("coverage", "standard_error"))
            cells.append(_with_error(share, error))
        table.add_row(f"{100 * float(level):g} % interval covers", *cells)
    return table


def _by_level(levels: np.ndarray, values: np.ndarray) -> dict[str, float]:
    return {f"{lev:g}": float(value) for lev, value in zip(levels, values, strict=True)}


def _with_error(share: float | None, error: float | None) -> str:
    """Return a share with its standard error, which does not reach beyond all."""
    if share is not None and error is not None and share + error > 1.0:
        return f"{_percent(share)} ({100 * (share - error):.1f} to 100 %)"
    return f"{_percent(share)} +- {_percent(error)}"


def _percent(value: float | None) -> str:
    return "-" if value is None or not np.isfinite(value) else f"{100 * value:.1f} %"

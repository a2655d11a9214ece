"""What maps of simulated countries that are like this one hold: the table of docs/calibration.md.

``like_this.json`` has the figures; ``python -m benchmarks.trust`` writes it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

FILE = "like_this.json"
WHERE = "docs/calibration.md"
UNITS = {"areas": "{:g} areas", "cases": "{:g} cases an area", "noise": "noise of {:g}"}


@dataclass(frozen=True)
class Simulated:
    """Simulated countries that differ from others in one thing.

    Attributes
    ----------
    level : float
        Of that thing: number of areas, cases an area, or noise between areas.
    countries : int
    pixels : float
        Share of the pixels whose true rate is in the 90 % interval.
    correlation, crude : float
        Of log rates over pixels with the true ones: of the map, and of a map in which each pixel
        has the rate of its area.
    """

    level: float
    countries: int
    pixels: float
    correlation: float
    crude: float


@cache
def read_simulated() -> dict[str, list[Simulated]]:
    """Read the figures: of ``areas``, ``cases`` and ``noise``, by level."""
    text = (resources.files("pipeline.evaluation") / FILE).read_text(encoding="utf-8")
    every: dict[str, list[dict[str, Any]]] = json.loads(text)
    return {axis: [Simulated(**each) for each in rows] for axis, rows in every.items()}


def like_this(axis: str, value: float) -> str:
    """Say what the simulated countries had that are like this one, or the next harder ones.

    Parameters
    ----------
    axis : {"areas", "cases", "noise"}
    value : float
        Number of areas, cases of a typical area, deviation of the noise between areas.

    Returns
    -------
    str
        Words for brackets, with the page.
    """
    rows, unit = read_simulated()[axis], UNITS[axis]
    if axis == "noise":  # more of it is harder, fewer of the others
        near = next((each for each in rows if each.level >= value), rows[-1])
    else:
        near = next((each for each in reversed(rows) if each.level <= value), rows[0])
    return (
        f"{near.countries} simulated countries with {unit.format(near.level)}: 90 % intervals held "
        f"{100 * near.pixels:.0f} % of the pixels; log rates correlated by {near.correlation:.2f} "
        f"with the true ones, those of a map of area rates by {near.crude:.2f}; {WHERE}"
    )

"""Counts of zones beside those of areas: what is left of each for its areas without a count.

A province reports a total, and some of its districts report as well. The districts' counts are
taken off, so that no case is used twice; the rest is a count of the people of the districts that
have none. A region takes off the rests of its provinces as well. ``docs/design/points.md`` says
why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pyproj import Transformer

from geo.core.columns import has_column, id_text, suggest
from geo.core.errors import Problem
from geo.grids.displacement import Candidates
from geo.grids.grid import Grid
from pipeline.config.point_schema import Points
from pipeline.ingest.inputs import Inputs
from pipeline.ingest.point_tables import ONE_LEVEL, across
from pipeline.ingest.selection import Bags

ALL_COUNTED, LACKING = "all_counted", "lacking_pixels"


@dataclass(frozen=True)
class Taken:
    """A zone whose total is used already.

    Attributes
    ----------
    areas : frozenset of int
        All of its areas.
    rest : frozenset of int
        Of these, those without a count; empty where its rest was not used.
    value, tested : float
        Of the rest.
    """

    areas: frozenset[int]
    rest: frozenset[int]
    value: float
    tested: float


@dataclass(frozen=True)
class Rest:
    """What is left of the counts of zones.

    Attributes
    ----------
    table : DataFrame
        The rows of zones with a rest; ``value`` and ``tested`` are the rest's, ``lon`` and ``lat``
        the middle of its pixels.
    pixels : Candidates
        Pixels of the zone's areas without a count; ``mass`` is the share of each that is theirs.
    left_out : dict
        Zones whose areas all have a count, and zones with an area that has neither a count nor a
        usable pixel: how many of the cases are its own is not known.
    """

    table: pd.DataFrame
    pixels: Candidates
    left_out: dict[str, int]


def rest_of_zones(
    spec: Points,
    table: pd.DataFrame,
    inputs: Inputs,
    bags: Bags,
    taken: dict[str, Taken],
    problems: list[Problem],
) -> Rest | None:
    """Take the counts of areas, and the rests of smaller zones, off those of their zones.

    A suppressed count is no count here: its area is one of the rest.

    Parameters
    ----------
    spec : Points
        With ``zone``.
    table : DataFrame
        From :func:`pipeline.ingest.point_tables.read_points`; each row with a value.
    inputs : Inputs
        Checked: with areas, counts and a grid.
    bags : Bags
        Usable pixels of the areas.
    taken : dict of Taken
        Zones used before by name, smaller ones; those of this source are added.
    problems : list of Problem
        Ids of no zone, zones with fewer cases than their areas, and zones across others are
        appended.

    Returns
    -------
    Rest or None
        None where a problem was found.
    """
    place, areas, grid = f"points.{spec.name} ({spec.path})", inputs.areas, inputs.grid
    assert spec.zone is not None
    assert areas is not None
    assert grid is not None
    before = len(problems)
    if not has_column(areas.columns, spec.zone, "areas", f"points.{spec.name}.zone", problems):
        return None
    names = id_text(areas[spec.zone]).to_numpy(object)
    of_area = pd.DataFrame({"value": _known(inputs), "tested": np.nan})
    tested = inputs.responses.tested
    if tested is not None:
        of_area["tested"] = np.where(of_area["value"].notna(), tested.to_numpy(float), 0.0)
    counted = of_area["value"].notna().to_numpy()
    at = np.full(len(areas), -1)
    at[bags.area] = np.arange(bags.area.size)
    kept, members, left = [], [], {ALL_COUNTED: 0, LACKING: 0}
    here: dict[str, Taken] = {}
    for row in table.to_dict("records"):
        where, zone = f"{place} row {row['row']}", np.flatnonzero(names == row["id"])
        if not zone.size:
            remedy = suggest(str(row["id"]), sorted({str(n) for n in names if n}), "zone")
            problems.append(Problem(where, f"no area has {spec.zone} {row['id']!r}", remedy))
            continue
        inside = frozenset(zone.tolist())
        others = {name: each.areas for name, each in taken.items()}
        if wrong := across(others, inside):
            problems.append(Problem(where, f"{row['id']} {wrong}", ONE_LEVEL))
            continue
        own, smaller = zone[counted[zone]], [t for t in taken.values() if t.areas <= inside]
        known = frozenset(own.tolist()).union(*(each.rest for each in smaller))
        open_ = np.array([each for each in zone if each not in known], np.int64)
        off = of_area.iloc[own].sum() + _sums(smaller)
        for key in ("value", "tested"):
            row[key] -= off[key]
        name = f"{row['id']} (points.{spec.name})"
        here[name] = Taken(inside, frozenset(), 0.0, 0.0)
        wrong = _wrong(row, off)
        if wrong:
            problems.append(Problem(where, wrong, "correct one of them, or leave the row out"))
        elif not open_.size or row["tested"] == 0:
            left[ALL_COUNTED] += 1
        elif (at[open_] < 0).any():
            left[LACKING] += 1
        else:
            kept.append(row)
            members.append(at[open_])
            used = frozenset(open_.tolist()), row["value"], row["tested"]
            here[name] = Taken(inside, *used)
    taken |= here  # zones of one source do not meet
    if len(problems) > before:
        return None
    pixels = _pixels(bags, members)
    found = pd.DataFrame(kept, columns=table.columns)
    return Rest(found.assign(**_middles(grid, pixels)), pixels, left)


def _known(inputs: Inputs) -> np.ndarray:
    known = inputs.responses.known
    assert known is not None
    return known.to_numpy(np.float64)


def _sums(zones: list[Taken]) -> pd.Series:
    """Return value and tested of the rests of zones."""
    keys = ("value", "tested")
    return pd.Series({key: float(sum(getattr(each, key) for each in zones)) for key in keys})


def _wrong(row: dict[str, float], off: pd.Series) -> str:
    """Say what is wrong with a rest; nothing is where it is a count, or positives of some."""
    if row["value"] < 0:
        total, areas = row["value"] + off["value"], off["value"]
        return f"{total:,.0f} in the zone, and {areas:,.0f} in its areas that have a count"
    if row["tested"] < row["value"]:
        tested, positive = row["tested"], row["value"]
        return f"less its areas, {positive:,.0f} positives of {tested:,.0f} tested"
    return ""


def _pixels(bags: Bags, members: list[np.ndarray]) -> Candidates:
    """Return the pixels of each zone's bags; one of several of them once, with the sum."""
    sizes: list[int] = []
    pixels: list[np.ndarray] = [np.zeros(0, np.int64)]
    shares: list[np.ndarray] = [np.zeros(0)]
    for own in members:
        rows = np.concatenate([np.arange(*bags.offsets[k : k + 2]) for k in own])
        pixel, which = np.unique(np.asarray(bags.pixel[rows], np.int64), return_inverse=True)
        sizes.append(pixel.size)
        pixels.append(pixel)
        shares.append(np.bincount(which, bags.fraction[rows].astype(np.float64), pixel.size))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Candidates(offsets, np.concatenate(pixels), np.concatenate(shares))


def _middles(grid: Grid, pixels: Candidates) -> dict[str, np.ndarray]:
    """Return longitude and latitude of the middle of the pixels of each zone."""
    if pixels.offsets.size == 1:
        return {"lon": np.zeros(0), "lat": np.zeros(0)}
    first, whole = pixels.offsets[:-1], np.add.reduceat(pixels.mass, pixels.offsets[:-1])
    row, col = (
        np.add.reduceat(pixels.mass * (each + 0.5), first) / whole
        for each in np.divmod(pixels.pixel, grid.shape[1])
    )
    to_degrees = Transformer.from_crs(grid.crs, "EPSG:4326", always_xy=True)
    to_map: Any = grid.transform
    lon, lat = to_degrees.transform(*(to_map @ (col, row)))
    return {"lon": np.asarray(lon), "lat": np.asarray(lat)}

"""Suspicions about the table of changes of areas: half of a split is there alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely

from geo.core.calendar import Calendar
from geo.core.columns import AREA_ID, id_text
from geo.core.errors import InputError, name_first
from geo.core.spelling import USUAL
from geo.tables.area_changes import FROM, PERIOD, TO, AreaChanges
from geo.tables.registry import read_table
from pipeline.config.schema import Config
from pipeline.ingest.counted import area_changes
from pipeline.ingest.extent import measurable
from pipeline.ingest.profile import PeriodCounts
from pipeline.ingest.raster_suspicions import Suspicion

N_NAMED = 5
N_BEFORE = 2  # periods with counts before a change, from which an area lacks them
N_LATE = 2  # periods within which the counts of a new area begin
BESIDE = (
    0.01  # distance of areas that touch, in square roots of their surface: borders have slivers
)
LEAST = 0.95  # of the shares of an area of before: they may be rounded
_SHARE = re.compile(r"(?<![a-z])(share|proportion|fraction|weight|percent|pct|part)s?(?![a-z])|%")


def change_suspicions(
    config: Config, areas: gpd.GeoDataFrame, periods: Mapping[str, PeriodCounts]
) -> list[Suspicion]:
    """Return a suspicion about areas of before of which a part is missing from the changes.

    Their shares sum to less than one, if the table has shares; or an area beside the new ones,
    which is in no change, has counts from the change on alone.

    Parameters
    ----------
    config : Config
    areas : GeoDataFrame
        Of today.
    periods : mapping of str to PeriodCounts
        Of :func:`pipeline.ingest.profile.counts_of_periods`.
    """
    path, series = config.areas.changes, config.series
    changes = area_changes(config, areas, [])
    if path is None or series is None or changes is None:
        return []
    found = [*_beside(changes, areas, periods, series.calendar), *_shares(path)]
    if not found:
        return []
    lacking: dict[tuple[str, str], list[str]] = {}
    rows = []
    for label, old, said, new in found:
        lacking.setdefault((old, label), []).append(said)
        rows += [f"{label},{old},{new}"] if new else []
    each = [f"{old} in {label} ({' and '.join(said)})" for (old, label), said in lacking.items()]
    text = f"half of a split may be missing of {name_first(each, N_NAMED)}"
    remedy = f"if so, add the row {' and the row '.join(rows[:N_NAMED])}"
    if not rows:
        remedy = "add a row of each of its other new areas, or correct the shares"
    return [Suspicion("changes", f"areas.changes ({path})", text, remedy)]


def _beside(
    changes: AreaChanges,
    areas: gpd.GeoDataFrame,
    periods: Mapping[str, PeriodCounts],
    calendar: Calendar,
) -> Iterator[tuple[str, str, str, str]]:
    """Yield period, area of before, what is odd, and the new area that may be a part of it."""
    found = [calendar.number(text) for text in periods]
    numbers = np.array([number for number in found if number is not None])
    if numbers.size == 0 or numbers.size < len(found):
        return
    known = np.stack(
        [y.notna().to_numpy() | hidden.to_numpy(bool) for y, hidden, _ in periods.values()], axis=1
    )
    ids, usable = areas[AREA_ID].astype(str).to_numpy(), measurable(areas)
    shapes = np.asarray(areas.geometry.array)
    at = {text: k for k, text in enumerate(ids) if usable[k]}
    changed = {each for _, pairs in changes.steps for pair in pairs for each in pair}
    others = [k for text, k in at.items() if text not in changed and known[k].any()]
    for step, pairs in changes.steps:
        before = numbers < step
        if known[:, before].any(axis=0).sum() < N_BEFORE:
            continue
        for k in others:
            first = int(numbers[known[k]].min())
            if not step <= first < step + N_LATE:
                continue
            near = BESIDE * np.sqrt(shapely.area(shapes[k]))
            for old, news in _of_before(pairs).items():
                inside = [at[new] for new in news if new in at]
                if inside and shapely.distance(shapes[inside], shapes[k]).min() <= near:
                    said = f"{' and '.join(news)} {'is' if len(news) == 1 else 'are'} all of it"
                    said += (
                        f", yet {ids[k]} beside has counts from {calendar.label(first)} on alone"
                    )
                    yield calendar.label(step), old, said, str(ids[k])
                    break


def _of_before(pairs: tuple[tuple[str, str], ...]) -> dict[str, list[str]]:
    """Return the new areas of each that ends with a change, or is itself alone: one first."""
    found: dict[str, list[str]] = {}
    for old, new in pairs:
        found.setdefault(old, []).append(new)
    ends = {old: news for old, news in found.items() if old not in news or len(news) == 1}
    return dict(sorted(ends.items(), key=lambda each: len(each[1])))


def _shares(path: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield period, area of before, what its shares sum to, and no new area."""
    try:
        table, _ = read_table(path, "")
    except InputError:
        return
    columns = [name for name in map(str, table.columns) if _SHARE.search(name.lower())]
    if len(columns) != 1:
        return
    share = np.array([USUAL.number_or_nan(value) for value in table[columns[0]]])
    if not np.isfinite(share).all() or (share < 0).any():
        return
    share = share / (100.0 if share.max() > 1 else 1.0)
    keys = [id_text(table[name]) for name in (PERIOD, FROM)]
    total = pd.Series(share).groupby(keys, sort=False).sum()
    for (label, old), value in total.items():
        if value < LEAST:
            news = id_text(table[TO])[((keys[0] == label) & (keys[1] == old)).to_numpy()]
            said = f"{' and '.join(news)} {'has' if len(news) == 1 else 'have'} {value:.3g} of it"
            yield str(label), str(old), said, ""

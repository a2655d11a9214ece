"""Other polygons of a folder than the areas of the counts: areas of a level, or not used.

Areas that each hold whole areas of the counts, as provinces hold districts, are a level of
``output.areas``. Of other polygons it is told how to write them, for they may be anything.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import yaml

from geo.core.columns import AREA_ID, attribute_columns, id_text, name_column
from geo.core.errors import GridError
from pipeline.config.level_schema import N_LETTER, RESERVED
from pipeline.inspection.columns import CODE
from pipeline.inspection.folder import DATE, Boundary, Folder
from pipeline.store.level_areas import Level, Overlaps, bare_level

PLANE = "EPSG:6933"  # of equal surfaces, for all of the world but the poles
LABELS = "polygons beside those of the labels; runs of labels write no tables of other areas"
UNKNOWN = "polygons without a CRS, or none: they cannot be compared with the areas"


def other_levels(
    folder: Folder, areas: Boundary, *, labels: bool
) -> tuple[list[dict[str, str]], list[str]]:
    """Return what ``output.areas`` has of the polygons of a folder, and why others are not used.

    Parameters
    ----------
    folder : Folder
    areas : Boundary
        Of the counts.
    labels : bool
        Whether areas have labels, of which no level is written.

    Returns
    -------
    sections : list of dict
        Items of ``output.areas``.
    left : list of str
        Other polygons, and why they are not used.
    """
    sections, left = list[dict[str, str]](), list[str]()
    own: Level | None = None
    taken: list[tuple[Boundary, Level]] = []
    for each in folder.boundaries:
        if each is areas:
            continue
        section = _section(areas, each, {one["level"] for one in sections})
        if labels or section is None:
            why = LABELS if labels else "polygons; no column identifies an area of them"
            left.append(f"{each.title}: {why}")
            continue
        if len(each.frame) > len(areas.frame):  # before shapes of any number are compared
            left.append(f"{each.title}: more polygons than {areas.title} has areas")
            continue
        own = _level(areas) if own is None else own
        level = _level(each)
        if own is None or level is None:
            left.append(f"{each.title}: {UNKNOWN}")
            continue
        why = _why_not(areas, own, level, taken, section)
        if why:
            left.append(f"{each.title}: {why}")
        else:
            sections.append(section)
            taken.append((each, level))
    return sections, left


def _why_not(
    areas: Boundary,
    own: Level,
    level: Level,
    taken: list[tuple[Boundary, Level]],
    section: dict[str, str],
) -> str:
    """Say why polygons are not taken as a level, and how they could be; "" if they are."""
    pairs = Overlaps.of(own, level)
    if not pairs.fine.size:
        return f"polygons beside those of {areas.title}"
    if not (pairs.inside.all() and (pairs.parent(len(own)) >= 0).all()):
        item = f"`{_flow(section)}`"
        return (
            f"its areas do not hold whole areas of {areas.title} each; for tables of them, too, "
            f"add {item} to the list `output.areas`"
        )
    n_held = np.unique(pairs.coarse).size
    if n_held == len(own):
        return f"its areas are those of {areas.title}"
    if n_held == 1:
        return "one area holds all: the level `country` is the same"
    for before, known in taken:
        if len(level) == len(known) and (Overlaps.of(level, known).parent(len(level)) >= 0).all():
            return (
                f"its areas are those of {before.title}, which is in `output.areas`; to take it "
                f"in its place, write `{_flow(section)}` there"
            )
    return ""


def _level(areas: Boundary) -> Level | None:
    """Return polygons on a plane; None where they have no CRS, or none of the plane's."""
    if areas.frame.crs is None:
        return None
    frame = areas.frame[areas.frame.geometry.notna()]
    ids = pd.Series(np.arange(len(frame)).astype(str), frame.index)
    try:
        level = bare_level("", frame.assign(**{AREA_ID: ids}), PLANE)
    except (GridError, ValueError):
        return None
    return level if np.isfinite(level.surface).all() and len(level) else None


def _section(areas: Boundary, other: Boundary, taken: set[str]) -> dict[str, str] | None:
    """Return an item of ``output.areas``; None where no column identifies an area."""
    columns = attribute_columns(other.frame)
    texts = {column: id_text(other.frame[column]) for column in columns}
    ids = [c for c, each in texts.items() if each.notna().all() and each.is_unique]
    if not ids:
        return None
    name = name_column(columns)
    found = {"path": other.path}
    if other.layer is not None:
        found["layer"] = other.layer
    shared = set(attribute_columns(areas.frame)).intersection(ids)
    used = {c for c in shared if set(id_text(areas.frame[c]).dropna()) <= set(texts[c])}
    whole = [c for c in ids if not pd.api.types.is_float_dtype(other.frame[c])] or ids

    def order(column: str) -> tuple[bool, bool, bool]:
        """Put a column that the areas have, too, before a code, and names behind these."""
        return column not in used, CODE.search(column.lower()) is None, column == name

    found["id"] = min(whole, key=order)
    if name not in (None, found["id"]):
        found["name"] = str(name)
    word = other.layer or other.path.rpartition("/")[2].rpartition(".")[0]
    word = re.sub(r"\W+", "_", DATE.sub("", word)).strip("_-")[:N_LETTER] or "level"
    if word.casefold() in (*RESERVED, *(each.casefold() for each in taken)):
        word = f"{word[: N_LETTER - 3]}_{len(taken) + 2}"
    return found | {"level": word}


def _flow(section: dict[str, str]) -> str:
    text: str = yaml.safe_dump(
        section, default_flow_style=True, sort_keys=False, allow_unicode=True, width=4096
    )
    return text.strip()

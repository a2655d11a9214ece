"""A crosswalk of a folder: it has the ids of areas, and is neither counts nor a covariate."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from geo.core.columns import id_text
from geo.tables.crosswalk import AREA, NAME, PARENT
from pipeline.inspection.columns import Pairing, pairing_of
from pipeline.inspection.folder import Boundary, Folder, TableFile


def split_crosswalks(folder: Folder) -> list[TableFile]:
    """Take the crosswalks out of the tables that may be counts, and return them."""
    found = [each for each in folder.tables if {NAME, AREA} <= set(map(str, each.frame.columns))]
    folder.tables = [table for table in folder.tables if table not in found]
    return found


def paired_by(
    table: pd.DataFrame, areas: Boundary, walks: Sequence[TableFile]
) -> tuple[Pairing | None, TableFile | None]:
    """Return how a table and boundaries have the same ids, and the crosswalk that this needs.

    A crosswalk is needed if more ids are those of areas with it than without.
    """
    best, needed = pairing_of(table, areas), None
    for walk in walks:
        if not _usable(walk):
            continue
        names, ids = id_text(walk.frame[NAME]), id_text(walk.frame[AREA])
        area_of = {name: area for name, area in zip(names, ids, strict=True) if name and area}
        texts = {column: id_text(table[column]) for column in map(str, table.columns)}
        # Columns without a name of it stay as they are: they may be dates.
        there = {column: each for column, each in texts.items() if each.isin(set(area_of)).any()}
        moved = {column: each.map(lambda text: area_of.get(text, text)).to_numpy()  # noqa: B023
                 for column, each in there.items()}  # fmt: skip
        with_it = pairing_of(table.assign(**moved), areas) if moved else None
        if with_it is None or with_it.loose or with_it.table_id not in moved:
            continue
        if best is None or best.loose or _rank(with_it) > _rank(best):
            best, needed = with_it, walk
    return best, needed


def _rank(pairing: Pairing) -> tuple[bool, float]:
    return pairing.once, pairing.share


def told_left(walks: Sequence[TableFile], used: TableFile | None) -> list[str]:
    """Say of each crosswalk but the one that is used why it is not."""
    return [
        f"{each.title}: a crosswalk of names; "
        + (
            "the ids of the counts are those of areas without it"
            if _usable(each)
            else "name it as `counts.crosswalk`, with `counts.parent` if it has parents"
        )
        for each in walks
        if each is not used
    ]


def _usable(walk: TableFile) -> bool:
    """Return whether a crosswalk is a file of its own, without parents."""
    plain = walk.sheet is None and not walk.labels and not walk.skip_rows
    parents = walk.frame.get(PARENT, [])
    return plain and id_text(parents).isna().all()

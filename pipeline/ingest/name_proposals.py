"""Propose a crosswalk for the names of a table that are no ids of areas."""

from __future__ import annotations

from pathlib import Path

import geopandas as gpd
import pandas as pd

from geo.core.columns import AREA_ID, attribute_columns, folded, id_text, paired
from geo.core.errors import InputError, Problem
from geo.tables.crosswalk import AREA, NAME, read_crosswalk, with_zeros, write_crosswalk
from geo.tables.name_matching import Area, bare, parent_column, propose
from geo.tables.registry import read_table
from geo.tables.response_column import TOTAL
from pipeline.config.schema import Config
from pipeline.ingest.counted import area_changes
from pipeline.ingest.without_counts import own_file
from pipeline.store.level_areas import areas_of


def propose_names(config: Config, path: Path) -> str | None:
    """Write a proposal beside a configuration; nothing where all names match.

    Parameters
    ----------
    config : Config
    path : Path
        Of the configuration.

    Returns
    -------
    str or None
        What was proposed, in a line; None where all names match.

    Raises
    ------
    InputError
        If the areas or the table cannot be read, or the file is there already.
    """
    spec, problems = config.response, list[Problem]()
    if own_file(config) or spec.path is None:
        return None
    areas = areas_of(config.areas, "areas", problems, partial=True)
    if areas is None:
        raise InputError(problems)
    key = config.model.responses
    table, _ = read_table(
        spec.path, f"{key} ({spec.path})", sheet=spec.sheet, layer=spec.layer,
        **spec.spelling.layout,
    )  # fmt: skip
    column = spec.id or config.areas.id
    if column not in table:
        return None
    changes = area_changes(config, areas, [])
    known = set(areas[AREA_ID].dropna()) | (set() if changes is None else changes.former)
    names = id_text(table[column])
    parents = id_text(table[spec.parent]) if spec.parent in table else None
    ids = paired(names, known) if spec.match == "spelling" else names
    if spec.crosswalk is not None:
        own = read_crosswalk(spec.crosswalk, f"{key}.crosswalk", known, problems)
        ids = ids if own is None else own.of(names, parents)
    absent = names.notna() & ~ids.isin(known)
    if not absent.any():
        return None
    above = pd.Series("", index=names.index) if parents is None else parents.fillna("")
    wanted = sorted(set(zip(names[absent], above[absent], strict=True)))
    by = None if config.counts is None else config.counts.period
    period = None if by is None or by not in table else table[by]
    free = known - _taken(ids, absent, period)
    # Those that the crosswalk has, too: they tell which column of the areas has names.
    given = {pair for pair in zip(names, above, strict=True) if pair[0] and pair[0] not in known}
    lines = propose(wanted, _free(areas, free, given, config.areas.name))
    for line in lines:
        if not line["area_id"] and TOTAL.fullmatch(str(line["name"]).strip()):
            line["reason"] = "a total of other rows: remove its row from the table"
    if parents is None:
        lines = [{name: line[name] for name in line if name != "parent"} for line in lines]
    n, n_new = sum(bool(line["area_id"]) for line in lines), len(lines)
    walk = path.parent / f"{path.stem}.crosswalk.csv"
    file, then = walk, f"set {key}.crosswalk: {walk.name}"
    if spec.crosswalk is not None:
        # Lines of names without an area, or with one that is not there, are proposed anew.
        old, _ = read_table(spec.crosswalk, f"{key}.crosswalk")
        given_ids = with_zeros(id_text(old[AREA]), known)
        old[AREA] = given_ids.where(given_ids.isin(known), "")
        stays = (old[AREA] != "") | ~id_text(old[NAME]).isin(names[absent])
        lines = [*old[stays.to_numpy()].to_dict("records"), *lines]
        file = walk.with_suffix(".new.csv")
        then = f"put it in place of {Path(spec.crosswalk).name}, whose lines it keeps"
    write_crosswalk(file, lines)
    return (
        f"{n_new:,} names in column {column!r} match no area; {file} proposes one for "
        f"{n:,} of them. Read it, correct it, then {then}"
    )


def _taken(ids: pd.Series, absent: pd.Series, period: pd.Series | None) -> set[str]:
    """Return the ids that have a row in every period in which a name is absent."""
    if period is None:
        return set(ids)
    rows = ids[period.isin(period[absent])].groupby(period).agg(set)
    return set.intersection(*rows)


def _free(
    areas: gpd.GeoDataFrame, free: set[str], wanted: set[tuple[str, str]], name: str | None
) -> list[Area]:
    """Return the areas without a row, by the column that has most of the names."""
    columns = {each: id_text(areas[each]) for each in attribute_columns(areas)}
    names, parents = ({pair[k] for pair in wanted} - {""} for k in (0, 1))
    given = {each for text in names for each in (folded(text), bare(text))}

    def found(column: str) -> int:
        texts = columns[column].dropna()
        return sum(folded(text) in given or bare(text) in given for text in texts)

    best = max(columns, key=lambda each: (found(each), each == name), default=None)
    titles = areas[AREA_ID] if best is None or not found(best) else columns[best]
    if name in columns and titles is areas[AREA_ID]:
        titles = columns[name]
    within = parent_column(parents, columns) if parents else None
    above = pd.Series("", index=areas.index) if within is None else columns[within].fillna("")
    rows = zip(areas[AREA_ID], titles, above, strict=True)
    return [Area(area, text or area, parent) for area, text, parent in rows if area in free]

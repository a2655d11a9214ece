"""Propose a crosswalk for the names of a table that are no ids of areas."""

from __future__ import annotations

from pathlib import Path

import geopandas as gpd
import pandas as pd

from geo.core.columns import AREA_ID, attribute_columns, folded, id_text, paired
from geo.core.errors import InputError, Problem
from geo.sources.boundary import read_areas
from geo.sources.repair import Repairs
from geo.tables.crosswalk import read_crosswalk, write_crosswalk
from geo.tables.name_matching import Area, bare, parent_column, propose
from geo.tables.registry import read_table
from pipeline.config.schema import Config
from pipeline.ingest.without_counts import own_file


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
    areas = read_areas(
        config.areas.path, config.areas.layer, config.areas.id, "areas", problems, partial=True,
        repairs=Repairs() if config.areas.repair else None, encoding=config.areas.encoding,
    )  # fmt: skip
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
    known = set(areas[AREA_ID].dropna())
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
    lines = propose(wanted, _free(areas, known - set(ids), wanted, config.areas.name))
    if parents is None:
        lines = [{name: line[name] for name in line if name != "parent"} for line in lines]
    file = path.parent / f"{path.stem}.crosswalk.csv"
    write_crosswalk(file, lines)
    n = sum(bool(line["area_id"]) for line in lines)
    return (
        f"{len(lines):,} names in column {column!r} match no area; {file} proposes one for "
        f"{n:,} of them. Read it, correct it, then set {key}.crosswalk: {file.name}"
    )


def _free(
    areas: gpd.GeoDataFrame, free: set[str], wanted: list[tuple[str, str]], name: str | None
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

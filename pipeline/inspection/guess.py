"""What the files of a folder are for: boundaries, counts, people, covariates; else a question."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from geo.core.calendar import Calendar
from geo.core.columns import (
    attribute_columns,
    id_text,
    name_column,
)
from geo.core.errors import InputError, Problem, name_first
from geo.core.period_text import read_periods
from geo.sources.source import crs_remedy
from pipeline.inspection.changes import split_changes, usable_changes
from pipeline.inspection.columns import (
    CASES,
    PEOPLE,
    Pairing,
    count_columns,
    has_dates,
    is_period_name,
    is_whole,
    numbers_of,
    pairing_of,
    pairings_of,
    step_of,
)
from pipeline.inspection.crosswalks import paired_by, split_crosswalks, told_left
from pipeline.inspection.folder import Boundary, Folder, RasterFile, TableFile
from pipeline.inspection.levels import other_levels
from pipeline.inspection.repeated import repeated_rows
from pipeline.inspection.response import (
    NONE,
    RATE,
    Ask,
    ResponseColumns,
    is_exposure,
    plain,
    response_columns,
)

FOLLOWS = 0.9  # rank correlation with the counts, from which on a column follows from them
ANY_OF_BANDS = "`band`, `variable`, `time` or `aggregate`"
_TRUTH = re.compile(r"^truth(?![a-z])")


@dataclass
class Guess:
    """What a configuration is made of, with the reason of each part.

    Attributes
    ----------
    areas : Boundary
    counts : TableFile or None
        None if the counts are a column of the boundaries.
    pairing : Pairing
    response : ResponseColumns
    period : str or None
        Column.
    step, week : str or None
        Of the periods.
    texts : list of str
        The periods, as ``{period}`` stands for them.
    population : RasterFile or None
    covariates : dict of RasterFile
    tables : dict of (TableFile, Pairing, str, str or None)
        Covariates that are columns of tables: the column, and that of the period.
    truth : RasterFile or None
    changes, crosswalk : TableFile or None
        What became of areas; which areas the names of the counts are.
    levels : list of dict
        Items of ``output.areas``.
    why : dict of str
        By section.
    left : list of str
        Files that are not used, and why.
    """

    areas: Boundary
    counts: TableFile | None
    pairing: Pairing
    response: ResponseColumns = field(default_factory=lambda: ResponseColumns(""))
    period: str | None = None
    step: str | None = None
    week: str | None = None
    texts: list[str] = field(default_factory=list)
    population: RasterFile | None = None
    covariates: dict[str, RasterFile] = field(default_factory=dict)
    tables: dict[str, tuple[TableFile, Pairing, str, str | None]] = field(default_factory=dict)
    truth: RasterFile | None = None
    changes: TableFile | None = None
    crosswalk: TableFile | None = None
    levels: list[dict[str, str]] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def guess(folder: Folder, ask: Ask) -> Guess:
    """Find out what the files are for; ask where several fit.

    Raises
    ------
    InputError
        If there are no boundaries or no counts, or a question cannot be asked.
    """
    changes, walks = split_changes(folder), split_crosswalks(folder)
    found = _pair(folder, walks, ask)
    found.left = [*folder.left, *told_left(walks, found.crosswalk)]
    _response(found, ask)
    _periods(folder, found)
    found.changes, left = usable_changes(
        changes, found.areas, found.pairing.area_id, periods=found.step is not None
    )
    found.left += left
    _rasters(folder, found, ask)
    _other_tables(folder, found)
    found.levels, left = other_levels(folder, found.areas, labels=found.response.labels)
    found.left += left
    return found


def _pair(folder: Folder, walks: Sequence[TableFile], ask: Ask) -> Guess:
    """Choose the boundaries and the table of the counts, by the ids that they share."""
    place = str(folder.path)
    if not folder.boundaries:
        remedy = "add a GeoPackage, Shapefile or GeoJSON of the areas"
        raise InputError(Problem(place, "has no file with polygons", remedy))
    pairs, needed = [], dict[tuple[str, str], TableFile | None]()
    for areas in folder.boundaries:
        for table in folder.tables:
            pairing, walk = paired_by(table.frame, areas, walks)
            if pairing is not None:
                pairs.append((areas, table, pairing))
                needed[areas.title, table.title] = walk
    # A table of districts has the names of their provinces, too, but these tell no rows apart.
    apart = {table.title for _, table, pairing in pairs if pairing.once}
    pairs = [each for each in pairs if each[2].once or each[1].title not in apart]
    shapes = {areas.title: areas for areas, _, _ in pairs} or {
        each.title: each for each in folder.boundaries
    }
    title = ask("areas", "Which has the boundaries of the counts?", list(shapes))
    own = [(table, pairing) for areas, table, pairing in pairs if areas.title == title]
    if not own:
        frame = shapes[title].frame.drop(columns="geometry")
        columns = [c for c in count_columns(frame) if CASES.search(c.lower())]
        if not columns:
            remedy = "add a table with a column of the areas' ids and one of the counts"
            if folder.unread:
                first = folder.unread[0]
                found = (
                    f"cannot be read, and no other table has the ids of the areas: {first.found}"
                )
                raise InputError(Problem(first.place, found, first.remedy))
            raise InputError(Problem(place, "no table has the ids of the areas", remedy))
        texts = {c: id_text(frame[c]) for c in map(str, frame.columns) if c not in columns}
        ids = [c for c, each in texts.items() if each.notna().all() and each.is_unique]
        if not ids:
            remedy = "add a column with an id of each area"
            raise InputError(Problem(title, "no column identifies an area", remedy))
        own_id = ask("areas.id", "Which column identifies an area?", ids)
        return Guess(shapes[title], None, Pairing(own_id, own_id, 1.0, loose=False))
    by_title = {table.title: (table, pairing) for table, pairing in own}
    named = [t for t, (table, pairing) in by_title.items() if _cases_in(table, pairing)]
    chosen = named if len(named) == 1 else named or list(by_title)
    which = ask("counts", "Which table has the counts?", chosen)
    table, pairing = by_title[which]
    if needed[title, which] is None:
        pairing = _ids(table, shapes[title], pairing, ask)
    return Guess(shapes[title], table, pairing, crosswalk=needed[title, which])


def _ids(table: TableFile, areas: Boundary, best: Pairing, ask: Ask) -> Pairing:
    """Return the best columns of ids, or those that answers name."""
    every = pairings_of(table.frame, areas) or [best]
    text = f"Which column of {areas.title} has the ids of {table.title}?"
    columns = list(dict.fromkeys(each.area_id for each in every))
    own = ask("areas.id", text, columns, best.area_id)
    every = [each for each in every if each.area_id == own]
    text = f"Which column of {table.title} has the ids of {areas.title}, its column {own}?"
    first = best if best in every else every[0]
    named = ask("counts.id", text, [each.table_id for each in every], first.table_id)
    return next(each for each in every if each.table_id == named)


def _cases_in(table: TableFile, pairing: Pairing) -> bool:
    columns = [c for c in count_columns(table.frame) if c != pairing.table_id]
    return bool(columns) and any(
        CASES.search(text.lower()) for text in [*columns, table.title.rpartition("/")[2]]
    )


def _response(found: Guess, ask: Ask) -> None:
    """Choose the columns of the response."""
    table = found.counts
    frame = found.areas.frame.drop(columns="geometry") if table is None else table.frame
    place = found.areas.title if table is None else table.title
    found.response = response_columns(frame, found.pairing.table_id, place, ask)
    if found.response.wide:
        found.why["counts"] = f"a column for each of {found.response.n_wide} periods"


def _periods(folder: Folder, found: Guess) -> None:
    """Find the periods of the counts, and their step."""
    table = found.counts
    if table is None:
        return
    frame, texts = table.frame, list[str]()
    if table.labels:
        texts = list(table.labels)
    elif found.response.wide:
        texts = [c for c in map(str, frame.columns) if is_period_name(c)]
    else:
        ids, dated = id_text(frame[found.pairing.table_id]), list[str]()
        for column in map(str, frame.columns):
            if column in (found.pairing.table_id, found.response.value) or not has_dates(
                frame[column]
            ):
                continue
            own = id_text(frame[column])
            dated.append(column)
            if own.nunique() > 1 and not pd.concat([ids, own], axis=1).duplicated().any():
                found.period, texts = column, list(own.dropna().unique())
                break
        if found.period is None and ids.dropna().duplicated().any():
            of = found.pairing.table_id, found.response.value
            raise InputError(
                Problem(str(folder.path / table.path), *repeated_rows(frame, *of, dated))
            )
    if texts:
        found.step, found.week = step_of(texts)
        found.texts = [text for text in read_periods(texts)[0] if text is not None]


def _rasters(folder: Folder, found: Guess, ask: Ask) -> None:
    """Tell the people from the covariates, and the truth of a simulation."""
    rasters = []
    for each in folder.rasters:
        if each.labels and found.step is None and PEOPLE.search(each.name):  # of which year?
            rasters += [replace(each, path=p, labels=()) for p in each.paths]
        else:
            own = replace(each, by_time=_by_time(each, found))
            rasters += [own] if _usable(own, found) else []
    truths = [each for each in rasters if _TRUTH.search(each.name)]
    found.truth = truths[0] if len(truths) == 1 and not found.response.labels else None
    why = "one of several truths"
    if found.response.labels and len(truths) == 1:
        why = "if it has the labels 1 and 0 of pixels, add it as `truth`"
    found.left += [f"{each.title}: {why}" for each in truths if found.truth is None]
    rest = [each for each in rasters if each not in truths]
    named = [each for each in rest if PEOPLE.search(_words(each))]
    of_people = found.response.weight if found.response.weight_unit == "people" else None
    if of_people is not None and found.counts is not None and not named:
        found.why["population"] = f"people are the column {of_people} of the counts"
    elif rest:
        text = "Which raster has the people?"
        known = [each.title for each in named]
        given = known if len(known) == 1 else [*(known or [r.title for r in rest]), NONE]
        answer = ask("population", text, given)
        found.population = next((each for each in rest if each.title == answer), None)
    if found.population is not None and found.response.weight_unit == "people":
        found.response = replace(found.response, weight=None, weight_unit=None)
    for each in rest:
        if each == found.population:
            continue
        if each in named and found.population is not None:
            found.left.append(f"{each.title}: people are {found.population.title}")
            continue
        if each.name in found.covariates:
            found.left.append(f"{each.title}: {found.covariates[each.name].title} has its name")
        else:
            found.covariates[each.name] = each


def _usable(each: RasterFile, found: Guess) -> bool:
    """Return whether a raster can be a layer; if not, say why."""
    about, moving = each.about, found.step is not None
    why = ""
    if about.trouble is not None:
        why = about.trouble[0]
    elif about.crs is None:
        why = f"has no CRS; {crs_remedy(about)}"
    elif about.transform.is_identity:
        why = "has no coordinates of its rows and columns"
    elif len(about.bands) > 1 and not each.by_time:
        why = f"has {len(about.bands)} bands; add it with {_choice(each, found)}"
    elif each.labels and not moving:
        why = f"{len(each.labels)} files of periods, and the counts have one: add the one of theirs"
    elif each.sibling and not PEOPLE.search(each.name):
        why = f"is of one date, as {each.sibling} is of others: put them in one folder"
    elif each.labels and not each.years and (misdated := _misdated(each, found)):
        why = misdated
    elif not _overlaps(about, found.areas):
        why = "does not overlap the areas"
    if why:
        found.left.append(f"{each.title}: {why}")
    return not why


def _misdated(each: RasterFile, found: Guess) -> str:
    """Say why the files of a raster are not those of the periods of the counts; "" if they are."""
    if set(each.labels) & set(found.texts):
        return ""
    own, wanted = Counter(_labels(found, each.labels)), _labels(found, found.texts)
    if not own.keys() & set(wanted):
        dates, texts = (sorted(of)[:: max(len(of) - 1, 1)] for of in (each.labels, found.texts))
        return f"its dates ({' to '.join(dates)}) are not of the periods of the counts " + (
            f"({' to '.join(texts)})"
        )
    several = [label for label in wanted if own[label] > 1 and label not in each.labels]
    return f"has {own[several[0]]} files of {several[0]}; a period needs one" if several else ""


def _labels(found: Guess, texts: Sequence[str]) -> list[str]:
    """Return the labels of periods, such as 2022-03 of 202203, 2022.03 and of 2022-03-01."""
    if found.step is None:
        return []
    calendar = Calendar(found.step, found.week or "monday")
    numbers = [calendar.number_in_name(text) for text in texts]
    return [calendar.label(number) for number in numbers if number is not None]


def _words(each: RasterFile) -> str:
    """Return what a raster is called."""
    variable = next((band.variable for band in each.about.bands), "")
    return f"{each.name} {variable} {each.about.unit}".lower()


def _by_time(each: RasterFile, found: Guess) -> bool:
    """Return whether a raster has one band of each period of the counts."""
    own, wanted = _band_labels(each, found), _labels(found, found.texts)
    return bool(wanted) and own.total() > 1 and all(own[label] == 1 for label in wanted)


def _band_labels(each: RasterFile, found: Guess) -> Counter[str]:
    """Return how many bands of a raster each period has, by its label."""
    return Counter(_labels(found, [band.time[:10] for band in each.about.bands]))


def _choice(each: RasterFile, found: Guess) -> str:
    """Return the keys that make one layer of several bands."""
    times = [band.time for band in each.about.bands]
    own, wanted = _band_labels(each, found), _labels(found, found.texts)
    years = {time[:4] for time in times}
    if found.step is None or not all(times) or (len(years) == len(times) and found.step != "year"):
        return "`band`, `time` or `aggregate`" if each.variable else ANY_OF_BANDS
    if any(own[label] > 1 for label in wanted):
        return '`time: "{period}"` and `aggregate: mean` (or sum, min, max)'
    gone = sorted(label for label in wanted if not own[label])
    return f'`time: "{{period}}"`, when it has {name_first(gone)}'


def _overlaps(about: object, areas: Boundary) -> bool:
    grid = getattr(about, "grid", None)
    if grid is None or areas.frame.crs is None:
        return True  # the check tells
    own = areas.frame.geometry.to_crs(grid.crs).total_bounds
    west, south, east, north = grid.bounds
    turn = 360.0 if grid.crs.is_geographic else 0.0
    if not np.isfinite(own).all():
        return True
    return any(
        own[0] + shift < east and own[2] + shift > west and own[1] < north and own[3] > south
        for shift in (0.0, turn, -turn)
    )


def _other_tables(folder: Folder, found: Guess) -> None:
    """Take columns of decimals of tables as covariates: what may be counts is left out."""
    for table in folder.tables:
        if table is found.counts:
            _own_table(table, found)
            continue
        pairing = pairing_of(table.frame, found.areas)
        if pairing is None or pairing.loose or table.labels:
            found.left.append(f"{table.title}: has not the ids of the areas")
            continue
        period = next(
            (c for c in map(str, table.frame.columns)
             if c != pairing.table_id and has_dates(table.frame[c])), None,
        )  # fmt: skip
        used = 0
        for column in map(str, table.frame.columns):
            numbers = numbers_of(table.frame[column])
            if column in (pairing.table_id, period) or not numbers.size or is_whole(numbers):
                continue
            name = re.sub(r"\W+", "_", column).strip("_").lower()
            if name not in found.covariates and (period is None or found.step is not None):
                found.tables[name] = (table, pairing, column, period)
                used += 1
        if not used:
            text = "its whole numbers may be counts, labels or folds: none is a covariate"
            found.left.append(f"{table.title}: {text}")


def _own_table(table: TableFile, found: Guess) -> None:
    """Take columns beside the counts that are no rate of theirs and lack no area or period."""
    frame, response = table.frame, found.response
    used = {response.value, found.period, response.weight, response.tested}
    given = response.labels or response.wide or found.pairing.loose
    if given or found.crosswalk or table.labels:
        return
    n_period = 1 if found.period is None else frame[found.period].nunique()
    if len(frame) != len(found.areas.frame) * n_period:
        return
    # A rate, or the cases of a neighbour: what follows from the counts explains nothing.
    counts = pd.to_numeric(frame[response.value], errors="coerce")
    over = [c for c in map(str, frame.columns) if is_exposure(c) or PEOPLE.search(plain(c))]
    below = [pd.to_numeric(frame[c], errors="coerce") for c in over]
    follows = [counts, *(counts / each.where(each > 0) for each in below)]
    for column in map(str, frame.columns):
        numbers = numbers_of(frame[column])
        text = plain(column)
        told = CASES.search(text) or RATE.search(text) or is_exposure(column)
        if column in used or column == found.pairing.table_id or told or is_whole(numbers):
            continue
        cells = pd.to_numeric(frame[column], errors="coerce")
        if cells.isna().any() or cells.nunique() < 3:
            continue
        if all(not abs(cells.corr(each, method="spearman")) >= FOLLOWS for each in follows):
            name = re.sub(r"\W+", "_", column).strip("_").lower()
            found.tables.setdefault(name, (table, found.pairing, column, found.period))


def names_column(found: Guess) -> str | None:
    """Return the column with the names of the areas, if another than that of the ids."""
    name = name_column(attribute_columns(found.areas.frame))
    return None if name == found.pairing.area_id else name

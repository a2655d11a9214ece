"""How the names of files have the periods: as the counts write them, or in another way.

The counts may write a month as DHIS2 does, 202203, or as Excel does, by its first day; files of
rain come as 2022.03. A file of ``{period}`` is looked for by the text of the counts first, by the
label, such as 2022-03, second, and then by any other text that is of this period alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from geo.core.calendar import Calendar
from geo.core.errors import name_first
from pipeline.config.document import nearest_file
from pipeline.config.periods import can_be_listed, period_files
from pipeline.config.series import MARKS, Series, lag_of
from pipeline.storage.location import Storage, is_remote

PERIOD, YEAR = MARKS
#: A date in a file's name.
_DATE = re.compile(r"(?:19|20)\d\d(?:[-_.]?[WwQq]?\d\d?)?(?:[-_.]?\d\d)?")


def named_files(
    data: Mapping[str, Any], base: Path, series: Series, storage: Storage
) -> dict[str, dict[str, str]]:
    """List what the files of each layer have in place of ``{period}``, by its path and by label.

    Periods whose files are named as the counts write them are not in it, nor addresses whose files
    cannot be listed. Those of object stores are listed only where the counts do not write periods
    as their labels are: each reading of a configuration asks the store.

    Parameters
    ----------
    data : mapping
        A configuration that is not yet validated.
    base : Path
        Base directory of relative paths.
    series : Series
    storage : Storage
        Connection settings of object stores.
    """
    years = [series.calendar.first(n).year for n in (series.first, series.last)]
    usual = all(label == series.text(label) for label in (series.periods[0], *series.spelled))
    found: dict[str, dict[str, str]] = {}
    for path in _paths(data):
        if usual and is_remote(path):
            continue
        # A lag begins before the first year, a forecast ends after the last.
        each = [path.replace(YEAR, str(year)) for year in range(years[0] - 1, years[1] + 2)]
        names = (period_files(own, base, storage) for own in dict.fromkeys(each))
        found[path] = _by_label({name for files in names for name, _ in files}, series)
    return found


def _by_label(names: Collection[str], series: Series) -> dict[str, str]:
    """Return the texts of periods that have no file by the text of the counts, by their label."""
    return {
        label: label if label in own else own[0]
        for label, own in _of_periods(names, series).items()
        if series.text(label) not in own and (label in own or len(own) == 1)
    }


def _of_periods(names: Collection[str], series: Series) -> dict[str, list[str]]:
    """Return the texts that are of each period, by its label.

    A day stands for its period only where all files have days: one among months is something else.
    """
    labels = {
        name: series.calendar.label(number)
        for name in sorted(names)
        if (number := series.calendar.number_in_name(name)) is not None
    }
    days = {name: Calendar("day").number_in_name(name) is not None for name in labels}
    mixed = series.calendar.step != "day" and len(set(days.values())) > 1
    found: dict[str, list[str]] = {}
    for name, label in labels.items():
        if not (mixed and days[name]) or series.text(label) == name:
            found.setdefault(label, []).append(name)
    return found


def _paths(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of layers with ``{period}`` whose files can be listed."""
    covariates = data.get("covariates")
    sections = list(covariates.values()) if isinstance(covariates, Mapping) else []
    for section in (*sections, data.get("population")):
        path = section.get("path") if isinstance(section, Mapping) else None
        if not isinstance(path, str) or PERIOD not in path or "${" in path:
            continue
        if can_be_listed(path):
            yield path


def other_name(section: Mapping[str, Any], series: Series, period: str) -> str:
    """Return the name by the label that a missing file of a period may have; "" if it is the same.

    Parameters
    ----------
    section : mapping
        The layer, as the configuration writes it; with its lag.
    series : Series
    period : str
    """
    name = Path(str(section.get("path"))).name
    label = series.calendar.label(int(series.time_of(period)) - lag_of(section))
    return name.replace(PERIOD, label) if PERIOD in name and series.text(label) != label else ""


def remedy_of(path: Path, section: Mapping[str, Any], series: Series, period: str) -> str:
    """Return the remedy for files of all periods that are not there: never one file for them all.

    Parameters
    ----------
    path : Path
        Of one period.
    section : mapping
        The layer, as the configuration writes it.
    series : Series
    period : str
        The label of that period.
    """
    name = Path(str(section.get("path"))).name
    near = nearest_file(path)
    if PERIOD not in name or not path.parent.is_dir():
        return near
    label = series.calendar.label(int(series.time_of(period)) - lag_of(section))
    if several := _several(path.parent, name, series, label):
        return several
    found = re.fullmatch(r"did you mean (.*)\?", near)
    like = "" if found is None else _DATE.sub(PERIOD, found[1])
    return f"did you mean {like}?" if PERIOD in like and like != name else ""


def _several(folder: Path, name: str, series: Series, label: str) -> str:
    """Say which of several files of a period cannot be told apart; "" if there are none."""
    before, _, after = name.partition(PERIOD)
    files = [one.name for one in folder.iterdir()]
    files = [each for each in files if each.startswith(before) and each.endswith(after)]
    dates = {each[len(before) : len(each) - len(after)] for each in files}
    own = _of_periods(dates, series).get(label, [])
    if len(own) < 2:
        return ""
    names = name_first([f"{before}{date}{after}" for date in own])
    return f"{names} are of {label}: name the one to use {before}{label}{after}"

"""How the names of files have the periods: as the counts write them, or by their labels.

Excel writes a month as a date, and nobody names files by its first day. A file of ``{period}`` is
looked for by the text of the counts first, and by the label, such as 2022-03, second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.config.document import nearest_file
from pipeline.config.periods import can_be_listed, period_files
from pipeline.config.series import MARKS, Series, lag_of
from pipeline.storage.location import Storage

PERIOD, YEAR = MARKS
#: A date in a file's name.
_DATE = re.compile(r"(?:19|20)\d\d(?:[-_]?[WwQq]?\d\d?)?(?:[-_]?\d\d)?")


def named_files(
    data: Mapping[str, Any], base: Path, series: Series, storage: Storage
) -> dict[str, frozenset[str]]:
    """List what the files of each layer have in place of ``{period}``, by its path.

    Empty where the counts write the periods as their labels are, and for addresses whose files
    cannot be listed.

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
    if series.text(series.periods[0]) == series.periods[0] and all(
        label == text for label, text in series.spelled.items()
    ):
        return {}
    years = [series.calendar.first(n).year for n in (series.first, series.last)]
    found: dict[str, frozenset[str]] = {}
    for path in _paths(data):
        # A lag begins before the first year, a forecast ends after the last.
        each = [path.replace(YEAR, str(year)) for year in range(years[0] - 1, years[1] + 2)]
        names = (period_files(own, base, storage) for own in dict.fromkeys(each))
        found[path] = frozenset(name for files in names for name, _ in files)
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


def remedy_of(path: Path, section: Mapping[str, Any], series: Series) -> str:
    """Return the remedy for files of all periods that are not there: never one file for them all.

    Parameters
    ----------
    path : Path
        Of one period.
    section : mapping
        The layer, as the configuration writes it.
    series : Series
    """
    name = Path(str(section.get("path"))).name
    near = nearest_file(path)
    if PERIOD not in name or not path.parent.is_dir():
        return near
    renamed = _renamed(path.parent, name, series)
    if renamed:
        return renamed
    found = re.fullmatch(r"did you mean (.*)\?", near)
    like = "" if found is None else _DATE.sub(PERIOD, found[1])
    return f"did you mean {like}?" if PERIOD in like and like != name else ""


def _renamed(folder: Path, name: str, series: Series) -> str:
    """Say how to name files whose dates are written in another form; "" if there are none."""
    before, _, after = name.partition(PERIOD)
    for each in sorted(one.name for one in folder.iterdir()):
        date = each[len(before) : len(each) - len(after)]
        if each != f"{before}{date}{after}" or not _DATE.fullmatch(date):
            continue
        label = series.label(date.replace("_", "-"))
        if label not in (date, date.replace("_", "-")):
            return f"rename the files, such as {each} to {before}{label}{after}"
    return ""

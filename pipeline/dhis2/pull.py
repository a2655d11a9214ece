"""``disagg dhis2 pull``: boundaries and counts of DHIS2 as the files that a configuration names."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from geo.core.calendar import Calendar
from geo.core.errors import InputError, Problem, name_first, one_line
from geo.core.text_safety import spreadsheet_safe
from pipeline.config.dhis2_schema import Pull
from pipeline.config.schema import Config
from pipeline.core.progress import Progress, Silent
from pipeline.dhis2.period_codes import common_calendar, describe, expand
from pipeline.dhis2.server import LISTED, Server
from pipeline.dhis2.values import (
    Value,
    add_up,
    mapping,
    names_of,
    parts,
    read_document,
    read_file,
    refuse_page,
    stored_values,
)
from pipeline.storage.files import atomic_write
from pipeline.storage.location import is_remote

_SHAPES = ("Polygon", "MultiPolygon")
_KEPT = ("name", "code", "level", "parent")  # properties of a unit that are texts or numbers
_PERIODS = ("dhis2", "pull", "periods")
MANIFEST = ".dhis2.json"  # in place of the counts' own .csv


@dataclass(frozen=True)
class Pulled:
    """What a pull found and wrote.

    Attributes
    ----------
    written : tuple of str
        Files that were replaced; none where nothing has changed.
    units, rows : int
        Areas with a boundary, rows of counts; ``units`` is 0 with ``boundaries: own``.
    first, last : str
        Periods, as the counts write them.
    notes : tuple of str
        What was left out, a line each.
    manifest : str
        File that says where the others are from.
    """

    written: tuple[str, ...]
    units: int
    rows: int
    first: str
    last: str
    notes: tuple[str, ...]
    manifest: str


def pull(config: Config, progress: Progress | None = None, today: date | None = None) -> Pulled:
    """Write the boundaries and the counts of DHIS2 to ``areas.path`` and ``counts.path``.

    Files are replaced once all are complete, and only where their content changes: a second pull
    of the same values makes no stage of a run stale.

    Parameters
    ----------
    config : Config
        Its input files may be missing.
    progress : Progress, optional
    today : date, optional
        The period ``latest`` was over by then.

    Raises
    ------
    InputError
        If the server cannot be reached or refuses, or the values do not fit the configuration.
    """
    today = today or date.today()
    spec, places = _checked(config, today)
    progress = progress or Silent()
    server, by_server = open_server(config), not (spec.values and spec.boundaries)
    source: dict[str, Any] = {}
    notes: list[str] = []
    with progress.task("dhis2 pull", 3) as task:
        names: dict[str, str] = {}
        if by_server:
            source = {"url": server.url, "server_version": server.version()}
            names = _units(server, spec)
        task.advance()
        boundaries, known = _boundaries(config, spec, server, names, notes)
        task.advance()
        values = list(_values(spec, server, list(names), today, names))
        task.advance()
    if known is not None:
        values = _inside(values, known, names, notes)
    text, periods, rows = _table(config, spec, values, names)
    files = {places[1]: text} | ({} if boundaries is None else {places[0]: boundaries})
    manifest = places[1].with_suffix(MANIFEST)
    written = _write(files, manifest, source, spec, rows, notes)
    n_unit = len(known or ())
    return Pulled(written, n_unit, rows, periods[0], periods[-1], tuple(notes), str(manifest))


def open_server(config: Config) -> Server:
    """Return the server of a configuration, with the retries and the timeout of ``storage``."""
    url = config.dhis2.url if config.dhis2 else None
    return Server(url or "", config.storage.retries, config.storage.timeout)


def _checked(config: Config, today: date) -> tuple[Pull, tuple[Path, Path]]:
    """Return what to pull, and the paths of areas and counts: all problems at once."""
    spec = config.dhis2.pull if config.dhis2 else None
    counts, problems = config.counts, list[Problem]()
    if spec is None or counts is None or counts.path is None:
        key = "dhis2.pull" if spec is None else "counts.path"
        raise InputError(Problem(key, "is not given", "add it: see docs/dhis2.md"))
    wanted: list[tuple[str, str, tuple[str, ...]]] = [("counts.path", counts.path, (".csv",))]
    if spec.boundaries != "own":
        wanted.append(("areas.path", config.areas.path, (".geojson", ".json")))
    for key, path, endings in wanted:
        if is_remote(path) or not path.lower().endswith(endings):
            remedy = f"give a local {endings[0]} file, which the pull writes"
            problems.append(Problem(key, f"{path} cannot be written by a pull", remedy))
    values = config.document.values if config.document is not None else {}
    if "{" in str((values.get("counts") or {}).get("path", "")) or counts.periods == "columns":
        remedy = "give one file with a row for each area and period"
        problems.append(Problem("counts", "a file or a column for each period", remedy))
    if counts.tested is not None and not spec.tested:
        remedy = "give the data elements of the people tested"
        problems.append(Problem("dhis2.pull.tested", "is not given, but counts.tested is", remedy))
    by_file = bool(spec.values)
    if not (config.dhis2 and config.dhis2.url) and not (by_file and spec.boundaries):
        remedy = "give the server, or files (dhis2.pull.values and dhis2.pull.boundaries)"
        problems.append(Problem("dhis2.url", "is not given", remedy))
    needed = {
        "data": by_file and not spec.tested,
        "periods": by_file,
        "level": by_file and bool(spec.boundaries),
    }
    problems += [
        Problem(f"dhis2.pull.{key}", "is not given", "add it: see docs/dhis2.md")
        for key, given in needed.items()
        if not given and not getattr(spec, key)
    ]
    if not by_file:
        try:
            place = config.document.place(_PERIODS) if config.document else ".".join(_PERIODS)
            expand(spec.periods, today, place)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return spec, (Path(config.areas.path), Path(counts.path))


def _units(server: Server, spec: Pull) -> dict[str, str]:
    """Return the names of the organisation units, with and without a boundary."""
    query = [("fields", "id,displayName,path"), ("level", str(spec.level))]
    query.append(("order", "name:asc"))  # pages of one order
    units = server.pages("organisationUnits.json", "organisationUnits", query)
    above = set(spec.parents)
    return {
        str(unit["id"]): str(unit.get("displayName", unit["id"]))
        for unit in map(mapping, units)
        if "id" in unit
        if not above or above & set(str(unit.get("path", "")).split("/"))
    }


def _boundaries(
    config: Config, spec: Pull, server: Server, names: dict[str, str], notes: list[str]
) -> tuple[bytes | None, set[str] | None]:
    """Return the file of the boundaries, and the ids in it; None where they are the user's."""
    if spec.boundaries == "own":
        return None, None
    if spec.boundaries is not None:
        place = spec.boundaries
        try:
            text = Path(place).read_text(encoding="utf-8-sig")
            refuse_page(text, place)
            given = json.loads(text)
        except InputError:
            raise
        except (OSError, ValueError) as error:
            why = f"cannot be read ({one_line(error)})"
            raise InputError(Problem(place, why, "give a GeoJSON file")) from error
    else:
        query = [("level", str(spec.level)), *(("parent", each) for each in spec.parents)]
        place = f"{server.url}/api/organisationUnits.geojson"
        given = server.get("organisationUnits.geojson", query)
    features = mapping(given).get("features")
    if not isinstance(features, list):
        remedy = "give what /api/organisationUnits.geojson answers"
        raise InputError(Problem(place, "is no GeoJSON with features", remedy))
    found: dict[str, dict[str, Any]] = {}
    pointed = []
    for feature in features:
        feature = mapping(feature)
        about, shape = mapping(feature.get("properties")), mapping(feature.get("geometry"))
        unit = str(feature.get("id") or about.get("id") or "")
        names.setdefault(unit, str(about.get("name") or unit))
        if not unit or shape.get("type") not in _SHAPES:
            pointed.append(names[unit] or "a feature without id")
            continue
        kept = {key: about[key] for key in _KEPT if about.get(key) is not None}
        own = {**kept, config.areas.id: unit}
        found[unit] = {"type": "Feature", "id": unit, "properties": own, "geometry": shape}
    if not found:
        remedy = "import boundaries into DHIS2, or give dhis2.pull.boundaries"
        raise InputError(Problem(place, "has no organisation unit with a boundary", remedy))
    without = sorted({*pointed, *(name for unit, name in names.items() if unit not in found)})
    if without:
        notes.append(f"organisation units without a boundary: {name_first(without)}")
    value = {"type": "FeatureCollection", "features": [found[unit] for unit in sorted(found)]}
    return (json.dumps(value, ensure_ascii=False) + "\n").encode(), set(found)


def _values(
    spec: Pull, server: Server, units: list[str], today: date, names: dict[str, str]
) -> Iterator[Value]:
    """Yield the values of the files, or of the server; put names that it tells into ``names``."""
    if spec.values:
        for path in spec.values:
            yield from read_file(path)
        return
    data, codes = [*spec.data, *spec.tested], expand(spec.periods, today, ".".join(_PERIODS))
    if spec.api == "dataValueSets":
        elements = [each.partition(".")[0] for each in data]
        yield from stored_values(server, elements, units, codes, spec.data_set)
        return
    places = ";".join([f"LEVEL-{spec.level}", *spec.parents])
    for some in parts(codes, LISTED // 4):  # servers limit the rows of an answer
        dimensions = {"dx": ";".join(data), "pe": ";".join(some), "ou": places}
        query = [("dimension", f"{name}:{items}") for name, items in dimensions.items()]
        query.append(("skipRounding", "true"))
        answer = server.get(f"{spec.api}.json", query)
        names |= {key: name for key, name in names_of(answer).items() if key not in names}
        yield from read_document(answer, f"{server.url}/api/{spec.api}.json")


def _inside(
    values: list[Value], known: set[str], names: Mapping[str, str], notes: list[str]
) -> list[Value]:
    """Return the values of units with a boundary; note the others."""
    outside = [each for each in values if each.unit not in known]
    units = sorted({names.get(each.unit, each.unit) for each in outside})
    if outside and len(outside) == len(values):
        found = f"all {len(values)} values are of units without a boundary: {name_first(units)}"
        remedy = "export the values of the boundaries' own units, from the analytics"
        raise InputError(Problem("dhis2.pull", found, remedy))
    if outside:
        notes.append(f"{len(outside)} values of units without a boundary: {name_first(units)}")
    return [each for each in values if each.unit in known]


def _table(
    config: Config, spec: Pull, values: list[Value], names: Mapping[str, str]
) -> tuple[bytes, list[str], int]:
    """Return the table of the counts, its periods by rising time, and its number of rows."""
    counts, place = config.counts, "dhis2.pull.values" if spec.values else "dhis2.pull"
    if counts is None:
        message = "a configuration without counts passed its checks"
        raise RuntimeError(message)
    columns = {counts.value: ("data", spec.data)}
    if counts.tested is not None:
        columns[counts.tested] = ("tested", spec.tested)
    found: dict[str, dict[tuple[str, str], Decimal]] = {}
    for column, (key, chosen) in columns.items():
        own = [each for each in values if not chosen or each.is_of(chosen)]
        found[column] = add_up(own, f"dhis2.pull.{key}", place, names, several=spec.sum)
    keys = {at for own in found.values() for at in own}
    if not keys:
        remedy = "check dhis2.pull.data and dhis2.pull.periods, and the user's access"
        raise InputError(Problem(place, "no value of the data elements was found", remedy))
    calendar, numbers = common_calendar(sorted({period for period, _ in keys}), place)
    _check_calendar(config, calendar, len(set(numbers.values())))
    order = sorted(keys, key=lambda at: (numbers[at[0]], at[1]))
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    head = [counts.id or config.areas.id, *([counts.period] if counts.period else []), *columns]
    rows.writerow(map(spreadsheet_safe, head))
    for at in order:
        label = [calendar.label(numbers[at[0]])] if counts.period else []
        cells = [_plain(own.get(at)) for own in found.values()]
        rows.writerow([spreadsheet_safe(at[1]), *label, *cells])
    periods = [calendar.label(number) for number in sorted(set(numbers.values()))]
    return file.getvalue().encode(), periods, len(order)


def _check_calendar(config: Config, calendar: Calendar, n_period: int) -> None:
    counts, time = config.counts, config.time
    if counts is not None and counts.period is None and n_period > 1:
        remedy = "give counts.period, the column to write them to, or one period"
        raise InputError(Problem("counts.period", f"is not given for {n_period} periods", remedy))
    own = calendar if time is None else Calendar(time.step, time.week)
    if own.step != calendar.step or (own.step == "week" and own != calendar):
        found = f"{describe(own)}, and DHIS2's periods are {describe(calendar)}"
        remedy = f"give `time: {describe(calendar)}`, or other periods"
        raise InputError(Problem("time", found, remedy))


def _plain(number: Decimal | None) -> str:
    """Return a number without exponent and trailing zeros; empty where there is none."""
    if number is None:
        return ""
    whole = number == number.to_integral_value()
    return format(number.to_integral_value() if whole else number.normalize(), "f")


def _write(
    files: Mapping[Path, bytes], manifest: Path, source: Mapping[str, Any], spec: Pull, rows: int,
    notes: Iterable[str],
) -> tuple[str, ...]:  # fmt: skip
    """Write what has changed, the manifest last; return the files that were replaced."""
    changed = {path: text for path, text in files.items() if _bytes(path) != text}
    about = {
        "format": "disagg-dhis2-pull",
        "format_version": 1,
        **source,
        "pull": spec.model_dump(mode="json", exclude_defaults=True),
        "rows": rows,
        "notes": list(notes),
        "sha256": {path.name: hashlib.sha256(text).hexdigest() for path, text in files.items()},
    }
    try:
        before = json.loads(_bytes(manifest) or b"{}")
    except ValueError:
        before = {}
    if not changed and {key: before.get(key) for key in about} == about:
        return ()
    about["pulled"] = datetime.now(UTC).isoformat(timespec="seconds")
    changed[manifest] = (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode()
    with ExitStack() as stack:
        # All are complete before the first is renamed; the manifest, which is entered first,
        # is the last.
        for path in reversed(changed):
            stack.enter_context(atomic_write(path, unique=True)).write(changed[path])
    return tuple(map(str, changed))


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None

"""``disagg dhis2 push``: statistics of areas as data values; only what differs is sent."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from geo.core.errors import InputError, Problem
from geo.core.text_safety import one_line_text, spreadsheet_safe
from pipeline.config.dhis2_schema import Push
from pipeline.config.schema import Config
from pipeline.core.progress import Progress, Silent
from pipeline.dhis2.server import Server
from pipeline.dhis2.statistics import statistics
from pipeline.dhis2.values import Value, listed, mapping, parts, stored_values
from pipeline.run.record import check_period
from pipeline.storage.files import atomic_write

FOLDER = "dhis2"  # in output.dir
#: Values of a request: DHIS2 imports each request as one transaction.
SENT_AT_ONCE = 1000
N_LINE = 20  # conflicts with a line of their own
_HEAD = ("dataelement", "period", "orgunit", "catoptcombo", "attroptcombo", "value")

Kind = Literal["new", "changed", "unchanged"]


@dataclass(frozen=True)
class Change:
    """A value, and what the server has of it.

    Attributes
    ----------
    value : Value
    kind : {"new", "changed", "unchanged"}
    before : str
        What the server has; empty where that is nothing.
    """

    value: Value
    kind: Kind
    before: str = ""


@dataclass
class Pushed:
    """What a push found, wrote and sent.

    Attributes
    ----------
    files : tuple of str
        The values as JSON and as CSV.
    values : int
        Number of them.
    changes : list of Change or None
        Against the server; None without one.
    sent : bool
        Whether the server was to keep them; else it tried alone.
    imported, updated : int
        What the server says that it did, or would have done.
    refused : int
        Values that it did not take.
    reasons : list of str
        Why not, a line each.
    """

    files: tuple[str, ...]
    values: int
    changes: list[Change] | None = None
    sent: bool = False
    imported: int = 0
    updated: int = 0
    refused: int = 0
    reasons: list[str] = field(default_factory=list)

    def count(self, kind: Kind) -> int:
        """Return the number of values of a kind."""
        return sum(each.kind == kind for each in self.changes or ())


def push(
    config: Config, server: Server | None, *, send: bool, progress: Progress | None = None
) -> Pushed:
    """Write the data values of a run, compare them with the server's, and send what differs.

    Parameters
    ----------
    config : Config
    server : Server or None
        Without one, files are all that is made.
    send : bool
        Whether the server keeps what it gets; else it is asked what it would do (``dryRun``).
    progress : Progress, optional

    Raises
    ------
    InputError
        If there is no finished run or no such statistic, or the server refuses all.
    """
    spec, progress = config.dhis2.push if config.dhis2 else None, progress or Silent()
    if spec is None:
        raise InputError(Problem("dhis2.push", "is not given", "add it: see docs/dhis2.md"))
    if send and server is None:
        raise InputError(Problem("dhis2.url", "is not given", "give the server to send to"))
    out = config.output.dir
    if not (out / "run.json").is_file():
        found, remedy = "there is no finished run", f"run `disagg run {config.source or 'CONFIG'}`"
        raise InputError(Problem(str(out), found, remedy))
    check_period(config, ("predict",), "dhis2 push")
    values = statistics(config, spec)
    if not values:
        raise InputError(Problem(str(out), "no area has a value", "look at its tables"))
    done = Pushed(_write(values, out / FOLDER), len(values))
    if server is None:
        return done
    with progress.task("dhis2 push", 2) as task:
        done.changes = compare(values, _stored(server, values, spec))
        task.advance()
        differing = [each.value for each in done.changes if each.kind != "unchanged"]
        _send(server, differing, spec.data_set, done, send=send)
        task.advance()
    return done


def compare(values: Iterable[Value], stored: Iterable[Value]) -> list[Change]:
    """Say of each value whether the server has it.

    Numbers are compared, not texts: 1.50 is 1.5.

    Raises
    ------
    InputError
        Where the server has several option combos of a value whose own is not given.
    """
    there: dict[tuple[str, str, str], list[Value]] = defaultdict(list)
    for each in stored:
        there[each.element, each.period, each.unit].append(each)
    found = []
    for own in values:
        same = [
            each
            for each in there[own.element, own.period, own.unit]
            if own.combo in ("", each.combo) and own.attribute in ("", each.attribute)
        ]
        if len(same) > 1:
            place = f"{own.element} of {own.unit} in {own.period}"
            what = f"has {', '.join(each.what for each in same)}"
            remedy = "give the combo (dhis2.push.elements) or dhis2.push.attribute_combo"
            raise InputError(Problem(place, what, remedy))
        before = same[0].value if same else ""
        equal = bool(same) and same[0].number == own.number
        kind: Kind = "unchanged" if equal else "changed" if same else "new"
        found.append(Change(own, kind, before))
    return found


def _stored(server: Server, values: list[Value], spec: Push) -> list[Value]:
    elements, units, periods = (
        sorted({getattr(each, name) for each in values}) for name in ("element", "unit", "period")
    )
    return stored_values(server, elements, units, periods, spec.data_set)


def _write(values: list[Value], folder: Path) -> tuple[str, ...]:
    """Write the values as JSON and as CSV, in the forms that DHIS2 imports."""
    rows = io.StringIO()
    table = csv.writer(rows, lineterminator="\n")
    table.writerow(_HEAD)
    for each in values:
        cells = each.element, each.period, each.unit, each.combo, each.attribute, each.value
        table.writerow(map(spreadsheet_safe, cells))
    text = json.dumps({"dataValues": [_json(each) for each in values]}, indent=1) + "\n"
    files = {folder / "dataValueSet.json": text, folder / "dataValueSet.csv": rows.getvalue()}
    with ExitStack() as stack:
        for path, content in files.items():
            stack.enter_context(atomic_write(path, unique=True)).write(content.encode())
    return tuple(map(str, files))


def _json(value: Value) -> dict[str, str]:
    about = {
        "dataElement": value.element,
        "period": value.period,
        "orgUnit": value.unit,
        "categoryOptionCombo": value.combo,
        "attributeOptionCombo": value.attribute,
        "value": value.value,
    }
    return {key: text for key, text in about.items() if text}


def _send(
    server: Server, values: list[Value], data_set: str | None, done: Pushed, *, send: bool
) -> None:
    """Send values; add up what the server says of them."""
    done.sent = send
    query = [("importStrategy", "CREATE_AND_UPDATE"), ("dryRun", "false" if send else "true")]
    for some in parts(values, SENT_AT_ONCE):
        body: dict[str, Any] = {} if data_set is None else {"dataSet": data_set}
        body["dataValues"] = [_json(each) for each in some]
        answer = server.post("dataValueSets", query, body)
        # Of older servers the summary is the answer itself.
        summary = mapping(mapping(answer).get("response")) or mapping(answer)
        count = mapping(summary.get("importCount"))
        imported, updated = count.get("imported", 0), count.get("updated", 0)
        if not (count and isinstance(imported, int) and isinstance(updated, int)):
            said = str(mapping(answer).get("message", answer))
            place = f"{server.url}/api/dataValueSets"
            remedy = "correct what it says: nothing of this request was imported"
            raise InputError(Problem(place, one_line_text(said)[:300] or "no answer", remedy))
        done.imported, done.updated = done.imported + imported, done.updated + updated
        refused = max(0, len(some) - imported - updated)
        done.refused += refused
        conflicts = [mapping(each) for each in listed(summary.get("conflicts"))]
        done.reasons += [_reason(each, some) for each in conflicts]
        if refused and not conflicts:
            said = str(summary.get("description") or "no reason is given")
            done.reasons.append(f"{refused} values ignored: {one_line_text(said)[:300]}")


def _reason(conflict: Mapping[str, Any], values: list[Value]) -> str:
    """Return a line of a conflict: its code, what the server says, and the first value of it."""
    head = str(conflict.get("errorCode") or conflict.get("object") or "conflict")
    line = f"{head}: {one_line_text(str(conflict.get('value', '')))[:300]}"
    at = [n for n in listed(conflict.get("indexes")) if isinstance(n, int) and 0 <= n < len(values)]
    if not at:
        return line
    first = values[at[0]]
    return f"{line} ({len(at)} values, the first {first.element} of {first.unit} in {first.period})"

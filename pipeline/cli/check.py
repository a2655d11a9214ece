"""The command ``disagg check``: problems, suspicions and a profile of the inputs."""

from __future__ import annotations

import math
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from geo.core.errors import InputError, Problem
from geo.core.text_safety import terminal_text
from pipeline.cli.console import (
    AsJson,
    Output,
    Quiet,
    Verbose,
    print_error,
    reported_errors,
    status_of,
)
from pipeline.cli.versions import ConfigFile, Period

if TYPE_CHECKING:
    from pipeline.config.schema import Config
    from pipeline.core.progress import Progress
    from pipeline.ingest.examine import Examined
    from pipeline.ingest.profile import CountProfile, Extremes, Profile, RasterProfile
    from pipeline.ingest.raster_suspicions import Suspicion


LINE_AFTER_S = 10.0  # from which a line says what takes so long


def check(
    config: ConfigFile,
    period: Period = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Check the configuration and all inputs; report every problem; write nothing.

    \b
    Shows the inputs as they are read: people, rates, and the minimum,
    median and maximum of each raster inside the areas.
    Warns of what is valid but suspicious, such as an undeclared -9999 or
    more cases than people. A suspicion does not change the exit status;
    `check: {accept: [CODE]}` in the configuration accepts it.

    \b
    Examples:
      disagg check demo/disagg.yaml
      disagg check demo/disagg.yaml --json > inputs.json
    """  # noqa: D301
    from pipeline.core.json_values import jsonable

    output = Output(as_json, quiet, verbose)
    with reported_errors(output, f"disagg check {config}"):
        problems, parsed, examined, found = all_problems(
            config, period, output.progress(LINE_AFTER_S)
        )
        suspicions = examined.suspicions if examined is not None else ()
        output.print_json(
            {
                "ok": not problems,
                "problems": [asdict(each) for each in problems],
                "suspicions": [asdict(each) for each in suspicions],
                "profile": None if examined is None else jsonable(asdict(examined.profile)),
                "found": found,
            }
        )
        output.print(_title(config, problems, suspicions))
        both = sys.stdout.isatty() and sys.stderr.isatty() and not (quiet or as_json)
        if not (quiet or as_json):
            if problems or suspicions:
                _print_findings(problems, suspicions)
            if examined is not None:
                counts = parsed is not None and parsed.response_kind.countable
                print_profile(examined.profile, found.get("areas.repair", ""), counts=counts)
            for key in (key for key in found if key.startswith("points.")):
                output.print(f"\n  {key}: {found[key]}")
        if not both:  # the table on the terminal has them all
            for problem in problems:
                print_error(f"error: {problem}")
            for suspicion in suspicions if not quiet else ():
                print_error(f"warning: {suspicion}")
        if problems:
            raise typer.Exit(status_of(InputError(problems)))
        output.print(f"\nNext: disagg run {config}")


def all_problems(
    path: Path, period: str | None = None, progress: Progress | None = None
) -> tuple[list[Problem], Config | None, Examined | None, dict[str, str]]:
    """Check a configuration and its inputs.

    Returns
    -------
    problems : list of Problem
    config : Config or None
        None if it is invalid.
    examined : Examined or None
    found : dict of str to str
        Description of each input, if there are no problems.
    """
    from pipeline.config.reader import missing_files, read_config

    problems: list[Problem] = []
    config = read_config(path, problems, period)
    if config is None:
        return problems, None, None, {}
    missing_files(config, problems)
    from pipeline.ingest.stage import check_inputs
    from pipeline.publishing.publish import publish_problems
    from pipeline.run.ownership import owner_problem
    from pipeline.storage.lock import check_writable

    # A path with a variable that is not set is reported by that variable.
    absent = {
        key.removesuffix(".path")
        for key, name in config.input_paths().items()
        if "${" in name or any(f"no file {name}" in problem.found for problem in problems)
    }
    checked = check_inputs(config, progress)
    for problem in checked.problems:
        # A missing file is reported once, with the configuration's line.
        if not any(re.match(rf"{re.escape(key)}(?!\w)", problem.place) for key in absent):
            problems.append(problem)
    _check_folds_file(config, checked.ids, problems)
    owned = owner_problem(config.output.dir, config, "output.dir")
    if owned is not None:
        problems.append(owned)
    else:
        problems.extend(publish_problems(config))
    try:
        check_writable(config.output.dir, "output.dir")
    except InputError as error:
        problems.extend(error.problems)
    return problems, config, checked.examined, {} if problems else checked.found


def _check_folds_file(config: Config, ids: list[str], problems: list[Problem]) -> None:
    """Append the problems of a file of folds, which a run would find after the fit."""
    from pipeline.config.input_schema import FoldsFile
    from pipeline.evaluation.folds import read_folds

    folds = config.evaluate.folds
    if not (isinstance(folds, FoldsFile) and ids and Path(folds.path).is_file()):
        return
    try:
        read_folds(folds.path, folds.id, folds.fold, ids)
    except InputError as error:
        problems.extend(error.problems)


def print_profile(profile: Profile, repaired: str = "", *, counts: bool = False) -> None:
    """Print the profile, and what ``areas.repair`` did, at the width of the terminal.

    ``counts`` tells that responses are counts.
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    print()
    repair = [("repair", repaired)] if repaired else []
    for name, text in [*repair, *_lines(profile, counts=counts)]:
        wrapped = textwrap.wrap(terminal_text(text), max(40, console.width - 13)) or [""]
        print("\n".join(f"  {name if n == 0 else '':<10} {line}" for n, line in enumerate(wrapped)))
    if not profile.rasters:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2 if console.width >= 100 else 1, 0, 0))
    table.add_column("raster", overflow="fold")
    for heading in ("min", "median", "max", "missing"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("nodata", "pixel", "CRS", "unit"):
        table.add_column(heading, overflow="fold")
    for raster in profile.rasters:
        table.add_row(*(Text(terminal_text(cell)) for cell in _cells(raster)))
    print("\n  Values of the pixels inside the areas:")
    console.print(Padding(table, (0, 0, 0, 2)))
    if any(raster.sampled for raster in profile.rasters):
        print("~ from blocks of pixels drawn at random: the extremes may lie further out")


def _title(path: Path, problems: Sequence[Problem], suspicions: Sequence[Suspicion]) -> str:
    def number(n: int, word: str) -> str:
        return f"{n} {word}{'' if n == 1 else 's'}"

    text = number(len(problems), "problem") if problems else "no problems"
    return f"{path}: {text}" + (f", {number(len(suspicions), 'suspicion')}" if suspicions else "")


def _print_findings(problems: Sequence[Problem], suspicions: Sequence[Suspicion]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=True)
    for heading in ("Where", "Found", "What to do"):
        table.add_column(heading, overflow="fold")
    rows = [(each.place, each.found, each.remedy) for each in problems]
    rows += [(each.place, f"{each.found} [{each.code}]", each.remedy) for each in suspicions]
    for number, row in enumerate(rows):
        style = "" if number < len(problems) else "yellow"
        table.add_row(*(Text(part) for part in row), style=style)
    Console().print(table)


def _lines(profile: Profile, *, counts: bool) -> list[tuple[str, str]]:
    lines = []
    areas, people = profile.areas, profile.people
    if areas is not None:
        each = _each(areas.each_km2, " km2")
        lines.append(("areas", f"{areas.n:,} areas, {areas.crs}; {_big(areas.km2)} km2{each}"))
    if people is not None:
        each = _each(people.each, "")
        text = f"{_big(people.total)} in the areas, {_number(people.per_km2)} per km2{each}"
        lines.append(("people", text))
    if profile.positive is not None:
        lines.append(("labels", f"{profile.positive[0]:,} of {profile.positive[1]:,} positive"))
    if profile.counts is not None:
        mapped = f"period {profile.counts.period}: " if profile.counts.period else ""
        lines.append(("counts", mapped + _counts(profile.counts, profile)))
        from pipeline.evaluation.calibration_summary import data_cautions

        typical = profile.counts.total / max(1, profile.counts.n_area)
        said = data_cautions(profile.counts.n_area, typical if counts else None)
        lines += [("beware", each) for each in said]
    lines += [(each.period or "", _counts(each, profile)) for each in profile.periods]
    return lines


def _counts(counts: CountProfile, profile: Profile) -> str:
    areas = profile.areas
    some = areas is not None and counts.n_area < areas.n
    of = f" of {areas.n:,}" if areas is not None and some else ""
    text = f"{_big(counts.total)} in {counts.n_area:,}{of} areas"
    if counts.tested is not None:
        text += f", of {_big(counts.tested)} tested"
    if counts.rate is not None:
        per = f"{profile.rate_per:g} {profile.exposure}"
        text += f"; {_number(counts.rate)} per {per}{_each(counts.rates, '')}"
    return text


def _each(extremes: Extremes | None, unit: str) -> str:
    if extremes is None:
        return ""
    low, high = _number(extremes.low), _number(extremes.high)
    return f", {low} ({extremes.low_id}) to {high}{unit} ({extremes.high_id})"


def _cells(raster: RasterProfile) -> tuple[str, ...]:
    values = ["-" if v is None else _number(v, 3) for v in (raster.low, raster.median, raster.high)]
    missing = "-" if raster.missing is None else _percent(raster.missing)
    nodata = " ".join(f"{value:.6g}" for value in raster.nodata) or "none"
    x, y = raster.resolution
    size = _number(x, 3) if abs(x - y) < 1e-3 * x else f"{_number(x, 3)} x {_number(y, 3)}"
    unit = {"degree": "°", "metre": " m"}.get(raster.resolution_unit, f" {raster.resolution_unit}")
    name = raster.key.removeprefix("covariates.") + (" ~" if raster.sampled else "")
    return name, *values, missing, nodata, f"{size}{unit}", raster.crs, raster.unit


def _percent(share: float) -> str:
    if share == 0:
        return "0 %"
    return "<0.1 %" if share < 1e-3 else f"{100 * share:.1f} %"


def _big(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"


def _number(value: float, n_digit: int = 4) -> str:
    """Return about four digits, and no exponent where a reader expects none."""
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.4g}"
    return f"{value:.{n_digit}g}"

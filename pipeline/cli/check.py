"""The command ``disagg check``: problems, suspicions and a profile of the inputs."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geo.core.errors import InputError, Problem
from geo.core.text_safety import terminal_text
from pipeline.cli.console import (
    Output,
    print_error,
    reported_errors,
    status_of,
    with_output_options,
)
from pipeline.cli.versions import ConfigFile, Period

if TYPE_CHECKING:
    from pipeline.config.schema import Config
    from pipeline.core.progress import Progress
    from pipeline.ingest.checked import Also
    from pipeline.ingest.examine import Examined
    from pipeline.ingest.profile import Profile
    from pipeline.ingest.raster_suspicions import Suspicion
    from pipeline.inspection.fixed import Fixed


LINE_AFTER_S = 10.0  # from which a line says what takes so long


Page = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="With --html: the page; CONFIG-check.html by default."),
]


@with_output_options
def check(
    config: ConfigFile,
    page: Page = None,
    period: Period = None,
    html: Annotated[
        bool, typer.Option("--html", help="Write a page with pictures of all inputs.")
    ] = False,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Propose what can be mended safely, and a crosswalk of names."),
    ] = False,
    *,
    output: Output,
) -> None:
    """Check the configuration and all inputs; report every problem; write nothing else.

    With --fix, what can be mended safely is in CONFIG.fixed.yaml. Where nothing can, names of the
    table that match no area are paired with those that they may be, in CONFIG.crosswalk.csv: it is
    applied once you name it as `counts.crosswalk`.

    \b
    Shows the inputs as they are read: people, rates, and the minimum,
    median and maximum of each raster inside the areas.
    Warns of what is valid but suspicious, such as an undeclared -9999 or
    more cases than people. A suspicion does not change the exit status;
    `check: {accept: [CODE]}` in the configuration accepts it.

    \b
    Examples:
      disagg check demo/disagg.yaml
      disagg check demo/disagg.yaml --html inputs.html
      disagg check demo/disagg.yaml --fix
      disagg check demo/disagg.yaml --json > inputs.json
    """  # noqa: D301
    from pipeline.core.json_values import jsonable

    with reported_errors(output, f"disagg check {config}"):
        if page is not None and not html:
            remedy = f"give --html to write a page, or leave {page} out"
            raise InputError(Problem(str(page), "one configuration is checked at a time", remedy))
        seen: Seen | None = None
        if html:
            from pipeline.inspection.seen import Seen

            seen = Seen()
        problems, parsed, examined, found = all_problems(
            config, period, output.progress(LINE_AFTER_S), None if seen is None else seen.look
        )
        written = None
        if seen is not None:
            from pipeline.inspection.page import page_of
            from pipeline.storage.files import atomic_write

            written = page or default_page(config)
            with atomic_write(written) as file:
                file.write(page_of(config, problems, parsed, examined, seen))
        suspicions = examined.suspicions if examined is not None else ()
        fixed = _fixed(config, period, problems, parsed, suspicions) if fix else None
        output.print_json(
            {
                "ok": not problems,
                "problems": [asdict(each) for each in problems],
                "suspicions": [asdict(each) for each in suspicions],
                "profile": None if examined is None else jsonable(asdict(examined.profile)),
                "found": found,
                **({} if written is None else {"page": str(written)}),
                **({} if fixed is None else {"fixed": fixed.summary()}),
            }
        )
        output.print(_title(config, problems, suspicions))
        told = not (output.quiet or output.as_json)
        both = told and sys.stdout.isatty() and sys.stderr.isatty()
        if told:
            if problems or suspicions:
                _print_findings(problems, suspicions)
            if examined is not None:
                print_profile(examined.profile, found.get("areas.repair", ""))
            for key in (key for key in found if key.startswith("points.")):
                output.print(f"\n  {key}: {found[key]}")
        if not both:  # the table on the terminal has them all
            for problem in problems:
                print_error(f"error: {problem}")
            for suspicion in suspicions if not output.quiet else ():
                print_error(f"warning: {suspicion}")
        if written is not None:
            output.print(f"\nPage: {written}")
        said: str | None = None
        if fixed is not None and fixed.path is None and parsed is not None:
            from pipeline.ingest.name_proposals import propose_names

            said = propose_names(parsed, Path(str(config)))
        for line in [] if fixed is None or said else fixed.lines():
            output.print(line)
        if said:
            output.print(said)
        if problems:
            raise typer.Exit(status_of(InputError(problems)))
        fitted = (
            parsed is not None
            and parsed.series is not None
            and (Path(parsed.output.dir) / "work" / "model").exists()
        )
        output.print(f"\nNext: disagg {'update' if fitted else 'run'} {config}")


def _fixed(
    file: Path,
    period: str | None,
    problems: Sequence[Problem],
    config: Config | None,
    suspicions: Sequence[Suspicion],
) -> Fixed:
    """Write what can be mended of a configuration into a new one; see `pipeline.inspection`."""
    from pipeline.config.document import Document
    from pipeline.inspection.fixed import Fixed, write_fixed
    from pipeline.inspection.mends import Findings
    from pipeline.storage.location import Location, Storage

    if isinstance(Storage().place(file), Location):
        remedy = "copy it, and its inputs' addresses, to this machine"
        raise InputError(Problem(str(file), "a configuration at an address is not mended", remedy))

    def findings(path: Path) -> Findings | None:
        problems, config, examined, _ = all_problems(path, period)
        document = Document.read(path, [])
        given = () if examined is None else examined.suspicions
        return None if document is None else Findings(document, config, problems, given)

    document = Document.read(file, [])
    if document is None:
        return Fixed((), None, comments=True)
    return write_fixed(file, Findings(document, config, problems, suspicions), findings)


def default_page(config: Path) -> Path:
    """Return where the page of a configuration is written: beside it, or here if it is remote."""
    from pipeline.storage.location import Location, Storage

    name = f"{config.stem}-check.html"
    return Path(name) if isinstance(Storage().place(config), Location) else config.with_name(name)


def all_problems(
    path: Path,
    period: str | None = None,
    progress: Progress | None = None,
    also: Also | None = None,
) -> tuple[list[Problem], Config | None, Examined | None, dict[str, str]]:
    """Check a configuration and its inputs.

    ``also`` is called with the inputs and their aligned grid, if the configuration is valid.

    Returns
    -------
    problems : list of Problem
    config : Config or None
        None if it is invalid.
    examined : Examined or None
    found : dict of str to str
        Description of each input, if there are no problems.
    """
    from pipeline.config.covariate_schema import KINDS
    from pipeline.config.reader import missing_files, read_config

    problems: list[Problem] = []
    config = read_config(path, problems, period)
    if config is None:
        return problems, None, None, {}
    missing = missing_files(config, problems)
    from pipeline.ingest.stage import check_inputs
    from pipeline.publishing.publish import publish_problems
    from pipeline.run.ownership import owner_problem
    from pipeline.storage.lock import check_writable

    kinds = tuple(f".{kind}" for kind in KINDS)
    # A path with a variable that is not set is reported by that variable.
    absent = {
        key.rpartition(".")[0] if key.endswith(kinds) else key
        for key, name in config.input_paths().items()
        if "${" in name or name in missing
    }
    checked = check_inputs(config, progress, also)
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


def print_profile(profile: Profile, repaired: str = "") -> None:
    """Print the profile, and what ``areas.repair`` did, at the width of the terminal."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from pipeline.inspection.words import profile_lines, raster_cells

    console = Console(highlight=False)
    print()
    repair = [("repair", repaired)] if repaired else []
    for name, text in [*repair, *profile_lines(profile)]:
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
        table.add_row(*(Text(terminal_text(cell)) for cell in raster_cells(raster)))
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

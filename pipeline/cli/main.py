"""The command line: ``disagg``.

Only what every command needs is imported here: help has to come at once.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geo.errors import InputError, Problem
from pipeline.cli.bags import bags
from pipeline.cli.console import (
    BAD_INPUT,
    DEFECT,
    DONE,
    AsJson,
    Quiet,
    Talk,
    Verbose,
    errors_told,
    talking,
    tell_error,
    tell_interrupted,
)
from pipeline.cli.plan import plan
from pipeline.cli.versions import Period, add_commands
from pipeline.core.signals import ending_raises

if TYPE_CHECKING:
    from pipeline.config.schema import Config

_DEMO_MARK = ".disagg-demo"  # says that a demo may be written over what is here

app = typer.Typer(
    name="disagg",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.add_typer(bags, name="bags")
add_commands(app)
app.command()(plan)


class Size(StrEnum):
    """How big a country to simulate."""

    small = "small"
    country = "country"


ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="The configuration (YAML).")]
Force = Annotated[bool, typer.Option("--force", help="Run even what is up to date.")]


@app.callback(invoke_without_command=True)
def _disagg(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """From counts of areas to maps of pixels, with honest uncertainty.

    \b
    Counts of cases for districts, and rasters of what drives them, become
    GeoTIFFs of the rate in every pixel, its interval, and the probability
    that it exceeds a threshold.

    \b
    To see it work:
      disagg demo demo
      disagg run demo/disagg.yaml

    \b
    With your own data, write a configuration like demo/disagg.yaml, then:
      disagg check mine.yaml
      disagg run mine.yaml
    """  # noqa: D301 (the \b is for the help's formatter)
    if version:
        from importlib.metadata import version as installed

        print(f"disagg {installed('disagg')}")
    elif ctx.invoked_subcommand is None:
        print(ctx.get_help())


@app.command()
@talking
def demo(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New or an earlier demo's.")],
    size: Annotated[
        Size, typer.Option(help="About 120 areas and a minute's run, or 957 and a million pixels.")
    ] = Size.small,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another country.")] = 1,
    labels: Annotated[
        bool, typer.Option("--labels", help="Of areas say only whether risk is high somewhere.")
    ] = False,
    *,
    talk: Talk,
) -> None:
    """Simulate a country: covariate GeoTIFFs, boundaries, counts, the truth, disagg.yaml.

    \b
    Examples:
      disagg demo demo
      disagg demo big --size country --seed 7
      disagg demo outbreaks --labels
    """  # noqa: D301
    with errors_told(talk, f"disagg demo {directory}"):
        _check_demo_dir(directory)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / _DEMO_MARK).touch()
        talk.progress().log(f"simulating a country ({size.value}) in {directory}")
        from pipeline.demo.country import simulate_country

        config = simulate_country(directory, size=size.value, seed=seed, labels=labels)
        talk.give({"config": str(config), "size": size.value, "seed": seed})
        talk.say(f"Configuration: {config}\nNext: disagg run {config}")


@app.command()
def check(
    config: ConfigFile,
    period: Period = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Find everything that is wrong with the inputs, all at once; writes nothing.

    \b
    Example:
      disagg check demo/disagg.yaml
    """  # noqa: D301
    talk = Talk(as_json, quiet, verbose)
    with errors_told(talk, f"disagg check {config}"):
        found: dict[str, str] = {}
        problems, loaded = _all_problems(config, period, found)
        if loaded is None or problems:
            if not (quiet or as_json):
                _print_table(config, problems)
                if sys.stdout.isatty() and sys.stderr.isatty():
                    raise typer.Exit(BAD_INPUT)  # the table says it all
            raise InputError(problems)
        talk.give({"ok": True, "problems": [], "found": found})
        talk.say(f"{config}: nothing wrong found\n")
        width = max(map(len, found))
        for name, what in found.items():
            talk.say(f"  {name:<{width}}  {what}")
        talk.say(f"\nNext: disagg run {config}")


_RUN = """Do everything: ingest, fit, predict, evaluate. What has not changed is skipped.

\b
Examples:
  disagg run demo/disagg.yaml
  disagg run demo/disagg.yaml --json --quiet > result.json
"""


def _add_stage_command(name: str, stages: tuple[str, ...], text: str) -> None:
    """Add a command that runs some stages."""

    @talking
    def command(
        config: ConfigFile, force: Force = False, *, period: Period = None, talk: Talk
    ) -> None:
        _run_stages(config, stages, force, talk, period)

    app.command(name, help=text)(command)


for _name, _stages, _text in (
    ("run", ("ingest", "fit", "predict", "evaluate"), _RUN),
    (
        "ingest",
        ("ingest",),
        "Check the inputs and bring them to one grid and one store of bags (work/).",
    ),
    ("fit", ("fit",), "Fit the model to the bags; an interrupted fit goes on where it stopped."),
    ("predict", ("predict",), "Write the maps and the table of areas."),
    (
        "evaluate",
        ("evaluate",),
        "Cross-validate the model, and compare with the truth where it is known.",
    ),
):
    _add_stage_command(_name, _stages, _text)


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the models: what each learns from, predicts and needs."""
    from dataclasses import asdict

    from pipeline.config.catalogue import catalogue

    if as_json:
        Talk(as_json=True, quiet=False, verbose=False).give([asdict(each) for each in catalogue()])
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("model.kind", "learns from", "predicts", "what it is, and needs"):
        table.add_column(heading, no_wrap=heading != "what it is, and needs")
    for each in catalogue():
        about = f"{each.about} [dim]({each.source})[/dim]"
        table.add_row(each.kind, each.learns_from, ", ".join(each.predicts), about)
    Console().print(table)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : list of str, optional
        ``sys.argv[1:]`` by default.

    Returns
    -------
    int
        Exit status: 0 done, 2 bad input or a failing machine, 1 a defect of ours, 130 ended by
        Ctrl-C, 143 by SIGTERM, 129 by SIGHUP.
    """
    try:
        with ending_raises(), _only_our_words():
            status = app(arguments, standalone_mode=False)
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # outside any command's own work
            return tell_interrupted(error.__cause__)
        if isinstance(error, BrokenPipeError):  # whoever read us has had enough
            sys.stderr.close()
            return DEFECT
        if hasattr(error, "format_message"):  # a mistake in the command, as typer tells it
            return _report_usage(error)
        import traceback

        traceback.print_exc()
        tell_error(
            "this is a defect of disagg, not of your data: please report it with the lines above"
        )
        return DEFECT
    except KeyboardInterrupt as stop:
        return tell_interrupted(stop)
    return status if isinstance(status, int) else DONE


@contextmanager
def _only_our_words() -> Iterator[None]:
    """Keep what libraries log off the terminal, unless somebody asked for logs: we tell errors."""
    silent = logging.NullHandler()
    logging.getLogger().addHandler(silent)  # or Python prints warnings that nobody handles
    try:
        yield
    finally:
        logging.getLogger().removeHandler(silent)


def _report_usage(error: Any) -> int:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "disagg"
    found = error.format_message().rstrip(".")
    tell_error(f"error: {command}: {found[:1].lower() + found[1:]}; see `{command} --help`")
    return BAD_INPUT


def _check_demo_dir(directory: Path) -> None:
    """Refuse to write a demo over anything but a demo."""
    if directory.exists() and not directory.is_dir():
        raise InputError(Problem(str(directory), "a file, not a directory", "give another name"))
    ours = any((directory / name).exists() for name in (_DEMO_MARK, "truth_rate.tif"))
    if directory.is_dir() and any(directory.iterdir()) and not ours:
        raise InputError(
            Problem(
                str(directory),
                "holds files that are not a demo's",
                "give a new or an empty directory",
            )
        )


def _all_problems(
    path: Path, period: str | None = None, found: dict[str, str] | None = None
) -> tuple[list[Problem], Config | None]:
    """Read a configuration and all that it names; return every problem, fill in what it holds."""
    from pipeline.config.reader import missing_files, read_config

    problems: list[Problem] = []
    config = read_config(path, problems, period)
    if config is None:
        return problems, None
    missing_files(config, problems)
    from pipeline.ingest.stage import check as check_inputs

    absent = {
        key.removesuffix(".path")
        for key, name in config.input_paths().items()
        if any(f"no file {name}" in problem.found for problem in problems)
    }
    for problem in check_inputs(config, found):
        # A file that is not there is told once, with the configuration's line.
        if not any(re.match(rf"{re.escape(key)}(?!\w)", problem.place) for key in absent):
            problems.append(problem)
    return problems, config


def _load(path: Path, period: str | None = None, *, with_inputs: bool) -> Config:
    """Read a configuration for a run; if anything is wrong, find all that is before giving up."""
    from pipeline.config.reader import missing_files, read_config

    problems: list[Problem] = []
    config = read_config(path, problems, period)
    if config is not None and with_inputs:
        missing_files(config, problems)
        if problems:
            problems, _ = _all_problems(path, period)
    if config is None or problems:
        raise InputError(problems)
    return config


def _run_stages(
    path: Path, names: tuple[str, ...], force: bool, talk: Talk, period: str | None = None
) -> None:
    command = "run" if len(names) > 1 else names[0]
    at: list[str] = []

    def where() -> str:
        return f" during {at[-1]}" if at else ""

    with errors_told(talk, f"disagg {command} {path}", where):
        config = _load(path, period, with_inputs="ingest" in names)
        from pipeline.prediction.products import announced_files
        from pipeline.run.fingerprints import Fingerprints
        from pipeline.run.runner import run_stages, stale_stages, summarise_stages

        progress, prints = talk.progress(), Fingerprints(config)
        if "ingest" not in names:
            for stale in stale_stages(config, names[0], prints):
                progress.log(
                    f"note: what {stale} read has changed since; `disagg run {path}` brings all"
                    " up to date"
                )
        results = run_stages(
            config, names, progress, force=force, on_start=at.append, prints=prints
        )
        place = config.output.place
        maps = [f"{place}/{name}" for name in announced_files(config.output.dir)]
        talk.give(
            {
                "ok": True,
                "output": place,
                "maps": maps,
                "stages": summarise_stages(results),
            }
        )
        if "predict" in names and maps:
            talk.say("Maps and tables:\n" + "\n".join(f"  {name}" for name in maps))
        talk.say(f"Everything is in {place}")


def _print_table(path: Path, problems: list[Problem]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    n = len(problems)
    print(f"{path}: {n} problem{'' if n == 1 else 's'}")
    table = Table(show_lines=True)
    for heading in ("Where", "Found", "What to do"):
        table.add_column(heading, overflow="fold")
    for problem in problems:
        table.add_row(*(Text(part) for part in (problem.place, problem.found, problem.remedy)))
    Console().print(table)

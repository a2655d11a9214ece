"""The command line: ``disagg``.

Imports here are limited to what every command needs, so that help appears at once.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geo.core.addresses import redacted
from geo.core.errors import InputError, Problem
from geo.core.text_safety import one_line_text
from pipeline.cli.bags import bags
from pipeline.cli.chap import chap
from pipeline.cli.check import all_problems, check
from pipeline.cli.compare import compare
from pipeline.cli.config import config as config_reference
from pipeline.cli.console import (
    AsJson,
    Output,
    print_error,
    report_interruption,
    reported_errors,
    with_log_options,
    with_output_options,
)
from pipeline.cli.demo import demo
from pipeline.cli.dhis2 import dhis2
from pipeline.cli.init import init
from pipeline.cli.migrate import migrate
from pipeline.cli.plan import Within, describe, plan, propose_within
from pipeline.cli.repeat import Into, Record, check_repeat_options, load_repetition
from pipeline.cli.versions import (
    ConfigFile,
    Period,
    print_publication,
    publish,
    rollback,
    versions,
)
from pipeline.core.exit_status import ExitStatus, help_text
from pipeline.core.signals import signals_raise
from pipeline.core.supervised import supervised
from pipeline.storage.location import Storage

if TYPE_CHECKING:
    from pipeline.config.context import Updating
    from pipeline.config.schema import Config
    from pipeline.publishing.publish import Publication


app = typer.Typer(
    name="disagg",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.add_typer(bags, name="bags")
app.add_typer(chap, name="chap")
app.add_typer(dhis2, name="dhis2")
for _command in (publish, versions, rollback, demo, check, init, plan, compare, migrate):
    app.command()(_command)
app.command("config")(config_reference)


Publishes = Annotated[
    bool,
    typer.Option("--publish", help="Then publish the map; exit status 3 if a gate holds it back."),
]
Force = Annotated[bool, typer.Option("--force", help="Run stages that are up to date, too.")]


@app.callback(invoke_without_command=True, epilog=f"\b\nExit status:\n{help_text()}")
def _disagg(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Map disease rates by pixel from case counts by district.

    \b
    Input: case counts by district, a population raster, covariate rasters.
    Output: GeoTIFFs of the rate in every pixel, its interval, and the
    probability that it exceeds a threshold.

    \b
    Try the demo:
      disagg demo demo
      disagg run demo/disagg.yaml

    \b
    For your own data, let a configuration be written from its folder, then:
      disagg init mine
      disagg check mine/disagg.yaml
      disagg run mine/disagg.yaml
    """  # noqa: D301 (the \b is for the help's formatter)
    if version:
        from pipeline.core.revision import full_version

        print(f"disagg {full_version()}")
    elif ctx.invoked_subcommand is None:
        print(ctx.get_help())


_RUN = """Run all stages: ingest, fit, predict, evaluate, report. Skip those that are up to date.

\b
Examples:
  disagg run demo/disagg.yaml
  disagg run demo/disagg.yaml --within 2h
  disagg run demo/disagg.yaml --json --quiet > result.json
  disagg run demo/disagg.yaml --publish
  disagg run --from demo/out/run.json --into again
  disagg run demo/disagg.yaml --log-format json --log-file runs.log

\b
Retries, metrics and notifications: sections update, metrics, notify.
"""


@app.command(name="run", help=_RUN)
@with_output_options
@with_log_options
def _run(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="The configuration (YAML), or its address."),
    ] = None,
    force: Force = False,
    within: Within = None,
    *,
    period: Period = None,
    record: Record = None,
    into: Into = None,
    publishes: Publishes = False,
    output: Output,
) -> None:
    given = {
        "CONFIG": config,
        "--within": within,
        "--period": period,
        "--publish": "" if publishes else None,
    }
    with reported_errors(output, "disagg run"):
        check_repeat_options(record, into, given)
    _run_stages(
        record or config or Path(),
        ("ingest", "fit", "predict", "evaluate", "report"),
        force,
        output,
        period,
        within,
        load=None if record is None else lambda: load_repetition(record, into, output),
        into=into,
        publishes=publishes,
    )


_UPDATE = """Take a new or corrected period of a series into the fitted model, and map it.

The model takes in the new period alone, in seconds: hyperparameters stay as the last fit found
them. Maps and scores are made again, as in a run. It names counts far from foreseen, and says when
a new fit (disagg run) is due; with --refit it makes it.

\b
Examples:
  disagg update disagg.yaml
  disagg update disagg.yaml --refit --publish --quiet
  disagg update disagg.yaml --counts cases-2024-07.csv --publish
"""


@app.command(name="update", help=_UPDATE)
@with_output_options
@with_log_options
def _update(
    config: ConfigFile,
    counts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Table of the counts, in place of the file's."),
    ] = None,
    refit: Annotated[
        bool,
        typer.Option("--refit", help="Fit anew where an update proposes it or cannot be made."),
    ] = False,
    *,
    period: Period = None,
    publishes: Publishes = False,
    output: Output,
) -> None:
    changes = None if counts is None else {"counts": {"path": str(counts.absolute())}}

    def load() -> Config:
        found = _load(config, period, with_inputs=True, changes=changes)
        if found.time is None:
            remedy = "add `time: {step: month}`, or `disagg run` for a map of one period"
            raise InputError(Problem(f"{config}: time", "is not given: one period a run", remedy))
        return found

    names = ("ingest", "fit", "predict", "evaluate", "report")
    update: Updating = "first" if refit else "only"
    _run_stages(config, names, False, output, period, load=load, publishes=publishes, update=update)


def _add_stage_command(name: str, stages: tuple[str, ...], text: str) -> None:
    """Add a command that runs some stages."""

    @with_output_options
    @with_log_options
    def command(
        config: ConfigFile, force: Force = False, *, period: Period = None, output: Output
    ) -> None:
        _run_stages(config, stages, force, output, period)

    app.command(name, help=text)(command)


for _name, _stages, _text in (
    (
        "ingest",
        ("ingest",),
        "Check the inputs, align them to one grid, and write the bag store (in work/).",
    ),
    ("fit", ("fit",), "Fit the model. An interrupted fit continues from its checkpoint."),
    ("predict", ("predict",), "Write the maps and the tables of areas."),
    (
        "evaluate",
        ("evaluate",),
        "Cross-validate the model; compare its maps with the truth, if given.",
    ),
    ("report", ("report",), "Write report.html: the map, its checks and its tables on one page."),
):
    _add_stage_command(_name, _stages, _text)


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the models, with their inputs and outputs."""
    from dataclasses import asdict

    from pipeline.config.catalogue import catalogue

    if as_json:
        Output(as_json=True, quiet=False, verbose=False).print_json(
            [asdict(each) for each in catalogue()]
        )
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("model.kind", "learns from", "predicts", "description"):
        table.add_column(heading, no_wrap=heading != "description")
    for each in catalogue():
        about = f"{each.about} [dim]({each.source})[/dim]"
        table.add_row(each.kind, each.learns_from, ", ".join(each.predicts), about)
    Console().print(table)


# Schedulers decide by the status: every command's help has the table.
for _group in (app, bags, chap, dhis2):
    for _each in _group.registered_commands:
        _each.epilog = f"\b\nExit status:\n{help_text()}"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : list of str, optional
        ``sys.argv[1:]`` by default.

    Returns
    -------
    int
        Exit status: see :mod:`pipeline.core.exit_status`.
    """
    if arguments is None:
        given = sys.argv[1:]
        return supervised(_main, ["disagg", *given], lambda text: _log_killed(given, text))
    return _main(arguments)  # of a program that has the say over its own process


def _log_killed(arguments: Sequence[str], text: str) -> None:
    """Write into the file of --log-file what ended a process that could not say it itself."""
    found: dict[str, str] = {}
    for place, each in enumerate(arguments):
        name, given, value = each.partition("=")
        if name in ("--log-file", "--log-format"):
            found[name] = value if given else "".join(arguments[place + 1 : place + 2])
    if "--log-file" not in found:
        return
    from pipeline.updates.log_lines import RunLog, open_log_file

    with open_log_file(Path(found["--log-file"])) as stream:
        form: Any = "json" if found.get("--log-format") == "json" else "text"
        RunLog(form, stream).write(text.removeprefix("error: "), "error")


def _main(arguments: list[str] | None = None) -> int:
    try:
        with signals_raise() as raised, _library_logs_silenced():
            status = app(arguments, standalone_mode=False)
            if raised and status == ExitStatus.INTERRUPTED:  # typer's, outside a command's body
                return report_interruption(raised[0])
            sys.stdout.flush()  # at its end, the interpreter would only complain
    except SystemExit:  # click's own answer to a broken pipe; our commands end by typer.Exit
        return _pipe_closed()
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # outside the body of a command
            return report_interruption(error.__cause__)
        if isinstance(error, BrokenPipeError):  # the reader of our output has closed the pipe
            return _pipe_closed()
        if hasattr(error, "format_message"):  # a usage error from typer
            return _report_usage(error)
        import traceback

        if "--json" in (sys.argv[1:] if arguments is None else arguments):
            described = redacted(one_line_text(str(error)))
            where = {"type": type(error).__name__, "traceback": "standard error"}
            Output(True, False, False).print_json({"ok": False, "error": described, **where})
        traceback.print_exc()
        print_error(
            "this is a defect of disagg, not of your data; please report it with the lines above"
        )
        return ExitStatus.DEFECT
    except KeyboardInterrupt as stop:
        return report_interruption(stop)
    return status if isinstance(status, int) else ExitStatus.DONE


def _pipe_closed() -> ExitStatus:
    # What is left in the buffers has nowhere to go.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return ExitStatus.PIPE_CLOSED


@contextmanager
def _library_logs_silenced() -> Iterator[None]:
    """Keep the log messages of libraries off the terminal, except with --verbose."""
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
    print_error(f"error: {command}: {found[:1].lower() + found[1:]}; see `{command} --help`")
    return ExitStatus.BAD_INPUT


def _load(
    path: Path,
    period: str | None = None,
    *,
    with_inputs: bool,
    changes: dict[str, Any] | None = None,
) -> Config:
    """Read a configuration for a run; raise InputError with all problems of it and its inputs."""
    from pipeline.config.reader import missing_files, read_config

    problems: list[Problem] = []
    config = read_config(path, problems, period, changes)
    if config is not None and with_inputs:
        missing_files(config, problems)
        if problems and changes is None:
            problems = all_problems(path, period)[0]
    if config is None or problems:
        raise InputError(problems)
    return config


def _run_stages(
    path: Path,
    names: tuple[str, ...],
    force: bool,
    output: Output,
    period: str | None = None,
    within: str | None = None,
    load: Callable[[], Config] | None = None,
    into: Path | None = None,
    publishes: bool = False,
    update: Updating | None = None,
) -> None:
    command = "run" if len(names) > 1 else names[0]
    command = "update" if update else command + ("" if load is None else " --from")
    given = {"--into": into, "--period": period, "--within": within}
    shown = Storage().place(path)  # an address has two slashes, which a path has not
    again = f"disagg {command} {shown}"
    again += "".join(f" {name} {value}" for name, value in given.items() if value is not None)
    again += " --refit" if update == "first" else ""
    again += " --publish" if publishes else ""
    at: list[str] = []

    def stage() -> str:
        return f" during {at[-1]}" if at else ""

    with reported_errors(output, again, stage):
        from pipeline.products.products import announced_files
        from pipeline.run.fingerprints import Fingerprints
        from pipeline.run.runner import stale_stages, summarise_stages
        from pipeline.updates.attended import attended

        progress = output.progress()
        chosen: dict[str, Any] = {}
        published: Publication | None = None
        with attended(path, period, f"disagg {command}", progress.log, output.warn) as run:
            if run.config is not None:
                output.name_log(run.config)
            own = load or (lambda: _load(path, period, with_inputs="ingest" in names))
            config = run.retried(own)
            run.config = config
            output.name_log(config)
            if publishes:
                from pipeline.publishing.publish import check_publishable
                from pipeline.publishing.publish import publish as publish_run

                run.retried(lambda: check_publishable(config))
            if within is not None:
                config, chosen = _within(path, config, within, progress, period)
            fingerprints = Fingerprints(config)
            if "ingest" not in names:
                for stale in run.retried(lambda: stale_stages(config, names[0], fingerprints)):
                    progress.log(
                        f"note: inputs of {stale} have changed; `disagg run {shown}` updates all "
                        "stages"
                    )
            results = run.run_stages(
                config,
                names,
                progress,
                force=force,
                update=update,
                on_start=at.append,
                fingerprints=fingerprints,
            )
            if publishes:
                at.append("publish")
                published = run.retried(lambda: publish_run(config, progress=progress))
                run.published(config, published)
        place = config.output.place
        maps = [f"{place}/{name}" for name in announced_files(config.output.dir)]
        if published is not None:
            chosen["publication"] = published.summary()
        output.print_json(
            {
                "ok": published is None or published.status != "held",
                "output": place,
                "maps": maps,
                "stages": summarise_stages(results),
                **chosen,
            }
        )
        if "predict" in names and maps:
            output.print("Maps and tables:\n" + "\n".join(f"  {name}" for name in maps))
        output.print(f"All results: {place}")
        if published is not None:
            print_publication(config, published, output)


def _within(
    path: Path, config: Config, within: str, progress: Any, period: str | None
) -> tuple[Config, dict[str, Any]]:
    """Return the configuration with settings that end in time, and their description."""
    from pipeline.config.local_inputs import local_inputs
    from pipeline.config.reader import load_config

    with local_inputs(config) as local:
        proposal = propose_within(local, within, None)
    if proposal is None:
        return config, {}
    settings = ". ".join(proposal.yaml.splitlines())
    progress.log(f"run: {proposal.seconds:.0f} s foreseen for all stages with {settings}")
    return load_config(path, period, proposal.changes), {"within": describe(proposal)}

"""The options of ``disagg run`` that repeat a run: ``--from run.json [--into DIR]``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geo.core.errors import InputError, Problem
from pipeline.cli.console import Output

if TYPE_CHECKING:
    from pipeline.config.schema import Config

Record = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="RUN.JSON",
        help="Repeat the run that left this record, to the same bytes.",
    ),
]
Into = Annotated[
    Path | None,
    typer.Option(
        "--into", metavar="DIR", help="With --from: the output directory; the run's by default."
    ),
]


def check_repeat_options(record: Path | None, into: Path | None, others: Mapping[str, Any]) -> None:
    """Raise InputError if options do not go together.

    Parameters
    ----------
    record, into : Path or None
        Values of ``--from`` and ``--into``.
    others : mapping of str to object
        ``CONFIG`` and the options that a repetition takes from the record; None if not given.
    """
    command = "disagg run"
    if record is None and others["CONFIG"] is None:
        remedy = "give a configuration, or --from and the run.json of a run to repeat"
        raise InputError(Problem(command, "missing argument 'CONFIG'", remedy))
    if record is None and into is not None:
        raise InputError(
            Problem(f"{command} --into", "given without --from", "set output.dir in CONFIG")
        )
    given = [name for name, value in others.items() if value is not None]
    if record is not None and given:
        remedy = "give one of the two: the record has the configuration, its period and settings"
        raise InputError(Problem(f"{command} --from", f"given with {given[0]}", remedy))


def load_repetition(record: Path, into: Path | None, output: Output) -> Config:
    """Return the configuration of a run to repeat; print a line for what differs."""
    from pipeline.run.repeat import read_repetition

    progress = output.progress()
    progress.log(f"run: comparing the inputs with {record}")
    found = read_repetition(record, into)
    for warning in found.warnings:
        progress.log(f"warning: {warning}")
    return found.config

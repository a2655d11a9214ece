"""``disagg migrate``."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.console import Output, reported_errors, with_output_options
from pipeline.cli.versions import ConfigFile, read
from pipeline.core.exit_status import ExitStatus


@with_output_options
def migrate(
    config: ConfigFile,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what there is, and what would be done.")
    ] = False,
    *,
    output: Output,
) -> None:
    """After an upgrade: bring what earlier versions of disagg wrote to this one's formats.

    \b
    Lists stores, model, checkpoints, the record of the run and every
    published version, each with the version of its format. What is read as
    it is stays; what a run makes again is left to the run; the rest is
    rewritten, each in one move. Nothing is lost where it fails.

    \b
    Examples:
      disagg migrate mine.yaml --dry-run
      disagg migrate mine.yaml
    """  # noqa: D301
    with reported_errors(output, f"disagg migrate {config}"):
        from pipeline.updates.migrate import examine_formats
        from pipeline.updates.migrate import migrate as migrate_all

        loaded = read(config, None)
        found = examine_formats(loaded) if dry_run else migrate_all(loaded)
        output.print_json(
            {
                "ok": not any(each.problem for each in found),
                "found": [
                    {
                        "path": str(each.path),
                        "format": each.format,
                        "version": each.version,
                        "state": each.state,
                    }
                    for each in found
                ],
            }
        )
        if not found:
            output.print(f"nothing in {loaded.output.place} yet")
        for each in found:
            output.print(f"{each.format} {each.version or '?'}  {each.state:<10}  {each.path}")
        problems = [each.problem for each in found if each.problem is not None]
        for problem in problems:
            output.error(f"error: {problem}")
        if problems:
            raise typer.Exit(ExitStatus.BAD_INPUT)

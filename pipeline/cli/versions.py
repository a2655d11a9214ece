"""``disagg publish``, ``disagg versions``, ``disagg rollback``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geo.core.errors import InputError
from pipeline.cli.console import (
    Output,
    reported_errors,
    with_log_options,
    with_output_options,
)
from pipeline.core.exit_status import ExitStatus

if TYPE_CHECKING:
    from pipeline.config.schema import Config
    from pipeline.publishing.publish import Publication

ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The configuration (YAML), or its address.")
]
Period = Annotated[
    str | None, typer.Option("--period", help="Period of a time series; the latest by default.")
]


@with_output_options
@with_log_options
def publish(
    config: ConfigFile,
    period: Period = None,
    force: Annotated[bool, typer.Option("--force", help="Publish even if a gate fails.")] = False,
    *,
    output: Output,
) -> None:
    """Publish the finished run as a new version if it passes its gates.

    \b
    Exit status 3: a gate failed; the reasons are printed, and readers keep
    the version that they have.
    """  # noqa: D301
    with reported_errors(output, f"disagg publish {config}"):
        from pipeline.publishing.publish import publish as publish_run
        from pipeline.updates.attended import attended

        progress = output.progress()
        with attended(config, period, "disagg publish", progress.log, output.warn) as run:
            loaded = run.config = run.retried(lambda: read(config, period))
            output.name_log(loaded)
            done = run.retried(lambda: publish_run(loaded, force=force, progress=progress))
            run.published(loaded, done)
        output.print_json({"ok": done.status != "held", **done.summary()})
        print_publication(loaded, done, output)


def print_publication(config: Config, done: Publication, output: Output) -> None:
    """Print what was published; where a gate held the map back, why, and end with its status."""
    from pipeline.publishing.summary import headline

    if done.status == "held":
        for reason in done.reasons:
            output.error(f"held back: {reason}")
        raise typer.Exit(ExitStatus.HELD)
    output.print(headline(config, done))


@with_output_options
def versions(
    config: ConfigFile,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file against its checksum.")
    ] = False,
    *,
    output: Output,
) -> None:
    """List the published versions; a star marks the current one.

    
    Exit status 2: a version cannot be read (damaged, or of a newer format),
    a file is not what was published (with --verify), or the current version
    is not there.
    """
    with reported_errors(output, f"disagg versions {config}"):
        from pipeline.publishing.publish import publish_dir
        from pipeline.publishing.versions import open_versions

        store = open_versions(publish_dir(read(config, None)))
        directory, current, every = store.place, store.current(), store.all()
        troubled = [(v.path, v.trouble.removeprefix(f"{v.path}: ")) for v in every if v.trouble]
        wrong = [f"{path}: cannot be read: {trouble}" for path, trouble in troubled]
        lost = store.current_name() if current is None else None
        if lost is not None:
            wrong.append(f"{directory}: the current version, {lost}, is damaged or gone")
        if verify:
            with output.progress().task("versions", len(every)) as task:
                for each in every:
                    wrong += each.faults()
                    task.advance()
        rows = [
            {
                "version": v.name,
                "current": v == current,
                "directory": str(v.path),
                **_brief(v.about),
                "trouble": v.trouble,
            }
            for v in every
        ]
        found = {"ok": not wrong, "directory": str(directory), "versions": rows, "faults": wrong}
        output.print_json(found)
        if not rows:
            output.print(f"no versions in {directory}; publish one with `disagg publish {config}`")
        for row in rows:
            star = "*" if row["current"] else " "
            parts = (row[key] for key in ("version", "published", "period", "verdict"))
            output.print(f"{star} {'  '.join(str(part) for part in parts if part)}")
        remedy = f"; restore it from a back-up, or `disagg rollback {config}`"
        for line in wrong:
            output.error(f"error: {line}{'' if '; ' in line else remedy}")
        if wrong:
            raise typer.Exit(ExitStatus.BAD_INPUT)
        if verify and rows:
            output.print(f"every file of {len(rows)} versions is as it was published")


@with_output_options
def rollback(
    config: ConfigFile,
    to: Annotated[str | None, typer.Option("--to", help="A version, such as v0007.")] = None,
    *,
    output: Output,
) -> None:
    """Make the previous version current again, or any other."""
    with reported_errors(output, f"disagg rollback {config}"):
        from pipeline.publishing.publish import publish_dir
        from pipeline.publishing.versions import open_versions

        before, now = open_versions(publish_dir(read(config, None))).roll_back(to)
        was = None if before is None else before.name
        output.print_json({"ok": True, "was": was, "version": now.name, "directory": str(now.path)})
        output.print(f"current version: {now.name} (before: {was or 'none'})")


def read(path: Path, period: str | None) -> Config:
    """Read a configuration whose inputs may be missing."""
    from pipeline.config.reader import read_config

    problems: list[Any] = []
    config = read_config(path, problems, period)
    if config is None or problems:
        raise InputError(problems)
    return config


def _brief(about: dict[str, Any]) -> dict[str, Any]:
    return {key: about.get(key) for key in ("period", "published", "forced", "verdict")}

"""``disagg publish``, ``disagg versions``, ``disagg rollback``: what readers are given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geo.errors import InputError
from pipeline.cli.console import Talk, errors_told, talking, tell_error

if TYPE_CHECKING:
    from pipeline.config.schema import Config

HELD = 3

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="The configuration (YAML).")]
Period = Annotated[
    str | None, typer.Option("--period", help="Of a time series: which; the latest by default.")
]


@talking
def publish(
    config: ConfigFile,
    period: Period = None,
    force: Annotated[bool, typer.Option("--force", help="Whatever the gates say.")] = False,
    *,
    talk: Talk,
) -> None:
    """Make a version of the finished run and give it to readers, if its gates allow.

    \b
    Exit status 3: finished, not fit to publish; the reasons are told.
    """  # noqa: D301
    with errors_told(talk, f"disagg publish {config}"):
        loaded = read(config, period)
        from pipeline.publishing.publish import publish as publish_run
        from pipeline.publishing.summary import headline

        done = publish_run(loaded, force=force)
        talk.give({"ok": done.status != "held", **done.summary()})
        if done.status == "held":
            for reason in done.reasons:
                tell_error(f"held back: {reason}")
            raise typer.Exit(HELD)
        talk.say(headline(loaded, done))


@talking
def versions(config: ConfigFile, *, talk: Talk) -> None:
    """List the published versions; the one that readers are given has a star."""
    with errors_told(talk, f"disagg versions {config}"):
        from pipeline.publishing.publish import publish_dir
        from pipeline.publishing.versions import current_version, list_versions

        directory = publish_dir(read(config, None))
        current = current_version(directory)
        rows = [
            {
                "version": v.name,
                "current": v == current,
                "directory": str(v.path),
                **_brief(v.about),
            }
            for v in list_versions(directory)
        ]
        talk.give({"ok": True, "directory": str(directory), "versions": rows})
        if not rows:
            talk.say(f"no versions in {directory}; publish one: disagg publish {config}")
        for row in rows:
            star = "*" if row["current"] else " "
            talk.say(f"{star} {row['version']}  {row['published']}  {row['period'] or ''}")


@talking
def rollback(
    config: ConfigFile,
    to: Annotated[str | None, typer.Option("--to", help="A version, such as v0007.")] = None,
    *,
    talk: Talk,
) -> None:
    """Give readers the version before the current one again, or any other."""
    with errors_told(talk, f"disagg rollback {config}"):
        from pipeline.publishing.publish import publish_dir
        from pipeline.publishing.versions import roll_back

        directory = publish_dir(read(config, None))
        before, now = roll_back(directory, to)
        was = None if before is None else before.name
        talk.give({"ok": True, "was": was, "version": now.name, "directory": str(now.path)})
        talk.say(f"readers have {now.name} now; it was {was or 'none'}")


def add_commands(app: typer.Typer) -> None:
    """Add the commands to ``disagg``."""
    for command in (publish, versions, rollback):
        app.command()(command)


def read(path: Path, period: str | None) -> Config:
    """Read a configuration whose inputs need not be there any more."""
    from pipeline.config.reader import read_config

    problems: list[Any] = []
    config = read_config(path, problems, period)
    if config is None or problems:
        raise InputError(problems)
    return config


def _brief(about: dict[str, Any]) -> dict[str, Any]:
    return {key: about.get(key) for key in ("period", "published", "forced")}

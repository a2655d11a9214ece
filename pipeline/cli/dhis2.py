"""``disagg dhis2``: boundaries and counts from DHIS2, results to it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.console import Output, reported_errors, with_output_options
from pipeline.cli.versions import ConfigFile, Period, read
from pipeline.core.exit_status import ExitStatus

if TYPE_CHECKING:
    from pipeline.dhis2.push import Pushed
    from pipeline.dhis2.server import Server

dhis2 = typer.Typer(
    help="Boundaries and counts from DHIS2, quantiles and exceedance to it.", no_args_is_help=True
)
N_SHOWN = 5


@dhis2.command()
@with_output_options
def pull(config: ConfigFile, *, output: Output) -> None:
    """Write the boundaries and counts of DHIS2 to areas.path and counts.path.

    \b
    Section dhis2.pull says which: from the server at dhis2.url, whose login
    is in the environment (DISAGG_DHIS2_TOKEN, or DISAGG_DHIS2_USER and
    DISAGG_DHIS2_PASSWORD), or from files. Nothing is written where nothing
    has changed.

    \b
    Example:
      DISAGG_DHIS2_TOKEN=... disagg dhis2 pull malaria.yaml
    """  # noqa: D301
    with reported_errors(output, f"disagg dhis2 pull {config}", resumable=False):
        from pipeline.dhis2.pull import open_server
        from pipeline.dhis2.pull import pull as pull_all
        from pipeline.updates.arrivals import load_watched

        loaded = load_watched(config)
        _warn_of(open_server(loaded), output)
        done = pull_all(loaded, output.progress())
        output.print_json({"ok": True, **asdict(done)})
        for note in done.notes:
            output.warn(note)
        output.print(f"{done.units} areas, {done.rows} counts from {done.first} to {done.last}")
        for path in done.written:
            output.print(f"Written: {path}")
        if not done.written:
            output.print("Nothing has changed since the last pull")


@dhis2.command()
@with_output_options
def push(
    config: ConfigFile,
    period: Period = None,
    send: Annotated[
        bool, typer.Option("--send", help="Send the values; else the server only tries.")
    ] = False,
    *,
    output: Output,
) -> None:
    """Write statistics of areas as data values, and say what they would change in DHIS2.

    \b
    Section dhis2.push says which go to which data elements. Without --send
    the server at dhis2.url imports nothing (dryRun); without a server there
    are the files alone. Values that it has already are not sent again.
    Exit status 2: the server refused some; the reasons are printed.

    \b
    Examples:
      disagg dhis2 push malaria.yaml
      disagg dhis2 push malaria.yaml --send
    """  # noqa: D301
    again = f"disagg dhis2 push {config}" + (" --send" if send else "")
    with reported_errors(output, again):
        from pipeline.dhis2.pull import open_server
        from pipeline.dhis2.push import push as push_all

        loaded = read(config, period)
        given = loaded.dhis2 is not None and loaded.dhis2.url is not None
        server = open_server(loaded) if given else None
        if server is not None:
            _warn_of(server, output)
        done = push_all(loaded, server, send=send, progress=output.progress())
    _print(done, output)
    if done.refused or done.reasons:
        raise typer.Exit(ExitStatus.BAD_INPUT)


def _warn_of(server: Server, output: Output) -> None:
    if server.open_login:
        output.warn(f"{server.url}: the login can be read on the way; use https")


def _print(done: Pushed, output: Output) -> None:
    from pipeline.dhis2.push import N_LINE

    told = done.changes or []
    shown = [each for each in told if each.kind != "unchanged"]
    output.print_json(
        {
            "ok": not (done.refused or done.reasons),
            **asdict(done),
            "changes": None if done.changes is None else [asdict(each) for each in shown],
            **{kind: done.count(kind) for kind in ("new", "changed", "unchanged")},
        }
    )
    for path in done.files:
        output.print(f"Written: {path}")
    if done.changes is None:
        output.print(f"{done.values} values; dhis2.url is not given: nothing was compared")
        return
    counts = ", ".join(f"{done.count(kind)} {kind}" for kind in ("new", "changed", "unchanged"))
    output.print(f"{done.values} values: {counts}")
    for each in [each for each in shown if each.kind == "changed"][:N_SHOWN]:
        value = each.value
        output.print(
            f"  {value.element} of {value.unit} in {value.period}: {each.before} -> {value.value}"
        )
    for reason in done.reasons[:N_LINE]:
        output.error(f"error: refused: {reason}")
    if len(done.reasons) > N_LINE:
        output.error(f"error: refused: ... ({len(done.reasons)} reasons in all)")
    verb = "Sent" if done.sent else "Not sent (dry run; --send sends)"
    would = "" if done.sent else "would be "
    took = f"{done.imported} {would}imported, {done.updated} updated, {done.refused} refused"
    output.print(f"{verb}: {took}" if shown else "Nothing to send")

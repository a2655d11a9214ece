"""``disagg plan``: estimate the resources of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.console import Output, reported_errors, with_output_options
from pipeline.cli.versions import Period

if TYPE_CHECKING:
    from rich.table import Table

    from pipeline.config.schema import Config
    from pipeline.plan.estimate import RunPlan
    from pipeline.plan.proposal import Proposal

Within = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Choose settings whose run ends within this time (90m, 2h, 1h30m); what the "
        "configuration sets is kept.",
    ),
]


@with_output_options
def plan(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The configuration (YAML), or its address.")
    ],
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="One-core workers; as configured by default."),
    ] = None,
    within: Within = None,
    *,
    period: Period = None,
    output: Output,
) -> None:
    """Estimate pixels, disk, memory and time of a run; read no pixels, write nothing.

    \b
    Examples:
      disagg plan demo/disagg.yaml
      disagg plan demo/disagg.yaml --workers 8
      disagg plan demo/disagg.yaml --within 2h
      disagg plan mine.yaml --period 2026-03 --json
    """  # noqa: D301
    with reported_errors(output, f"disagg plan {config}", resumable=False):
        from pipeline.config.local_inputs import local_inputs
        from pipeline.config.reader import load_config
        from pipeline.plan.estimate import plan_run

        loaded = load_config(config, period)
        with local_inputs(loaded) as local:
            proposal = propose_within(local, within, workers)
            found = plan_run(local, workers) if proposal is None else proposal.plan
        chosen = {} if proposal is None else {"within": describe(proposal)}
        output.print_json(found.to_dict() | chosen)
        if not (output.quiet or output.as_json):
            _print(found)
            print_settings(found, proposal)


def propose_within(config: Config, within: str | None, workers: int | None) -> Proposal | None:
    """Return the settings that end within a time; None without one."""
    if within is None:
        return None
    from pipeline.plan.duration import parse_duration
    from pipeline.plan.proposal import propose

    return propose(config, parse_duration(within), workers)


def describe(proposal: Proposal) -> dict[str, Any]:
    """Return a proposal as JSON takes it."""
    return {
        "seconds": proposal.within,
        "foreseen": round(proposal.seconds, 1),
        "settings": proposal.changes,
        "saves_by": proposal.loss,
        "kept": list(proposal.kept),
    }


def print_settings(found: RunPlan, proposal: Proposal | None) -> None:
    """Print what was chosen by the size or for a time, and what it gives up."""
    if proposal is None:
        part = found.fitted.n_pixels
        if part < found.sizes.n_pixels:
            from pipeline.plan.proposal import as_yaml

            share = found.fitted.n_pixels / found.fitted.n_areas
            print(
                f"By the size of the problem the fit uses {part:,} pixels, {share:,.0f} an area on "
                f"average, that bear the exposure of all; 50 an area cost about .02 nats of the "
                f"held-out log density of an area (docs/design/affordable.md):\n\n"
                f"{as_yaml(found.settings)}"
            )
        return
    print(
        f"\nWithin {_time(proposal.within)} ends (foreseen: {_time(proposal.seconds)}, all stages, "
        f"all epochs) a run with these settings; put them into the configuration, or give "
        f"`disagg run --within`:\n\n{proposal.yaml}\nThey save time by: {proposal.loss}."
    )
    if proposal.kept:
        print(f"Kept as you set them: {', '.join(proposal.kept)}.")


def _print(found: RunPlan) -> None:
    from rich.console import Console

    console = Console()
    console.print(_sizes(found))
    console.print(_stages(found))
    if found.epoch_flops is not None and found.fit_flops is not None:
        print(
            f"Floating-point operations (4 n M^2): {found.step_flops:.2g} a step, "
            f"{found.epoch_flops:.2g} a pass over all areas, {found.fit_flops:.2g} in the fit; a "
            f"core of this machine multiplies matrices at {found.probe.flops:.2g} a second."
        )
    if found.epoch_seconds:
        times = ", ".join(f"{_time(s)} with {n}" for n, s in found.epoch_seconds.items())
        print(
            f"Time of a pass over all areas by number of workers: {times}. The times above are for "
            f"{_passes(found)}. More "
            f"than {found.pays} {'worker does' if found.pays == 1 else 'workers do'} not pay."
        )
    for warning in found.warnings:
        print(f"warning: {warning}")


def _passes(found: RunPlan) -> str:
    """Return the passes of the fit that are foreseen, as text."""
    passes = found.passes
    if not passes.n_few:
        return f"{found.max_epochs} epochs; the fit ends earlier if its bound no longer rises"
    few = f"{passes.n_few:.0f} passes over {passes.few.n_pixels:,} pixels"
    whole = f" and {passes.n_whole:.0f} over {passes.whole.n_pixels:,}" if passes.n_whole else ""
    return f"{few}{whole}, as fits to the optimum of the bound took"


def _sizes(found: RunPlan) -> Table:
    sizes, b = found.sizes, found.sizes.bytes
    n_row, n_col = sizes.grid.shape
    table = _table("quantity", "amount")
    for name, value in (
        ("grid", f"{n_row:,} x {n_col:,} = {sizes.grid.n_pix:,} pixels"),
        ("pixels in areas", f"{sizes.n_pixels:,} at most (pixels without a value are dropped)"),
        ("areas", f"{sizes.n_areas:,}, the largest has {sizes.area_pixels.max():,.0f} pixels"),
        ("covariates", f"{sizes.n_covariates:,}"),
        ("an epoch", f"{sizes.n_steps:,} steps, {sizes.n_blocks:,} blocks of whole areas"),
        ("disk: bag store", _size(b["bags.zarr"])),
        ("disk: aligned grid", _size(b["grid.zarr"])),
        ("disk: maps", f"{_size(b['maps'])} ({sizes.n_maps})"),
        ("copies of inputs", f"{_size(b['copies'])}, {_size(b['fetched'])} still to be fetched"),
        ("disk: at most", f"{_size(found.disk_bytes)}, {_size(found.disk_free)} are free"),
        ("a cluster's worker", f"{_size(found.worker_bytes)} of memory"),
    ):
        if name != "copies of inputs" or b["copies"]:  # of inputs at addresses
            table.add_row(name, value)
    return table


def _stages(found: RunPlan) -> Table:
    counts = sorted({n for stage in found.stages for n in stage.seconds})
    table = _table("stage", *(f"{n} worker{'s' * (n > 1)}" for n in counts), "memory at most")
    for stage in found.stages:
        times = [_time(stage.seconds[n]) if n in stage.seconds else "?" for n in counts]
        table.add_row(stage.name, *times, _size(stage.peak_bytes))
    every = [[stage.seconds[n] for stage in found.stages if n in stage.seconds] for n in counts]
    whole = [_time(sum(own)) if len(own) == len(found.stages) else "?" for own in every]
    table.add_section()
    table.add_row("a run", *whole, _size(max(stage.peak_bytes for stage in found.stages)))
    return table


def _table(*headings: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading)
    return table


def _size(n: float) -> str:
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:,.1f} GB"


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"

"""``disagg compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.console import Output, reported_errors, with_output_options


@with_output_options
def compare(
    a: Annotated[
        str,
        typer.Argument(metavar="A", help="Before: output.dir, a configuration, or CONFIG@v0007."),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="After, likewise; or CONFIG@current.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Directory of the files.")
    ] = Path("compare"),
    independent: Annotated[
        bool,
        typer.Option("--independent", help="Draw A and B apart, also where they could be paired."),
    ] = False,
    draws: Annotated[
        int | None, typer.Option(min=2, help="Draws of each; output.draws of B by default.")
    ] = None,
    *,
    output: Output,
) -> None:
    """Compare two runs or versions: difference, ratio, probability that the change is real.

    \b
    By pixel:  difference_mean.tif, ratio.tif, change_probability.tif
    By area:   change.csv, change.gpkg; of all periods: change_periods.csv
    In total, and what differed between the runs:  compare.json

    \b
    Probabilities are P(B > A). Draws are paired (the same random numbers) where
    the models share kernel, inducing points and scaling, else independent.

    \b
    Examples:
      disagg compare before.yaml after.yaml
      disagg compare mine.yaml@v0003 mine.yaml@current --out change
      disagg compare out-2023 out-2024 --independent --json
    """  # noqa: D301
    with reported_errors(output, f"disagg compare {a} {b}", resumable=False):
        from pipeline.comparison.words import lines
        from pipeline.publishing.comparing import compare as run_comparison

        report = run_comparison(
            a, b, out, output.progress(), independent=independent, n_draws=draws
        )
        output.print_json({"ok": True, "output": str(out), **report})
        output.print("\n".join([*lines(report), f"All files: {out}"]))

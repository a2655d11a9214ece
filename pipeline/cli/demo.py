"""``disagg demo``: a simulated country to try everything on."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from geo.core.errors import InputError, Problem
from pipeline.cli.console import Output, reported_errors, with_output_options

_DEMO_MARK = ".disagg-demo"  # in a directory that another demo may overwrite
FEWEST = 6  # months that a first map is made from


class Size(StrEnum):
    """Size of the simulated country."""

    small = "small"
    country = "country"


@with_output_options
def demo(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="New directory, or an earlier demo.")
    ],
    size: Annotated[
        Size, typer.Option(help="small: 120 areas, a minute; country: 957 areas, a million pixels.")
    ] = Size.small,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the country.")] = 1,
    labels: Annotated[
        bool,
        typer.Option("--labels", help="Simulate labels 1 and 0 instead of counts."),
    ] = False,
    months: Annotated[
        int | None,
        typer.Option(min=FEWEST, max=240, help="Simulate counts of so many months."),
    ] = None,
    later: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=234,
            help="Of --months, so many at the end that arrive later: in DIR/later/<month>.",
        ),
    ] = None,
    *,
    output: Output,
) -> None:
    """Simulate a country: boundaries, counts, rasters, the true rate, and disagg.yaml.

    \b
    Examples:
      disagg demo demo
      disagg demo big --size country --seed 7
      disagg demo outbreaks --labels
      disagg demo monthly --months 24
      disagg demo monthly --months 24 --later 6
    """  # noqa: D301
    with reported_errors(output, f"disagg demo {directory}"):
        _check_demo_dir(directory)
        if later is not None and (months is None or later > months - FEWEST):
            found = "--later given without --months, or leaves fewer than 6 months"
            raise InputError(Problem("demo", found, "give --months 24 --later 6"))
        directory.mkdir(parents=True, exist_ok=True)
        (directory / _DEMO_MARK).touch()
        output.progress().log(f"simulating a country ({size.value}) in {directory}")
        if months is not None:
            if labels:
                found = "--months given with --labels"
                raise InputError(Problem("demo", found, "give one of them"))
            from pipeline.demo.months import simulate_months

            config = simulate_months(directory, months, seed, n_later=later or 0, size=size.value)
        else:
            from pipeline.demo.country import simulate_country

            config = simulate_country(directory, size=size.value, seed=seed, labels=labels)
        output.print_json({"config": str(config), "size": size.value, "seed": seed})
        waits = f"\nLater months wait in {directory / 'later'}" if later else ""
        output.print(f"Configuration: {config}{waits}\nNext: disagg run {config}")


def _check_demo_dir(directory: Path) -> None:
    """Raise InputError if the directory has files that are not of a demo."""
    if directory.exists() and not directory.is_dir():
        raise InputError(Problem(str(directory), "a file, not a directory", "give a directory"))
    ours = any((directory / name).exists() for name in (_DEMO_MARK, "truth_rate.tif"))
    if directory.is_dir() and any(directory.iterdir()) and not ours:
        raise InputError(
            Problem(
                str(directory),
                "has files that are not of a demo",
                "give a new or an empty directory",
            )
        )

"""``disagg chap``: the entry points of an MLproject of CHAP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geo.core.errors import InputError, Problem
from pipeline.cli.console import Output, reported_errors, with_output_options

chap = typer.Typer(
    help="Train and predict in the tables of CHAP, DHIS2's climate and health platform.",
    no_args_is_help=True,
)

Polygons = Annotated[
    Path | None,
    typer.Option(metavar="F", help="GeoJSON of the locations; the id of a feature is its name."),
]
ConfigOfChap = Annotated[
    Path | None,
    typer.Option("--config", metavar="F", help="Configuration of the model, as CHAP writes it."),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the trained model.")]


@chap.command()
@with_output_options
def train(
    data: Annotated[Path, typer.Argument(metavar="TRAIN", help="Table of the training data.")],
    model: Model,
    polygons: Polygons = None,
    config: ConfigOfChap = None,
    *,
    output: Output,
) -> None:
    """Fit the model of space and time to a table of counts by period and location.

    \b
    Example:
      disagg chap train train.csv model --polygons polygons.geojson
    """  # noqa: D301
    with reported_errors(output, f"disagg chap train {data} {model}", resumable=False):
        from pipeline.chap.configuration import read_settings
        from pipeline.chap.forecasting import train as fit
        from pipeline.chap.tables import read_table

        _check_folder(model)
        settings = read_settings(config)
        table = read_table(data)
        trained = fit(table, settings, polygons)
        trained.save(model)
        found = {"periods": len(table.times), "locations": len(table.locations)}
        output.print_json({"ok": True, "model": str(model), **found})
        output.print(f"Model: {model}")


@chap.command()
@with_output_options
def predict(
    historic: Annotated[
        Path, typer.Argument(metavar="HISTORIC", help="Table of what is known by now.")
    ],
    future: Annotated[
        Path, typer.Argument(metavar="FUTURE", help="Table of the periods to forecast.")
    ],
    model: Model,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="CSV of the samples.")],
    polygons: Polygons = None,
    config: ConfigOfChap = None,
    *,
    output: Output,
) -> None:
    """Draw the counts of future periods: time_period, location, sample_0 ... sample_99.

    \b
    Positions are those of the training; CHAP passes its polygons to both
    entry points, and they are only checked here.

    \b
    Example:
      disagg chap predict historic.csv future.csv model out.csv
    """  # noqa: D301
    command = f"disagg chap predict {historic} {future} {model} {out}"
    with reported_errors(output, command, resumable=False):
        from pipeline.chap.configuration import read_settings
        from pipeline.chap.forecasting import Trained, write_samples
        from pipeline.chap.forecasting import predict as draw
        from pipeline.chap.positions import read_positions
        from pipeline.chap.tables import read_table

        _check_folder(out)
        settings = read_settings(config)
        trained = Trained.load(model)
        if polygons is not None:
            read_positions(polygons, trained.locations)
        ahead = read_table(future, future=True)
        draws = draw(trained, read_table(historic), ahead, threads=settings.threads)
        write_samples(out, ahead, trained.locations, draws)
        output.print_json({"ok": True, "out": str(out), "periods": ahead.names})
        output.print(f"Samples: {out}")


def _check_folder(path: Path) -> None:
    """Raise InputError where a result could not be written: before the work, not after."""
    if not path.absolute().parent.is_dir():
        remedy = "make the folder first, or give another path"
        raise InputError(Problem(str(path), f"there is no folder {path.parent}", remedy))

"""``disagg config``: the reference of the configuration."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from geo.core.errors import InputError, Problem
from pipeline.cli.console import Output, reported_errors


def config(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="A key or section, such as fit or fit.seed.")
    ] = "",
    as_schema: Annotated[
        bool,
        typer.Option("--schema", "--json-schema", help="Print the JSON Schema, for editors."),
    ] = False,
) -> None:
    """Say what a key of the configuration means: its type, range, default and an example.

    \b
    Examples:
      disagg config
      disagg config fit
      disagg config covariates.NAME.transform
      disagg config --schema > disagg.schema.json
    """  # noqa: D301
    with reported_errors(Output(as_json=False, quiet=False, verbose=False), "disagg config"):
        from pipeline.config.reference import describe, schema

        try:
            print(json.dumps(schema(), indent=1) if as_schema else describe(key))
        except LookupError as error:
            raise InputError(Problem(key, "no key of the configuration", error.args[0])) from None

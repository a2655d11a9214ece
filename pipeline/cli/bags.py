"""``disagg bags``: bag stores from tables of instances, without maps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geo.core.errors import InputError, Problem
from pipeline.cli.console import Output, reported_errors, with_output_options
from pipeline.storage.location import is_object_address

if TYPE_CHECKING:
    from pipeline.store.bag_store import BagStore

bags = typer.Typer(
    help="Import a table of instances, and fit a classifier of bags to it.", no_args_is_help=True
)

StorePath = Annotated[
    Path, typer.Argument(metavar="STORE", help="A bag store: a directory or s3://...")
]


@bags.command("import")
@with_output_options
def import_(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="Table: CSV or Parquet.")],
    bag: Annotated[str, typer.Option("--bag", help="Column of the instance's bag.")],
    label: Annotated[str, typer.Option("--label", help="Column of the bag's label.")],
    out: Annotated[Path, typer.Option("--out", help="Store to write: a directory or s3://...")],
    positive: Annotated[
        str | None,
        typer.Option(help="The label of positive bags; default: 1, yes, true, positive, ..."),
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option("--feature", help="Column of a feature; default: all."),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", help="Column that is not a feature.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the order of the bags.")] = 0,
    *,
    output: Output,
) -> None:
    """Import a table of instances (one per row) into a bag store.

    \b
    Example:
      disagg bags import patches.parquet --bag slide --label tumour --out slides.zarr
      disagg bags import a.csv --bag slide --label kind --positive tumour --out slides.zarr
    """  # noqa: D301
    with reported_errors(output, f"disagg bags import {table} ...", resumable=False):
        from pipeline.tables.table_import import InstanceColumns, import_table

        _check_out(out)
        progress = output.progress()
        with progress.task("import", None) as task:
            store = import_table(
                table,
                out,
                InstanceColumns(bag, label, feature, drop or (), positive),
                seed=seed,
                advance=task.advance,
            )
        _describe(store, output)
        if {*store.y.tolist()} == {0.0, 1.0}:
            output.print(f"\nNext: disagg bags fit {out} --out results")
        else:
            output.print(
                "\nNo classifier can learn from these labels: bags have to be 1 or 0, and both "
                "have to occur. Import again with --positive LABEL."
            )


@bags.command()
@with_output_options
def info(store: StorePath, *, output: Output) -> None:
    """Show the size, features and labels of a bag store."""
    with reported_errors(output, f"disagg bags info {store}"):
        _describe(_open(store), output)


@bags.command()
@with_output_options
def fit(
    store: StorePath,
    out: Annotated[Path, typer.Option("--out", help="Directory of the results.")],
    model: Annotated[
        str, typer.Option("--model", help="A model of `disagg models` that learns from labels.")
    ] = "pooled_gp",
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Argument of the model's constructor."),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Choose among a few settings by held-out bags (inner folds)."),
    ] = False,
    folds: Annotated[int, typer.Option(min=0, help="Cross-validation folds; 0: none.")] = 5,
    truth: Annotated[
        str | None,
        typer.Option(help="Column of the imported table with instance labels, for scores."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the model and the folds.")] = 0,
    *,
    output: Output,
) -> None:
    """Fit a classifier to a bag store; write its predictions and scores.

    \b
    Examples:
      disagg bags fit slides.zarr --out results
      disagg bags fit slides.zarr --set pooling=noisy_or --out results
      disagg bags fit slides.zarr --model psi_vgpmil --set density=gamma --out results
      disagg bags fit slides.zarr --model vwsgp --tune --set calibrate=cv --out results
    """  # noqa: D301
    with reported_errors(output, f"disagg bags fit {store} ...", resumable=False):
        from pipeline.tables.bag_fit import Classifier, fit_bags

        _check_kind(model)
        found = fit_bags(
            _open(store),
            Classifier(model, _settings(setting or []) | ({"tune": True} if tune else {}), seed),
            out,
            n_fold=folds,
            truth=truth,
            progress=output.progress(),
        )
        output.print_json({"ok": True, "output": str(out), **found})
        output.print(f"All results: {out}")


def _settings(given: list[str]) -> dict[str, Any]:
    import yaml

    options = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(Problem(f"--set {text}", "not NAME=VALUE", "write --set n_trees=200"))
        options[name] = yaml.safe_load(value)
    return options


def _check_kind(kind: str) -> None:
    from geo.core.columns import suggest
    from pipeline.config.catalogue import catalogue

    names = [each.kind for each in catalogue() if each.learns_from == "labels"]
    if kind not in names:
        raise InputError(
            Problem(
                "--model",
                f"no model {kind!r} that learns from labels",
                suggest(kind, names, "model"),
            )
        )


def _check_out(out: Path) -> None:
    """Raise InputError if ``out`` exists and is not a bag store."""
    if not is_object_address(out) and out.exists() and not (out / "zarr.json").is_file():
        raise InputError(Problem(str(out), "exists, but is not a bag store", "give another --out"))


def _open(path: Path) -> BagStore:
    from pipeline.storage.object_commit import place_of
    from pipeline.store.bag_store import BagStore

    if place_of(path) == path and not (path / "zarr.json").is_file():
        what = "not a bag store" if path.exists() else "no such directory"
        remedy = "give the --out of `disagg bags import`, or work/bags.zarr of a run"
        raise InputError(Problem(str(path), what, remedy))
    return BagStore.open(path).training


def _describe(store: BagStore, output: Output) -> None:
    import numpy as np

    sizes = store.sizes
    kinds, counts = np.unique(store.y, return_counts=True)
    labels = {f"{k:g}": int(n) for k, n in zip(kinds, counts, strict=True)}
    found: dict[str, Any] = {
        "store": str(store.path),
        "name": store.attrs.get("name", ""),
        "n_bags": store.n_bag,
        "n_pixels": store.n_pix,
        "n_features": store.n_feat,
        "features": list(store.covariates),
        "n_blocks": store.n_block,
        "bag_size": {
            "min": int(sizes.min()),
            "median": float(np.median(sizes)),
            "max": int(sizes.max()),
        },
        "responses": labels
        if kinds.size <= 10
        else {
            "min": float(store.y.min()),
            "mean": float(store.y.mean()),
            "max": float(store.y.max()),
        },
        "weight_unit": store.attrs.get("weight_unit", ""),
        "fingerprint": store.fingerprint,
    }
    output.print_json(found)
    names = list(store.covariates)
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    size = found["bag_size"]
    lines = {
        "bags": f"{store.n_bag:,} in {store.n_block:,} blocks",
        "instances": f"{store.n_pix:,}; {size['min']:,} to {size['max']:,} a bag, "
        f"median {size['median']:,g}",
        "features": f"{store.n_feat}: {shown}",
        "responses": ", ".join(f"{k}: {v:,g}" for k, v in found["responses"].items()),
    }
    output.print(f"{store.path}")
    for name, what in lines.items():
        output.print(f"  {name:<10} {what}")

"""Fit a classifier to a bag store of a table, cross-validate it, and write the results."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from geo.core.errors import InputError, Problem
from geo.core.temporary import temporary_directory
from pipeline.config.catalogue import (
    constructor_names,
    model_class,
    unknown_option,
    unusable_options,
)
from pipeline.core.json_values import jsonable
from pipeline.core.progress import Progress
from pipeline.core.threads import map_in_order
from pipeline.evaluation.choices import named_choices
from pipeline.evaluation.cross_validation import cross_validate
from pipeline.evaluation.folds import stratified_folds
from pipeline.evaluation.label_scores import label_scores
from pipeline.evaluation.report import render_report
from pipeline.evaluation.tasks import LabelTask, compare_held_out
from pipeline.evaluation.verdict import KEY, verdict
from pipeline.prediction.labels import LabelPredictions, tabulate_labels
from pipeline.products.csv_table import write_csv
from pipeline.responses.labels import Labels
from pipeline.store.bag_store import BagStore
from pipeline.tables.table_import import read_column
from pipeline.training.fit import fit as fit_model

INTERVAL = 0.9


@dataclass(frozen=True)
class Classifier:
    """Specification of a classifier.

    Attributes
    ----------
    kind : str
        See ``disagg models``; one that learns from labels.
    options : dict
        Arguments of the model.
    seed : int
        Of the model and the folds.
    """

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def new(self) -> Any:
        """Return an unfitted model.

        Raises
        ------
        InputError
            If an option cannot be used.
        """
        wrong = unknown_option(self.kind, self.options)
        wrong = wrong or unusable_options(self.kind, self.options)
        if wrong is not None:
            raise InputError(Problem("--set", *wrong))
        seed = {"seed": self.seed} if "seed" in constructor_names(self.kind) else {}
        return model_class(self.kind)(**{**seed, **self.options})


def fit_bags(
    store: BagStore,
    classifier: Classifier,
    out: Path,
    *,
    n_fold: int = 5,
    truth: str | None = None,
    progress: Progress,
) -> dict[str, Any]:
    """Fit a classifier to a store, cross-validate it, and write its predictions and scores.

    Parameters
    ----------
    store : BagStore
    classifier : Classifier
    out : Path
        Gets ``model/``, ``bags.csv`` (in sample and held out), ``evaluation.json`` and, of a model
        that predicts instances, ``instances.parquet``: ``row`` of the table (from 0), ``bag``,
        ``probability``, ``probability_sd``, in the order of the table.
    n_fold : int
        Folds of bags, each with its share of each label; 0 for none.
    truth : str, optional
        Column of the imported table with the labels of instances, to score them by; the model
        never sees it.
    progress : Progress

    Returns
    -------
    dict
        The headline numbers.

    Raises
    ------
    InputError
        If the options, the labels or the truth cannot be used.
    """
    model = classifier.new()
    true = None if truth is None else _truth(store, truth)
    evaluation = LabelTask(store, INTERVAL)
    report: dict[str, Any] = {
        KEY: None,  # the verdict comes first
        "name": store.attrs.get("name", Path(store.path.name).stem),
        "fingerprint": store.fingerprint,
        "model": {"kind": classifier.kind, "parameters": model.get_params()},
        "n_areas": store.n_bag,
        "held_out": {},
    }
    _check_labels(store)
    if n_fold == 1:
        found, remedy = "1 fold leaves nothing to learn from", "give 0 for none, or 2 and more"
        raise InputError(Problem("--folds", found, remedy))
    if n_fold > store.n_bag:
        found = f"{n_fold} folds are more than the {store.n_bag} bags"
        raise InputError(Problem("--folds", found, f"give {store.n_bag} at most"))
    out.mkdir(parents=True, exist_ok=True)
    fit_model(model, store, progress=progress)
    with progress.task("in sample", store.n_bag) as task:
        predictions = evaluation.in_sample(model, task.advance)
    report |= named_choices(model)
    report["in_sample"] = evaluation.score(predictions)
    table = tabulate_labels(predictions, list(store.ids))
    if n_fold:
        held, report["held_out"]["bag"] = _hold_out(
            evaluation, store, model, n_fold, classifier.seed, progress
        )
        if held is not None:
            ids = [store.ids[bag] for bag in held.bag]
            table["held_out_probability"] = pd.Series(held.probability, ids)
    report[KEY] = verdict(report["held_out"], ("bag",), Labels.against, "all bags", "give --folds")
    with temporary_directory(".bags-", out) as staging:
        model.save(staging / "model")
        write_csv(table, staging / "bags.csv", index=True)
        if "pixels" in model.predicts:
            row, probability = _write_instances(model, store, staging / "instances.parquet")
            if true is not None:
                report["instances"] = label_scores(true[row], probability)
        report["about"] = evaluation.about
        text = json.dumps(jsonable(report), indent=2, allow_nan=False) + "\n"
        (staging / "evaluation.json").write_text(text, encoding="utf-8")
        _publish(staging, out)
    progress.log(render_report(jsonable(report), what="bags"))
    headline = evaluation.headline(report)
    if "instances" in report:
        headline["instances_auc"] = report["instances"]["auc"]
    return headline


def _publish(staging: Path, out: Path) -> None:
    """Move all files to ``out`` and delete those of another model."""
    (staging / ".old").mkdir()
    for name in ("model", "bags.csv", "evaluation.json", "instances.parquet"):
        if (out / name).exists():
            (out / name).replace(staging / ".old" / name)
        if (staging / name).exists():
            (staging / name).replace(out / name)


def _check_labels(store: BagStore) -> None:
    other = np.flatnonzero((store.y != 0) & (store.y != 1))
    place = str(store.path)
    if other.size:
        found = f"the label of bag {store.ids[other[0]]} is {store.y[other[0]]:g}"
        raise InputError(Problem(place, found, "import again, with --positive LABEL"))
    if np.unique(store.y).size < 2:
        found = f"all {store.n_bag} bags are labelled {store.y[0]:g}"
        raise InputError(Problem(place, found, "give bags of both labels, and import again"))


def _truth(store: BagStore, column: str) -> np.ndarray:
    """Read the labels of instances from the table that the store was imported from."""
    source = store.attrs.get("source")
    if source is None or not Path(source).is_file():
        found = f"{column!r} asked for, and the table ({source}) is not there"
        raise InputError(Problem("--truth", found, "put it back, or leave --truth out"))
    values = read_column(Path(source), column, "--truth")
    if values.shape[0] != store.n_pix or not np.isin(values, (0.0, 1.0)).all():
        found = f"column {column!r} of {source} is not 1 or 0 for each of {store.n_pix} instances"
        raise InputError(Problem("--truth", found, "give another column, or import the table anew"))
    return values


def _hold_out(
    evaluation: LabelTask, store: BagStore, model: Any, n_fold: int, seed: int, progress: Progress
) -> tuple[LabelPredictions | None, dict[str, Any]]:
    fold = stratified_folds(store.y, n_fold, seed)
    n_fold = int(fold.max()) + 1

    def fit(train: np.ndarray, checkpoint: Path, told: Progress) -> Any:
        fresh = type(model)(**model.get_params())
        fit_model(fresh, store, bags=train, checkpoint=checkpoint, progress=told)
        return fresh

    if any(np.unique(store.y[fold != k]).size < 2 for k in range(n_fold)):
        why = "too few bags of one label to hold any out"
        progress.log(f"hold out: skipped, {why}")
        return None, {"n_folds": n_fold, "skipped": why}
    with (
        progress.task("hold out", n_fold) as task,
        temporary_directory("disagg-folds-") as scratch,
    ):
        predictions, _ = cross_validate(fold, evaluation.predictor, fit, scratch, "", task.advance)
    found = compare_held_out(evaluation, predictions, evaluation.constant(fold))
    return predictions, {"n_folds": n_fold, **found}


def _write_instances(model: Any, store: BagStore, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write the predicted probability of each instance, in the table's order."""

    def predict(number: int) -> tuple[np.ndarray, ...]:
        block = store.read_block(number)
        predictions = model.predict_pixels(block.x, block.coords)
        bag = np.repeat(block.bag, np.diff(block.offsets))
        return store.read_pixel(number), bag, predictions.mean, predictions.sd

    parts = list(map_in_order(predict, range(store.n_block), None))
    row, bag, mean, sd = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(row)
    ids = pa.array(list(store.ids))
    table = pa.table(
        {
            "row": row[order],
            "bag": ids.take(pa.array(bag[order])),
            "probability": mean[order],
            "probability_sd": sd[order],
        }
    )
    pa.parquet.write_table(table, path)
    return row, mean

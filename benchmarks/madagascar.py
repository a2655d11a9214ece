"""Cross-validation by district on Madagascar, beside the results of R `disaggregation`.

    python -m benchmarks.madagascar [CONFIG] [--folds 10] [--results DIR]

CONFIG defaults to ``examples/madagascar/disagg.yaml`` (``DISAGG_SHARED_DATA`` names the folder of
the data). The model is fitted once for each fold of ``folds.csv`` and predicts the counts of the
districts that it did not see. Writes ``benchmarks/results/madagascar.json`` and prints a table.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.report import RESULTS, write_results
from geo.core.errors import InputError
from pipeline import BagStore
from pipeline.cluster.local import n_thread
from pipeline.config.context import StageContext
from pipeline.config.reader import load_config
from pipeline.config.schema import Config, work_dir
from pipeline.evaluation.folds import random_folds, read_folds
from pipeline.evaluation.scores import crps
from pipeline.ingest.stage import ingest
from pipeline.products.areas import AreaDraws, draw_areas
from pipeline.training.fit import fit
from pipeline.training.stage import new_model

EXAMPLE = Path(__file__).parents[1] / "examples/madagascar/disagg.yaml"
# R disaggregation 0.4.1 on the folds of folds.csv: Poisson, log link, Matern field and district
# effect; covariates elevation, EVI and LST; about 45 s a fit.
PEER = {
    "mean": {
        "rate_mae": 0.0415,
        "rate_rmse": 0.0603,
        "rate_correlation": 0.683,
        "count_mae": 6855,
        "spearman": 0.77,
        "log_count_rmse": 0.833,
    },
    "median": {
        "rate_mae": 0.0390,
        "rate_rmse": 0.0593,
        "rate_correlation": 0.667,
        "count_mae": 5911,
        "spearman": 0.77,
        "log_count_rmse": 0.802,
    },
    "cover_90": 0.76,
    "seconds_a_fit": 45.0,
}


def measure(config: Config, fold: np.ndarray | None = None, n_draws: int = 2000) -> dict[str, Any]:
    """Fit once a fold and score the predictions for held-out areas.

    Parameters
    ----------
    config : Config
        Its stores are written anew in its output directory.
    fold : (n_bag,) int array, optional
        Fold of each bag of the store; by default the folds of the configuration.
    n_draws : int
        Functions drawn for a fold.
    """
    ingest(StageContext(config))
    store = BagStore.open(work_dir(config) / "bags.zarr")
    fold = configured_folds(config, store) if fold is None else fold
    parts, fits = [], []
    for number in range(int(fold.max()) + 1):
        model = new_model(config)
        started = time.perf_counter()
        fit(model, store, bags=fold != number, n_thread=n_thread(config))
        seconds = time.perf_counter() - started
        fits.append(
            {
                "seconds": round(seconds, 2),
                "epochs": len(model.history_),
                "converged": model.converged_,
                "bound": model.bound_,
                "hyperparameters": model.named_hyperparameters(),  # type: ignore[attr-defined]
            }
        )
        parts.append(draw_areas(model, store, n_draws, number, fold == number))
    return {
        "model": config.model.model_dump(mode="json"),
        "covariates": list(store.covariates),
        "n_fold": int(fold.max()) + 1,
        **score(AreaDraws.concatenate(parts)),
        "bootstrap_90": bootstrap(parts),
        "seconds_a_fit": float(np.mean([fit["seconds"] for fit in fits])),
        "fits": fits,
    }


def configured_folds(config: Config, store: BagStore) -> np.ndarray:
    """Return the folds that the configuration names."""
    folds = config.evaluate.folds
    if isinstance(folds, int):
        return random_folds(store.n_bag, folds, config.evaluate.seed)
    return read_folds(folds.path, folds.id, folds.fold, list(store.ids))


def score(draws: AreaDraws) -> dict[str, Any]:
    """Score held-out areas by the mean and by the median of the predictive distribution.

    The median is of the count, with its noise: what absolute error asks for.
    """
    lower, upper = np.quantile(draws.counts, [0.05, 0.95], axis=0)
    low, high = np.quantile(draws.expected, [0.05, 0.95], axis=0)
    return {
        "mean": point_scores(draws.y, draws.mean, draws.people),
        "median": point_scores(draws.y, np.median(draws.counts, axis=0), draws.people),
        "cover_90": float(((draws.y >= lower) & (draws.y <= upper)).mean()),
        "nll": float(-draws.log_density.mean()),
        "crps": float(crps(draws.counts, draws.y).mean()),
        # Median over districts, as shares of the mean: of counts, and of rates without their noise.
        "width_90": float(np.median((upper - lower) / draws.mean)),
        "width_90_rates": float(np.median((high - low) / draws.mean)),
    }


def bootstrap(parts: list[AreaDraws], n: int = 2000) -> dict[str, dict[str, list[float]]]:
    """Return the central 90 % of each point score where folds are drawn with replacement."""
    rng = np.random.default_rng(0)
    said = [{"mean": part.mean, "median": np.median(part.counts, axis=0)} for part in parts]
    found: dict[str, dict[str, list[float]]] = {"mean": {}, "median": {}}
    for kind in found:
        drawn: dict[str, list[float]] = {}
        for _ in range(n):
            chosen = rng.integers(len(parts), size=len(parts))
            y, people = (
                np.concatenate([getattr(parts[k], name) for k in chosen])
                for name in ("y", "people")
            )
            scores = point_scores(y, np.concatenate([said[k][kind] for k in chosen]), people)
            for name, value in scores.items():
                drawn.setdefault(name, []).append(value)
        found[kind] = {
            name: np.quantile(each, [0.05, 0.95]).tolist() for name, each in drawn.items()
        }
    return found


def point_scores(y: np.ndarray, said: np.ndarray, people: np.ndarray) -> dict[str, float]:
    """Compare predicted with observed counts."""
    rate, said_rate = y / people, said / people
    off = said_rate - rate
    return {
        "rate_mae": float(np.abs(off).mean()),
        "rate_rmse": float(np.sqrt((off**2).mean())),
        "rate_correlation": float(np.corrcoef(said_rate, rate)[0, 1]),
        "count_mae": float(np.abs(said - y).mean()),
        "spearman": float(spearmanr(said, y)[0]),
        "log_count_rmse": float(np.sqrt(((np.log1p(said) - np.log1p(y)) ** 2).mean())),
    }


def table(result: dict[str, Any]) -> str:
    """Format our figures beside those of R."""
    lines = [f"{'held-out districts':24} {'ours':>9} {'R':>9}  90 % of draws of the folds"]
    for kind in ("mean", "median"):
        for name, theirs in PEER[kind].items():  # type: ignore[attr-defined]
            ours = result[kind][name]
            digits = 0 if name == "count_mae" else 4
            low, high = result["bootstrap_90"][kind][name]
            line = f"{name + ', ' + kind:24} {ours:9.{digits}f} {theirs:9.{digits}f}"
            lines.append(f"{line}  {low:.{digits}f} to {high:.{digits}f}")
    lines.append(f"{'90 % intervals cover':24} {result['cover_90']:9.2f} {PEER['cover_90']:9.2f}")
    seconds = result["seconds_a_fit"]
    lines.append(f"{'seconds a fit':24} {seconds:9.1f} {PEER['seconds_a_fit']:9.1f}")
    lines.append(f"{'nats a district':24} {result['nll']:9.3f}")
    lines.append(f"{'CRPS of counts':24} {result['crps']:9.0f}")
    for name, of in (("width_90", "counts"), ("width_90_rates", "rates")):
        lines.append(f"{f'width / mean, {of}':24} {result[name]:9.2f}")
    return "\n".join(lines)


def main() -> None:
    """Measure, write the JSON and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="?", type=Path, default=EXAMPLE)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    os.environ.setdefault("DISAGG_SHARED_DATA", str(Path(__file__).parents[2] / "shared/data"))
    try:
        config = load_config(options.config)
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
    with tempfile.TemporaryDirectory() as directory:
        output = config.output.model_copy(update={"dir": Path(directory)})
        result = measure(config.model_copy(update={"output": output}))
    write_results(options.results / "madagascar.json", {"peer": PEER, **result})
    print(table(result))


if __name__ == "__main__":
    main()

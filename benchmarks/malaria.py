"""A study after the VBAgg paper's Table 1, on a simulated country, where the truth is known.

    python -m benchmarks.malaria [CONFIG] [--splits 10] [--nodes 32] [--results DIR]

The malaria data of the paper are private. ``disagg demo --size country`` has as many areas, pixels
and covariates; the benchmark simulates it unless CONFIG is given. Areas are split four ways in the
paper's shares (576, 95, 95, 191 of 957), ten times. ``--nodes`` pixels represent each area, drawn
in proportion to people (one from each of as many strata of equal population), so that ten splits of
every model take minutes. Scores: negative log-likelihood and squared error of log counts of the
test areas, as in the paper; for their pixels, the error of log rates and the share of true rates
inside 90 % intervals. Writes ``benchmarks/results/malaria.json``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, write_results
from geo.sources.registry import source_of
from models import BagPixel, Bags, Constant, Network, Nystrom, VBAgg
from models.gp.bag_variance import choose_nodes
from models.training.estimator import Estimator
from models.tuning import four_way_split
from pipeline import BagStore
from pipeline.config.context import StageContext
from pipeline.config.reader import load_config
from pipeline.config.schema import work_dir
from pipeline.demo.country import simulate_country
from pipeline.ingest.stage import ingest

SHARES = (576, 95, 95, 191)


def models(n_inducing: int, epochs: int, seed: int) -> dict[str, Estimator]:
    """Return the models to compare, unfitted."""
    gp: dict[str, Any] = {"kernel": "additive", "n_inducing": n_inducing}
    common: dict[str, Any] = {"max_epochs": epochs, "seed": seed, "area_effect": False}
    bayes = {**gp, **common, "priors": "weak"}
    return {
        "Constant": Constant(link="exp", **common),
        "Bag-pixel": BagPixel(link="exp", **bayes),
        "Nystrom-Exp": Nystrom(link="exp", **gp, **common),
        "NN-Exp": Network(link="exp", learning_rate=0.01, **common),
        "VBAgg-Exp (Lemma 1)": VBAgg(link="exp", estimator="bound", **bayes),
        "VBAgg-Sq": VBAgg(link="square", **bayes),
        "VBAgg-Exp (log-normal)": VBAgg(link="exp", **bayes),
        "VBAgg-Exp, area effect": VBAgg(link="exp", **{**bayes, "area_effect": True}),
        "VBAgg-Sq, negative binomial": VBAgg(
            likelihood="negative_binomial", link="square", **bayes
        ),
    }


def thinned(config_path: Path, nodes: int) -> tuple[Bags, np.ndarray]:
    """Return the areas of the country, each as a sample of its pixels, and their true rates."""
    config = load_config(config_path)
    with tempfile.TemporaryDirectory() as directory:
        output = config.output.model_copy(update={"dir": Path(directory)})
        config = config.model_copy(update={"output": output})
        ingest(StageContext(config))
        store = BagStore.open(work_dir(config) / "bags.zarr")
        truth_map = source_of(str(config.truth.path)).read()  # type: ignore[union-attr]
        rows: dict[str, list[Any]] = {"x": [], "weight": [], "coords": [], "truth": []}
        sizes = []
        for number in range(store.n_block):
            block, pixel = store.read_block(number), store.read_pixel(number)
            for bag in range(block.n_bag):
                part = slice(int(block.offsets[bag]), int(block.offsets[bag + 1]))
                weight = block.weight[part].astype(float)
                at, mass, _ = choose_nodes(weight, nodes, int(block.bag[bag]))
                rows["x"].append(block.x[part][at])
                rows["coords"].append(block.coords[part][at])  # type: ignore[index]
                rows["weight"].append(mass * weight.sum() / mass.sum())
                rows["truth"].append(truth_map.ravel()[pixel[part][at]])
                sizes.append(at.shape[0])
        joined = {name: np.concatenate(parts) for name, parts in rows.items()}
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        bags = Bags(joined["x"], offsets, store.y, joined["weight"], joined["coords"])
    return bags, joined["truth"]


def score(model: Any, test: Any, truth: np.ndarray) -> dict[str, float]:
    """Score counts of test areas, and the true rates of their pixels."""
    said = model.predict_bags(test, n_draws=300)
    predicted = model.predict_pixels(test.x, test.coords)
    known = np.isfinite(truth) & (truth > 0)
    off = np.log(np.maximum(predicted.mean, 1e-300))[known] - np.log(truth[known])
    scores = {
        "bag_nll": float(-said.log_density(test.y).mean()),
        "log_mse": float(((np.log1p(said.mean) - np.log1p(test.y)) ** 2).mean()),
        "pixel_log_rmse": float(np.sqrt((off**2).mean())),
    }
    if (predicted.s > 0).all():
        below = 1.0 - np.asarray(predicted.exceed(np.where(known, truth, 1.0)))[known]
        scores["pixel_cover_90"] = float((np.abs(below - 0.5) <= 0.45).mean())
    return scores


def measure(
    config_path: Path, n_split: int, nodes: int, n_inducing: int = 64, epochs: int = 60
) -> dict[str, Any]:
    """Fit every model on every split."""
    bags, truth = thinned(config_path, nodes)
    parts = np.array(SHARES) * bags.n_bag // sum(SHARES)
    parts[0] += bags.n_bag - parts.sum()
    runs: dict[str, list[dict[str, float]]] = {}
    for number in range(n_split):
        split = four_way_split(bags.n_bag, parts.tolist(), number)
        train, test = bags.select(split.train), bags.select(split.test)
        at_test = truth[np.repeat(split.test, np.diff(bags.offsets))]
        for name, model in models(n_inducing, epochs, number).items():
            started = time.perf_counter()
            model.fit(train)
            seconds = round(time.perf_counter() - started, 2)
            runs.setdefault(name, []).append({**score(model, test, at_test), "seconds": seconds})
    return {
        "n_bag": bags.n_bag,
        "n_pix": bags.n_pix,
        "n_split": n_split,
        "mean": _over(runs, np.mean),
        "sd": _over(runs, np.std),
        "runs": runs,
    }


def _over(runs: dict[str, list[dict[str, float]]], rule: Any) -> dict[str, dict[str, float]]:
    return {
        name: {key: float(rule([run[key] for run in own])) for key in own[0]}
        for name, own in runs.items()
    }


def main() -> None:
    """Measure, write the JSON and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="?", type=Path)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        config = options.config or simulate_country(Path(directory), size="country")
        result = measure(config, options.splits, options.nodes)
    write_results(options.results / "malaria.json", result)
    print(f"{'':28} {'bag NLL':>14} {'log-MSE':>15} {'pixel RMSE':>11} {'cover':>6} {'s':>6}")
    for name, row in result["mean"].items():
        sd = result["sd"][name]
        figures = f"{row['bag_nll']:7.2f} ({sd['bag_nll']:.2f}) {row['log_mse']:7.4f} "
        figures += f"({sd['log_mse']:.4f}) {row['pixel_log_rmse']:9.3f} "
        cover = row.get("pixel_cover_90", float("nan"))
        print(f"{name:28} {figures} {cover:6.2f} {row['seconds']:6.1f}")


if __name__ == "__main__":
    main()

"""What settings that save time cost in accuracy, on a simulated country.

    python -m benchmarks.affordable DIRECTORY [--only NAME ...]

``DIRECTORY`` is that of a demo which has been run (``disagg demo DIR``, ``disagg run
DIR/disagg.yaml``). Each variant changes one thing of its configuration: pixels that represent an
area, precision, nodes of pairs, inducing points. The map of each is compared with the truth, and
five random folds are left out: by fits from the start, by fits that begin at the kernel of the fit
to all areas, and by importance weights. Writes ``benchmarks/results/affordable.json``.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, parsed, read_results, write_results
from geo.sources.registry import source_of
from pipeline.config.model_factory import new_model
from pipeline.config.reader import load_config
from pipeline.config.size_defaults import sized
from pipeline.evaluation.folds import random_folds
from pipeline.evaluation.leave_out import leave_areas_out, leave_each_out
from pipeline.evaluation.tasks import CountTask
from pipeline.evaluation.truth import compare_with_truth
from pipeline.products.areas import AreaDraws, draw_areas
from pipeline.store.bag_store import BagStore
from pipeline.store.thinning import thinned_store
from pipeline.training.fit import fit

# Changes of the configuration, and the ways in which areas are left out.
VARIANTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "all pixels": ({}, ("cold", "warm", "importance")),
    "all pixels, seed 2": ({"fit": {"seed": 2}}, ("cold",)),
    "float32": ({"model": {"precision": "float32"}}, ()),
    "64 nodes": ({"model": {"pair_pixels": 64}}, ()),
    "16 nodes": ({"model": {"pair_pixels": 16}}, ()),
    "100 pixels": ({"fit": {"area_pixels": 100}}, ("cold",)),
    "50 pixels": ({"fit": {"area_pixels": 50}}, ("cold", "warm", "importance")),
    "25 pixels": ({"fit": {"area_pixels": 25}}, ("cold",)),
    "12 pixels": ({"fit": {"area_pixels": 12}}, ("cold",)),
    "120 inducing": ({"model": {"inducing": 120}}, ("cold",)),
    "30 inducing": ({"model": {"inducing": 30}}, ("cold",)),
}
WARM_EPOCHS = 60


def measure(path: Path, changes: dict[str, Any], ways: tuple[str, ...]) -> dict[str, Any]:
    """Fit a variant, compare it with the truth, leave areas out."""
    config = load_config(path, None, changes)
    work = config.output.dir / "work"
    whole = BagStore.open(work / "bags.zarr")
    config = sized(config, whole.sizes)
    cap, seed = config.fit.area_pixels, config.fit.seed
    store = thinned_store(whole, work / f"thinned-{cap}-{seed}.zarr", cap, seed)
    draws, truth = config.output.draws, config.truth
    assert truth is not None

    def fitted(bags: np.ndarray | None, start: Any = None, epochs: int | None = None) -> Any:
        model: Any = new_model(config)
        if epochs is not None:
            model.set_params(max_epochs=epochs)
        spent.append(len(fit(model, store, bags=bags, start=start).history))
        return model

    spent: list[int] = []
    started = time.process_time()
    model = fitted(None)
    against = compare_with_truth(model, whole, source_of(truth.path), [0.9])
    pixels = against["pixels"]
    result: dict[str, Any] = {
        "pixels": store.n_pix,
        "epochs": spent[0],
        "seconds": round(time.process_time() - started, 1),
        "bound": model.bound_,
        "truth_correlation": pixels["log_rate"]["correlation"],
        "truth_rmse": pixels["log_rate"]["rmse"],
        "truth_coverage": pixels["coverage"]["0.9"],
        "left_out": {},
    }
    task = CountTask(config, store)
    fold = random_folds(store.n_bag, 5, config.evaluate.seed)
    for way in ways:
        spent.clear()
        started = time.process_time()

        def refit(folds: np.ndarray, way: str = way) -> tuple[AreaDraws, np.ndarray]:
            parts = []
            for k in range(int(folds.max()) + 1):
                warm = way != "cold"
                other = fitted(folds != k, model if warm else None, WARM_EPOCHS if warm else None)
                parts.append(draw_areas(other, store, draws, 7 + 1000 * (k + 1), folds == k))
            return AreaDraws.concatenate(parts), folds

        about: dict[str, Any] = {}
        if way == "importance":
            left = leave_each_out(model, store, draws, 7)
            found, _, about = leave_areas_out(left, fold, refit)
        else:
            found, _ = refit(fold)
        scores = task.score(found)
        result["left_out"][way] = {
            "nll": scores["nll"],
            "rates_correlation": scores["rates"]["correlation"],
            "coverage": scores["intervals"]["0.9"]["coverage"],
            "epochs": list(spent),
            "seconds": round(time.process_time() - started, 1),
            **about,
            "log_density": [round(float(v), 4) for v in found.log_density[np.argsort(found.bag)]],
        }
    return result


def main() -> None:
    """Measure the variants; write the JSON after each."""
    options = parsed(
        __doc__,
        "directory",
        only=list(VARIANTS),
        inducing=(60, "of variants that name none; a tenth of the time"),
        results=RESULTS,
    )
    target = options.results / "affordable.json"
    kept = read_results(target)
    for name in options.only:
        changes, ways = VARIANTS[name]
        model = {"inducing": options.inducing} | changes.get("model", {})
        kept[name] = measure(options.directory / "disagg.yaml", changes | {"model": model}, ways)
        write_results(target, kept)
        shown = {k: v for k, v in kept[name].items() if k != "left_out"}
        print(name, shown, flush=True)
        for way, scores in kept[name]["left_out"].items():
            print("   ", way, {k: v for k, v in scores.items() if k != "log_density"}, flush=True)


if __name__ == "__main__":
    main()

"""Areas left out by regression between the others, beside fits of the model without them.

    python -m benchmarks.folds [--countries 6] [--worlds NAME ...] [--records DIR]

Countries are those of :mod:`benchmarks.trust`. Each is fitted once, and again without each of five
folds: at random, and strips from west to east. Both ways predict what was left out:
:mod:`models.aggregate.area_refit`, and a fit as evaluation makes it where there is no regression
(:func:`pipeline.training.warm.lighten`). ``gain``: log density of a held-out count by regression
less that by a fit, nats, with its standard error over countries. ``counts``, ``expected``: share of
the counts, and of the areas' true expected counts, inside 90 % intervals of each way. ``width``:
mean ratio of the deviations of log expected counts. ``seconds``: processor time of a fold, with a
tenth of what is made once for ten. It ends with an error where regression has less density by more
than ``TOLERANCE`` and by more than three standard errors. Writes ``benchmarks/results/folds.json``
and the table of ``docs/design/folds.md``.
"""

from __future__ import annotations

import functools
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.designs import default_model
from benchmarks.grids import Grid
from benchmarks.records import hash_settings, run_missing
from benchmarks.report import RESULTS, parsed, write_results
from benchmarks.trust import WORLDS, draw
from models.backend.blas import one_blas_thread
from models.core.block import BagBlock
from models.training.device import block_executor
from models.training.executor import BagsSource
from models.training.loop import start_training, train
from pipeline.training.warm import lighten, warm_training

RECORDS = Path(__file__).parents[1] / "build/folds"
CHOSEN = ("base", "areas-10", "areas-100", "pixels-90", "cases-3", "cases-1000", "noise-0", "bent")
N_FOLD, N_DRAWS, TOLERANCE = 5, 1000, 0.05
WAYS = ("regression", "fit")
PAGE = Path(__file__).parents[1] / "docs/design/folds.md"
BEGIN, END = "<!-- folds: table -->", "<!-- folds: end table -->"


def folds_of(grid: Grid, how: str, rng: np.random.Generator) -> np.ndarray:
    """Return the fold of each area: at random, or strips from west to east."""
    bags = grid.bags()
    n = bags.n_bag
    if how == "random":
        return np.asarray(rng.permutation(n) % N_FOLD)
    coords = np.asarray(bags.coords)
    west = [coords[a:b, 0].mean() for a, b in zip(bags.offsets[:-1], bags.offsets[1:], strict=True)]
    return np.asarray(np.argsort(np.argsort(west)) * N_FOLD // n)


def inside(draws: np.ndarray, value: np.ndarray) -> float:
    """Return the share of values inside the central 90 % of their draws."""
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    return float(((value >= low) & (value <= high)).mean())


def measure(world: str, number: int) -> dict[str, Any]:
    """Leave the folds of a country out, both ways."""
    grid = draw(world, number)
    bags = grid.bags()
    block = bags.at(np.arange(bags.n_bag))
    rows: dict[str, list[dict[str, Any]]] = {}
    with one_blas_thread():
        model = default_model(grid, {})
        model.fit(bags, n_thread=1)
        start = time.process_time()
        areas = model.area_refits([block], block.n_bag)
        if areas is None:
            return {"skipped": "its draws are not of the areas' evidence"}
        made = time.process_time() - start
        for how in ("random", "strips"):
            fold = folds_of(grid, how, np.random.default_rng([number, 3]))
            rows[how] = [
                _fold(model, areas, grid, block, fold == k, 10 * number + k) for k in range(N_FOLD)
            ]
    for row in (row for each in rows.values() for row in each):
        row["regression"]["seconds"] += made / (2 * N_FOLD)  # once for all folds of an evaluation
    return {"folds": rows}


def fitted(again: Any, bags: BagBlock, start: Any) -> Any:
    """Fit a model to the other areas, from the fit to all and with less effort, as folds are."""
    lighten(again)
    source = BagsSource(bags, again.seed, block_bags=bags.n_bag)
    training = warm_training(start_training(again, source, **again.loop_params("start")), start)
    with block_executor(again, source, 1, None) as executor:
        train(again, source, executor, training, **again.loop_params("train"))
    return again.adopt(training)


def _fold(
    model: Any, areas: Any, grid: Grid, block: BagBlock, unseen: np.ndarray, seed: int
) -> dict[str, Any]:
    part, truth, row = block.select(unseen), np.asarray(grid.expected)[unseen], {}

    makers = {
        "regression": lambda: areas.without(unseen, seed),
        "fit": lambda: fitted(default_model(grid, {}), block.select(~unseen), model),
    }
    for way, make in makers.items():
        rng, start = np.random.default_rng([seed, 5]), time.process_time()
        made = make()
        found = made.predict_bags(part, draws=made.sample_functions(N_DRAWS, rng))
        row[way] = {
            "seconds": time.process_time() - start,
            "log_density": float(found.log_density(part.y).mean()),
            "counts": inside(found.observed(rng).draws, part.y),
            "expected": inside(found.draws, truth),
            "sd": np.log(found.draws).std(axis=0).tolist(),
        }
    sd = [np.array(row[way].pop("sd")) for way in WAYS]
    row["width"] = float((sd[0] / sd[1]).mean())
    return row


def summarise(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means of a world, for each kind of folds."""
    out: dict[str, Any] = {"countries": len(records)}
    for how in ("random", "strips"):
        rows = [row for record in records if "folds" in record for row in record["folds"][how]]
        gain = np.array([r["regression"]["log_density"] - r["fit"]["log_density"] for r in rows])
        gain = gain.reshape(-1, N_FOLD).mean(axis=1)  # folds of one country are not independent
        error = float(gain.std(ddof=1) / np.sqrt(gain.size))

        def mean(way: str, key: str, rows: list[Any] = rows) -> float:
            return round(float(np.mean([row[way][key] for row in rows])), 3)

        out[how] = {
            "gain": round(float(gain.mean()), 3),
            "se": round(error, 3),
            "width": round(float(np.mean([row["width"] for row in rows])), 3),
            **{
                key: {way: mean(way, key) for way in WAYS}
                for key in ("counts", "expected", "seconds")
            },
        }
        if gain.mean() < -TOLERANCE and gain.mean() < -3.0 * error:
            raise SystemExit(f"{how}: regression loses {-gain.mean():.3f} nats an area to fits")
    return out


def write_page(found: dict[str, Any], page: Path = PAGE) -> None:
    """Write the table of the page between its marks."""
    heads = ("world", "folds", "gain", "width", "counts held", "expected counts held", "seconds")
    rows = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for world, each in found.items():
        for how in ("random", "strips"):
            own = each[how]
            figures = (
                ", ".join(f"{own[key][way]:.2f}" for way in WAYS)
                for key in ("counts", "expected", "seconds")
            )
            gain = f"{own['gain']:+.3f} ± {own['se']:.3f}"
            rows.append(
                " | ".join((f"| {world}", how, gain, f"{own['width']:.2f}", *figures)) + " |"
            )
    text = page.read_text(encoding="utf-8")
    first, last = text.index(BEGIN) + len(BEGIN), text.index(END)
    page.write_text(f"{text[:first]}\n" + "\n".join(rows) + f"\n{text[last:]}", encoding="utf-8")


def main() -> None:
    """Measure what has no record yet; write file and table."""
    args = parsed(
        __doc__,
        countries=6,
        worlds={"nargs": "+", "choices": list(WORLDS), "default": list(CHOSEN)},
        records={"type": Path, "default": RECORDS},
    )
    found = {}
    for world in args.worlds:
        settings = hash_settings(world, asdict(WORLDS[world].design), N_DRAWS, N_FOLD)
        one = functools.partial(measure, world)
        path = args.records / f"{world}.jsonl"
        found[world] = summarise(run_missing(one, range(args.countries), path, settings, 1))
        print(world, found[world], flush=True)
    whole = {"n_folds": N_FOLD, "draws": N_DRAWS, "worlds": found}
    write_results(RESULTS / "folds.json", whole)
    write_page(found)


if __name__ == "__main__":
    main()

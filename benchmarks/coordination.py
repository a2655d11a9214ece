"""What a step on a cluster costs besides the computation; two workers against one.

    python -m benchmarks.coordination [--country DIRECTORY] [--steps N] [--only empty|country]

Empty blocks: a model whose blocks do nothing, one block a worker and step. Parameters and sums have
the size for 576 inducing points (576 x 576 float64 and 576 x 20) and for 8. Workers run in this
process, from 1 to 64, or in processes of this machine, up to 4. Times are medians over steps;
processor time is the sum over all processes.

Country: steps of the fit of the simulated country (957 areas, 1,044,683 pixels, 18 covariates, 576
inducing points). One single-threaded worker process and two such processes make each step in turns,
so that both see the same other work on the machine. The table also has the processor time of the
busier worker, which other work changes little: with enough cores a step takes about that time. The
sums of both are compared to the last bit.

Writes ``benchmarks/results/coordination.json`` and ``docs/figures/coordination.png``. ``DIRECTORY``
is one that ``disagg demo --size country`` and ``disagg ingest`` have filled; without it the
benchmark simulates one.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

from benchmarks.country import run
from benchmarks.report import RESULTS, parsed, read_results, write_results
from models.backend.blas import one_blas_thread
from models.core.protocol import Stats
from models.training.estimator import Estimator
from models.training.loop import start_training
from models.training.schedule import plan_epoch
from pipeline.config.model_factory import new_model
from pipeline.config.reader import load_config
from pipeline.store.bag_store import BagStore, NewBags, PixelRows, StoreLayout, write_bags
from pipeline.store.block_source import StoreBlockSource
from pipeline.training.dask_executor import DaskExecutor

FIGURE = Path(__file__).parents[1] / "docs/figures/coordination.png"
SIZES = (8, 576)  # inducing points
IN_PROCESS = (1, 2, 4, 8, 16, 32, 64)
PROCESSES = (1, 2, 4)
N_BLOCK = 1024
N_DIM = 20  # covariates and space
NOTE = "the machine was shared with other work: see load"
WARM = 5  # steps before the clock starts


class Empty(Estimator):
    """A model whose blocks do nothing: they return what they received."""

    sweep = "minibatch"

    def __init__(self, *, n_inducing: int = 8) -> None:
        self.n_inducing = n_inducing

    def needs_block(self, *_: Any) -> bool:
        """Say whether a block must be read: no."""
        return False

    def block_stats(self, params: Any, *_: Any) -> tuple[Stats, Any]:
        """Return what the block received."""
        return Stats(1.0, 1, dict(params)), None


def empty_store(path: Path) -> BagStore:
    """Write a store of as many blocks as requested; nobody reads them."""

    def rows(bag: np.ndarray, *_: np.ndarray) -> PixelRows:
        n = bag.size
        return PixelRows(np.zeros((n, 1), np.float32), np.ones(n), np.zeros((n, 2)), np.arange(n))

    write_bags(
        path,
        NewBags(
            sizes=np.ones(N_BLOCK, dtype=int),
            rows=rows,
            y=np.zeros(N_BLOCK),
            ids=[str(k) for k in range(N_BLOCK)],
            covariates=["a"],
        ),
        fingerprint="empty",
        layout=StoreLayout(block_bags=1),
    )
    return BagStore.open(path)


@contextmanager
def cluster(n_worker: int, *, processes: bool) -> Iterator[Client]:
    """Open workers with one thread each."""
    where: dict[str, Any] = {"host": "127.0.0.1"} if processes else {}
    with (
        LocalCluster(
            n_workers=n_worker,
            threads_per_worker=1,
            processes=processes,
            memory_limit=0,  # each worker of a process would count the memory of all
            dashboard_address=":0",
            silence_logs=50,
            **where,
        ) as workers,
        Client(workers) as client,
    ):
        yield client


def measure_empty(store: BagStore, client: Client, n_worker: int, n_step: int) -> dict[str, Any]:
    """Return milliseconds a step for each size."""
    source, found = StoreBlockSource(store), {}
    for size in SIZES:
        params = {"q": np.ones((size, size)), "w": np.ones((size, N_DIM)), "alpha": np.ones(size)}
        times, before = [], 0.0
        with DaskExecutor(Empty(n_inducing=size), source, client) as executor:
            for step in range(n_step + WARM):
                before = before if step != WARM else processor_seconds(client)
                blocks = [(k * N_BLOCK // n_worker + step) % N_BLOCK for k in range(n_worker)]
                started = time.perf_counter()
                stats = executor.sum(params, sorted(blocks))
                times.append(time.perf_counter() - started)
                if stats.n_bag != n_worker:
                    raise SystemExit("a block is missing in a sum")
            spent = processor_seconds(client) - before
        cpu = round(1e3 * spent / n_step, 2)
        found[str(size)] = {**summary(times[WARM:]), "processor_ms": cpu}
    return found


def processor_seconds(client: Client) -> float:
    """Return the processor time so far of this process and of the worker processes."""
    workers = client.run(lambda: (os.getpid(), time.process_time()))
    return sum({**dict(workers.values()), os.getpid(): time.process_time()}.values())


def summary(seconds: list[float]) -> dict[str, float]:
    """Return median and tenth percentiles, ms."""
    low, middle, high = 1e3 * np.quantile(seconds, [0.1, 0.5, 0.9])
    names = ("p10_ms", "median_ms", "p90_ms")
    return {k: round(float(v), 2) for k, v in zip(names, (low, middle, high), strict=True)}


def empty(n_step: int, in_process: tuple[int, ...], processes: tuple[int, ...]) -> dict[str, Any]:
    """Measure steps of empty blocks for all numbers of workers."""
    found: dict[str, Any] = {"in_process": {}, "processes": {}}
    with tempfile.TemporaryDirectory() as directory:
        store = empty_store(Path(directory) / "bags.zarr")
        for kind, counts in (("in_process", in_process), ("processes", processes)):
            for n_worker in counts:
                with cluster(n_worker, processes=kind == "processes") as client:
                    ms = measure_empty(store, client, n_worker, n_step)
                found[kind][str(n_worker)] = {**ms, "load": os.getloadavg()[0]}
                print(kind, n_worker, ms, flush=True)
    sent = {str(m): 8 * (m * m + m * N_DIM + m) for m in SIZES}
    return {"steps": n_step, "bytes_each_way_a_worker": sent, **found}


def country(directory: Path, n_step: int, batch_areas: int) -> dict[str, Any]:
    """Make steps of the fit of the country on one worker and on two, in turns."""
    config = load_config(directory / "disagg.yaml")
    model = new_model(config).set_params(batch_bags=batch_areas)
    store = BagStore.open(config.output.dir / "work/bags.zarr")
    source = StoreBlockSource(store)
    state = start_training(model, source, **model.loop_params("start")).state
    n_bag = source.n_bag
    rng = np.random.default_rng(0)
    times: dict[str, list[float]] = {"one": [], "two": [], "driver": []}
    cpu: dict[str, list[float]] = {"one": [], "two": [], "driver": [], "coordination": []}
    pixels, n_block = [], []
    with (
        cluster(1, processes=True) as one,
        cluster(2, processes=True) as two,
        DaskExecutor(model, source, one) as first,
        DaskExecutor(model, source, two) as second,
        one_blas_thread(),
    ):
        steps = [s for _ in range(9) for s in plan_epoch(source.block_bags, model.batch_bags, rng)]
        for number, blocks in enumerate(steps[:n_step]):
            started, began = time.perf_counter(), time.process_time()
            params = model.block_params(state)
            spent, used = time.perf_counter() - started, time.process_time() - began
            sums = {}
            turns = [("one", first, one), ("two", second, two)]
            for name, executor, client in turns if number % 2 else turns[::-1]:
                before = client.run(time.process_time)
                started, began = time.perf_counter(), time.process_time()
                sums[name] = executor.sum(params, blocks)
                times[name].append(time.perf_counter() - started)
                coordination = time.process_time() - began
                after = client.run(time.process_time)
                cpu[name].append(max(after[w] - before[w] for w in after))
            cpu["coordination"].append(coordination)
            for name, value in sums["one"].sums.items():
                if not np.array_equal(value, sums["two"].sums[name]):
                    raise SystemExit(f"one worker and two differ in {name}")
            started, began = time.perf_counter(), time.process_time()
            state, _ = model.update(state, sums["one"], n_bag)
            times["driver"].append(spent + time.perf_counter() - started)
            cpu["driver"].append(used + time.process_time() - began)
            edges = store.offsets[store.block_offsets]
            pixels.append(int(sum(edges[b + 1] - edges[b] for b in blocks)))
            n_block.append(len(blocks))
    ms = {name: summary(values[1:]) for name, values in times.items()}
    busy = {name: summary(values[1:]) for name, values in cpu.items()}
    return {
        "model": {key: model.get_params()[key] for key in ("n_inducing", "dtype", "batch_bags")},
        "steps": n_step,
        "blocks_a_step": float(np.mean(n_block)),
        "pixels_a_step": float(np.mean(pixels)),
        "largest_share_of_two": _largest_share(store.n_block, steps[:n_step]),
        "ms": ms,
        "processor_ms_of_the_busiest": busy,
        "two_against_one": {
            "blocks_by_the_clock": _ratio(ms),
            "step_by_the_clock": _ratio(ms, "driver"),
            "blocks_by_processor_time": _ratio(busy),
            "step_by_processor_time": _ratio(busy, "driver", "coordination"),
        },
        "load": os.getloadavg()[0],
    }


def _ratio(ms: dict[str, dict[str, float]], *serial: str) -> float:
    """Return the time of one worker's steps over that of two, each with what is not shared."""
    rest = sum(ms[name]["median_ms"] for name in serial)
    return round((ms["one"]["median_ms"] + rest) / (ms["two"]["median_ms"] + rest), 2)


def _largest_share(n_block: int, steps: list[list[int]]) -> float:
    """Return the mean over steps of the busier worker's share of the blocks, for two workers."""
    shares = [np.mean([2 * b // n_block for b in step]) for step in steps]
    return round(float(np.mean([max(s, 1 - s) for s in shares])), 3)


def draw(result: dict[str, Any], path: Path) -> None:
    """Plot milliseconds a step against the number of workers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, axis = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for kind, style in (("in_process", "-o"), ("processes", "--s")):
        for size, colour in zip(SIZES, ("tab:blue", "tab:orange"), strict=True):
            counts = sorted(result[kind], key=int)
            if not counts:
                continue
            points = [result[kind][n][str(size)] for n in counts]
            x, ms = [int(n) for n in counts], [p["median_ms"] for p in points]
            name = f"{kind.replace('_', ' ')}, {size} inducing points"
            axis.plot(x, ms, style, color=colour, label=name, markersize=4)
            low, high = ([p[k] for p in points] for k in ("p10_ms", "p90_ms"))
            axis.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
    axis.axhline(15, color="grey", linewidth=0.8, linestyle=":")
    axis.set(xscale="log", yscale="log", xlabel="workers", ylabel="ms a step, empty blocks")
    axis.set_xticks(list(IN_PROCESS), [str(n) for n in IN_PROCESS])
    axis.minorticks_off()
    axis.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=120)
    plt.close(fig)


def main() -> None:
    """Measure, write JSON and figure."""
    options = parsed(
        __doc__,
        country={"type": Path, "help": "directory with the store of the country"},
        steps=100,
        country_steps=40,
        batch_areas=64,
        only={"choices": ["empty", "country"]},
    )
    path = RESULTS / "coordination.json"
    result = read_results(path) if options.only else {}
    if options.only != "country":
        result["empty"] = empty(options.steps, IN_PROCESS, PROCESSES)
        write_results(path, {"note": NOTE, **result})
        draw(result["empty"], FIGURE)
    if options.only != "empty":
        with tempfile.TemporaryDirectory() as temporary:
            directory = options.country or Path(temporary) / "country"
            if options.country is None:
                run("demo", str(directory), "--size", "country", "--quiet")
                run("ingest", str(directory / "disagg.yaml"), "--quiet")
            key = f"country_{options.batch_areas}_areas_a_step"
            result[key] = country(directory, options.country_steps, options.batch_areas)
        print(json.dumps(result[key], indent=1))
    write_results(path, {"note": NOTE, **result})


if __name__ == "__main__":
    main()

"""Fits under random settings: none ends in a traceback, diverges or takes long.

    python -m benchmarks.fits_fuzz [--fits N] [--seed N] [--areas N] [--workers N] [--only TRIAL]

Each trial draws a small country and the section ``model`` of a configuration: kernel, likelihood,
link, estimator, priors, inducing points, 2 to 2,000 areas, counts of 0 to 1e7 an area, noise
between areas of 0 to 1. The configuration's own validation says what is fitted. A fit then predicts
pixels, areas and responses. A trial has ``LIMIT_S`` seconds of processor time.
``benchmarks/results/fits_fuzz.json`` has the outcome of each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

from benchmarks.grids import centres, voronoi
from benchmarks.report import RESULTS, machine
from models import Bags
from models.aggregate.objective import available
from models.backend.blas import one_blas_thread
from models.core.errors import ModelError, NumericalError
from models.likelihoods.registry import LIKELIHOODS, find_likelihood
from pipeline.config.model_factory import new_model
from pipeline.config.schema import Config
from pipeline.config.size_defaults import sized
from pipeline.core.sources import code_hashes

LIMIT_S = 60.0  # processor time of a trial
DEAF_S = 900.0  # wall time after which native code that hears no signal is stopped
MEMORY = 8 << 30  # bytes of address space
N_DRAWS = 200
MOST_AREAS = 2000
KERNELS = (
    *("auto", "auto", "auto", "smooth_additive", "flexible", "additive", "ard"),
    *("ridge + matern32(space)", "linear + matern52(space)", "matern12(space)", "rbf(x)"),
    *("linear", "constant + ridge", "matern32(space) + constant", "rbf(x) * matern32(space)"),
    *("ard + linear(space)", "smooth + rbf(space)", "linear * matern32(space) + ridge"),
)
ESTIMATORS = ("bound", "second_order", "log_normal", "monte_carlo")
#: How the trials end that are as they should be.
GOOD = {"ok", "not converged", "refused"}


def draw_setting(
    rng: np.random.Generator, most: int = MOST_AREAS
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw the section ``model``, and what the country is like: ``most`` areas at most."""
    likelihood = str(rng.choice(list(LIKELIHOODS), p=_likely(list(LIKELIHOODS))))
    law = LIKELIHOODS[likelihood]
    kind = str(rng.choice(["vbagg", "nystrom", "network", "bag_pixel", "constant"],
                          p=[0.84, 0.04, 0.04, 0.04, 0.04]))  # fmt: skip
    model: dict[str, Any] = {"kind": kind, "likelihood": likelihood}
    model["link"] = str(rng.choice(["auto", *law.links]))
    if rng.random() < 0.3 and law.takes_area_effect:
        model["area_effect"] = bool(rng.random() < 0.5)
    if kind == "vbagg":
        model["kernel"] = str(rng.choice(KERNELS))
        if rng.random() < 0.4:
            link = law.links[0] if model["link"] == "auto" else model["link"]
            effect = model.get("area_effect", law.area_effect_by_default)
            whole = find_likelihood(likelihood, area_effect=effect)
            known = [each for each in ESTIMATORS if available(whole, link, each)]
            # One in twenty that may not exist: it must be refused.
            model["estimator"] = str(rng.choice(known if rng.random() < 0.95 else ESTIMATORS))
        if rng.random() < 0.35:
            model["inducing"] = int(np.exp(rng.uniform(0, np.log(600))))
        if rng.random() < 0.3:
            model["priors"] = "none"
        if rng.random() < 0.7:  # ten draws cost most of a fit's time
            model["integrate"] = [2, 4, "none"][int(rng.integers(3))]
        if rng.random() < 0.2:
            model["precision"] = "float32"
        if rng.random() < 0.1:
            model["pair_pixels"] = int(rng.integers(2, 200))
        if rng.random() < 0.1:
            model["options"] = {"posterior_steps": "adam"}
    n_area = int(np.exp(rng.uniform(np.log(2), np.log(most))))
    n_pixel = max(1.3 * n_area, np.exp(rng.uniform(np.log(200), np.log(max(1.25 * most, 400)))))
    n_side = int(np.ceil(np.sqrt(n_pixel)))
    country = {
        "n_area": n_area,
        "n_side": n_side,
        "n_covariate": int(rng.integers(1, 9)),
        "odd_covariate": str(rng.choice(["none"] * 7 + ["constant", "twice", "heavy"])),
        "cases": 0.0 if rng.random() < 0.08 else float(10.0 ** rng.uniform(-2, 7)),
        "noise": float(rng.choice([0.0, 0.2, 0.45, 0.8, 1.0])),
        "gamma": bool(rng.random() < 0.5),
        "field_sd": float(rng.uniform(0, 1.2)),
        "empty": bool(rng.random() < 0.2),
    }
    return model, country


def draw_bags(country: dict[str, Any], likelihood: str, rng: np.random.Generator) -> Bags:
    """Draw the areas, their pixels and responses."""
    n, n_area, law = country["n_side"], country["n_area"], LIKELIHOODS[likelihood]
    at = centres(n)
    x = np.stack([_smooth(n, rng) for _ in range(country["n_covariate"])], axis=1)
    f = country["field_sd"] * _smooth(n, rng) + 0.4 * x[:, -1]
    if country["odd_covariate"] == "constant":
        x[:, 0] = 3.0
    elif country["odd_covariate"] == "twice":
        x[:, -1] = 2.0 * x[:, 0] - 1.0
    elif country["odd_covariate"] == "heavy":
        x[:, 0] = np.exp(3.0 * x[:, 0])
    people = np.exp(rng.normal(0.0, 1.0, n * n) + np.log(300.0))
    if country["empty"]:
        people[rng.random(n * n) < 0.3] = 0.0
    area = voronoi(at, n_area, rng)
    order = np.argsort(area, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(area, minlength=n_area))])
    x, at, f, people = x[order], at[order], f[order], people[order]
    none = np.add.reduceat(people, offsets[:-1]) == 0  # areas of nobody are refused, rightly
    people[offsets[:-1][none]] = 1.0
    sd = country["noise"]
    factor = np.exp(sd * rng.standard_normal(n_area) - sd**2 / 2)
    if country["gamma"] and sd > 0:
        factor = rng.gamma(sd**-2, sd**2, n_area)
    trials = None
    if law.needs_trials:
        trials = np.maximum(np.rint(np.exp(rng.uniform(0, 8, n_area))), 1.0)
        level = min(country["cases"] / 1e7, 0.99)
        mean = np.add.reduceat(people * ndtr(f), offsets[:-1]) / np.add.reduceat(
            people, offsets[:-1]
        )
        p = np.clip(level**0.2 * mean * factor, 0.0, 1.0)
        y = rng.binomial(trials.astype(np.int64), p).astype(np.float64)
    elif likelihood == "normal":
        scale = max(country["cases"], 1e-3) / np.add.reduceat(people, offsets[:-1]).mean()
        y = scale * (
            np.add.reduceat(people * f, offsets[:-1]) + 200.0 * sd * rng.normal(size=n_area)
        )
    else:
        mean = np.add.reduceat(people * np.exp(f), offsets[:-1]) * factor
        mean *= country["cases"] / mean.mean()
        if not law.counts:  # values above 0
            y = np.maximum(mean, 1e-9) * np.maximum(rng.exponential(size=n_area), 1e-6)
        else:
            y = rng.poisson(mean).astype(np.float64)
    return Bags(x, offsets.astype(np.int64), y, weight=people, coords=at, trials=trials)


def validated(model: dict[str, Any], country: dict[str, Any], bags: Bags, seed: int) -> Config:
    """Return the configuration, as its own validation takes it; sized."""
    counts = {"path": "counts.csv", "id": "id", "value": "cases"}
    if bags.trials is not None:
        counts["tested"] = "tested"
    names = [f"x{k}" for k in range(country["n_covariate"])]
    config = Config.model_validate(
        {
            "areas": {"path": "areas.gpkg", "id": "id"},
            "counts": counts,
            "population": {"path": "people.tif"},
            "covariates": {name: {"path": f"{name}.tif"} for name in names},
            "model": model,
            "fit": {"seed": seed % 1000, **shortened(model, bags.n_bag)},
        },
        context={"base": Path.cwd()},
    )
    return sized(config, np.diff(bags.offsets))


def shortened(model: dict[str, Any], n_area: int) -> dict[str, int]:
    """Return the section ``fit`` of fits by mini-batches: some hundred steps."""
    natural = model["kind"] == "vbagg" and "options" not in model
    if natural and model.get("estimator") != "monte_carlo":
        return {}
    return {"max_epochs": int(np.clip(400 / np.ceil(n_area / 32), 5, 60))}


def run_trial(seed: int, number: int, most: int = MOST_AREAS) -> dict[str, Any]:
    """Run one trial; the outcome, and what led to it."""
    model, country = draw_setting(np.random.default_rng([17, seed, number]), most)
    return {"trial": f"{seed}:{number}", **run_setting(model, country, [18, seed, number])}


def run_setting(
    model: dict[str, Any], country: dict[str, Any], seed: Sequence[int]
) -> dict[str, Any]:
    """Draw a country and fit it; the outcome, and what led to it."""
    bags = draw_bags(country, model["likelihood"], np.random.default_rng(seed))
    said = {"model": model, "country": country, "n_pixel": int(bags.x.shape[0])}
    started = time.process_time()
    try:
        with _limited(LIMIT_S), one_blas_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = _fit(model, country, bags, seed[-1])
    except TimeoutError:
        outcome = {"outcome": "over time", "where": _where()}
    except NumericalError as error:
        outcome = {"outcome": "diverged", "error": str(error), "where": _where()}
    except Exception as error:  # whatever a fit may raise is what is looked for
        outcome = {
            "outcome": "traceback",
            "error": f"{type(error).__name__}: {error}"[:500],
            "where": _where(),
        }
    return {**said, **outcome, "seconds": round(time.process_time() - started, 2)}


def _fit(spec: dict[str, Any], country: dict[str, Any], bags: Bags, number: int) -> dict[str, Any]:
    try:
        config = validated(spec, country, bags, number)
        model = new_model(config)
    except ValueError as error:  # what `check` refuses
        return {"outcome": "refused", "error": " ".join(str(error).split())[:300]}
    before: Any = model
    try:
        before.fit(bags, n_thread=1)
    except NumericalError:
        raise
    except ModelError as error:
        if "; " in str(error):  # a finding and its remedy
            return {"outcome": "refused", "error": str(error)[:300]}
        raise
    return judged(before, bags, number)


def judged(model: Any, bags: Bags, seed: int) -> dict[str, Any]:
    """Predict from a fitted model; ``ok``, ``not converged``, or what is not finite."""
    rng = np.random.default_rng(seed)
    pixels = model.predict_pixels(bags.x, bags.coords)
    areas = model.predict_bags(bags, n_draws=N_DRAWS, rng=rng, observed=True)
    found = {
        "pixel mean": pixels.mean,
        "pixel sd": pixels.sd,
        "pixel 5 %": pixels.quantile(0.05),
        "pixel 95 %": pixels.quantile(0.95),
        "pixel exceedance": pixels.exceed(float(np.median(pixels.quantile(0.5)))),
        "area draws": areas.draws,
        "new area draws": model.predict_bags(bags, n_draws=N_DRAWS, rng=rng).draws,
        "responses": areas.observed(rng).draws,
        "log density": areas.log_density(bags.y),
    }
    wrong = [name for name, each in found.items() if not np.isfinite(each).all()]
    if wrong:
        return {"outcome": "not finite", "error": ", ".join(wrong)}
    told = {"passes": float(sum(row.get("passes", 1) for row in model.history_))}
    return {"outcome": "ok" if model.converged_ else "not converged", **told}


def _likely(names: list[str]) -> list[float]:
    weight = [{"poisson": 4.0, "negative_binomial": 2.0}.get(name, 1.0) for name in names]
    return [each / sum(weight) for each in weight]


def _smooth(n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a smooth surface of deviation one: (n * n,)."""
    t = np.arange(n) / n
    waves = rng.uniform(0.5, 6.0, (6, 2))
    phase = rng.uniform(0, 2 * np.pi, 6)
    f = sum(
        np.cos(2 * np.pi * (a * t[:, None] + b * t) + c)
        for (a, b), c in zip(waves, phase, strict=True)
    )
    return np.asarray(f).ravel() / np.sqrt(3.0) + 0.1 * rng.standard_normal(n * n)


def _where() -> str:
    """Return the last calls of a failure, without the directories of this machine."""
    text = " | ".join(traceback.format_exc().strip().splitlines()[-7:])
    for base in (Path(__file__).parents[1], Path(os.__file__).parent):
        text = text.replace(f"{base}{os.sep}", "")
    return text[-700:]


class _limited:
    """Raise TimeoutError after so many seconds of processor time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        def stop(_number: int, _frame: Any) -> None:
            raise TimeoutError

        self._before = signal.signal(signal.SIGPROF, stop)
        signal.setitimer(signal.ITIMER_PROF, self._seconds)

    def __exit__(self, *exc: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)


# -- many trials -----------------------------------------------------------------------------------


def _work(pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send(run_trial(*task))


class _Worker:
    """A process that runs one trial after another, and is replaced when it dies or hangs."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, seed: int, number: int, most: int) -> None:
        self.trial, self.since = f"{seed}:{number}", time.monotonic()
        self.pipe.send((seed, number, most))

    def result(self) -> dict[str, Any] | None:
        """Return what came of the trial; None while it runs."""
        if self.pipe.poll():
            try:
                found: dict[str, Any] = self.pipe.recv()
            except (EOFError, ConnectionResetError):
                self.process.join()
                what = f"the process died with status {self.process.exitcode}"
            else:
                return found
        elif time.monotonic() - self.since > DEAF_S:
            what = f"no answer within {DEAF_S:g} s"
        else:
            return None
        self.stop()
        self._start()
        return {"trial": self.trial, "outcome": "died", "error": what}

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run_all(seed: int, numbers: list[int], n_worker: int, most: int) -> Iterator[dict[str, Any]]:
    """Yield the outcome of each trial, as they come."""
    waiting, busy = list(reversed(numbers)), []
    idle = [_Worker() for _ in range(min(n_worker, len(numbers)))]
    try:
        while waiting or busy:
            while waiting and idle:
                worker = idle.pop()
                worker.begin(seed, waiting.pop(), most)
                busy.append(worker)
            wait([worker.pipe for worker in busy], timeout=5.0)
            for worker in list(busy):
                found = worker.result()
                if found is not None:
                    busy.remove(worker)
                    idle.append(worker)
                    yield found
    finally:
        for worker in idle + busy:
            worker.stop()


def main() -> int:
    """Run trials; return 1 if one ended badly."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fits_fuzz", description=__doc__)
    parser.add_argument("--fits", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--areas", type=int, default=MOST_AREAS, help="most areas of a country")
    parser.add_argument("--only", default="", help="SEED:NUMBER, one trial again")
    parser.add_argument("--out", type=Path, default=RESULTS / "fits_fuzz.json")
    given = parser.parse_args()
    if given.only:
        seed, _, number = given.only.partition(":")
        print(json.dumps(run_trial(int(seed), int(number), given.areas), indent=1))
        return 0
    done: list[dict[str, Any]] = []
    numbers = list(range(given.fits))
    for trial in run_all(given.seed, numbers, given.workers, given.areas):
        done.append(trial)
        if trial["outcome"] not in GOOD:
            print(json.dumps(trial), flush=True)
        _write(given, done)
    tally = Counter(each["outcome"] for each in done)
    print(dict(tally), flush=True)
    return int(not set(tally) <= GOOD)


def _write(given: argparse.Namespace, done: list[dict[str, Any]]) -> None:
    path: Path = given.out
    seconds = np.sort([each.get("seconds", 0.0) for each in done])
    rows = sorted(done, key=lambda each: int(each["trial"].partition(":")[2]))
    said = {
        "machine": machine(),
        "python": platform.python_version(),
        "code": code_hashes(),
        "seed": given.seed,
        "most_areas": given.areas,
        "fits": len(done),
        "outcomes": dict(sorted(Counter(each["outcome"] for each in done).items())),
        "limit_s": LIMIT_S,
        "seconds": {
            "median": float(np.median(seconds)),
            "p95": float(seconds[int(0.95 * (len(done) - 1))]),
            "most": float(seconds[-1]),
        },
        "trials": rows,
    }
    partial = path.with_name(f".{path.name}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.write_text(json.dumps(said, indent=None, separators=(",", ":")) + "\n")
    partial.replace(path)  # the run may be stopped at any moment


if __name__ == "__main__":
    raise SystemExit(main())

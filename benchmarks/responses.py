"""Responses that are not counts: intervals of areas not seen, with noise between areas and without.

    python -m benchmarks.responses [--sets NAME ...] [--records DIR] [--results DIR]

Five folds of areas, held out whole. Root mean squared error, log density and coverage of 90 %
intervals of the responses, per unit of weight and in units of their deviation, of the model with
its defaults (``now``) and with ``area_effect`` off (``before``), of one rate for all areas
(:meth:`Likelihood.constant`), and of an exact Gaussian process of the areas' averages with the same
two noises (:class:`Dense`, few pixels an area; its hyperparameters of maximum likelihood). Sets:

* ``elevators``: 324 contiguous bags of about 30 real rows sorted by a column
  (:mod:`benchmarks.elevators`), 16 covariates, no coordinates; the response is the sum of the rows.
* ``crop-5``, ``crop-20``: averages of a crop by weight, on the covariates and areas of the small
  simulated country: the true rates scaled to 2.8 t per ha, with noise of areas of 5 and 20 % of the
  mean, between 10 and 10,000 hectares an area.
* ``yields``: a stand-in for real log yields: 384 areas of 85 pixels, three covariates, one of them
  bent, a field, and noise of pixels (deviation .15) and of areas (.06).

Each fold leaves a line in ``DIR``; the same command goes on where it ended. Writes
``benchmarks/results/responses.json`` and prints a table.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from scipy.stats import norm

from benchmarks.elevators import data_path, make_bags
from benchmarks.records import hash_settings, run_missing
from benchmarks.report import RESULTS, parsed, write_results
from geo.sources.registry import source_of
from models import Bags, VBAgg
from models.backend.blas import one_blas_thread
from models.gp.bag_variance import choose_nodes
from models.likelihoods.registry import find_likelihood
from pipeline import BagStore
from pipeline.config.context import StageContext
from pipeline.config.reader import load_config
from pipeline.config.schema import work_dir
from pipeline.demo.country import simulate_country
from pipeline.ingest.stage import ingest

N_FOLD, N_DRAWS = 5, 1000
RECORDS = Path(__file__).parents[1] / "build/responses"
NODES = 32  # pixels of an area of the simulated country
INTEGRATE = 4  # draws of the hyperparameters of each fit; the default of maps is 10
DENSE_PIXELS = 6
MEAN_YIELD = 2.8
Z = 1.6448536269514722


@dataclass(frozen=True)
class Noise:
    """Size of the simulated log yields, and the deviations of their noises."""

    n_area: int = 384
    n_pixel: int = 85
    pixel: float = 0.15
    area: float = 0.06


def elevators() -> Bags:
    """Return the bags of real rows."""
    return make_bags(data_path(), 0)[0]


def thinned(config_path: Path, nodes: int) -> tuple[Bags, np.ndarray]:
    """Return the areas of the country, each as a sample of its pixels, and their true rates."""
    config = load_config(config_path)
    with TemporaryDirectory() as directory:
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


def crop(noise: float) -> Bags:
    """Return averages of a crop by hectares, as the totals that a configuration makes of them."""
    with TemporaryDirectory() as directory:
        bags, truth = thinned(simulate_country(Path(directory)), NODES)
    rng = np.random.default_rng([5, int(100 * noise)])
    field = np.sqrt(truth / truth.mean())
    share = bags.weight / np.repeat(
        np.add.reduceat(bags.weight, bags.offsets[:-1]), np.diff(bags.offsets)
    )
    average = np.add.reduceat(share * field, bags.offsets[:-1])
    average = average / average.mean() * (1.0 + noise * rng.standard_normal(bags.n_bag))
    hectares = np.exp(rng.uniform(np.log(10.0), np.log(1e4), bags.n_bag))
    weight = share * np.repeat(hectares, np.diff(bags.offsets))
    return Bags(bags.x, bags.offsets, MEAN_YIELD * average * hectares, weight, bags.coords)


def yields(noise: Noise = Noise(), seed: int = 0) -> Bags:
    """Return averages of simulated log yields; pixels weigh alike."""
    rng = np.random.default_rng([6, seed])
    centre = rng.uniform(0, 900, (noise.n_area, 2))
    n = noise.n_area * noise.n_pixel
    coords = np.repeat(centre, noise.n_pixel, axis=0) + rng.uniform(-15, 15, (n, 2))

    def smooth(km: float) -> np.ndarray:
        """Return a sum of six waves, standardised."""
        phase = coords @ (rng.standard_normal((2, 6)) / km) + rng.uniform(0, 2 * np.pi, 6)
        value = np.sin(phase) @ rng.standard_normal(6)
        return np.asarray((value - value.mean()) / value.std())

    x = np.stack([0.9 * smooth(200.0) + 0.4 * rng.standard_normal(n) for _ in range(3)], axis=1)
    f = 4.0 + 0.06 * x[:, 0] + 0.05 * np.tanh(2.0 * x[:, 1]) - 0.03 * x[:, 2] + 0.07 * smooth(150.0)
    pixels = (f + noise.pixel * rng.standard_normal(n)).reshape(noise.n_area, noise.n_pixel)
    y = pixels.mean(axis=1) + noise.area * rng.standard_normal(noise.n_area)
    offsets = np.arange(0, n + 1, noise.n_pixel)
    return Bags(x, offsets, y, np.full(n, 1.0 / noise.n_pixel), coords)


SETS: dict[str, Callable[[], Bags]] = {
    "elevators": elevators,
    "crop-5": functools.partial(crop, 0.05),
    "crop-20": functools.partial(crop, 0.2),
    "yields": yields,
}
BOTH = ("constant", "before", "now")
CASES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("crop-20", "normal", ("dense", *BOTH)),
    ("crop-20", "exponential", BOTH),
    ("crop-20", "gamma", ("constant", "now")),
    ("elevators", "normal", ("dense", *BOTH)),
    ("yields", "normal", ("dense", *BOTH)),
    ("crop-5", "normal", ("dense", *BOTH)),
    ("crop-5", "gamma", ("constant", "now")),
    ("elevators", "exponential", BOTH),
    ("elevators", "gamma", ("constant", "now")),
)


@dataclass
class Dense:
    """An exact Gaussian process of sums over areas: linear and Matern-3/2, with both noises.

    Slopes by the areas' averages of all pixels, the field (over the coordinates, or the covariates
    where there are none) by ``DENSE_PIXELS`` of them.
    """

    bags: Bags
    seed: int = 0

    def __post_init__(self) -> None:
        """Average what the covariances need."""
        bags, rng = self.bags, np.random.default_rng([8, self.seed])
        self.total = np.add.reduceat(bags.weight, bags.offsets[:-1])
        self.squares = np.add.reduceat(bags.weight**2, bags.offsets[:-1])
        x = (bags.x - bags.x.mean(axis=0)) / bags.x.std(axis=0)
        each = np.add.reduceat(bags.weight[:, None] * x, bags.offsets[:-1], axis=0)
        self.x = each / self.total[:, None]
        place = x if bags.coords is None else bags.coords
        pixels = [
            rng.choice(np.arange(a, b), DENSE_PIXELS, p=bags.weight[a:b] / bags.weight[a:b].sum())
            for a, b in zip(bags.offsets[:-1], bags.offsets[1:], strict=True)
        ]
        distance = cdist(place[np.concatenate(pixels)], place[np.concatenate(pixels)])
        n = bags.n_bag
        self.distance = distance.reshape(n, DENSE_PIXELS, n, DENSE_PIXELS).astype(np.float32)
        self.scale = float(np.median(self.distance))

    def covariance(self, phi: np.ndarray) -> np.ndarray:
        """Return that of the areas' averages without noise, (n_bag, n_bag)."""
        slopes, variance, range_ = np.exp(phi[:3])
        r = self.distance * np.float32(np.sqrt(3.0) / (range_ * self.scale))
        field = ((1.0 + r) * np.exp(-r)).mean(axis=(1, 3), dtype=np.float64)
        return np.asarray(slopes * self.x @ self.x.T + variance * field)

    def noise(self, phi: np.ndarray) -> np.ndarray:
        """Return the variance of the areas' averages around their surface, (n_bag,)."""
        return np.asarray(np.exp(phi[3]) * self.squares / self.total**2 + np.exp(phi[4]))

    def predict(self, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of the averages of the other areas."""
        rate = self.bags.y / self.total
        unit = rate[train].std()
        level = np.log(unit**2)
        pixels = np.log(np.median(self.squares / self.total**2))
        ones = np.ones(train.sum())

        def given(phi: np.ndarray) -> tuple[float, np.ndarray, float, np.ndarray]:
            cov = self.covariance(phi)
            own = cov[np.ix_(train, train)] + np.diag(self.noise(phi)[train])
            root = np.linalg.cholesky(own)
            white = np.linalg.solve(root, np.stack([rate[train], ones], axis=1))
            mean = float(white[:, 0] @ white[:, 1] / (white[:, 1] @ white[:, 1]))
            off = white[:, 0] - mean * white[:, 1]
            value = 0.5 * float(off @ off) + float(np.log(np.diag(root)).sum())
            return value, np.linalg.solve(root.T, off), mean, cov

        start = np.array([level - 2, level - 1, -1.0, level - 2 - pixels, level - 2])
        # A weak normal prior of each logarithm keeps what the data do not tell where it started.
        found = minimize(
            lambda phi: given(phi)[0] + 0.5 * float(((phi - start) ** 2).sum()) / 9.0,
            start,
            method="L-BFGS-B",
            options={"maxiter": 30},
        )
        _, solved, mean, cov = given(found.x)
        across = cov[np.ix_(~train, train)]
        own = cov[np.ix_(train, train)] + np.diag(self.noise(found.x)[train])
        left = np.diag(cov)[~train] - (across * np.linalg.solve(own, across.T).T).sum(axis=1)
        return mean + across @ solved, left + self.noise(found.x)[~train]


@functools.cache
def bags_of(name: str) -> Bags:
    """Return a set's bags, made once."""
    return SETS[name]()


def measure(name: str, likelihood: str, method: str, fold: int) -> dict[str, Any]:
    """Fit all folds but one, and score that one's areas."""
    bags = bags_of(name)
    folds = np.random.default_rng(9).permutation(np.arange(bags.n_bag) % N_FOLD)
    train, test = bags.select(folds != fold), bags.select(folds == fold)
    weight = np.add.reduceat(test.weight, test.offsets[:-1])
    fitted = train.y / np.add.reduceat(train.weight, train.offsets[:-1])
    unit, rng = float(fitted.std()), np.random.default_rng([10, fold])
    started, about = time.process_time(), {}
    with one_blas_thread():
        if method == "dense":
            mean, variance = Dense(bags).predict(folds != fold)
            sd = np.sqrt(variance)
            density = norm.logpdf(test.y / weight, mean, sd) - np.log(weight)
            low, high = (mean - Z * sd) * weight, (mean + Z * sd) * weight
            mean = mean * weight
        elif method == "constant":
            law = find_likelihood(likelihood)
            noise = [law.bag_data(each.weight, each.offsets, None) for each in (train, test)]
            total = np.add.reduceat(train.weight, train.offsets[:-1])
            rate = law.constant(train.y, total, noise[0])
            mean, density = rate.mean(weight), rate.log_density(test.y, weight, noise[1])
            drawn = rate.draw(weight, noise[1], N_DRAWS, rng)[1]
            low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
        else:
            effect: Any = False if method == "before" else "auto"
            # On few pixels of each area: for scores, as an evaluation refits.
            how: dict[str, Any] = {"integrate": INTEGRATE, "few_pixels": True}
            model = VBAgg(likelihood=likelihood, area_effect=effect, **how)
            model.fit(train, n_thread=1)
            found = model.predict_bags(test, n_draws=N_DRAWS, rng=rng)
            mean, density = found.mean, found.log_density(test.y)
            low, high = np.quantile(found.observed(rng).draws, [0.05, 0.95], axis=0)
            named = model.named_hyperparameters()
            about = {k: named[k] for k in ("noise", "area_noise", "area_sd") if k in named}
            about["converged"] = bool(model.converged_)
    return {
        "seconds": round(time.process_time() - started, 1),
        "squares": (((mean - test.y) / weight / unit) ** 2).tolist(),
        # Of the response per unit of weight, in units of its deviation.
        "density": (density + np.log(weight * unit)).tolist(),
        "inside": ((test.y > low) & (test.y < high)).tolist(),
        "width": ((high - low) / weight / unit).tolist(),
        **about,
    }


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the scores of all areas together."""
    each = {
        key: np.concatenate([record[key] for record in records])
        for key in ("squares", "density", "inside", "width")
    }
    n = each["inside"].size
    return {
        "n": n,
        "rmse": round(float(np.sqrt(each["squares"].mean())), 4),
        "log_density": round(float(each["density"].mean()), 4),
        "log_density_error": round(float(each["density"].std() / np.sqrt(n)), 4),
        "coverage": round(float(each["inside"].mean()), 4),
        "width": round(float(each["width"].mean()), 4),
        "seconds": round(sum(record["seconds"] for record in records), 1),
        "learnt": [
            {k: record[k] for k in ("noise", "area_noise", "area_sd", "converged") if k in record}
            for record in records
            if "converged" in record
        ],
    }


def run(names: list[str], records: Path) -> dict[str, Any]:
    """Measure what has no record yet; return a summary by set, likelihood and method."""
    found: dict[str, Any] = {}
    for name, likelihood, methods in CASES:
        for method in methods if name in names else ():
            path = records / f"{name}-{likelihood}-{method}.jsonl"
            own = functools.partial(measure, name, likelihood, method)
            decides = (name, likelihood, method, N_DRAWS, INTEGRATE, NODES, DENSE_PIXELS)
            each = run_missing(own, range(N_FOLD), path, hash_settings(*decides))
            found.setdefault(name, {}).setdefault(likelihood, {})[method] = summary(each)
    return found


def main() -> None:
    """Measure, write the JSON and print the table."""
    options = parsed(__doc__, sets=list(SETS), records=RECORDS, results=RESULTS)
    found = run(options.sets, options.records)
    result = {"folds": N_FOLD, "draws": N_DRAWS, "sets": found}
    write_results(options.results / "responses.json", result)
    print(f"{'':34}{'RMSE':>8}{'density':>9}{'covers':>8}{'width':>7}{'seconds':>9}")
    for name, by_likelihood in found.items():
        for likelihood, by_method in by_likelihood.items():
            for method, row in by_method.items():
                figures = f"{row['rmse']:8.3f}{row['log_density']:9.3f}{row['coverage']:8.3f}"
                label = f"{name} {likelihood} {method}"
                print(f"{label:34}{figures}{row['width']:7.2f}{row['seconds']:9.1f}")


if __name__ == "__main__":
    main()

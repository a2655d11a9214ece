"""The model beside an exact posterior: long Markov chains under the same prior and likelihood.

    python -m benchmarks.gold [--design NAME ...] [--countries 1] [--draws 4000] [--chains 4]

Designs: ``poisson`` and ``noisy`` (areas differ by a factor of sd 0.3) have linear slopes and a
Matern-3/2 field, ``bent`` has covariates with bent effects: 400 pixels, 25 areas. ``rough`` has 900
pixels, 50 areas and a field of smoothness 1; it takes ten times as long. ``noisy-40`` has the
areas, counts and noise of :mod:`benchmarks.trust` (40, 100 cases each, sd 0.2), on 400 pixels. The
chains are those of :mod:`benchmarks.exact_posterior`. How the model differs from them is what its
inference costs; what they themselves do not cover is the prior's, and no inference would mend it.
Each country leaves a line in ``build/gold``; the same command goes on where it ended. Writes
``benchmarks/results/gold.json``, which keeps the designs that were not asked for.
"""

from __future__ import annotations

import functools
import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from benchmarks.exact_posterior import ExactPosterior
from benchmarks.grids import matern
from benchmarks.hmc import effective_size, sample, split_rhat
from benchmarks.prior_draws import Design, make_geometry
from benchmarks.records import hash_settings, run_missing
from benchmarks.report import RESULTS, marked_as_older, parsed, read_results, write_results
from models import Bags, VBAgg
from models.backend.arrays import segment_sum
from models.gp.scaling import kernel_of
from pipeline.evaluation.scores import crps

RECORDS = Path(__file__).parents[1] / "build/gold"
LEVELS = (50, 80, 90, 95)
N_SCORE = 1000  # draws that scores are computed from
RHAT, SIZE = 1.02, 1000.0  # what chains must reach


@dataclass(frozen=True)
class Case:
    """What a country is drawn from, and the model that is fitted to it."""

    design: Design = Design()  # noqa: RUF009 (immutable)
    slopes: tuple[float, float] = (0.5, -0.4)
    bent: bool = False
    field_sd: float = 0.5
    smoothness: float = 1.5
    range_km: float = 25.0
    area_sd: float = 0.0
    per_area: float = 150.0
    kernel: str = "linear + matern32(space)"
    n_inducing: int = 100


CASES = {
    "poisson": Case(),
    "noisy": Case(area_sd=0.3),
    "noisy-40": Case(Design(n_area=40), area_sd=0.2, per_area=100.0),
    "bent": Case(bent=True, field_sd=0.3),
    "rough": Case(Design(n_side=30, n_area=50), smoothness=1.0, area_sd=0.1, n_inducing=300),
}


def make_country(case: Case, rng: np.random.Generator) -> tuple[Bags, np.ndarray]:
    """Draw a country: its bags and the true rates (n_pix,), per unit of weight."""
    bags = make_geometry(case.design, rng)
    x = bags.x
    linear = x @ np.array(case.slopes)
    curved = 0.8 * np.tanh(2.0 * x[:, 0]) + 0.4 * (x[:, 1] ** 2 - 1.0)
    k = matern(cdist(bags.coords, bags.coords), case.range_km, case.smoothness)
    k[np.diag_indices_from(k)] += 1e-9
    field = case.field_sd * np.linalg.cholesky(k) @ rng.standard_normal(x.shape[0])
    rate = np.exp((curved if case.bent else linear) + field)
    rate *= case.per_area * bags.n_bag / float(bags.weight @ rate)
    eta = segment_sum(bags.weight * rate, bags.offsets)
    effect = np.exp(case.area_sd * rng.standard_normal(eta.size) - 0.5 * case.area_sd**2)
    y = rng.poisson(eta * effect).astype(np.float64)
    return Bags(x, bags.offsets, y, bags.weight, bags.coords), rate


def make_model(case: Case) -> VBAgg:
    """Return the model, not fitted; it integrates where it can."""
    more = {"integrate": "auto"} if "integrate" in VBAgg().get_params() else {}
    return VBAgg(
        likelihood="poisson",
        area_effect=case.area_sd > 0,
        kernel=case.kernel,
        priors="weak",
        n_inducing=case.n_inducing,
        **more,
    )


def run_chains(
    posterior: ExactPosterior, n_chain: int, n_draws: int, seed: int
) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """Sample a posterior.

    Returns
    -------
    rates : (n_chain * n_draws, n_pix) float64
    hyper : (n_chain * n_draws, n_hyper) float64
        As :meth:`ExactPosterior.hyperparameters`.
    mixed : dict
        Worst R-hat and effective sizes, of log rates and of hyperparameters.
    """

    def view(q: np.ndarray) -> np.ndarray:
        return np.concatenate([posterior.latent(q), posterior.hyperparameters(q)])

    chains, accepted = [], []
    for number in range(n_chain):
        rng = np.random.default_rng([seed, number])
        draws, share = sample(
            posterior.density,
            posterior.start(rng),
            posterior.mass_at,
            rng,
            n_warm=max(100, n_draws // 4),
            n_keep=n_draws,
            view=view,
            also=posterior.refresh,
        )
        chains.append(draws)
        accepted.append(share)
    both = np.array(chains)
    rhat, size = split_rhat(both), effective_size(both)
    n_hyper = len(posterior.names)
    mixed = {
        "accepted": round(float(np.mean(accepted)), 3),
        "rhat_pixels": round(float(rhat[:-n_hyper].max()), 4),
        "rhat_hyper": round(float(rhat[-n_hyper:].max()), 4),
        "size_pixels": round(float(size[:-n_hyper].min())),
        "size_pixels_median": round(float(np.median(size[:-n_hyper]))),
        "size_hyper": round(float(size[-n_hyper:].min())),
    }
    flat = both.reshape(-1, both.shape[2])
    rates = posterior.base * posterior.link.value(flat[:, :-n_hyper])
    return np.asarray(rates), flat[:, -n_hyper:], mixed


def covered(
    low: np.ndarray, high: np.ndarray, truth: np.ndarray, weight: np.ndarray
) -> list[float]:
    """Return the shares of pixels and of people whose true rate is in an interval."""
    inside = (low <= truth) & (truth <= high)
    return [round(float(inside.mean()), 4), round(float(np.average(inside, weights=weight)), 4)]


def compare(
    model: VBAgg, rates: np.ndarray, bags: Bags, truth: np.ndarray, rng: np.random.Generator
) -> dict[str, Any]:
    """Compare the fitted model's pixels with draws of the exact posterior.

    Returns
    -------
    dict
        ``mean_off``: root mean square difference of the means of log rates, in exact deviations.
        ``sd_ratio``: mean ratio of their deviations, model to exact. ``low_off``, ``high_off``:
        mean difference of the ends of 90 % intervals of log rates, in exact deviations.
        ``model``, ``exact``: coverage by pixel and by people, CRPS, correlation and root mean
        square error of log rates with the truth.
    """
    p = model.predict_pixels(bags.x, bags.coords)
    drawn = p.sample(N_SCORE, rng)
    log_exact, log_model = np.log(rates), np.log(drawn)
    sd = log_exact.std(axis=0)
    off = (log_model.mean(axis=0) - log_exact.mean(axis=0)) / sd
    found: dict[str, Any] = {
        "mean_off": float(np.sqrt((off**2).mean())),
        "sd_ratio": float((log_model.std(axis=0) / sd).mean()),
        "rate_sd_ratio": float((np.asarray(p.sd) / rates.std(axis=0)).mean()),
        "model": {"coverage": {}},
        "exact": {"coverage": {}},
    }
    for level in LEVELS:
        q = 0.5 - level / 200.0
        ends = [np.asarray(p.quantile(each)) for each in (q, 1.0 - q)]
        exact = np.quantile(rates, [q, 1.0 - q], axis=0)
        found["model"]["coverage"][str(level)] = covered(*ends, truth, bags.weight)
        found["exact"]["coverage"][str(level)] = covered(*exact, truth, bags.weight)
        if level == 90:
            for key, ours, theirs in zip(("low_off", "high_off"), ends, exact, strict=True):
                found[key] = float((np.log(ours / theirs) / sd).mean())
    thinned = rates[np.linspace(0, rates.shape[0] - 1, N_SCORE).astype(int)]
    for name, draws in (("model", drawn), ("exact", thinned)):
        middle = np.log(draws).mean(axis=0)
        found[name]["crps"] = float(crps(draws, truth).mean())
        found[name]["correlation"] = float(np.corrcoef(middle, np.log(truth))[0, 1])
        found[name]["rmse_log"] = float(np.sqrt(((middle - np.log(truth)) ** 2).mean()))
    return found


def compare_areas(
    model: VBAgg, rates: np.ndarray, bags: Bags, truth: np.ndarray, rng: np.random.Generator
) -> dict[str, Any]:
    """Compare joint draws of the areas' aggregates with those of the exact posterior.

    Returns
    -------
    dict
        ``mean_off``, ``sd_ratio`` of log aggregates as :func:`compare`, and shares of areas whose
        true aggregate is in 90 % intervals. ``free``: the same without the condition on the areas'
        own counts.
    """
    functions = model.sample_functions(N_SCORE, rng)
    thinned = rates[np.linspace(0, rates.shape[0] - 1, 4 * N_SCORE).astype(int)]
    starts = bags.offsets[:-1]
    exact = np.add.reduceat(thinned * bags.weight, starts, axis=1)
    true = np.add.reduceat(truth * bags.weight, starts)

    def held(draws: np.ndarray) -> float:
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        return float(((low <= true) & (true <= high)).mean())

    sd = np.log(exact).std(axis=0)
    found: dict[str, Any] = {"exact": {"coverage": held(exact), "sd": float(sd.mean())}}
    for name, observed in (("model", True), ("free", False)):
        draws = model.predict_bags(bags, draws=functions, observed=observed).draws
        off = (np.log(draws).mean(axis=0) - np.log(exact).mean(axis=0)) / sd
        found[name] = {
            "coverage": held(draws),
            "mean_off": float(np.sqrt((off**2).mean())),
            "sd_ratio": float((np.log(draws).std(axis=0) / sd).mean()),
        }
    return found


def hyperparameters(model: VBAgg, names: tuple[str, ...], draws: np.ndarray) -> dict[str, Any]:
    """Return mean and deviation of each logarithm: exact, and the model's members' or optimum."""
    state = model.state_
    members = getattr(state, "members", None) or {}
    kernel = kernel_of(model.kernel_text(state.fixed), state.fixed)
    weight = members.get("weight", np.ones(1))
    found = {}
    for k, name in enumerate(("mean", *names[1:])):
        held = members if "theta" in members else {n: v[None] for n, v in state.params.items()}
        place = kernel.names.index(name) if name in kernel.names else None
        ours = held[name][:, 0] if place is None else held["theta"][:, place]
        at = float(weight @ ours)
        found[name] = {
            "exact": [float(draws[:, k].mean()), float(draws[:, k].std())],
            "model": [at, float(np.sqrt(weight @ (ours - at) ** 2))],
        }
    return found


def measure(name: str, n_draws: int, n_chain: int, number: int) -> dict[str, Any]:
    """Draw, fit and sample country ``number`` of a design."""
    case = CASES[name]
    rng = np.random.default_rng([zlib.crc32(name.encode()), number])
    bags, truth = make_country(case, rng)
    model = make_model(case)
    start = time.perf_counter()
    model.fit(bags, n_thread=1)
    fitted = time.perf_counter()
    posterior = ExactPosterior(make_model(case), bags)
    rates, hyper, mixed = run_chains(posterior, n_chain, n_draws, number)
    ended = time.perf_counter()
    return {
        "mixed": mixed,
        "enough": bool(
            max(mixed["rhat_pixels"], mixed["rhat_hyper"]) < RHAT
            and min(mixed["size_pixels"], mixed["size_hyper"]) > SIZE
        ),
        "pixels": compare(model, rates, bags, truth, rng),
        "areas": compare_areas(model, rates, bags, truth, rng),
        "hyperparameters": hyperparameters(model, posterior.names, hyper),
        "seconds": {"model": round(fitted - start, 1), "chains": round(ended - fitted, 1)},
    }


def averaged(records: list[dict[str, Any]], of: str = "pixels") -> dict[str, Any]:
    """Average the figures of pixels, or of areas, over countries, leaf by leaf."""

    def mean(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return {key: mean([value[key] for value in values]) for key in values[0]}
        return np.round(np.mean(values, axis=0), 4).tolist()

    averages: dict[str, Any] = mean([record[of] for record in records])
    return averages


def main() -> None:
    args = parsed(
        __doc__,
        design={"nargs": "*", "choices": list(CASES), "default": ["poisson", "bent"]},
        countries=1,
        draws=4000,
        chains=4,
        workers=1,
        records=RECORDS,
        results=RESULTS,
    )
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # of the workers
    found = {}
    for name in args.design:
        case = CASES[name]
        settings = hash_settings(str(case), make_model(case).get_params(), args.draws, args.chains)
        records = run_missing(
            functools.partial(measure, name, args.draws, args.chains),
            range(args.countries),
            args.records / f"{name}.jsonl",
            settings,
            args.workers,
        )
        found[name] = {of: averaged(records, of) for of in ("pixels", "areas")}
        found[name]["countries"] = records
        print(
            name,
            found[name]["pixels"],
            found[name]["areas"],
            [record["mixed"] for record in records],
        )
    path = args.results / "gold.json"
    kept = {name: each for name, each in read_results(path).items() if name not in found}
    marked_as_older(kept.values(), path)
    write_results(path, {**kept, **found})


if __name__ == "__main__":
    main()

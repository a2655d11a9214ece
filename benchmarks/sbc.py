"""Simulation-based calibration: posteriors of countries that are drawn from the priors.

    python -m benchmarks.sbc [--likelihood NAME ...] [--countries 200] [--workers 1] [--records DIR]

Talts et al. 2018: parameters drawn from the prior, data drawn from them, and the rank of each
parameter among draws of its posterior is uniform if the inference is right. Here a country has 400
pixels, 25 areas and 2 covariates, drawn as :mod:`benchmarks.prior_draws` says, and the model is
:class:`models.VBAgg` with ``linear + matern32(space)``, its weak priors and its other defaults.
Each country leaves a line in ``DIR/NAME.jsonl``. The same command goes on where it ended; lines of
other settings or other code do not count. Writes ``benchmarks/results/sbc.json``, with the lines of
likelihoods that are not asked for, and ``docs/figures/sbc.png``; ``python -m benchmarks.sbc_page``
writes the tables of ``docs/sbc.md``.
"""

from __future__ import annotations

import functools
import os
import time
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from benchmarks import prior_draws
from benchmarks.prior_draws import Country, Design, KnownScale, draw_country
from benchmarks.rank_tests import draw_ranks, histogram, rank_of, uniform_ranks, uniform_shares
from benchmarks.records import hash_settings, read_records, run_missing
from benchmarks.report import RESULTS, parsed, write_results
from models.core.errors import ModelError
from models.gp.scaling import kernel_of

FIGURE = Path(__file__).parents[1] / "docs/figures/sbc.png"
RECORDS = Path(__file__).parents[1] / "build/sbc"
LIKELIHOODS: dict[str, dict[str, Any]] = {
    "poisson": {"likelihood": "poisson"},
    "poisson_area_effect": {"likelihood": "poisson", "area_effect": True},
    "negative_binomial": {"likelihood": "negative_binomial"},
    "binomial": {"likelihood": "binomial"},
    "beta_binomial": {"likelihood": "beta_binomial"},
    "normal": {"likelihood": "normal"},
    "gamma": {"likelihood": "gamma"},
    "exponential": {"likelihood": "exponential"},
}
KERNEL = "linear + matern32(space)"
N_DRAWS = 99  # ranks 0 to 99: ten bins of ten
N_CHOSEN = 3  # pixels, and areas, whose ranks are kept one by one
LEVELS = (50, 80, 90, 95)


def make_model(name: str, **changed: Any) -> KnownScale:
    """Return the model of a likelihood, not fitted."""
    params = {"kernel": KERNEL, "priors": "weak", "area_effect": False, **LIKELIHOODS[name]}
    return KnownScale(**{**params, **changed})


def settings_of(name: str, design: Design, **changed: Any) -> str:
    """Return a hash of all that decides a record."""
    ranges = (prior_draws.TOTALS, prior_draws.SHARES, prior_draws.TESTED)
    params = make_model(name, **changed).get_params()
    return hash_settings(name, params, asdict(design), ranges, N_DRAWS, N_CHOSEN)


def measure(name: str, design: Design, changed: dict[str, Any], number: int) -> dict[str, Any]:
    """Draw, fit and rank country ``number``; a fit that fails is a record as well."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), number])
    # Each country has members of its own: the same offsets everywhere would show in all ranks.
    model = make_model(name, **{"seed": number, **changed})
    country = draw_country(model, design, rng)
    start = time.perf_counter()
    record: dict[str, Any] = {"tried": country.n_tried}
    try:
        model.fit(country.bags, n_thread=1)
        record.update(ranks_of(model, country, rng))
    except (ModelError, ArithmeticError, np.linalg.LinAlgError) as error:
        return {**record, "error": f"{type(error).__name__}: {error}"}
    record["seconds"] = round(time.perf_counter() - start, 2)
    record["converged"] = bool(model.converged_)
    return record


def ranks_of(model: KnownScale, country: Country, rng: np.random.Generator) -> dict[str, Any]:
    """Rank the truth among draws of a fitted model.

    Returns
    -------
    dict
        ``ranks``: by quantity. ``pixels``, ``areas``: histograms of the ranks of all of them.
        ``cover``: share of pixels, of people and of areas inside the central intervals.
    """
    bags, truth = country.bags, country.truth
    draws = model.sample_functions(N_DRAWS, rng)
    rate = rank_of(truth.rate, draws.rate(bags.x, bags.coords), rng)
    expected = model.predict_bags(bags, draws=draws, observed=True).draws
    area = rank_of(truth.eta, expected, rng)
    weight = total_weight(model, country)
    ranks = {
        **{f"pixel {k}": rate[i] for k, i in enumerate(rng.choice(rate.size, N_CHOSEN, False))},
        **{f"area {k}": area[a] for k, a in enumerate(rng.choice(area.size, N_CHOSEN, False))},
        "total": float(rank_of(truth.eta @ weight, expected @ weight, rng)),
    }
    for k, u in enumerate(rank_of(truth.slopes, drawn_slopes(model, draws, bags), rng)):
        ranks[f"slope {k}"] = u
    ranks.update(hyperparameter_ranks(model, country, rng))
    # The intervals of maps are those of the pixels' marginals, not of draws.
    at = 1.0 - np.asarray(model.predict_pixels(bags.x, bags.coords).exceed(truth.rate))
    cover = {
        str(level): [
            round(float(np.average(np.abs(u - 0.5) <= level / 200.0, weights=each)), 4)
            for u, each in ((at, None), (at, bags.weight), (area, None))
        ]
        for level in LEVELS
    }
    return {
        "ranks": {key: round(float(u), 4) for key, u in ranks.items()},
        "pixels": histogram(rate).round(4).tolist(),
        "areas": histogram(area).round(4).tolist(),
        "cover": cover,
    }


def total_weight(model: KnownScale, country: Country) -> np.ndarray:
    """Return what areas count in the total: 1, or the numbers tested where areas are averages."""
    tested = country.bags.trials
    averages = model.resolved_likelihood.averages
    return tested if averages and tested is not None else np.ones(country.bags.n_bag)


def drawn_slopes(model: KnownScale, draws: Any, bags: Any) -> np.ndarray:
    """Return slopes of ``f`` by a standard deviation of each covariate: (n_draws, n_feat).

    By differences of drawn functions, where the kernel is linear in the covariates: of each draw
    at the place where its rate is nearest to the middle, away from the ends of the probit link.
    """
    fixed = model.state_.fixed
    n_pix, n_feat = bags.x.shape

    def latent(step: np.ndarray) -> np.ndarray:
        x = np.broadcast_to(fixed["x_mean"] + step * fixed["x_sd"], (n_pix, n_feat))
        rate = draws.rate(np.ascontiguousarray(x), bags.coords)
        if model.link_name == "probit":
            return np.asarray(ndtri(rate))
        return np.log(rate) if model.link_name == "exp" else rate / fixed["base_rate"]

    middle = latent(np.zeros(n_feat))
    place = np.abs(middle).argmin(axis=1)[:, None]
    foot = np.take_along_axis(middle, place, 1)
    return np.concatenate(
        [np.take_along_axis(latent(step), place, 1) - foot for step in np.eye(n_feat)], axis=1
    )


def hyperparameter_ranks(
    model: KnownScale, country: Country, rng: np.random.Generator
) -> dict[str, float]:
    """Rank hyperparameters among the members of the posterior; none where it has no members."""
    members = getattr(model.state_, "members", None) or {}
    if "theta" not in members:
        return {}
    truth, fixed = country.truth, model.state_.fixed
    kernel = kernel_of(model.kernel_text(fixed), fixed)
    weight = members.get("weight")
    held = {name: (truth.theta[k], members["theta"][:, k]) for k, name in enumerate(kernel.names)}
    # Under the exp link the unit of the rate is a part of the mean.
    unit = float(np.log(fixed["base_rate"][0])) if model.link_name == "exp" else 0.0
    held["mean"] = (truth.mean, members["mean"][:, 0] + unit)
    for name, value in truth.own.items():
        held[name] = (value, members[name][:, 0])
    return {
        f"hyper {name}": float(rank_of(value, drawn, rng, weight))
        for name, (value, drawn) in held.items()
    }


def run(
    name: str, n_country: int, n_worker: int, records: Path, design: Design, **changed: Any
) -> list[dict[str, Any]]:
    """Measure the countries that have no record yet; return all records."""
    one = functools.partial(measure, name, design, changed)
    settings = settings_of(name, design, **changed)
    return run_missing(one, range(n_country), records / f"{name}.jsonl", settings, n_worker)


def summarise(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Test the ranks of a likelihood, and average its coverage over countries."""
    done = [record for record in records if "ranks" in record]
    out: dict[str, Any] = {
        "countries": len(records),
        "failed": len(records) - len(done),
        "drawn_for_each": round(float(np.mean([r["tried"] for r in records])), 2),
    }
    if not done:
        return out
    out["converged"] = float(np.mean([r["converged"] for r in done]))
    out["seconds"] = round(float(np.mean([r["seconds"] for r in done])), 2)
    out["ranks"] = {key: uniform_ranks(u) for key, u in columns(done).items()}
    out["least_p"] = min(test["p"] for test in out["ranks"].values())
    # Holm's first step: of so many tests, is the least p value too small?
    out["least_p_holm"] = min(1.0, out["least_p"] * len(out["ranks"]))
    out["all_pixels"] = uniform_shares(np.array([r["pixels"] for r in done]))
    out["all_areas"] = uniform_shares(np.array([r["areas"] for r in done]))
    cover = np.array([[r["cover"][str(level)] for level in LEVELS] for r in done])
    error = cover.std(axis=0, ddof=1) / np.sqrt(len(done)) if len(done) > 1 else 0.0 * cover[0]
    out["coverage"] = {
        of: {
            str(level): [round(float(cover[:, i, k].mean()), 4), round(float(error[i, k]), 4)]
            for i, level in enumerate(LEVELS)
        }
        for k, of in enumerate(("pixels", "people", "areas"))
    }
    return out


def columns(done: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return the ranks of each quantity over countries."""
    keys = dict.fromkeys(key for record in done for key in record["ranks"])
    return {key: np.array([r["ranks"][key] for r in done if key in r["ranks"]]) for key in keys}


def main() -> None:
    args = parsed(
        __doc__,
        likelihood={"nargs": "*", "choices": list(LIKELIHOODS)},
        countries=200,
        workers=1,
        records=RECORDS,
        results=RESULTS,
        figure=FIGURE,
    )
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # of the workers
    design, found, ranks = Design(), {}, {}
    for name in LIKELIHOODS:
        path, records = args.records / f"{name}.jsonl", list[dict[str, Any]]()
        if name in (args.likelihood or LIKELIHOODS):
            records = run(name, args.countries, args.workers, args.records, design)
        records = records or list(read_records(path, settings_of(name, design)).values())
        if not records:
            continue
        found[name] = summarise(records)
        ranks[name] = columns([record for record in records if "ranks" in record])
        print(name, {k: v for k, v in found[name].items() if k not in ("ranks",)})
    write_results(args.results / "sbc.json", {"design": asdict(design), "likelihoods": found})
    draw_ranks(ranks, args.figure)


if __name__ == "__main__":
    main()

"""The area effect on simulated areas: its deviation, fitted totals and what a rate means.

    python -m benchmarks.area_effect [--seeds 6] [--large 2] [--records DIR] [--results DIR]

Each country is a grid of square areas of 16 pixels. The log rate is linear in a covariate plus a
Matern-3/2 field; an area's expected count has a log-normal factor of mean one and deviation
``tau``. The same kernel is fitted. Writes ``benchmarks/results/area_effect.json`` and prints two
tables: the fitted ``tau`` under priors of several strengths, and the fitted total beside the
observed one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.records import Record, hash_settings, run_missing
from benchmarks.report import RESULTS, parsed, write_results
from models import Bags, VBAgg
from models.gp import priors

LAYOUT = {25: (5, 5), 50: (5, 10), 200: (10, 20)}  # areas by rows and columns
SIDE = 4  # pixels along an area
LEVEL = 0.05  # rate at the mean covariate
FIELD_SD, RANGE = 0.4, 6.0  # of the log rate; pixels
KERNEL = "linear(x) + matern32(space)"
TAUS = (0.0, 0.1, 0.2, 0.4)
RECORDS = Path(__file__).parents[1] / "build/area_effect"
UPPER = (0.1, 1.0)  # U of the prior P(sd > U) = 0.01


@dataclass(frozen=True)
class Country:
    """A simulated country.

    Attributes
    ----------
    bags : Bags
    expected : (n_area,) array
        Expected count of each area without its factor.
    again : (n_area,) array
        Counts of a second year: the same rates, new factors.
    """

    bags: Bags
    expected: np.ndarray
    again: np.ndarray


def simulate(n_area: int, tau: float, seed: int, people: float = 6000.0) -> Country:
    """Draw a country whose areas differ by a factor of mean one and deviation ``tau`` of its log.

    Parameters
    ----------
    n_area : {25, 50, 200}
    tau : float
    seed : int
    people : float
        Median number in an area.
    """
    rng = np.random.default_rng([seed, n_area])  # the same country for every tau
    n_row, n_col = LAYOUT[n_area]
    row, col = (a.ravel() for a in np.mgrid[: n_row * SIDE, : n_col * SIDE])
    area = (row // SIDE) * n_col + col // SIDE
    order = np.argsort(area, kind="stable")
    at = np.stack([row, col], axis=1)[order].astype(np.float64)
    gap = np.sqrt(((at[:, None] - at) ** 2).sum(axis=2)) * np.sqrt(3.0) / RANGE
    root = np.linalg.cholesky((1.0 + gap) * np.exp(-gap) + 1e-8 * np.eye(len(at)))
    field = FIELD_SD * root @ rng.standard_normal(len(at))
    x = np.sin(at[:, :1] / 5 + rng.uniform(0, 6)) + 0.5 * rng.standard_normal((len(at), 1))
    each = people * np.exp(0.6 * rng.standard_normal(n_area)) / SIDE**2
    weight = np.repeat(each, SIDE**2) * rng.gamma(4.0, 0.25, len(at))
    rate = LEVEL * np.exp(0.4 * x[:, 0] + field)
    offsets = np.arange(n_area + 1) * SIDE**2
    expected = np.add.reduceat(rate * weight, offsets[:-1])
    factor = np.exp(tau * rng.standard_normal(n_area) - 0.5 * tau**2)
    y = rng.poisson(expected * factor).astype(np.float64)
    factor = np.exp(tau * rng.standard_normal(n_area) - 0.5 * tau**2)
    again = rng.poisson(expected * factor).astype(np.float64)
    return Country(Bags(x, offsets, y, weight=weight, coords=at), expected, again)


def measure(n_area: int, tau: float, seed: int, upper: float) -> dict[str, Any]:
    """Fit one country under the prior ``P(sd > upper) = 0.01`` of the area effect."""
    country = simulate(n_area, tau, seed)
    bags = country.bags
    model = VBAgg(
        area_effect=True,
        link="exp",
        kernel=KERNEL,
        n_inducing=60,
        priors="weak",
        batch_bags=n_area,
        max_epochs=300,
        tolerance=0.0005,
        learning_rate=0.1,
        seed=seed,
    )
    with patch.object(priors, "LARGE_NOISE", upper):
        model.fit(bags, n_thread=1)
    rng = np.random.default_rng([seed, 1])
    drawn = model.predict_bags(bags, draws=model.sample_functions(1000, rng))
    counts = drawn.observed(rng).draws.sum(axis=1)
    total, observed = drawn.draws.sum(axis=1), float(bags.y.sum())

    def log_density(y: np.ndarray) -> np.ndarray:
        return drawn.likelihood.terms(y, drawn.draws, drawn.params, drawn.bag_data).value

    # With its own factor an area's mean is (y + 1) p(y + 1) / p(y) given its aggregate (Robbins
    # 1956, for a Poisson count of any mixed mean).
    own = (bags.y + 1) * np.exp(log_density(bags.y + 1) - log_density(bags.y)).mean(axis=0)
    return {
        "n_area": n_area,
        "tau": tau,
        "seed": seed,
        "upper": upper,
        "fitted_tau": model.named_hyperparameters()["area_sd"],
        "epochs": len(model.history_),
        "observed": observed,
        "expected": float(country.expected.sum()),
        "fitted": float(total.mean()),
        "medians": float(np.median(drawn.draws, axis=0).sum()),
        "with_own_factor": float(own.sum()),
        "own_off": float(np.abs(own - bags.y).mean() / np.abs(drawn.mean - bags.y).mean()),
        "share_below": float((counts < observed).mean()),
        "again_share_below": float((counts < country.again.sum()).mean()),
        "true_share_below": float((total < country.expected.sum()).mean()),
    }


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Average over seeds: the fitted ``tau``, and how totals lie beside the observed ones."""
    cells = []
    for key in sorted({(row["upper"], row["n_area"], row["tau"]) for row in rows}):
        of = [row for row in rows if (row["upper"], row["n_area"], row["tau"]) == key]
        fitted = np.array([row["fitted_tau"] for row in of])
        cells.append(
            {
                **dict(zip(("upper", "n_area", "tau"), key, strict=True)),
                "n_seed": len(of),
                "mean_tau": float(fitted.mean()),
                "rmse_tau": float(np.sqrt(np.mean((fitted - key[2]) ** 2))),
            }
        )
    totals = []
    for upper in sorted({row["upper"] for row in rows}):
        of = [row for row in rows if row["upper"] == upper and row["n_area"] < 200]
        names = ("share_below", "again_share_below", "true_share_below")
        below, again, true_below = (np.array([row[name] for row in of]) for name in names)
        ratio, medians, own = (
            np.array([row[name] / row["observed"] for row in of])
            for name in ("fitted", "medians", "with_own_factor")
        )
        totals.append(
            {
                "upper": upper,
                "n_fit": len(of),
                "fitted_by_observed": float(ratio.mean()),
                "standard_error": float(ratio.std(ddof=1) / np.sqrt(len(of))),
                "sum_of_medians_by_observed": float(medians.mean()),
                "with_own_factor_by_observed": float(own.mean()),
                **{
                    f"{name}_in_{level}": float((np.abs(at - 0.5) < level / 200).mean())
                    for name, at in (
                        ("observed", below),
                        ("second_year", again),
                        ("expectation", true_below),
                    )
                    for level in (50, 90)
                },
            }
        )
    return {"tau": cells, "totals": totals}


def of_country(n_area: int, seed: int, _number: int) -> Record:
    """Fit one country under all priors."""
    return {"fits": [measure(n_area, tau, seed, upper) for tau in TAUS for upper in UPPER]}


def main() -> None:
    """Measure country by country, write the JSON and print the tables."""
    options = parsed(
        __doc__,
        seeds=(6, "countries of 25 and of 50 areas"),
        large=(2, "countries of 200 areas"),
        records=RECORDS,
        results=RESULTS,
    )
    work = [(n, seed) for seed in range(options.seeds) for n in LAYOUT if n < 200]
    work += [(200, seed) for seed in range(options.large)]
    settings = hash_settings("area_effect", TAUS, UPPER, SIDE, LEVEL, FIELD_SD, RANGE, KERNEL)
    rows: list[dict[str, Any]] = []
    for n_area, seed in work:
        one = functools.partial(of_country, n_area, seed)
        file = options.records / f"{n_area}-{seed}.jsonl"
        for record in run_missing(one, [0], file, settings):
            rows += record["fits"]
    write_results(options.results / "area_effect.json", {**summarise(rows), "fits": rows})
    result = summarise(rows)
    for cell in result["tau"]:
        print(
            f"P(sd > {cell['upper']}) = .01, {cell['n_area']:3d} areas, tau {cell['tau']:.1f}: "
            f"fitted {cell['mean_tau']:.3f}, RMSE {cell['rmse_tau']:.3f}"
        )
    for each in result["totals"]:
        print(each)


if __name__ == "__main__":
    main()

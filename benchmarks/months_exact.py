r"""The model of months beside its exact posterior, at the same hyperparameters.

    python -m benchmarks.months_exact [--series 10] [--draws 1000]

Series of :mod:`benchmarks.sbc_months` (six months, 16 areas, 196 pixels) are fitted without draws
of the hyperparameters. At these, Hamiltonian Monte Carlo (:mod:`benchmarks.hmc`) samples

    y ~ Poisson(exp(log sum_i p_i e^{mean + f_i} + e)),    f ~ N(0, K),    e ~ N(-tau^2 / 2, tau^2),

with ``K`` dense between the pixels of all months and of the one after: no inducing variables, no
variational approximation, no filter. Compared are log rates of pixels, of areas and of the whole,
in the last month and in the one after. The command ends with an error where its two chains of a
series did not mix. Writes ``benchmarks/results/months_exact.json``.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from benchmarks.hmc import Mass, sample, split_rhat
from benchmarks.report import RESULTS, parsed, write_results
from benchmarks.sbc_months import CASES, DESIGN, MONTHS, Series, draw_series, make_model
from models import SpaceTime
from models.backend.arrays import segment_sum
from models.core.protocol import State
from models.gp.kernel_terms import split_terms
from models.gp.scaling import scaled_inputs
from models.temporal.time_text import STILL

JITTER = 1e-8  # of the mean variance
MIXED = 1.05  # most that split R-hat may be
N_DRAWS = 500
ROWS = {"last": MONTHS - 1, "ahead": MONTHS}


def prior_covariance(model: SpaceTime, state: State, z: np.ndarray) -> np.ndarray:
    """Return the covariance of ``f`` at inputs (n, n_dim) in all months and one more, dense."""
    text, lag = model.text(state.fixed), np.arange(MONTHS + 1.0)
    gap = np.abs(lag[:, None] - lag).astype(int)
    own = text.split(state.params["time"])
    found = np.zeros((lag.size * z.shape[0],) * 2)
    terms, times = split_terms(model._whole(state.fixed)), model.split_times(state.fixed)
    for term, number in zip(terms, times, strict=True):
        k = term.kernel.matrix(state.params["theta"][term.places], z, z)
        still = number == STILL
        along = (
            np.ones(gap.shape) if still else text.times[number].covariance(own[number], lag)[gap]
        )
        found += np.kron(along, k)
    found[np.diag_indices_from(found)] += JITTER * np.trace(found) / found.shape[0]
    return found


class Exact:
    """The posterior of ``f`` and of the noise of counts, whitened by the prior.

    Parameters
    ----------
    model : SpaceTime
        Fitted to the series.
    series : Series
    """

    def __init__(self, model: SpaceTime, series: Series) -> None:
        state, bags = model.state_, series.ahead
        z = scaled_inputs(state.fixed, bags.x, bags.coords, np.float64)
        tau = np.exp(state.params["log_area_sd"][0]) if model.has_area_effect else 0.0
        self._y = np.concatenate([period.bags.y for period in series.periods])
        self._n_pix, n = z.shape[0], self._y.size
        noise = [tau * np.eye(n)] if tau else []
        self._root = block_diag(np.linalg.cholesky(prior_covariance(model, state, z)), *noise)
        self._shift = -0.5 * tau**2
        self._mean = float(state.params["mean"][0] + np.log(state.fixed["base_rate"][0]))
        self._bags = bags
        self._n_f = (MONTHS + 1) * self._n_pix
        month = np.kron(np.eye(MONTHS, MONTHS + 1), np.ones((bags.n_bag, self._n_pix)))
        here = np.repeat(np.arange(bags.n_bag), np.diff(bags.offsets))
        own = np.tile(np.arange(bags.n_bag), MONTHS)[:, None] == np.tile(here, MONTHS + 1)
        self._weight = month * own * np.tile(bags.weight, MONTHS + 1)

    @property
    def size(self) -> int:
        """Dimensions of the posterior."""
        return int(self._root.shape[0])

    def _expected(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the counts that are expected, and their slopes by what ``q`` stands for."""
        g = self._root @ q
        by_f = self._weight * np.exp(self._mean + g[: self._n_f])
        eta = by_f.sum(axis=1)
        if g.size > self._n_f:
            factor = np.exp(g[self._n_f :] + self._shift)
            eta, by_f = factor * eta, factor[:, None] * by_f
            by_f = np.concatenate([by_f, np.diag(eta)], axis=1)
        return eta, by_f

    def density(self, q: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the log density and its gradient."""
        eta, by = self._expected(q)
        value = float(self._y @ np.log(eta) - eta.sum() - 0.5 * q @ q)
        return value, self._root.T @ ((self._y / eta - 1.0) @ by) - q

    def mass_at(self, q: np.ndarray) -> Mass:
        """Return the mass matrix: the prior, and the information of the counts."""
        eta, by = self._expected(q)
        return Mass(np.ones(q.size), (by / np.sqrt(eta)[:, None]) @ self._root)

    def log_rates(self, q: np.ndarray) -> np.ndarray:
        """Return log rates of the pixels in the months of :data:`ROWS`: (2, n_pix)."""
        f = (self._root[: self._n_f] @ q).reshape(MONTHS + 1, self._n_pix)
        return self._mean + f[list(ROWS.values())]


def compared(ours: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Compare draws (n_draws, n): ratio of deviations, and means in exact deviations."""
    sd = exact.std(axis=0)
    return {
        "sd_ratio": float((ours.std(axis=0) / sd).mean()),
        "off": float((np.abs(ours.mean(axis=0) - exact.mean(axis=0)) / sd).mean()),
    }


def measure(case: str, number: int, n_draws: int) -> dict[str, Any]:
    """Fit a series and sample its exact posterior; return a record."""
    model = make_model(seed=number, integrate="none", area_effect=CASES[case])
    series = draw_series(model, DESIGN, np.random.default_rng([341, number]))
    model.fit(series.periods, n_thread=1)
    exact = Exact(model, series)
    chains = []
    for chain in range(2):
        rng = np.random.default_rng([number, chain])
        start = 0.1 * rng.standard_normal(exact.size)
        how = {"n_warm": max(100, n_draws // 3), "n_keep": n_draws, "view": exact.log_rates}
        with np.errstate(all="ignore"):  # a trajectory that runs away is given up
            chains.append(sample(exact.density, start, exact.mass_at, rng, **how)[0])
    both = np.array(chains)
    record: dict[str, Any] = {"number": number, "rhat": float(split_rhat(both).max())}
    drawn, bags = both.reshape(-1, *both.shape[2:]), series.ahead
    functions = model.sample_functions(
        N_DRAWS, np.random.default_rng(number), [float(month) for month in ROWS.values()]
    )
    for row, (name, month) in enumerate(ROWS.items()):
        seen = month < MONTHS
        own = series.periods[month].bags if seen else bags
        areas = model.predict_bags(own, period=float(month), draws=functions, observed=seen).draws
        rates = functions.at(float(month)).rate(bags.x, bags.coords)
        wanted = np.exp(drawn[:, row])
        sums = np.stack([segment_sum(bags.weight * each, bags.offsets) for each in wanted])
        record[name] = {
            "pixels": compared(np.log(rates), drawn[:, row]),
            "areas": compared(np.log(areas), np.log(sums)),
            "total": compared(
                np.log(areas.sum(axis=1, keepdims=True)), np.log(sums.sum(axis=1, keepdims=True))
            ),
        }
    return record


def averaged(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means over series."""
    return {
        month: {
            of: {
                figure: round(float(np.mean([r[month][of][figure] for r in records])), 3)
                for figure in ("sd_ratio", "off")
            }
            for of in ("pixels", "areas", "total")
        }
        for month in ROWS
    }


def main() -> None:
    args = parsed(__doc__, series=10, draws=1000, results=RESULTS)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    found = {}
    for case in CASES:
        records = []
        for number in range(args.series):
            records.append(measure(case, number, args.draws))
            print(f"{case}: {number + 1} of {args.series}, R-hat {records[-1]['rhat']:.3f}")
        found[case] = {
            "series": args.series,
            "rhat": round(max(record["rhat"] for record in records), 3),
            **averaged(records),
        }
        print(case, found[case])
    write_results(args.results / "months_exact.json", {"draws": args.draws, "cases": found})
    worst = max(case["rhat"] for case in found.values())
    if worst > MIXED:
        raise SystemExit(f"chains have not mixed: R-hat is {worst}; use more --draws")


if __name__ == "__main__":
    main()

"""Simulation-based calibration of months: posteriors of series that are drawn from the priors.

    python -m benchmarks.sbc_months [--countries 100] [--workers 1] [--records DIR]

As :mod:`benchmarks.sbc`, with counts of 16 areas in six months, 196 pixels and two covariates. The
model is :class:`models.SpaceTime` with a surface that stays and one that drifts, its weak priors
and its other defaults. A series is drawn densely from the kernel itself. Ranks are of the last
month, of the month after it, which has no counts, and of the change between the first month and the
last. Once without noise between the counts of areas, once with it. Writes
``benchmarks/results/sbc_months.json`` and ``docs/figures/sbc-months.png``; the same command goes on
where it ended.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import prior_draws
from benchmarks.prior_draws import (
    JITTER,
    MOST_TRIES,
    Design,
    HyperPrior,
    accepted,
    make_geometry,
    mean_range,
)
from benchmarks.rank_tests import draw_ranks, histogram, rank_of
from benchmarks.records import hash_settings, run_missing
from benchmarks.report import RESULTS, parsed, write_results
from benchmarks.sbc import LEVELS, N_CHOSEN, N_DRAWS, columns, drawn_slopes, summarise
from models import Bags, Period, SpaceTime
from models.backend.arrays import segment_sum
from models.core.errors import ModelError
from models.core.protocol import State
from models.gp.kernel_terms import split_terms
from models.gp.scaling import scaled_inputs
from models.temporal.periods import PeriodSource
from models.temporal.time_text import STILL

FIGURE = Path(__file__).parents[1] / "docs/figures/sbc-months.png"
RECORDS = Path(__file__).parents[1] / "build/sbc"
KERNEL = "linear + matern32(space) + matern12(space) * time(matern12)"
CASES = {"months": False, "months_area_effect": True}  # name of a case: whether there is noise
MONTHS = 6
DESIGN = Design(n_side=14, n_area=16)


@dataclass(frozen=True)
class Series:
    """Counts of months, and what they were drawn from.

    Attributes
    ----------
    periods : list of Period
    ahead : Bags
        Of the month after the last.
    theta, times : (n,) float64
        Logarithms of the kernel's parameters, of space and of time.
    own : dict of float
        The likelihood's own parameters, logarithms.
    mean : float
    rate : (MONTHS + 1, n_pix) float64
    slopes : (n_feat,) float64
    eta : (MONTHS + 1, n_bag) float64
        Expected counts.
    n_tried : int
    """

    periods: list[Period]
    ahead: Bags
    theta: np.ndarray
    times: np.ndarray
    own: dict[str, float]
    mean: float
    rate: np.ndarray
    slopes: np.ndarray
    eta: np.ndarray
    n_tried: int


def make_model(**changed: Any) -> SpaceTime:
    """Return the model, not fitted."""
    return SpaceTime(**{"kernel": KERNEL, "priors": "weak", "season_length": None, **changed})


def settings_of(design: Design, **changed: Any) -> str:
    """Return a hash of all that decides a record."""
    params = make_model(**changed).get_params()
    return hash_settings(params, asdict(design), MONTHS, prior_draws.TOTALS, N_DRAWS, N_CHOSEN)


def prior_of(model: SpaceTime, state: State) -> HyperPrior:
    """Tabulate the model's own prior of the parameters of space, of time and of the noise."""
    places = _places(model, state)

    def density(phi: np.ndarray) -> tuple[float, np.ndarray]:
        own = dict(zip(places, np.split(phi, list(places.values())[:-1]), strict=True))
        value, grad = model.log_prior(replace(state, params={**state.params, **own}))
        return value, np.concatenate([grad[name] for name in places])

    names = (*model._kernel(state.fixed).names, *model.text(state.fixed).time_names)
    return HyperPrior.of((*names, *model.resolved_likelihood.parameters), density)


def _places(model: SpaceTime, state: State) -> dict[str, int]:
    """Return where each array of parameters under priors ends in ``phi``."""
    names = ("theta", "time", *model.resolved_likelihood.parameters)
    ends = np.cumsum([state.params[name].size for name in names])
    return dict(zip(names, ends.tolist(), strict=True))


def draw_fields(
    model: SpaceTime, state: State, phi: np.ndarray, at: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Draw ``f`` without its mean at inputs (n, n_dim) in all months and one more, by its kernel.

    Term by term: a Cholesky factor of its kernel in space, and of its correlation in time.
    """
    fixed, text = state.fixed, model.text(state.fixed)
    theta, of_time, *_ = np.split(phi, list(_places(model, state).values())[:-1])
    lag = np.arange(MONTHS + 1.0)
    gap = np.abs(lag[:, None] - lag).astype(int)
    f = np.zeros((lag.size, at.shape[0]))
    for term, number in zip(
        split_terms(model._whole(fixed)), model.split_times(fixed), strict=True
    ):
        root = _root(term.kernel.matrix(theta[term.places], at, at))
        if number == STILL:
            f += root @ rng.standard_normal(at.shape[0])
            continue
        kernel, own = text.times[number], text.split(of_time)[number]
        path = _root(kernel.covariance(own, lag)[gap])
        f += path @ rng.standard_normal(f.shape) @ root.T
    return f


def _root(k: np.ndarray) -> np.ndarray:
    k = 0.5 * (k + k.T)
    k[np.diag_indices_from(k)] += JITTER * np.trace(k) / k.shape[0]
    return np.asarray(np.linalg.cholesky(k))


def draw_series(model: SpaceTime, design: Design, rng: np.random.Generator) -> Series:
    """Draw hyperparameters, a surface of each month and counts from the model.

    Raises
    ------
    RuntimeError
        If :data:`benchmarks.prior_draws.MOST_TRIES` series in a row have totals out of range.
    """
    place = make_geometry(design, rng)

    def counted(y: np.ndarray) -> Bags:
        return Bags(place.x, place.offsets, y, place.weight, place.coords)

    bags = counted(place.y)
    alike = PeriodSource([Period(float(t), bags) for t in range(MONTHS)])
    state = model.init(alike.summary(rng), np.random.default_rng(0))
    prior = prior_of(model, state)
    z = scaled_inputs(state.fixed, bags.x, bags.coords, np.float64)
    foot = np.concatenate([np.zeros(design.n_feat), z[0, design.n_feat :]])
    steps = foot + np.eye(design.n_feat, z.shape[1])
    likelihood = model.resolved_likelihood
    bag_data = likelihood.bag_data(bags.weight, bags.offsets, None)
    n_kernel = state.params["theta"].size + state.params["time"].size
    for n_tried in range(1, MOST_TRIES + 1):
        phi = prior.draw(rng)
        f = draw_fields(model, state, phi, np.concatenate([z, foot[None], steps]), rng)
        f, slopes = f[:, : bags.n_pix], f[0, bags.n_pix + 1 :] - f[0, bags.n_pix]
        seen = f[:MONTHS].ravel()
        centre, half = mean_range("exp", seen, np.tile(bags.weight, MONTHS))
        mean = float(rng.uniform(centre - half, centre + half))
        rate = np.exp(mean + f)
        eta = np.stack([segment_sum(bags.weight * each, bags.offsets) for each in rate])
        own = dict(zip(likelihood.parameters, phi[n_kernel:].tolist(), strict=True))
        y = np.concatenate([likelihood.draw(each[None], own, bag_data, rng) for each in eta])
        if accepted("exp", y[:MONTHS], None):
            months = [counted(own) for own in y]
            periods = [Period(float(t), months[t]) for t in range(MONTHS)]
            theta, times = np.split(phi[:n_kernel], [state.params["theta"].size])
            return Series(periods, months[-1], theta, times, own, mean, rate, slopes, eta, n_tried)
    msg = f"{MOST_TRIES} series drawn from the priors have totals out of range; widen the range"
    raise RuntimeError(msg)


def measure(design: Design, changed: dict[str, Any], number: int) -> dict[str, Any]:
    """Draw, fit and rank series ``number``; a fit that fails is a record as well."""
    rng = np.random.default_rng([341, number])
    model = make_model(**{"seed": number, **changed})
    series = draw_series(model, design, rng)
    start = time.perf_counter()
    record: dict[str, Any] = {"tried": series.n_tried}
    try:
        model.fit(series.periods, n_thread=1)
        record.update(ranks_of(model, series, rng))
    except (ModelError, ArithmeticError, np.linalg.LinAlgError) as error:
        return {**record, "error": f"{type(error).__name__}: {error}"}
    record["seconds"] = round(time.perf_counter() - start, 2)
    record["converged"] = bool(model.converged_)
    return record


def ranks_of(model: SpaceTime, series: Series, rng: np.random.Generator) -> dict[str, Any]:
    """Rank the truth among draws of a fitted model; keys as of :func:`benchmarks.sbc.ranks_of`."""
    bags, last = series.ahead, MONTHS - 1
    draws = model.sample_functions(N_DRAWS, rng, [0.0, float(last), float(MONTHS)])
    ranks: dict[str, float] = {}
    found: dict[str, Any] = {}
    expected = {}
    for month, name in ((0, ""), (last, ""), (MONTHS, "ahead ")):
        seen = month < MONTHS  # as tables of fitted months are made: conditioned on their counts
        own = series.periods[month].bags if seen else bags
        areas = model.predict_bags(own, period=float(month), draws=draws, observed=seen)
        expected[month] = areas.draws
        if month == 0:
            continue
        at = draws.at(float(month))
        rate = rank_of(series.rate[month], at.rate(bags.x, bags.coords), rng)
        area = rank_of(series.eta[month], expected[month], rng)
        for kind, each in (("pixel", rate), ("area", area)):
            for k, i in enumerate(rng.choice(each.size, N_CHOSEN, replace=False)):
                ranks[f"{name}{kind} {k}"] = each[i]
        total = series.eta[month].sum(), expected[month].sum(axis=1)
        ranks[f"{name}total"] = rank_of(*total, rng)
        pixels = model.predict_pixels(bags.x, bags.coords, float(month))
        inside = 1.0 - np.asarray(pixels.exceed(series.rate[month]))
        cover = {
            str(level): [
                round(float(np.average(np.abs(u - 0.5) <= level / 200.0, weights=each)), 4)
                for u, each in ((inside, None), (inside, bags.weight), (area, None))
            ]
            for level in LEVELS
        }
        if month == last:
            found = {"pixels": _shares(rate), "areas": _shares(area), "cover": cover}
        else:
            found["cover_ahead"] = cover
    rise = (expected[last] - expected[0]).sum(axis=1)
    ranks["change"] = rank_of((series.eta[last] - series.eta[0]).sum(), rise, rng)
    for k, u in enumerate(rank_of(series.slopes, drawn_slopes(model, at, bags), rng)):
        ranks[f"slope {k}"] = u
    ranks.update(hyperparameter_ranks(model, series, rng))
    return {"ranks": {key: round(float(u), 4) for key, u in ranks.items()}, **found}


def hyperparameter_ranks(
    model: SpaceTime, series: Series, rng: np.random.Generator
) -> dict[str, float]:
    """Rank hyperparameters among the members of the posterior, by their weights."""
    state = model.state_
    members = state.members or {}
    if "theta" not in members:
        return {}
    names = model._kernel(state.fixed).names
    held = {name: (series.theta[k], members["theta"][:, k]) for k, name in enumerate(names)}
    for k, name in enumerate(model.text(state.fixed).time_names):
        held[name] = (series.times[k], members["time"][:, k])
    held |= {name: (value, members[name][:, 0]) for name, value in series.own.items()}
    unit = float(np.log(state.fixed["base_rate"][0]))
    held["mean"] = (series.mean, members["mean"][:, 0] + unit)
    return {
        f"hyper {name}": float(rank_of(value, drawn, rng, members.get("weight")))
        for name, (value, drawn) in held.items()
    }


def _shares(u: np.ndarray) -> list[float]:
    return histogram(u).round(4).tolist()


def run(
    case: str,
    n_country: int,
    n_worker: int,
    records: Path,
    design: Design = DESIGN,
    **changed: Any,
) -> list[dict[str, Any]]:
    """Measure the series of a case that have no record yet; return all records."""
    changed = {"area_effect": CASES[case], **changed}
    one: Callable[[int], dict[str, Any]] = functools.partial(measure, design, changed)
    path = records / f"{case}.jsonl"
    return run_missing(one, range(n_country), path, settings_of(design, **changed), n_worker)


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return :func:`benchmarks.sbc.summarise`, with the coverage of the month ahead."""
    ahead = [{**r, "cover": r["cover_ahead"]} for r in records if "ranks" in r]
    found = summarise(records)
    return {**found, "coverage_ahead": summarise(ahead)["coverage"]} if ahead else found


def main() -> None:
    args = parsed(
        __doc__, countries=100, workers=1, records=RECORDS, results=RESULTS, figure=FIGURE
    )
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # of the workers
    about = {"design": asdict(DESIGN), "months": MONTHS, "kernel": KERNEL}
    found = {case: run(case, args.countries, args.workers, args.records) for case in CASES}
    series = {case: summary(records) for case, records in found.items()}
    write_results(args.results / "sbc_months.json", {**about, "series": series})
    ranked = {case: [r for r in records if "ranks" in r] for case, records in found.items()}
    draw_ranks({case: columns(records) for case, records in ranked.items()}, args.figure)


if __name__ == "__main__":
    main()

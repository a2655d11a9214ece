"""When not to trust the map: what its intervals hold as the data get worse and the model wrong.

    python -m benchmarks.trust [--countries 20] [--workers 1] [--records DIR]
    python -m benchmarks.trust --table

A country has 30 x 30 pixels of 1 km, 40 areas with a mean of 100 cases, noise of deviation .2
between areas, and a rate that is linear in covariates plus a Matern-3/2 field
(:mod:`benchmarks.grids`). Each world differs from that in one thing: the number or the size of the
areas, the cases, the noise, or what the model takes for granted and is not so. The model is that
of ``disagg run``. Scores are of 90 % intervals of pixels, of the areas' expected counts without
the noise of each area, which tables do not hold either, and of five provinces, sums of areas.
``crude`` is the map in which each pixel has the rate of its area. Countries of a seed have the
same surfaces in all worlds.

A country's figures are a line in ``DIR``, so that the same command goes on where it ended; it
writes ``benchmarks/results/trust.json``. ``--table`` computes nothing: it writes the table of
``docs/calibration.md``, and the figures that ``check`` and the report cite
(``pipeline/evaluation/like_this.json``).
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.ndimage import shift

from benchmarks.designs import default_model
from benchmarks.grid_scores import N_DRAWS, area_scores, convergence, pixel_scores
from benchmarks.grids import Design, Grid, simulate, voronoi
from benchmarks.records import hash_settings, run_missing
from benchmarks.report import RESULTS, parsed, read_results, write_results
from models.backend.blas import one_blas_thread
from pipeline.evaluation import like_this

BASE = Design("linear", 40, cases=100.0, area_sd=0.2, n_side=30)
N_PROVINCE = 5
RECORDS = Path(__file__).parents[1] / "build/trust"
PAGE = Path(__file__).parents[1] / "docs/calibration.md"
CITED = Path(like_this.__file__).with_name(like_this.FILE)
BEGIN, END = "<!-- trust: table -->", "<!-- trust: end table -->"
NARROW, NO_ORDER, NO_GAIN = 0.85, 0.7, 0.05
AT_ONCE = 5  # countries of every world before the next ones of any


@dataclass(frozen=True)
class World:
    """Countries that differ from :data:`BASE` in one thing.

    Attributes
    ----------
    what, words : str
        The thing, and how it is.
    design : Design
    seen : callable
        From a country and a generator to what the user has of it; all of it by default.
    """

    what: str
    words: str
    design: Design = BASE
    seen: Callable[[Grid, np.random.Generator], Grid] = lambda grid, _: grid


def without_covariate(grid: Grid, _: Any) -> Grid:
    """Leave out the covariate of the largest slope."""
    gone = int(np.nanargmax(np.abs(grid.slopes)))
    nothing = np.full(grid.slopes.size - 1, np.nan)
    return replace(grid, x=np.delete(grid.x, gone, axis=1), slopes=nothing)


def with_people(grid: Grid, rng: np.random.Generator, sd: float = 0.5) -> Grid:
    """Give each pixel people that are off by a log-normal factor."""
    return replace(grid, people=grid.people * np.exp(sd * rng.standard_normal(grid.people.size)))


def with_reports(grid: Grid, rng: np.random.Generator, share: float = 0.2) -> Grid:
    """Let a fifth of the areas report half of their cases."""
    poor = rng.choice(grid.cases.size, round(share * grid.cases.size), replace=False)
    cases = grid.cases.copy()
    cases[poor] = rng.binomial(cases[poor].astype(int), 0.5)
    return replace(grid, cases=cases)


def with_borders(grid: Grid, _: Any, pixels: int) -> Grid:
    """Draw borders some pixels too far east and north; areas outside the country are gone."""
    n = round(grid.pixel.size**0.5)
    true = np.empty(grid.pixel.size, np.int64)
    true[grid.pixel] = np.repeat(np.arange(grid.cases.size), np.diff(grid.offsets))
    drawn = shift(true.reshape(n, n), pixels, order=0, mode="nearest").ravel()[grid.pixel]
    kept, area = np.unique(drawn, return_inverse=True)
    order = np.argsort(area, kind="stable")
    return replace(
        grid,
        **{name: getattr(grid, name)[order] for name in ("pixel", "x", "coords", "people", "rate")},
        offsets=np.concatenate([[0], np.cumsum(np.bincount(area))]),
        expected=grid.expected[kept],
        cases=grid.cases[kept],
    )


def squared(grid: Grid, rng: np.random.Generator) -> Grid:
    """Let effects add up on the scale of the root of the rate, as under the link ``square``."""
    f = np.log(grid.rate)
    rate = (1.0 + 0.5 * (f - f.mean())) ** 2
    areas = grid.offsets[:-1]
    rate *= grid.expected.sum() / (grid.people @ rate)
    expected = np.add.reduceat(grid.people * rate, areas)
    factor = np.exp(BASE.area_sd * rng.standard_normal(areas.size) - 0.5 * BASE.area_sd**2)
    cases = rng.poisson(expected * factor).astype(np.float64)
    return replace(grid, rate=rate, expected=expected, cases=cases)


def _of(**changed: Any) -> Design:
    return replace(BASE, **changed)


WORLDS: dict[str, World] = {
    "base": World("nothing wrong", "40 areas of 22 pixels and 100 cases, noise .2"),
    **{f"areas-{n}": World("areas", str(n), _of(n_area=n)) for n in (10, 20, 100, 200)},
    "pixels-10": World("pixels an area", "10", _of(n_side=20)),
    "pixels-90": World("pixels an area", "90", _of(n_side=60)),
    **{f"cases-{n:g}": World("cases an area", f"{n:g}", _of(cases=n)) for n in (3.0, 10.0, 1000.0)},
    **{f"noise-{s:g}": World("noise", f"{s:g}", _of(area_sd=s)) for s in (0.0, 0.45, 0.8)},
    "bent": World("effects", "bends and an interaction", _of(truth="bent")),
    "missing": World("covariates", "the strongest is missing", seen=without_covariate),
    "square": World("link", "the rate is a square", seen=squared),
    "rougher": World("smoothness", "1/2: jagged", _of(truth="rougher")),
    "smoother": World("smoothness", "5/2", _of(truth="smoother")),
    "borders-1": World("borders", "off by 1 pixel", seen=functools.partial(with_borders, pixels=1)),
    "borders-2": World(
        "borders", "off by 2 pixels", seen=functools.partial(with_borders, pixels=2)
    ),
    "people": World("people", "of a pixel off by a factor, deviation .5", seen=with_people),
    "reports": World("reports", "half of the cases, from a fifth of areas", seen=with_reports),
}


def draw(name: str, number: int) -> Grid:
    """Return what the user has of a country; ``expected`` is of the surface alone."""
    grid = simulate(WORLDS[name].design, number)
    return WORLDS[name].seen(grid, np.random.default_rng([34, number]))


def measure(name: str, number: int) -> dict[str, Any]:
    """Fit and score a country of a world; a fit that fails is told."""
    with one_blas_thread():
        grid = draw(name, number)
        model = default_model(grid, {})
        try:
            model.fit(grid.bags(), n_thread=1)
            return scores(model, grid, np.random.default_rng([4, number]))
        except Exception as error:  # told, not lost: a failure is a figure as well
            return {"error": f"{type(error).__name__}: {error}"}


def scores(model: Any, grid: Grid, rng: np.random.Generator) -> dict[str, Any]:
    """Return coverage of 90 % intervals by level, accuracy of pixels, and the crude map's."""
    functions = model.sample_functions(N_DRAWS, rng)
    draws = model.predict_bags(grid.bags(), draws=functions, observed=True).draws
    pixels = pixel_scores(model.predict_pixels(grid.x, grid.coords), grid, rng)
    sizes = np.diff(grid.offsets)
    centre = np.add.reduceat(grid.coords, grid.offsets[:-1]) / sizes[:, None]
    province = voronoi(centre, min(N_PROVINCE, sizes.size), rng)
    member = np.eye(province.max() + 1)[province]
    people = np.add.reduceat(grid.people, grid.offsets[:-1])
    crude = np.repeat(np.maximum(grid.cases, 0.5) / people, sizes)
    country = grid.expected.sum() / people.sum()
    return {
        "pixels": pixels["coverage"]["0.9"],
        "people": pixels["coverage_people"]["0.9"],
        "areas": area_scores(draws, grid.expected)["coverage"]["0.9"],
        "provinces": area_scores(draws @ member, grid.expected @ member)["coverage"]["0.9"],
        "width": pixels["width"],
        "correlation": pixels["correlation"],
        "crps": pixels["crps"],
        "crude_error": float(np.abs(crude - grid.rate).mean() / country),
        "crude_correlation": float(np.corrcoef(np.log(crude), np.log(grid.rate))[0, 1]),
        "converged": convergence(model)["converged"],
    }


def summarise(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over countries, and their standard errors."""
    done = [each for each in records if "error" not in each]
    names = [name for name, value in done[0].items() if isinstance(value, float)] if done else []
    columns = {name: np.array([each[name] for each in done]) for name in names}
    return {
        "countries": len(records),
        "failed": len(records) - len(done),
        "converged": float(np.mean([each["converged"] for each in done])) if done else 0.0,
        "mean": {name: round(float(each.mean()), 4) for name, each in columns.items()},
        "error": {
            name: round(float(each.std(ddof=1) / np.sqrt(each.size)), 4) if each.size > 1 else None
            for name, each in columns.items()
        },
    }


def verdict(mean: Mapping[str, float], error: Mapping[str, float | None]) -> str:
    """Say what of a map not to trust: intervals too short by two standard errors, or no order."""

    def below(of: str, limit: float) -> bool:
        return mean[of] + 2.0 * (error[of] or 0.0) < limit

    said = [f"intervals of {of}" for of in ("pixels", "areas", "provinces") if below(of, NARROW)]
    if mean["correlation"] < NO_ORDER:
        said.append("which of two pixels is worse")
    if mean["correlation"] < mean["crude_correlation"] + NO_GAIN:
        said.append("differences inside areas")
    return ", ".join(said) or "nothing more than elsewhere"


def table(found: Mapping[str, Any]) -> str:
    """Return a row for each world."""
    lines = [
        "| what | how | pixels | people | areas | provinces | correlation | crude | do not trust |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, world in WORLDS.items():
        if name not in found:
            continue
        mean, error = found[name]["mean"], found[name]["error"]
        cells = [
            *(f"{mean[of]:.2f} ± {error[of] or 0:.2f}" for of in ("pixels", "people")),
            *(f"{mean[of]:.2f}" for of in ("areas", "provinces")),
            f"{mean['correlation']:.2f}",
            f"{mean['crude_correlation']:.2f}",
            verdict(mean, error),
        ]
        lines.append(f"| {world.what} | {world.words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_page(found: Mapping[str, Any], page: Path = PAGE) -> None:
    """Write the table between its marks."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{after}", encoding="utf-8")


def cited(found: Mapping[str, Any]) -> dict[str, list[dict[str, float]]]:
    """Return the figures that the program cites, by the thing in which countries differ."""
    axes: dict[str, dict[str, float]] = {
        "areas": {"base": float(BASE.n_area), **{f"areas-{n}": n for n in (10, 20, 100, 200)}},
        "cases": {"base": BASE.cases, **{f"cases-{n}": n for n in (3, 10, 1000)}},
        "noise": {"base": BASE.area_sd, **{f"noise-{n:g}": n for n in (0.0, 0.45, 0.8)}},
    }
    return {
        axis: [
            {"level": level, "countries": found[name]["countries"] - found[name]["failed"]}
            | {of: found[name]["mean"][of] for of in ("pixels", "correlation")}
            | {"crude": found[name]["mean"]["crude_correlation"]}
            for name, level in sorted(names.items(), key=lambda each: each[1])
        ]
        for axis, names in axes.items()
    }


def main() -> None:
    """Measure what has no record yet, in all worlds country by country; write file and table."""
    args = parsed(
        __doc__,
        countries=20,
        workers=1,
        records=RECORDS,
        results=RESULTS,
        page=PAGE,
        table=(False, "the table alone"),
    )
    path = args.results / "trust.json"
    if not args.table:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(name, "1")  # of the workers
        found = {}
        # A few countries of every world first: what is interrupted has figures of all.
        for many in [*range(AT_ONCE, args.countries, AT_ONCE), args.countries]:
            for name, world in WORLDS.items():
                one = functools.partial(measure, name)
                settings = hash_settings(name, asdict(world.design), N_DRAWS, N_PROVINCE)
                file = args.records / f"{name}.jsonl"
                records = run_missing(one, range(many), file, settings, args.workers)
                found[name] = summarise(records)
            write_results(path, {"base": asdict(BASE), "worlds": found})
    worlds = read_results(path)["worlds"]
    write_page(worlds, args.page)
    if args.page == PAGE:
        CITED.write_text(json.dumps(cited(worlds), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

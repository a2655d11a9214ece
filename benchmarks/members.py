"""Ten chosen draws of the hyperparameters, and ten of strata, beside a hundred of a longer chain.

    python -m benchmarks.members [--countries 8] [--world base]

Countries are those of :mod:`benchmarks.trust`. ``strata`` takes the middle draw of each stratum of
the noise's share, as the model did before; ``chosen`` those of the same strata whose moments are
the nearest to the chain's (:mod:`models.aggregate.matched_draws`), as it does; ``longer`` does so
of a chain four times as long. Each way has chains of three seeds; what they are held against is of
a chain of its own, ten times as long. ``off``: root mean square difference of the means of log
rates, in deviations of the reference; ``sd``: mean ratio of deviations with ``se``, its standard
error, and ``sd_between``, its deviation between fits. It ends with an error where both ways took
the same draws. Writes ``benchmarks/results/members.json``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.designs import default_model
from benchmarks.grids import Grid
from benchmarks.report import RESULTS, parsed, write_results
from benchmarks.trust import WORLDS, draw
from models.aggregate import hyperparameter_chain, refinement
from models.aggregate.hyperparameter_chain import Chain
from models.backend.blas import one_blas_thread

MANY, FEW, SEEDS = 100, 10, 3
LONGER, MORE = 10, 4  # times as many steps of the chain that is the reference
N_DRAWS = 1000  # of areas, and of each pixel


def strata(chain: Chain, n: int) -> np.ndarray:
    """Return the middle draw of each stratum of the share of noise."""
    order = np.argsort(chain.noise, kind="stable")
    return np.asarray(order[((np.arange(n) + 0.5) / n * order.size).astype(np.int64)])


def moments(grid: Grid, members: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return means and deviations of the log rates of areas and pixels of a fit."""
    model = default_model(grid, {"integrate": members})
    model.fit(grid.bags(), n_thread=1)
    functions = model.sample_functions(N_DRAWS, np.random.default_rng(1))
    areas = model.predict_bags(grid.bags(), draws=functions, observed=True).draws
    pixels = model.predict_pixels(grid.x, grid.coords).sample(N_DRAWS, np.random.default_rng(1))
    each = {"areas": np.log(areas), "pixels": np.log(pixels)}
    return {name: (own.mean(axis=0), own.std(axis=0)) for name, own in each.items()}


@contextmanager
def another_chain(seed: int, longer: int = 1) -> Iterator[None]:
    """Let fits draw their hyperparameters by a chain of another seed, and of another length."""
    explore, kept = hyperparameter_chain.explore, hyperparameter_chain.KEPT * longer

    def other(evidence: Any, phi: Any, covariance: Any, places: Any, _: int) -> Any:
        n_draw = kept // hyperparameter_chain.KEPT_EACH
        return explore(evidence, phi, covariance, places, seed, n_draw)

    with (
        patch.object(hyperparameter_chain, "KEPT", kept),
        patch.object(refinement, "explore", other),
    ):
        yield


def measure(world: str, number: int) -> dict[str, list[dict[str, list[float]]]]:
    """Compare both ways on one country, for each seed: ``off`` and ``sd`` of areas and pixels."""
    grid = draw(world, number)
    found: dict[str, list[dict[str, list[float]]]] = {"strata": [], "chosen": [], "longer": []}
    with one_blas_thread():
        with another_chain(1000 + number, LONGER):
            many = moments(grid, MANY)
        for seed in range(2000, 2000 + 100 * SEEDS, 100):
            ways = {}
            with another_chain(seed + number):
                ways["chosen"] = moments(grid, FEW)
                with patch.object(Chain, "representatives", strata):
                    ways["strata"] = moments(grid, FEW)
            with another_chain(seed + number, MORE):
                ways["longer"] = moments(grid, FEW)
            if np.array_equal(ways["chosen"]["pixels"][0], ways["strata"]["pixels"][0]):
                raise SystemExit(f"country {number}: both ways took the same draws")
            for way, own in ways.items():
                found[way].append({of: _apart(own[of], many[of]) for of in own})
    return found


def _apart(own: tuple[np.ndarray, np.ndarray], many: tuple[np.ndarray, np.ndarray]) -> list[float]:
    off = np.sqrt((((own[0] - many[0]) / many[1]) ** 2).mean())
    return [float(off), float((own[1] / many[1]).mean())]


def main() -> None:
    args = parsed(__doc__, countries=8, world={"choices": list(WORLDS), "default": "base"})
    found = [measure(args.world, number) for number in range(args.countries)]
    ways: dict[str, Any] = {}
    for way in ("strata", "chosen", "longer"):
        for of in ("areas", "pixels"):
            each = np.array([fit[of] for own in found for fit in own[way]])
            ways.setdefault(way, {})[of] = {
                "off": round(float(each[:, 0].mean()), 3),
                "sd": round(float(each[:, 1].mean()), 3),
                "se": round(float(each[:, 1].std(ddof=1) / np.sqrt(each.shape[0])), 3),
                "sd_between": round(float(each[:, 1].std(ddof=1)), 3),
            }
    print(ways)
    about = {"world": args.world, "countries": args.countries, "many": MANY, "few": FEW}
    about["seeds"] = SEEDS
    write_results(RESULTS / "members.json", {**about, **ways})


if __name__ == "__main__":
    main()

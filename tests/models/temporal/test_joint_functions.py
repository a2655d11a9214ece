"""Functions of several times evaluated together, against each time and all terms alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.aggregate import observed_draws, rate_draws
from models.aggregate.rate_draws import PooledDraws, SurfaceDraws
from models.core.block import BagBlock
from models.core.protocol import State
from models.gp import draws as gp_draws
from models.gp.draws import FunctionDraws
from models.gp.scaling import scaled_inputs
from models.temporal.joint_functions import FunctionsInTime
from models.temporal.posterior import PeriodDraws, path_posterior
from models.temporal.term_runs import KEPT, MOVING, SUMMED, Run
from tests.models.temporal.world import Held, model_of, months

TIMES = [1.0, 2.0, 3.0, 5.0]
TEXTS = {
    "areas apart": "ridge(x) + area * time(matern12) + matern32(space) + matern12(space) * season",
    "no areas": "smooth(x) + matern32(space) + matern12(space) * time(matern12) + season",
    "covariates with a time": "rbf(x) * time(matern12) + matern32(space) * time(matern32)",
}


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Visit bags in several parts, and let few pixels stand for them."""
    for place, name, value in (
        (gp_draws, "ROWS", 17),
        (rate_draws, "ROWS", 17),
        (observed_draws, "PIXELS", 3),
    ):
        monkeypatch.setattr(place, name, value)


@pytest.fixture(scope="module", params=TEXTS.values(), ids=TEXTS)
def fitted(request: pytest.FixtureRequest) -> tuple[Held, State]:
    """A model of three months, with its best sites."""
    held = Held(model_of(kernel=request.param), months(3))
    return held, held.best()


def _drawn(fitted: tuple[Held, State], moving: list[int] | None) -> PeriodDraws:
    held, state = fitted
    return path_posterior(held.model, state).draws(20, np.random.default_rng(3), TIMES, moving)


def _blocks(fitted: tuple[Held, State], *, moved: bool) -> list[BagBlock]:
    """Return a block of each time, with covariates of its own where they move."""
    held, rng = fitted[0], np.random.default_rng(8)
    block = held.model.with_area(held.start.fixed, held.source.read(1))
    found = []
    for _ in TIMES:
        x = np.array(block.x)
        if moved:
            x[:, 0] = rng.standard_normal(x.shape[0])
        found.append(replace(block, x=x))
    return found


def _alone(own: Any, block: BagBlock) -> np.ndarray:
    """Return the rates of a time by all terms at once, without those of other times."""
    functions = own.functions
    z = scaled_inputs(own.fixed, block.x, block.coords, np.float64)
    f = FunctionDraws.latent(functions, z)
    if functions.table is not None:
        f = f + functions.table[z[:, functions.column].astype(np.int64)]
    return np.asarray(functions.surface.scale * np.exp(f).T)


@pytest.mark.parametrize("moved", [False, True])
def test_rates_are_those_of_each_time_alone(fitted: Any, moved: bool) -> None:
    drawn, blocks = _drawn(fitted, [0] if moved else []), _blocks(fitted, moved=moved)
    for rows in (slice(0, 9), slice(9, 30)):
        for own, block in zip(drawn.each, blocks, strict=True):
            found = own.rate(block.x[rows], block.coords[rows])
            np.testing.assert_allclose(found, _alone(own, block)[:, rows], rtol=1e-10)


def test_what_is_known_of_other_pixels_is_not_taken_for_these(fitted: Any) -> None:
    """A wrong word on what moves costs time, not the answer."""
    drawn, blocks = _drawn(fitted, []), _blocks(fitted, moved=True)
    for own, block in zip(drawn.each, blocks, strict=True):
        np.testing.assert_allclose(own.rate(block.x, block.coords), _alone(own, block), rtol=1e-10)


def test_the_same_seed_draws_the_same_whatever_moves(fitted: Any) -> None:
    block = _blocks(fitted, moved=False)[0]
    each = [_drawn(fitted, moving).at(5.0) for moving in (None, [], [0])]
    rates = [own.rate(block.x, block.coords) for own in each]
    np.testing.assert_allclose(rates[1:], rates[:1] * 2, rtol=1e-10)


def test_terms_are_of_the_kind_that_they_are() -> None:
    held = Held(model_of(kernel=TEXTS["no areas"]), months(3))
    functions: Any = _drawn((held, held.start), [0]).each[0].functions
    assert isinstance(functions, FunctionsInTime)
    # The first covariate; the second with space; space with a time, and the season.
    assert [each.run.kind for each in functions.terms.runs] == [MOVING, SUMMED, KEPT]


def test_pixels_of_all_periods_are_evaluated_once(
    fitted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    evaluate = Run.cross

    def counted(run: Run, theta: np.ndarray, z: np.ndarray) -> Any:
        seen.append(run.kind)
        return evaluate(run, theta, z)

    monkeypatch.setattr(Run, "cross", counted)
    drawn, blocks = _drawn(fitted, []), _blocks(fitted, moved=False)
    runs = drawn.each[0].functions.terms.runs  # type: ignore[union-attr]
    blocks[2:] = [replace(own, y=np.full(own.n_bag, np.nan)) for own in blocks[2:]]  # forecasts
    drawn.counted(blocks)
    chunks = -(-blocks[0].n_pix // 17)
    assert len(seen) == chunks * len(runs)


@pytest.mark.parametrize("moved", [False, True])
def test_aggregates_over_times_are_those_of_each(fitted: Any, moved: bool) -> None:
    """Also what conditions them, with few pixels that stand for the variances."""
    drawn, blocks = _drawn(fitted, [0] if moved else []), _blocks(fitted, moved=moved)
    for own, block, counted in zip(drawn.each, blocks, drawn.counted(blocks), strict=True):
        expected = own.bag_counts(block)
        np.testing.assert_allclose(counted.bag_counts(block), expected, rtol=1e-10)
        factors = own.observed_factors(block, expected)
        assert np.abs(factors - 1.0).max() > 1e-4
        np.testing.assert_allclose(counted.observed_factors(block, expected), factors, rtol=1e-8)


@pytest.mark.parametrize("moved", [False, True])
def test_a_share_of_the_draws_is_evaluated_as_with_the_others(fitted: Any, moved: bool) -> None:
    """Also of draws under several sets of hyperparameters, one of which has none in a share."""
    columns = [0] if moved else []
    one, other = _drawn(fitted, columns), _drawn(fitted, columns)
    member = np.append(np.zeros(20, np.int64), 1)[np.random.default_rng(5).permutation(21)]
    blocks = _blocks(fitted, moved=moved)
    pooled = []
    for own, also in zip(one.each, other.each, strict=True):
        assert isinstance(own, SurfaceDraws)
        assert isinstance(also, SurfaceDraws)
        pooled.append(PooledDraws.of([own, also.some(np.array([4]))], member))
    whole = PeriodDraws(tuple(TIMES), tuple(pooled))
    shares = whole.among([*TIMES, 2.0], [(0, 1), (0, 3), (1, 3), (2, 3), (2, 3)])
    every = [*blocks, blocks[1]]
    blank = replace(blocks[3], y=np.full(blocks[3].n_bag, np.nan))
    counted = shares.counted([*blocks[:3], blank, blocks[1]])
    for number, (own, block) in enumerate(zip(shares.each, every, strict=True)):
        full = pooled[TIMES.index(shares.times[number])]
        rows = slice((0, 0, 1, 2, 2)[number], None, 3 if number else 1)
        expected = full.rate(block.x, block.coords)[rows]
        np.testing.assert_allclose(own.rate(block.x, block.coords), expected, rtol=1e-10)
        counts = full.bag_counts(block)
        np.testing.assert_allclose(counted[number].bag_counts(block), counts[rows], rtol=1e-10)
        factors = np.ones_like(counts) if number == 3 else full.observed_factors(block, counts)
        asked = blank if number == 3 else block
        found = counted[number].observed_factors(asked, counts[rows])
        np.testing.assert_allclose(found, factors[rows], rtol=1e-8)
        np.testing.assert_array_equal(own.clusters, full.clusters[rows])


@pytest.mark.parametrize("moved", [False, True])
def test_moments_are_those_of_each_time_alone(fitted: Any, moved: bool) -> None:
    """Also outside of all areas; a wrong word on what moves costs time, not the answer."""
    posterior = path_posterior(fitted[0].model, fitted[1])
    blocks = _blocks(fitted, moved=moved)
    apart = fitted[0].model.text(fitted[1].fixed).has_area
    for moving in (None, [0], []):
        joint = posterior.joint_moments(TIMES, moving)
        for rows in (slice(0, 9), slice(9, 30)):
            for number, (time, block) in enumerate(zip(TIMES, blocks, strict=True)):
                x, coords = np.array(block.x[rows]), block.coords[rows]
                if apart:
                    x[::4, -1] = -1
                found = joint.at(number, x, coords).parts[0]
                expected = posterior.at(time).moments(x, coords).parts[0]
                for name in ("m", "s"):
                    ours, theirs = getattr(found, name), getattr(expected, name)
                    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)
                np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-9)

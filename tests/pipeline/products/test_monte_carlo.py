"""The standard error of averages over draws, against the spread of sets that are drawn again."""

from __future__ import annotations

import numpy as np
import pytest

from models.aggregate.rate_draws import allocate
from models.core.block import BagBlock
from pipeline.products.monte_carlo import standard_error
from tests.models.aggregate.test_members import with_members

WEIGHT = np.array([0.6, 0.3, 0.1])
APART, OWN, SHARED = 8.0, 1.0, 0.6  # deviations of members, of draws, of groups


def _set(rng, n=120, n_group=4):
    """Draws of members that differ much, in groups that share an error."""
    member = allocate(WEIGHT, n, rng)
    group = np.empty(n, int)
    for k in range(3):
        own = member == k
        group[own] = np.arange(own.sum()) % n_group
    error = SHARED * rng.standard_normal((3, n_group))
    value = APART * member + error[member, group] + OWN * rng.standard_normal(n)
    return value, np.stack([member, group], axis=1)


def test_neither_members_nor_shared_errors_mislead_it():
    rng = np.random.default_rng(0)
    sets = [_set(rng) for _ in range(600)]
    spread = np.std([value.mean() for value, _ in sets], ddof=1)
    ours = np.sqrt(np.mean([standard_error(*each) ** 2 for each in sets]))
    # Three strata of four clusters: of 600 sets the spread is known to 3 %.
    assert ours == pytest.approx(spread, rel=0.1)
    apart = np.sqrt(np.mean([standard_error(value) ** 2 for value, _ in sets]))
    assert apart > 1.5 * spread  # as if members differed by chance
    alone = [np.stack([c[:, 0], np.arange(c.shape[0])], axis=1) for _, c in sets]
    within = [standard_error(value, c) ** 2 for (value, _), c in zip(sets, alone, strict=True)]
    assert np.sqrt(np.mean(within)) < 0.7 * spread  # as if draws shared nothing


def test_by_hand():
    value = np.array([1.0, 3.0, 7.0, 9.0, 14.0, 5.0])
    # Deviations from members: -4 -2 2 4 of groups 0 0 1 1; 4.5 -4.5 of groups 0 1.
    clusters = np.array([[0, 0], [0, 0], [0, 1], [0, 1], [1, 0], [1, 1]])
    assert standard_error(value, clusters) == pytest.approx(np.sqrt(2 * 72 + 2 * 40.5) / 6)
    # A third member of one draw has the variance of the others' draws.
    more = np.append(value, 100.0), np.concatenate([clusters, [[2, 0]]])
    assert standard_error(*more) == pytest.approx(np.sqrt((2 * 72 + 2 * 40.5) * 7 / 6) / 7)
    assert standard_error(value) == pytest.approx(value.std(ddof=1) / np.sqrt(6))
    # Members of one draw each: no more is known than that.
    each = np.stack([np.arange(6), np.zeros(6, int)], axis=1)
    assert standard_error(value, each) == standard_error(value)


@pytest.mark.ci
@pytest.mark.parametrize("weight", [np.full(4, 0.25), np.array([0.55, 0.25, 0.15, 0.05])])
def test_totals_of_a_fitted_model_spread_as_it_says(weight, world):
    model = with_members(world.model, weight, size=0.2)
    bags = BagBlock.join(list(world.store.blocks()))
    totals, errors, apart = [], [], []
    for seed in range(60):
        functions = model.sample_functions(120, np.random.default_rng(seed))
        total = functions.bag_counts(bags).sum(axis=1)
        totals.append(total.mean())
        errors.append(standard_error(total, functions.clusters))
        apart.append(standard_error(total))
    spread, ours = np.std(totals, ddof=1), np.sqrt(np.mean(np.square(errors)))
    # The spread of 60 sets is known to 9 %, the mean square of their errors to some 5 %.
    assert abs(np.log(ours / spread)) < 0.3
    assert np.sqrt(np.mean(np.square(apart))) > 1.35 * ours

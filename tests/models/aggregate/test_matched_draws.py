import numpy as np
import pytest

from models.aggregate.matched_draws import matched_draws


def draws(seed, n_dim=8):
    rng = np.random.default_rng(seed)
    root = np.tril(rng.standard_normal((n_dim, n_dim))) * 0.4 + np.eye(n_dim)
    return rng.standard_normal((1200, n_dim)) @ root.T + 3.0


@pytest.mark.parametrize("seed", range(3))
def test_few_draws_have_the_moments_of_all_nearer_than_draws_at_random(seed):
    x = draws(seed)
    rng = np.random.default_rng(seed)

    def errors(rows):
        off = (x[rows].mean(axis=0) - x.mean(axis=0)) / x.std(axis=0)
        return np.sqrt((off**2).mean()), np.log(x[rows].std(axis=0) / x.std(axis=0)).mean()

    off, spread = errors(matched_draws(x, x[:, 0], 10))
    random = np.array([errors(rng.choice(1200, 10)) for _ in range(200)])
    assert off < np.quantile(random[:, 0], 0.02)  # .1 and .3 deviations
    assert abs(spread) < 0.08


def test_one_draw_is_of_each_stratum_and_units_do_not_matter():
    x = draws(4)
    rows = matched_draws(x, x[:, 2], 10)
    places = np.sort(np.argsort(np.argsort(x[:, 2]))[rows])
    assert (places // 120).tolist() == list(range(10))
    assert matched_draws(1000.0 * x - 7.0, x[:, 2], 10).tolist() == rows.tolist()


def test_what_never_moves_is_left_out_and_all_rows_may_be_asked_for():
    x = np.column_stack([draws(5)[:20], np.full(20, 2.0)])
    assert matched_draws(x, np.zeros(20), 20).tolist() == list(range(20))
    assert matched_draws(np.full((20, 3), 1.0), np.zeros(20), 4).size == 4

import pickle

import numpy as np

from models.temporal.kept_moments import KeptMoments
from models.temporal.sites import Arrow

N = 10


def moments(value):
    return np.full(N, value), Arrow(np.full((N, N), value), np.zeros((N, 0)), np.zeros(0))


SIZE = 8 * (N + N * N)
OWNER, OTHER = object(), object()


def test_the_oldest_go_where_there_is_no_room_and_what_nobody_wants_pushes_none_out():
    kept = KeptMoments(3 * SIZE)
    kept.put(OWNER, {0.0: moments(0.0)}, {1.0: moments(1.0), 2.0: moments(2.0)})
    kept.put(OTHER, {}, {0.0: moments(7.0)})
    assert kept.get(OTHER, 0.0) is None
    kept.put(OTHER, {0.0: moments(7.0)}, {1.0: moments(8.0)})
    assert [kept.get(OWNER, time) is None for time in (0.0, 1.0, 2.0)] == [False, True, False]
    assert kept.get(OTHER, 0.0)[0][0] == 7.0
    assert kept.get(OTHER, 1.0) is None


def test_what_is_asked_for_together_stays_together():
    kept = KeptMoments(2 * SIZE)
    kept.put(OTHER, {0.0: moments(7.0)}, {})
    kept.put(OWNER, {float(time): moments(time) for time in range(5)}, {9.0: moments(9.0)})
    assert [kept.get(OWNER, float(time))[0][0] for time in range(5)] == [0, 1, 2, 3, 4]
    assert kept.get(OTHER, 0.0) is None
    assert kept.get(OWNER, 9.0) is None
    kept.put(OWNER, {1.0: moments(6.0)}, {})
    assert kept.get(OWNER, 1.0)[0][0] == 6.0
    assert sum(kept.get(OWNER, float(time)) is not None for time in range(5)) == 2


def test_a_copy_elsewhere_keeps_nothing_of_this_process():
    kept = KeptMoments(SIZE)
    kept.put(OWNER, {1.0: moments(1.0)}, {})
    there = pickle.loads(pickle.dumps(kept))
    assert there.get(OWNER, 1.0) is None
    there.put(OWNER, {1.0: moments(2.0)}, {})
    assert there.get(OWNER, 1.0)[0][0] == 2.0

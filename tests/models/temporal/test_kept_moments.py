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
    for time in range(3):
        kept.put(OWNER, float(time), moments(time), wanted=time == 0)
    kept.put(OTHER, 0.0, moments(7.0), wanted=False)
    assert kept.get(OTHER, 0.0) is None
    kept.put(OTHER, 0.0, moments(7.0), wanted=True)
    assert kept.get(OWNER, 0.0) is None
    assert kept.get(OWNER, 1.0)[0][0] == 1.0
    assert kept.get(OTHER, 0.0)[0][0] == 7.0


def test_a_time_is_kept_once_and_nothing_where_it_is_larger_than_all_room():
    kept = KeptMoments(2 * SIZE)
    for value in range(5):
        kept.put(OWNER, 1.0, moments(value), wanted=True)
    kept.put(OWNER, 2.0, moments(9.0), wanted=False)
    assert kept.get(OWNER, 1.0)[0][0] == 4.0
    assert kept.get(OWNER, 2.0)[0][0] == 9.0


def test_a_copy_elsewhere_keeps_nothing_of_this_process():
    kept = KeptMoments(SIZE)
    kept.put(OWNER, 1.0, moments(1.0), wanted=True)
    there = pickle.loads(pickle.dumps(kept))
    assert there.get(OWNER, 1.0) is None
    there.put(OWNER, 1.0, moments(2.0), wanted=True)
    assert there.get(OWNER, 1.0)[0][0] == 2.0

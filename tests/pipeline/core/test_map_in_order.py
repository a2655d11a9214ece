"""Threads whose results keep the items' order, and that hold few of them."""

from __future__ import annotations

import threading
import time

import pytest

from pipeline.core.threads import map_in_order


@pytest.mark.parametrize("n_thread", [1, 2, 3])
def test_results_come_in_order_though_late_items_finish_first(n_thread):
    def work(number):
        time.sleep(0.002 * (number % 3 == 0))
        return number * number

    assert list(map_in_order(work, range(20), n_thread)) == [n * n for n in range(20)]


def test_few_items_are_held_at_a_time():
    begun, most = 0, 0
    lock = threading.Lock()

    def work(number):
        nonlocal begun
        with lock:
            begun += 1
        return number

    for used, _ in enumerate(map_in_order(work, range(30), n_thread=2, ahead=1)):
        most = max(most, begun - used)
    assert 1 <= most <= 3


def test_an_exception_comes_out_in_its_turn_and_drops_the_rest():
    done = []

    def work(number):
        if number == 3:
            msg = "three"
            raise ValueError(msg)
        done.append(number)
        return number

    results = map_in_order(work, range(100), 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
    assert max(done) < 10

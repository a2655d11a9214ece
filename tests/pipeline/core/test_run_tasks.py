"""Tasks in threads: results in order, and nobody left running after a failure."""

from __future__ import annotations

import itertools
import signal
import threading
import time

import pytest

from geo.core.stopping import stop_if_asked
from pipeline.core.threads import run_tasks


def test_results_come_in_the_order_of_the_arguments_passed_as_they_are() -> None:
    def slow_first(k: int, marker: object) -> tuple[int, object]:
        time.sleep(0.02 if k == 0 else 0)
        return k * k, marker

    marker = object()
    found = run_tasks(slow_first, [(k, marker) for k in range(9)], workers=3)
    assert found == [(k * k, marker) for k in range(9)]


def test_nobody_runs_after_a_failure_was_raised() -> None:
    both = threading.Barrier(2, timeout=5)
    turn = itertools.count()
    finished = []

    def work(k: int) -> None:
        mine = next(turn)
        if mine < 2:
            both.wait()
        if mine == 0:
            found = "first"
            raise KeyError(found)
        time.sleep(0.05)
        finished.append(k)

    with pytest.raises(KeyError, match="first"):
        run_tasks(work, [(k,) for k in range(20)], workers=2)
    assert len(finished) == 1  # the one that ran beside the failure was waited for
    time.sleep(0.1)
    assert len(finished) == 1


@pytest.mark.timeout(60)
def test_an_interruption_ends_calls_that_ask_whether_to_stop():
    # A tile of a raster far finer than the grid is a call of minutes: it asks before each read.
    ended = []

    def call(number):
        try:
            begin = time.monotonic()
            while time.monotonic() - begin < 50:
                stop_if_asked()
                time.sleep(0.01)
        finally:
            ended.append(number)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    begin = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_tasks(call, [(0,), (1,)], 2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begin < 20
    assert sorted(ended) == [0, 1]


def test_the_failure_of_a_call_is_raised_not_that_others_were_stopped():
    started = threading.Barrier(2)

    def call(number):
        started.wait(10)
        if number == 0:
            message = "the cause"
            raise ValueError(message)
        while True:
            stop_if_asked()

    for _ in range(5):
        with pytest.raises(ValueError, match="the cause"):
            run_tasks(call, [(0,), (1,)], 2)

"""Tasks in threads: results in order, and nobody left running after a failure."""

from __future__ import annotations

import itertools
import signal
import threading
import time

import pytest

from geo.core.stopping import stop_if_asked
from pipeline.core.threads import run_tasks


def test_results_come_in_the_order_of_the_arguments() -> None:
    def slow_first(k: int) -> int:
        time.sleep(0.02 if k == 0 else 0)
        return k * k

    assert run_tasks(slow_first, [(k,) for k in range(9)], workers=3) == [k * k for k in range(9)]


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
        time.sleep(0.1)
        finished.append(k)

    with pytest.raises(KeyError, match="first"):
        run_tasks(work, [(k,) for k in range(20)], workers=2)
    assert len(finished) == 1  # the one that ran beside the failure was waited for
    time.sleep(0.25)
    assert len(finished) == 1


def test_arguments_are_passed_as_they_are() -> None:
    marker = object()
    assert run_tasks(lambda a, b: (a, b), [(marker, [marker])], workers=1) == [(marker, [marker])]


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
    signal.setitimer(signal.ITIMER_REAL, 0.3)
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

    for _ in range(20):
        with pytest.raises(ValueError, match="the cause"):
            run_tasks(call, [(0,), (1,)], 2)

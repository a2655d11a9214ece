"""Tasks in threads: results in order, and nobody left running after a failure."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

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

"""Calls in processes of their own: the same results in order, errors, progress, interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from geo.core.errors import InputError
from models.core.errors import NumericalError
from pipeline.core import supervised
from pipeline.core.processes import in_processes, shares
from pipeline.core.progress import Silent
from tests.progress import Notes

ROOT = Path(__file__).parents[3]


def _work(number, told, wait=0.0):
    time.sleep(wait)
    with told.task(f"call {number}", 2) as task:
        task.advance(1, objective=1.5)
        task.advance()
    told.log(f"line of {number}")
    return number, os.getpid(), sorted(os.sched_getaffinity(0))


def test_results_come_in_order_from_processes_with_a_share_of_the_cores(monkeypatch):
    told = Notes()
    calls = [partial(_work, number, wait=0.1 * (number == 0)) for number in range(5)]
    found = list(in_processes(calls, 2, told))
    assert [number for number, _, _ in found] == list(range(5))
    assert len({process for _, process, _ in found} | {os.getpid()}) == 6
    cores = sorted(os.sched_getaffinity(0))
    assert {tuple(own) for _, _, own in found} <= {tuple(cores[0::2]), tuple(cores[1::2])}
    assert told.lines == [f"line of {number}" for number in range(5)]
    here = list(in_processes(calls, 1, Silent()))
    assert {process for _, process, _ in here} == {os.getpid()}
    assert shares(9, 2) == 1  # a program that has the say over its own process
    monkeypatch.setattr(supervised, "own_process", True)
    assert shares(9, 2) == 2
    assert shares(1) == 1


def test_an_error_is_raised_in_its_turn_and_ends_the_others(tmp_path):
    def fails(told):
        raise NumericalError("not finite")

    def waits(told):
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(60)

    def until_there(told):
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)

    found = in_processes([until_there, fails, waits], 3, Silent())
    assert next(found) is None
    with pytest.raises(NumericalError, match="not finite"):
        next(found)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_killed_process_is_one_line_and_an_interruption_ends_all(tmp_path):
    def killed(told):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(InputError, match="ended with status -9; most often for want of memory"):
        list(in_processes([killed, killed], 2, Silent()))

    def waits(name, told):
        (tmp_path / name).write_text(str(os.getpid()))
        time.sleep(60)

    def interrupt():
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    # Workers of the test runner have a handler of their own.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            list(in_processes([partial(waits, "a"), partial(waits, "b")], 2, Silent()))
    finally:
        signal.signal(signal.SIGINT, before)
    for name in ("a", "b"):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / name).read_text()), 0)


FORKED = """
import sys
import numpy as np
from sklearn.cluster import KMeans
from models.gp.inducing_points import choose_inducing_points
from pipeline.core.processes import in_processes
from pipeline.core.progress import Silent

z = np.random.default_rng(0).normal(size=(5000, 4))
if sys.argv[1] == "a library's own loop":
    KMeans(50, n_init=1, random_state=0).fit(z)

def call(_):
    return choose_inducing_points(z, 50, np.random.default_rng(0)).sum()

here = call(None)
assert list(in_processes([call, call], 2, Silent())) == [here, here]
"""


@pytest.mark.parametrize("before", ["ours", "a library's own loop"])
def test_processes_wait_for_no_threads_that_their_parent_had(before):
    """As users run it: the tests set OMP_NUM_THREADS, and this hung without it."""
    free = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", FORKED, before]
    subprocess.run(command, env=free, cwd=ROOT, timeout=100, check=True)

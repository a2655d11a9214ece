"""One BLAS thread, whoever enters and leaves in whatever order; freed memory given back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from models.backend.blas import one_blas_thread


def blas_threads() -> set[int]:
    info = ThreadpoolController().info()
    return {pool["num_threads"] for pool in info if pool["user_api"] == "blas"}


def test_overlapping_uses_neither_free_each_other_nor_stay() -> None:
    np.ones((2, 2)) @ np.ones((2, 2))
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        if blas_threads() != {2}:
            pytest.skip("this BLAS has one thread")
        entered, left = threading.Event(), threading.Event()
        gone, over = threading.Event(), threading.Event()

        def first() -> None:
            with one_blas_thread():
                entered.set()
                assert left.wait(5)
            gone.set()
            assert over.wait(5)  # a thread of a pool lives on

        thread = threading.Thread(target=first)
        thread.start()
        assert entered.wait(5)
        with one_blas_thread():
            left.set()
            assert gone.wait(5)  # it leaves while this one is inside
            assert blas_threads() == {1}
            with one_blas_thread():
                assert blas_threads() == {1}
        assert blas_threads() == {2}
        over.set()
        thread.join()


def test_an_exception_leaves_no_limit() -> None:
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        before = blas_threads()
        with pytest.raises(KeyboardInterrupt), one_blas_thread():
            raise KeyboardInterrupt
        assert blas_threads() == before


LATE = """
import sys, numpy as np
from threadpoolctl import ThreadpoolController
from models.backend.blas import one_blas_thread

def threads():
    pools = ThreadpoolController().info()
    return {p["filepath"]: p["num_threads"] for p in pools if p["user_api"] == "blas"}

before = threads()
with one_blas_thread():
    import scipy.linalg
    with one_blas_thread():
        inside = threads()
after = threads()
assert set(inside.values()) == {1}, inside
assert {name: after[name] for name in before} == before, (before, after)
assert set(after.values()) == set(before.values()), after
"""


def test_a_library_that_comes_later_is_limited_by_the_next_to_enter() -> None:
    subprocess.run(
        [sys.executable, "-c", LATE], check=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_memory_goes_back_to_the_system_when_it_is_asked_for() -> None:
    """Between what lives there are gaps, which the heap keeps otherwise."""
    code = """
import numpy as np
from models.backend.arrays import give_back_freed_memory, keep_freed_memory

def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

keep_freed_memory()
before, large, small = held(), [], []
for _ in range(100):
    large.append(np.ones(1 << 17))
    small.append(np.ones(1 << 8))
del large
kept = held() - before
give_back_freed_memory()
print(kept >> 20, held() - before >> 20)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    kept, left = map(int, done.stdout.split())
    assert kept > 80
    assert left < 20

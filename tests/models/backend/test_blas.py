"""One BLAS thread, whoever enters and leaves in whatever order."""

from __future__ import annotations

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

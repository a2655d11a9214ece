"""SIGTERM at a moment of some commands; ``python -m tests.faults.terminated`` has all of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.faults.terminated import LIMIT_S, Ending, Terminations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Terminations:
    made = Terminations(tmp_path_factory.mktemp("terminated"))
    made.prepare()
    return made


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("run", 11),
        ("publish", 12),
        ("ingest, the server falls silent in a read", 13),
    ],
)
def test_gone_in_time_and_nothing_lost(bench: Terminations, kind: str, seed: int) -> None:
    ending = bench.trial(kind, np.random.default_rng([seed]))
    assert ending.wrong == []
    assert ending.took_s is None or ending.took_s < LIMIT_S
    if "silent in a read" in kind:
        assert (ending.status, ending.forced) == (143, True)


def test_the_judge_sees_what_is_wrong(bench: Terminations) -> None:
    before = bench.expected["rate_mean.tif"]
    bench.expected["rate_mean.tif"] = "another"
    try:
        ending = Ending("check", 0.0)
        bench._judge("check", ending)
        assert ending.wrong == ["differs: ['rate_mean.tif']"]
    finally:
        bench.expected["rate_mean.tif"] = before

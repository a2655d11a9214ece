"""A dozen failures, provoked for real; ``python -m tests.faults --count 200`` provokes more.

Each trial judges what the run told, what can be seen after it, and what one more run makes of it,
bit for bit against a run that nothing happened to; see :mod:`tests.faults.kinds`.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.faults.bench import Bench
from tests.faults.clusters import kill_worker
from tests.faults.flips import flip
from tests.faults.kinds import (
    NotPossibleError,
    Trial,
    kill_driver,
    load_kinds,
    run_trial,
)

ROOT = Path(__file__).parents[2]
# Two runs a trial, and the undisturbed ones before the first: a machine may be busy.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Bench(tmp_path_factory.mktemp("faults")) as bench:
        yield bench


def assert_well(trial: Trial) -> None:
    assert not trial.wrong, f"{trial.kind}, {trial.moment}: " + "; ".join(trial.wrong)
    assert trial.moment, "the moment never came"


@pytest.mark.parametrize("place", ["ingest", "checkpoint", "publish"])
def test_killed_at_a_place(bench: Bench, place: str) -> None:
    trial = Trial(f"driver killed at {place}")
    kill_driver(bench, np.random.default_rng(len(place)), trial, place)
    trial.wrong += bench.check_processes()
    assert_well(trial)


@pytest.mark.parametrize(
    "kind",
    [
        "driver terminated",
        "file too large",
        "bit flipped in the store",
        "bit flipped in the model",
        "bit flipped in a fold",
        "bit flipped in a checkpoint",
        "scheduler gone",
    ],
)
def test_provoked(bench: Bench, kind: str) -> None:
    assert_well(run_trial(bench, kind, [5]))


def test_a_full_disk(bench: Bench) -> None:
    try:
        trial = run_trial(bench, "disk full", [5])
    except NotPossibleError as error:
        pytest.skip(f"no file system may be mounted here: {error}")
    assert_well(trial)


@pytest.mark.ci
def test_a_worker_killed(bench: Bench) -> None:
    trial = Trial("worker killed")
    kill_worker(bench, np.random.default_rng(3), trial)
    assert_well(trial)


# -- the judge itself: it must see what is wrong ---------------------------------------------------


def test_the_judge_sees_a_changed_bit_a_lost_file_and_a_left_one(bench: Bench) -> None:
    bench.clear("finished-False")
    assert bench.check_complete() == []
    flip(bench.out / "rate_mean.tif", np.random.default_rng(0))
    (bench.out / "areas.csv").unlink()
    (bench.out / ".half.partial").write_text("half")
    assert sorted(bench.check_complete()) == [
        ".half.partial is left behind",
        "areas.csv is missing",
        "rate_mean.tif differs",
    ]
    assert bench.check_visible((False,)) == [
        "rate_mean.tif can be seen and is none of an undisturbed run's"
    ]
    shutil.rmtree(bench.out)


def test_a_place_is_a_moment_of_its_own(bench: Bench) -> None:
    """The n-th change there, not the time: the checkpoint of one epoch stands, of no other."""
    bench.clear("ingested")
    # Each of the first two epochs makes the directory, opens a file there and renames it.
    for number, epoch in ((5, 1), (6, 2)):
        at = {"place": "checkpoint", "number": number, "signal": signal.SIGKILL}
        ended = bench.start(bench.config(), at=at).wait()
        assert (ended.status, ended.lines) == (-signal.SIGKILL, [])
        assert bench.standing() == (epoch, ("ingest",))
        bench.clear("ingested")


def test_every_kind_is_told_to_the_person_on_duty() -> None:
    text = (ROOT / "docs/failures.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`([a-z ,]+)`", text))
    assert set(load_kinds()) <= told

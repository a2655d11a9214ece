"""Some failures, provoked for real; ``python -m tests.faults --count 200`` provokes more.

Each trial judges what the run told, what can be seen after it, and what one more run makes of it,
bit for bit against a run that nothing happened to; see :mod:`tests.faults.kinds`.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.faults.bench import Bench
from tests.faults.flips import flip
from tests.faults.kinds import NotPossibleError, Trial, judge_signal, load_kinds, run_trial
from tests.faults.terminated import KINDS, LIMIT_S, Ending, summary

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/failures.md").read_text(encoding="utf-8")
# Two runs a trial, and the undisturbed ones before the first: a machine may be busy.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Bench(tmp_path_factory.mktemp("faults")) as bench:
        yield bench


def assert_well(trial: Trial) -> None:
    assert not trial.wrong, f"{trial.kind}, {trial.moment}: " + "; ".join(trial.wrong)
    assert trial.moment, "the moment never came"


@pytest.mark.ci
def test_a_killed_fit_goes_on_from_its_checkpoint(bench: Bench) -> None:
    """The n-th change there, not the time: the checkpoint of one epoch stands, of no other."""
    # Each of the first two epochs makes the directory, opens a file there and renames it.
    for number, epoch in ((6, 2), (5, 1)):
        bench.clear("ingested")
        at = {"place": "checkpoint", "number": number, "signal": signal.SIGKILL}
        ended = bench.start(bench.config(), at=at).wait()
        assert (ended.status, ended.lines) == (-signal.SIGKILL, [])
        assert bench.standing() == (epoch, ("ingest",))
    assert bench.check_visible((False,)) + bench.recover() + bench.check_processes() == []


@pytest.mark.ci
def test_a_run_is_killed_while_it_replaces_another_map(bench: Bench) -> None:
    trial, kill = Trial("driver killed at publish"), signal.SIGKILL
    judge_signal(bench, np.random.default_rng(7), trial, kill, -kill, "publish")
    assert "another's results" in trial.moment
    assert_well(trial)


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["disk full", "bit flipped in the store", "scheduler gone"])
def test_provoked(bench: Bench, kind: str) -> None:
    try:
        trial = run_trial(bench, kind, [5])
    except NotPossibleError:  # no file system may be mounted here
        trial = run_trial(bench, "file too large", [5])
    assert_well(trial)


# -- the judge itself: it must see what is wrong ---------------------------------------------------


@pytest.mark.ci
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


def test_every_kind_is_told_to_the_person_on_duty() -> None:
    assert set(load_kinds()) <= set(re.findall(r"`([a-z ,]+)`", PAGE))


def test_the_page_has_the_table_of_what_was_measured() -> None:
    told = json.loads((ROOT / "benchmarks/results/terminated.json").read_text())
    endings = [Ending(**each) for each in told["trials"]]
    assert told["by_kind"] == summary(endings)
    assert [each for each in endings if each.wrong] == []
    for kind in KINDS:
        row = told["by_kind"][kind]
        assert row["longest_s"] < LIMIT_S
        cells = [kind, row["trials"], row["terminated"], row["done_all_the_same"]]
        cells += [row["before_the_signal"], row["forced"], row["median_s"], row["longest_s"]]
        assert f"| {' | '.join(map(str, cells))} |" in PAGE

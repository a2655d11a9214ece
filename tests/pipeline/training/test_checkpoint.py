"""Checkpoints: whole or not at all, two of them, and no damage that is taken for a fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.core.protocol import State
from models.training.loop import Training
from models.training.optim import Plateau
from pipeline.training.checkpoint import load_checkpoint, save_checkpoint
from tests.command import Command

ROOT = Path(__file__).parents[3]


def make_training(epoch: int, plateau: Plateau | None = None) -> Training:
    rng = np.random.default_rng(epoch)
    state = State(
        {"root": rng.normal(size=(5, 5)), "mean": np.array([np.pi])},
        {"x_sd": rng.normal(size=3)},
        {"square.mean": np.array([5e-324])},
        step=7 * epoch,
        rate=0.02 / 3,
        members={"root": rng.normal(size=(2, 5, 5)), "weight": np.array([1 / 3, 2 / 3])},
    )
    history = [{"epoch": k + 1, "bound": -1 / 3, "rate": 0.1, "seconds": 2.0} for k in range(epoch)]
    return Training(state, plateau or Plateau(1e-3), epoch, history)


def names(directory: Path) -> list[int]:
    assert not [p for p in directory.iterdir() if not p.name.startswith("epoch-")]
    return sorted(int(p.name.split("-")[1]) for p in directory.iterdir())


def test_what_is_saved_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    plateau = Plateau(1e-3)
    for k in range(30):
        plateau.see(-float(np.exp(-k)) / 7)
    assert plateau.drops > 0
    saved = make_training(3, plateau)
    saved.converged = True
    save_checkpoint(tmp_path / "new" / "folder", saved, "f")
    found = load_checkpoint(tmp_path / "new" / "folder", "f")
    assert found is not None
    for group in ("params", "fixed", "memory", "members"):
        arrays = getattr(saved.state, group)
        assert getattr(found.state, group).keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(getattr(found.state, group)[name], array)
    assert (found.state.step, found.state.rate) == (21, 0.02 / 3)
    assert (found.epoch, found.history, found.converged) == (3, saved.history, True)
    assert found.plateau == plateau
    # The plateau goes on where it was, not only looks so.
    assert [found.plateau.see(-1.0) for _ in range(40)] == [plateau.see(-1.0) for _ in range(40)]


def test_two_are_kept(tmp_path: Path) -> None:
    for epoch in (1, 2, 3, 10, 11):
        save_checkpoint(tmp_path, make_training(epoch), "f")
    assert names(tmp_path) == [10, 11]


def test_nothing_there(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path, "f") is None
    assert load_checkpoint(tmp_path / "nowhere", "f") is None


def test_a_new_fit_is_kept_where_an_older_one_got_farther(tmp_path: Path) -> None:
    for epoch in (8, 9):
        save_checkpoint(tmp_path, make_training(epoch), "old")
    assert load_checkpoint(tmp_path, "new") is None
    save_checkpoint(tmp_path, make_training(1), "new")
    assert names(tmp_path) == [1]
    assert load_checkpoint(tmp_path, "old") is None


def test_fingerprints_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make_training(1), 20 * "a" + "b")
    assert load_checkpoint(tmp_path, 20 * "a" + "c") is None


def test_a_fit_that_fell_back_behind_damaged_ones_is_kept(tmp_path: Path) -> None:
    for epoch in (4, 5):
        save_checkpoint(tmp_path, make_training(epoch), "f").write_bytes(b"nonsense")
    assert load_checkpoint(tmp_path, "f") is None
    save_checkpoint(tmp_path, make_training(1), "f")
    assert names(tmp_path) == [1]


def test_damage_anywhere_falls_back_or_changes_nothing(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make_training(1), "f")
    path = save_checkpoint(tmp_path, make_training(2), "f")
    whole = path.read_bytes()
    good = make_training(2)
    fallen_back = 0
    rng = np.random.default_rng(0)
    for at in rng.permutation(len(whole))[:400].tolist():
        raw = bytearray(whole)
        raw[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(raw)
        found = load_checkpoint(tmp_path, "f")
        assert found is not None
        if found.epoch == 1:
            fallen_back += 1
            continue
        for group in ("params", "fixed", "memory", "members"):  # a time stamp, say
            for name, array in getattr(good.state, group).items():
                np.testing.assert_array_equal(getattr(found.state, group)[name], array)
    assert fallen_back > 200
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        found = load_checkpoint(tmp_path, "f")
        assert found is not None
        assert found.epoch == 1


@pytest.mark.ci
@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_killed_while_writing(tmp_path: Path, moment: str) -> None:
    """Killed before the bytes are on disk, or before the file has its name."""
    save_checkpoint(tmp_path, make_training(1), "f")
    program = f"""
import os, signal, sys
from pathlib import Path
from tests.pipeline.training import test_checkpoint as t
def die(*a):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(os if {moment!r} == "fsync" else Path, {moment!r}, die)
t.save_checkpoint(Path(sys.argv[1]), t.make_training(2), "f")
"""
    assert Command(tmp_path, code=program).wait().returncode == -9
    assert list(tmp_path.glob(".*.partial"))
    found = load_checkpoint(tmp_path, "f")
    assert found is not None
    assert found.epoch == 1
    save_checkpoint(tmp_path, make_training(2), "f")
    assert names(tmp_path) == [1, 2]  # and what the dead one left is gone

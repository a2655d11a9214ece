"""Checkpoints of a fit: one file an epoch, written atomically; the last two are kept."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from models.core.persist import state_arrays, state_from
from models.training.executor import Local
from models.training.loop import Training
from models.training.optim import Plateau
from pipeline.core.progress import Progress
from pipeline.storage.files import atomic_write
from pipeline.storage.mirror import keep

VERSION = 1
_META, _LOCAL = "meta.json", "local/"


def save_checkpoint(
    directory: Path, training: Training, fingerprint: str, *, with_local: bool = True
) -> Path:
    """Write ``epoch-NNNNNN-FINGERPRINT.npz`` and remove all others but the previous epoch's.

    A directory belongs to one fit: checkpoints of other fits are removed. So are later epochs,
    which must be damaged if the fit resumed from an earlier one.

    Parameters
    ----------
    directory : Path
        Created if it does not exist.
    training : Training
        At the end of an epoch.
    fingerprint : str
        Of the data and the model; a fit never resumes from another fingerprint.
    with_local : bool
        Whether to save the model's state of each block, too.

    Returns
    -------
    Path
        The file.
    """
    meta = {
        "version": VERSION,
        "fingerprint": fingerprint,
        "epoch": training.epoch,
        "history": training.history,
        "converged": training.converged,
        "stopped": training.stopped,
        "plateau": asdict(training.plateau),
    }
    arrays = state_arrays(training.state)
    if with_local:
        for number, kept in training.local.items():
            arrays.update({f"{_LOCAL}{number}/{name}": array for name, array in kept.items()})
    arrays[_META] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    path = directory / f"epoch-{training.epoch:06d}-{fingerprint[:16]}.npz"
    with atomic_write(path) as file:
        np.savez(file, allow_pickle=False, **arrays)
    earlier = [old for old in _newest_first(directory, fingerprint) if old.name < path.name]
    for old in [*directory.glob("epoch-*.npz"), *directory.glob(".epoch-*.partial")]:
        if old not in (path, *earlier[:1]):
            old.unlink(missing_ok=True)
    keep(directory)
    return path


def load_checkpoint(
    directory: Path, fingerprint: str, progress: Progress | None = None
) -> Training | None:
    """Read the newest undamaged checkpoint with this fingerprint; None if there is none.

    Damaged ones are skipped and reported to ``progress``.
    """
    for path in _newest_first(directory, fingerprint):
        try:
            training = _read(path, fingerprint)
        except Exception:  # damaged bytes make zipfile and NumPy raise nearly anything
            if progress is not None:
                progress.log(f"fit: the checkpoint {path.name} is damaged and passed over")
            continue
        if training is not None:
            return training
    return None


def _read(path: Path, fingerprint: str) -> Training | None:
    # If NumPy opened the file itself, it would not close a damaged one.
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        # Reading every member checks its CRC: a damaged file falls back to the one before.
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(arrays.pop(_META).tobytes())
    if meta["version"] != VERSION or meta["fingerprint"] != fingerprint:
        return None
    local: Local = {}
    for key in [key for key in arrays if key.startswith(_LOCAL)]:
        _, number, name = key.split("/", 2)
        local.setdefault(int(number), {})[name] = arrays.pop(key)
    return Training(
        state_from(arrays),
        Plateau(**meta["plateau"]),
        meta["epoch"],
        meta["history"],
        meta["converged"],
        local,
        meta.get("stopped", ""),
    )


def _newest_first(directory: Path, fingerprint: str) -> list[Path]:
    return sorted(directory.glob(f"epoch-*-{fingerprint[:16]}.npz"), reverse=True)

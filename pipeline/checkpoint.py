"""Checkpoints of a fit: one file an epoch, whole or not at all, and the one before it kept."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from models.optim import Plateau
from models.persist import state_arrays, state_from
from models.training import Training

VERSION = 1
_KEPT = 2
_META = "meta.json"


def save_checkpoint(directory: Path, training: Training, fingerprint: str) -> Path:
    """Write ``epoch-NNNNNN.npz``; older ones than the one before it are removed.

    Parameters
    ----------
    directory : Path
        Made where it does not exist.
    training : Training
        At the end of an epoch.
    fingerprint : str
        Of the data and the model; a checkpoint of another one is never taken up.

    Returns
    -------
    Path
        The file.
    """
    directory.mkdir(parents=True, exist_ok=True)
    meta = {
        "version": VERSION,
        "fingerprint": fingerprint,
        "epoch": training.epoch,
        "history": training.history,
        "converged": training.converged,
        "plateau": asdict(training.plateau),
    }
    arrays = state_arrays(training.state)
    arrays[_META] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    path = directory / f"epoch-{training.epoch:06d}.npz"
    partial = directory / f".{path.name}.partial"
    with partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    for old in _newest_first(directory)[_KEPT:]:
        old.unlink(missing_ok=True)
    return path


def load_checkpoint(directory: Path, fingerprint: str) -> Training | None:
    """Read the newest undamaged checkpoint with this fingerprint; None where there is none."""
    for path in _newest_first(directory):
        try:
            with np.load(path, allow_pickle=False) as file:
                # Reading every member checks its CRC: a damaged file falls back to the one before.
                arrays = {name: file[name] for name in file.files}
            meta = json.loads(arrays.pop(_META).tobytes())
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            continue
        if meta.get("version") == VERSION and meta.get("fingerprint") == fingerprint:
            return Training(
                state_from(arrays),
                Plateau(**meta["plateau"]),
                meta["epoch"],
                meta["history"],
                meta["converged"],
            )
    return None


def _newest_first(directory: Path) -> list[Path]:
    return sorted(directory.glob("epoch-*.npz"), reverse=True)

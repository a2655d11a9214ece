"""States on disk: arrays in an ``.npz``, the rest in JSON; no pickle, whole or not at all."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from models.core.errors import FormatError
from models.core.protocol import State

FORMAT, VERSION = "disagg-model", 1
GROUPS = ("params", "fixed", "memory", "members")  # saved before, a state has no members


def state_arrays(state: State) -> dict[str, np.ndarray]:
    """Flatten a state into named arrays, ``group/name``."""
    flat = {
        f"{group}/{name}": array
        for group in GROUPS
        for name, array in getattr(state, group).items()
    }
    flat["step"], flat["rate"] = np.array(state.step), np.array(state.rate)
    return flat


def state_from(flat: dict[str, np.ndarray]) -> State:
    """Undo :func:`state_arrays`."""
    groups: dict[str, dict[str, np.ndarray]] = {group: {} for group in GROUPS}
    for key, array in flat.items():
        group, _, name = key.partition("/")
        if name:
            groups[group][name] = array
    return State(**groups, step=int(flat["step"]), rate=float(flat["rate"]))


def write_model(path: Path, meta: dict[str, Any], state: State) -> None:
    """Write a folder with ``model.json`` and ``arrays.npz``; it replaces an old one in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    temp = Path(tempfile.mkdtemp(prefix=f".{path.name}-{os.getpid()}-", dir=path.parent))
    try:
        with (temp / "arrays.npz").open("wb") as file:
            np.savez(file, allow_pickle=False, **state_arrays(state))
            _sync(file)
        with (temp / "model.json").open("w", encoding="utf-8") as text:
            digest = _digest_of_file(temp / "arrays.npz")
            head = {"format": FORMAT, "version": VERSION, "arrays_sha256": digest}
            whole = {**head, **meta}
            json.dump({**whole, "meta_sha256": _digest(whole)}, text, indent=1)
            _sync(text)
        old = None
        if path.exists():
            prefix = f".{path.name}-{os.getpid()}-old-"
            old = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
            path.rename(old / path.name)
        temp.rename(path)
        _sync_directory(path.parent)
        if old is not None:
            shutil.rmtree(old)
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        raise


def read_meta(path: Path) -> dict[str, Any]:
    """Read ``model.json``, checking format and version."""
    try:
        meta = json.loads((path / "model.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"{path}: not a saved model ({error}); fit and save it again"
        raise FormatError(msg) from error
    if not isinstance(meta, dict):
        meta = {}
    if meta.get("format") != FORMAT or meta.get("version") != VERSION:
        msg = (
            f"{path}: format {meta.get('format')} version {meta.get('version')}, expected "
            f"{FORMAT} version {VERSION}; fit it again with this version"
        )
        raise FormatError(msg)
    # Saved by an earlier version it has none; a digest whose name is damaged has no other damage.
    digest = meta.pop("meta_sha256", None)
    if digest is not None and digest != _digest(meta):
        msg = f"{path}: model.json is damaged (its SHA-256 is another); fit and save it again"
        raise FormatError(msg)
    return dict(meta)


def load_arrays(path: Path, meta: dict[str, Any]) -> State:
    """Read the state out of a saved model's folder, its ``model.json`` given as ``meta``."""
    file = path / "arrays.npz"
    try:
        if _digest_of_file(file) != meta["arrays_sha256"]:
            msg = f"{file}: damaged (its SHA-256 is not the one in model.json); fit it again"
            raise FormatError(msg)
        with np.load(file, allow_pickle=False) as arrays:
            return state_from({name: arrays[name] for name in arrays.files})
    except (OSError, KeyError) as error:
        msg = f"{file}: damaged or absent ({error}); fit it again"
        raise FormatError(msg) from error


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _remove_abandoned(path: Path) -> None:
    """Remove what saves to ``path`` by processes that were killed left beside it."""
    prefix = f".{path.name}-"
    for left in path.parent.glob(f"{glob.escape(prefix)}*"):
        pid = left.name[len(prefix) :].split("-")[0]
        if pid.isdigit() and not _runs(int(pid)):
            shutil.rmtree(left, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())

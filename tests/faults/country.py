"""A tiny simulated country for trials, its configuration, and what a run of it must leave."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pipeline.demo.country import CountrySpec, simulate_country

SPEC = CountrySpec(
    (56, 64), 1 / 8, 1500, 16, 14, 1e6,
    covariates=("elevation", "temperature", "rainfall"), n_inducing=12,
)  # fmt: skip
EPOCHS = 5
_TIMES = ("seconds", "started", "written", "config_file", "check", "meta_sha256")
Digests = dict[str, str]


class Country:
    """Inputs of all trials, read only.

    Parameters
    ----------
    directory : Path
        Where the inputs are written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.made = yaml.safe_load(simulate_country(directory, SPEC, 1).read_text())

    def config(self, path: Path, out: Path, *, other: bool = False, **compute: Any) -> Path:
        """Write a configuration; ``other`` asks for another fit and another map."""
        mapping = {
            **self.made,
            # Many short steps, each of them the workers' (a fit to the optimum of so few pixels is
            # the driver's alone).
            "model": {**self.made["model"], "options": {"posterior_steps": "adam"}},
            "fit": {"batch_areas": 4, "max_epochs": EPOCHS, "seed": 2 if other else 1},
            "output": {"dir": str(out), "draws": 20, "exceedance": [20] if other else [50]},
            "evaluate": {"folds": 2, "schemes": ["area"]},
            "compute": {"scheduler": "local", "workers": 2, **compute},
            "update": {"retries": 0},  # the bench counts what is told of each failure
        }
        for section in (*mapping["covariates"].values(), *mapping.values()):
            for key in ("path", "like"):
                if isinstance(section, dict) and isinstance(section.get(key), str):
                    section[key] = str(self.directory / section[key])
        path.write_text(yaml.safe_dump(mapping))
        return path


def digests(out: Path) -> Digests:
    """Digest every file of an output directory, hidden ones too, without its times and place."""
    found = {}
    for path in sorted(p for p in out.rglob("*") if p.is_file() or p.is_symlink()):
        name = path.relative_to(out).as_posix()
        if name != "work/.lock":
            found[name] = hashlib.sha256(_content(path, name)).hexdigest()
    return found


def _content(path: Path, name: str) -> bytes:
    if path.is_symlink():  # such as `current` of what is published
        return path.readlink().as_posix().encode()
    raw = path.read_bytes()
    timed = ("run.json", "work/stages.json", "work/model/model.json")
    if name not in timed and not name.startswith("stac/"):
        return raw
    try:
        value = _timeless(json.loads(raw))
    except ValueError:
        return raw
    return json.dumps(value, sort_keys=True).encode()


def _timeless(value: Any) -> Any:
    if isinstance(value, list):
        return [_timeless(item) for item in value]
    if not isinstance(value, dict):
        return value
    # model.json tells the seconds of each epoch, so fingerprints of the model differ as well; the
    # model's own numbers are compared bit for bit in arrays.npz. Who computes changes nothing.
    # The catalogue has the time of the maps.
    stac = ("created", "datetime", "temporal", "stac/item.json", "stac/collection.json")
    dropped = (*_TIMES, *stac, "work/model", "compute", "dir")
    return {k: _timeless(v) for k, v in value.items() if k not in dropped}


def is_whole(path: Path) -> bool:
    """Say whether an ``.npz`` file can be read to its last byte."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return all(arrays[name] is not None for name in arrays.files)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return False


def visible(name: str) -> bool:
    """Say whether a path of the output directory is one that people or stages look at."""
    return not any(part.startswith(".") for part in Path(name).parts)

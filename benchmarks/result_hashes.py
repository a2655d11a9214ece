"""SHA-256 of every number that a run left, to show that a change of the code changed none.

    python -m benchmarks.result_hashes DIR > after.json

``DIR`` is an ``output.dir``. The hashes cover the pixels of rasters, the cells of tables, and the
arrays of the model and the bag store. Versions, dates and timings are left out. The last line
hashes all.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyogrio
import rasterio
import zarr

UNSTABLE = {"seconds", "written", "software", "versions", "started", "fingerprint"}


def numbers(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the content of each result, as bytes that depend only on its numbers."""
    for path in sorted(directory.glob("*.tif")):
        with rasterio.open(path) as raster:
            yield path.name, raster.read().tobytes()
    for path in sorted(directory.glob("*.csv")):
        yield path.name, path.read_bytes()
    for path in sorted(directory.glob("*.gpkg")):
        yield path.name, pyogrio.read_dataframe(path).to_csv(index=False).encode()
    evaluation = directory / "evaluation.json"
    if evaluation.exists():
        report = stable(json.loads(evaluation.read_text(encoding="utf-8")))
        yield evaluation.name, json.dumps(report, sort_keys=True).encode()
    model = directory / "work" / "model" / "arrays.npz"
    if model.exists():
        with np.load(model, allow_pickle=False) as arrays:
            yield "work/model", b"".join(k.encode() + arrays[k].tobytes() for k in sorted(arrays))
    for name in ("grid.zarr", "bags.zarr"):
        if (directory / "work" / name).exists():
            group: Any = zarr.open_group(directory / "work" / name, mode="r")
            found = sorted(group.arrays())
            yield f"work/{name}", b"".join(k.encode() + a[...].tobytes() for k, a in found)


def stable(value: Any) -> Any:
    """Remove from a report what differs between two runs of the same code."""
    if isinstance(value, dict):
        return {key: stable(item) for key, item in value.items() if key not in UNSTABLE}
    return [stable(item) for item in value] if isinstance(value, list) else value


def main(directory: str) -> None:
    """Print the hashes as JSON."""
    found = {name: hashlib.sha256(data).hexdigest() for name, data in numbers(Path(directory))}
    whole = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
    print(json.dumps({**found, "all": whole}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])

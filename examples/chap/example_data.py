"""Write a small simulated data set in CHAP's form: all, training, historic and future; polygons.

python examples/chap/example_data.py DIR
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

SIDE, TRAINED, UPDATED, AHEAD = 3, 36, 2, 3  # locations along a side; months


def simulate(seed: int = 1) -> tuple[pd.DataFrame, dict]:
    """Return a table of 9 locations by month, and their polygons."""
    rng = np.random.default_rng(seed)
    months = pd.period_range("2020-01", periods=TRAINED + UPDATED + AHEAD, freq="M")
    n, t = SIDE**2, np.arange(len(months))
    rain = 100 + 60 * np.sin(2 * np.pi * t / 12)[:, None] + rng.normal(0, 15, (t.size, n))
    level, drift = rng.normal(0, 0.5, n), np.zeros((t.size, n))
    for k in t[1:]:
        drift[k] = 0.8 * drift[k - 1] + 0.25 * rng.standard_normal(n)
    wet = np.concatenate([np.repeat(rain[:1], 2, axis=0), rain[:-2]])  # cases follow rain
    people = np.rint(rng.uniform(5e4, 3e5, n))
    cases = rng.poisson(people * np.exp(-8.5 + level + drift + 0.008 * (wet - 100)))
    warm = 26 + 3 * np.cos(2 * np.pi * t / 12)[:, None] + rng.normal(0, 0.7, (t.size, n))
    rows = [
        {
            "time_period": str(month),
            "location": f"area-{k}",
            "disease_cases": cases[i, k],
            "population": people[k],
            "rainfall": rain[i, k],
            "mean_temperature": warm[i, k],  # of no effect; CHAP's evaluation asks for it
        }
        for k in range(n)
        for i, month in enumerate(months)
    ]
    squares = [_square(f"area-{k}", *divmod(k, SIDE)) for k in range(n)]
    return pd.DataFrame(rows), {"type": "FeatureCollection", "features": squares}


def _square(name: str, row: int, column: int) -> dict:
    west, south = 30 + 0.5 * column, 0.5 * row
    ring = [(0, 0), (0.5, 0), (0.5, 0.5), (0, 0.5), (0, 0)]
    corners = [[west + dx, south + dy] for dx, dy in ring]
    shape = {"type": "Polygon", "coordinates": [corners]}
    return {"type": "Feature", "id": name, "properties": {}, "geometry": shape}


def write(folder: Path, seed: int = 1) -> None:
    """Write all.csv, train.csv, historic.csv, future.csv and polygons.geojson.

    CHAP's evaluation finds polygons by the table's name: all.geojson.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table, polygons = simulate(seed)
    months = sorted(table["time_period"].unique())
    for name, first, last in (
        ("all", 0, len(months)),
        ("train", 0, TRAINED),
        ("historic", 0, TRAINED + UPDATED),
        ("future", TRAINED + UPDATED, len(months)),
    ):
        own = table[table["time_period"].isin(months[first:last])].reset_index(drop=True)
        if name == "future":
            own = own.drop(columns=["disease_cases"])
        own.to_csv(folder / f"{name}.csv")
    for name in ("all", "polygons"):
        (folder / f"{name}.geojson").write_text(json.dumps(polygons))


if __name__ == "__main__":
    write(Path(sys.argv[1]))

"""Write some provinces of Vietnam, and some years, for CHAP's own evaluation (``docs/chap.md``).

    python -m benchmarks.chap_vietnam [--provinces 12] [--first 2004-01] [--out out/chap]

The provinces with most cases before the last two years, which are forecast: table and polygons.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from benchmarks.report import parsed
from benchmarks.vietnam import DATA

NAME = "chap_VNM_admin1_monthly"


def main() -> None:
    """Write vietnam.csv and vietnam.geojson."""
    given = parsed(__doc__, provinces=12, first="2004-01", out=Path("out/chap"))
    given.out.mkdir(parents=True, exist_ok=True)
    table = pd.read_csv(DATA / f"{NAME}.csv")
    months = sorted(table["time_period"].unique())
    table = table[table["time_period"] >= given.first]
    before = table[table["time_period"] < months[-24]]
    cases = before.groupby("location")["disease_cases"].sum()
    chosen = sorted(cases.nlargest(given.provinces).index)
    own = table[table["location"].isin(chosen)].reset_index(drop=True)
    own.to_csv(given.out / "vietnam.csv")
    polygons = json.loads((DATA / f"{NAME}.geojson").read_text())
    polygons["features"] = [each for each in polygons["features"] if each["id"] in chosen]
    (given.out / "vietnam.geojson").write_text(json.dumps(polygons))
    print(", ".join(sorted(set(own["location_name"].str.strip()))))


if __name__ == "__main__":
    main()

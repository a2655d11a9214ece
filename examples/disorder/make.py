"""A simulated country whose tables of counts are in the disorder in which offices send them.

python examples/disorder/make.py DIR

``disagg demo`` simulates the country. Then its tables are written as an office would: names in
place of ids, ``<5`` in place of small counts, a title above the header, semicolons, decimal commas,
months as 07/2022, Windows-1252; rows are missing, a fifth of the last month is late, and a name is
written in another way from then on. docs/disorder.md walks through it.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import geopandas as gpd

MONTHS, LATER = 8, 1
RENAMED = "Port Espoir"  # in no boundaries: somebody has to know which area it is
TITLE = "Ministère de la Santé: cas confirmés par district\n\n"
HEADER = ["District", "Mois", "Cas", "Part (%)"]


def main(folder: str) -> None:
    """Simulate the country and disorder its tables."""
    command = ["disagg", "demo", folder, "--months", str(MONTHS), "--later", str(LATER), "--quiet"]
    subprocess.run(command, check=True)
    directory = Path(folder)
    areas = gpd.read_file(directory / "areas.gpkg")
    names = {area: _written(k, areas["name"][k]) for k, area in enumerate(areas["area_id"])}
    changed = {**names, areas["area_id"][0]: f"{areas['name'][0].lower()} district"}
    for path in directory.rglob("cases.csv"):
        with path.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        late = rows[-1]["month"] if path.parent.name != "correction" else ""
        last = rows[-1]["month"] if path.parent != directory else ""
        with path.open("w", encoding="cp1252", newline="") as file:
            file.write(TITLE)
            table = csv.writer(file, delimiter=";")
            table.writerow(HEADER)
            for k, row in enumerate(rows):
                count = "" if last == late == row["month"] and k % 5 == 1 else row["cases"]
                if not count and k % 2:
                    continue  # a gap is a row that is not there, or an empty cell
                named = changed if row["month"] == last else names
                table.writerow([named[row["area_id"]], *_cells(row["month"], count, rows)])
    config = directory / "disagg.yaml"
    text = config.read_text(encoding="utf-8")
    counts = "{path: cases.csv, id: District, value: Cas, period: Mois}"
    config.write_text(re.sub(r"(?m)^(counts: +).*", rf"\g<1>{counts}", text), encoding="utf-8")
    print(f"In disorder: {directory / 'cases.csv'} and {directory / 'later'}")


def _written(k: int, name: str) -> str:
    """Return the name of an area as the office writes it."""
    ways = [
        name.upper(),
        f"{name} District",
        name.replace("e", "é").replace("a", "â"),
        f"District de {name}",
        name + name[-1],
    ]
    return RENAMED if k == 1 else ways[k % len(ways)]


def _cells(month: str, count: str, rows: list[dict[str, str]]) -> list[str]:
    """Return month, count and share of a row as the office writes them."""
    year, number = month.split("-")
    small = bool(count) and 0 < int(count) < 5
    total = sum(int(row["cases"] or 0) for row in rows if row["month"] == month)
    share = f"{100 * int(count) / total:.1f}".replace(".", ",") if count and not small else ""
    return [f"{number}/{year}", "<5" if small else count, share]


if __name__ == "__main__":
    main(sys.argv[1])

"""The tables of ``docs/sbc.md``, from the figures of simulation-based calibration.

python -m benchmarks.sbc_page [--page docs/sbc.md]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, parsed, read_results

PAGE = Path(__file__).parents[1] / "docs/sbc.md"
BEGIN, END = "<!-- sbc: table -->", "<!-- sbc: end table -->"
WORDS = {
    "poisson": "Poisson",
    "poisson_area_effect": "Poisson with an area effect",
    "negative_binomial": "negative binomial",
    "binomial": "binomial",
    "beta_binomial": "beta-binomial",
    "normal": "normal",
    "gamma": "gamma",
    "exponential": "exponential",
    "months": "months: Poisson, the last of six",
    "months ahead": "months: Poisson, the one after",
    "months_area_effect": "months: Poisson with an area effect, the last of six",
    "months_area_effect ahead": "months: Poisson with an area effect, the one after",
}
COLUMNS = ("pixel", "area", "total", "slope", "hyper")
OFF = 3.0  # standard errors of a mean rank or of a spread that are worth a word


def rows_of(directory: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Return the summary of each likelihood, of months, and of the month ahead."""
    found: dict[str, dict[str, Any]] = dict(read_results(directory / "sbc.json")["likelihoods"])
    for case, series in read_results(directory / "sbc_months.json")["series"].items():
        ranks = series["ranks"]
        months = {key: test for key, test in ranks.items() if not key.startswith("ahead ")}
        ahead = {key[6:]: test for key, test in ranks.items() if key.startswith("ahead ")}
        found[case] = {**series, "ranks": months}
        found[f"{case} ahead"] = {**series, "ranks": ahead, "coverage": series["coverage_ahead"]}
    return found


def tables(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return coverage with the least p value of each kind of rank, and what deviates."""
    lines = [
        "| likelihood | countries | did not converge | pixels in 90 % intervals | areas "
        "| least p: pixels | areas | total | slopes | hyperparameters |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        late = round((1 - row["converged"]) * (row["countries"] - row["failed"])) + row["failed"]
        cover = (row["coverage"][of]["90"] for of in ("pixels", "areas"))
        cells = [WORDS[name], str(row["countries"]), str(late)]
        cells += [f"{share:.3f} ± {error:.3f}" for share, error in cover]
        for kind in COLUMNS:
            tests = [test for key, test in row["ranks"].items() if key.split(" ")[0] == kind]
            cells.append(f"{min(test['p'] for test in tests):.2g}" if tests else "")
        lines.append(f"| {' | '.join(cells)} |")
    tests = {name: {**row["ranks"], **_pooled(name, row)} for name, row in found.items()}
    n = sum(len(own) for own in tests.values())
    off = []
    for name, own in tests.items():
        for key, test in own.items():
            about = f"{test['p']:.2g} | | |"
            apart = False
            if "spread" in test:
                spread = f"{test['spread']:.2f} ± {test['spread_se']:.2f}"
                about = f"{test['p']:.2g} | {test['bias_z']:.1f} | {spread} |"
                apart = abs(test["bias_z"]) > OFF or _apart(test) > OFF
            if test["p"] * n < 0.05 or apart:
                off.append(f"| {WORDS[name]} | {key.removeprefix('hyper ')} | {about}")
    if off:
        lines += [
            "",
            f"Of {n} tests these deviate:",
            "",
            "| likelihood | what deviates | p | mean rank less 1/2, in standard errors | spread |",
            "|---|---|---|---|---|",
            *off,
        ]
    else:
        least = min(test["p"] for own in tests.values() for test in own.values())
        lines += ["", f"None of the {n} tests deviates; the least `p` is {least:.2g}."]
    return "\n".join(lines)


def _pooled(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tests of all pixels and areas together, which are of the month with counts."""
    if name.endswith(" ahead"):
        return {}
    given = {"all pixels": row.get("all_pixels"), "all areas": row.get("all_areas")}
    return {key: test for key, test in given.items() if test}


def _apart(test: Mapping[str, float]) -> float:
    return abs(test["spread"] - 1.0) / test["spread_se"]


def write_page(page: Path = PAGE, directory: Path = RESULTS) -> None:
    """Write the tables between their marks."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    made = tables(rows_of(directory))
    page.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Write the page."""
    write_page(parsed(__doc__, page=PAGE).page)


if __name__ == "__main__":
    main()

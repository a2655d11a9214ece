"""The page of :mod:`benchmarks.performance`: floors, shares, targets, from its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Row = Mapping[str, Any]
TITLES = {
    "demo": "small demo",
    "grid60": "60 x 60 pixels, 50 areas",
    "grid200": "200 x 200 pixels, 300 areas",
    "madagascar": "Madagascar",
    "country": "`country`",
}
#: Design, row, figure, most; the words of the table say the rest.
TARGETS = (
    ("demo", "run", "clock_seconds", 40.0, "`disagg run`, s"),
    ("madagascar", "run", "clock_seconds", 50.0, "`disagg run`, s"),
    ("grid200", "run", "clock_seconds", 100.0, "`disagg run`, s"),
    ("grid60", "run", "clock_seconds", 8.0, "`disagg run`, s"),
    ("country", "stages", "clock_seconds", 1500.0, "all stages, each in a process, s"),
    ("country", "stages", "peak_gib", 2.0, "largest process, GiB"),
    ("country", "predict", "of mode", 2.5, "`predict`, as a multiple of the mode alone"),
    ("demo", "unchanged", "clock_seconds", 3.0, "second run, nothing changed, s"),
    ("demo", "check", "clock_seconds", 2.0, "`disagg check`, s"),
)
PARTS = {
    "ingest": "ingest",
    "climb": "fit: climb",
    "curvature": "fit: curvature",
    "integration": "fit: integration",
    "areas with draws": "predict: areas with draws",
    "prediction with draws": "predict: maps with draws",
    "levels": "predict: levels",
    "evaluate": "evaluation",
    "report": "report",
}
ENOUGH = 1 / 3  # of the floor, below which a part says why
#: Why a part is below a third of its floor, from profiles of the small demo and of Madagascar.
WHY = {
    "ingest": "Its floor is the disk's. It is bound by calls: resampling by exactextract and GDAL, "
    "and two stores of dozens of small arrays, each with files of its own.",
    "climb": "A pass reads some 4,096 pixels in two blocks. What is done to each element, and each "
    "call, takes longer than the products.",
    "curvature": "As the climb, with a Hessian of the driver that the floor leaves out.",
    "integration": "The chain of hyperparameters evaluates the areas' evidence, dense algebra of "
    "areas by areas that the floor leaves out; each draw then climbs as above.",
    "areas with draws": "Few pixels at a time, and a mixture: each draw of the hyperparameters has "
    "matrices of its own.",
    "prediction with draws": "Each draw of the hyperparameters has kernel matrices, features and "
    "products of its own on each tile; rasters are compressed as tiles are written.",
    "levels": "Tables of many small columns: sorting draws by area, workbook and GeoPackage.",
    "evaluate": "Folds are regressed: a chain each on the areas' evidence, which the floor leaves "
    "out. "
    "Two fits to simulated counts climb as above.",
    "report": "Its floor is the disk's. Its time is matplotlib's and GDAL's: pictures, pages, "
    "overviews, and levels once more.",
}


def floor_seconds(part: str, row: Row, machine: Row, raster_bytes: float = 0.0) -> float:
    """Return the least time of a part at the machine's rates.

    Products and exponentials in float64, one after the other; bytes at the rate of the disk; for
    maps, rasters through zlib on all cores.
    """
    arithmetic = row["flops"] / machine["gemm_float64"] + row["exps"] / machine["exp_float64"]
    if part in ("ingest", "report"):
        return float(arithmetic + (row["read"] + row["written"]) / machine["write"])
    packed = raster_bytes / machine["zlib"] / machine.get("threads", 1) if raster_bytes else 0.0
    return float(arithmetic + packed)


def parts_of(rows: Mapping[str, Row]) -> Iterator[tuple[str, Row, float]]:
    """Yield the parts of a design that have been measured, with the floor of each."""
    machine = rows.get("machine", {})
    for stage in ("ingest", "fit", "predict", "evaluate", "report"):
        row = rows.get(stage)
        if row is None:
            continue
        for part, own in (row["parts"] or {stage: row["whole"]}).items():
            raster = row.get("raster_bytes", 0.0) if part == "prediction with draws" else 0.0
            yield part, own, floor_seconds(part, own, machine, raster)


def parts_without_reason(designs: Mapping[str, Mapping[str, Row]]) -> list[str]:
    """Return a line for each part that is above its floor, or far below it without a reason."""
    lines = []
    for name, rows in designs.items():
        for part, row, floor in parts_of(rows):
            share = floor / row["seconds"]
            if share > 1:
                lines.append(f"{name}, {part}: {share:.0%} of a floor that is none")
            if share < ENOUGH and part not in WHY:
                lines.append(f"{name}, {part}: {share:.0%} of its floor, and WHY has no reason")
    return lines


def reached(rows: Mapping[str, Row], row: str, figure: str) -> float | None:
    """Return a figure of a target, or None where it was not measured."""
    stages = [rows[s] for s in ("ingest", "fit", "predict", "evaluate", "report") if s in rows]
    if row == "stages":
        if len(stages) < 5:
            return None
        each = [one[figure] for one in stages]
        return float(max(each) if figure == "peak_gib" else sum(each))
    if figure == "of mode":
        both = [
            rows.get(name, {}).get("whole", {}).get("cpu_seconds") for name in (row, "mode alone")
        ]
        return None if None in both else both[0] / both[1]
    return rows.get(row, {}).get(figure)


def page(
    told: Mapping[str, Any],
    passes: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
    ingest: Mapping[str, Any] | None = None,
) -> str:
    """Return the page, in Markdown.

    Parameters
    ----------
    told, passes, before, ingest : mapping
        Figures of ``performance.json``, ``speed.json``, ``before.json`` and ``ingest.json``; the
        last three may be empty.
    """
    designs, about = told["designs"], told["machine"]
    lines = [
        "# Performance",
        "",
        "What a stage takes beside what this machine could do at best. Made by `python -m "
        "benchmarks.performance` from `benchmarks/results/performance.json` and `speed.json`; how "
        f"it is counted: `benchmarks/counting.py`. {about['cpu']}, {about['cores']} cores.",
        "",
        "## Targets",
        "",
        "| map | | target | reached |",
        "|---|---|---|---|",
    ]
    missed = []
    for name, row, figure, most, words in TARGETS:
        found = reached(designs.get(name, {}), row, figure)
        text = "not measured" if found is None else f"{found:.3g}"
        lines.append(f"| {TITLES[name]} | {words} | {most:g} | {text} |")
        if found is not None and found > most and "process_cpu_seconds" in designs[name][row]:
            cpu, cores = designs[name][row]["process_cpu_seconds"], about["cores"]
            missed.append(
                f"{TITLES[name]}, {words}: it takes {cpu:.1f} s of processor time, so that {cores} "
                f"cores cannot take less than {cpu / cores:.1f} s."
            )
    lines += ["", "Missed:", "", *(f"* {each}" for each in missed)] if missed else []
    lines += _answers(designs)
    lines += _before(before or {})
    lines += _ingest(ingest or {})
    lines += _passes(passes)
    lines += ["", "## Stages", ""]
    lines += [
        "Floor: the flops of products and the values of exponentials at this machine's rates; for "
        "ingest and report, their bytes at the rate of the disk; for maps, also their rasters "
        "through zlib. Processor time includes processes that a stage starts.",
    ]
    said: set[str] = set()
    for name, rows in designs.items():
        if "machine" in rows:
            lines += _design(name, rows, said)
    reasons = [f"* *{PARTS[part]}*. {WHY[part]}" for part in PARTS if part in said]
    lines += ["", "Below a third of its floor:", "", *reasons] if reasons else []
    return "\n".join(lines) + "\n"


def _answers(designs: Mapping[str, Mapping[str, Row]]) -> list[str]:
    lines = [
        "",
        "Answers of these runs, beside the simulated truth: log rates of pixels, 90 % intervals.",
        "",
        "| map | correlation | RMSE | pixels covered | their people | bound, nats |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in designs.items():
        own = rows.get("answers", {})
        if "correlation" in own:
            lines.append(
                f"| {TITLES[name]} | {own['correlation']:.3f} | {own['rmse']:.3f} "
                f"| {own['covers_90']:.0%} | {own['covers_90_people']:.0%} | {own['bound']:,.1f} |"
            )
    return lines


def _before(before: Mapping[str, Any]) -> list[str]:
    """Return the table of two versions of the code, run in turn."""
    if not before:
        return []
    lines = [
        "",
        "## Before and after",
        "",
        "`python -m benchmarks.before`: `disagg run` by the code of 23 November 2026 "
        f"(`{before['commit']}`) and by this, in turn, on the same inputs; where the truth is "
        "known, log rates of pixels and their 90 % intervals.",
        "",
        "| map | | clock, s | processor, s | GiB | correlation | RMSE | covered |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, each in before["designs"].items():
        for when, row in each.items():
            right = "| | | |"
            if "correlation" in row:
                right = f"| {row['correlation']:.3f} | {row['rmse']:.3f} | {row['covers_90']:.0%} |"
            lines.append(
                f"| {TITLES[name]} | {when} | {row['clock_seconds']:.3g} "
                f"| {row['process_cpu_seconds']:.3g} | {row['peak_gib']:.2f} {right}"
            )
    return lines


def _ingest(ingest: Mapping[str, Any]) -> list[str]:
    """Return what ingest takes beside exactextract."""
    if not ingest:
        return []
    took = ingest["processor_seconds"]
    return [
        "",
        "## Ingest beside exactextract",
        "",
        f"`python -m benchmarks.ingest`, `{ingest['size']}`, processor time: ingest "
        f"{took['ingest']:.3g} s; exactextract's cells and fractions of the areas on one raster, "
        f"{took['pairs']:.2g} s, and its means of all {ingest['rasters']} rasters over the areas, "
        f"{took['means']:.3g} s. Both count the same people in each area, within "
        f"{ingest['largest_difference']:.0e}.",
    ]


def _design(name: str, rows: Mapping[str, Row], said: set[str]) -> list[str]:
    rate = rows["machine"]
    lines = [
        "",
        f"**{TITLES[name]}.** Products {rate['gemm_float64'] / 1e9:.0f} Gflop/s in float64, "
        f"{rate['gemm_float32'] / 1e9:.0f} in float32; exponentials "
        f"{rate['exp_float64'] / 1e9:.2f} and {rate['exp_float32'] / 1e9:.2f} a nanosecond; disk "
        f"{rate['write'] / 1e6:.0f} MB/s; zlib {rate['zlib'] / 1e6:.0f} MB/s a core.",
        "",
        "| part | clock, s | processor, s | Gflop | exponentials, 10^6 | MB read, written "
        "| floor, s | share |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for part, row, floor in parts_of(rows):
        share = floor / row["seconds"]
        if share < ENOUGH and part in WHY:
            said.add(part)
        lines.append(
            f"| {PARTS.get(part, part)} | {row['seconds']:.3g} | {row['cpu_seconds']:.3g} "
            f"| {row['flops'] / 1e9:.3g} | {row['exps'] / 1e6:.3g} "
            f"| {row['read'] / 1e6:.3g}, {row['written'] / 1e6:.3g} "
            f"| {floor:.2g} | {share:.1%} |"
        )
    return lines


def _passes(passes: Mapping[str, Any]) -> list[str]:
    if not passes:
        return []
    lines = [
        "",
        "## A pass",
        "",
        f"`python -m benchmarks.speed`: {passes['n_pix']:,} pixels, {passes['n_area']} areas. A "
        "*step* of q(u) and the *slopes* by the kernel, on the few pixels that a fit's climb "
        "reads; the *pass* of fits by mini-batches with all gradients; *predict*: mean, deviation "
        "and three quantiles. Targets: 60 % of the product's rate, 4 times PyTorch. Steps and "
        "slopes are far from both: they are many calls on blocks of some 2,000 pixels "
        "([speed](design/speed.md)).",
        "",
        "| | inducing | s | share of its limit | of the product's rate | times as fast as PyTorch "
        "| difference from PyTorch |",
        "|---|---|---|---|---|---|---|",
    ]
    for dtype in ("float64", "float32"):
        for name, row in passes[dtype].items():
            if isinstance(row, Mapping):
                beside = "| "
                if "torch_seconds" in row:
                    beside = f"{row['times_as_fast_as_torch']:.2g} | {row['worst_difference']:.0e}"
                lines.append(
                    f"| {dtype}, {name} | {row['n_ind']} | {row['seconds']:.3g} "
                    f"| {row['share_of_limit']:.1%} | {row['share_of_gemm']:.1%} | {beside} |"
                )
    return lines

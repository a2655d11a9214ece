"""Deliberate faults of one line, spread over the rooms, and whether the tests find them.

Each fault is put into a copy of the tree, and the tests that ought to find it run there.

    python -m benchmarks.mutate [--only N ...]

writes ``benchmarks/results/mutate.json``; with ``--only``, the other faults keep what was found.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.report import parsed

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks/results/mutate.json"
LEFT_OUT = (".git", ".venv", "demo", "build", ".mypy_cache", ".ruff_cache")
EVERYWHERE = ("__pycache__", "results")


@dataclass(frozen=True)
class Fault:
    """A text of a file, what stands there instead, and the tests that ought to see it."""

    file: str
    old: str
    new: str
    tests: str


FAULTS = [
    Fault(*row)
    for row in (
        ("models/gp/shapes.py", "scale = slope = -0.5", "scale = slope = -0.4",
         "tests/models/gp/test_kernels.py"),
        ("models/gp/priors.py", "half_dim * (inverse - 1.0)", "half_dim * (inverse - 0.9)",
         "tests/models/aggregate/test_profile_bound.py"),
        ("models/likelihoods/poisson.py", "ratio - 1.0, -ratio / eta", "ratio - 1.0, ratio / eta",
         "tests/models/likelihoods/test_likelihoods.py"),
        ("models/likelihoods/beta_binomial.py", "rest = bag_data - y", "rest = bag_data - y + 1",
         "tests/models/likelihoods/test_likelihoods.py"),
        ("models/aggregate/quasi_newton.py", "-(root @ direction) * radius", "root @ direction",
         "tests/models/aggregate/test_refinement.py tests/models/aggregate/test_members.py"),
        ("models/aggregate/effects.py", "rate=base * link.value(f)", "rate=link.value(f)",
         "tests/models/aggregate/test_effects.py"),
        ("models/aggregate/vbagg.py", 'self.integrate == "none" else', 'self.integrate else',
         "tests/models/aggregate/test_refinement.py"),
        ("models/mil/pooled/rank_scaling.py", "- 0.5 * count", "- 0.1 * count",
         "tests/models/mil/pooled/test_pooled_gp.py"),
        ("models/mil/data/labels_in.py", "size > 2 and not several", "size > 3 and not several",
         "tests/models/mil/data tests/models/mil/test_scikit_learn.py"),
        ("models/mil/variational/closed_form.py", "(self.intercept_sd > 0)", "0",
         "tests/models/mil/variational/test_psi_vgpmil.py"),
        ("models/training/schedule.py", "(2 * count >= batch_bags or not steps)", "not steps",
         "tests/models/training/test_schedule.py"),
        ("geo/grids/grid.py", "row + n, col, n_row - n, n_col", "row + n, col, n, n_col",
         "tests/geo/grids tests/pipeline/storage/test_windows.py"),
        ("geo/grids/grid.py", "not (t.a > 0 and t.e < 0)", "not t.a > 0", "tests/geo/grids"),
        ("geo/grids/positions.py", "+ 0.5) * t.a", "+ 0.0) * t.a", "tests/geo/grids"),
        ("geo/grids/conserve.py", "source + 1) - np.maximum(begin, source)", "source + 1) - begin",
         "tests/geo/grids tests/geo/sources/test_align.py"),
        ("geo/sources/zonal.py", "values = values * grid.area_km2(tile)", "pass",
         "tests/pipeline/ingest/test_coarse_grid.py"),
        ("geo/tables/response_column.py", 'twice=bool(ids.duplicated().any())', 'twice=False',
         "tests/geo/tables tests/corpus"),
        ("geo/core/text_safety.py", "return f\"'{value}\"", "return value",
         "tests/geo/core/test_text_safety.py"),
        ("geo/writers/colours.py", "return max(first, last / DECADES), last", "return first, last",
         "tests/geo/writers/test_colours.py"),
        ("geo/core/addresses.py", r'_USER.sub(rf"\1{HIDDEN}@", text)', "text",
         "tests/geo/core/test_addresses.py"),
        ("pipeline/products/csv_table.py", "return str(int(value))", "return str(value)",
         "tests/pipeline/products/test_csv_table.py"),
        ("pipeline/products/monte_carlo.py", "total.size / (total.size - 1) * float", "float",
         "tests/pipeline/products/test_monte_carlo.py"),
        ("pipeline/levels/level_tables.py", "np.argsort(-rate[known]", "np.argsort(rate[known]",
         "tests/pipeline/levels/test_targeting.py tests/pipeline/levels/test_levels.py"),
        ("pipeline/prediction/totals.py", "shares = covered, 1.0 - covered",
         "shares = covered, covered", "tests/pipeline/prediction/test_totals.py"),
        ("pipeline/ingest/without_counts.py", "len(absent) / n_all", "len(absent) / store.n_bag",
         "tests/pipeline/ingest/test_without_counts.py"),
        ("pipeline/store/thinning.py", "order=np.arange(store.n_bag)", "order=None",
         "tests/pipeline/store"),
        ("pipeline/evaluation/folds.py", "key=lambda part: float(", "key=lambda part: -float(",
         "tests/pipeline/evaluation/test_folds.py"),
        ("pipeline/evaluation/scores.py", "(below + equal + 1) /", "(below + equal) /",
         "tests/pipeline/evaluation/test_scores.py"),
        ("pipeline/evaluation/verdict.py", "if low > 0 or", "if mean > 0 or",
         "tests/pipeline/evaluation/test_verdict.py"),
        ("pipeline/training/checkpoint.py", "*earlier[:1]", "*earlier[:2]",
         "tests/pipeline/training/test_checkpoint.py"),
        ("pipeline/updates/retry.py", "self.delay_s * 2.0**k", "self.delay_s",
         "tests/pipeline/updates"),
        ("pipeline/run/runner.py", 'reason = "forced" if force else stale', "reason = stale",
         "tests/pipeline/run/test_runner.py"),
        ("pipeline/publishing/gates.py", "None else constant - score", "None else 1e9",
         "tests/pipeline/publishing/test_publishing.py"),
        ("pipeline/storage/files.py", "path.mkdir(0o770)", "path.mkdir(0o777)",
         "tests/infra/test_systemd.py"),
        ("pipeline/cli/main.py", "return ExitStatus.DEFECT", "return ExitStatus.BAD_INPUT",
         "tests/pipeline/cli/test_exit_status.py"),
        ("pipeline/core/supervised.py", "return 128 + killed_by", "return killed_by",
         "tests/pipeline/cli/test_exit_status.py"),
        ("pipeline/config/periods.py", "found_periods[-1] if", "found_periods[0] if",
         "tests/pipeline/config/test_periods.py"),
        ("pipeline/config/size_defaults.py", "min(scored, fitted) if", "scored if",
         "tests/pipeline/config/test_size_defaults.py"),
        ("pipeline/reporting/words.py", "SHOWN_SHARE = 0.005", "SHOWN_SHARE = 0.5",
         "tests/pipeline/reporting/test_words.py"),
        ("flows/watch.py", "mark_seen(loaded, arrival)", "pass", "tests/flows/test_watch.py"),
    )
]  # fmt: skip


def left_out(folder: str, names: list[str]) -> list[str]:
    """Return the names in a folder that are not copied: at the top alone, `demo` is a package."""
    whole = EVERYWHERE + LEFT_OUT if Path(folder) == ROOT else EVERYWHERE
    return [name for name in names if name in whole]


def found_by(fault: Fault) -> bool:
    """Say whether the tests of a fault fail with it."""
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=left_out, symlinks=True)
        (tree / "benchmarks/results").symlink_to(ROOT / "benchmarks/results")
        place = tree / fault.file
        place.write_text(mutated(fault, place.read_text()))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "-m", "not slow", *fault.tests.split()],
            cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, stdout=subprocess.PIPE,
        )  # fmt: skip
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stdout.decode()[-2000:])
    return done.returncode == 1


def mutated(fault: Fault, text: str) -> str:
    """Return the text of the file with the fault."""
    if text.count(fault.old) != 1:
        message = f"{fault.file} has {fault.old!r} {text.count(fault.old)} times"
        raise ValueError(message)
    return text.replace(fault.old, fault.new)


def main() -> None:
    """Try the faults, and write what was found."""
    numbers = {"type": int, "nargs": "*", "help": "numbers of faults, from 1"}
    only = parsed(__doc__, only=numbers).only or range(1, len(FAULTS) + 1)
    before = json.loads(RESULT.read_text())["faults"] if RESULT.exists() else []
    known = {(each["file"], each["old"]): each["found"] for each in before}
    for number in only:
        fault = FAULTS[number - 1]
        known[fault.file, fault.old] = found_by(fault)
        print(number, fault.file, known[fault.file, fault.old], flush=True)
        rows = [asdict(each) | {"found": known.get((each.file, each.old))} for each in FAULTS]
        RESULT.write_text(json.dumps({"faults": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

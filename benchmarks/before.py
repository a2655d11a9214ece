"""Maps by an earlier version of the code and by this one, in turn, on the same inputs and machine.

    python -m benchmarks.before [--commit 25b81067] [--designs grid60 demo madagascar grid200]

Each `disagg run` has a process of its own and an empty output folder; the earlier code is checked
out beside the tree, and runs with the libraries of this one. Run it on a quiet machine. Writes
``benchmarks/results/before.json``, whose table :mod:`benchmarks.performance` puts on its page.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.performance import DESIGNS, ROOT, child, prepared
from benchmarks.report import RESULTS, parsed, write_results

#: The last before series of periods, of 23 November 2026.
COMMIT = "25b81067"


def answers(out: Path) -> dict[str, Any]:
    """Return what both codes say of their map: where the truth is known, how right it is."""
    truth = json.loads((out / "evaluation.json").read_text(encoding="utf-8")).get("truth")
    if truth is None:
        return {}
    pixels = truth["pixels"]
    return {
        "correlation": pixels["log_rate"]["correlation"],
        "rmse": pixels["log_rate"]["rmse"],
        "covers_90": pixels["coverage"]["0.9"],
    }


def run(config: Path, root: Path) -> dict[str, Any]:
    """Run all stages by the code of a tree; return time, memory, and the answers."""
    out = config.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    about, _ = child("pipeline.cli", "run", str(config), "--quiet", root=root)
    return {**about, **answers(out)}


def main() -> None:
    """Run all maps, and write the figures."""
    whole = [name for name, design in DESIGNS.items() if design.whole]
    options = parsed(
        __doc__, commit=COMMIT, designs=whole, work=ROOT / "build/before", results=RESULTS
    )
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(tree), options.commit], check=True)
        try:
            for name in options.designs:
                config = prepared(name, options.work.resolve() / name)
                found[name] = {"before": run(config, tree), "now": run(config, ROOT)}
                print(name, json.dumps(found[name]), flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    write_results(options.results / "before.json", {"commit": options.commit, "designs": found})


if __name__ == "__main__":
    main()

"""Machines for maps of several sizes, as ``disagg plan`` foresees: ``python -m benchmarks.sizing``.

Writes ``benchmarks/results/sizing.json``, of which the table in ``docs/operations.md`` is made.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import parsed
from pipeline.config.reader import load_config
from pipeline.demo.country import simulate_country
from pipeline.plan.estimate import plan_run

OUT = Path(__file__).parent / "results" / "sizing.json"
SIZES = ("small", "country")


def sized(plan: dict[str, Any]) -> dict[str, Any]:
    """Return what a machine must have, from a plan as JSON."""
    stages = plan["stages"].values()
    return {
        "areas": plan["areas"],
        "pixels": plan["pixels_in_areas"],
        "covariates": plan["covariates"],
        "memory_gb": round(max(stage["peak_bytes"] for stage in stages) / 1e9, 1),
        "disk_gb": round(plan["disk_bytes"] / 1e9, 2),
        "minutes": {
            n: round(sum(stage["seconds"][n] for stage in stages) / 60, 1) for n in ("1", "2", "4")
        },
    }


def main() -> None:
    """Simulate, plan, write."""
    given = parsed(__doc__, out=OUT)
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        for size in SIZES:
            config = load_config(simulate_country(Path(directory) / size, size=size, seed=1))
            found[size] = sized(json.loads(json.dumps(plan_run(config).to_dict())))
            print(size, found[size], flush=True)
    cores = len(os.sched_getaffinity(0))
    told = {"command": "python -m benchmarks.sizing", "cores": cores,
            "platform": platform.platform(), "sizes": found}  # fmt: skip
    given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

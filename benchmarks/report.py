"""Where benchmarks write their figures, and how they describe the machine."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
from pathlib import Path
from typing import Any

from pipeline.core.revision import full_version
from pipeline.core.sources import own_sources

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Describe the machine of the measurement."""
    return {"cores": os.cpu_count(), "platform": platform.platform(), "cpu": _cpu()}


def code() -> dict[str, Any]:
    """Describe the code of the measurement: its version, and a hash of each room."""
    return {"version": full_version(), "rooms": own_sources().hashes()}


def write_results(path: Path, result: dict[str, Any]) -> None:
    """Write figures as JSON, with the machine and the code that gave them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"machine": machine(), "code": code()}
    path.write_text(json.dumps({**about, **result}, indent=1) + "\n")


def wait_with_usage(process: subprocess.Popen[Any]) -> resource.struct_rusage:
    """Wait for a process; return what it used. Sets its ``returncode``."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()

"""Where benchmarks write their figures, and how they describe the machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
from collections.abc import Iterable
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
    """Write figures as JSON, with the machine and the code that gave them.

    Raises
    ------
    ValueError
        If the figures have a machine or a code of their own, which would hide these.
    """
    if own := {"machine", "code"} & result.keys():
        msg = f"{path.name}: {', '.join(sorted(own))} is written with the figures, not by them"
        raise ValueError(msg)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"machine": machine(), "code": code()}
    path.write_text(json.dumps({**about, **result}, indent=1) + "\n")


def read_results(path: Path) -> dict[str, Any]:
    """Return the figures of a file without machine and code, none where there is no file."""
    result: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return {name: each for name, each in result.items() if name not in ("machine", "code")}


def marked_as_older(parts: Iterable[dict[str, Any]], path: Path) -> None:
    """Write into parts that a run keeps from a file which code had measured them."""
    told = json.loads(path.read_text()).get("code") if path.is_file() else None
    version = told["version"] if isinstance(told, dict) else "not told"
    for part in parts:
        part.setdefault("measured_with", version)


def parsed(about: str | None, *places: str, **defaults: Any) -> argparse.Namespace:
    """Parse a benchmark's command line.

    Parameters
    ----------
    about : str
        The module's docstring.
    *places : str
        Names of paths; one with a question mark may be left out.
    **defaults
        Options by name, each its default, or a pair of default and help. ``False`` is a switch, a
        list any of its entries, a dictionary the arguments of ``add_argument``; one that may be
        left out has a type, or None for a text.
    """
    parser = argparse.ArgumentParser(description=about)
    for name in places:
        one = {"nargs": "?"} if name.endswith("?") else {}
        parser.add_argument(name.rstrip("?"), type=Path, **one)
    for name, given in defaults.items():
        value, about = given if isinstance(given, tuple) else (given, None)
        how: dict[str, Any] = {"type": type(value), "default": value}
        if value is False:
            how = {"action": "store_true"}
        elif isinstance(value, list):
            how = {"nargs": "+", "choices": value, "default": value}
        elif isinstance(value, dict):
            how = value
        elif value is None or isinstance(value, type):
            how = {"type": value or str}
        parser.add_argument(f"--{name.replace('_', '-')}", **{"help": about, **how})
    return parser.parse_args()


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

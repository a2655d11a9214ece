"""Write the lists of packages with hashes that the image installs.

    python infra/image/lock.py

Needs the package index, and nothing that pip does not have. Each list has the packages of
``disagg[flows,s3,kubernetes]`` (``-cuda``: also CuPy with NVIDIA's libraries) and the build backend
at the versions of constraints.txt, each with the SHA-256 of its wheel for 64-bit Intel and AMD
processors (exactextract 0.3 has no wheel for others).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLATFORM = "x86_64"
EXTRAS = "flows,s3,kubernetes"
#: Debian 12 has Python 3.11.2, for which redis needs async-timeout.
DEBIAN = ["async-timeout"]
#: CuPy's extra ctk has the libraries of CUDA: the base image needs none, the node only its driver.
LISTS = {"requirements.txt": DEBIAN, "requirements-cuda.txt": [*DEBIAN, "cupy-cuda12x[ctk]"]}
HEAD = "# Made by infra/image/lock.py from pyproject.toml and constraints.txt; do not edit.\n"


def main() -> None:
    """Write both lists."""
    for name, more in LISTS.items():
        pins = resolve(more)
        hashes = wheel_hashes(pins)
        lines = [f"{pin} \\\n    --hash=sha256:{hashes[pin]}" for pin in sorted(pins)]
        (HERE / name).write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
        print(f"{name}: {len(pins)} packages")


def resolve(more: list[str]) -> list[str]:
    """Return ``name==version`` of all packages that the image needs."""
    build = re.search(r'requires = \["([^"]+)"\]', (ROOT / "pyproject.toml").read_text())
    if build is None:
        message = "pyproject.toml names no build backend"
        raise SystemExit(message)
    found = pip_report("-c", str(ROOT / "constraints.txt"), f"{ROOT}[{EXTRAS}]", build[1], *more)
    return [pin_of(item) for item in found if pin_of(item).split("==")[0] != "disagg"]


def wheel_hashes(pins: list[str]) -> dict[str, str]:
    """Return the SHA-256 of each package's wheel for Debian 12 (glibc 2.36)."""
    tags = [f"manylinux_2_{minor}_{PLATFORM}" for minor in range(36, 4, -1)]
    tags += [f"manylinux2014_{PLATFORM}", f"manylinux1_{PLATFORM}", f"linux_{PLATFORM}"]
    with tempfile.TemporaryDirectory() as nowhere:
        where = [f"--platform={tag}" for tag in tags] + ["--python-version=3.11"]
        found = pip_report("--no-deps", "--only-binary=:all:", "--target", nowhere, *where, *pins)
    return {
        pin_of(item): item["download_info"]["archive_info"]["hashes"]["sha256"] for item in found
    }


def pip_report(*arguments: str) -> list[dict[str, Any]]:
    """Return what pip would install."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    # Files of this machine may differ from those of the index.
    environment = {k: v for k, v in os.environ.items() if k != "PIP_FIND_LINKS"}
    environment["PIP_CONFIG_FILE"] = os.devnull
    done = subprocess.run(
        [*command, "--report", "-", *arguments], env=environment, check=True, stdout=subprocess.PIPE
    )
    items: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return items


def pin_of(item: dict[str, Any]) -> str:
    """Return ``name==version`` of an item of pip's report."""
    name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
    return f"{name}=={item['metadata']['version']}"


if __name__ == "__main__":
    main()

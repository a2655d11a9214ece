"""Leaflet, the map library of the page: which version it is, and where it came from.

    npm pack leaflet@1.9.4
    python -m pipeline.reporting.vendor leaflet-1.9.4.tgz

The command checks the package against the checksum that npm publishes, takes three files from it
and writes ``SOURCE.json``. Without an argument it checks the files that are here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

from geo.core.errors import InputError, Problem

HERE = Path(__file__).parent / "static" / "leaflet"
SOURCE = HERE / "SOURCE.json"
FILES = {
    "leaflet.js": "package/dist/leaflet.js",
    "leaflet.css": "package/dist/leaflet.css",
    "LICENSE": "package/LICENSE",
}


def source() -> dict[str, Any]:
    """Return the package, its version, licence and checksum, and the checksum of each file."""
    found: dict[str, Any] = json.loads(SOURCE.read_text(encoding="utf-8"))
    return found


def damaged() -> list[str]:
    """Return the names of the files whose SHA-256 is not the one of ``SOURCE.json``."""
    wanted = source()["files"]
    return [
        name
        for name in FILES
        if hashlib.sha256((HERE / name).read_bytes()).hexdigest() != wanted.get(name)
    ]


def take(package: Path) -> None:
    """Replace the files by those of an npm package.

    Parameters
    ----------
    package : Path
        Made by ``npm pack``.

    Raises
    ------
    InputError
        If its checksum is not the one that ``SOURCE.json`` names.
    """
    about = source()
    data = package.read_bytes()
    digest = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    if digest != about["integrity"]:
        remedy = f"put its version and checksum (npm view leaflet dist.integrity) into {SOURCE}"
        raise InputError(Problem(str(package), f"its checksum is {digest}", remedy))
    with tarfile.open(package) as archive:
        for name, inner in FILES.items():
            file = archive.extractfile(inner)
            if file is None:
                raise InputError(Problem(str(package), f"{inner} is no file", "pack it again"))
            content = file.read()
            (HERE / name).write_bytes(content)
            about["files"][name] = hashlib.sha256(content).hexdigest()
    SOURCE.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        take(Path(sys.argv[1]))
    wrong = damaged()
    print(f"{source()['package']} {source()['version']}: {wrong or 'as published'}")
    sys.exit(2 if wrong else 0)

"""Write what an image consists of: a bill of materials, and the licences.

    python components.py DIRECTORY

``sbom.cdx.json`` (CycloneDX 1.6) lists the Python packages of this environment and, on Debian, the
packages of the system. ``licences.tsv`` has a line for each. Runs without network, with nothing but
the standard library.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

UNKNOWN = "unknown"


def main() -> int:
    """Write both files."""
    if len(sys.argv) != 2:
        print(f"error: no directory given; run python {sys.argv[0]} DIRECTORY", file=sys.stderr)
        return 2
    directory = Path(sys.argv[1])
    components = [*python_components(), *debian_components()]
    text = json.dumps(bill_of_materials(components), indent=1, ensure_ascii=False)
    (directory / "sbom.cdx.json").write_text(text + "\n", encoding="utf-8")
    rows = ["package\tversion\tlicence", *map(licence_row, components)]
    (directory / "licences.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return 0


def bill_of_materials(components: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the document; the same components give the same bytes."""
    own = next((each for each in components if each["name"] == "disagg"), None)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        **({"metadata": {"component": {**own, "type": "application"}}} if own else {}),
        "components": [each for each in components if each is not own],
    }


def python_components() -> list[dict[str, Any]]:
    """Return the installed distributions, by name."""
    found = {}
    for package in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()
        found[name] = component("pypi", name, package.version, licence_of(package.metadata))
    return [found[name] for name in sorted(found)]


def licence_of(metadata: Any) -> str:
    """Return what a distribution says of its licence, in one line."""
    classifiers = [
        each.rpartition(" :: ")[2]
        for each in metadata.get_all("Classifier", [])
        if each.startswith("License :: ") and not each.endswith("OSI Approved")
    ]
    given = (metadata.get("License") or "").strip()
    # Some packages put the text of the licence there.
    short = given if given and "\n" not in given and len(given) <= 80 else ""
    return metadata.get("License-Expression") or short or " AND ".join(classifiers) or UNKNOWN


def debian_components() -> list[dict[str, Any]]:
    """Return the packages of the system; their licences lie in /usr/share/doc/PACKAGE/copyright."""
    if shutil.which("dpkg-query") is None:
        return []
    listed = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}\t${Version}\n"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [
        component("deb/debian", name, version, f"see /usr/share/doc/{name}/copyright")
        for name, version in sorted(line.split("\t") for line in listed.splitlines())
    ]


def component(kind: str, name: str, version: str, licence: str) -> dict[str, Any]:
    """Return an entry of the bill of materials."""
    address = f"pkg:{kind}/{name}@{quote(version, safe='')}"
    made: dict[str, Any] = {"type": "library", "bom-ref": address, "name": name, "version": version}
    if licence != UNKNOWN:
        made["licenses"] = [{"license": {"name": licence}}]
    return {**made, "purl": address}


def licence_row(each: dict[str, Any]) -> str:
    """Return a line of the table."""
    licence = each["licenses"][0]["license"]["name"] if "licenses" in each else UNKNOWN
    return f"{each['name']}\t{each['version']}\t{licence}"


if __name__ == "__main__":
    sys.exit(main())

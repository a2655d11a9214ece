"""Compare what an image holds with a file of known vulnerabilities; no network is needed.

    python infra/image/audit.py SBOM ADVISORIES [--accept ID...]

``SBOM`` is /opt/disagg/share/sbom.cdx.json of the image. ``ADVISORIES`` is a file or a directory of
advisories in the OSV format: https://osv.dev serves one archive for PyPI and one for Debian, to be
fetched and unpacked where there is a network. The exit status is 0 if nothing is known, 3 if
something is, 2 if a file cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

ECOSYSTEMS = {"pypi": "PyPI", "deb": "Debian"}


def main() -> int:
    """Print a line for each known vulnerability."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sbom", type=Path)
    parser.add_argument("advisories", type=Path)
    parser.add_argument("--accept", nargs="*", default=[], help="ids that were judged harmless")
    options = parser.parse_args()
    try:
        components = json.loads(options.sbom.read_text())["components"]
        advisories = list(read_advisories(options.advisories))
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {error!r}; give an SBOM and advisories in the OSV format", file=sys.stderr)
        return 2
    if not advisories:
        print(
            f"error: {options.advisories}: no advisory; unpack the archive there", file=sys.stderr
        )
        return 2
    found = [
        (each, advisory)
        for advisory in advisories
        for each in components
        if advisory["id"] not in options.accept and affects(advisory, each)
    ]
    for each, advisory in found:
        summary = advisory.get("summary") or str(advisory.get("details", "")).partition("\n")[0]
        print(f"{each['name']} {each['version']}: {advisory['id']}: {summary}")
    print(f"{len(components)} packages, {len(advisories)} advisories, {len(found)} found")
    return 3 if found else 0


def read_advisories(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the advisories of a file, or of all files of a directory; withdrawn ones are none."""
    for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
        content = json.loads(file.read_text(encoding="utf-8"))
        for each in content if isinstance(content, list) else [content]:
            if "withdrawn" not in each:
                yield each


def affects(advisory: dict[str, Any], component: dict[str, Any]) -> bool:
    """Say whether an advisory is about this version of a component."""
    kind = component["purl"].removeprefix("pkg:").partition("/")[0]
    for affected in advisory.get("affected", []):
        package = affected.get("package", {})
        named = str(package.get("name", "")).lower().replace("_", "-").replace(".", "-")
        ecosystem = str(package.get("ecosystem", "")).partition(":")[0]
        if named != component["name"].replace(".", "-") or ecosystem != ECOSYSTEMS.get(kind):
            continue
        if component["version"] in affected.get("versions", []):
            return True
        # Debian's versions order by rules of their own: there the list alone counts.
        if kind == "pypi" and any(
            _within(component["version"], each.get("events", []))
            for each in affected.get("ranges", [])
            if each.get("type") == "ECOSYSTEM"
        ):
            return True
    return False


def _within(version: str, events: list[dict[str, str]]) -> bool:
    try:
        own, inside = Version(version), False
        for event in events:
            if "introduced" in event:
                inside |= event["introduced"] == "0" or own >= Version(event["introduced"])
            elif "fixed" in event:
                inside &= own < Version(event["fixed"])
            elif "last_affected" in event:
                inside &= own <= Version(event["last_affected"])
    except InvalidVersion:
        return True  # rather one too many to look at than one too few
    return inside


if __name__ == "__main__":
    sys.exit(main())

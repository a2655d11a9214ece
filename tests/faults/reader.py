"""A reader of what is published on an object store, as any program may be one: HTTP and JSON.

``python -m tests.faults.reader ENDPOINT PATH`` reads the pointer, the version that it names and all
files of the version, over and over, until standard input ends; then it prints what it found.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import sys
import threading
from collections import Counter
from typing import Any

_AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"


class Reader:
    """Reads whole versions, and counts those that are not."""

    def __init__(self, endpoint: str, path: str) -> None:
        self.connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=60)
        self.path = path
        self.counts: Counter[str] = Counter()
        self.versions: set[str] = set()
        self.wrong: list[str] = []

    def get(self, name: str) -> bytes | None:
        """Return an object; None if there is none."""
        headers = {"Authorization": _AUTHORIZATION}
        self.connection.request("GET", f"{self.path}/{name}", headers=headers)
        answer = self.connection.getresponse()
        data = answer.read()
        if answer.status not in (200, 404):
            raise OSError(f"{name}: {answer.status}")
        return data if answer.status == 200 else None

    def read(self) -> None:
        """Read what is current."""
        text = self.get("current.json")
        if text is None:
            self.counts["nothing published"] += 1
            return
        pointer = json.loads(text)
        wrong = self.check(pointer)
        if wrong and self.get("current.json") != text:
            self.counts["began again"] += 1  # it went away meanwhile: as a reader would
            return
        self.counts["reads"] += 1
        self.counts["not whole"] += bool(wrong)
        self.wrong += wrong
        self.versions.add(pointer["current"])

    def check(self, pointer: dict[str, Any]) -> list[str]:
        """Return what is wrong with the version that a pointer names."""
        name, path = pointer["current"], pointer["path"]
        text = self.get(f"{path}/version.json")
        if text is None:
            return [f"{name}: no version.json"]
        if hashlib.sha256(text).hexdigest() != pointer["versions"][name]["sha256"]:
            return [f"{name}: version.json is not the pointer's"]
        about = json.loads(text)
        wrong = [] if about["version"] == name else [f"{name}: says that it is {about['version']}"]
        stamps = set()
        for file, digest in about["files"].items():
            data = self.get(f"{path}/{file}")
            if data is None or hashlib.sha256(data).hexdigest() != digest:
                wrong.append(f"{name}: {file} is {'missing' if data is None else 'another'}")
            elif file.endswith(".json"):
                stamps.add(json.loads(data).get("stamp"))
        # By a second way than checksums: every run has stamped its own files.
        return wrong + ([] if len(stamps) == 1 else [f"{name}: of several runs, {stamps}"])


def main() -> None:
    """Read until standard input ends."""
    reader, over = Reader(*sys.argv[1:3]), threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    while not over.is_set():
        reader.read()
        if reader.counts["reads"] % 100 == 0:
            print(reader.counts["reads"], flush=True)
    told = {**reader.counts, "versions": len(reader.versions), "wrong": reader.wrong[:20]}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()

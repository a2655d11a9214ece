"""``docs/operations.md`` on a bare machine: a new engineer types what it says, in its order.

debootstrap makes the machine. It has no Python, no git, and no variable of this one; a clone of the
last commit lies in the engineer's home.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HOME = "home/engineer/disagg"
LEFT_OUT = "make bump"  # all tests, hours: tests/test_operations.py checks what it names

# The lines of *Schedule*, which are no blocks: what cron would call, and the service.
SCHEDULED = (
    "disagg run demo/disagg.yaml --publish --quiet --log-format json --log-file disagg.jsonl"
)
SERVED = """
python -m flows.serve demo/disagg.yaml --cron "0 6 * * *" > serve.log 2>&1 & served=$!
for second in $(seq 180); do
  if grep -q "^Worker .* started" serve.log; then break; fi
  sleep 1
done
cat serve.log
kill -TERM $served
wait $served
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    if os.getuid() != 0:
        pytest.skip("needs root for debootstrap and chroot")
    for name in ("debootstrap", "unshare", "setpriv"):
        if shutil.which(name) is None:
            pytest.skip(f"no {name} here (Debian: apt-get install debootstrap util-linux)")
    root = tmp_path_factory.mktemp("bare") / "root"
    _run("make", root)
    return root


def _run(*words: object, typed: str | None = None) -> str:
    done = subprocess.run(
        ["sh", HERE / "bare_machine.sh", *words], input=typed, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


def test_a_new_engineer_gets_along_with_the_page(machine):
    page = (machine / HOME / "docs/operations.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:sh|bash)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for_root = [text for text in blocks if text.startswith("apt-get")]
    rest = [text for text in blocks if not text.startswith(("apt-get", LEFT_OUT))]
    assert len(for_root) == 1
    assert len(rest) == len(blocks) - 2 >= 8

    _run("type", machine, "root", typed=for_root[0])
    said = _run("type", machine, "engineer", typed="\n".join([*rest, SCHEDULED, SERVED]))

    work = machine / HOME
    assert re.search(r"^disagg \S+\+g[0-9a-f]{7}", said, re.MULTILINE), said[:2000]
    assert (work / "demo/out/published/current/report.html").is_file()
    assert (work / "restored/demo/out/published/current").is_symlink()
    lines = [json.loads(line) for line in (work / "disagg.jsonl").read_text().splitlines()]
    assert lines
    served = (work / "serve.log").read_text()
    assert re.search(r"^update-map/\S+: 0 6 \* \* \*$", served, re.MULTILINE), served
    assert re.search(r"^Worker .* started", served, re.MULTILINE), served

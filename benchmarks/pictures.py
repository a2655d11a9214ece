"""The pictures of the README, each of a run that this command makes.

::

    python -m benchmarks.pictures DIRECTORY

runs ``examples/madagascar/disagg.yaml`` and a simulated country with labels in ``DIRECTORY`` (a
finished run is not repeated), photographs the first screen of the report in headless Chromium, and
writes ``docs/figures/``: the pictures, and ``pictures.json``, which says of which code they are and
has their checksums. ``tests/test_pictures.py`` holds the README against it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.report import parsed
from pipeline.storage.fingerprint import fingerprint_file

ROOT = Path(__file__).parents[1]
FIGURES, RECORD = ROOT / "docs/figures", ROOT / "docs/figures/pictures.json"
SCREEN = {"width": 1280, "height": 760}
#: Picture, the run that it is of, and the file of the run.
PICTURES = (
    ("madagascar.png", "madagascar", "preview.png"),
    ("report.png", "madagascar", "report.html"),
    ("labels.png", "labels", "preview.png"),
)


def main() -> None:
    """Make the runs and the pictures."""
    directory = parsed(__doc__, "directory").directory.resolve()
    outs = {"madagascar": run_madagascar(directory), "labels": run_labels(directory)}
    record = {}
    for name, run, file in PICTURES:
        source, target = outs[run] / file, FIGURES / name
        if file.endswith(".html"):
            photograph(source, target)
        else:
            shutil.copyfile(source, target)
        made = json.loads((outs[run] / "run.json").read_text(encoding="utf-8"))
        record[name] = {
            "run": run,
            "file": file,
            "disagg": made["versions"]["disagg"],
            "code": made["code"],
            "picture": fingerprint_file(target),
        }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def run_madagascar(directory: Path) -> Path:
    """Run the example in a directory of its own; return its results."""
    folder = directory / "madagascar"
    folder.mkdir(parents=True, exist_ok=True)
    config = shutil.copy(ROOT / "examples/madagascar/disagg.yaml", folder)
    disagg("run", config)
    return folder / "out"


def run_labels(directory: Path) -> Path:
    """Simulate a country with labels and run it; return its results."""
    folder = directory / "labels"
    if not (folder / "disagg.yaml").is_file():
        disagg("demo", folder, "--labels", "--seed", "1")
    disagg("run", folder / "disagg.yaml")
    return folder / "out"


def disagg(*arguments: object) -> None:
    """Run the command line."""
    code = "import sys; from pipeline.cli.main import main; sys.exit(main(sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", code, *map(str, arguments)], check=True)


def photograph(page: Path, picture: Path) -> None:
    """Write the first screen of a page, when its maps are drawn."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        shown = browser.new_page(viewport=SCREEN)
        shown.goto(page.as_uri())
        shown.wait_for_selector("html[data-ready=yes]", timeout=60_000)
        shown.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main()

"""What a user types: texts that are changed in a file, stages that are run."""

from pathlib import Path
from typing import Any

from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.core.progress import Silent
from pipeline.run.runner import run_stages


def edit(path: Path, changes: dict[str, str]) -> None:
    """Put one text in the place of another everywhere in a file, which has to hold it."""
    text = path.read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def run_each(config: object, *stages: str) -> None:
    """Run stages one after the other, each by a command that has to succeed."""
    for stage in stages:
        assert main([stage, str(config), "--quiet"]) == 0, stage


def take_in(config: object) -> None:
    """Let a fitted series take in what is new, as ``disagg update`` does, without a report."""
    run_stages(load_config(str(config)), ("ingest", "fit", "predict"), Silent(), update="only")


def errors(capsys: Any) -> list[str]:
    """Return the lines of errors that commands have written; a traceback is none of them."""
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return [line for line in err.splitlines() if line.startswith("error:")]

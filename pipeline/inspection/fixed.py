"""Write a configuration with changes beside the old one; its comments stay, with ruamel.yaml."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from geo.core.errors import InputError, Problem
from pipeline.config.document import dotted
from pipeline.inspection.mends import Change, Findings, changes_of
from pipeline.storage.files import atomic_write

ROUNDS = 4  # a mend may uncover what another mends: a path, then a column of its file
WIDTH = 4096  # characters of a line that is not broken

#: Checks a configuration; None if it is no YAML.
Check = Callable[[Path], Findings | None]


@dataclass(frozen=True)
class Fixed:
    """What was mended.

    Attributes
    ----------
    changes : tuple of Change
    path : Path or None
        The new configuration; None if nothing can be mended.
    comments : bool
        Whether comments are kept.
    """

    changes: tuple[Change, ...]
    path: Path | None
    comments: bool

    def lines(self) -> list[str]:
        """Return a line for each change, and where they are written."""
        if self.path is None:
            return ["", "Nothing can be mended safely."]
        lost = "" if self.comments else " (without comments: ruamel.yaml is not installed)"
        each = [f"mended: {change}" for change in self.changes]
        return ["", *each, f"Written: {self.path}{lost}", f"Next: disagg check {self.path}"]

    def summary(self) -> dict[str, Any]:
        """Return the same for machines."""
        path = None if self.path is None else str(self.path)
        return {
            "path": path,
            "comments": self.comments,
            "changes": [
                {"key": dotted(c.key), "value": c.value, "why": c.why} for c in self.changes
            ],
        }


def fixed_path(file: Path) -> Path:
    """Return where the mended configuration of a file is written."""
    return file.with_name(f"{file.stem}.fixed{file.suffix or '.yaml'}")


def write_fixed(file: Path, found: Findings, check: Check) -> Fixed:
    """Write what can be mended of a configuration into a new one beside it.

    Parameters
    ----------
    file : Path
        The configuration, which stays as it is.
    found : Findings
        Of it.
    check : callable
        Checks what is mended: a mend may uncover what another mends.

    Raises
    ------
    InputError
        If there is a file of its name.
    """
    target, changes = fixed_path(file), list[Change]()
    text, kept = file.read_text(encoding="utf-8"), True
    # Beside the old one, for its paths; hidden, and gone whatever happens.
    trial, beside = file.with_name(f".{file.stem}.fixing{file.suffix}"), list[Path]()
    done = False
    try:
        for _ in range(ROUNDS):
            fresh = [each for each in changes_of(found) if each.key not in {c.key for c in changes}]
            if not fresh:
                break
            for name, content in [each.beside for each in fresh if each.beside is not None]:
                beside += _write(file.with_name(name), content)
            changes += fresh
            text, kept = changed(text, fresh)
            trial.write_text(text, encoding="utf-8")
            again = check(trial)
            if again is None:
                break
            found = again
        if changes:
            _write(target, text.encode())
        done = True
    finally:
        for path in [trial, *([] if done else beside)]:
            path.unlink(missing_ok=True)
    return Fixed(tuple(changes), target if changes else None, kept)


def _write(path: Path, content: bytes) -> list[Path]:
    """Write a file unless it is there with the same content; return what was written."""
    if path.exists():
        if path.read_bytes() == content:
            return []
        remedy = "move it away, or remove it; nothing was written"
        raise InputError(Problem(str(path), "is there already", remedy))
    with atomic_write(path) as opened:
        opened.write(content)
    return [path]


def changed(text: str, changes: Sequence[Change]) -> tuple[str, bool]:
    """Return a configuration's text with changes, and whether its comments are kept."""
    try:
        from ruamel.yaml import YAML
    except ImportError:
        data = yaml.safe_load(text)
        _set(data, changes)
        return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=WIDTH), False
    editor, stream = YAML(), io.StringIO()
    editor.preserve_quotes, editor.width = True, WIDTH
    data = editor.load(text)
    _set(data, changes)
    editor.dump(data, stream)
    return stream.getvalue(), True


def _set(data: Any, changes: Sequence[Change]) -> None:
    for change in changes:
        parent = data
        for part in change.key[:-1]:
            parent = parent.setdefault(part, {}) if isinstance(parent, dict) else parent[part]
        if not change.old:
            parent[change.key[-1]] = change.value
        elif hasattr(parent, "insert"):  # of ruamel.yaml: at its place
            at = list(parent).index(change.old)
            parent.insert(at, change.key[-1], parent.pop(change.old))
        else:
            parent[change.key[-1]] = parent.pop(change.old)

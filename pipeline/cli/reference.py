"""The reference of the command line, from the commands themselves: a page.

    python -m pipeline.cli.reference docs

writes ``commands.md`` into a folder. It says what ``--help`` says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer import Context
from typer.main import get_command

from pipeline.cli.main import app
from pipeline.core.exit_status import MEANINGS

PAGE = "commands.md"
_HEAD = """# The command line, command by command

Made from the commands by `make reference`; `disagg COMMAND --help` prints the same of one command.
What has no `[required]` may be left out. [failures.md](failures.md) says what to do about
an exit status.

"""


def page() -> str:
    """Return the page, in Markdown."""
    statuses = "".join(f"| {status:d} | {meaning} |\n" for status, meaning in MEANINGS.items())
    parts = [_HEAD, "| exit status | meaning |\n|---|---|\n", statuses]
    for name, command in sorted(_commands(get_command(app), "disagg")):
        parts.append(f"\n## {name}\n\n{_prose(command.help or '')}\n")
        context = Context(command, info_name=name)
        words = [name, *command.collect_usage_pieces(context)]
        parts.append(f"\n```text\n{' '.join(words)}\n```\n\n| argument | meaning |\n|---|---|\n")
        parts += [_row(each, context) for each in command.params if not each.hidden]
    return "".join(parts)


def write(directory: Path) -> None:
    """Write the page into a folder."""
    (directory / PAGE).write_text(page(), encoding="utf-8")


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", {})
    if not inner:
        yield name, command
    for word, each in inner.items():
        yield from _commands(each, f"{name} {word}")


def _prose(text: str) -> str:
    r"""Return a help's paragraphs; those after ``\b`` whose lines are indented become code."""
    parts = []
    for part in text.strip().split("\n\n"):
        lines = part.strip("\b\n").splitlines()
        code = [line[2:] for line in lines if line.startswith("  ")]
        above = "\n".join(line for line in lines if not line.startswith("  "))
        parts += [above] if above else []
        parts += ["```\n" + "\n".join(code) + "\n```"] if code else []
    return "\n\n".join(parts)


def _row(each: Any, context: Context) -> str:
    record = each.get_help_record(context)
    if record is None:  # an argument has none without a help
        record = (each.make_metavar(context), "")
    left, meaning = (cell.replace("|", "\\|").replace("\n", " ") for cell in record)
    return f"| `{left}` | {meaning} |\n"


if __name__ == "__main__":
    write(Path(sys.argv[1]))

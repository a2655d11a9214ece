"""How commands speak: what they print, for whom, and the exit status that says how it went.

Errors are for people: bad input is one line each on standard error and exit status 2, an
interruption 130 and how to go on; a defect of ours passes, to be a traceback.
"""

from __future__ import annotations

import errno
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geo.errors import InputError, Problem
from pipeline.signals import Terminated

if TYPE_CHECKING:
    from pipeline.progress import Progress

DONE, DEFECT, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say also why each step is done.")]


@dataclass(frozen=True)
class Talk:
    """How a command speaks: the options that all commands share."""

    as_json: bool
    quiet: bool
    verbose: bool

    def say(self, text: str) -> None:
        """Print a line for people, on standard output."""
        if not (self.quiet or self.as_json):
            print(text)

    def give(self, value: Any) -> None:
        """Print the result for machines, if it was asked for."""
        if self.as_json:
            print(json.dumps(value, ensure_ascii=False, indent=1))

    def progress(self) -> Progress:
        """Choose who shows progress: bars on a terminal, lines elsewhere, nobody if quiet."""
        from pipeline.progress import Bars, Lines, Silent

        if self.verbose:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            for package in ("geo", "models", "pipeline", "flows"):
                logging.getLogger(package).setLevel(logging.INFO)
                logging.getLogger(package).addHandler(handler)
        if self.quiet:
            return Silent()
        return Bars() if sys.stderr.isatty() else Lines()


def tell_error(line: str) -> None:
    """Print a line on standard error, at once."""
    print(line, file=sys.stderr, flush=True)


def tell_interrupted(stop: KeyboardInterrupt, rest: str = "") -> int:
    """Say that a signal ended the command, and return the exit status that says so."""
    word = "terminated" if isinstance(stop, Terminated) else "interrupted"
    tell_error(f"{word}{rest}")
    return stop.status if isinstance(stop, Terminated) else INTERRUPTED


@contextmanager
def errors_told(
    talk: Talk, command: str, stage: Callable[[], str] = str, *, resumable: bool = True
) -> Iterator[None]:
    """Turn what a user can mend into lines and an exit status; let defects pass."""
    try:
        yield
    except InputError as error:
        talk.give({"ok": False, "problems": [asdict(problem) for problem in error.problems]})
        for problem in error.problems:
            tell_error(f"error: {problem}")
    except KeyboardInterrupt as stop:
        kept = "what is finished is kept: go on" if resumable else "nothing is left behind: go"
        raise typer.Exit(tell_interrupted(stop, f"{stage()}; {kept} with `{command}`")) from None
    except Exception as error:
        explained = explain(error, command)
        if explained is None:
            raise
        talk.give({"ok": False, "problems": [asdict(explained)]})
        tell_error(f"error: {explained}")
    else:
        return
    raise typer.Exit(BAD_INPUT) from None


def explain(error: Exception, command: str) -> Problem | None:
    """Say what a user can do about an error that is not ours, or None."""
    from models.errors import ModelError, NotFittedError
    from pipeline.errors import PipelineError

    if isinstance(error, BrokenPipeError | NotFittedError):
        return None
    if isinstance(error, ModelError | PipelineError):
        place, _, found = str(error).partition(": ")
        found, _, remedy = found.partition("; ")
        if found and remedy:
            return Problem(place, found, remedy)
        return Problem("run", str(error), f"correct it, then go on with `{command}`")
    if isinstance(error, OSError) and error.errno in _MENDABLE:
        return Problem(
            str(error.filename or "the output directory"),
            str(error.strerror).lower(),
            f"{_MENDABLE[error.errno]}, then go on with `{command}`",
        )
    return None


_MENDABLE = {
    errno.EPERM: "allow it",
    errno.EIO: "see whether the disk is sound (dmesg), or give another output.dir",
    errno.EACCES: "give yourself the permission, or another output.dir",
    errno.ENOTDIR: "a directory is needed where a file is: move it",
    errno.ENFILE: "allow the system more open files",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.EFBIG: "allow larger files (ulimit -f), or give an output.dir on another file system",
    errno.ENOSPC: "free some space, or give another output.dir",
    errno.EROFS: "give an output.dir that can be written",
    errno.ESTALE: "mount the file system again",
    errno.EDQUOT: "free some of your quota, or give another output.dir",
}

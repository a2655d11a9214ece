"""The exit statuses of every command, for schedulers that decide by them whether to try again.

``docs/failures.md`` and ``disagg --help`` have this table; ``docs/design/exit-statuses.md`` says
why it is so.
"""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit status of a command.

    A signal's is the shell's convention, 128 plus its number: a process that the signal ends
    before Python has started looks the same to a shell and to a container.
    """

    DONE = 0
    DEFECT = 1
    BAD_INPUT = 2
    HELD = 3
    TRANSIENT = 75  # EX_TEMPFAIL of sysexits.h
    HANGUP = 129
    INTERRUPTED = 130
    PIPE_CLOSED = 141
    TERMINATED = 143

    @property
    def retry(self) -> bool:
        """Whether the same command may succeed later, without anybody's doing."""
        return self in _RETRY


#: What each status means, in the words of ``--help``.
MEANINGS: dict[ExitStatus, str] = {
    ExitStatus.DONE: "done",
    ExitStatus.DEFECT: "a defect of disagg, with a traceback",
    ExitStatus.BAD_INPUT: "bad input, or a machine that needs somebody (a full disk)",
    ExitStatus.HELD: "finished, but a gate holds the map back: nothing is published",
    ExitStatus.TRANSIENT: "something is away for now (a server, another run's lock): try again",
    ExitStatus.HANGUP: "ended by SIGHUP: the same command goes on",
    ExitStatus.INTERRUPTED: "ended by Ctrl-C: the same command goes on",
    ExitStatus.PIPE_CLOSED: "the reader of the output has gone",
    ExitStatus.TERMINATED: "ended by SIGTERM: the same command goes on",
}

_RETRY = frozenset(
    (
        ExitStatus.TRANSIENT,
        ExitStatus.HANGUP,
        ExitStatus.INTERRUPTED,
        ExitStatus.TERMINATED,
    )
)


def help_text() -> str:
    """Return the table of the statuses for ``--help``."""
    return "\n".join(f"{status:4d}  {meaning}" for status, meaning in MEANINGS.items())

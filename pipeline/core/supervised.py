"""A command as a child process, so that a signal ends it within seconds whatever it waits for.

Python runs its signal handlers in the main thread, between two steps of its own. A call into C that
does not return (GDAL waits for a server that never answers) keeps them away for ever; where it
holds the interpreter's lock, as reads of rasters do, no other thread runs either. So a parent
process does nothing but wait. It passes signals on, and kills a child that has not ended by itself
after a grace period. Nothing is lost by that: stores, models and results appear by renames, as they
must because of ``kill -9`` and power cuts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from geo.core.temporary import note_in, remove_noted

#: Seconds from the signal to the kill. Kubernetes kills after 30, some clouds' spot machines too.
GRACE_S = 15.0
#: Whether this is the child of :func:`supervised`: a process of ours, without a server's threads.
own_process = False
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_SI_USER = 0  # si_code of a signal that a process has sent; those of the terminal have another
_PR_SET_PDEATHSIG = 1


def supervised(
    work: Callable[[], int], words: Sequence[str], tell: Callable[[str], None] | None = None
) -> int:
    """Call a function in a child process; return its exit status in the parent.

    In the child the function's result is returned, so that its interpreter ends as usual.

    Parameters
    ----------
    work : callable
        Returns an exit status.
    words : sequence of str
        The command, for the line that says how to continue.
    tell : callable, optional
        Receives what is said of a child that was killed or crashed, beside standard error.

    Returns
    -------
    int
        The child's exit status; 128 plus the signal's number where a signal ended it.
    """
    if not hasattr(signal, "sigtimedwait"):  # macOS: signals wait for the call to return
        return work()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    # What is ignored (nohup; Ctrl-C in the background) stays ignored, in both processes.
    passed_on = {each for each in _PASSED_ON if signal.getsignal(each) != signal.SIG_IGN}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {*passed_on, signal.SIGCHLD})
    notes = tempfile.TemporaryFile(prefix="disagg-")  # noqa: SIM115 (open as long as the process)
    child = os.fork()
    if child == 0:
        global own_process
        own_process = True
        end_with_parent(parent, signal.SIGKILL)
        note_in(notes.fileno())
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return work()
    # A handler, or the system drops signals that are ignored by default.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    status, killed_by = _wait(child, passed_on)
    if status in (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
        remove_noted(notes.fileno())
        text = _report(-status, killed_by, shlex.join(words))
        if tell is not None:
            with contextlib.suppress(OSError):
                tell(text)
    notes.close()
    if killed_by is not None and status == -signal.SIGKILL:
        return 128 + killed_by
    return status if status >= 0 else 128 - status


def _wait(child: int, passed_on: set[signal.Signals]) -> tuple[int, int | None]:
    """Wait for the child; return its status, and the signal after which it was killed."""
    first: int | None = None
    deadline = float("inf")
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), first
        left = deadline - time.monotonic()
        if left <= 0:
            os.kill(child, signal.SIGKILL)
            deadline = float("inf")
            continue
        # A child that ended before the wait is found within a minute at the latest.
        found = signal.sigtimedwait({*passed_on, signal.SIGCHLD}, min(left, 60.0))
        if found is None or found.si_signo == signal.SIGCHLD:
            continue
        if first is None:
            first, deadline = found.si_signo, time.monotonic() + GRACE_S
        # The terminal has sent Ctrl-C to the child as well.
        if found.si_code <= _SI_USER:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, found.si_signo)


def end_with_parent(parent: int, number: int) -> None:
    """Have the system signal this process when its parent ends; end if it has ended already.

    Parameters
    ----------
    parent : int
        The parent's process number.
    number : int
        The signal.
    """
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(128 + number)


def _report(number: int, asked: int | None, command: str) -> str:
    """Say on standard error how a child ended; return the text."""
    go_on = f"finished work is kept; continue with `{command}`"
    if asked is not None and number == signal.SIGKILL:
        word = "interrupted" if asked == signal.SIGINT else "terminated"
        text = f"{word} by force: a call did not return within {GRACE_S:.0f} s; {go_on}"
    elif number == signal.SIGKILL:
        text = (
            "error: killed, most often for want of memory (see `dmesg`); compare with what "
            f"`disagg plan` foresees; {go_on}"
        )
    else:
        name = signal.Signals(number).name
        text = (
            f"error: a library crashed ({name}); this is a defect, please report it with the "
            f"command `{command}` and its inputs"
        )
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
    return text

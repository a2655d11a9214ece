"""Terms of a kernel by what of them holds still from period to period.

At one pixel a term is of one of three kinds:

* ``summed``: it holds still, and so do its inputs. It adds the same in every period.
* ``kept``: it has a time, and its inputs hold still (a term of space). Its kernel and its features
  are the same in every period, with other weights.
* ``moving``: its inputs differ by period. It is new in every period.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from models.gp.kernel_terms import TermKernel
from models.temporal.time_text import STILL

SUMMED, KEPT, MOVING = "summed", "kept", "moving"

Known = TypeVar("Known")


@dataclass(frozen=True)
class Run:
    """Neighbouring terms of one kind.

    Attributes
    ----------
    kind : str
    kernel : TermKernel
        Of these terms alone.
    w : (n_node, n_dim) float64
        Their nodes.
    of_values : slice
        Places of their inducing values.
    terms : tuple of int
        Their numbers.
    """

    kind: str
    kernel: TermKernel
    w: np.ndarray
    of_values: slice
    terms: tuple[int, ...]

    def cross(self, theta: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Return the kernel between scaled inputs and inducing variables: (n, n_value)."""
        return np.asarray(self.kernel.cross_values(theta, z, self.w.astype(z.dtype, copy=False)))


def runs_of(
    kernel: TermKernel, w: np.ndarray, times: Sequence[int], moving: frozenset[int]
) -> Iterator[Run]:
    """Yield the runs of a kernel's terms; terms without inducing variables are left out.

    Parameters
    ----------
    kernel : TermKernel
    w : (n_node, n_dim) float64
    times : sequence of int
        Number of the time of each term.
    moving : collection of int
        Columns of the inputs that differ by period.
    """
    parts = list(kernel.parts())

    def made(kind: str, own: list[int]) -> Run:
        rows = slice(parts[own[0]][1].start, parts[own[-1]][1].stop)
        chosen = TermKernel(
            kernel.whole,
            tuple(kernel.terms[j] for j in own),
            tuple(kernel.values[j] for j in own),
            tuple(kernel.nodes[j] for j in own),
            kernel.share[rows],
        )
        values = slice(parts[own[0]][2].start, parts[own[-1]][2].stop)
        return Run(kind, chosen, w[rows], values, tuple(own))

    own: list[int] = []
    kind = ""
    for number, (term, _, values, _) in enumerate(parts):
        if values.start == values.stop:
            continue
        moves = any(column in moving for column in range(*term.columns))
        now = MOVING if moves else SUMMED if times[number] == STILL else KEPT
        if own and now != kind:
            yield made(kind, own)
            own = []
        kind = now
        own.append(number)
    if own:
        yield made(kind, own)


class LastPixels(Generic[Known]):
    """What is known of the pixels that a thread asked for last, whatever the period.

    Parameters
    ----------
    n_dim : int
        Columns of the inputs.
    moving : collection of int
        Those that differ by period; pixels are the same where all others are.
    """

    def __init__(self, n_dim: int, moving: frozenset[int]) -> None:
        self._still = np.setdiff1d(np.arange(n_dim), sorted(moving))
        self._last = threading.local()

    def get(
        self,
        z: np.ndarray,
        make: Callable[[], Known],
        enough: Callable[[Known], bool] | None = None,
    ) -> Known:
        """Return what is known at scaled inputs (n, n_dim).

        It is made where they are others, or where what is known of them is not enough.
        """
        still, last = z[:, self._still], getattr(self._last, "known", None)
        if last is not None and last[0] == z.dtype and np.array_equal(last[1], still):
            same: Known = last[2]
            if enough is None or enough(same):
                return same
        self._last.known = None  # one of both is in memory
        found = make()
        self._last.known = z.dtype, still, found
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"_still": self._still}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _last=threading.local())

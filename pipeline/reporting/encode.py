"""From figures to files: PNG and PDF, several at once where this process may fork."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from pipeline.core.processes import in_processes, shares
from pipeline.core.progress import Progress

Job = Callable[[], bytes]


def png(figure: Figure, dpi: int, title: str | None = None) -> bytes:
    """Return a figure as a PNG without a time; the same bytes for the same run."""
    buffer = io.BytesIO()
    about = {"Software": None} if title is None else {"Software": None, "Title": title}
    figure.savefig(buffer, format="png", dpi=dpi, metadata=about)
    return buffer.getvalue()


def pdf(figures: Sequence[Figure], name: str) -> bytes:
    """Return a PDF with a page for each figure; the same bytes for the same run."""
    buffer = io.BytesIO()
    about = {"Title": name, "CreationDate": None, "Producer": None}
    with PdfPages(buffer, metadata=about) as pages:
        for each in figures:
            pages.savefig(each)
    return buffer.getvalue()


def encoded(jobs: Mapping[str, Job], n_core: int | None, progress: Progress) -> dict[str, bytes]:
    """Return what each job makes, by its name; several are done at once where that may be.

    Parameters
    ----------
    jobs : mapping of str to callable
        The longest first: each process takes every n-th.
    n_core : int or None
        Cores to use; all if None.
    progress : Progress
    """
    names, n = list(jobs), shares(len(jobs), n_core)
    parts = [names[k::n] for k in range(n)]
    calls = [partial(_part, [jobs[name] for name in part]) for part in parts]
    made = in_processes(calls, n, progress)
    found = {
        name: data
        for part, results in zip(parts, made, strict=True)
        for name, data in zip(part, results, strict=True)
    }
    return {name: found[name] for name in names}


def _part(jobs: Sequence[Job], progress: Progress) -> list[bytes]:
    del progress
    return [job() for job in jobs]

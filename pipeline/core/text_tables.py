"""Tables as text: a row for each thing, its name first, numbers to the right."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 100  # columns of a terminal


def text_table(title: str, *numbers: str, named: str = "") -> Table:
    """Return a table without rows.

    Parameters
    ----------
    title : str
    *numbers : str
        Headings of the columns of numbers.
    named : str
        Heading of the first column.
    """
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(named)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def text_console() -> Console:
    """Return a console whose ``file`` has the text; names and units of users are no markup."""
    return Console(
        file=io.StringIO(), width=WIDTH, color_system=None, force_terminal=False, markup=False
    )

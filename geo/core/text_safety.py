"""Make text from input files harmless where other programs show it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

# Spreadsheets take a cell that begins so for a formula (OWASP, "CSV injection"); the full-width
# forms as well, and what follows a tab, a carriage return or a quote at the start.
_FORMULA = re.compile(r"^[\s\"']*[=+\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r\n]")
_NUMBER = re.compile(r"^[+\-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+\-]?\d+)?$")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~$])")
# Controls of terminals; line separators; what turns the direction of the text that follows.
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+"
)


def spreadsheet_safe(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula: a text gets a quote in front.

    Numbers, and texts that are plain numbers such as an id ``-7``, stay as they are.
    """
    if not isinstance(value, str) or _NUMBER.match(value) or not _FORMULA.match(value):
        return value
    return f"'{value}"


def spreadsheet_safe_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Apply `spreadsheet_safe` to every text and column name of a table."""
    import pandas as pd  # errors import this module, and the command line's help is to be quick

    safe = frame.copy(deep=False)
    for column in safe.columns:
        if pd.api.types.is_numeric_dtype(safe[column]):
            continue
        safe[column] = safe[column].map(spreadsheet_safe, na_action="ignore")
    safe.columns = pd.Index([spreadsheet_safe(str(name)) for name in safe.columns])
    return safe


def one_line_text(text: str) -> str:
    """Replace line breaks, control characters and changes of direction by a space."""
    return _CONTROL.sub(" ", text).strip()


def terminal_text(text: str) -> str:
    """Replace control characters and changes of direction by a space; line breaks stay."""
    return "\n".join(_CONTROL.sub(" ", line) for line in text.split("\n"))


def markdown_text(text: str) -> str:
    """Escape a text for Markdown: it shows as it is, as no markup, link or HTML.

    ``<``, ``>`` and ``&`` become entities, because most renderers pass HTML through.
    """
    text = one_line_text(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", text)

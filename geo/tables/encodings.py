"""Texts that were read in another encoding than they were written in."""

from __future__ import annotations

from collections.abc import Iterable

#: Those of Shapefiles without a ``.cpg``, in the order in which they are tried.
LIKELY = ("utf-8", "cp1252", "cp850", "cp437", "cp1250", "cp1251")


def garbled(texts: Iterable[object]) -> list[str]:
    """Return the texts that look read as Latin-1, but written otherwise.

    They have control characters that no text has, or letters that together are UTF-8.
    """
    return [each for each in texts if isinstance(each, str) and _is_garbled(each)]


def likely_encoding(texts: Iterable[str]) -> str | None:
    """Return the first encoding that makes letters of all garbled texts; None for none."""
    try:
        raw = [each.encode("latin-1") for each in texts]
    except UnicodeEncodeError:
        return None
    for encoding in LIKELY:
        try:
            found = "".join(each.decode(encoding) for each in raw)
        except UnicodeDecodeError:
            continue
        if all(each.isascii() or each.isalpha() or each in "\u2019\u2013" for each in found):
            return encoding
    return None


def _is_garbled(text: str) -> bool:
    if text.isascii():
        return False
    if any("\x80" <= each < "\xa0" or each == "\ufffd" for each in text):
        return True
    try:
        text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return False
    return True

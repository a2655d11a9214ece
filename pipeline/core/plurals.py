"""Numbers of things in sentences: one of them, or several."""

from __future__ import annotations


def count_text(n: int, one: str, many: str = "") -> str:
    """Return ``1 refit`` or ``1,200 refits``; the plural has an s where it is not given."""
    return f"{n:,} {one if n == 1 else many or f'{one}s'}"


def areas_text(n: int) -> str:
    """Return ``1 area`` or ``1,200 areas``."""
    return count_text(n, "area")

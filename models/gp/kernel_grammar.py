"""The grammar of a kernel's description, such as ``linear + ard(x) * matern32(space)``.

    sum     = product {"+" product}
    product = factor {"*" factor}
    factor  = "(" sum ")" | word ["(" sum {"," sum} ")"]

``*`` binds tighter than ``+``; brackets stand for a sum in a product. An argument of a word is a
description itself: ``time(constant + matern32)``. A parser by recursive descent makes a tree of it,
which :mod:`models.gp.kernel_text` turns into kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from models.core.errors import ParameterError

_TOKEN = re.compile(r"\s*([a-z0-9_]+|\S)")
MOST_BRACKETS = 20  # one in another: Python's own stack is not the limit


@dataclass(frozen=True)
class Factor:
    """A word and its arguments.

    Attributes
    ----------
    word : str
    arguments : tuple of nodes
    column : int
        Of its first letter in the description, from 1; of no meaning for equality.
    """

    word: str
    arguments: tuple[Node, ...] = ()
    column: int = field(default=1, compare=False)

    def __str__(self) -> str:
        """Write it as the parser reads it."""
        return self.word + (f"({', '.join(map(str, self.arguments))})" if self.arguments else "")

    @property
    def parts(self) -> tuple[Node, ...]:
        """None: its arguments are no kernels of this product or sum."""
        return ()


@dataclass(frozen=True)
class Product:
    """Two factors or more, multiplied; a sum among them was in brackets."""

    parts: tuple[Node, ...]
    column: int = field(default=1, compare=False)

    def __str__(self) -> str:
        """Write it as the parser reads it."""
        return " * ".join(
            str(part) if isinstance(part, Factor) else f"({part})" for part in self.parts
        )


@dataclass(frozen=True)
class Sum:
    """Two terms or more, added."""

    parts: tuple[Node, ...]
    column: int = field(default=1, compare=False)

    def __str__(self) -> str:
        """Write it as the parser reads it."""
        return " + ".join(
            f"({part})" if isinstance(part, Sum) else str(part) for part in self.parts
        )


Node = Factor | Product | Sum


def parse(text: str, named: Mapping[str, str]) -> Node:
    """Return the tree of a description.

    Parameters
    ----------
    text : str
    named : mapping of str
        Descriptions by name. A name stands for its description as written, without brackets.

    Raises
    ------
    ParameterError
        If the grammar does not hold; the message marks the column.
    """
    parser = _Parser(text, named)
    tree = parser.sum()
    if parser.next:
        raise refused(text, parser.column, f"{parser.next!r} is out of place", "join by + and *")
    return tree


def walk(node: Node) -> Iterator[Node]:
    """Yield a tree's nodes, the parts of each before it."""
    for part in node.parts:
        yield from walk(part)
    yield node


def refused(text: str, column: int, found: str, remedy: str) -> ParameterError:
    """Return the error of what stands at a column, in one line that marks it."""
    marked = f"{text[: column - 1]}-->{text[column - 1 :]}"
    return ParameterError(f"kernel: {found} at column {column} of {marked!r}; {remedy}")


class _Parser:
    def __init__(self, text: str, named: Mapping[str, str]) -> None:
        self._text, self._at, self._depth = text, 0, 0
        self._tokens: list[tuple[str, int]] = []
        for found in _TOKEN.finditer(text):
            meant = _TOKEN.finditer(named.get(found[1], found[1]))
            self._tokens += [(each[1], found.start(1) + 1) for each in meant]
        self._tokens.append(("", len(text) + 1))

    @property
    def next(self) -> str:
        return self._tokens[self._at][0]

    @property
    def column(self) -> int:
        return self._tokens[self._at][1]

    def sum(self) -> Node:
        column, parts = self.column, [self._product()]
        while self._took("+"):
            parts.append(self._product())
        return Sum(tuple(parts), column) if len(parts) > 1 else parts[0]

    def _product(self) -> Node:
        column, parts = self.column, [self._factor()]
        while self._took("*"):
            parts.append(self._factor())
        return Product(tuple(parts), column) if len(parts) > 1 else parts[0]

    def _factor(self) -> Node:
        column, word = self.column, self.next
        if self._took("("):
            return self._closed(column)[0]
        if not re.fullmatch(r"[a-z0-9_]+", word):
            found = f"{word!r} is not a kernel" if word else "a kernel is missing"
            raise refused(self._text, column, found, "write a word, or a description in brackets")
        self._at += 1
        opened = self.column
        return Factor(word, self._closed(opened, ",") if self._took("(") else (), column)

    def _closed(self, opened: int, separator: str | None = None) -> tuple[Node, ...]:
        """Return what is in brackets, the opening one read."""
        self._depth += 1
        if self._depth > MOST_BRACKETS:
            found = f"more than {MOST_BRACKETS} brackets, one in another,"
            raise refused(self._text, opened, found, "write it with fewer")
        parts = [self.sum()]
        while separator and self._took(separator):
            parts.append(self.sum())
        if not self._took(")"):
            raise refused(self._text, opened, "the bracket is not closed", "close it with )")
        self._depth -= 1
        return tuple(parts)

    def _took(self, token: str) -> bool:
        """Pass the next token if it is this one."""
        took = self.next == token
        self._at += took
        return took

"""The nodes of a dissection, and their text for a terminal: offset, bytes and tree side by side.

Owns the structure of the result and its layout. It must never know how it is produced. Invariant: a
node's own bytes (`start` to `own_end`) come first, those of its children follow up to `end`, and
siblings follow each other without gaps unless one has an error. `lines` returns the parts of every
line for callers that color them; `render` joins them. Long byte sequences are truncated, followed
by their length.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple


class Direction(enum.Enum):
    """Which way a frame travels."""

    AUTO = "auto"
    REQUEST = "request"
    RESPONSE = "response"


@dataclass(slots=True)
class Node:
    """One value of a frame: its name, position and text.

    `start` is None for values without a position in the frame: records inside a compressed batch.
    """

    name: str
    start: int | None
    end: int | None = None
    own_end: int | None = None
    text: str = ""
    value: Any = None
    error: str | None = None
    children: list[Node] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        """Yield this node and all its descendants, in the order of their bytes."""
        yield self
        for child in self.children:
            yield from child.walk()

    def find(self, name: str) -> Node:
        """Return the first node with that name, from this one on. Raises KeyError."""
        for node in self.walk():
            if node.name == name:
                return node
        raise KeyError(name)


@dataclass(slots=True)
class Dissection:
    """A dissected frame: its bytes, their tree, and the error as a sentence."""

    data: bytes
    root: Node
    problem: str | None = None


HEX_BYTES: Final = 8  # bytes shown in the middle column


class Line(NamedTuple):
    """The parts of one line, without padding."""

    offset: str
    bytes: str
    branch: str
    name: str
    text: str
    error: str


def lines(dissection: Dissection) -> Iterator[Line]:
    """The lines of a dissection, the root first."""
    yield from _lines(dissection, dissection.root, "", "")


def render(dissection: Dissection) -> str:
    """Return the text of a dissection, one line per node, with the error at the end if there is
    one.
    """
    parts = list(lines(dissection))
    offset_width = max((len(line.offset) for line in parts), default=0)
    hex_width = max((len(line.bytes) for line in parts), default=0)
    rows = []
    for line in parts:
        row = f"{line.offset:>{offset_width}}  {line.bytes:<{hex_width}}  {line.branch}{line.name}"
        if line.text:
            row += f": {line.text}"
        if line.error:
            row += f"  ✗ {line.error}"
        rows.append(row.rstrip())
    if dissection.problem:
        rows += ["", f"✗ {dissection.problem}"]
    return "\n".join(rows) + "\n"


def _lines(dissection: Dissection, node: Node, lead: str, branch: str) -> Iterator[Line]:
    offset = "" if node.start is None else str(node.start)
    error = node.error or ""
    yield Line(offset, _hex(dissection.data, node), lead + branch, node.name, node.text, error)
    inner = lead + {"": "", "├ ": "│ ", "└ ": "  "}[branch]
    for child in node.children:
        last = child is node.children[-1]
        yield from _lines(dissection, child, inner, "└ " if last else "├ ")


def _hex(data: bytes, node: Node) -> str:
    if node.start is None or node.own_end is None:
        return ""
    own = data[node.start : node.own_end]
    if len(own) <= HEX_BYTES:
        return own.hex(" ")
    return f"{own[: HEX_BYTES - 2].hex(' ')} … {len(own)}"

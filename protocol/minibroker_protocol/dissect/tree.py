"""The nodes of a dissection.

Owns the structure of the result. It must never know how it is produced or printed. Invariant: a
node's own bytes (`start` to `own_end`) come first, those of its children follow up to `end`, and
siblings follow each other without gaps unless one has an error.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


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

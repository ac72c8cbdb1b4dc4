"""What a dissection is made of.

It owns the shape of the result and knows nothing of how it came about or is shown. Invariant: a
node's own bytes (`start` to `own_end`) come first, its children's lie behind them up to `end`, and
siblings follow each other without gaps unless one carries an error.
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
    """One thing in a frame: what it is called, where it lies, what it says.

    `start` is None for what doesn't lie in the frame as such: records inside a compressed batch.
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
        """This node and all below it, in the order of their bytes."""
        yield self
        for child in self.children:
            yield from child.walk()

    def find(self, name: str) -> Node:
        """The first node of that name, this one included; KeyError if there is none."""
        for node in self.walk():
            if node.name == name:
                return node
        raise KeyError(name)


@dataclass(slots=True)
class Dissection:
    """A frame taken apart: its bytes and their tree, and what is wrong, in a sentence."""

    data: bytes
    root: Node
    problem: str | None = None

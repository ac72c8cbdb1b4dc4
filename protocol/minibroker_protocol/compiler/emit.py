"""Writer for both generators: lines, the names they use, and the field of each line.

Owns the text of one function and the names bound for it, and knows no type of the protocol.
Invariant: a line that can fail on bad input is mapped to the path of its field, so that a failure
is located by its line number and successful decoding costs nothing for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import construct as cs

# Bytes that each struct code takes; "16s" is a UUID and "x" a byte of zero.
WIDTHS = {"b": 1, "B": 1, "?": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16}


class Slot(NamedTuple):
    """A fixed-width value waiting to be read or written together with its neighbours."""

    code: str
    expression: str
    path: str


class Source:
    """One function being written."""

    def __init__(self, title: str, signature: str) -> None:
        self.title = title
        self.lines = [signature]
        self.names: dict[str, Any] = {}
        self.paths: dict[int, tuple[Slot, ...]] = {}
        self._indent = 1
        self._serial = 0

    def line(self, text: str, path: str = "") -> None:
        """Add a line at the current depth; `path` says which field it reads or writes."""
        self.lines.append("    " * self._indent + text)
        if path:
            self.paths[len(self.lines)] = (Slot("", "", path),)

    def fixed(self, text: str, slots: list[Slot]) -> None:
        """Add a line that reads all `slots` at once."""
        self.line(text)
        self.paths[len(self.lines)] = tuple(slots)

    @contextmanager
    def block(self, opening: str, path: str = "") -> Iterator[None]:
        """Write a line, and indent what is written inside."""
        self.line(opening, path)
        self._indent += 1
        yield
        self._indent -= 1

    def fresh(self, stem: str) -> str:
        """A local name that nothing else has."""
        self._serial += 1
        return f"{stem}{self._serial}"

    def bind(self, name: str, value: Any) -> str:
        """Make `value` known to the function as `name`, or as a name like it if that is taken."""
        bound = self.names.setdefault(name, value)
        if bound is value or (isinstance(value, (int, str, bytes)) and bound == value):
            return name
        return self.bind(f"{name}_", value)

    def bind_struct(self, prefix: str, method: str, codes: str) -> str:
        """Make a struct method for `codes` known, one name for each combination."""
        name = f"{prefix}_{codes.replace('?', 'Z')}"
        if name not in self.names:
            self.names[name] = getattr(struct.Struct(f">{codes}"), method)
        return name

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def function(self) -> Callable[..., Any]:
        """Compile the written text and return its first function."""
        name = self.lines[0].split("(")[0].removeprefix("def ")
        environment = dict(self.names)
        code = compile(self.text(), f"<{name} {self.title}>", "exec")
        exec(code, environment)  # noqa: S102 - written by this package from declarations only
        made: Callable[..., Any] = environment[name]
        return made


def fixed_code(node: Any) -> str | None:
    """The struct code of a fixed-width construct node, None for any other node."""
    if isinstance(node, cs.FormatField):
        code = str(node.fmtstr[-1])
        return {"l": "i", "L": "I"}.get(code, code)  # equivalent codes, in one spelling
    if isinstance(node, cs.Flag.__class__):
        return "?"
    if isinstance(node, cs.Bytes):
        return f"{node.length}s"
    return None

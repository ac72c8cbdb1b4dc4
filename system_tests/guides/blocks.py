"""The code blocks of a page in Markdown, with their places.

Owns reading fences. It must never know what a block means or run it. Invariant: each fence of a
page is found, also inside of a list, and is one block; its text has no indentation of the list.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
SHELL: Final = frozenset({"sh", "shell", "bash", "console"})

_FENCE: Final = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A code block."""

    page: str
    """Relative to the repository."""
    line: int
    """Of the first line of the code, from 1."""
    language: str
    text: str

    @property
    def is_shell(self) -> bool:
        return self.language in SHELL

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return every page for users: README.md, those of docs and of the packages for languages."""
    found = [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "minibroker" / "languages").rglob("README.md"),
    ]
    return sorted(str(path.relative_to(ROOT)) for path in found if "node_modules" not in path.parts)


def blocks_of(page: str) -> list[Block]:
    """Return the code blocks of a page, in their order."""
    return parse(page, (ROOT / page).read_text(encoding="utf-8"))


def parse(page: str, text: str) -> list[Block]:
    """Return the code blocks of a text."""
    return [
        Block(page, text.count("\n", 0, found.start(3)) + 1, found[2], textwrap.dedent(found[3]))
        for found in _FENCE.finditer(text)
    ]

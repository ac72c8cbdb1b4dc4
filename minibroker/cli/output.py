"""How the commands print: columns for people, one JSON object a line for programs.

Owns the layout of tables and the rendering of bytes that may be no text. It must never know what
the rows mean. Invariant: columns are separated by two spaces or more, so that ``awk`` and ``cut``
read what people read; a JSON line holds no line break.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from minibroker.cli.errors import OutputFailed


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Left-aligned columns under ``headings``; numbers are aligned to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    numeric = [
        bool(rows) and all(isinstance(row[column], int) for row in rows)
        for column in range(len(headings))
    ]
    widths = [
        max([len(heading), *(len(row[column]) for row in cells)])
        for column, heading in enumerate(headings)
    ]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join(line(row) for row in ([*headings], *cells))


def text_or_none(raw: bytes | memoryview | None) -> str | None:
    """``raw`` as text; bytes that are no UTF-8 come out as ``\\xff`` escapes."""
    return None if raw is None else bytes(raw).decode("utf-8", errors="backslashreplace")


def json_line(value: Mapping[str, object]) -> str:
    """``value`` as one line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def emit(line: str) -> None:
    """Print ``line`` to standard output at once, so that a reader in a pipe sees it.

    Raises ``OutputFailed``.
    """
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(f"standard output cannot be written: {error.strerror}") from None


def note(line: str) -> None:
    """Tell the person something that is no part of the output."""
    print(line, file=sys.stderr)

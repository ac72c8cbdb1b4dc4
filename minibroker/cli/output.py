"""Output of commands: tables, and JSON with one object in each line.

Owns the layout of tables and the escaping of bytes that are not text. It must never know the
meaning of the rows. Invariant: columns are separated by at least two spaces, so that ``awk`` and
``cut`` work; a JSON line contains no line break.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from minibroker.cli.errors import OutputFailed


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format rows as columns; numbers are aligned to the right."""
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
    """Decode ``raw``; bytes that are not UTF-8 become ``\\xff`` escapes."""
    return None if raw is None else bytes(raw).decode("utf-8", errors="backslashreplace")


def json_line(value: Mapping[str, object]) -> str:
    """Format ``value`` as one line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def emit(line: str) -> None:
    """Print ``line`` to standard output and flush it for the reader of a pipe.

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
    """Print a message for the user to standard error."""
    print(line, file=sys.stderr)

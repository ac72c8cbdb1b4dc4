"""Formats the result of a job as aligned columns.

Owns their layout only; it must never know their contents. Invariant: columns are at least two
spaces apart, and a row is one line whatever its cells contain. Kafka's scripts print tables in the
same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines, headings first; nothing if there are no rows."""
    if not rows:
        return
    every = [headings, *rows]
    widths = [max(len(row[at]) for row in every) for at in range(len(headings))]
    for row in every:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()

"""Lines in columns, as the jobs end with.

Owns their layout alone; it must never know what stands in them. Invariant: two spaces or more
stand between columns, and a line is one line whatever is in its cells. Kafka's scripts do likewise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines, headings first; nothing if there are no rows."""
    if not rows:
        return
    every = [headings, *rows]
    widths = [max(len(row[at]) for row in every) for at in range(len(headings))]
    for row in every:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()

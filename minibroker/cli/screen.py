"""Views on a terminal that are drawn again and again.

Owns lines with colours, their tables, and the drawing. It must never know what a view shows.
Invariant: the terminal is always restored. It needs no library: drawing over the previous screen
takes three control sequences, and ``rich`` would be another dependency of every broker.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from minibroker.cli.output import emit

ELLIPSIS: Final = "…"
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
CLEAR, HIDE_CURSOR, SHOW_CURSOR = "\x1b[2J", "\x1b[?25l", "\x1b[?25h"


class Emphasis(StrEnum):
    """Emphasis of text: the parameter of the terminal's SGR sequence."""

    PLAIN = ""
    HEADING = "1"
    FAINT = "2"
    WARNING = "33"
    ALARM = "31"


class TextPiece(NamedTuple):
    """A part of a line with one emphasis."""

    text: str
    paint: Emphasis = Emphasis.PLAIN


Line: TypeAlias = tuple[TextPiece, ...]


class ViewSize(NamedTuple):
    """Maximum size of the view; None for unlimited."""

    columns: int | None = None
    lines: int | None = None


def cut(lines: list[Line], size: int) -> list[Line]:
    """Truncate to ``size`` lines, but at least one."""
    if len(lines) <= size:
        return lines
    return [*lines[: max(0, size - 1)], (TextPiece(ELLIPSIS, Emphasis.FAINT),)]


def narrowed(line: Line, columns: int) -> Line:
    """Truncate to ``columns`` characters, and mark that."""
    if sum(len(piece.text) for piece in line) <= columns:
        return line
    kept: list[TextPiece] = []
    left = max(0, columns - 1)
    for piece in line:
        kept.append(piece._replace(text=piece.text[:left]))
        left -= len(kept[-1].text)
    return (*kept, TextPiece(ELLIPSIS, Emphasis.FAINT))


def view_table(
    headings: Sequence[str], rows: Sequence[Sequence[TextPiece]], right: str = ""
) -> list[Line]:
    """Format rows as columns; those with a heading in ``right`` are aligned to the right."""
    widths = [
        max([len(heading), *(len(row[column].text) for row in rows)])
        for column, heading in enumerate(headings)
    ]

    def line(row: Sequence[TextPiece]) -> Line:
        padded: list[TextPiece] = []
        for heading, width, piece in zip(headings, widths, row, strict=True):
            gap = " " * (width - len(piece.text))
            before, after = (gap, "") if heading in right.split() else ("", gap)
            padded += (TextPiece(before), piece, TextPiece(f"{after}  "))
        return tuple(piece for piece in padded[:-1] if piece.text)

    return [line([TextPiece(heading, Emphasis.HEADING) for heading in headings]), *map(line, rows)]


View: TypeAlias = Callable[[ViewSize], list[Line]]
"""Returns the present lines, which fit the size."""


def show_view(view: View, interval_s: float, *, once: bool) -> None:
    """Draw the view until Ctrl-C, or once if wanted or if the output is no terminal."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # Not every encoding has all characters of views.
    if once or not sys.stdout.isatty():
        _print_once(view)
    else:
        watch(view, interval_s)


def _print_once(view: View) -> None:
    # Output that is not on a terminal is not truncated unless COLUMNS is set.
    nowhere = (0, 0)
    columns = shutil.get_terminal_size(nowhere).columns or None
    for line in _texts(view, ViewSize(columns)):
        emit(line.rstrip())


def _texts(view: View, size: ViewSize) -> list[str]:
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return [_text(line, colours=colours) for line in view(size)]


def _text(line: Line, *, colours: bool) -> str:
    return "".join(
        f"\x1b[{piece.paint}m{piece.text}\x1b[0m"
        if colours and piece.paint is not Emphasis.PLAIN
        else piece.text
        for piece in line
    )


def watch(view: View, interval_s: float) -> None:
    """Redraw until Ctrl-C."""
    before = CLEAR + HIDE_CURSOR
    try:
        while True:
            size = shutil.get_terminal_size()
            lines = _texts(view, ViewSize(size.columns, size.lines - 1))
            drawn = "".join(f"{line}{REST_OF_LINE}\n" for line in lines)
            sys.stdout.write(f"{before}{HOME}{drawn}{REST_OF_SCREEN}")
            sys.stdout.flush()
            before = ""
            time.sleep(interval_s)
    except KeyboardInterrupt:
        sys.stdout.write(f"\r{REST_OF_LINE}")  # Overwrites the terminal's ^C.
    finally:
        sys.stdout.write(SHOW_CURSOR)
        sys.stdout.flush()

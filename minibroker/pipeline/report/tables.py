"""The elements of the page: tiles, tables, color keys, and plots with their texts.

Owns the types that the template reads; it must never know where a figure comes from. Invariant: a
sortable cell has its figure in addition to its text, so the order never depends on formatting.
Kafka has no counterpart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from minibroker.pipeline.report import plots


class Tile(NamedTuple):
    """A single figure in large type."""

    name: str
    value: str
    more: str = ""
    warn: bool = False


class Key(NamedTuple):
    """The meaning of a color."""

    colour: str
    """The name of a style sheet variable, without its dashes."""
    text: str
    shape: str = ""


class Head(NamedTuple):
    """The header of a column."""

    text: str
    sorts: bool = True
    sorted: bool = False


class Cell(NamedTuple):
    """A cell; ``value`` is its sort key, None for text."""

    text: str
    value: float | None = None
    part: float | None = None
    """Length in percent of the bar below the figure."""
    title: str = ""
    colour: str = ""
    wrap: bool = False


class Row(NamedTuple):
    """A row, whose first cell names its subject."""

    cells: tuple[Cell, ...]
    rest: bool = False
    """Remains the last row in any sort order."""


class ReportTable(NamedTuple):
    """A table that can be sorted by clicking a column's header."""

    title: str
    heads: tuple[Head, ...]
    rows: tuple[Row, ...]


class Picture(NamedTuple):
    """A plot for the page."""

    title: str
    unit: str
    drawing: plots.Drawing

    @classmethod
    def of(cls, title: str, unit: str, drawing: plots.Drawing) -> Picture:
        """A picture of a drawing, in which names are escaped already."""
        return cls(title, unit, plots.Drawing(*(Markup(svg) for svg in drawing)))  # noqa: S704


@dataclass(frozen=True)
class Section:
    """A part of the page, linked from its top."""

    id: str
    title: str
    notes: tuple[str, ...] = ()
    nothing: str = ""
    """Shown instead of plots and table if there are no figures."""
    keys: tuple[Key, ...] = ()
    plots: tuple[Picture, ...] = ()
    table: ReportTable | None = None


def number(value: float, text: str, part: float | None = None) -> Cell:
    """A cell with a figure; ``part``, from 0 to 1, is drawn as a bar."""
    shown = None if part is None else round(100 * min(max(part, 0.0), 1.0), 1)
    return Cell(text, round(value, 6), shown)

"""What the page is made of: tiles, tables, keys of colours and plots with their words.

Owns the shapes that the template reads; it must never know where a figure comes from. Invariant: a
cell that can be sorted by has its figure beside its text, so that the order never hangs on how a
figure is written. Kafka has no counterpart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from minibroker.pipeline.report import plots


class Tile(NamedTuple):
    """One figure, large."""

    name: str
    value: str
    more: str = ""
    warn: bool = False


class Key(NamedTuple):
    """What a colour stands for."""

    colour: str
    """Name of a variable of the style sheet's, without its dashes."""
    text: str
    shape: str = ""


class Head(NamedTuple):
    """The head of a column."""

    text: str
    sorts: bool = True
    sorted: bool = False


class Cell(NamedTuple):
    """One cell; ``value`` is what it is sorted by, and None of what is text."""

    text: str
    value: float | None = None
    part: float | None = None
    """Percent of a bar below the figure."""
    title: str = ""
    colour: str = ""
    wrap: bool = False


class Row(NamedTuple):
    """One row; the first cell says what it is about."""

    cells: tuple[Cell, ...]
    rest: bool = False
    """Stays at the end, however the others are sorted."""


class Table(NamedTuple):
    """A table that is sorted by a click on the head of a column."""

    title: str
    heads: tuple[Head, ...]
    rows: tuple[Row, ...]


class Picture(NamedTuple):
    """A plot, ready to stand on a page."""

    title: str
    unit: str
    drawing: plots.Drawing

    @classmethod
    def of(cls, title: str, unit: str, drawing: plots.Drawing) -> Picture:
        """A picture of what was drawn, which has escaped all names already."""
        return cls(title, unit, plots.Drawing(*(Markup(svg) for svg in drawing)))  # noqa: S704


@dataclass(frozen=True)
class Section:
    """A part of the page that the links at its top lead to."""

    id: str
    title: str
    notes: tuple[str, ...] = ()
    nothing: str = ""
    """Said in the place of plots and table where there are no figures."""
    keys: tuple[Key, ...] = ()
    plots: tuple[Picture, ...] = ()
    table: Table | None = None


def number(value: float, text: str, part: float | None = None) -> Cell:
    """A figure; ``part`` of 1 is drawn as a bar."""
    shown = None if part is None else round(100 * min(max(part, 0.0), 1.0), 1)
    return Cell(text, round(value, 6), shown)

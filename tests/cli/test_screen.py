"""Views are drawn again until Ctrl-C, fit the terminal, and leave it as it was."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from minibroker.cli.output import CliError
from minibroker.cli.screen import (
    CLEAR,
    HIDE_CURSOR,
    HOME,
    SHOW_CURSOR,
    Emphasis,
    Line,
    TextPiece,
    ViewSize,
    cut,
    narrowed,
    show_view,
    view_table,
    watch,
)


def text(lines: list[Line]) -> list[str]:
    return ["".join(piece.text for piece in line) for line in lines]


def lines(*texts: str) -> list[Line]:
    return [(TextPiece(each),) for each in texts]


class Terminal:
    """Run on a terminal of the given size until interrupted; return the output."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
        self.slept: list[float] = []
        self.looks = looks
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.setenv("LINES", "20")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setattr("minibroker.cli.screen.time.sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == self.looks:
            raise KeyboardInterrupt


def view_of(*shown: str) -> Callable[[ViewSize], list[Line]]:
    """A view with an alarm that changes with each look, and then loses the broker."""
    left = list(shown)

    def view(size: ViewSize) -> list[Line]:
        if not left:
            raise CliError("the broker is gone")
        alarm = (TextPiece(left.pop(0), Emphasis.ALARM), TextPiece(" slots"))
        assert size.lines is not None
        return cut([alarm, *lines(*"abcdefghijklmnopqrstuvwxyz")], size.lines)

    return view


def test_view_is_redrawn_until_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal(monkeypatch, looks=2)
    monkeypatch.delenv("NO_COLOR", raising=False)
    watch(view_of("4/40", "39/40"), 0.5)
    assert terminal.slept == [0.5, 0.5]
    drawn = capsys.readouterr().out
    assert drawn.startswith(CLEAR + HIDE_CURSOR + HOME)
    first, second = drawn.split(HOME)[1:]
    assert first.startswith("\x1b[31m4/40\x1b[0m slots")
    assert second.startswith("\x1b[31m39/40\x1b[0m slots")
    assert first.count("\n") == 19
    assert drawn.endswith(SHOW_CURSOR)


def test_no_color_variable_disables_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Terminal(monkeypatch, looks=1)
    monkeypatch.setenv("NO_COLOR", "1")
    show_view(view_of("4/40"), 0.5, once=False)
    assert "\x1b[31m" not in capsys.readouterr().out


def test_cursor_is_restored_when_the_broker_stops(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Terminal(monkeypatch, looks=9)
    with pytest.raises(CliError, match="gone"):
        watch(view_of("4/40"), 0.5)
    assert capsys.readouterr().out.endswith(SHOW_CURSOR)


@pytest.mark.parametrize(("columns", "shown"), [(9, "one two"), (7, "one two"), (5, "one …")])
def test_long_line_is_truncated_with_a_mark(columns: int, shown: str) -> None:
    line = (TextPiece("one "), TextPiece("two", Emphasis.WARNING))
    assert text([narrowed(line, columns)]) == [shown]


@pytest.mark.parametrize(("size", "shown"), [(3, "abc"), (2, "a…"), (0, "…")])
def test_surplus_lines_are_left_out_with_a_mark(size: int, shown: str) -> None:
    assert "".join(text(cut(lines(*"abc"), size))) == shown


def test_columns_of_a_table_are_aligned() -> None:
    rows = [[TextPiece("a"), TextPiece("10")], [TextPiece("longer"), TextPiece("7")]]
    assert text(view_table(("NAME", "COUNT"), rows, right="COUNT")) == [
        "NAME    COUNT",
        "a          10",
        "longer      7",
    ]

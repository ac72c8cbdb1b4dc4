"""Column widths follow their contents."""

from __future__ import annotations

from minibroker.pipeline.commands.columns import columns


def test_cells_are_aligned() -> None:
    assert list(columns(["A", "LONG"], [["wide", "1"], ["", "2"]])) == [
        "A     LONG",
        "wide  1",
        "      2",
    ]
    assert not list(columns(["A"], []))

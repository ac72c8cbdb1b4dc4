"""The text form, line by line."""

from __future__ import annotations

from minibroker_protocol.dissect.text import lines, render
from minibroker_protocol.dissect.tree import Dissection, Node

DATA = bytes(range(20))
TREE = Node(
    "frame",
    0,
    20,
    0,
    text="20 bytes",
    children=[
        Node("size", 0, 4, 4, text="66051"),
        Node("body", 4, 20, 4, children=[Node("name", 4, 20, 20, text="'x'")]),
        Node("record 0", None, text="compressed"),
        Node("rest", 20, 20, 20, error="the bytes end here"),
    ],
)


def test_render_shows_offsets_bytes_and_tree_in_columns() -> None:
    assert render(Dissection(DATA, TREE, "something is wrong")) == (
        " 0                          frame: 20 bytes\n"
        " 0  00 01 02 03             ├ size: 66051\n"
        " 4                          ├ body\n"
        " 4  04 05 06 07 08 09 … 16  │ └ name: 'x'\n"
        "                            ├ record 0: compressed\n"
        "20                          └ rest  ✗ the bytes end here\n"
        "\n"
        "✗ something is wrong\n"
    )


def test_lines_are_split_into_parts_for_colouring() -> None:
    first, size, *_ = lines(Dissection(DATA, TREE))
    assert (first.branch, first.name) == ("", "frame")
    assert size == ("0", "00 01 02 03", "├ ", "size", "66051", "")


def test_render_without_problem_has_no_trailing_line() -> None:
    assert not render(Dissection(DATA, Node("frame", 0, 20, 0))).endswith("\n\n")

"""Dissections are trees, and are shown as text."""

from __future__ import annotations

import pytest

from minibroker_protocol.dissect.tree import Dissection, Node, lines, render

TREE = Node("root", 0, children=[Node("a", 0, children=[Node("x", 0)]), Node("x", 1, text="later")])


def test_walk_yields_nodes_in_byte_order() -> None:
    assert [node.name for node in TREE.walk()] == ["root", "a", "x", "x"]


def test_find_returns_first_node_of_name() -> None:
    assert TREE.find("x").text == ""
    assert TREE.find("root") is TREE
    with pytest.raises(KeyError, match="y"):
        TREE.find("y")


DATA = bytes(range(20))
SHOWN_TREE = Node(
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
    assert render(Dissection(DATA, SHOWN_TREE, "something is wrong")) == (
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
    first, size, *_ = lines(Dissection(DATA, SHOWN_TREE))
    assert (first.branch, first.name) == ("", "frame")
    assert size == ("0", "00 01 02 03", "├ ", "size", "66051", "")


def test_render_without_problem_has_no_trailing_line() -> None:
    assert not render(Dissection(DATA, Node("frame", 0, 20, 0))).endswith("\n\n")

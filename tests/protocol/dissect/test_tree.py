"""Nodes can be walked and searched."""

from __future__ import annotations

import pytest

from minibroker_protocol.dissect.tree import Node

TREE = Node("root", 0, children=[Node("a", 0, children=[Node("x", 0)]), Node("x", 1, text="later")])


def test_walk_yields_nodes_in_byte_order() -> None:
    assert [node.name for node in TREE.walk()] == ["root", "a", "x", "x"]


def test_find_returns_first_node_of_name() -> None:
    assert TREE.find("x").text == ""
    assert TREE.find("root") is TREE
    with pytest.raises(KeyError, match="y"):
        TREE.find("y")

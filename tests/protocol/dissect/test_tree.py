"""Nodes can be walked and searched."""

from __future__ import annotations

import pytest

from protocol.dissect.tree import Node

TREE = Node("root", 0, children=[Node("a", 0, children=[Node("x", 0)]), Node("x", 1, text="later")])


def test_walking_goes_in_the_order_of_bytes() -> None:
    assert [node.name for node in TREE.walk()] == ["root", "a", "x", "x"]


def test_the_first_of_a_name_is_found() -> None:
    assert TREE.find("x").text == ""
    assert TREE.find("root") is TREE
    with pytest.raises(KeyError, match="y"):
        TREE.find("y")

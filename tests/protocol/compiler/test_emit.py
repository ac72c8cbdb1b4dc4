"""The writer of functions that both generators share."""

from __future__ import annotations

import construct as cs
import pytest

from minibroker_protocol.compiler.emit import WIDTHS, Slot, Source, fixed_code
from minibroker_protocol.types import (
    BOOLEAN,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UINT32,
    UUID,
)


def test_source_lines_are_compiled_to_function() -> None:
    source = Source("title", "def double(x):")
    with source.block("if x is None:"):
        source.line("return none")
    source.line("return x * 2")
    source.bind("none", "nothing")
    double = source.function()
    assert (
        source.text()
        == "def double(x):\n    if x is None:\n        return none\n    return x * 2\n"
    )
    assert (double(None), double(4)) == ("nothing", 8)


def test_source_lines_are_mapped_to_field_paths() -> None:
    source = Source("title", "def decode(buf):")
    source.line("first", "topics[].name")
    source.fixed("second", [Slot("h", "a", "a"), Slot("i", "b", "b")])
    source.line("third")
    assert source.paths == {
        2: (Slot("", "", "topics[].name"),),
        3: (Slot("h", "a", "a"), Slot("i", "b", "b")),
    }


def test_different_objects_of_same_name_get_different_names() -> None:
    source = Source("title", "def decode(buf):")

    class Thing: ...

    first, second = Thing, type("Thing", (), {})
    assert source.bind("Thing", first) == source.bind("Thing", first) == "Thing"
    assert source.bind("Thing", second) == "Thing_"
    assert source.names == {"Thing": first, "Thing_": second}


def test_fresh_names_are_unique_and_structs_shared() -> None:
    source = Source("title", "def decode(buf):")
    assert source.fresh("n") != source.fresh("n")
    assert source.bind_struct("read", "unpack_from", "h?") == "read_hZ"
    assert source.names["read_hZ"](b"\0\1\1") == (1, True)
    assert source.bind_struct("read", "unpack_from", "h?") == "read_hZ"


@pytest.mark.parametrize(
    "kind", [BOOLEAN, INT8, INT16, INT32, INT64, UINT16, UINT32, FLOAT64, UUID], ids=str
)
def test_fixed_width_type_has_struct_code_of_its_width(kind: object) -> None:
    node = kind.node(flexible=True, nullable=False)  # type: ignore[attr-defined]
    code = fixed_code(node)
    assert code is not None
    assert WIDTHS[code] == node.sizeof()


def test_variable_width_type_has_no_struct_code() -> None:
    assert fixed_code(STRING.node(flexible=True, nullable=False)) is None
    assert fixed_code(cs.Struct()) is None

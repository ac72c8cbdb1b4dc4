"""Codecs for requests and responses about one thing: flat tuples instead of objects.

Owns the functions that read and write messages of a given shape: some arrays have exactly one
element, some are lists of a few, and everything else that can be left out is left out: other arrays
are empty, nullable structs are null, and there are no tagged fields. Such messages are most of the
traffic (one partition, one group), and a tuple takes a fraction of the time of objects. It must
never know what a field means. Invariant: a message of this shape is read and written as by the
other codecs of `minibroker_protocol.compiler`; anything else, damaged or merely larger, is read as
None and is left to them.

The leaves of a message are its values in the order of their declaration, through the elements of
the single arrays. A list is one leaf, with the leaves of each element as a tuple, or the elements
themselves if they are primitive; a nullable array, which is None or empty, is a leaf too. A field
that a version lacks has its default when it is read and is ignored when it is written.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias, cast

from minibroker_protocol.compiler.decoding import WIDTHS, Slot, Source, fixed_code
from minibroker_protocol.schema import NO_VERSIONS, Array, Kind, Message, Struct, construct_for
from minibroker_protocol.types import (
    ArrayNode,
    BytesNode,
    LengthPrefixed,
    NullableNode,
    ObjectNode,
    StringNode,
    TaggedFieldsNode,
    Type,
)
from minibroker_protocol.wire import Malformed, read_uvarint, uvarint

SingleDecoder: TypeAlias = "Callable[[bytes, int], tuple[Any, ...] | None]"
SingleEncoder: TypeAlias = "Callable[..., bytes]"

LIST_MAX: Final = 100
"""Elements of a list; an array with more is not of the shape. Its count always takes one byte in
the compact encoding.
"""

_FAILURES: Final = (struct.error, IndexError, UnicodeDecodeError, Malformed)
_NULL: Final = -1
_BYTES: Final = tuple(uvarint(value) for value in range(128))


class Shape(NamedTuple):
    """The names of the arrays that have one element, and of those that are lists."""

    singles: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()


class Leaf(NamedTuple):
    """One value of a message: its path as an identifier, and the value in versions without it."""

    name: str
    default: Any


def leaves(cls: type[Struct], shape: Shape, path: str = "") -> Iterator[Leaf]:
    """Return the leaves of a message of a shape."""
    for item in cls.__fields__:
        kind, name = item.kind, path + item.name
        if isinstance(kind, Array):
            if item.name in shape.lists:
                yield Leaf(name, ())
            elif item.name in shape.singles:
                yield from _leaves_of_element(kind.element, shape, name)
            elif item.nullable != NO_VERSIONS:
                yield Leaf(name, ())
        elif isinstance(kind, type):
            if item.tagged == item.nullable == NO_VERSIONS:
                yield from leaves(kind, shape, f"{name}_")
        elif item.tagged == NO_VERSIONS:
            yield Leaf(name, item.default)


def _leaves_of_element(element: Kind, shape: Shape, name: str) -> Iterator[Leaf]:
    if isinstance(element, Type):
        yield Leaf(name, element.default)
    else:
        yield from leaves(cast("type[Struct]", element), shape, f"{name}_")


@functools.cache
def single_decoder(cls: type[Message], version: int, shape: Shape) -> SingleDecoder:
    """Return ``decode(buf, pos) -> leaves or None`` for one version.

    Records become a memoryview of `buf`, which is bytes.
    """
    source = Source(f"single {cls.__name__} v{version}", "def decode(buf, pos):")
    _DecoderWriter(source, shape).message(cls, construct_for(cls, version))
    return cast("SingleDecoder", source.function())


@functools.cache
def single_encoder(
    cls: type[Message], version: int, shape: Shape, *, tagged_header: bool
) -> SingleEncoder:
    """Return ``encode(correlation_id, *leaves) -> bytes`` for one version of a response.

    The bytes start with the length and the response header, which may have tagged fields. Raises
    struct.error, AttributeError or TypeError if a value is not what its field holds.
    """
    source = Source(
        f"single {cls.__name__} v{version}",
        f"def encode(correlation_id, {', '.join(leaf.name for leaf in leaves(cls, shape))}):",
    )
    _EncoderWriter(source, shape).message(construct_for(cls, version), tagged_header)
    return cast("SingleEncoder", source.function())


@functools.cache
def versioned_encoder(cls: type[Message], version: int) -> SingleEncoder:
    """Return ``encode(*leaves) -> bytes`` for one version of a message without arrays.

    The bytes start with the version, as the keys and values of Kafka's internal topics do.
    """
    shape = Shape()
    source = Source(
        f"versioned {cls.__name__} v{version}",
        f"def encode({', '.join(leaf.name for leaf in leaves(cls, shape))}):",
    )
    _EncoderWriter(source, shape).versioned(construct_for(cls, version), version)
    return cast("SingleEncoder", source.function())


class _DecoderWriter:
    def __init__(self, source: Source, shape: Shape) -> None:
        self.source = source
        self.shape = shape
        self.pending: list[Slot] = []
        self.mismatches: list[str] = []
        """Conditions on the pending values under which the message has another shape."""
        self.read: set[str] = set()

    def message(self, cls: type[Message], node: ObjectNode) -> None:
        source = self.source
        source.names.update(FAILURES=_FAILURES, uvarint=read_uvarint, view=memoryview)
        with source.block("try:"):
            self.object(node, "")
            self.flush()
        with source.block("except FAILURES:"):
            source.line("return None")
        source.line(f"return {self.values(leaves(cls, self.shape))}")

    def values(self, of: Iterable[Leaf]) -> str:
        """An expression of the tuple of leaves; those that were not read have their defaults."""
        values = [
            leaf.name
            if leaf.name in self.read
            else self.source.bind(f"{leaf.name}_default", leaf.default)
            for leaf in of
        ]
        return f"({', '.join(values)},)"

    def object(self, node: ObjectNode, path: str) -> None:
        for member in node.subcon.subcons:
            self.read.add(path + member.name)
            self.value(member.subcon, path + member.name, member.name)

    def value(self, node: Any, name: str, field: str) -> None:
        code = fixed_code(node)
        if code is not None:
            self.pending.append(Slot(code, name, ""))
        elif isinstance(node, TaggedFieldsNode):
            self.expect("B", "!= 0")
        elif isinstance(node, NullableNode):
            self.expect("b", ">= 0")
        elif isinstance(node, ObjectNode):
            self.object(node, f"{name}_")
        elif isinstance(node, ArrayNode):
            self.array(node, name, field)
        elif isinstance(node, LengthPrefixed):
            self.counted(node, name)
        else:
            raise TypeError(f"{name}: no decoding is known for {node!r}")

    def expect(self, code: str, mismatch: str) -> None:
        """Read a value that has one meaning only in a message of this shape."""
        var = self.source.fresh("n")
        self.pending.append(Slot(code, var, ""))
        self.mismatches.append(f"{var} {mismatch}")

    def array(self, node: ArrayNode, name: str, field: str) -> None:
        added = int(node.compact)
        code = "B" if node.compact else node.length.code
        if field in self.shape.lists:
            self.elements(node, name, code, added)
        elif field in self.shape.singles:
            self.expect(code, f"!= {1 + added}")
            if isinstance(node.element, ObjectNode):
                self.object(node.element, f"{name}_")
            else:
                self.value(node.element, name, field)
        elif node.nullable:
            var = self.source.fresh("n")
            self.pending.append(Slot(code, var, ""))
            self.mismatches.append(f"not {_NULL + added} <= {var} <= {added}")
            self.flush()
            self.source.line(f"{name} = None if {var} < {added} else ()")
        else:
            self.expect(code, f"!= {added}")

    def elements(self, node: ArrayNode, name: str, code: str, added: int) -> None:
        """Read a list."""
        source, count, each = self.source, self.source.fresh("n"), f"{name}_"
        self.pending.append(Slot(code, count, ""))
        self.mismatches.append(f"not {added} <= {count} <= {LIST_MAX + added}")
        self.flush()
        source.line(f"{name} = []")
        with source.block(f"for _ in range({count} - {added}):"):
            if isinstance(node.element, ObjectNode):
                self.object(node.element, each)
                element = self.values(leaves(node.element.cls, self.shape, each))
            else:
                self.value(node.element, each, "")
                element = each
            self.flush()
            source.line(f"{name}.append({element})")

    def counted(self, node: LengthPrefixed, name: str) -> None:
        """Read a string, bytes or records."""
        source, var = self.source, self.source.fresh("n")
        added = int(node.compact)
        self.pending.append(Slot("B" if node.compact else node.length.code, var, ""))
        self.flush()
        if node.compact:
            with source.block(f"if {var} > 127:"):
                source.line(f"{var}, pos = uvarint(buf, pos - 1)")
        if node.nullable:
            with source.block(f"if {var} == {_NULL + added}:"):
                source.line(f"{name} = None")
            opening = "else:"
        else:
            opening = "if True:"
        with source.block(opening):
            source.line(f"end = pos + {var}" + " - 1" * added)
            with source.block(
                f"if not pos <= end <= len(buf) or {var} - {added} > {node.length_max}:"
            ):
                source.line("return None")
            source.line(f"{name} = {_slice(node)}")
            source.line("pos = end")

    def flush(self) -> None:
        """Read the pending values at once, and check them."""
        source, slots, mismatches = self.source, self.pending, self.mismatches
        self.pending, self.mismatches = [], []
        if not slots:
            return
        unpack = source.bind_struct("read", "unpack_from", "".join(slot.code for slot in slots))
        source.line(f"{''.join(slot.expression + ', ' for slot in slots)}= {unpack}(buf, pos)")
        source.line(f"pos += {sum(WIDTHS[slot.code] for slot in slots)}")
        if mismatches:
            with source.block(f"if {' or '.join(mismatches)}:"):
                source.line("return None")


def _slice(node: LengthPrefixed) -> str:
    if isinstance(node, StringNode):
        return 'buf[pos:end].decode("utf-8")'
    if isinstance(node, BytesNode) and node.records:
        return "view(buf)[pos:end]"
    return "buf[pos:end]"


class _EncoderWriter:
    def __init__(self, source: Source, shape: Shape) -> None:
        self.source = source
        self.shape = shape
        self.pending: list[Slot] = []
        self.parts: list[str] = []
        """Expressions of the bytes of the frame, in order."""
        self.fixed_bytes = 0
        self.lengths: list[str] = []
        source.names.update(
            uvarint=uvarint,
            BYTE=_BYTES,
            short=struct.Struct(">h").pack,
            word=struct.Struct(">i").pack,
        )

    def versioned(self, node: ObjectNode, version: int) -> None:
        self.pending.append(Slot("h", str(version), ""))
        self.object(node, "")
        self.flush()
        self.source.line(f'return b"".join(({", ".join(self.parts)},))')

    def message(self, node: ObjectNode, tagged_header: bool) -> None:
        source = self.source
        self.pending.append(Slot("i", "size", ""))
        self.pending.append(Slot("i", "correlation_id", ""))
        if tagged_header:
            self.zero()
        self.object(node, "")
        self.flush()
        size = self.fixed_bytes - WIDTHS["i"]
        source.line(f"size = {' + '.join([str(size), *self.lengths])}")
        if len(self.parts) == 1:
            source.line(f"return {self.parts[0]}")
        else:
            source.line(f'return b"".join(({", ".join(self.parts)}))')

    def zero(self) -> None:
        self.pending.append(Slot("B", "0", ""))

    def object(self, node: ObjectNode, path: str) -> None:
        for member in node.subcon.subcons:
            self.value(member.subcon, path + member.name, member.name)

    def value(self, node: Any, name: str, field: str) -> None:
        code = fixed_code(node)
        if code is not None:
            self.pending.append(Slot(code, name, ""))
        elif isinstance(node, TaggedFieldsNode):
            self.zero()
        elif isinstance(node, NullableNode):
            self.pending.append(Slot("b", str(_NULL), ""))
        elif isinstance(node, ObjectNode):
            self.object(node, f"{name}_")
        elif isinstance(node, ArrayNode):
            self.array(node, name, field)
        elif isinstance(node, LengthPrefixed):
            self.counted(node, name)
        else:
            raise TypeError(f"{name}: no encoding is known for {node!r}")

    def array(self, node: ArrayNode, name: str, field: str) -> None:
        added = int(node.compact)
        code = "B" if node.compact else node.length.code
        if field in self.shape.lists:
            # A signed byte: a count that needs more than one byte in the compact encoding fails.
            self.pending.append(Slot(code.lower(), f"len({name}) + {added}", ""))
            self.elements(node, name)
        elif field in self.shape.singles:
            self.pending.append(Slot(code, str(1 + added), ""))
            if isinstance(node.element, ObjectNode):
                self.object(node.element, f"{name}_")
            else:
                self.value(node.element, name, field)
        elif node.nullable:
            self.pending.append(Slot(code, f"{_NULL + added} if {name} is None else {added}", ""))
        else:
            self.pending.append(Slot(code, str(added), ""))

    def elements(self, node: ArrayNode, name: str) -> None:
        """Write the elements of a list."""
        source, written, each = self.source, self.source.fresh("e"), f"{name}_"
        self.flush()
        source.line(f"{written} = []")
        inner = _EncoderWriter(source, self.shape)
        if isinstance(node.element, ObjectNode):
            names = [leaf.name for leaf in leaves(node.element.cls, self.shape, each)]
            target = ", ".join(names) + ","
        else:
            target = each
        with source.block(f"for {target} in {name}:"):
            if isinstance(node.element, ObjectNode):
                inner.object(node.element, each)
            else:
                inner.value(node.element, each, "")
            inner.flush()
            source.line(f"{written} += {', '.join(inner.parts)},")
        source.line(f'{written} = b"".join({written})')
        self.parts.append(written)
        self.lengths.append(f"len({written})")

    def counted(self, node: LengthPrefixed, name: str) -> None:
        """Write a string, bytes or records."""
        source = self.source
        data, start = source.fresh("d"), source.fresh("p")
        encoded = f"{name}.encode()" if isinstance(node, StringNode) else name
        if node.compact:
            prefix = f"BYTE[len({data}) + 1] if len({data}) < 127 else uvarint(len({data}) + 1)"
            null = 'b"\\0"'
        else:
            pack = "short" if node.length.code == "h" else "word"
            prefix, null = f"{pack}(len({data}))", f"{pack}({_NULL})"
        if node.nullable:
            with source.block(f"if {name} is None:"):
                source.line(f'{data}, {start} = b"", {null}')
            opening = "else:"
        else:
            opening = "if True:"
        with source.block(opening):
            source.line(f"{data} = {encoded}")
            source.line(f"{start} = {prefix}")
        self.flush()
        self.parts += [start, data]
        self.lengths += [f"len({start})", f"len({data})"]

    def flush(self) -> None:
        """Write the pending values at once."""
        slots, self.pending = self.pending, []
        if not slots:
            return
        pack = self.source.bind_struct("write", "pack", "".join(slot.code for slot in slots))
        self.parts.append(f"{pack}({', '.join(slot.expression for slot in slots)})")
        self.fixed_bytes += sum(WIDTHS[slot.code] for slot in slots)

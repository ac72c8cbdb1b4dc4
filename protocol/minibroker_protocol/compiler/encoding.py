"""Writes the function that encodes one version of a message.

It owns the shape of encoding: parts collected in a list and joined once, neighbours of fixed width
packed together with the length that follows them, records passed through untouched. It knows
construct's nodes and no message. Invariant: an object that the version can't express raises
`EncodeError`, and the chunks of any other have the lengths that the bytes say.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import construct as cs

from minibroker_protocol.compiler.decoding import Slot, Source, fixed_code, has_records
from minibroker_protocol.errors import EncodeError
from minibroker_protocol.schema import Struct
from minibroker_protocol.types import (
    STRING_LENGTH_MAX,
    ArrayNode,
    BytesNode,
    LengthPrefixed,
    NullableNode,
    ObjectNode,
    SignedVarint,
    StringNode,
    Tagged,
    TaggedFieldsNode,
    UnsignedVarint,
)
from minibroker_protocol.wire import Numbers, tagged_section, uvarint, varint

_FAILURES: Final = (
    struct.error,
    TypeError,
    AttributeError,
    ValueError,
    OverflowError,
    UnicodeEncodeError,
)
_NUMBERS: Final = {code: Numbers(code, "pack") for code in "bhiqHId"}
_ONE_BYTE: Final = tuple(bytes([value]) for value in range(128))


def emit(node: ObjectNode, title: str) -> Source:
    """The encoder of `node`; `title` is what errors call the message."""
    source = Source(title, "def encode(message):")
    _Writer(source, has_records=has_records(node)).message(node)
    return source


def _string_length(length: int) -> bytes:
    """A compact string's length; ValueError if it is more than a string may have."""
    if length > STRING_LENGTH_MAX + 1:
        raise ValueError(f"string of {length - 1} bytes is longer than {STRING_LENGTH_MAX}")
    return uvarint(length)


def _explain(error: Exception, node: ObjectNode, title: str, message: Any) -> EncodeError:
    """The `EncodeError` for `message`: construct builds it again and knows where it fails."""
    if not isinstance(message, node.cls):
        return EncodeError(f"{title}: a {type(message).__name__} is not a {node.cls.__name__}")
    try:
        node.build(message)
    except cs.ConstructError as found:
        where = (found.path or "").removeprefix("(building) -> ").replace(" -> ", ".")
        reason = str(found.args[0]).splitlines()[-1] if found.args else str(error)
        return EncodeError(f"{title}, {where}: {reason}")
    except (TypeError, AttributeError, ValueError) as found:
        return EncodeError(f"{title}: {found}")
    return EncodeError(f"{title}: {error}")


class _Writer:
    def __init__(self, source: Source, *, has_records: bool) -> None:
        self.source = source
        self.has_records = has_records
        self.out = "out"
        self.pending: list[Slot] = []

    def message(self, node: ObjectNode) -> None:
        source = self.source
        source.names.update(
            uvarint=uvarint,
            varint=varint,
            string_length=_string_length,
            tagged_section=tagged_section,
            explain=_explain,
            FAILURES=_FAILURES,
            NODE=node,
            TITLE=source.title,
            BYTE=_ONE_BYTE,
        )
        source.line("parts = []")
        source.line("out = parts.append")
        if self.has_records:
            source.line("chunks = []")
        with source.block("try:"):
            self.object(node, "message")
            self.flush()
            if self.has_records:
                with source.block("if parts:"):
                    source.line('chunks.append(b"".join(parts))')
                source.line("return chunks")
            else:
                source.line('return [b"".join(parts)]')
        with source.block("except FAILURES as error:"):
            source.line("raise explain(error, NODE, TITLE, message) from None")

    def pack(self, slots: list[Slot]) -> str:
        """The expression that packs `slots`."""
        name = self.source.bind_struct("write", "pack", "".join(slot.code for slot in slots))
        return f"{name}({', '.join(slot.expression for slot in slots if slot.expression)})"

    def flush(self) -> None:
        if self.pending:
            self.source.line(f"{self.out}({self.pack(self.pending)})")
            self.pending = []

    def flush_varint(self, var: str, function: str) -> None:
        """Write what waits and then the compact length in `var`, in one part if it is short."""
        slots, self.pending = self.pending, []
        if slots:
            short = self.pack([*slots, Slot("B", var, "")])
            long = f"{self.pack(slots)} + {function}({var})"
        else:
            short, long = f"BYTE[{var}]", f"{function}({var})"
        self.source.line(f"{self.out}({short} if {var} < 128 else {long})")

    def object(self, node: ObjectNode, var: str) -> None:
        for member in node.subcon.subcons:
            if isinstance(member.subcon, TaggedFieldsNode):
                self.tagged(member.subcon, var)
            else:
                self.value(member.subcon, f"{var}.{member.name}")

    def value(self, node: Any, expression: str) -> None:
        source = self.source
        code = fixed_code(node)
        if code is not None:
            self.fixed(code, expression)
        elif isinstance(node, ArrayNode):
            self.array(node, expression)
        elif isinstance(node, LengthPrefixed):
            self.counted(node, expression)
        elif isinstance(node, NullableNode):
            self.nullable(node, expression)
        elif isinstance(node, ObjectNode):
            var = source.fresh("o")
            source.line(f"{var} = {expression}")
            self.object(node, var)
        elif isinstance(node, UnsignedVarint):
            self.flush()
            source.line(f"{self.out}(uvarint({expression}))")
        elif isinstance(node, SignedVarint):
            self.flush()
            source.line(f"{self.out}(varint({expression}, {node.bits}))")
        else:
            raise TypeError(f"{expression}: no encoding is known for {node!r}")

    def fixed(self, code: str, expression: str) -> None:
        if code == "16s":
            # struct would cut or pad what isn't 16 bytes long.
            var = self.source.fresh("u")
            self.source.line(f"{var} = {expression}")
            with self.source.block(f"if len({var}) != 16:"):
                self.source.line('raise ValueError("a UUID has 16 bytes")')
            expression = var
        self.pending.append(Slot(code, expression, ""))

    def nullable(self, node: NullableNode, expression: str) -> None:
        source = self.source
        self.flush()
        var = source.fresh("o")
        source.line(f"{var} = {expression}")
        with source.block(f"if {var} is None:"):
            source.line(f"{self.out}({node.null.to_bytes(1, signed=True)!r})")
        with source.block("else:"):
            self.pending.append(Slot("b", "1", ""))
            self.object(node.subcon, var)
            self.flush()

    def prefix(self, node: LengthPrefixed, var: str) -> None:
        """Write the length in `var`, already one higher if it is compact."""
        if node.compact:
            self.flush_varint(var, "string_length" if isinstance(node, StringNode) else "uvarint")
        else:
            self.pending.append(Slot(node.length.code, var, ""))
            self.flush()

    def counted(self, node: LengthPrefixed, expression: str) -> None:
        """Write a string, bytes or records."""
        source = self.source
        text, count = source.fresh("s"), source.fresh("n")
        added = " + 1" if node.compact else ""
        is_text = isinstance(node, StringNode)
        records = isinstance(node, BytesNode) and node.records
        source.line(f"{text} = {expression}")
        if node.nullable:
            with source.block(f"if {text} is None:"):
                source.line(f"{count} = {0 if node.compact else -1}")
                source.line(f'{text} = b""')
            opening = source.block("else:")
        else:
            opening = None
        if opening:
            with opening:
                self.measure(text, count, added, is_text)
        else:
            self.measure(text, count, added, is_text)
        self.prefix(node, count)
        if records:
            with source.block(f"if {count} > {1 if node.compact else 0}:"):
                source.line('chunks.append(b"".join(parts))')
                source.line(f"chunks.append({text})")
                source.line("parts.clear()")
        else:
            source.line(f"{self.out}({text})")

    def measure(self, text: str, count: str, added: str, is_text: bool) -> None:
        if is_text:
            self.source.line(f"{text} = {text}.encode()")
        self.source.line(f"{count} = len({text}){added}")

    def array(self, node: ArrayNode, expression: str) -> None:
        source = self.source
        items, count = source.fresh("v"), source.fresh("n")
        added = " + 1" if node.compact else ""
        source.line(f"{items} = {expression}")
        if node.nullable:
            with source.block(f"if {items} is None:"):
                source.line(f"{count} = {0 if node.compact else -1}")
                source.line(f"{items} = ()")
            with source.block("else:"):
                source.line(f"{count} = len({items}){added}")
        else:
            source.line(f"{count} = len({items}){added}")
        self.prefix(node, count)
        code = fixed_code(node.element)
        if code in _NUMBERS:
            numbers = source.bind(f"numbers_{code}", _NUMBERS[code])
            with source.block(f"if {items}:"):
                source.line(f"{self.out}({numbers}[len({items})](*{items}))")
            return
        item = source.fresh("o")
        with source.block(f"for {item} in {items}:"):
            self.value_or_object(node.element, item)
            self.flush()

    def value_or_object(self, node: Any, var: str) -> None:
        if isinstance(node, ObjectNode):
            self.object(node, var)
        else:
            self.value(node, var)

    def tagged(self, node: TaggedFieldsNode, var: str) -> None:
        """Write a section of tagged fields; those with nothing to say are left out."""
        source = self.source
        unknown = source.fresh("u")
        source.line(f"{unknown} = {var}.unknown_tagged_fields")
        slots, self.pending = self.pending, []
        if not node.known:
            empty = self.pack([*slots, Slot("x", "", "")]) if slots else r'b"\0"'
            full = f"{self.pack(slots)} + " if slots else ""
            full += f"tagged_section({unknown}, {{}})"
            source.line(f"{self.out}({empty} if {unknown} is None else {full})")
            return
        self.pending = slots
        self.flush()
        entries = source.fresh("t")
        source.line(f"{entries} = {{}}")
        for known in node.known:
            self.tagged_entry(known, f"{var}.{known.name}", entries)
        section = f"tagged_section({unknown}, {entries})"
        source.line(f'{self.out}({section} if {entries} or {unknown} else b"\\0")')

    def tagged_entry(self, known: Tagged, expression: str, entries: str) -> None:
        source = self.source
        value = source.fresh("o")
        source.line(f"{value} = {expression}")
        if known.default is None:
            # A struct that is there may still say no more than its absence would.
            is_default = source.bind(f"is_default_{known.name}", known.is_default)
            test = f"{value} is not None and not {is_default}({value})"
        elif isinstance(known.default, Struct):
            test = f"not {source.bind(f'is_default_{known.name}', known.is_default)}({value})"
        else:
            test = f"{value} != {known.default!r}"
        with source.block(f"if {test}:"):
            parts, outer = source.fresh("parts"), self.out
            self.out = source.fresh("out")
            source.line(f"{parts} = []")
            source.line(f"{self.out} = {parts}.append")
            self.value_or_object(known.node, value)
            self.flush()
            source.line(f'{entries}[{known.tag}] = b"".join({parts})')
            self.out = outer

"""Walks a construct tree over bytes and notes the position of every value.

Owns the third reading of the schema, beside construct's and the compiled one: leaves are parsed by
construct, one after the other, and each becomes a node with its position. It must never know
frames. Invariant: in any case, the nodes read so far are in the tree, and the one that failed has
the reason.
"""

from __future__ import annotations

import io
from typing import Any, Final

import construct as cs

from minibroker_protocol.dissect import batches
from minibroker_protocol.dissect.tree import Node
from minibroker_protocol.dissect.values import describe
from minibroker_protocol.messages import consumer_protocol
from minibroker_protocol.schema import Message, construct_for
from minibroker_protocol.types import (
    ArrayNode,
    BytesNode,
    LengthPrefixed,
    NullableNode,
    ObjectNode,
    TaggedFieldsNode,
)

# Byte strings of the group protocol that consumers fill with messages of their own.
_CONSUMER_MESSAGES: Final[dict[str, type[Message]]] = {
    "metadata": consumer_protocol.ConsumerProtocolSubscription,
    "member_metadata": consumer_protocol.ConsumerProtocolSubscription,
    "assignment": consumer_protocol.ConsumerProtocolAssignment,
    "member_assignment": consumer_protocol.ConsumerProtocolAssignment,
}


class Broken(Exception):
    """Reading can't go on; the node that failed knows why."""


class Walker:
    """Reads values from `data`, from `start` on, into nodes."""

    def __init__(self, data: bytes, start: int = 0) -> None:
        self.data = data
        self._stream = io.BytesIO(data)
        self._stream.seek(start)

    @property
    def position(self) -> int:
        return self._stream.tell()

    def read(self, name: str, node: Any, parent: Node) -> Node:
        """Read one value of kind `node` below `parent`; `Broken` if it can't be read."""
        made = Node(name, self.position)
        parent.children.append(made)
        try:
            self._read(made, node)
        except cs.ConstructError as error:
            made.error = _reason(error)
            made.end = made.own_end = len(self.data)
            if isinstance(node, cs.Renamed):
                node = node.subcon
            if isinstance(node, BytesNode) and node.records and self.position < len(self.data):
                # Records cut off at the end of a capture: show those that are there.
                made.own_end = self.position
                batches.read(self.data, self.position, len(self.data), made)
            raise Broken from error
        finally:
            if made.end is None:
                made.end = self.position
            if made.own_end is None:
                made.own_end = made.end
        return made

    def _read(self, made: Node, node: Any) -> None:
        if isinstance(node, cs.Renamed):
            self._read(made, node.subcon)
        elif isinstance(node, ObjectNode):
            made.own_end = self.position
            self.members(node, made)
        elif isinstance(node, NullableNode):
            self._nullable(made, node)
        elif isinstance(node, ArrayNode):
            self._array(made, node)
        elif isinstance(node, TaggedFieldsNode):
            self._tagged(made, node)
        else:
            made.value = node.parse_stream(self._stream)
            made.text = describe(made.name, made.value)
            if isinstance(node, BytesNode) and made.value:
                self._contents(made, node)

    def members(self, node: ObjectNode, parent: Node) -> None:
        """Read the members of a struct as children of `parent`."""
        for member in node.subcon.subcons:
            self.read(member.name, member.subcon, parent)

    def _nullable(self, made: Node, node: NullableNode) -> None:
        marker = cs.Int8sb.parse_stream(self._stream)
        made.own_end = self.position
        if marker < 0:
            made.text = "null"
        else:
            self.members(node.subcon, made)

    def _array(self, made: Node, node: ArrayNode) -> None:
        count = _length(node, self._stream)
        made.own_end = self.position
        if count < 0:
            made.text = "null"
            return
        made.value = count
        if _is_plain(node.element):
            values = [node.element.parse_stream(self._stream) for _ in range(count)]
            made.own_end = None
            made.value = values
            made.text = f"[{', '.join(describe(made.name, value) for value in values)}]"
            return
        made.text = "empty" if count == 0 else f"{count} element{'s' if count > 1 else ''}"
        for index in range(count):
            self.read(f"[{index}]", node.element, made)

    def _tagged(self, made: Node, node: TaggedFieldsNode) -> None:
        made.name = "tagged fields"
        count = node.parse_count(self._stream, {}, "")
        made.own_end = self.position
        made.text = "none" if count == 0 else str(count)
        for _ in range(count):
            start = self.position
            tag, size = node.parse_entry(self._stream, {}, "")
            known = node.by_tag.get(tag)
            name = known.name if known else "unknown"
            entry = Node(f"tag {tag}", start, own_end=self.position, text=f"{name}, {size} bytes")
            entry.end = self.position + size
            made.children.append(entry)
            if known:
                self.read(known.name, known.node, entry)
            else:
                value = Node("value", self.position, entry.end, entry.end)
                value.value = self._stream.read(size)
                value.text = describe("", value.value)
                entry.children.append(value)

    def _contents(self, made: Node, node: BytesNode) -> None:
        """Dissect the content of a byte string if its format is known."""
        length = len(made.value)
        start = self.position - length
        if node.records:
            made.own_end = start
            made.text = f"{length} bytes"
            batches.read(self.data, start, self.position, made)
        elif made.name in _CONSUMER_MESSAGES:
            self._consumer_message(made, start)

    def _consumer_message(self, made: Node, start: int) -> None:
        """Open a consumer's own message; what doesn't look like one stays bytes."""
        inner = Walker(self.data[: self.position], start)
        holder = Node(made.name, start)
        try:
            version = inner.read("version", cs.Int16sb, holder)
            cls = _CONSUMER_MESSAGES[made.name]
            known = min(version.value, cls.__versions__.high)
            if known < 0:
                return
            inner.members(construct_for(cls, known), holder)
        except Broken:
            return
        left = self.position - inner.position
        if left:
            if version.value == known:
                return
            rest = Node("later fields", inner.position, self.position, self.position)
            rest.text = f"{left} bytes"
            holder.children.append(rest)
        made.own_end = start
        made.text = f"{cls.__name__}, {len(made.value)} bytes"
        made.children = holder.children


def _length(node: LengthPrefixed, stream: Any) -> int:
    return node.parse_length(stream, {}, "")


def _is_plain(node: Any) -> bool:
    return not isinstance(node, (ObjectNode, NullableNode, ArrayNode))


def _reason(error: cs.ConstructError) -> str:
    text = str(error.args[0]) if error.args else type(error).__name__
    if isinstance(error, cs.StreamError) and "stream read less" in text:
        return "the bytes end here"
    lines = [line for line in text.splitlines() if line and not line.startswith("Error in path")]
    return lines[-1] if lines else text

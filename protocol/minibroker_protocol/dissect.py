"""Dissects frames and log segments: the meaning of each byte, as a tree.

Owns the detection of a frame's kind (with or without size, request or response) and reads it as far
as possible. It raises no error about the bytes: damage, missing bytes and extra bytes are part of
the result. construct interprets the schema here, so the result follows the declarations,
independent of the generated codecs. The parts of a file are all of its bytes, in order. A
node's own bytes (`start` to `own_end`) come first, those of its children follow up to `end`, and
siblings follow each other without gaps unless one has an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import enum
import io
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import construct as cs

from minibroker_protocol import registry
from minibroker_protocol.errors import DecodeError, ErrorCode, UnsupportedVersion
from minibroker_protocol.framing import SIZE_BYTES
from minibroker_protocol.messages import consumer_protocol
from minibroker_protocol.records import HEADER_BYTES, parse_batch_header, verify_crc
from minibroker_protocol.registry import ApiKey, ApiSchema
from minibroker_protocol.schema import Message, construct_for, field
from minibroker_protocol.types import (
    INT16,
    INT32,
    PLAIN_NULLABLE_STRING,
    ArrayNode,
    BytesNode,
    LengthPrefixed,
    NullableNode,
    ObjectNode,
    TaggedFieldsNode,
    uuid_text,
)
from minibroker_protocol.wire import Malformed, read_varint


class Direction(enum.Enum):
    """Which way a frame travels."""

    AUTO = "auto"
    REQUEST = "request"
    RESPONSE = "response"


@dataclasses.dataclass(slots=True)
class Node:
    """One value of a frame: its name, position and text.

    `start` is None for values without a position in the frame: records inside a compressed batch.
    """

    name: str
    start: int | None
    end: int | None = None
    own_end: int | None = None
    text: str = ""
    value: Any = None
    error: str | None = None
    children: list[Node] = dataclasses.field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        """Yield this node and all its descendants, in the order of their bytes."""
        yield self
        for child in self.children:
            yield from child.walk()

    def find(self, name: str) -> Node:
        """Return the first node with that name, from this one on. Raises KeyError."""
        for node in self.walk():
            if node.name == name:
                return node
        raise KeyError(name)


@dataclasses.dataclass(slots=True)
class Dissection:
    """A dissected frame: its bytes, their tree, and the error as a sentence."""

    data: bytes
    root: Node
    problem: str | None = None


HEX_BYTES: Final = 8  # bytes shown in the middle column


class Line(NamedTuple):
    """The parts of one line, without padding."""

    offset: str
    bytes: str
    branch: str
    name: str
    text: str
    error: str


def lines(dissection: Dissection) -> Iterator[Line]:
    """The lines of a dissection, the root first."""
    yield from _lines(dissection, dissection.root, "", "")


def render(dissection: Dissection) -> str:
    """Return the text of a dissection, one line per node, with the error at the end if there is
    one.
    """
    parts = list(lines(dissection))
    offset_width = max((len(line.offset) for line in parts), default=0)
    hex_width = max((len(line.bytes) for line in parts), default=0)
    rows = []
    for line in parts:
        row = f"{line.offset:>{offset_width}}  {line.bytes:<{hex_width}}  {line.branch}{line.name}"
        if line.text:
            row += f": {line.text}"
        if line.error:
            row += f"  ✗ {line.error}"
        rows.append(row.rstrip())
    if dissection.problem:
        rows += ["", f"✗ {dissection.problem}"]
    return "\n".join(rows) + "\n"


def _lines(dissection: Dissection, node: Node, lead: str, branch: str) -> Iterator[Line]:
    offset = "" if node.start is None else str(node.start)
    error = node.error or ""
    yield Line(offset, _hex(dissection.data, node), lead + branch, node.name, node.text, error)
    inner = lead + {"": "", "├ ": "│ ", "└ ": "  "}[branch]
    for child in node.children:
        last = child is node.children[-1]
        yield from _lines(dissection, child, inner, "└ " if last else "├ ")


def _hex(data: bytes, node: Node) -> str:
    if node.start is None or node.own_end is None:
        return ""
    own = data[node.start : node.own_end]
    if len(own) <= HEX_BYTES:
        return own.hex(" ")
    return f"{own[: HEX_BYTES - 2].hex(' ')} … {len(own)}"


# -------------------------- Walks a construct tree over bytes and notes the position of every value
# Owns the third reading of the schema, next to construct's and the compiled one: leaves are parsed
# by construct, one after the other, and each becomes a node with its position. It must never know
# frames. Invariant: in any case, the nodes read so far are in the tree, and the one that failed has
# the reason.


# Texts of single values ---------------------------------------------------------------------------
#
# Fields are recognized by Kafka's names, which say what an integer means (``error_code``,
# ``..._timestamp_ms``).


PREVIEW_MAX: Final = 60
_ISOLATION: Final = {0: "read uncommitted", 1: "read committed"}
_ACKS: Final = {-1: "all", 0: "none", 1: "leader"}
_LIST_OFFSETS: Final = {
    -1: "latest",
    -2: "earliest",
    -3: "max timestamp",
    -4: "earliest local",
    -5: "latest tiered",
}
_COORDINATORS: Final = {0: "group", 1: "transaction", 2: "share"}
_RESOURCES: Final = {
    1: "any",
    2: "topic",
    3: "group",
    4: "broker",
    5: "transactional id",
    8: "broker logger",
    16: "client metrics",
    32: "group config",
}


def describe(name: str, value: Any) -> str:
    """`value` of the field `name`, for a reader."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bytes):
        return (
            uuid_text(value)
            if name.endswith(("_id", "uuid")) and len(value) == 16
            else (preview(value))
        )
    if isinstance(value, int):
        meaning = _meaning_of(name, value)
        return f"{value} {meaning}" if meaning else str(value)
    return str(value)


def quoted(text: str) -> str:
    """Text in quotes, cut short with its length if it is long."""
    if len(text) <= PREVIEW_MAX:
        return repr(text)
    return f"{text[:PREVIEW_MAX]!r}… ({len(text)} characters)"


def preview(data: bytes) -> str:
    """Bytes as text where they are text, and how many there are."""
    shown = data[:PREVIEW_MAX]
    try:
        text = shown.decode("ascii")
    except UnicodeDecodeError:
        return f"{len(data)} bytes"
    if not text.isprintable():
        return f"{len(data)} bytes"
    if not data:
        return "empty"
    return repr(text) if shown == data else f"{text!r}… ({len(data)} bytes)"


def moment(milliseconds: int) -> str:
    """Milliseconds since 1970 as a date, empty if they are none that a log would have."""
    if not 0 < milliseconds < 253_402_300_800_000:
        return ""
    when = dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
    return when.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def _meaning_of(name: str, value: int) -> str:
    if name == "error_code":
        return ErrorCode.describe(value)
    if name in {"api_key", "request_api_key"}:
        return ApiKey(value).name if value in ApiKey.__members__.values() else "unknown"
    table = {
        "acks": _ACKS,
        "isolation_level": _ISOLATION,
        "key_type": _COORDINATORS,
        "resource_type": _RESOURCES,
    }.get(name)
    if table is not None:
        return table.get(value, "")
    if name == "timestamp" and value < 0:
        return _LIST_OFFSETS.get(value, "")
    if "timestamp" in name or name == "log_append_time_ms":
        return moment(value)
    return ""


# Names as in `records.BatchHeader`, with the bytes that each takes.
# Record batches -----------------------------------------------------------------------------------
#
# Each header field has its position, then come the records. Records of a compressed batch have no
# position in the frame, so their nodes have none. Everything is read by
# `minibroker_protocol.records`, which is loaded only if there are records to show.


_LAYOUT: Final = (
    ("base_offset", 8),
    ("batch_length", 4),
    ("partition_leader_epoch", 4),
    ("magic", 1),
    ("crc", 4),
    ("attributes", 2),
    ("last_offset_delta", 4),
    ("base_timestamp", 8),
    ("max_timestamp", 8),
    ("producer_id", 8),
    ("producer_epoch", 2),
    ("base_sequence", 4),
    ("record_count", 4),
)


def read_batches(data: bytes, start: int, end: int, parent: Node) -> None:
    """Add a node for each batch in ``data[start:end]``; damage becomes a node with an error."""
    from minibroker_protocol import records

    pos = start
    while pos < end:
        batch = Node("batch", pos)
        parent.children.append(batch)
        try:
            header = records.parse_batch_header(data[:end], pos)
        except DecodeError as error:
            batch.error, batch.end, batch.own_end = error.what, end, end
            return
        batch.own_end = pos
        whole = data[pos : min(pos + header.size, end)]
        batch.end = pos + len(whole)
        last = header.last_offset
        batch.text = f"offsets {header.base_offset} to {last}, {header.size} bytes"
        _header(header, pos, whole, batch)
        if len(whole) < header.size:
            batch.error = f"cut off: {header.size} bytes long, {len(whole)} are here"
            return
        _records(header, whole, pos, batch)
        pos = batch.end


def _header(header: Any, pos: int, whole: bytes, batch: Node) -> None:
    from minibroker_protocol import records

    for name, width in _LAYOUT:
        value = getattr(header, name)
        text = describe(name, value)
        if name == "crc":
            good = records.verify_crc(whole) if len(whole) == header.size else None
            text = f"{value:#010x}" + {True: " right", False: " WRONG", None: ""}[good]
        elif name == "attributes":
            text = f"{value:#06x} {_attributes(header)}"
        batch.children.append(Node(name, pos, pos + width, pos + width, text, value))
        pos += width


def _attributes(header: Any) -> str:
    from minibroker_protocol.compression import Compression

    codec = header.codec
    known = codec in list(Compression)
    parts = [Compression(codec).name.lower() if known else f"codec {codec}"]
    parts.append("log append time" if header.timestamp_type else "create time")
    parts += ["transactional"] * header.is_transactional + ["control"] * header.is_control
    return ", ".join(parts)


def _records(header: Any, whole: bytes, pos: int, batch: Node) -> None:
    from minibroker_protocol import records

    places = _places(header, whole, pos)
    try:
        for index, record in enumerate(records.iter_records(whole)):
            start, end = places[index] if index < len(places) else (None, None)
            text = _record_text(record)
            batch.children.append(Node(f"record {record.offset}", start, end, end, text, record))
    except DecodeError as error:
        batch.error = error.what


def _record_text(record: Any) -> str:
    key = "null" if record.key is None else preview(record.key)
    value = "null" if record.value is None else preview(record.value)
    parts = [f"key {key}", f"value {value}", moment(record.timestamp)]
    parts += [f"{name}={'null' if v is None else preview(v)}" for name, v in record.headers]
    return ", ".join(part for part in parts if part)


def _places(header: Any, whole: bytes, pos: int) -> list[tuple[int, int]]:
    """Return the positions of records in the frame; empty if the batch is compressed."""
    if header.codec:
        return []
    places = []
    at = sum(width for _, width in _LAYOUT)
    # Errors of a record are reported where it is decoded; here they only end the search.
    with contextlib.suppress(IndexError, Malformed):
        while at < len(whole):
            length, body = read_varint(whole, at)
            if length < 0:
                break
            places.append((pos + at, pos + body + length))
            at = body + length
    return places


# Byte strings of the group protocol that consumers fill with messages of their own.
# Messages -----------------------------------------------------------------------------------------

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
                read_batches(self.data, self.position, len(self.data), made)
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
        if node.is_null(marker):
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
            read_batches(self.data, start, self.position, made)
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


# ---------------------------- Dissects frames and log segments: the meaning of each byte, as a tree
# Owns the detection of a frame's kind (with or without size, request or response) and reads it as
# far as possible. It raises no error about the bytes: damage, missing bytes and extra bytes are
# part of the result. construct interprets the schema here, so the result follows the declarations,
# independent of the generated codecs. The parts of a file are all of its bytes, in order.


_Body: TypeAlias = "Callable[[Walker], None]"


class RequestHeaderSchema(Message, versions="0-2", flexible="2+"):
    """Kafka's ``RequestHeader.json``, which `wire` reads by hand.

    Version 2 goes before requests in the compact encoding, version 1 before all others but
    version 0 of ControlledShutdown.
    """

    request_api_key: int = field(INT16)
    request_api_version: int = field(INT16)
    correlation_id: int = field(INT32)
    client_id: str | None = field(PLAIN_NULLABLE_STRING, versions="1+", default="")


class ResponseHeaderSchema(Message, versions="0-1", flexible="1+"):
    """Kafka's ``ResponseHeader.json``: version 1 goes before responses in the compact encoding."""

    correlation_id: int = field(INT32)


def dissect(
    frame: bytes | bytearray | memoryview,
    *,
    direction: Direction | str = Direction.AUTO,
    api_key: int | None = None,
    version: int | None = None,
) -> Dissection:
    """Dissect `frame`, with or without its size, even if its end is missing.

    A response does not contain its API: pass API and version. With direction ``auto`` a frame is a
    response if they are given and it is not more plausible as a request.
    """
    data = bytes(frame)
    wanted = Direction(direction)
    tries: list[_Try] = []
    for prefixed in (True, False):
        if wanted is not Direction.RESPONSE:
            tries.append(_Try(data, prefixed=prefixed).request())
        if wanted is not Direction.REQUEST and api_key is not None and version is not None:
            tries.append(_Try(data, prefixed=prefixed).response(api_key, version))
    if not tries:
        problem = "a response doesn't say what it answers: its API and version are needed"
        return Dissection(data, Node("frame", 0, len(data), len(data)), problem)
    return max(tries, key=lambda attempt: attempt.merit).result()


def is_segment(data: bytes) -> bool:
    """Whether the bytes start with a record batch, as a log segment does."""
    try:
        header = parse_batch_header(data)
    except DecodeError:
        return False
    return verify_crc(data) if header.size <= len(data) else len(data) >= HEADER_BYTES


def dissect_segment(data: bytes) -> Dissection:
    """Take a log segment apart: its batches and their records."""
    root = Node("log segment", 0, len(data), 0, text=f"{len(data)} bytes")
    read_batches(data, 0, len(data), root)
    failed = next((node for node in root.walk() if node.error), None)
    problem = None if failed is None else f"{failed.name}: {failed.error} (at byte {failed.start})"
    return Dissection(data, root, problem)


def frames(data: bytes) -> list[bytes]:
    """The frames that follow each other in ``data``, each with its size before it.

    If the sizes do not lead to the end of ``data``, it counts as one frame.
    """
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + SIZE_BYTES], "big", signed=True)
        end = at + SIZE_BYTES + size
        if size <= 0 or end > len(data):
            return [data]
        found.append(data[at:end])
        at = end
    return found or [data]


class _Try:
    """One way to read the bytes, and how well it went."""

    def __init__(self, data: bytes, *, prefixed: bool) -> None:
        self.data = data
        self.root = Node("frame", 0, len(data), 0, text=f"{len(data)} bytes")
        self.prefixed = prefixed
        self.size: int | None = None
        self.problem: str | None = None
        # Of several readings, the one without remaining bytes is best, then one with the right
        # size.
        self.merit: tuple[int, ...] = (0,)

    def request(self) -> _Try:
        self._read(self._request)
        return self

    def response(self, api_key: int, version: int) -> _Try:
        self._read(lambda walker: self._response(walker, api_key, version))
        return self

    def result(self) -> Dissection:
        return Dissection(self.data, self.root, self.problem)

    def _read(self, body: _Body) -> None:
        walker = Walker(self.data)
        clean = known = False
        try:
            if self.prefixed:
                self.size = walker.read("size", cs.Int32sb, self.root).value
            body(walker)
            known = clean = True
        except Broken:
            known = len(self.root.children) > self.prefixed + 1
        except UnsupportedVersion as error:
            self.problem = str(error)
            end = len(self.data)
            unread = Node("unread", walker.position, end, end, f"{end - walker.position} bytes")
            self.root.children.append(unread)
        rest = self._finish(walker) if clean else 0
        failed = next((node for node in self.root.walk() if node.error), None)
        if failed is not None:
            self.problem = f"{_path(self.root, failed)}: {failed.error} (at byte {failed.start})"
        fits = self.size == len(self.data) - SIZE_BYTES
        short = self.size is not None and self.size > len(self.data) - SIZE_BYTES
        exact = clean and not rest
        self.merit = (fits and exact, exact, fits, known, clean, short, self.prefixed)

    def _finish(self, walker: Walker) -> int:
        """Account for the bytes behind the message; how many there are."""
        end = len(self.data)
        rest = end - walker.position
        if rest:
            node = Node("bytes left over", walker.position, end, end, f"{rest}")
            self.root.children.append(node)
            self.problem = f"{rest} bytes follow the message"
        elif self.size is not None and self.size != end - SIZE_BYTES:
            self.problem = f"the size says {self.size} bytes, {end - SIZE_BYTES} are here"
        return rest

    def _request(self, walker: Walker) -> None:
        data, at = self.data, walker.position
        if len(data) - at < 4:
            header = Node("request header", at, len(data), len(data))
            header.error = "a request header needs its API's key and version"
            self.root.children.append(header)
            raise Broken
        key = int.from_bytes(data[at : at + 2], "big", signed=True)
        version = int.from_bytes(data[at + 2 : at + 4], "big", signed=True)
        api = registry.schema(key)
        number = api.request_header_version(version)
        header = Node("request header", at, text=f"version {number}", own_end=at)
        self.root.children.append(header)
        try:
            walker.members(construct_for(RequestHeaderSchema, number), header)
        finally:
            header.end = walker.position
        self._body(walker, api, f"{api.name}Request", version, request=True)

    def _response(self, walker: Walker, api_key: int, version: int) -> None:
        api = registry.schema(api_key)
        at = walker.position
        number = api.response_header_version(version)
        header = Node("response header", at, text=f"version {number}", own_end=at)
        self.root.children.append(header)
        try:
            walker.members(construct_for(ResponseHeaderSchema, number), header)
        finally:
            header.end = walker.position
        self._body(walker, api, f"{api.name}Response", version, request=False)

    def _body(
        self, walker: Walker, api: ApiSchema, name: str, version: int, *, request: bool
    ) -> None:
        tree = construct_for(api.request if request else api.response, version)
        missing = ""
        if self.size is not None and self.size > len(self.data) - SIZE_BYTES:
            missing = f", {self.size + SIZE_BYTES - len(self.data)} bytes missing"
        body = Node(name, walker.position, text=f"version {version}{missing}")
        body.own_end = walker.position
        self.root.children.append(body)
        try:
            walker.members(tree, body)
        finally:
            body.end = walker.position


def _path(root: Node, target: Node) -> str:
    """The names on the way from below `root` to `target`."""

    def search(node: Node) -> list[str] | None:
        if node is target:
            return [node.name]
        for child in node.children:
            found = search(child)
            if found is not None:
                return [node.name, *found]
        return None

    names = (search(root) or [""])[1:]
    return ".".join(names).replace(".[", "[")


def api_named(name: str) -> ApiKey:
    """The API of that name or number, however it is written; ValueError if there is none."""
    wanted = name.replace("_", "").replace("-", "").lower()
    for key in ApiKey:
        if wanted in (key.name.replace("_", "").lower(), str(int(key))):
            return key
    raise ValueError(f"no API is called {name!r}")

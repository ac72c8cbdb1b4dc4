"""Kafka's primitive types, as construct nodes.

Owns the encoding of single values: integers, varints, strings, byte strings, record sets, arrays,
nullable structs and sections of tagged fields, each in its plain and its compact form. It must
never know the message of a value. Nodes raise construct's errors and reject a length or count that
exceeds the remaining bytes before anything is allocated. Kafka's
``org.apache.kafka.common.protocol.types.Type``; the compact forms are KIP-482.
"""

# ruff: noqa: SLF001, ARG002, ARG005
# construct is extended by overriding its underscored methods, and calls them with all it knows.

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sized
from typing import Any, Final, NamedTuple, TypeAlias

import construct as cs

Uuid: TypeAlias = bytes
Records: TypeAlias = "bytes | bytearray | memoryview"
# Value of a records field to encode: bytes, or anything with a length that the caller can send (a
# slice of a file).
RecordsOut: TypeAlias = "bytes | bytearray | memoryview | Sized"

ZERO_UUID: Final[Uuid] = bytes(16)
STRING_LENGTH_MAX: Final = 0x7FFF
BYTES_LENGTH_MAX: Final = 0x7FFFFFFF
VARINT_BYTES_MAX: Final = 5
VARLONG_BYTES_MAX: Final = 10


def uuid_text(uuid: Uuid) -> str:
    """Kafka's way to write a UUID: base64 for URLs, without padding (22 characters)."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> Uuid:
    """The 16 bytes of what `uuid_text` wrote; ValueError for anything else."""
    raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a UUID: {len(raw)} bytes, not 16")
    return raw


def remaining(stream: Any) -> int:
    """Bytes between the stream's position and its end."""
    here = stream.tell()
    end = stream.seek(0, io.SEEK_END)
    stream.seek(here)
    return int(end - here)


class UnsignedVarint(cs.Construct):  # type: ignore[misc]
    """Base-128, least significant group first; at most `limit` bytes and `bits` bits."""

    def __init__(self, limit: int = VARINT_BYTES_MAX, bits: int = 32) -> None:
        super().__init__()
        self.limit = limit
        self.bits = bits

    def _parse(self, stream: Any, context: Any, path: str) -> int:
        value = 0
        for index in range(self.limit):
            byte: int = cs.stream_read(stream, 1, path)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if value >> self.bits:
                    raise cs.IntegerError(f"varint does not fit {self.bits} bits", path=path)
                return value
        raise cs.IntegerError(f"varint is longer than {self.limit} bytes", path=path)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        value = int(obj)
        if value < 0 or value >> self.bits:
            raise cs.IntegerError(f"{value} does not fit {self.bits} unsigned bits", path=path)
        out = bytearray()
        while value > 0x7F:
            out.append(0x80 | value & 0x7F)
            value >>= 7
        out.append(value)
        cs.stream_write(stream, bytes(out), len(out), path)
        return obj


class SignedVarint(cs.Adapter):  # type: ignore[misc]
    """Zigzag on an unsigned varint, so that small negative numbers stay short."""

    def __init__(self, limit: int, bits: int) -> None:
        super().__init__(UnsignedVarint(limit, bits))
        self.bits = bits

    def _decode(self, obj: int, context: Any, path: str) -> int:
        return int((obj >> 1) ^ -(obj & 1))

    def _encode(self, obj: int, context: Any, path: str) -> int:
        if not -(1 << self.bits - 1) <= obj < 1 << self.bits - 1:
            raise cs.IntegerError(f"{obj} does not fit {self.bits} signed bits", path=path)
        return (obj << 1) ^ (obj >> self.bits - 1)


UVARINT: Final = UnsignedVarint()


class _Length(NamedTuple):
    """Encoding of the length before a value: its node, and the number added to it."""

    node: Any
    code: str  # as the struct module has it; the first byte if compact
    added: int  # compact lengths are written one higher, so that 0 can mean null
    compact: bool


_INT16_LENGTH = _Length(cs.Int16sb, "h", 0, False)
_INT32_LENGTH = _Length(cs.Int32sb, "i", 0, False)
_COMPACT_LENGTH = _Length(UVARINT, "B", 1, True)


class LengthPrefixed(cs.Construct):  # type: ignore[misc]
    """Base of everything that starts with its length or count; null is a length of -1."""

    what: str
    unit = 1  # least bytes of one counted thing

    def __init__(self, length: _Length, *, nullable: bool, length_max: int) -> None:
        super().__init__()
        self.length = length
        self.compact = length.compact
        self.nullable = nullable
        self.length_max = length_max

    def parse_length(self, stream: Any, context: Any, path: str) -> int:
        """The length, -1 for null; refused if the rest of the stream can't hold it."""
        length = int(self.length.node._parsereport(stream, context, path)) - self.length.added
        if length < 0:
            if length < -1:
                raise cs.RangeError(f"{self.what} length {length} is negative", path=path)
            if not self.nullable:
                raise cs.RangeError(f"{self.what} is null, which it may not be here", path=path)
            return -1
        if length > self.length_max:
            raise cs.RangeError(
                f"{self.what} length {length} is above {self.length_max}", path=path
            )
        left = remaining(stream)
        if length * self.unit > left:
            raise cs.StreamError(
                f"{self.what} length {length} needs {length * self.unit} bytes, {left} are left",
                path=path,
            )
        return length

    def build_length(self, length: int, stream: Any, context: Any, path: str) -> None:
        if length > self.length_max:
            raise cs.RangeError(
                f"{self.what} length {length} is above {self.length_max}", path=path
            )
        if length < 0 and not self.nullable:
            raise cs.RangeError(f"{self.what} is None, which it may not be here", path=path)
        self.length.node._build(length + self.length.added, stream, context, path)


class StringNode(LengthPrefixed):
    """UTF-8 text."""

    what = "string"

    def _parse(self, stream: Any, context: Any, path: str) -> str | None:
        length = self.parse_length(stream, context, path)
        if length < 0:
            return None
        try:
            return str(cs.stream_read(stream, length, path), "utf-8")
        except UnicodeDecodeError as error:
            raise cs.StringError(f"string is not UTF-8: {error.reason}", path=path) from error

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        if obj is None:
            self.build_length(-1, stream, context, path)
            return obj
        try:
            data = obj.encode("utf-8")
        except (AttributeError, UnicodeEncodeError) as error:
            raise cs.StringError(f"{obj!r} is not text: {error}", path=path) from error
        self.build_length(len(data), stream, context, path)
        cs.stream_write(stream, data, len(data), path)
        return obj


class BytesNode(LengthPrefixed):
    """A byte string; with `records`, a record set, which is not copied when decoded."""

    what = "bytes"

    def __init__(self, length: _Length, *, nullable: bool, records: bool) -> None:
        super().__init__(length, nullable=nullable, length_max=BYTES_LENGTH_MAX)
        self.records = records
        if records:
            self.what = "records"

    def _parse(self, stream: Any, context: Any, path: str) -> bytes | None:
        length = self.parse_length(stream, context, path)
        return None if length < 0 else bytes(cs.stream_read(stream, length, path))

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        if obj is None:
            self.build_length(-1, stream, context, path)
            return obj
        data = bytes(obj)
        self.build_length(len(data), stream, context, path)
        cs.stream_write(stream, data, len(data), path)
        return obj


class ArrayNode(LengthPrefixed):
    """A counted list of one kind of element."""

    what = "array"

    def __init__(self, length: _Length, element: Any, *, nullable: bool) -> None:
        super().__init__(length, nullable=nullable, length_max=BYTES_LENGTH_MAX)
        self.element = element
        self.unit = smallest(element)

    def _parse(self, stream: Any, context: Any, path: str) -> list[Any] | None:
        count = self.parse_length(stream, context, path)
        if count < 0:
            return None
        parse = self.element._parsereport
        return [parse(stream, context, f"{path}[{index}]") for index in range(count)]

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        self.build_length(-1 if obj is None else len(obj), stream, context, path)
        for index, element in enumerate(obj or ()):
            self.element._build(element, stream, context, f"{path}[{index}]")
        return obj


class NullableNode(cs.Subconstruct):  # type: ignore[misc]
    """A struct that may be null: an int8 of ``null``, or 1 before a struct that is there."""

    def __init__(self, subcon: Any, *, tagged: bool) -> None:
        super().__init__(subcon)
        self.null = 0 if tagged else -1

    def is_null(self, marker: int) -> bool:
        """Whether there is no struct after the int8."""
        return marker <= self.null

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        marker = cs.Int8sb._parse(stream, context, path)
        return None if self.is_null(marker) else self.subcon._parsereport(stream, context, path)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        cs.Int8sb._build(self.null if obj is None else 1, stream, context, path)
        return obj if obj is None else self.subcon._build(obj, stream, context, path)


class Tagged(NamedTuple):
    """One known tagged field of a struct."""

    tag: int
    name: str
    node: Any
    default: Any
    is_default: Callable[[Any], bool]  # such a value is left out when the struct is encoded


class TaggedFieldsNode(cs.Construct):  # type: ignore[misc]
    """The tagged fields at the end of a flexible struct.

    Parsed to a dict with the values of known fields under their names and the unknown ones, as
    bytes by tag, under ``unknown_tagged_fields`` (None if there are none); built from the like.
    """

    def __init__(self, known: tuple[Tagged, ...]) -> None:
        super().__init__()
        self.known = known
        self.by_tag: Mapping[int, Tagged] = {field.tag: field for field in known}

    def _parse(self, stream: Any, context: Any, path: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        unknown: dict[int, bytes] = {}
        for _ in range(self.parse_count(stream, context, path)):
            tag, size = self.parse_entry(stream, context, path)
            start = stream.tell()
            field = self.by_tag.get(tag)
            if field is None:
                unknown[tag] = bytes(cs.stream_read(stream, size, path))
                continue
            values[field.name] = field.node._parsereport(stream, context, f"{path} -> {field.name}")
            if stream.tell() - start != size:
                raise cs.RangeError(
                    f"tagged field {field.name} took {stream.tell() - start} bytes of its {size}",
                    path=path,
                )
        values["unknown_tagged_fields"] = unknown or None
        return values

    def parse_count(self, stream: Any, context: Any, path: str) -> int:
        """Return the number of tagged fields; raise if they can't fit the rest of the stream."""
        count = int(UVARINT._parse(stream, context, path))
        if count * 2 > remaining(stream):
            raise cs.StreamError(f"{count} tagged fields do not fit the bytes left", path=path)
        return count

    def parse_entry(self, stream: Any, context: Any, path: str) -> tuple[int, int]:
        """Tag and size of the next tagged field; the size is refused if it overruns the stream."""
        tag = int(UVARINT._parse(stream, context, path))
        size = int(UVARINT._parse(stream, context, path))
        if size > remaining(stream):
            raise cs.StreamError(f"tagged field {tag} of {size} bytes overruns", path=path)
        return tag, size

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        entries: dict[int, bytes] = dict(obj.get("unknown_tagged_fields") or {})
        for field in self.known:
            value = obj[field.name]
            if field.is_default(value):
                continue
            buffer = io.BytesIO()
            field.node._build(value, buffer, context, f"{path} -> {field.name}")
            entries[field.tag] = buffer.getvalue()
        UVARINT._build(len(entries), stream, context, path)
        for tag, data in sorted(entries.items()):
            UVARINT._build(tag, stream, context, path)
            UVARINT._build(len(data), stream, context, path)
            cs.stream_write(stream, data, len(data), path)
        return obj


class ObjectNode(cs.Adapter):  # type: ignore[misc]
    """A struct, parsed to an object of its class and built from one."""

    def __init__(self, cls: type[Any], fields: cs.Struct) -> None:
        super().__init__(fields)
        self.cls = cls

    def _decode(self, obj: Any, context: Any, path: str) -> Any:
        values = {name: value for name, value in obj.items() if not name.startswith("_")}
        values.update(values.pop("tagged_fields", ()))
        return self.cls(**values)

    def _encode(self, obj: Any, context: Any, path: str) -> Any:
        values = {name: getattr(obj, name) for name in self.cls.__slots__}
        values["unknown_tagged_fields"] = obj.unknown_tagged_fields
        values["tagged_fields"] = values
        return values


def smallest(node: Any) -> int:
    """The least number of bytes that a value of `node` can take."""
    if isinstance(node, cs.Renamed):
        return smallest(node.subcon)
    if isinstance(node, ObjectNode):
        return sum(smallest(member) for member in node.subcon.subcons)
    if isinstance(node, LengthPrefixed):
        return 1 if node.compact else int(node.length.node.sizeof())
    if isinstance(node, (NullableNode, TaggedFieldsNode, UnsignedVarint, SignedVarint)):
        return 1
    return int(node.sizeof())


class Type:
    """A primitive as schemas name it; `node` gives its construct form for one version."""

    __slots__ = ("_make", "default", "name", "nullable")

    def __init__(
        self, name: str, make: Callable[[bool, bool], Any], default: Any, nullable: bool = False
    ) -> None:
        self.name = name
        self._make = make
        self.default = default
        self.nullable = nullable  # in every version, independent of the field's versions

    def node(self, *, flexible: bool, nullable: bool) -> Any:
        """The construct node in a version that is or isn't flexible, null allowed or not."""
        return self._make(flexible, nullable or self.nullable)

    def __repr__(self) -> str:
        return self.name


def _fixed(name: str, node: Any, default: Any) -> Type:
    return Type(name, lambda flexible, nullable: node, default)


def _string(name: str, *, nullable: bool = False, plain: bool = False) -> Type:
    def make(flexible: bool, null: bool) -> Any:
        length = _COMPACT_LENGTH if flexible and not plain else _INT16_LENGTH
        return StringNode(length, nullable=null, length_max=STRING_LENGTH_MAX)

    return Type(name, make, "", nullable)


def _bytes(name: str, *, nullable: bool = False, records: bool = False) -> Type:
    def make(flexible: bool, null: bool) -> Any:
        length = _COMPACT_LENGTH if flexible else _INT32_LENGTH
        return BytesNode(length, nullable=null, records=records)

    return Type(name, make, None if records and nullable else b"", nullable)


def array_node(element: Any, *, flexible: bool, nullable: bool) -> ArrayNode:
    """An array of `element` in a version that is or isn't flexible."""
    length = _COMPACT_LENGTH if flexible else _INT32_LENGTH
    return ArrayNode(length, element, nullable=nullable)


BOOLEAN: Final = _fixed("bool", cs.Flag, False)
INT8: Final = _fixed("int8", cs.Int8sb, 0)
INT16: Final = _fixed("int16", cs.Int16sb, 0)
INT32: Final = _fixed("int32", cs.Int32sb, 0)
INT64: Final = _fixed("int64", cs.Int64sb, 0)
UINT16: Final = _fixed("uint16", cs.Int16ub, 0)
UINT32: Final = _fixed("uint32", cs.Int32ub, 0)
FLOAT64: Final = _fixed("float64", cs.Float64b, 0.0)
UUID: Final = _fixed("uuid", cs.Bytes(16), ZERO_UUID)
UNSIGNED_VARINT: Final = _fixed("uvarint", UVARINT, 0)
VARINT: Final = _fixed("varint", SignedVarint(VARINT_BYTES_MAX, 32), 0)
VARLONG: Final = _fixed("varlong", SignedVarint(VARLONG_BYTES_MAX, 64), 0)
STRING: Final = _string("string")
NULLABLE_STRING: Final = _string("nullable string", nullable=True)
# The client id in a request header keeps its int16 length even where the header is flexible, so
# that a broker can read it before it knows whether the header is.
PLAIN_NULLABLE_STRING: Final = _string("plain nullable string", nullable=True, plain=True)
BYTES: Final = _bytes("bytes")
NULLABLE_BYTES: Final = _bytes("nullable bytes", nullable=True)
RECORDS: Final = _bytes("records", records=True)
NULLABLE_RECORDS: Final = _bytes("nullable records", nullable=True, records=True)

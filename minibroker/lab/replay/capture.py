"""A capture, and its requests for another broker: the ids that a broker chooses are replaced.

Owns how lines of JSON become requests with their responses, in the broker's order; what was learned
from responses (producer ids and epochs, member ids and generations, fetch sessions, topic ids and
offsets); and the decoding and encoding around that. It must never know how a capture is recorded or
replayed, connections, time or names of fields. Invariants: every request of a capture has its
bytes, and those that the journal did not keep are only counted; a value that was not learned stays
as it is, and a request that this version of the schemas cannot read is sent as it was recorded;
leader epochs are removed, because a broker accepts requests without them. The broker itself returns
correlation ids. The lines are those of ``GET /v1/journal?frames=true``. In Kafka: the request log.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, NamedTuple

from minibroker_protocol import registry
from minibroker_protocol.checksum import crc32c
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.entities import generic_meaning, values
from minibroker_protocol.errors import DecodeError, EncodeError, UnsupportedVersion
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.records import iter_batches
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Array, Field, Message, Struct
from minibroker_protocol.types import NULLABLE_RECORDS, ZERO_UUID
from minibroker_protocol.wire import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
)

LINE_CHARS_MAX: Final = 1024 * 1024
"""A longer line is rejected: frames have at most 64 KiB."""
LINES_MAX: Final = 1_000_000
"""Lines of one capture."""

_WRONG_VALUES: Final = (ValueError, OverflowError, TypeError, KeyError, RecursionError)
REQUEST, RESPONSE, LOST = "request", "response", "lost"


class InvalidCapture(ValueError):
    """Lines that are no capture; the text names the line."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A request and, unless it has none or it was not kept, its response.

    Frames are without size. ``order`` and ``answered_order`` are positions in the journal.
    """

    order: int
    connection: str
    clock_ms: float
    header: RequestHeader
    frame: bytes
    answered_order: int | None = None
    answered_ms: float | None = None
    response: bytes | None = None

    @property
    def latency_ms(self) -> float:
        """Time until the response on the broker's clock; 0 without a response."""
        return 0.0 if self.answered_ms is None else max(self.answered_ms - self.clock_ms, 0.0)


class Capture(NamedTuple):
    """All requests in order, and the number of those without bytes by API; entries that the
    journal has lost are `lost`.
    """

    requests: tuple[Captured, ...]
    skipped: Mapping[str, int]


def read_capture(lines: Iterable[str]) -> Capture:
    """Read the lines of a capture. Raises ``InvalidCapture``."""
    found: dict[int, Captured] = {}
    waiting: dict[tuple[str, int], int] = {}
    skipped: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        if number > LINES_MAX:
            raise InvalidCapture(f"there are more than {LINES_MAX} lines")
        if not line.strip():
            continue
        try:
            entry = _decoded(line)
            if entry["kind"] not in {REQUEST, RESPONSE}:
                skipped.update(_lost(entry))
                continue
            if entry["correlation_id"] is None:  # A token of SASL, or no request at all.
                if entry["kind"] == REQUEST:
                    skipped["unknown"] += 1
                continue
            key = str(entry["connection"]), int(entry["correlation_id"])
            if entry["kind"] == RESPONSE:
                order = waiting.pop(key, None)
                if order is not None:
                    found[order] = _answered(found[order], entry)
            elif entry["frame"] is None:
                skipped[str(entry["api"])] += 1
            else:
                request = _read_request(entry)
                found[request.order] = request
                waiting[key] = request.order
        except (*_WRONG_VALUES, DecodeError) as error:
            raise InvalidCapture(f"line {number}: {type(error).__name__}: {error}") from None
        except UnsupportedVersion as error:
            raise InvalidCapture(f"line {number}: {error}") from None
    return Capture(tuple(found[order] for order in sorted(found)), dict(skipped))


def _decoded(line: str) -> Any:
    if len(line) > LINE_CHARS_MAX:
        raise ValueError(f"it has more than {LINE_CHARS_MAX} characters")
    return json.loads(line)


def _lost(entry: Mapping[str, Any]) -> dict[str, int]:
    return {LOST: int(entry["details"]["entries"])} if entry["kind"] == LOST else {}


def _read_request(entry: Mapping[str, Any]) -> Captured:
    frame = base64.b64decode(entry["frame"], validate=True)
    header, _ = decode_request_header(frame)
    order, clock_ms = int(entry["sequence"]), _finite(entry["clock_ms"])
    return Captured(order, str(entry["connection"]), clock_ms, header, frame)


def _answered(request: Captured, entry: Mapping[str, Any]) -> Captured:
    frame = entry["frame"]
    return replace(
        request,
        answered_order=int(entry["sequence"]),
        answered_ms=_finite(entry["clock_ms"]),
        response=None if frame is None else base64.b64decode(frame, validate=True),
    )


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("clock_ms is not a finite number")
    return number


IDS: Final = {
    Meaning.PRODUCER_ID: "producer",
    Meaning.MEMBER: "member",
    Meaning.GROUP_LEADER: "member",
    Meaning.SESSION: "session",
    Meaning.TOPIC_ID: "topic",
}
"""Kind of id by the meaning of its field."""

NO_EPOCH: Final = -1

_SAME: Final = (
    Meaning.TOPIC,
    Meaning.PARTITION,
    Meaning.GROUP,
    Meaning.COORDINATOR_KEY,
)
"""What elements of two responses have in common if they are about the same thing."""

_CRC: Final = slice(17, 21)
_CHECKED_FROM: Final = 21
_PRODUCER_ID: Final = slice(43, 51)
_PRODUCER_EPOCH: Final = slice(51, 53)


class _Place(NamedTuple):
    """Where a field is: in which group, topic and partition of the recorded message."""

    group: object = None
    topic: object = None
    partition: object = None


class SharedIds:
    """What is known about ids that are the same on all connections."""

    def __init__(self) -> None:
        self.ids: dict[tuple[object, ...], Any] = {}
        """New values by kind, place and recorded value."""
        self.topic_names: dict[bytes, str] = {}
        """Names by recorded topic id."""


class IdMapping:
    """What is known about the ids of one connection, and with ``shared`` about those of all."""

    def __init__(self, shared: SharedIds | None = None) -> None:
        shared = shared or SharedIds()
        self._ids = shared.ids
        self._names = shared.topic_names
        self._sessions: dict[tuple[object, ...], Any] = {}

    # What responses teach ---------------------------------------------------------------------

    def learn(self, request: Struct, recorded: Struct, live: Struct) -> None:
        """Learn from the response of the other broker to the same request."""
        self._learn(recorded, live, _Place(group=_value_of(request, Meaning.GROUP)))

    def _learn(self, recorded: Struct, live: Struct, place: _Place) -> None:
        if type(recorded) is not type(live):
            return
        place = self._place(recorded, place)
        for field in type(recorded).__fields__:
            old, new = getattr(recorded, field.name), getattr(live, field.name)
            if isinstance(field.kind, Array):
                for pair in _pairs(old or (), new or ()):
                    self._learn(*pair, place)
            elif isinstance(old, Struct) and isinstance(new, Struct):
                self._learn(old, new, place)
            else:
                self._learn_value(field, old, new, recorded, place)

    def _learn_value(
        self, field: Field, old: Any, new: Any, recorded: Struct, place: _Place
    ) -> None:
        means = field.means
        if not (_is_id(means, old, recorded) and _is_id(means, new, recorded)):
            return
        if means in IDS:
            self._table(IDS[means])[IDS[means], old] = new
        elif means is Meaning.PRODUCER_EPOCH:
            self._ids["epoch", _value_of(recorded, Meaning.PRODUCER_ID), old] = new
        elif means is Meaning.GENERATION:
            self._ids["generation", place.group, old] = new
        elif means is Meaning.BASE_OFFSET:
            self._ids["shift", *self._partition(place)] = new - old

    # What requests need -----------------------------------------------------------------------

    def apply(self, request: Struct) -> None:
        """Replace the recorded ids in a request."""
        self._apply(request, _Place())

    def _apply(self, struct: Struct, place: _Place) -> None:
        place = self._place(struct, place)
        producer = _value_of(struct, Meaning.PRODUCER_ID)
        for field in type(struct).__fields__:
            value = getattr(struct, field.name)
            if isinstance(value, Struct):
                self._apply(value, place)
            elif isinstance(value, list):
                for at, element in enumerate(value):
                    if isinstance(element, Struct):
                        self._apply(element, place)
                    else:
                        value[at] = self._value(field, element, producer, place)
            elif field.kind is NULLABLE_RECORDS and value:
                setattr(struct, field.name, self._records(value))
            else:
                setattr(struct, field.name, self._value(field, value, producer, place))

    def _value(self, field: Field, value: Any, producer: object, place: _Place) -> Any:
        means = field.means
        if means in IDS:
            return self._table(IDS[means]).get((IDS[means], value), value)
        if means is Meaning.PRODUCER_EPOCH:
            return self._ids.get(("epoch", producer, value), value)
        if means is Meaning.GENERATION:
            return self._ids.get(("generation", place.group, value), value)
        if means is Meaning.LEADER_EPOCH and field.default == NO_EPOCH:
            return NO_EPOCH
        if means is Meaning.OFFSET and value >= 0 and value != field.default:
            return max(value + self._ids.get(("shift", *self._partition(place)), 0), 0)
        return value

    def _records(self, data: Any) -> bytes:
        """Replace producer ids and epochs in batches, and correct their checksums."""
        changed = bytearray(data)
        for start, header in iter_batches(bytes(data)):
            new_id = self._ids.get(("producer", header.producer_id))
            if new_id is None:
                continue
            epoch_key = "epoch", header.producer_id, header.producer_epoch
            epoch = self._ids.get(epoch_key, header.producer_epoch)
            batch = memoryview(changed)[start : start + header.size]
            batch[_PRODUCER_ID] = new_id.to_bytes(8, "big", signed=True)
            batch[_PRODUCER_EPOCH] = epoch.to_bytes(2, "big", signed=True)
            batch[_CRC] = crc32c(batch[_CHECKED_FROM:]).to_bytes(4, "big")
        return bytes(changed)

    # Places -----------------------------------------------------------------------------------

    def _place(self, struct: Struct, around: _Place) -> _Place:
        group = _value_of(struct, Meaning.GROUP) or around.group
        topic: object = around.topic
        topic_id = _value_of(struct, Meaning.TOPIC_ID) or ZERO_UUID
        name = _value_of(struct, Meaning.TOPIC)
        if name:
            topic = name
            if topic_id != ZERO_UUID:
                self._names[bytes(topic_id)] = name
        elif topic_id != ZERO_UUID:
            topic = bytes(topic_id)
        partition = _value_of(struct, Meaning.PARTITION)
        return _Place(group, topic, around.partition if partition is None else partition)

    def _partition(self, place: _Place) -> tuple[object, object]:
        topic = place.topic
        return (
            self._names.get(topic, topic) if isinstance(topic, bytes) else topic
        ), place.partition

    def _table(self, kind: str) -> dict[tuple[object, ...], Any]:
        """Sessions belong to one connection, other ids to all."""
        return self._sessions if kind == "session" else self._ids


@cache
def _single_fields(cls: type[Struct]) -> Mapping[Meaning | None, str]:
    """The name of the first field with a single value of each meaning."""
    fields = [item for item in reversed(cls.__fields__) if not isinstance(item.kind, Array)]
    return {generic_meaning(item): item.name for item in fields}


def _value_of(struct: Struct, meaning: Meaning) -> Any:
    """What a struct itself has of a meaning; None if it has nothing of it."""
    name = _single_fields(type(struct)).get(meaning)
    return None if name is None else getattr(struct, name)


def _is_id(means: object, value: Any, struct: Struct) -> bool:
    """Whether a field has an id that can be paired with that of the other response.

    Lists of members may be in another order, and topic ids are paired only by the topic's name.
    """
    if means in (Meaning.MEMBER, Meaning.GROUP_LEADER):
        return isinstance(struct, Message) and bool(value)
    if means is Meaning.TOPIC_ID:
        return bool(_value_of(struct, Meaning.TOPIC)) and bool(value != ZERO_UUID)
    if means in (Meaning.SESSION, Meaning.GENERATION):
        return bool(value > 0)
    known = (Meaning.PRODUCER_ID, Meaning.PRODUCER_EPOCH, Meaning.BASE_OFFSET)
    return means in known and bool(value >= 0)


def _pairs(recorded: Any, live: Any) -> Iterator[tuple[Struct, Struct]]:
    """Elements that describe the same thing: by name or index, else by position."""
    if not all(isinstance(each, Struct) for each in (*recorded, *live)):
        return
    named = {_identity(each): each for each in live}
    for at, old in enumerate(recorded):
        identity = _identity(old)
        new = live[at] if identity is None and at < len(live) else named.get(identity)
        if new is not None:
            yield old, new


def _identity(struct: Struct) -> object:
    for meaning in _SAME:
        value = _value_of(struct, meaning)
        if value not in ("", None):
            return meaning, value
    return None


# Frames -------------------------------------------------------------------------------------------

TEACHING: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.METADATA,
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.CREATE_TOPICS,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    }
)
"""APIs whose responses teach ids, or change what requests of other connections meet."""


def mapped_request(captured: Captured, mapping: IdMapping) -> bytes:
    """Return the frame of a recorded request with the ids of the other broker."""
    request = _request(captured)
    if request is None:
        return captured.frame
    mapping.apply(request)
    if captured.header.api_key == ApiKey.API_VERSIONS and captured.header.api_version >= 5:
        fields: Any = request
        fields.cluster_id, fields.node_id = None, -1
    header = encode_request_header(captured.header)
    try:
        return header + encode(request, captured.header.api_version)
    except EncodeError:
        return captured.frame


def learn_response(captured: Captured, live: bytes, mapping: IdMapping) -> tuple[int, int]:
    """Learn from the response of the other broker; return the recorded and the new error code."""
    request = _request(captured)
    recorded = None if captured.response is None else _response(captured, captured.response)
    other = _response(captured, live)
    if request is None or recorded is None or other is None:
        return 0, 0
    mapping.learn(request, recorded, other)
    version = captured.header.api_version
    return first_error(recorded, version), first_error(other, version)


def first_error(response: Message, version: int) -> int:
    """Return the first error code in a response that is not 0."""
    return next(filter(None, values(response, version, {Meaning.ERROR})), 0)


def _request(captured: Captured) -> Message | None:
    key, version = captured.header.api_key, captured.header.api_version
    try:
        _, at = decode_request_header(captured.frame)
        return decode(registry.schema(key).request, version, captured.frame, at)
    except (DecodeError, UnsupportedVersion):
        return None


def _response(captured: Captured, frame: bytes) -> Message | None:
    key, version = captured.header.api_key, captured.header.api_version
    try:
        _, at = decode_response_header(frame, key, version)
        return decode(registry.schema(key).response, version, frame, at)
    except (DecodeError, UnsupportedVersion):
        return None

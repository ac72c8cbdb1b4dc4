"""Ids that a broker chooses: recorded ones in requests are replaced by those of another broker.

Owns which fields are such ids, and what was learned from responses: producer ids and epochs, member
ids and generations, fetch sessions, topic ids and offsets. It must never know connections or time.
Invariant: a value that was not learned stays as it is; leader epochs are removed, because a broker
accepts requests without them. The broker itself returns correlation ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from protocol.checksum import crc32c
from protocol.records import iter_batches
from protocol.schema import Array, Message, Struct
from protocol.types import ZERO_UUID

IDS: Final = {
    "producer_id": "producer",
    "member_id": "member",
    "leader": "member",
    "session_id": "session",
    "topic_id": "topic",
}
"""Kind of id by the name of its field."""

GENERATIONS: Final = frozenset({"generation_id", "generation_id_or_member_epoch"})
LEADER_EPOCHS: Final = frozenset(
    {"current_leader_epoch", "committed_leader_epoch", "last_fetched_epoch"}
)
OFFSETS: Final = frozenset({"fetch_offset", "committed_offset"})
NO_EPOCH: Final = -1

_TOPIC_NAMES: Final = ("name", "topic", "topic_name")
_INDEXES: Final = ("partition_index", "index", "partition")
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
        self._learn(recorded, live, _Place(group=getattr(request, "group_id", None)))

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
                self._learn_value(field.name, old, new, recorded, place)

    def _learn_value(self, name: str, old: Any, new: Any, recorded: Struct, place: _Place) -> None:
        if not (_is_id(name, old, recorded) and _is_id(name, new, recorded)):
            return
        if name in IDS:
            self._table(IDS[name])[IDS[name], old] = new
        elif name == "producer_epoch":
            self._ids["epoch", getattr(recorded, "producer_id", None), old] = new
        elif name in GENERATIONS:
            self._ids["generation", place.group, old] = new
        elif name == "base_offset":
            self._ids["shift", *self._partition(place)] = new - old

    # What requests need -----------------------------------------------------------------------

    def apply(self, request: Struct) -> None:
        """Replace the recorded ids in a request."""
        self._apply(request, _Place(group=getattr(request, "group_id", None)))

    def _apply(self, struct: Struct, place: _Place) -> None:
        place = self._place(struct, place)
        recorded_producer = getattr(struct, "producer_id", None)
        for field in type(struct).__fields__:
            value = getattr(struct, field.name)
            if isinstance(value, Struct):
                self._apply(value, place)
            elif isinstance(value, list) and isinstance(field.kind, Array):
                self._apply_list(field.name, value, place)
            elif field.name == "records" and value:
                setattr(struct, field.name, self._records(value))
            else:
                setattr(
                    struct, field.name, self._value(field.name, value, recorded_producer, place)
                )

    def _apply_list(self, name: str, values: list[Any], place: _Place) -> None:
        for at, value in enumerate(values):
            if isinstance(value, Struct):
                self._apply(value, place)
            elif name in {"topic_ids", "forgotten_topic_ids"}:
                values[at] = self._ids.get(("topic", value), value)

    def _value(self, name: str, value: Any, producer: object, place: _Place) -> Any:
        if name in IDS:
            return self._table(IDS[name]).get((IDS[name], value), value)
        if name == "producer_epoch":
            return self._ids.get(("epoch", producer, value), value)
        if name in GENERATIONS:
            return self._ids.get(("generation", place.group, value), value)
        if name in LEADER_EPOCHS:
            return NO_EPOCH
        if name in OFFSETS and value >= 0:
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

    def _place(self, struct: Struct, place: _Place) -> _Place:
        names = {field.name for field in type(struct).__fields__}
        group = getattr(struct, "group_id", None) or place.group
        topic, partition = place.topic, place.partition
        topic_id = getattr(struct, "topic_id", ZERO_UUID) or ZERO_UUID
        name = next((getattr(struct, each) for each in _TOPIC_NAMES if each in names), None)
        if isinstance(name, str) and name:
            topic = name
            if topic_id != ZERO_UUID:
                self._names[bytes(topic_id)] = name
        elif topic_id != ZERO_UUID:
            topic = bytes(topic_id)
        for each in _INDEXES:
            if each in names:
                partition = getattr(struct, each)
        return _Place(group, topic, partition)

    def _partition(self, place: _Place) -> tuple[object, object]:
        topic = place.topic
        return (
            self._names.get(topic, topic) if isinstance(topic, bytes) else topic
        ), place.partition

    def _table(self, kind: str) -> dict[tuple[object, ...], Any]:
        """Sessions belong to one connection, other ids to all."""
        return self._sessions if kind == "session" else self._ids


def _is_id(name: str, value: Any, struct: Struct) -> bool:
    """Whether a field has an id that can be paired with that of the other response.

    Lists of members may be in another order, and topic ids are paired only by the topic's name.
    """
    if name in {"member_id", "leader"}:
        return isinstance(struct, Message) and isinstance(value, str) and bool(value)
    if name == "topic_id":
        is_named = any(getattr(struct, each, None) for each in _TOPIC_NAMES)
        return is_named and bool(value != ZERO_UUID)
    if name == "session_id" or name in GENERATIONS:
        return bool(value > 0)
    return name in {"producer_id", "producer_epoch", "base_offset"} and bool(value >= 0)


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
    names = {field.name for field in type(struct).__fields__}
    for name in (*_TOPIC_NAMES, *_INDEXES, "group_id", "key"):
        if name in names and getattr(struct, name) not in ("", None):
            return name, getattr(struct, name)
    return None

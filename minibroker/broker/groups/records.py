"""Records of ``__consumer_offsets``, in Kafka's format.

Owns the keys of all records and the values of offsets and classic groups, and converts offsets; a
classic group is stored as its schema. It must never know files or log offsets. Keys and values
start with their version (int16); a value of None is a tombstone. Invariant: Kafka's
``OffsetsMessageFormatter`` and ``GroupMetadataMessageFormatter`` read the records written here, and
decoding an encoded entry returns an equal entry. The versions written are those of Kafka 4's
``GroupCoordinatorRecordHelpers``: group values 3, offset values 3, or 1 if a client set an expiry
time (that format has no leader epoch).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple, TypeVar

from minibroker.broker.groups.events import GroupRecord
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker_protocol.compiler import decoder, encode
from minibroker_protocol.compiler.single import versioned_encoder
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BYTES, INT32, INT64, NULLABLE_STRING, STRING

CLASSIC: Final = "classic"
"""Kafka's name of the type of the groups that ``GroupEntry`` stores."""

VERSION_BYTES: Final = 2
OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
OFFSET_VALUE_VERSION: Final = 3
EXPIRING_OFFSET_VALUE_VERSION: Final = 1
GROUP_VALUE_VERSION: Final = 3
NO_EXPIRY: Final = -1


class OffsetCommitKey(Message, versions="0-1"):
    """Key of a committed offset: group, topic and partition."""

    group: str = field(STRING)
    topic: str = field(STRING)
    partition: int = field(INT32)


class OffsetCommitValue(Message, versions="0-4", flexible="4+"):
    """Value of a committed offset."""

    offset: int = field(INT64)
    leader_epoch: int = field(INT32, versions="3+", default=-1)
    metadata: str = field(STRING)
    commit_timestamp: int = field(INT64)
    expire_timestamp: int = field(INT64, versions="1", default=NO_EXPIRY)


_OFFSET_KEY: Final = versioned_encoder(OffsetCommitKey, OFFSET_KEY_VERSION)
_OFFSET_VALUE: Final = versioned_encoder(OffsetCommitValue, OFFSET_VALUE_VERSION)
_EXPIRING_OFFSET_VALUE: Final = versioned_encoder(OffsetCommitValue, EXPIRING_OFFSET_VALUE_VERSION)


class GroupKey(Message, versions="2-23"):
    """Key of what exists once for a group; the version is the kind of the record."""

    group_id: str = field(STRING)


class NamedKey(Message, versions="5-22"):
    """Key of what exists once for a member, or for a regular expression, of a group."""

    group_id: str = field(STRING)
    name: str = field(STRING)


class MemberMetadata(Struct):
    """A member, with its subscription and assignment."""

    member_id: str = field(STRING)
    group_instance_id: str | None = field(NULLABLE_STRING, versions="3+", default=None)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    rebalance_timeout: int = field(INT32, versions="1+", default=-1)
    session_timeout: int = field(INT32)
    subscription: bytes = field(BYTES)
    assignment: bytes = field(BYTES)


class GroupMetadataValue(Message, versions="0-4", flexible="4+"):
    """Value of a group's metadata: one generation."""

    protocol_type: str = field(STRING)
    generation: int = field(INT32)
    protocol: str | None = field(NULLABLE_STRING)
    leader: str | None = field(NULLABLE_STRING)
    current_state_timestamp: int = field(INT64, versions="2+", default=-1)
    members: list[MemberMetadata] = field(array(MemberMetadata))


class OffsetEntry(NamedTuple):
    """A committed offset; ``committed`` is None if it was deleted."""

    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset | None

    @property
    def key(self) -> tuple[str, str, int]:
        return self.group_id, self.topic, self.partition

    def encode_key(self) -> bytes:
        return _OFFSET_KEY(self.group_id, self.topic, self.partition)

    def encode_value(self) -> bytes | None:
        return _offset_value(self.committed)


class GroupEntry(NamedTuple):
    """The generation of a classic group; ``metadata`` is None if the group was deleted."""

    group_id: str
    metadata: GroupMetadataValue | None

    @property
    def group_type(self) -> str:
        return CLASSIC

    @property
    def is_tombstone(self) -> bool:
        return self.metadata is None

    def encode_key(self) -> bytes:
        return encode_key(GROUP_KEY_VERSION, self.group_id)

    def encode_value(self) -> bytes | None:
        return None if self.metadata is None else versioned(self.metadata, GROUP_VALUE_VERSION)

    def tombstone(self) -> GroupEntry:
        return GroupEntry(self.group_id, None)


Entry = OffsetEntry | GroupRecord


@cache
def _key_encoder(cls: type[Message], version: int) -> Callable[..., bytes]:
    return versioned_encoder(cls, version)


def encode_key(kind: int, group_id: str, name: str | None = None) -> bytes:
    """Encode the key of a kind of record of a group, or of something that it has by name."""
    if name is None:
        return _key_encoder(GroupKey, kind)(group_id)
    return _key_encoder(NamedKey, kind)(group_id, name)


def decode_key(key: bytes, *, named: bool) -> tuple[str, str | None]:
    """Decode the group id, and the name if the kind of the record has one. Raises as
    ``decode_entry``.
    """
    if named:
        found = read_versioned(NamedKey, key)
        return found.group_id, found.name
    return read_versioned(GroupKey, key).group_id, None


def encode_entry(entry: Entry) -> tuple[bytes, bytes | None]:
    """Encode an entry as the key and value of a record."""
    return entry.encode_key(), entry.encode_value()


def decode_entry(key: bytes, value: bytes | None) -> Entry | None:
    """Decode a record by the version of its key; return None if the version is unknown.

    Raises ``DecodeError`` or ``UnsupportedVersion`` if the record can't be decoded.
    """
    decode = RECORD_DECODERS.get(int.from_bytes(key[:VERSION_BYTES], "big", signed=True))
    return None if decode is None else decode(key, value)


def _decode_offset(key: bytes, value: bytes | None) -> OffsetEntry:
    offset_key = read_versioned(OffsetCommitKey, key)
    committed = None if value is None else _committed(read_versioned(OffsetCommitValue, value))
    return OffsetEntry(offset_key.group, offset_key.topic, offset_key.partition, committed)


def _decode_classic_group(key: bytes, value: bytes | None) -> GroupEntry:
    metadata = None if value is None else read_versioned(GroupMetadataValue, value)
    for member in () if metadata is None else metadata.members:
        if member.rebalance_timeout < 0:  # Version 0 has one timeout for both.
            member.rebalance_timeout = member.session_timeout
    return GroupEntry(read_versioned(GroupKey, key).group_id, metadata)


RECORD_DECODERS: Final[dict[int, Callable[[bytes, bytes | None], Entry]]] = {
    0: _decode_offset,
    OFFSET_KEY_VERSION: _decode_offset,
    GROUP_KEY_VERSION: _decode_classic_group,
}
"""Decoders of records, by key version. The decoders raise the errors of ``decode_entry``."""


MessageT = TypeVar("MessageT", bound=Message)


def versioned(message: Message, version: int) -> bytes:
    """Encode a key or value of a record, with its version in front."""
    return version.to_bytes(VERSION_BYTES, "big") + encode(message, version)


def read_versioned(cls: type[MessageT], data: bytes) -> MessageT:
    """Decode a key or value of a record by the version in front of it.

    Raises ``DecodeError`` or ``UnsupportedVersion``.
    """
    if len(data) < VERSION_BYTES:
        raise DecodeError(f"{cls.__name__} of {len(data)} bytes has no version", 0)
    version = int.from_bytes(data[:VERSION_BYTES], "big", signed=True)
    return decoder(cls, version)(data, VERSION_BYTES)[0]


def _offset_value(committed: CommittedOffset | None) -> bytes | None:
    if committed is None:
        return None
    encode_value = _OFFSET_VALUE if committed.expire_ms is None else _EXPIRING_OFFSET_VALUE
    return encode_value(*committed)


def _committed(value: OffsetCommitValue) -> CommittedOffset:
    return CommittedOffset(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_ms=value.commit_timestamp,
        expire_ms=None if value.expire_timestamp == NO_EXPIRY else value.expire_timestamp,
    )

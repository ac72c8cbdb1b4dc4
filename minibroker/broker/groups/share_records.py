"""Records of share groups in ``__consumer_offsets``, in Kafka's format.

Owns the values of key versions 10 to 15, and the one entry type for all of them. It must never
know what a record means to a group. Keys and values start with their version (int16), which for a
key is the kind of the record; all values are of version 0. Invariant: decoding an encoded entry
returns an equal entry. Kafka's ``CoordinatorRecordType`` and ``GroupCoordinatorRecordHelpers``.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from minibroker.broker.groups.records import (
    RECORD_DECODERS,
    VERSION_BYTES,
    decode_key,
    encode_key,
    read_versioned,
    versioned,
)
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT8, INT32, INT64, NULLABLE_STRING, STRING, UUID, Uuid

SHARE: Final = "share"
"""Kafka's name of the type of the groups that these records store."""


class ShareMemberMetadata(Message, versions="0", flexible="0+"):
    """A member and its subscription."""

    rack_id: str | None = field(NULLABLE_STRING)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: list[str] = field(array(STRING))


class ShareGroupMetadata(Message, versions="0", flexible="0+"):
    """The group epoch, and the hash of the subscribed topics in it."""

    epoch: int = field(INT32)
    metadata_hash: int = field(INT64)


class ShareTargetMetadata(Message, versions="0", flexible="0+"):
    """The assignment epoch, and when the target was computed (epoch milliseconds)."""

    assignment_epoch: int = field(INT32)
    assignment_timestamp: int = field(INT64, tagged="0+", tag=0)


class ShareTopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: Uuid = field(UUID)
    partitions: list[int] = field(array(INT32))


class ShareTargetMember(Message, versions="0", flexible="0+"):
    """The target of one member."""

    topic_partitions: list[ShareTopicPartitions] = field(array(ShareTopicPartitions))


class ShareCurrentAssignment(Message, versions="0", flexible="0+"):
    """The epoch of one member, and what it has."""

    member_epoch: int = field(INT32)
    previous_member_epoch: int = field(INT32)
    state: int = field(INT8)
    assigned_partitions: list[ShareTopicPartitions] = field(array(ShareTopicPartitions))


class SharedTopicPartitions(Struct):
    """Partitions of one topic whose state the share coordinator keeps."""

    topic_id: Uuid = field(UUID)
    topic_name: str = field(STRING)
    partitions: list[int] = field(array(INT32))


class SharedTopic(Struct):
    """A topic whose state is being deleted."""

    topic_id: Uuid = field(UUID)
    topic_name: str = field(STRING)


class SharePartitionsMetadata(Message, versions="0", flexible="0+"):
    """The partitions of a group whose state is being created, exists or is being deleted."""

    initializing_topics: list[SharedTopicPartitions] = field(array(SharedTopicPartitions))
    initialized_topics: list[SharedTopicPartitions] = field(array(SharedTopicPartitions))
    deleting_topics: list[SharedTopic] = field(array(SharedTopic))


class ShareRecordKind(Enum):
    """What a record is about: the version of its key."""

    MEMBER = 10
    EPOCH = 11
    TARGET_EPOCH = 12
    TARGET = 13
    CURRENT = 14
    PARTITIONS = 15


_VALUES: Final[dict[ShareRecordKind, type[Message]]] = {
    ShareRecordKind.MEMBER: ShareMemberMetadata,
    ShareRecordKind.EPOCH: ShareGroupMetadata,
    ShareRecordKind.TARGET_EPOCH: ShareTargetMetadata,
    ShareRecordKind.TARGET: ShareTargetMember,
    ShareRecordKind.CURRENT: ShareCurrentAssignment,
    ShareRecordKind.PARTITIONS: SharePartitionsMetadata,
}
_NAMED_KINDS: Final = frozenset(
    {ShareRecordKind.MEMBER, ShareRecordKind.TARGET, ShareRecordKind.CURRENT}
)


class ShareGroupRecord(NamedTuple):
    """One record; ``name`` is the member id, if the key has one. A tombstone has no value."""

    kind: ShareRecordKind
    group_id: str
    name: str | None = None
    value: Message | None = None

    @property
    def group_type(self) -> str:
        return SHARE

    @property
    def is_tombstone(self) -> bool:
        return self.value is None

    def encode_key(self) -> bytes:
        return encode_key(self.kind.value, self.group_id, self.name)

    def encode_value(self) -> bytes | None:
        return None if self.value is None else versioned(self.value, 0)

    def tombstone(self) -> ShareGroupRecord:
        return self._replace(value=None)


def _decode(key: bytes, value: bytes | None) -> ShareGroupRecord:
    kind = ShareRecordKind(int.from_bytes(key[:VERSION_BYTES], "big"))
    group_id, name = decode_key(key, named=kind in _NAMED_KINDS)
    if value is None:
        return ShareGroupRecord(kind, group_id, name)
    return ShareGroupRecord(kind, group_id, name, read_versioned(_VALUES[kind], value))


RECORD_DECODERS.update({kind.value: _decode for kind in ShareRecordKind})

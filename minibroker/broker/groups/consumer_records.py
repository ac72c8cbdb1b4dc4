"""Records of consumer groups in ``__consumer_offsets``, in Kafka's format.

Owns the values of key versions 3 to 8 and 16, and the one entry type for all of them. It must
never know what a record means to a group. Keys and values start with their version (int16), which
for a key is the kind of the record; all values are of version 0. Kafka has replaced the partition
metadata of version 4 by a hash in version 3 (KIP-1101), so only its tombstones are written.
Invariant: decoding an encoded entry returns an equal entry. Kafka's counterparts are
``CoordinatorRecordType`` and ``GroupCoordinatorRecordHelpers``.
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
from minibroker_protocol.types import (
    BYTES,
    INT8,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UUID,
    Uuid,
)

CONSUMER: Final = "consumer"
"""Kafka's name of the type of the groups that these records store."""


class ConsumerGroupMetadata(Message, versions="0", flexible="0+"):
    """The group epoch, and the hash of the subscribed topics in it."""

    epoch: int = field(INT32)
    metadata_hash: int = field(INT64, tagged="0+", tag=0)


class ClassicProtocol(Struct):
    """A protocol of a member that uses classic requests, with its subscription."""

    name: str = field(STRING)
    metadata: bytes = field(BYTES)


class ClassicMemberMetadata(Struct):
    """What the record of a member has if it uses classic requests."""

    session_timeout_ms: int = field(INT32)
    supported_protocols: list[ClassicProtocol] = field(array(ClassicProtocol))


class ConsumerMemberMetadata(Message, versions="0", flexible="0+"):
    """A member and its subscription."""

    instance_id: str | None = field(NULLABLE_STRING)
    rack_id: str | None = field(NULLABLE_STRING)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: list[str] = field(array(STRING))
    subscribed_topic_regex: str | None = field(NULLABLE_STRING)
    rebalance_timeout_ms: int = field(INT32, default=-1)
    server_assignor: str | None = field(NULLABLE_STRING)
    classic_member_metadata: ClassicMemberMetadata | None = field(
        ClassicMemberMetadata, nullable="0+", tagged="0+", tag=0
    )
    """None for members that use the requests of consumer groups. Kafka takes a record without the
    field for that of a classic member without protocols.
    """


class TargetAssignmentMetadata(Message, versions="0", flexible="0+"):
    """The assignment epoch, and when the target was computed (epoch milliseconds)."""

    assignment_epoch: int = field(INT32)
    assignment_timestamp: int = field(INT64, tagged="0+", tag=0)


class TargetTopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: Uuid = field(UUID)
    partitions: list[int] = field(array(INT32))


class TargetAssignmentMember(Message, versions="0", flexible="0+"):
    """The target of one member."""

    topic_partitions: list[TargetTopicPartitions] = field(array(TargetTopicPartitions))


class CurrentTopicPartitions(Struct):
    """Partitions of one topic, each with the epoch since which the member has it."""

    topic_id: Uuid = field(UUID)
    partitions: list[int] = field(array(INT32))
    assignment_epochs: list[int] | None = field(
        array(INT32), nullable="0+", tagged="0+", tag=0, default=None
    )


class CurrentMemberAssignment(Message, versions="0", flexible="0+"):
    """The epoch of one member, what it has, and what it has yet to revoke."""

    member_epoch: int = field(INT32)
    previous_member_epoch: int = field(INT32)
    state: int = field(INT8)
    assigned_partitions: list[CurrentTopicPartitions] = field(array(CurrentTopicPartitions))
    partitions_pending_revocation: list[CurrentTopicPartitions] = field(
        array(CurrentTopicPartitions)
    )


class RegularExpression(Message, versions="0", flexible="0+"):
    """The topics that a regular expression matches, and when and in which image they were found."""

    topics: list[str] = field(array(STRING))
    version: int = field(INT64)
    timestamp: int = field(INT64)


class RecordKind(Enum):
    """What a record is about: the version of its key."""

    EPOCH = 3
    PARTITION_METADATA = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    REGEX = 16


_VALUES: Final[dict[RecordKind, type[Message]]] = {
    RecordKind.EPOCH: ConsumerGroupMetadata,
    RecordKind.MEMBER: ConsumerMemberMetadata,
    RecordKind.TARGET_EPOCH: TargetAssignmentMetadata,
    RecordKind.TARGET: TargetAssignmentMember,
    RecordKind.CURRENT: CurrentMemberAssignment,
    RecordKind.REGEX: RegularExpression,
}
_NAMED_KINDS: Final = frozenset(
    {RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT, RecordKind.REGEX}
)


class ConsumerGroupRecord(NamedTuple):
    """One record; ``name`` is the member id or regular expression, if the key has one.

    A tombstone has no value.
    """

    kind: RecordKind
    group_id: str
    name: str | None = None
    value: Message | None = None

    @property
    def group_type(self) -> str:
        return CONSUMER

    @property
    def is_tombstone(self) -> bool:
        return self.value is None

    def encode_key(self) -> bytes:
        return encode_key(self.kind.value, self.group_id, self.name)

    def encode_value(self) -> bytes | None:
        return None if self.value is None else versioned(self.value, 0)

    def tombstone(self) -> ConsumerGroupRecord:
        return self._replace(value=None)


def _decode(key: bytes, value: bytes | None) -> ConsumerGroupRecord:
    kind = RecordKind(int.from_bytes(key[:VERSION_BYTES], "big"))
    group_id, name = decode_key(key, named=kind in _NAMED_KINDS)
    value_class = _VALUES.get(kind)
    if value is None or value_class is None:
        return ConsumerGroupRecord(kind, group_id, name)
    return ConsumerGroupRecord(kind, group_id, name, read_versioned(value_class, value))


RECORD_DECODERS.update({kind.value: _decode for kind in RecordKind})

"""Records of streams groups in ``__consumer_offsets``, in Kafka's format.

Owns the values of key versions 17 and 19 to 23, and the one entry type for all of them. It must
never know what a record means to a group. Keys and values start with their version (int16), which
for a key is the kind of the record; all values are of version 0. Invariant: decoding an encoded
entry returns an equal entry. Kafka's ``CoordinatorRecordType`` and
``StreamsCoordinatorRecordHelpers`` (4.4).
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
    INT8,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UINT16,
)

STREAMS: Final = "streams"
"""Kafka's name of the type of the groups that these records store."""

NO_TOPOLOGY_EPOCH: Final = -1


class LastAssignmentConfig(Struct):
    """A config that the target follows from, as text."""

    key: str = field(STRING)
    value: str = field(STRING)


class StreamsGroupMetadata(Message, versions="0", flexible="0+"):
    """The group epoch, and in it the hash of the topics and the topology that has all of them."""

    epoch: int = field(INT32)
    metadata_hash: int = field(INT64)
    validated_topology_epoch: int = field(INT32, tagged="0+", tag=0, default=NO_TOPOLOGY_EPOCH)
    last_assignment_configs: list[LastAssignmentConfig] | None = field(
        array(LastAssignmentConfig), nullable="0+", tagged="0+", tag=1, default=None
    )
    stored_description_topology_epoch: int = field(
        INT32, tagged="0+", tag=2, default=NO_TOPOLOGY_EPOCH
    )
    failed_description_topology_epoch: int = field(
        INT32, tagged="0+", tag=3, default=NO_TOPOLOGY_EPOCH
    )


class StreamsEndpoint(Struct):
    """Where an instance answers queries of its state stores."""

    host: str = field(STRING)
    port: int = field(UINT16)


class StreamsClientTag(Struct):
    """A tag of an instance, such as its zone."""

    key: str = field(STRING)
    value: str = field(STRING)


class StreamsMemberMetadata(Message, versions="0", flexible="0+"):
    """A member, and the process that it is a thread of."""

    instance_id: str | None = field(NULLABLE_STRING)
    rack_id: str | None = field(NULLABLE_STRING)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    rebalance_timeout_ms: int = field(INT32, default=-1)
    topology_epoch: int = field(INT32)
    process_id: str = field(STRING)
    user_endpoint: StreamsEndpoint | None = field(StreamsEndpoint, nullable="0+", default=None)
    client_tags: list[StreamsClientTag] = field(array(StreamsClientTag))


class StreamsTargetMetadata(Message, versions="0", flexible="0+"):
    """The assignment epoch, and when the target was computed (epoch milliseconds)."""

    assignment_epoch: int = field(INT32)
    assignment_timestamp: int = field(INT64, tagged="0+", tag=0)


class StreamsTargetTasks(Struct):
    """Tasks of one subtopology in a target."""

    subtopology_id: str = field(STRING)
    partitions: list[int] = field(array(INT32))


class StreamsTargetMember(Message, versions="0", flexible="0+"):
    """The target of one member."""

    active_tasks: list[StreamsTargetTasks] = field(array(StreamsTargetTasks))
    standby_tasks: list[StreamsTargetTasks] = field(array(StreamsTargetTasks))
    warmup_tasks: list[StreamsTargetTasks] = field(array(StreamsTargetTasks))


class StreamsCurrentTasks(Struct):
    """Tasks of one subtopology that a member has; active ones with the epoch since when."""

    subtopology_id: str = field(STRING)
    partitions: list[int] = field(array(INT32))
    assignment_epochs: list[int] | None = field(
        array(INT32), nullable="0+", tagged="0+", tag=0, default=None
    )


class StreamsCurrentAssignment(Message, versions="0", flexible="0+"):
    """The epoch of one member, and what it has."""

    member_epoch: int = field(INT32)
    previous_member_epoch: int = field(INT32)
    state: int = field(INT8)
    active_tasks: list[StreamsCurrentTasks] = field(array(StreamsCurrentTasks))
    standby_tasks: list[StreamsCurrentTasks] = field(array(StreamsCurrentTasks))
    warmup_tasks: list[StreamsCurrentTasks] = field(array(StreamsCurrentTasks))
    active_tasks_pending_revocation: list[StreamsCurrentTasks] = field(array(StreamsCurrentTasks))
    standby_tasks_pending_revocation: list[StreamsCurrentTasks] = field(array(StreamsCurrentTasks))
    warmup_tasks_pending_revocation: list[StreamsCurrentTasks] = field(array(StreamsCurrentTasks))


class StreamsTopicConfig(Struct):
    """A config of an internal topic."""

    key: str = field(STRING)
    value: str = field(STRING)


class StreamsTopicInfo(Struct):
    """An internal topic; 0 partitions or replicas are not specified."""

    name: str = field(STRING)
    partitions: int = field(INT32)
    replication_factor: int = field(INT16)
    topic_configs: list[StreamsTopicConfig] = field(array(StreamsTopicConfig))


class StreamsCopartitionGroup(Struct):
    """Positions of source topics that must have equally many partitions."""

    source_topics: list[int] = field(array(INT16))
    source_topic_regex: list[int] = field(array(INT16))
    repartition_source_topics: list[int] = field(array(INT16))


class StreamsSubtopology(Struct):
    """Processors that are connected without a topic between them."""

    subtopology_id: str = field(STRING)
    source_topics: list[str] = field(array(STRING))
    source_topic_regex: list[str] = field(array(STRING))
    state_changelog_topics: list[StreamsTopicInfo] = field(array(StreamsTopicInfo))
    repartition_sink_topics: list[str] = field(array(STRING))
    repartition_source_topics: list[StreamsTopicInfo] = field(array(StreamsTopicInfo))
    copartition_groups: list[StreamsCopartitionGroup] = field(array(StreamsCopartitionGroup))


class StreamsGroupTopology(Message, versions="0", flexible="0+"):
    """The topology of the application."""

    epoch: int = field(INT32)
    subtopologies: list[StreamsSubtopology] = field(array(StreamsSubtopology))


class StreamsRecordKind(Enum):
    """What a record is about: the version of its key."""

    EPOCH = 17
    MEMBER = 19
    TARGET_EPOCH = 20
    TARGET = 21
    CURRENT = 22
    TOPOLOGY = 23


_VALUES: Final[dict[StreamsRecordKind, type[Message]]] = {
    StreamsRecordKind.EPOCH: StreamsGroupMetadata,
    StreamsRecordKind.MEMBER: StreamsMemberMetadata,
    StreamsRecordKind.TARGET_EPOCH: StreamsTargetMetadata,
    StreamsRecordKind.TARGET: StreamsTargetMember,
    StreamsRecordKind.CURRENT: StreamsCurrentAssignment,
    StreamsRecordKind.TOPOLOGY: StreamsGroupTopology,
}
_NAMED_KINDS: Final = frozenset(
    {StreamsRecordKind.MEMBER, StreamsRecordKind.TARGET, StreamsRecordKind.CURRENT}
)


class StreamsGroupRecord(NamedTuple):
    """One record; ``name`` is the member id, if the key has one. A tombstone has no value."""

    kind: StreamsRecordKind
    group_id: str
    name: str | None = None
    value: Message | None = None

    @property
    def group_type(self) -> str:
        return STREAMS

    @property
    def is_tombstone(self) -> bool:
        return self.value is None

    def encode_key(self) -> bytes:
        return encode_key(self.kind.value, self.group_id, self.name)

    def encode_value(self) -> bytes | None:
        return None if self.value is None else versioned(self.value, 0)

    def tombstone(self) -> StreamsGroupRecord:
        return self._replace(value=None)


def _decode(key: bytes, value: bytes | None) -> StreamsGroupRecord:
    kind = StreamsRecordKind(int.from_bytes(key[:VERSION_BYTES], "big"))
    group_id, name = decode_key(key, named=kind in _NAMED_KINDS)
    if value is None:
        return StreamsGroupRecord(kind, group_id, name)
    return StreamsGroupRecord(kind, group_id, name, read_versioned(_VALUES[kind], value))


RECORD_DECODERS.update({kind.value: _decode for kind in StreamsRecordKind})

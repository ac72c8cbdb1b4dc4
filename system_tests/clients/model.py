"""Interface of Kafka clients for the scenarios, in any language.

Owns the vocabulary (records, errors, groups, members) and the two interfaces that each client's
adapter implements; it knows no client and no broker. Invariant: an adapter changes nothing, so that
a scenario sees what the client saw; errors are Kafka's own codes. What a client cannot do is a flag
here and never discovered by a failing test.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from system_tests.harness.waiting import wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TopicPartition = tuple[str, int]
# Above anything a scenario sends: the broker's limit is to be met, not the client's.
CLIENT_MAX_BYTES = 16 * 1024 * 1024
# Kafka's least; it matters to scenarios in which a member falls silent.
SESSION_MS = 6000
HEARTBEAT_MS = 300


class Code(IntEnum):
    """The error codes that the scenarios expect, by Kafka's names."""

    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    MESSAGE_TOO_LARGE = 10
    INVALID_TOPIC_EXCEPTION = 17
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_CONFIG = 40
    GROUP_ID_NOT_FOUND = 69
    FENCED_INSTANCE_ID = 82


class Refused(Exception):
    """The broker answered with an error; `code` is Kafka's number for it."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(code, text)
        self.code = code


class Record(NamedTuple):
    """A record as it is sent. A timestamp of None leaves the choice to the client."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


class Stored(NamedTuple):
    """A record as it was read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def record(self) -> Record:
        return Record(self.key, self.value, self.headers, self.timestamp_ms)


class Cluster(NamedTuple):
    cluster_id: str | None
    controller_id: int
    brokers: tuple[tuple[int, str, int], ...]


class GroupMember(NamedTuple):
    client_id: str
    instance_id: str | None
    partitions: frozenset[TopicPartition]


class Group(NamedTuple):
    """A group as described; `state` is Kafka's word without spaces, in lower case."""

    state: str
    members: tuple[GroupMember, ...]


class Producing(NamedTuple):
    """Settings of a producer."""

    codec: str
    acks: str
    idempotent: bool


class Joining(NamedTuple):
    """Settings of a group's member."""

    assignor: str
    instance_id: str | None
    start: str
    max_wait_ms: int


class Member(ABC):
    """A consumer in a group. It commits what it has returned whenever partitions are revoked.

    `assignments` counts the assignments that the client got.
    """

    assignments: int = 0

    @abstractmethod
    def poll(self, timeout_s: float = 0.1) -> list[Stored]: ...

    @abstractmethod
    def assignment(self) -> frozenset[TopicPartition]: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def committed(self, topic: str, partition: int) -> int | None: ...

    @abstractmethod
    def close(self) -> None:
        """Close, which leaves the group unless the member is a static one."""


class Client(ABC):
    """One client library. Every call answers or raises `Refused` or the client's own error."""

    name: str
    has_cooperative: bool = True
    sends_zero_partitions: bool = True
    # Whether heartbeats and commits contain the static member's name, so that a duplicate is
    # fenced.
    notices_fencing: bool = True
    # Whether an error in the answer to DescribeConfigs reaches the caller.
    reports_config_errors: bool = True

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.client_id = f"{self.name}-{os.getpid()}"

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replicas: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        self._create(name, partitions, replicas, dict(configs or {}))

    @abstractmethod
    def _create(
        self, name: str, partitions: int, replicas: int, configs: dict[str, str]
    ) -> None: ...

    @abstractmethod
    def delete_topic(self, name: str) -> None: ...

    @abstractmethod
    def topics(self) -> set[str]: ...

    @abstractmethod
    def leaders(self, topic: str) -> dict[int, int]:
        """Return the leader of each partition; an unknown topic is `Refused`."""

    def topic_configs(self, topic: str) -> dict[str, str | None]:
        return self._configs("topic", topic)

    def broker_configs(self, broker_id: int) -> dict[str, str | None]:
        return self._configs("broker", str(broker_id))

    @abstractmethod
    def _configs(self, kind: str, name: str) -> dict[str, str | None]: ...

    @abstractmethod
    def cluster(self) -> Cluster: ...

    @abstractmethod
    def groups(self) -> set[str]: ...

    @abstractmethod
    def describe_group(self, group: str) -> Group: ...

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        """Send, wait for every acknowledgement and return the offsets (any, with acks 0)."""
        return self._produce(topic, partition, records, Producing(codec, acks, idempotent))

    @abstractmethod
    def _produce(
        self, topic: str, partition: int, records: Sequence[Record], how: Producing
    ) -> list[int]: ...

    @abstractmethod
    def read(self, topic: str, partition: int, offset: int, count: int) -> list[Stored]:
        """Read at least `count` records from `offset` on, or raise `TimedOut`."""

    @abstractmethod
    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the beginning offset and the end offset."""

    @abstractmethod
    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Return the first offset whose record is no older, or None if there is none."""

    def join(
        self,
        group: str,
        topic: str,
        *,
        assignor: str = "range",
        instance_id: str | None = None,
        start: str = "earliest",
        max_wait_ms: int = 500,
    ) -> Member:
        """Open a consumer of `topic` in `group`; assignor `range` or `cooperative-sticky`.

        `max_wait_ms` is how long the broker may hold a fetch that has nothing to give.
        """
        return self._join(group, topic, Joining(assignor, instance_id, start, max_wait_ms))

    @abstractmethod
    def _join(self, group: str, topic: str, how: Joining) -> Member: ...

    @abstractmethod
    def close(self) -> None: ...


# What kafka-python and aiokafka name alike.


def stored_records(polled: Mapping[Any, Sequence[Any]]) -> list[Stored]:
    """Return the records of a poll, which has them by partition."""
    return [
        Stored(
            each.topic,
            each.partition,
            each.offset,
            each.timestamp,
            each.key,
            each.value,
            tuple(each.headers),
        )
        for batch in polled.values()
        for each in batch
    ]


def producer_options(how: Producing) -> dict[str, Any]:
    return {
        "compression_type": None if how.codec == "none" else how.codec,
        "acks": how.acks if how.acks == "all" else int(how.acks),
        "enable_idempotence": how.idempotent,
        "max_request_size": CLIENT_MAX_BYTES,
        "linger_ms": 5,
    }


def consumer_options(group: str, how: Joining) -> dict[str, Any]:
    return {
        "group_id": group,
        "group_instance_id": how.instance_id,
        "auto_offset_reset": how.start,
        "enable_auto_commit": False,
        "fetch_max_wait_ms": how.max_wait_ms,
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": HEARTBEAT_MS,
    }


def drain(member: Member, count: int) -> list[Stored]:
    """Poll until `count` records have come."""
    seen: list[Stored] = []

    def enough() -> bool:
        seen.extend(member.poll())
        return len(seen) >= count

    wait_until(enough, f"{count} records", pause_s=0)
    return seen

"""Apache Kafka's own Java client, in one JVM that answers lines of JSON.

Owns that process and the form of the lines; what the JVM does with them is in
`system_tests/java/src/Driver.java`. No expectations are here. Invariant: each line is answered by
one line, and a JVM that ends or stays silent is reported with its output.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from system_tests.clients.model import (
    CLIENT_MAX_BYTES,
    HEARTBEAT_MS,
    SESSION_MS,
    Client,
    Cluster,
    Group,
    GroupMember,
    Joining,
    Member,
    Producing,
    Record,
    Refused,
    Stored,
    TopicPartition,
)
from system_tests.harness.jars import java_driver
from system_tests.harness.jvm import QUIET, short_jvm
from system_tests.harness.line_process import LineProcess
from system_tests.harness.waiting import PATIENCE_S, TimedOut

__all__ = ["JavaClient"]

MEMORY = "-Xmx256m"


class _Jvm:
    def __init__(self, *arguments: str) -> None:
        self._process = LineProcess(
            [*short_jvm(MEMORY, QUIET), "-cp", java_driver(), "Driver", *arguments]
        )

    def ask(self, op: str, **request: Any) -> Any:
        answer = json.loads(self._process.ask(json.dumps({"op": op, **request}), 3 * PATIENCE_S))
        if "code" in answer:
            raise Refused(answer["code"], answer["failed"])
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        return answer["result"]

    def close(self) -> None:
        try:
            self._process.end()
        finally:
            self._process.close()


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _stored(records: Sequence[Mapping[str, Any]]) -> list[Stored]:
    return [
        Stored(
            each["topic"],
            each["partition"],
            each["offset"],
            each["timestamp_ms"],
            _bytes(each["key"]),
            _bytes(each["value"]),
            tuple((name, _bytes(value)) for name, value in each["headers"]),
        )
        for each in records
    ]


class JavaMember(Member):
    def __init__(self, jvm: _Jvm, member: int) -> None:
        self._jvm = jvm
        self._member = member
        self._open = True
        self._assignment: frozenset[TopicPartition] = frozenset()

    def poll(self, timeout_s: float = 0.1) -> list[Stored]:
        seen = self._jvm.ask("poll", member=self._member, timeout_ms=int(timeout_s * 1000))
        self._assignment = frozenset((topic, index) for topic, index in seen["assignment"])
        self.assignments = seen["assignments"]
        return _stored(seen["records"])

    def assignment(self) -> frozenset[TopicPartition]:
        return self._assignment

    def commit(self) -> None:
        self._jvm.ask("commit", member=self._member)

    def committed(self, topic: str, partition: int) -> int | None:
        found: int | None = self._jvm.ask(
            "committed", member=self._member, topic=topic, partition=partition
        )
        return found

    def close(self) -> None:
        if self._open:
            self._open = False
            self._jvm.ask("leave", member=self._member)


class JavaClient(Client):
    name = "java"

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(bootstrap_servers)
        self._jvm = _Jvm(bootstrap_servers, self.client_id)

    def _create(self, name: str, partitions: int, replicas: int, configs: dict[str, str]) -> None:
        self._jvm.ask(
            "create_topic", topic=name, partitions=partitions, replicas=replicas, configs=configs
        )

    def delete_topic(self, name: str) -> None:
        self._jvm.ask("delete_topic", topic=name)

    def topics(self) -> set[str]:
        return set(self._jvm.ask("topics"))

    def leaders(self, topic: str) -> dict[int, int]:
        return {int(k): v for k, v in self._jvm.ask("leaders", topic=topic).items()}

    def _configs(self, kind: str, name: str) -> dict[str, str | None]:
        return dict(self._jvm.ask("configs", kind=kind.upper(), name=name))

    def cluster(self) -> Cluster:
        seen = self._jvm.ask("cluster")
        brokers = tuple((node_id, host, port) for node_id, host, port in seen["brokers"])
        return Cluster(seen["cluster_id"], seen["controller_id"], brokers)

    def groups(self) -> set[str]:
        return set(self._jvm.ask("groups"))

    def describe_group(self, group: str) -> Group:
        seen = self._jvm.ask("describe_group", group=group)
        members = tuple(
            GroupMember(
                each["client_id"],
                each["instance_id"],
                frozenset((topic, index) for topic, index in each["partitions"]),
            )
            for each in seen["members"]
        )
        return Group(seen["state"].replace("_", "").lower(), members)

    def _produce(
        self, topic: str, partition: int, records: Sequence[Record], how: Producing
    ) -> list[int]:
        lines = [
            [
                _text(each.key),
                _text(each.value),
                [[name, _text(value)] for name, value in each.headers],
                each.timestamp_ms,
            ]
            for each in records
        ]
        return list(
            self._jvm.ask(
                "produce",
                topic=topic,
                partition=partition,
                records=lines,
                **how._asdict(),
                max_bytes=CLIENT_MAX_BYTES,
            )
        )

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[Stored]:
        seen = self._jvm.ask("read", topic=topic, partition=partition, offset=offset, count=count)
        if len(seen) < count:
            raise TimedOut(f"{len(seen)} of {count} records read from {topic}")
        return _stored(seen)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        low, high = self._jvm.ask("bounds", topic=topic, partition=partition)
        return low, high

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        found: int | None = self._jvm.ask(
            "offset_at", topic=topic, partition=partition, timestamp_ms=timestamp_ms
        )
        return found

    def _join(self, group: str, topic: str, how: Joining) -> Member:
        member = self._jvm.ask(
            "join",
            group=group,
            topic=topic,
            **how._asdict(),
            session_ms=SESSION_MS,
            heartbeat_ms=HEARTBEAT_MS,
        )
        return JavaMember(self._jvm, member)

    def close(self) -> None:
        self._jvm.close()

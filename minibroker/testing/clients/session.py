"""A process of a workload: carries out invocations with a client library.

Owns the results of operations: when one is known to have failed, and when its outcome is unknown.
It must never know a library. Invariant: ``fail`` is written only if no commit was requested or the
library reports that nothing was stored; after any result but ``ok`` an assigned consumer is where
it was before the operation. Jepsen calls unknown outcomes ``info``.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import IO, Any, Final, NamedTuple

POLL_S: Final = 0.1
"""How long one poll waits for records."""
POLLED_MAX: Final = 20
"""Records that one poll returns."""
PATIENCE_S: Final = 20
"""How long a library may retry."""
ERROR_CHARS_MAX: Final = 300


class ClientFailure(Exception):
    """A call of the library failed; ``definite`` if it is known to have had no effect."""

    def __init__(self, error: object, *, definite: bool = False) -> None:
        super().__init__(str(error)[:ERROR_CHARS_MAX])
        self.definite = definite


class ClientOptions(NamedTuple):
    """How the clients of a process are configured."""

    bootstrap_servers: str
    process: int
    transactional_id: str | None = None
    group: str | None = None
    isolation_level: str = "read_committed"
    idempotence: bool = True
    username: str | None = None
    """The user of SASL PLAIN; without one, the client does not authenticate."""
    password: str | None = None


class ConsumedRecord(NamedTuple):
    """A record that a library returned."""

    key: str
    offset: int
    value: bytes


class ClientLibrary(ABC):
    """A producer and a consumer of one library. Calls raise ``ClientFailure``."""

    name: str

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self.moved: set[str] = set()
        """Keys that a rebalance moved since the last operation."""

    def connection_options(self) -> dict[str, Any]:
        """Return the options of connections as kafka-python and aiokafka name them."""
        options: dict[str, Any] = {"bootstrap_servers": self.options.bootstrap_servers}
        if self.options.username is not None:
            options["security_protocol"] = "SASL_PLAINTEXT"
            options["sasl_mechanism"] = "PLAIN"
            options["sasl_plain_username"] = self.options.username
            options["sasl_plain_password"] = self.options.password
        return options

    def consumer_options(self) -> dict[str, Any]:
        """Return the consumer's options as kafka-python and aiokafka name them."""
        return {
            **self.connection_options(),
            "group_id": self.options.group,
            "enable_auto_commit": self.options.group is not None,
            "auto_commit_interval_ms": 100,
            "auto_offset_reset": "earliest",
            "isolation_level": self.options.isolation_level,
            "fetch_max_wait_ms": 50,
            "session_timeout_ms": 6000,
            "heartbeat_interval_ms": 1000,
        }

    def rebalance_listener(self, base: Any) -> Any:
        """Return a listener that notes which keys move, for kafka-python and aiokafka."""
        library = self

        class Listener(base):  # type: ignore[misc]
            """Notes which keys move."""

            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                library.moved.update(f"{each.topic}-{each.partition}" for each in assigned)

            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                self.on_partitions_assigned(revoked)

        return Listener()

    @abstractmethod
    def open_producer(self) -> None:
        """Replace the producer; a transactional one is initialized."""

    @abstractmethod
    def open_consumer(self) -> None:
        """Replace the consumer."""

    @abstractmethod
    def assign(self, positions: Mapping[str, int]) -> None:
        """Assign keys, each from an offset."""

    @abstractmethod
    def subscribe(self, topics: list[str]) -> None: ...

    @abstractmethod
    def poll(self) -> Iterable[ConsumedRecord]:
        """Poll for at most `POLL_S`, and return at most `POLLED_MAX` records."""

    @abstractmethod
    def send(self, topic: str, partition: int, value: bytes) -> int | None:
        """Send a record, wait for its acknowledgement and return its offset."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


def partition_of(key: str) -> tuple[str, int]:
    """Split a key into topic and partition."""
    topic, _, partition = key.rpartition("-")
    return topic, int(partition)


def polled_records(found: Mapping[Any, Iterable[Any]]) -> list[ConsumedRecord]:
    """Return the records of a poll, which kafka-python and aiokafka give by partition."""
    return [
        ConsumedRecord(f"{partition.topic}-{partition.partition}", record.offset, record.value)
        for partition, records in found.items()
        for record in records
    ]


class ClientSession:
    """Carries out operations, and knows the positions of an assigned consumer."""

    def __init__(self, library: ClientLibrary) -> None:
        self._library = library
        self._subscribes = library.options.group is not None
        self._positions: dict[str, int] = {}
        library.open_producer()
        library.open_consumer()

    def perform(self, invocation: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out an operation, and return its completion."""
        done = {name: value for name, value in invocation.items() if name != "abort"}
        try:
            match invocation["operation"]:
                case "assign":
                    kept = {} if invocation.get("from_beginning") else self._positions
                    self._positions = {key: kept.get(key, 0) for key in invocation["keys"]}
                    self._library.assign(self._positions)
                case "subscribe":
                    topics = {partition_of(key)[0] for key in invocation["keys"]}
                    self._library.subscribe(sorted(topics))
                case "reopen":
                    self._positions = {}
                    self._library.open_consumer()
                    self._library.open_producer()
                case _:
                    return {**done, **self._perform_steps(invocation)}
        except ClientFailure as error:
            return {**done, "type": "unknown", "error": str(error)}
        return {**done, "type": "ok"}

    def _perform_steps(self, invocation: Mapping[str, Any]) -> dict[str, Any]:
        before = dict(self._positions)
        done: dict[str, Any] = {"type": "ok", "steps": []}
        is_committing = False
        try:
            if invocation["operation"] == "txn":
                self._library.begin()
            for step in invocation["steps"]:
                done["steps"].append(self._perform_step(step))
            if invocation["operation"] == "txn":
                if invocation.get("abort"):
                    done["type"] = "fail"
                    self._library.abort()
                else:
                    is_committing = True
                    self._library.commit()
        except ClientFailure as error:
            done["error"] = str(error)
            done["type"] = self._result_of(invocation, error, done, is_committing=is_committing)
        if done["type"] != "ok" and not self._subscribes and self._positions != before:
            self._positions = before
            self._library.assign(before)
        if self._library.moved:
            done["rebalanced"] = sorted(self._library.moved)
            self._library.moved.clear()
        return done

    def _perform_step(self, step: Mapping[str, Any]) -> dict[str, Any]:
        if "send" in step:
            topic, partition = partition_of(step["send"])
            offset = self._library.send(topic, partition, str(step["value"]).encode())
            return {**step, "offset": offset}
        polled: dict[str, list[list[int]]] = {}
        for record in self._library.poll():
            polled.setdefault(record.key, []).append([record.offset, int(record.value)])
            if not self._subscribes:
                self._positions[record.key] = record.offset + 1
        return {"poll": polled}

    def _result_of(
        self,
        invocation: Mapping[str, Any],
        error: ClientFailure,
        done: Mapping[str, Any],
        *,
        is_committing: bool,
    ) -> str:
        """Return the result of a failed operation, and leave the producer ready for the next."""
        if invocation["operation"] == "poll":
            return "fail"
        if invocation["operation"] == "send":
            return "fail" if error.definite and not done["steps"] else "unknown"
        if is_committing and not error.definite:
            self._library.open_producer()
            return "unknown"
        try:
            self._library.abort()
        except ClientFailure:
            self._library.open_producer()
        return "fail"

    def close(self) -> None:
        """Close the clients."""
        self._library.close()


def serve(library: type[ClientLibrary], lines: IO[str], answers: IO[str]) -> None:
    """Read options and then invocations, one JSON object a line; write a completion for each."""

    def answer(line: Mapping[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    options = ClientOptions(**json.loads(lines.readline()))
    session = ClientSession(library(options))
    answer({"client": library.name})
    for line in lines:
        answer(session.perform(json.loads(line)))
    session.close()


def main(library: type[ClientLibrary]) -> None:
    """Serve standard input and output; whatever a library prints goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    serve(library, sys.stdin, answers)

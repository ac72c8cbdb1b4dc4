"""An existing Kafka in place of the broker of the pytest plugin: ``--minibroker-external``.

Owns the helpers over Kafka's protocol, and the skips of tests that need a broker of ours. It must
never change anything but topics of tests. Invariant: a test that uses what only minibroker has is
skipped, with the call that it made as the reason. Kafka's own tests have no such choice.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import pytest

from minibroker.client.consumer import (
    EARLIEST,
    LATEST,
    LEADER_CHANGED,
    Fetcher,
    list_offsets,
)
from minibroker.client.errors import BrokerError, check
from minibroker.client.kafka_client import KafkaClient
from minibroker.client.producer import RecordProducer, partition_of
from minibroker.seed_file import SeedSource, read_seed, text_of
from minibroker.testing.broker import MiniBroker
from minibroker.testing.external_groups import describe_group
from minibroker.testing.messages import MessageHelpers, Page, TopicMessage, WaitTimedOut
from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from minibroker_protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from minibroker_protocol.records import Record

POLL_S: Final = 0.05
FETCH_WAIT_MS: Final = 200
TIMEOUT_MS: Final = 10_000
NOT_YET: Final = LEADER_CHANGED | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
"""Errors of leaders that have not applied a new topic's metadata."""

T = TypeVar("T")


class ExternalKafka(MessageHelpers):
    """A Kafka that exists already, with the calls of `MiniBroker` that any Kafka can answer."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def __getattr__(self, name: str) -> Any:
        known = getattr(MiniBroker, name, None)
        if known is None:
            raise AttributeError(name)
        if callable(known):
            return lambda *_args, **_fields: self._skip(f"{name}()")
        return self._skip(name)

    def _skip(self, what: str) -> NoReturn:
        pytest.skip(f"{what} needs minibroker; the tests use the Kafka at {self.bootstrap_servers}")

    def start(self) -> ExternalKafka:
        """Check that it answers."""
        with KafkaClient(self.bootstrap_servers) as client:
            client.metadata([])
        return self

    def stop(self) -> None:
        """Do nothing: it belongs to others."""

    def ended(self) -> None:
        """Return None: it is not watched."""

    def check(self) -> None:
        """Do nothing: its processes are not watched."""

    def log(self) -> str:
        """Return nothing: its log is elsewhere."""
        return ""

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, object] | None = None
    ) -> str:
        """Create a topic and return its name, when it has leaders."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            configs=[
                CreatableTopicConfig(name=key, value=text_of(value))
                for key, value in (configs or {}).items()
            ],
        )
        with KafkaClient(self.bootstrap_servers) as client:
            request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
            controller = client.metadata([]).controller_id
            (made,) = client.send(request, CreateTopicsResponse, controller).topics
            check(f"topic {name}", made.error_code, made.error_message)
            _wait_for_topic(client, name)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=TIMEOUT_MS
        )
        with KafkaClient(self.bootstrap_servers) as client:
            controller = client.metadata([]).controller_id
            for result in client.send(request, DeleteTopicsResponse, controller).responses:
                check(f"topic {name}", result.error_code)

    def seed(self, source: SeedSource) -> dict[str, Any]:
        """Create topics with their records; skip the test if the seed has more."""
        seed = read_seed(source)
        others = [name for name in ("settings", "users", "quotas") if seed[name]]
        if others:
            self._skip(f"a seed with {' and '.join(others)}")
        with KafkaClient(self.bootstrap_servers) as client:
            known = {topic.name for topic in client.metadata().topics}
        created = [topic for topic in seed["topics"] if topic["name"] not in known]
        count = 0
        for topic in created:
            self.create_topic(topic["name"], topic.get("partitions", -1), topic.get("configs"))
            count += len(self.produce(topic["name"], map(_seeded, topic["records"])))
        names = [topic["name"] for topic in created]
        existing = [topic["name"] for topic in seed["topics"] if topic["name"] in known]
        return {"topics": names, "existing": existing, "records": count}

    def _append(self, topic: str, messages: list[TopicMessage]) -> list[TopicMessage]:
        now_ms = int(time.time() * 1000)
        placed: dict[int, list[int]] = defaultdict(list)
        with KafkaClient(self.bootstrap_servers) as client:
            count = len(client.topic(topic, create=True).partitions)
            turn = 0
            for place, message in enumerate(messages):
                partition = message.partition
                if partition is None and message.key is not None:
                    partition = partition_of(message.key, count)
                elif partition is None:
                    partition, turn = turn % count, turn + 1
                placed[partition].append(place)
            made = list(messages)
            for partition, places in placed.items():
                records = [_record(messages[place], now_ms) for place in places]
                first = _retried(partial(_produce, client, topic, partition, records))
                for delta, place in enumerate(places):
                    made[place] = made[place]._replace(partition=partition, offset=first + delta)
        return made

    def _read(
        self,
        topic: str,
        positions: Mapping[int, int] | None,
        *,
        last: int | None = None,
        wait: int = 0,
        timeout_s: float = 0,
    ) -> Page:
        deadline = time.monotonic() + timeout_s
        with KafkaClient(self.bootstrap_servers) as client:
            if not (wait and not _wait_for_topic(client, topic, deadline)):
                found = client.topic(topic)
                ends = _retried(partial(list_offsets, client, found, LATEST))
                starts = dict(positions or list_offsets(client, found, EARLIEST))
                if last is not None:
                    starts = {index: max(starts[index], end - last) for index, end in ends.items()}
                fetcher = Fetcher(client, topic, starts, committed=True)
                messages: list[TopicMessage] = []
                while True:
                    at_end = all(fetcher.positions[index] >= ends[index] for index in starts)
                    if at_end and (len(messages) >= wait or time.monotonic() >= deadline):
                        break
                    before = dict(fetcher.positions)
                    messages += [
                        _message(each.partition, each.record)
                        for each in fetcher.poll(FETCH_WAIT_MS if at_end else 0)
                    ]
                    # An open transaction ends what can be read.
                    if not at_end and before == fetcher.positions:
                        ends = before
                return Page(messages, dict(fetcher.positions), has_more=False)
        return Page([], {}, has_more=False)

    def _await_group(
        self, group: str, state: str | None, members: int | None, lag: int | None, timeout_s: float
    ) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        with KafkaClient(self.bootstrap_servers) as client:
            while True:
                found = describe_group(client, group)
                if (
                    state in (None, found["state"])
                    and members in (None, len(found["members"]))
                    and (lag is None or (found["lag"] is not None and found["lag"] <= lag))
                ):
                    return found
                if time.monotonic() >= deadline:
                    given = {"state": state, "members": members, "lag": lag}
                    awaited = ", ".join(
                        f"{name} {value}" for name, value in given.items() if value is not None
                    )
                    has = f"state {found['state']}, members {len(found['members'])}"
                    text = f"group {group!r} was awaited for {timeout_s:g} s to have {awaited}"
                    raise WaitTimedOut(f"{text}, and it has {has}, lag {found['lag']}")
                time.sleep(POLL_S)


def _produce(client: KafkaClient, topic: str, partition: int, records: list[Record]) -> int:
    """Produce one batch; return its first offset."""
    producer = RecordProducer(
        client, topic, acks=-1, compression=Compression.NONE, partition=partition
    )
    for record in records:
        producer.send(record)
    (appended,) = producer.flush()
    return appended.first_offset


def _retried(call: Callable[[], T]) -> T:
    """Call again while a new topic's leaders do not know it yet."""
    deadline = time.monotonic() + TIMEOUT_MS / 1000
    while True:
        try:
            return call()
        except BrokerError as error:
            if error.code not in NOT_YET or time.monotonic() >= deadline:
                raise
        time.sleep(POLL_S)


def _wait_for_topic(client: KafkaClient, name: str, deadline: float = 0) -> bool:
    """Wait until a topic exists and has leaders."""
    deadline = deadline or time.monotonic() + TIMEOUT_MS / 1000
    while True:
        try:
            client.topic(name)
        except BrokerError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        else:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)


def _record(message: TopicMessage, now_ms: int) -> Record:
    timestamp = now_ms if message.timestamp_ms is None else message.timestamp_ms
    return Record(0, timestamp, message.key, message.value, message.headers)


def _message(partition: int, record: Record) -> TopicMessage:
    return TopicMessage(
        record.value,
        record.key,
        tuple(record.headers),
        partition,
        record.offset,
        record.timestamp,
    )


def _seeded(record: Mapping[str, Any]) -> TopicMessage:
    from base64 import b64decode

    def content(name: str) -> bytes | None:
        if record.get(f"{name}_base64") is not None:
            return b64decode(record[f"{name}_base64"])
        text = record.get(name)
        return None if text is None else text.encode()

    headers = record.get("headers", ())
    return TopicMessage(
        content("value"),
        content("key"),
        tuple((header["key"], header["value"].encode()) for header in headers),
        record.get("partition"),
        timestamp_ms=record.get("timestamp_ms"),
    )

"""A client with a fetch session, as far as tests need one.

Owns what the client knows: its epoch, and offsets and records of each partition. It must never know
the broker. Invariant: after each response its view is what the responses so far say (KIP-227).
"""

from __future__ import annotations

from typing import Any

from minibroker_protocol.errors import DecodeError
from minibroker_protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from minibroker_protocol.records import iter_batches

WHOLE = 1 << 20
TopicPartition = tuple[str, int]


def topics_of(offsets: dict[TopicPartition, int], ids: dict[str, bytes]) -> list[FetchTopic]:
    """One topic for each partition to fetch, in order."""
    return [
        FetchTopic(
            topic=topic,
            topic_id=ids.get(topic, b"\x01" * 16),
            partitions=[
                FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=WHOLE)
            ],
        )
        for (topic, index), offset in offsets.items()
    ]


def forgotten_of(names: list[TopicPartition], ids: dict[str, bytes]) -> list[ForgottenTopic]:
    """The partitions to forget."""
    return [
        ForgottenTopic(topic=topic, topic_id=ids.get(topic, b"\x01" * 16), partitions=[index])
        for topic, index in names
    ]


def partitions_of(response: Any, ids: dict[str, bytes]) -> dict[TopicPartition, Any]:
    """The partitions of a response by name; ``ids`` are the ids of the topics."""
    names = {topic_id: name for name, topic_id in ids.items()}
    return {
        (topic.topic or names[topic.topic_id], data.partition_index): data
        for topic in response.responses
        for data in topic.partitions
    }


def next_offset(records: Any, offset: int) -> int:
    """The offset after the last complete batch."""
    try:
        for _, header in iter_batches(bytes(records or b"")):
            offset = header.base_offset + header.last_offset_delta + 1
    except DecodeError:
        pass  # The last batch is incomplete.
    return offset


class SessionClient:
    """Sends what has changed since its last request."""

    def __init__(self, ids: dict[str, bytes]) -> None:
        self.ids = ids
        self.session_id = 0
        self.epoch = 0
        self.offsets: dict[TopicPartition, int] = {}
        self.view: dict[TopicPartition, tuple[int, int, int]] = {}
        """Error, high watermark and log start of each partition."""
        self._sent: dict[TopicPartition, int] = {}

    def request(self, **options: Any) -> FetchRequest:
        """The next request; ``options`` are fields of it."""
        changed = {
            name: offset for name, offset in self.offsets.items() if self._sent.get(name) != offset
        }
        forgotten = [name for name in self._sent if name not in self.offsets]
        self._sent = dict(self.offsets)
        return FetchRequest(
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=topics_of(changed, self.ids),
            forgotten_topics_data=forgotten_of(forgotten, self.ids) if self.epoch else [],
            **{"max_bytes": WHOLE, **options},
        )

    def restart(self) -> None:
        """Forget the session; the next request starts another one."""
        self.session_id = self.epoch = 0
        self._sent = {}

    def receive(self, response: Any) -> dict[TopicPartition, Any]:
        """Apply a response; returns its partitions."""
        assert response.error_code == 0, response
        self.session_id = response.session_id
        self.epoch = self.epoch + 1 if response.session_id else 0
        if not self.epoch:
            self._sent = {}
        for name in [name for name in self.view if name not in self.offsets]:
            del self.view[name]
        found = partitions_of(response, self.ids)
        for name, data in found.items():
            self.view[name] = data.error_code, data.high_watermark, data.log_start_offset
            self.offsets[name] = next_offset(data.records, self.offsets[name])
        return found

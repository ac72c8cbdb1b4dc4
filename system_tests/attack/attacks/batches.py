"""Produce hostile batches and bombs, and read around them.

Owns the requests; the batches come from ``system_tests.attack.batches``. The invariant: topics of
others are left alone, and what is stored is bounded: a full topic is replaced by a new one.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Final

from minibroker_protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from system_tests.attack.batches import bomb, full_batch, hostile_batch
from system_tests.attack.targets import Target
from system_tests.connections.dialling import Client
from system_tests.peers.records import produce

STORED_MAX_BYTES: Final = 16 * 1024 * 1024
ADMIN_CLIENT_ID: Final = "__admin_client"
"""The client id that Kafka lets write to internal topics."""

OFFSETS_TOPIC: Final = "__consumer_offsets"
TIMESTAMPS: Final = (-5, -4, -3, -2, -1, 0, 1_700_000_000_000, 2**60, 2**63 - 1)
TIMEOUT_MS: Final = 5000
RECONNECT_PAUSE_S: Final = 0.05


def attack(target: Target, seed: str, deadline: float) -> Counter[str]:
    """Produce and read until the deadline."""
    return Batches(
        target, random.Random(seed), f"hostile-{random.Random(seed).randrange(10**6)}"
    ).run(deadline)


class Batches:
    """One attack: its topics, and what was done."""

    def __init__(self, target: Target, dice: random.Random, name: str) -> None:
        self._target = target
        self._dice = dice
        self._name = name
        self._sent_bytes = 0
        self._generation = 0
        self.counts: Counter[str] = Counter()

    def run(self, deadline: float) -> Counter[str]:
        topics: list[str] = []
        while time.monotonic() < deadline:
            client_id = self._dice.choice(("hostile", ADMIN_CLIENT_ID))
            try:
                with Client(self._target.address, client_id=client_id) as client:
                    client.socket.settimeout(60)
                    if not topics or self._sent_bytes > STORED_MAX_BYTES:
                        topics = self._renew(client, topics)
                    while time.monotonic() < deadline and self._sent_bytes <= STORED_MAX_BYTES:
                        self._step(client, topics)
            except (OSError, AssertionError, IndexError):
                self.counts["hostile batch connections closed"] += 1
                time.sleep(RECONNECT_PAUSE_S)
        return self.counts

    def _renew(self, client: Client, old: list[str]) -> list[str]:
        """Delete the full topics and make others, one of them compacted."""
        if old:
            names = [DeleteTopicState(name=name) for name in old]
            client.ask(DeleteTopicsRequest(topics=names, topic_names=old, timeout_ms=TIMEOUT_MS), 6)
        self._generation += 1
        self._sent_bytes = 0
        made = [
            CreatableTopic(
                name=f"{self._name}-{policy}-{self._generation}",
                num_partitions=2,
                replication_factor=1,
                configs=[CreatableTopicConfig(name="cleanup.policy", value=policy)],
            )
            for policy in ("delete", "compact")
        ]
        client.ask(CreateTopicsRequest(topics=made, timeout_ms=TIMEOUT_MS), 5)
        return [topic.name for topic in made]

    def _step(self, client: Client, topics: list[str]) -> None:
        kind = self._dice.random()
        topic = self._dice.choice([*topics, *topics, OFFSETS_TOPIC])
        partition = self._dice.randrange(2)
        if kind < 0.70:
            self._produce(client, topic, partition, hostile_batch(self._dice), "hostile batches")
        elif kind < 0.76:
            self._produce(client, topic, partition, bomb(self._dice), "bombs")
        elif kind < 0.80:
            self._produce(client, topic, partition, full_batch(self._dice), "full batches")
        elif kind < 0.90:
            self._list_offsets(client, topic, partition)
        else:
            self._fetch(client, topic, partition)

    def _produce(self, client: Client, topic: str, partition: int, batch: bytes, what: str) -> None:
        self._sent_bytes += len(batch)
        self.counts[what] += 1
        answer = client.ask(produce(topic, batch, partition), 9)
        if answer.responses[0].partition_responses[0].error_code == 0:
            self.counts[f"{what} stored"] += 1

    def _list_offsets(self, client: Client, topic: str, partition: int) -> None:
        part = ListOffsetsPartition(
            partition_index=partition,
            timestamp=self._dice.choice(TIMESTAMPS),
            current_leader_epoch=-1,
        )
        topics = [ListOffsetsTopic(name=topic, partitions=[part])]
        client.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 7)
        self.counts["offset look-ups over hostile batches"] += 1

    def _fetch(self, client: Client, topic: str, partition: int) -> None:
        part = FetchPartition(
            partition=partition,
            fetch_offset=self._dice.choice((0, 1, 5, 1_000_000)),
            partition_max_bytes=self._dice.choice((0, 1, 4096, 2**31 - 1)),
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=self._dice.choice((0, 1)),
            max_bytes=self._dice.choice((0, 1, 2**31 - 1)),
            session_epoch=-1,
            topics=[FetchTopic(topic=topic, partitions=[part])],
        )
        client.ask(request, 12)
        self.counts["fetches over hostile batches"] += 1

"""Requests that are executed in a single step get the bytes of the general way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from minibroker.network.single_requests import SingleRequests
from protocol.compression import Compression
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.records import Record, build_batch
from tests.network.one_broker import running
from tests.simulation.client import SimulatedClient

VERSIONS = range(3, 14)
NO_ID = bytes(16)


def batch(
    text: bytes = b"v",
    *,
    timestamp: int = 0,
    sequence: int = -1,
    compression: Compression = Compression.NONE,
) -> bytes:
    producer_id = -1 if sequence < 0 else 7
    return build_batch(
        [Record(timestamp=timestamp, key=b"k", value=text)],
        compression=compression,
        producer_id=producer_id,
        producer_epoch=min(producer_id, 0),
        base_sequence=sequence,
    )


def produce(
    records: bytes | None, *, topic: str = "t", index: int = 0, acks: int = -1, **named: Any
) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=records)]
    topics = [
        TopicProduceData(name=topic, topic_id=named.pop("topic_id", NO_ID), partition_data=data)
    ]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=topics, **named)


async def topic_id(client: SimulatedClient) -> bytes:
    found = await client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12)
    return bytes(found.topics[0].topic_id)


def requests(known: bytes) -> list[ProduceRequest]:
    """Requests of all kinds: most are executed in a single step, and some must not be."""
    ordinary = [produce(batch(bytes([n])), index=n % 2, acks=(1, -1)[n % 2]) for n in range(4)]
    sequences = [produce(batch(sequence=n)) for n in (0, 1, 1, 3, 0)]
    damaged = bytearray(batch())
    damaged[-1] ^= 1
    found = [
        *ordinary,
        *sequences,
        produce(bytes(damaged)),
        produce(batch() + batch()),
        produce(b""),
        produce(None),
        produce(batch(), topic="missing"),
        produce(batch(), topic="__consumer_offsets"),
        produce(batch(), index=9),
        produce(batch(), acks=5),
        produce(batch(), transactional_id="x"),
        produce(batch(compression=Compression.ZSTD)),
        produce(batch(compression=Compression.GZIP)),
        produce(batch(timestamp=2**62)),
    ]
    two = produce(batch())
    two.topic_data = two.topic_data * 2
    tagged = produce(batch())
    tagged.topic_data[0].unknown_tagged_fields = {9: b"x"}
    found += [two, tagged]
    for request in found:
        for topic in request.topic_data:
            topic.topic_id = known if topic.name == "t" else NO_ID
    return found


@pytest.mark.parametrize("version", VERSIONS)
async def test_single_produce_gets_the_bytes_of_the_general_way(
    version: int, tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = 0
    execute = SingleRequests.execute

    def counted(*of: Any) -> Any:
        nonlocal direct
        found = execute(*of)
        direct += found is not None
        return found

    monkeypatch.setattr(SingleRequests, "execute", counted)
    answers: dict[str, list[bytes]] = {}
    for mode in ("combined", "separate"):
        (tmp_path / mode).mkdir()
        async with running(tmp_path / mode, autojump_clock, mode) as client:
            known = await topic_id(client)
            answers[mode] = []
            for request in requests(known):
                await client.ask(request, version)
                answers[mode].append(client.received.replace(known, b"topic id"))
    assert answers["combined"] == answers["separate"]
    assert direct >= 8

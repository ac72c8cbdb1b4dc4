"""A conversation with one broker is replayed at another one."""

from __future__ import annotations

import socket

import pytest
import trio

from minibroker.lab.replay.capture import Capture, read_capture
from minibroker.lab.replay.load import replay_load
from minibroker.testing import MiniBroker
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from tests.lab.replay.recording import CaptureWriter, RecordedClient


def record_producer(servers: str, topic: str, batches: int = 3) -> Capture:
    """An idempotent producer: its id comes on another connection than the one of its batches."""
    writer = CaptureWriter()
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    with RecordedClient(servers, "1", writer) as one, RecordedClient(servers, "2", writer) as two:
        one.ask(request, 12)
        producer = one.ask(InitProducerIdRequest(transaction_timeout_ms=1000), 4)
        for sequence in range(batches):
            batch = build_batch(
                [Record(value=b"x")],
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=sequence,
            )
            data = [PartitionProduceData(index=0, records=batch)]
            topics = [TopicProduceData(name=topic, partition_data=data)]
            response = two.ask(ProduceRequest(acks=-1, timeout_ms=1, topic_data=topics), 9)
            assert response.responses[0].partition_responses[0].error_code == 0
    return read_capture(writer.lines)


def address(servers: str) -> tuple[str, int]:
    host, _, port = servers.rpartition(":")
    return host, int(port)


@pytest.mark.parametrize("speed", [None, 10.0])
async def test_requests_are_answered_as_recorded(
    minibroker: MiniBroker, minibroker_topic: str, speed: float | None
) -> None:
    servers = minibroker.bootstrap_servers
    capture = record_producer(servers, minibroker_topic)
    report = await replay_load(capture, *address(servers), speed=speed)
    assert (report.sent, report.answered, report.unanswered) == (5, 5, 0)
    # The same broker: without another producer id, the batches would be duplicates.
    assert not report.differing
    [partition] = minibroker.control.get("v1", "topics", minibroker_topic)["partitions"]
    assert partition["log_end_offset"] == 6


async def test_other_errors_than_recorded_are_counted(
    minibroker: MiniBroker, minibroker_topic: str
) -> None:
    capture = record_producer(minibroker.bootstrap_servers, minibroker_topic)
    without_id = capture._replace(requests=capture.requests[2:])  # Nothing teaches the id.
    minibroker.delete_topic(minibroker_topic)
    report = await replay_load(without_id, *address(minibroker.bootstrap_servers), speed=None)
    assert report.differing == {(0, 0, 3): 3}


async def test_requests_of_a_connection_that_ends_are_not_answered() -> None:
    capture = record_producer_of_closed_connection()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        async def close() -> None:
            accepted, _ = await trio.to_thread.run_sync(server.accept)
            accepted.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            report = await replay_load(capture, "127.0.0.1", port, speed=None)
    assert (report.answered, report.unanswered) == (0, 1)


def record_producer_of_closed_connection() -> Capture:
    writer = CaptureWriter()
    writer.exchange("1", 1, MetadataRequest(topics=[]), 9, MetadataResponse())
    return read_capture(writer.lines)

"""Clients of the server get the recorded responses, and a closed connection without one."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio

from minibroker.broker.settings.setting import HostPort
from minibroker.lab.replay.capture import Capture, Captured, read_capture
from minibroker.lab.replay.serving import RecordedAnswers, answer_frame, replay_load, serve_capture
from minibroker.runtime.stream import StreamClosed
from minibroker.testing import MiniBroker
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from minibroker_protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.wire import RequestHeader, decode_response_header
from tests.lab.replay.recording import CaptureWriter, RecordedClient
from tests.simulation.client import SimulatedClient

# ---------------------------------------- A conversation with one broker is replayed at another one


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


def capture() -> Capture:
    writer = CaptureWriter()
    broker = MetadataResponseBroker(node_id=1, host="elsewhere", port=9092)
    response = MetadataResponse(brokers=[broker], cluster_id="c")
    writer.exchange("1", 1, MetadataRequest(topics=[]), 9, response)
    return read_capture(writer.lines)


class SocketStream:
    """A trio stream with the methods of the broker's streams."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def send_all(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def receive_into(self, room: memoryview) -> int:
        data = await self._stream.receive_some(len(room))
        room[: len(data)] = data
        return len(data)


@pytest.mark.parametrize("speed", [None, 1.0])
async def test_client_gets_recorded_responses_from_the_server(speed: float | None) -> None:
    ready = trio.Event()
    found: list[HostPort] = []

    def on_ready(address: HostPort) -> None:
        found.append(address)
        ready.set()

    async with trio.open_nursery() as nursery:
        listening = HostPort("127.0.0.1", 0)
        nursery.start_soon(lambda: serve_capture(capture(), listening, on_ready, speed=speed))
        await ready.wait()
        async with await trio.open_tcp_stream(*found[0]) as stream:
            client = SimulatedClient(SocketStream(stream))  # type: ignore[arg-type]
            await client.send_request(ProduceRequest(acks=0), 9)
            for _ in range(2):
                client._correlation_id += 5
                response = await client.ask(MetadataRequest(topics=[]), 9)
                assert response.cluster_id == "c"
                [broker] = response.brokers
                assert (broker.host, broker.port) == found[0]
            with pytest.raises(StreamClosed):
                await client.ask(CreateTopicsRequest(topics=[]), 7)
        nursery.cancel_scope.cancel()


HERE = HostPort("localhost", 1234)


def answered(captured: Captured, *, is_repeated: bool = False) -> Any:
    frame = answer_frame(captured, 99, HERE, is_repeated=is_repeated)
    key, version = captured.header.api_key, captured.header.api_version
    correlation_id, at = decode_response_header(frame, key, version)
    assert correlation_id == 99
    return decode(registry.schema(key).response, version, frame, at)


def test_responses_come_in_order_and_reads_are_repeated() -> None:
    writer = CaptureWriter()
    for cluster_id in ("a", "b"):
        response = MetadataResponse(cluster_id=cluster_id)
        writer.exchange("1", 1, MetadataRequest(topics=[]), 9, response)
    writer.exchange("1", 2, CreateTopicsRequest(topics=[]), 7, CreateTopicsResponse(topics=[]))
    answers = RecordedAnswers(read_capture(writer.lines).requests)
    found = []
    for _ in range(3):
        taken = answers.take(RequestHeader(3, 9, 5, "anyone"), b"")
        assert taken is not None
        found.append((answered(taken[0]).cluster_id, taken[1]))
    assert found == [("a", False), ("b", False), ("b", True)]
    assert answers.take(RequestHeader(3, 8, 5, "t"), b"") is None
    assert answers.take(RequestHeader(19, 7, 5, "t"), b"") is not None
    assert answers.take(RequestHeader(19, 7, 5, "t"), b"") is None


def test_equal_request_gets_its_response_in_another_order_of_requests() -> None:
    writer = CaptureWriter()
    requests = [MetadataRequest(topics=[MetadataRequestTopic(name=name)]) for name in "ab"]
    for request in (*requests, *requests):
        topics = [MetadataResponseTopic(name=topic.name) for topic in request.topics or ()]
        writer.exchange("1", 1, request, 9, MetadataResponse(topics=topics))
    answers = RecordedAnswers(read_capture(writer.lines).requests)
    found = []
    for name in "bbabaab":
        body = encode(requests["ab".index(name)], 9)
        taken = answers.take(RequestHeader(3, 9, 5, "t"), body)
        assert taken is not None
        found.append((answered(taken[0]).topics[0].name, taken[1]))
    assert [name for name, _ in found] == list("bbabaab")
    assert [is_repeated for _, is_repeated in found] == [False] * 3 + [True, False, True, True]


def test_addresses_of_brokers_are_that_of_the_server() -> None:
    writer = CaptureWriter()
    broker = MetadataResponseBroker(node_id=1, host="elsewhere", port=9092)
    writer.exchange("1", 1, MetadataRequest(topics=[]), 9, MetadataResponse(brokers=[broker]))
    [request] = read_capture(writer.lines).requests
    [found] = answered(request).brokers
    assert (found.node_id, found.host, found.port) == (1, "localhost", 1234)


def test_repeated_fetch_has_no_records() -> None:
    writer = CaptureWriter()
    part = PartitionData(partition_index=0, high_watermark=1, records=b"x" * 80)
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])])
    writer.exchange("1", 1, FetchRequest(), 11, response)
    [request] = read_capture(writer.lines).requests
    for is_repeated, records in ((False, b"x" * 80), (True, b"")):
        [topic] = answered(request, is_repeated=is_repeated).responses
        assert bytes(topic.partitions[0].records) == records

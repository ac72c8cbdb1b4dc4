"""Cost of fetches with and without a session: ``python -m system_tests.benchmarks.fetch_sessions``.

Prints, for topics of several sizes, the median time of one fetch in microseconds: of full fetches
and of incremental ones, idle or with one record. A fetch does not wait (``max_wait_ms=0``), so its
time is the work of the broker and of this client.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from minibroker.testing import MiniBroker
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.schema import Message
from minibroker_protocol.wire import RequestHeader, decode_response_header, encode_request_header
from system_tests.benchmarks.measures import Figures, topic_of
from system_tests.benchmarks.peers import Peer
from system_tests.harness.waiting import wait_until

SIZES: Final = (10, 100, 1000)
COMPARED: Final = (10, 1000)
TURNS: Final = 5
RATIO: Final = "idle fetch of a session, 1,000 to 10 partitions"
FETCHES: Final = 300
FETCH_VERSION: Final = 12
BATCH: Final = build_batch([Record(timestamp=1_700_000_000_000, value=bytes(100))])


class Connection:
    """A connection on which one request is in flight."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: Message, version: int) -> Any:
        key = type(request).__api_key__
        assert key is not None
        header = encode_request_header(RequestHeader(key, version, 1, "benchmark"))
        body = header + encode(request, version)
        self._socket.sendall(len(body).to_bytes(4, "big") + body)
        answer = self._exactly(int.from_bytes(self._exactly(4), "big"))
        _, at = decode_response_header(answer, key, version)
        return decode(registry.schema(key).response, version, answer, at)

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            received = self._socket.recv(size - len(data))
            if not received:
                raise ConnectionError("the broker closed the connection")
            data += received
        return bytes(data)


class Consumer:
    """Fetches all partitions of a topic, with a session or without."""

    def __init__(self, connection: Connection, topic: str, partitions: int) -> None:
        self._connection = connection
        self._topic = topic
        self._partitions = partitions
        self._session = 0, 0

    def fetch(self, *, with_session: bool, changed: Sequence[tuple[int, int]] = ()) -> Any:
        """Fetch; ``changed`` are the partitions with a new offset, which a full fetch ignores."""
        session_id, epoch = self._session if with_session else (0, -1)
        whole = [(index, 0) for index in range(self._partitions)]
        wanted = changed if epoch > 0 else whole
        partitions = [
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
            for index, offset in wanted
        ]
        topics = [FetchTopic(topic=self._topic, partitions=partitions)] if partitions else []
        request = FetchRequest(
            max_bytes=1 << 20, session_id=session_id, session_epoch=epoch, topics=topics
        )
        response = self._connection.ask(request, FETCH_VERSION)
        assert response.error_code == 0, response
        if with_session:
            self._session = response.session_id, epoch + 1
        return response


def produce(connection: Connection, topic: str, partition: int) -> None:
    data = PartitionProduceData(index=partition, records=BATCH)
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    connection.ask(ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics), 9)


def measure(consumer: Consumer, *, with_session: bool) -> float:
    """Median time of an idle fetch, in microseconds."""
    for _ in range(3):
        consumer.fetch(with_session=with_session)
    times: list[float] = []
    for _ in range(FETCHES):
        began = time.perf_counter()
        response = consumer.fetch(with_session=with_session)
        times.append((time.perf_counter() - began) * 1e6)
        assert bool(response.responses) != with_session
    return statistics.median(times)


def measure_with_records(connection: Connection, topic: str, partitions: int) -> float:
    """Median time of an incremental fetch that returns one record, in microseconds."""
    consumer = Consumer(connection, topic, partitions)
    for _ in range(3):
        consumer.fetch(with_session=True)
    times: list[float] = []
    changed: list[tuple[int, int]] = []
    for number in range(FETCHES):
        produce(connection, topic, 0)
        began = time.perf_counter()
        response = consumer.fetch(with_session=True, changed=changed)
        times.append((time.perf_counter() - began) * 1e6)
        assert [len(each.partitions) for each in response.responses] == [1]
        changed = [(0, number + 1)]
    return statistics.median(times)


def idle_of(partitions: int) -> str:
    """The row of an idle fetch of a session."""
    return f"idle fetch of a session, {partitions:,} partitions"


def incremental(peer: Peer) -> Figures:
    """The median time of an idle fetch of a session of few and of many partitions, in turns."""
    connection = Connection(peer.servers.split(",")[0])
    times: dict[int, list[float]] = {size: [] for size in COMPARED}
    with ExitStack() as stack:
        consumers = {}
        for size in COMPARED:
            topic = stack.enter_context(topic_of(peer, f"session-{size}", size))
            wait_until_led(connection, topic, size)
            consumers[size] = Consumer(connection, topic, size)
        for _ in range(TURNS):
            for size, consumer in consumers.items():
                times[size].append(measure(consumer, with_session=True))
    few, many = (statistics.median(times[size]) for size in COMPARED)
    return {idle_of(COMPARED[0]): few, idle_of(COMPARED[1]): many, RATIO: many / few}


def wait_until_led(connection: Connection, topic: str, partitions: int) -> None:
    """Wait until all partitions have leaders, which a new topic of Kafka has not at once."""

    def is_led() -> bool:
        response = Consumer(connection, topic, partitions).fetch(with_session=False)
        found = [each for answer in response.responses for each in answer.partitions]
        return len(found) == partitions and all(each.error_code == 0 for each in found)

    wait_until(is_led, "all partitions to have leaders")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="partitions")
    sizes = parser.parse_args().sizes
    print("partitions      full us   incremental us   with one record us")
    with MiniBroker() as broker:
        connection = Connection(broker.bootstrap_servers.split(",")[0])
        for size in sizes:
            topic = f"t-{size}"
            topics = [CreatableTopic(name=topic, num_partitions=size, replication_factor=1)]
            connection.ask(CreateTopicsRequest(topics=topics, timeout_ms=60_000), 5)
            full = measure(Consumer(connection, topic, size), with_session=False)
            idle = measure(Consumer(connection, topic, size), with_session=True)
            one = measure_with_records(connection, topic, size)
            print(f"{size:10} {full:12.0f} {idle:16.0f} {one:20.0f}")


if __name__ == "__main__":
    main()

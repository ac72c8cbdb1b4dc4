"""Forty clients that claim the largest request and send it byte by byte; others are served.

Evicted attackers come back at once, and the broker's clock may stand still.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import trustme

from minibroker.broker.metrics.definitions import CLOSED, CloseReason
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from system_tests.connections.dialling import Client, change_clock, gauge
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.minibroker, pytest.mark.slow]

ATTACKERS: Final = 40
CLAIMED_BYTES: Final = 100 * 1024 * 1024
HONEST_ADDRESS: Final = "127.0.0.1"
ATTACKING_ADDRESS: Final = "127.0.0.2"
TRICKLE_S: Final = 0.05
LARGE_BYTES: Final = 5_000_000
SOON_S: Final = 20.0
"""For a client that attackers may not hold up: long for two busy cores, and short of the minute in
which forty claims would be evicted one after the other.
"""
TOPIC: Final = "honest"
TLS_HELLO_START: Final = bytes.fromhex("160301")

Connect = Callable[[], socket.socket]


class Attack:
    """Connections that trickle, each replaced when the broker closes it."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._ending = threading.Event()
        self._streams = [self._claim() for _ in range(ATTACKERS)]
        self.reconnected = 0
        self._thread = threading.Thread(target=self._trickle, daemon=True)
        self._thread.start()

    def _claim(self) -> socket.socket:
        stream = self._connect()
        stream.sendall(CLAIMED_BYTES.to_bytes(4, "big") + b"\0")
        return stream

    def _trickle(self) -> None:
        while not self._ending.wait(TRICKLE_S):
            for index, stream in enumerate(self._streams):
                try:
                    stream.sendall(b"\0")
                except OSError:
                    stream.close()
                    self._streams[index] = self._claim()
                    self.reconnected += 1

    @property
    def goes_on(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        self._ending.set()
        self._thread.join(PATIENCE_S)
        for stream in self._streams:
            stream.close()


class Attacked(NamedTuple):
    broker: RunningBroker
    plain: tuple[str, int]
    tls: tuple[str, int]
    authority: Path


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    server = authority.issue_cert("127.0.0.1")
    server.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    settings = {"ssl.keystore.location": f"{folder}/server.pem", "message.max.bytes": "10000000"}
    broker = start_minibroker("--listener", "SSL://127.0.0.1:0", settings=settings)
    plain, tls = [(host, int(port)) for host, port in map(split, bootstrap(broker))]
    with Client(plain) as client:
        topic = CreatableTopic(name=TOPIC, num_partitions=4, replication_factor=1)
        client.ask(CreateTopicsRequest(topics=[topic]), 7)
    with broker:
        yield Attacked(broker, plain, tls, folder / "authority.pem")
        assert broker.stop() == 0


def bootstrap(broker: RunningBroker) -> list[str]:
    return broker.bootstrap_servers.split(",")


def split(address: str) -> list[str]:
    return address.rsplit(":", 1)


@pytest.fixture
def attack() -> Iterator[Callable[[Connect], Attack]]:
    begun: list[Attack] = []

    def begin(connect: Connect) -> Attack:
        begun.append(Attack(connect))
        return begun[-1]

    yield begin
    for each in begun:
        each.end()


def tls_over(stream: socket.socket, authority: Path) -> socket.socket:
    context = ssl.create_default_context(cafile=str(authority))
    return context.wrap_socket(stream, server_hostname="127.0.0.1")


@pytest.mark.parametrize(
    ("source", "is_tls", "frozen"),
    [
        pytest.param(ATTACKING_ADDRESS, False, False, id="plain"),
        pytest.param(ATTACKING_ADDRESS, False, True, id="plain, frozen clock"),
        pytest.param(ATTACKING_ADDRESS, True, False, id="TLS"),
        pytest.param(ATTACKING_ADDRESS, True, True, id="TLS, frozen clock"),
        pytest.param(HONEST_ADDRESS, False, True, id="same address"),
    ],
)
def test_others_are_served_while_forty_claims_trickle(
    attacked: Attacked,
    attack: Callable[[Connect], Attack],
    source: str,
    is_tls: bool,
    frozen: bool,
) -> None:
    address = attacked.tls if is_tls else attacked.plain

    def connect() -> socket.socket:
        stream = socket.create_connection(address, PATIENCE_S, (source, 0))
        return tls_over(stream, attacked.authority) if is_tls else stream

    change_clock(attacked.broker, freeze=frozen)
    evicted = slow_clients(attacked.broker)
    attackers = attack(connect)
    wait_until(lambda: waiting(attacked.broker) >= ATTACKERS - 2, "the attackers to claim memory")
    with Client(address, HONEST_ADDRESS) as client:
        if is_tls:
            client.socket = tls_over(client.socket, attacked.authority)
        for number in range(20):
            began = time.monotonic()
            exchange(client, number % 4, b"v" * 100)
            assert time.monotonic() - began < SOON_S
        began = time.monotonic()
        exchange(client, 0, bytes(LARGE_BYTES))
        took = time.monotonic() - began
    print(f"{LARGE_BYTES} bytes were produced and read in {took:.1f} s")
    # From the attackers' address a large request has its turn after all that came before it.
    assert took < (SOON_S if source == ATTACKING_ADDRESS else PATIENCE_S)
    assert attackers.goes_on
    assert slow_clients(attacked.broker) > evicted
    wait_until(lambda: attackers.reconnected, "an evicted attacker to come back")
    attackers.end()
    wait_until(lambda: not waiting(attacked.broker), "the attackers' claims to be forgotten")


def test_handshakes_that_stop_or_fail_end_on_a_frozen_clock(attacked: Attacked) -> None:
    change_clock(attacked.broker, freeze=True)
    with ExitStack() as stack:
        silent, begun, wrong = (
            stack.enter_context(socket.create_connection(attacked.tls, PATIENCE_S))
            for _ in range(3)
        )
        begun.sendall(TLS_HELLO_START)
        wrong.sendall(b"GET / HTTP/1.1\r\n\r\n")
        for stream in (wrong, begun, silent):
            read_to_end(stream)


def read_to_end(stream: socket.socket) -> None:
    """Wait until the broker closes a connection, whatever it sends before."""
    with suppress(ConnectionResetError):
        while stream.recv(1000):
            pass


def exchange(client: Client, partition: int, value: bytes) -> None:
    """Produce a record and read it back."""
    data = PartitionProduceData(index=partition, records=build_batch([Record(0, 0, None, value)]))
    topics = [TopicProduceData(name=TOPIC, partition_data=[data])]
    produced = client.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics), 9)
    [result] = produced.responses[0].partition_responses
    assert result.error_code == 0
    wanted = FetchPartition(
        partition=partition,
        fetch_offset=result.base_offset,
        partition_max_bytes=2 * LARGE_BYTES,
    )
    fetched = client.ask(
        FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=2 * LARGE_BYTES,
            session_epoch=-1,
            topics=[FetchTopic(topic=TOPIC, partitions=[wanted])],
        ),
        11,
    )
    [partition_data] = fetched.responses[0].partitions
    assert partition_data.error_code == 0
    assert value in bytes(partition_data.records or b"")


def waiting(broker: RunningBroker) -> float:
    return gauge(broker, "minibroker_queue_waiting", queue="request-memory")


def slow_clients(broker: RunningBroker) -> float:
    return gauge(broker, CLOSED.name, reason=CloseReason.SLOW_CLIENT.value)

"""Bytes of every bad kind on real sockets; the neighbours must not notice.

The expectations hold for Apache Kafka too (`--broker kafka`), except where a test is marked.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice

import pytest

from system_tests.attack.frames import hostile_frames
from system_tests.clients.adapters.confluent import ConfluentClient
from system_tests.clients.model import Record
from system_tests.faults.conftest import Starter
from system_tests.faults.hostile import (
    API_VERSIONS,
    HOPELESS,
    METADATA,
    UNFINISHED,
    Outcome,
    asks_and_is_answered,
    connected,
    end_sending,
    flexible_request,
    frame,
    outcome,
    request,
    send_all,
)
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import Process, processes
from system_tests.harness.processes import open_files, open_segments, private_bytes, tree
from system_tests.harness.waiting import PATIENCE_S, wait_until

SEED = 4
SOON_S = 20.0
"""For a client that others may not delay: long for two busy cores, and short compared with the
minutes after which the broker closes idle connections.
"""
# Memory that a process may keep after thousands of bad requests: caches that fill once, and the
# heap's fragmentation.
MEMORY_SLACK_BYTES = 12 * 1024 * 1024
Names = Callable[[str], str]


@pytest.fixture
def neighbour(broker: RunningBroker, fresh: Names) -> Iterator[Callable[[], None]]:
    """A well-behaved client: calling it produces, reads back and is quick about it."""
    client = ConfluentClient(broker.bootstrap_servers)
    topic = fresh("neighbour")
    client.create_topic(topic)

    def works() -> None:
        began = time.monotonic()
        [offset] = client.produce(topic, [Record(b"k", b"v")])
        assert [each.value for each in client.read(topic, 0, offset, 1)] == [b"v"]
        assert time.monotonic() - began < SOON_S

    works()
    yield works
    works()
    client.close()


@pytest.mark.parametrize("payload", [pytest.param(HOPELESS[name], id=name) for name in HOPELESS])
def test_hopeless_bytes_are_answered_or_the_connection_is_closed(
    payload: bytes, broker: RunningBroker
) -> None:
    with connected(broker.address) as stream:
        send_all(stream, payload)
        assert outcome(stream, patience_s=PATIENCE_S) in {Outcome.ANSWERED, Outcome.CLOSED}


@pytest.mark.parametrize(
    "payload", [pytest.param(UNFINISHED[name], id=name) for name in UNFINISHED]
)
def test_unfinished_frames_are_waited_for_and_end_with_the_sender(
    payload: bytes, broker: RunningBroker
) -> None:
    with connected(broker.address) as stream:
        stream.sendall(payload)
        assert outcome(stream, patience_s=0.2) is Outcome.WAITS
        stream.shutdown(socket.SHUT_WR)
        assert outcome(stream, patience_s=PATIENCE_S) is Outcome.CLOSED


def test_random_bytes_do_not_disturb_other_clients(
    broker: RunningBroker, neighbour: Callable[[], None]
) -> None:
    print(f"seed {SEED}")
    for round_, payload in enumerate(islice(hostile_frames(SEED), 400)):
        with connected(broker.address) as stream:
            send_all(stream, payload)
            if round_ % 2:
                end_sending(stream)
                assert outcome(stream, patience_s=PATIENCE_S) is not Outcome.WAITS
        if round_ % 100 == 0:
            neighbour()


def test_half_closed_client_still_gets_its_answer_or_an_end(broker: RunningBroker) -> None:
    with connected(broker.address) as stream:
        stream.sendall(request(METADATA, 1, struct.pack(">i", 0)))
        stream.shutdown(socket.SHUT_WR)
        assert outcome(stream, patience_s=PATIENCE_S) is not Outcome.WAITS


def test_slow_senders_cost_only_themselves(
    broker: RunningBroker, neighbour: Callable[[], None]
) -> None:
    honest = request(METADATA, 1, struct.pack(">i", 0))
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(broker.address)) for _ in range(60)]
        for index in range(len(honest) - 1):
            for stream in slow:
                stream.sendall(honest[index : index + 1])
            if index % 4 == 0:
                neighbour()
        for stream in slow:
            stream.sendall(honest[-1:])
        for stream in slow:
            assert outcome(stream, patience_s=PATIENCE_S) is Outcome.ANSWERED


def test_client_that_never_reads_blocks_only_itself(
    broker: RunningBroker, neighbour: Callable[[], None]
) -> None:
    question = request(METADATA, 1, struct.pack(">i", -1))
    with ExitStack() as stack:
        for _ in range(8):
            never_reading = stack.enter_context(connected(broker.address))
            never_reading.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            never_reading.setblocking(False)
            sent = 0
            while sent < 4_000_000 and select.select([], [never_reading], [], 0.2)[1]:
                sent += never_reading.send(question * 500)
            neighbour()
        # Each of them pushed until the broker stopped reading from it.
        neighbour()


def test_short_lived_connections_leave_no_state(
    broker: RunningBroker, neighbour: Callable[[], None]
) -> None:
    abort = struct.pack("ii", 1, 0)
    for index in range(600):
        with connected(broker.address) as stream:
            if index % 3 == 0:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, abort)
            if index % 3 == 1:
                send_all(stream, frame(b"\x00\x12\x00\x00")[:6])
    neighbour()


def test_connection_serves_on_after_an_error_answer(broker: RunningBroker) -> None:
    with connected(broker.address) as stream:
        asks_and_is_answered(stream)
        # An unknown version of this API alone is answered, with the versions that there are.
        stream.sendall(flexible_request(API_VERSIONS, 300))
        assert outcome(stream, patience_s=PATIENCE_S) is Outcome.ANSWERED
        asks_and_is_answered(stream)


@pytest.mark.minibroker
def test_no_process_dies_leaks_or_prints_a_traceback(start: Starter, fresh: Names) -> None:
    """The whole assortment, twice; after the first time nothing may grow any more."""
    broker = start()
    client = ConfluentClient(broker.bootstrap_servers)
    topic = fresh("topic")
    client.create_topic(topic)
    before = processes(broker)

    def assault(seed: int) -> None:
        payloads = [*HOPELESS.values(), *UNFINISHED.values(), *islice(hostile_frames(seed), 500)]
        for payload in payloads:
            with connected(broker.address) as stream:
                send_all(stream, payload)
                end_sending(stream)
                assert outcome(stream, patience_s=PATIENCE_S) is not Outcome.WAITS
        client.produce(topic, [Record(None, b"v")])

    assault(1)
    family = tree(broker.pid)
    baseline_files = {pid: settled_files(pid) for pid in family}
    baseline_bytes = {pid: private_bytes(pid) for pid in family}
    for seed in range(2, 6):
        assault(seed)

    assert identities(processes(broker)) == identities(before)
    for pid in family:
        assert settled_files(pid) <= baseline_files[pid]
        grown = private_bytes(pid) - baseline_bytes[pid]
        assert grown < MEMORY_SLACK_BYTES, f"process {pid} has grown by {grown} bytes"
    client.close()
    broker.stop()
    assert "Traceback" not in broker.printed()


def settled_files(pid: int) -> int:
    """Return the number of open files once it has stopped falling.

    Segments are opened at the first write to their partition, which any request may cause, so each
    counts once it is open a second time.
    """

    def count() -> int:
        return open_files(pid) - len(open_segments(pid))

    seen = [count()]

    def settled() -> bool:
        seen.append(count())
        return len(seen) > 10 and len(set(seen[-10:])) == 1

    wait_until(settled, f"the number of files of {pid} to settle")
    return seen[-1]


def identities(found: dict[str, Process]) -> dict[str, tuple[int | None, int]]:
    return {name: (each.pid, each.restarts) for name, each in found.items()}

"""Messages between acceptor and processor fit into one packet, and are delivered in order."""

from __future__ import annotations

import pickle

import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.admission.acceptor_messages import (
    CLOSED_MAX,
    LEAST_RECENTLY_USED_MAX,
    PROCESSOR_CONNECTIONS_MAX,
    AcceptedConnection,
    AcceptorNotices,
    CloseConnections,
    ConnectionsClosed,
    LeastRecentlyUsed,
    LeastRecentlyUsedRequest,
    OpenConnection,
    ProcessorConnections,
)
from minibroker.broker.connections.limits import LastUse
from minibroker.runtime.handoff import PACKET_BYTES_MAX, memory_handoff_pair


def test_id_has_kafkas_form() -> None:
    accepted = AcceptedConnection("PLAINTEXT", ("127.0.0.1", 9092), ("10.0.0.7", 51234), 7)
    assert accepted.connection_id == "127.0.0.1:9092-10.0.0.7:51234-7"


def test_all_messages_fit_a_packet() -> None:
    address = ("f" * 45, 65535)
    numbers = range(2**62, 2**62 + LEAST_RECENTLY_USED_MAX)
    for message in (
        AcceptedConnection("L" * 255, address, address, 2**63),
        ProcessorConnections(
            # Distinct texts: pickle writes an identical object only once.
            tuple(
                OpenConnection(n, f"{n:0>255}", f"{n:f>45}")
                for n in numbers[:PROCESSOR_CONNECTIONS_MAX]
            ),
            more=True,
        ),
        ConnectionsClosed(2**31, tuple(range(2**62, 2**62 + CLOSED_MAX))),
        LeastRecentlyUsedRequest(LEAST_RECENTLY_USED_MAX, "L" * 255),
        LeastRecentlyUsed(tuple(LastUse(n / 3, n) for n in numbers)),
        CloseConnections(tuple(numbers), 2**31 - 1),
    ):
        packet = pickle.dumps(message, 5)
        assert len(packet) < PACKET_BYTES_MAX
        assert pickle.loads(packet) == message


async def test_notices_are_delivered_in_order() -> None:
    here, there = memory_handoff_pair()
    notices = AcceptorNotices(["first"])
    notices.report("second")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notices.deliver, here)
        assert [(await there.receive())[0] for _ in range(2)] == ["first", "second"]
        await wait_all_tasks_blocked()
        notices.report("third")
        assert (await there.receive())[0] == "third"
        there.close()
        notices.report("to nobody")  # which ends it


async def test_telling_does_not_wait_for_a_slow_acceptor() -> None:
    here, there = memory_handoff_pair(capacity=1)
    notices = AcceptorNotices(())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notices.deliver, here)
        for number in range(100):
            notices.report(number)
        assert [(await there.receive())[0] for _ in range(100)] == list(range(100))
        there.close()
        notices.report("to nobody")


async def test_notices_of_one_turn_are_sent_in_one_packet() -> None:
    here, there = memory_handoff_pair()
    notices = AcceptorNotices(())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notices.deliver, here)
        await wait_all_tasks_blocked()
        notices.taken()
        notices.closed(7)
        notices.taken()
        notices.closed(5)
        notices.report("and now")
        notices.taken()
        result = [(await there.receive())[0] for _ in range(3)]
        assert result == [ConnectionsClosed(2, (7, 5)), "and now", ConnectionsClosed(1, ())]
        await wait_all_tasks_blocked()
        notices.closed(9)
        assert (await there.receive())[0] == ConnectionsClosed(0, (9,))
        there.close()
        notices.report("to nobody")


async def test_many_closed_connections_are_reported_in_several_packets() -> None:
    here, there = memory_handoff_pair()
    notices = AcceptorNotices(())
    for number in range(CLOSED_MAX + 1):
        notices.closed(number)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notices.deliver, here)
        assert (await there.receive())[0] == ConnectionsClosed(0, tuple(range(CLOSED_MAX)))
        assert (await there.receive())[0] == ConnectionsClosed(0, (CLOSED_MAX,))
        there.close()
        notices.report("to nobody")

"""Messages between acceptor and processor fit into one packet, and are delivered in order."""

from __future__ import annotations

import pickle

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.admission.acceptor_messages import (
    CLOSED_MAX,
    LEAST_RECENTLY_USED_MAX,
    PROCESSOR_CONNECTIONS_MAX,
    SLOTS,
    AcceptedConnection,
    AcceptorNotices,
    CloseConnections,
    ConnectionsClosed,
    LeastRecentlyUsed,
    LeastRecentlyUsedRequest,
    OpenConnection,
    ProcessorConnections,
    Slots,
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


def joined(processors: int, slots: int = SLOTS) -> Slots:
    made = Slots(processors, slots)
    for processor in range(processors):
        made.joined(processor)
    return made


def test_processor_queue_has_20_slots_as_in_kafka() -> None:
    one = joined(1)
    assert [one.take() for _ in range(21)] == [0] * 20 + [None]


def test_round_robin_skips_full_and_absent_processors() -> None:
    slots = joined(3, 2)
    assert [slots.take() for _ in range(3)] == [0, 1, 2]
    slots.left(1)
    assert [slots.take() for _ in range(3)] == [0, 2, None]
    slots.freed(2)
    assert slots.take() == 2
    slots.joined(1)
    assert [slots.take() for _ in range(3)] == [1, 1, None]


def test_no_processors_means_no_slots() -> None:
    assert Slots(2).take() is None


def test_turn_is_lost_while_full() -> None:
    slots = joined(2, 1)
    assert [slots.take(), slots.take()] == [0, 1]
    slots.freed(1)
    assert slots.take() == 1
    slots.freed(0)
    slots.freed(1)
    assert slots.take() == 0


def test_with_one_slot_each_waits_for_the_one_before() -> None:
    slots = joined(1, 1)
    assert slots.take() == 0
    for _ in range(4):
        assert slots.take() is None
        slots.freed(0)
        assert slots.take() == 0


def test_several_are_freed_at_a_time_but_never_more_than_are_in_use() -> None:
    slots = joined(1, 3)
    assert [slots.take() for _ in range(4)] == [0, 0, 0, None]
    slots.freed(0, 2)
    with pytest.raises(ValueError, match="was not in use"):
        slots.freed(0, 2)
    assert [slots.take() for _ in range(3)] == [0, 0, None]


def test_use_is_shown() -> None:
    slots = joined(1, 5)
    assert (slots.used(0), slots.peak(0)) == (0, 0)
    for _ in range(3):
        slots.take()
    slots.freed(0)
    assert (slots.used(0), slots.peak(0)) == (2, 3)
    slots.left(0)
    assert (slots.used(0), slots.peak(0)) == (0, 3)


@pytest.mark.parametrize("there", [True, False])
def test_freeing_untaken_slot_is_an_error(there: bool) -> None:
    slots = joined(1) if there else Slots(1)
    with pytest.raises(ValueError, match="processor 0 freed a slot"):
        slots.freed(0)


@given(st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(0, 20), max_size=60))
def test_no_processor_ever_holds_more_than_its_slots(
    processors: int, count: int, steps: list[int]
) -> None:
    slots = joined(processors, count)
    held = [0] * processors
    for step in steps:
        if step >= processors:
            taken = slots.take()
            assert (taken is None) == all(used == count for used in held)
            if taken is not None:
                held[taken] += 1
        elif held[step]:
            slots.freed(step)
            held[step] -= 1
        assert [slots.used(processor) for processor in range(processors)] == held
        assert max(held) <= count

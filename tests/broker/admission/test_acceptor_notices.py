"""Notices reach the acceptor in order, and adding one never waits."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.admission.acceptor_messages import CLOSED_MAX, ConnectionsClosed
from minibroker.broker.admission.acceptor_notices import AcceptorNotices
from minibroker.runtime.handoff import memory_handoff_pair


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

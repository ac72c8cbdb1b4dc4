"""What a processor tells the acceptor of its connections, and whom it sends away when told to."""

from __future__ import annotations

from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.network.accepted import (
    PRESENT_MAX,
    Leave,
    Offers,
    OffersWanted,
    Open,
    Present,
)
from minibroker.observability.definitions import CloseReason
from tests.network.test_processor import HELLO, LISTENER, house
from tests.roles.conftest import MakeEnvironment


async def test_an_acceptor_is_told_of_every_end_once(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with house(make_env) as at:
        clients = [await at.connect() for _ in range(3)]
        clients[0].close()
        await at.listen()
        await clients[1].stream.send_all(b"\xff\xff\xff\xff")  # no frame
        await at.listen()
        assert at.closed_numbers == [1, 2]


async def test_a_reborn_acceptor_is_told_of_what_is_open_and_of_its_end(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with house(make_env) as at:
        clients = [await at.connect() for _ in range(2)]
        waiting = await at.hand_over()  # not taken before the acceptor dies
        assert at.handoff is not None
        at.handoff.close()
        clients[0].close()
        await wait_all_tasks_blocked()
        await at.accept()
        assert at.present == Present(
            (Open(2, LISTENER, "10.0.0.1"), Open(3, LISTENER, "10.0.0.1")), more=False
        )
        for number, client in ((2, clients[1]), (3, waiting)):
            client.close()
            await at.listen()
            assert at.closed_numbers[-1] == number
        assert len(at.closed_numbers) == 2


async def test_many_connections_are_told_in_several_packets(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with house(make_env) as at:
        for _ in range(PRESENT_MAX + 1):
            await at.connect()
        assert at.handoff is not None
        at.handoff.close()
        await at.accept()
        assert at.present is not None
        assert at.present.more
        assert len(at.present.connections) == PRESENT_MAX
        await at.listen()
        assert at.told == [Present((Open(PRESENT_MAX + 1, LISTENER, "10.0.0.1"),), more=False)]


async def test_the_least_recently_used_are_offered_and_leave_when_told(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with house(make_env) as at:
        clients = [await at.connect() for _ in range(4)]
        await clients[0].ask(HELLO, 4)
        assert at.handoff is not None
        await at.handoff.send(OffersWanted(2, spared=None))
        await at.listen()
        (offers,) = at.told
        assert isinstance(offers, Offers)
        assert [use.number for use in offers.uses] == [2, 3]
        await at.handoff.send(OffersWanted(2, spared=LISTENER))
        await at.listen()
        assert at.told[1] == Offers(())
        await at.handoff.send(Leave((2, 99)))
        await at.listen()
        assert at.closed_numbers == [2]
        assert await clients[1].wait_closed() == b""
        assert at.closed() == {CloseReason.MAX_CONNECTIONS: 1}

"""Reports of a processor to the acceptor, excess connections, and records before a wait."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission.connection_events import ExceededLimit
from minibroker.broker.admission.rejected_connections import (
    PROCESSOR_CONNECTIONS_MAX,
    AcceptedConnection,
    CloseConnections,
    LeastRecentlyUsed,
    LeastRecentlyUsedRequest,
    OpenConnection,
    ProcessorConnections,
)
from minibroker.broker.connections.limits import SLOTS
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.request_loop import PER_TURN
from minibroker.broker.process.messages import DetailsRequest
from minibroker.broker.quotas.manager import ClientQuotaManager
from minibroker.broker.roles.processor import TAKEN_BEFORE_YIELD, TAKEN_BEFORE_YIELD_IF_BUSY
from minibroker.runtime.handoff import MemoryHandoff
from minibroker.runtime.stream import memory_stream_pair
from tests.broker.process.conftest import MakeEnvironment
from tests.broker.roles.running_processor import (
    HELLO,
    LISTENER,
    connected_both_ways,
    running_processor,
)
from tests.simulation.client import SimulatedClient


@connected_both_ways
async def test_acceptor_gets_every_close_once(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env) as at:
        clients = [await at.connect() for _ in range(3)]
        clients[0].close()
        await at.listen()
        await clients[1].stream.send_all(b"\xff\xff\xff\xff")  # no frame
        await at.listen()
        assert at.closed_numbers == [1, 2]


@connected_both_ways
async def test_restarted_acceptor_gets_open_connections_and_their_closes(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env) as at:
        clients = [await at.connect() for _ in range(2)]
        waiting = await at.hand_over()  # not taken before the acceptor dies
        assert at.handoff is not None
        at.handoff.close()
        clients[0].close()
        await wait_all_tasks_blocked()
        await at.accept()
        assert at.present == ProcessorConnections(
            (OpenConnection(2, LISTENER, "10.0.0.1"), OpenConnection(3, LISTENER, "10.0.0.1")),
            more=False,
        )
        for number, client in ((2, clients[1]), (3, waiting)):
            client.close()
            await at.listen()
            assert at.closed_numbers[-1] == number
        assert len(at.closed_numbers) == 2


@connected_both_ways
async def test_many_connections_are_reported_in_several_packets(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env) as at:
        for _ in range(PROCESSOR_CONNECTIONS_MAX + 1):
            await at.connect()
        assert at.handoff is not None
        at.handoff.close()
        await at.accept()
        assert at.present is not None
        assert at.present.more
        assert len(at.present.connections) == PROCESSOR_CONNECTIONS_MAX
        await at.listen()
        assert at.told == [
            ProcessorConnections(
                (OpenConnection(PROCESSOR_CONNECTIONS_MAX + 1, LISTENER, "10.0.0.1"),), more=False
            )
        ]


@connected_both_ways
async def test_least_recently_used_connections_are_offered_and_closed_on_request(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env) as at:
        clients = [await at.connect() for _ in range(4)]
        await clients[0].ask(HELLO, 4)
        assert at.handoff is not None
        await at.handoff.send(LeastRecentlyUsedRequest(2, protected=None))
        await at.listen()
        (offers,) = at.told
        assert isinstance(offers, LeastRecentlyUsed)
        assert [use.number for use in offers.uses] == [2, 3]
        await at.handoff.send(LeastRecentlyUsedRequest(2, protected=LISTENER))
        await at.listen()
        assert at.told[1] == LeastRecentlyUsed(())
        await at.handoff.send(CloseConnections((2, 99), 3))
        await at.listen()
        assert at.closed_numbers == [2]
        assert at.controller is not None
        (rejection,) = (await at.controller.request(DetailsRequest())).recent.rejections
        # The acceptor's limit; this process may not have the config yet.
        assert rejection.limit == ExceededLimit("max.connections", 3)
        assert await clients[1].wait_closed() == b""
        assert at.closed() == {CloseReason.MAX_CONNECTIONS: 1}


@connected_both_ways
@pytest.mark.parametrize("requests", [0, 2])
async def test_new_connections_do_not_starve_established_ones(
    make_env: MakeEnvironment,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    requests: int,
) -> None:
    receive = MemoryHandoff.receive

    async def receive_at_once(handoff: MemoryHandoff) -> tuple[Any, Any]:
        # As over a socket: available messages are taken without yielding.
        try:
            packet, connection = handoff._incoming.receive_nowait()
        except trio.WouldBlock:
            return await receive(handoff)
        return pickle.loads(packet), connection

    async with running_processor(make_env) as at:
        served = await at.connect()
        for _ in range(requests):
            await served.ask(HELLO, 4)
        monkeypatch.setattr(MemoryHandoff, "receive", receive_at_once)
        assert isinstance(at.handoff, MemoryHandoff)
        for number in range(100, 100 + SLOTS):
            _, server = memory_stream_pair()
            accepted = AcceptedConnection(LISTENER, server.local, server.peer, number)
            at.handoff._outgoing.send_nowait((pickle.dumps(accepted), server))
        report, _ = await receive(at.handoff)  # after one turn, or two
        in_a_row = TAKEN_BEFORE_YIELD_IF_BUSY if requests > 1 else TAKEN_BEFORE_YIELD
        assert report.taken <= 2 * in_a_row < SLOTS


@connected_both_ways
async def test_connection_that_did_not_arrive_is_reported_as_closed(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env) as at:
        assert at.handoff is not None
        # The kernel leaves a descriptor out where there is no room for it.
        await at.handoff.send(AcceptedConnection(LISTENER, ("127.0.0.1", 9092), ("10.0.0.1", 5), 7))
        await at.listen()
        assert (at.taken, at.closed_numbers) == (1, [7])
        assert at.closed() == {CloseReason.LIMIT: 1}


async def test_served_connection_does_not_wait_for_many_new_or_closing_ones(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env) as at:
        work_time = at.env.work_time
        trio.lowlevel.add_instrument(work_time)
        served = await at.connect()
        crowd = [await at.connect() for _ in range(40)]
        for _ in range(2):
            await served.ask(HELLO, 4)
        answered: list[int] = []

        async def ask(client: SimulatedClient) -> None:
            await client.ask(HELLO, 4)
            answered.append(work_time.turns)

        async with trio.open_nursery() as nursery:
            for client in crowd:
                nursery.start_soon(ask, client)
        assert max(Counter(answered).values()) <= 2 * PER_TURN
        began = work_time.turns
        for client in crowd:
            client.close()
        await served.ask(HELLO, 4)
        assert work_time.turns - began < len(crowd) / PER_TURN
        assert at.still_open() > 1, "the crowd is still on its way out"
        while at.still_open() > 1:
            await at.listen()
        trio.lowlevel.remove_instrument(work_time)


async def test_deferred_record_is_kept_before_a_connection_waits(
    make_env: MakeEnvironment, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bool] = []
    monkeypatch.setattr(ClientQuotaManager, "complete_deferred", lambda _: kept.append(True))
    async with running_processor(make_env) as at:
        client = await at.connect()
        await client.ask(HELLO, 4)
        assert kept  # As it waited for its first request.

"""The acceptor passes connections to processors, waits while all are full, and handles restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission.rejected_connections import (
    ACCEPTED_IN_STORM,
    ADMIT_INTERVAL_S,
    AT_ONCE,
    STORM_S,
    AcceptedConnection,
    ConnectionsClosed,
    OpenConnection,
    ProcessorConnections,
)
from minibroker.broker.connections.limits import SLOTS
from minibroker.broker.metadata.image import Image
from minibroker.broker.metrics.definitions import (
    ACCEPTED,
    ACCEPTOR_BLOCKED,
    CLOSED,
    COUNTED,
    QUEUE_PEAK,
    QUEUE_USED,
    CloseReason,
)
from minibroker.broker.network.reports import AcceptorReport
from minibroker.broker.process.environment import ACCEPTOR, CONTROLLER, Environment, handoff_name
from minibroker.broker.process.messages import (
    DetailsRequest,
    ImageApplied,
    RegisterRole,
    RoleRegistered,
)
from minibroker.broker.roles.acceptor import ACCEPTED_BEFORE_YIELD, acceptor
from minibroker.broker.settings import Settings
from minibroker.runtime.addressing import MemorySource
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.handoff import Connection, Handoff, MemoryHandoff
from minibroker.runtime.rpc import RpcConnection
from minibroker.runtime.stream import MemoryStream, memory_stream_pair
from minibroker.runtime.system import descriptors_max
from tests.broker.process.conftest import MakeEnvironment
from tests.broker.process.shortage import RealTime, Short, conditions, frozen

LISTENER = "PLAINTEXT"


class RunningAcceptor:
    """An acceptor with a controller, and processors that the test plays."""

    def __init__(self, env: Environment, source: MemorySource) -> None:
        self.env = env
        self.source = source
        self.controller: RpcConnection | None = None

    async def processor(self, index: int, *connections: OpenConnection) -> Handoff:
        """A new life of a processor, or an old one with connections, which now listens."""
        handoff = await self.env.transport.listen_handoff(handoff_name(index)).accept()
        await handoff.send(ProcessorConnections(connections, more=False))
        await wait_all_tasks_blocked()
        return handoff

    async def connect(self, count: int = 1) -> list[MemoryStream]:
        clients = [await self.source.connect() for _ in range(count)]
        await wait_all_tasks_blocked()
        return clients

    def counted(self, name: str, *labels: str) -> int:
        counters = self.env.metrics.snapshot().counters
        return counters.get((name, (LISTENER, *labels)), 0)

    def gauge(self, name: str, processor: int) -> int:
        return int(self.env.metrics.snapshot().gauges[name, (f"connections-{processor}",)])


@asynccontextmanager
async def running_acceptor(
    make_env: MakeEnvironment,
    processors: int = 2,
    source: MemorySource | None = None,
    *pairs: str,
) -> AsyncIterator[RunningAcceptor]:
    source = source or MemorySource()
    ready = trio.Event()
    env = make_env(
        ACCEPTOR,
        settings=Settings.from_sources(pairs=pairs),
        processors=processors,
        listeners={LISTENER: source},
        ready=ready.set,
        incarnation=2,
    )
    made = RunningAcceptor(env, source)

    def welcome(request: Any) -> RoleRegistered | None:
        if isinstance(request, ImageApplied):
            return None
        assert isinstance(request, RegisterRole)
        return RoleRegistered(Image(controller_epoch=1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor, env)
        made.controller = RpcConnection(await env.transport.listen(CONTROLLER).accept(), welcome)
        nursery.start_soon(made.controller.run)
        await ready.wait()
        yield made
        env.stopping.set()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def drained(handoff: Handoff) -> list[AcceptedConnection]:
    """What waits at a processor, without freeing any slot."""
    assert isinstance(handoff, MemoryHandoff)
    found: list[AcceptedConnection] = []
    while handoff._incoming.statistics().current_buffer_used:
        found.append((await handoff.receive())[0])
    return found


async def test_connections_are_dealt_out_in_turn_with_names_of_their_own(
    make_env: MakeEnvironment,
) -> None:
    async with running_acceptor(make_env) as at:
        processors = [await at.processor(index) for index in range(2)]
        clients = await at.connect(5)
        first, second = [await drained(processor) for processor in processors]
        assert (len(first), len(second)) == (3, 2)
        accepted = [*first, *second]
        assert {each.peer for each in accepted} == {client.local for client in clients}
        assert {each.local for each in accepted} == {at.source.address}
        assert {each.listener for each in accepted} == {LISTENER}
        # Unique in all lives of the acceptor, so the life is part of the number.
        assert sorted(each.number - (2 << 32) for each in accepted) == [1, 2, 3, 4, 5]
        assert at.counted(ACCEPTED.name) == 5


async def test_transferred_connection_works_in_receiving_process(make_env: MakeEnvironment) -> None:
    async with running_acceptor(make_env, 1) as at:
        processor = await at.processor(0)
        (client,) = await at.connect()
        _, connection = await processor.receive()
        assert isinstance(connection, MemoryStream)
        await connection.send_all(b"hello")
        room = memoryview(bytearray(9))
        assert await client.receive_into(room) == 5


async def test_while_all_are_full_one_connection_waits_and_that_is_counted(
    make_env: MakeEnvironment,
) -> None:
    async with running_acceptor(make_env) as at:
        processors = [await at.processor(index) for index in range(2)]
        await at.connect(2 * SLOTS)
        assert at.counted(ACCEPTOR_BLOCKED.name) == 0
        await at.connect(3)
        assert at.counted(ACCEPTED.name) == 2 * SLOTS + 1
        assert [at.gauge(QUEUE_USED.name, index) for index in range(2)] == [SLOTS, SLOTS]
        assert len(await drained(processors[1])) == SLOTS
        await processors[1].send(ConnectionsClosed(1, ()))
        await wait_all_tasks_blocked()
        assert len(await drained(processors[1])) == 1
        assert at.counted(ACCEPTOR_BLOCKED.name) > 0
        assert at.counted(ACCEPTED.name) == 2 * SLOTS + 2
        assert at.gauge(QUEUE_PEAK.name, 1) == SLOTS


async def test_slots_in_use_are_reported(make_env: MakeEnvironment) -> None:
    async with running_acceptor(make_env) as at:
        for index in range(2):
            await at.processor(index)
        await at.connect(3)
        assert at.controller is not None
        report = await at.controller.request(DetailsRequest())
        assert isinstance(report, AcceptorReport)
        assert report.slots == (2, 1)
        assert report.figures.total == 3


async def test_connection_events_are_recorded(make_env: MakeEnvironment) -> None:
    async with running_acceptor(make_env, 1) as at:
        processor = await at.processor(0)
        await at.connect(SLOTS + 1)
        assert at.controller is not None
        report: AcceptorReport = await at.controller.request(DetailsRequest())
        assert report.figures.listeners[0].waiting == 1
        last = [(each.kind, each.processor, each.reason) for each in report.recent.events[-4:]]
        assert last == [
            ("accepted", None, None),
            ("handed", 0, None),
            ("accepted", None, None),
            ("waiting", None, "processors"),
        ]
        processor.close()
        await wait_all_tasks_blocked()
        processor = await at.processor(0)
        report = await at.controller.request(DetailsRequest())
        assert report.figures.listeners[0].waiting == 0
        assert report.recent.events[-1].kind == "handed"


async def test_processor_gets_no_connections_before_it_listens(make_env: MakeEnvironment) -> None:
    async with running_acceptor(make_env, 1) as at:
        (client,) = await at.connect()
        handoff = await at.env.transport.listen_handoff(handoff_name(0)).accept()
        assert await drained(handoff) == []
        await handoff.send(ProcessorConnections((), more=False))
        await wait_all_tasks_blocked()
        (accepted,) = await drained(handoff)
        assert accepted.peer == client.local


async def test_slots_of_dead_processor_are_free_after_restart(
    make_env: MakeEnvironment,
) -> None:
    async with running_acceptor(make_env, 1) as at:
        first = await at.processor(0)
        lost = await at.connect(SLOTS + 1)
        first.close()
        await wait_all_tasks_blocked()
        room = memoryview(bytearray(1))
        assert await lost[0].receive_into(room) == 0  # Closed, so the client dials again.
        second = await at.processor(0)
        assert len(await drained(second)) == 1  # The one that waited.
        await at.connect(SLOTS - 1)
        assert len(await drained(second)) == SLOTS - 1


class Mute(Handoff):
    """A processor that dies while it is handed something."""

    def __init__(self, inner: Handoff) -> None:
        self._inner = inner

    async def send(self, message: object, connection: Connection | None = None) -> None:
        self._inner.close()
        await self._inner.send(message, connection)

    async def receive(self) -> tuple[Any, Connection | None]:
        return await self._inner.receive()

    def close(self) -> None:
        self._inner.close()


async def test_connection_that_dies_with_its_processor_is_counted(
    make_env: MakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = make_env(ACCEPTOR).transport
    connect = transport.connect_handoff

    async def connect_mute(name: str) -> Handoff:
        return Mute(await connect(name))

    monkeypatch.setattr(transport, "connect_handoff", connect_mute)
    async with running_acceptor(make_env, 1) as at:
        await at.processor(0)
        (client,) = await at.connect()
        assert await client.receive_into(memoryview(bytearray(1))) == 0
        assert at.counted(CLOSED.name, CloseReason.PROCESS_DIED.value) == 1
        assert at.controller is not None
        (refusal,) = (await at.controller.request(DetailsRequest())).recent.rejections
        assert (refusal.event.reason, refusal.event.processor) == ("process_died", 0)


async def test_shortage_of_descriptors_is_waited_out(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    source = Short()
    async with running_acceptor(make_env, 1, source) as at:
        processor = await at.processor(0)
        await source.connect()
        accepted, _ = await processor.receive()
        assert isinstance(accepted, AcceptedConnection)
        assert trio.current_time() == pytest.approx(0.2)


async def test_shortage_of_descriptors_is_shown_and_ends_while_the_clock_is_frozen(
    make_env: MakeEnvironment,
    autojump_clock: MockClock,
    real_time: RealTime,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Short(failures=30)
    async with running_acceptor(make_env, 1, source) as at:
        processor = await at.processor(0)
        await source.connect()
        with frozen(autojump_clock):
            await real_time.pass_s(2)
            (condition,) = at.env.conditions.all()
            assert condition.kind == "descriptors_exhausted"
            assert f"may open {descriptors_max()} files" in condition.text
            assert await drained(processor) == []
            await real_time.pass_s(3)
            assert len(await drained(processor)) == 1
            assert conditions(at.env) == []
    assert [record.message for record in caplog.records if "descriptors" in record.message] == [
        "descriptors are exhausted",
        "descriptors are available again",
    ]


@pytest.fixture
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close no delayed connection, however slow the machine is."""

    async def sleep_real(_clock: Any, _seconds: float) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(SimulatedClock, "sleep_real", sleep_real)


@pytest.mark.usefixtures("no_ticks")
async def test_descriptor_shortage_closes_delayed_rejections(make_env: MakeEnvironment) -> None:
    source = Short(failures=0)
    async with running_acceptor(make_env, 1, source, "kafka_connections_max=0") as at:
        await at.processor(0)
        clients = await at.connect(AT_ONCE + 2)
        assert [client._incoming.ended for client in clients[-3:]] == [True, False, False]
        source.failures = 1
        clients += await at.connect()
        assert all(client._incoming.ended for client in clients)


class Endless(MemorySource):
    """Connections that arrive faster than they are rejected, so that no task ever waits."""

    given = 0

    async def accept(self) -> Connection:
        self.given += 1
        assert self.given < 1000, "nobody else has ever had a turn"
        return memory_stream_pair()[1]


@pytest.mark.usefixtures("no_ticks")
async def test_storm_of_rejected_connections_does_not_starve_other_tasks(
    make_env: MakeEnvironment,
) -> None:
    source = Endless()
    async with running_acceptor(make_env, 1, source, "kafka_connections_max=0") as at:
        handoff = await at.env.transport.listen_handoff(handoff_name(0)).accept()
        await handoff.send(ProcessorConnections((), more=False))
        while source.given <= AT_ONCE + ACCEPTED_BEFORE_YIELD:
            await trio.lowlevel.checkpoint()
        before, turns = source.given, 20
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        assert source.given - before <= (turns + 1) * ACCEPTED_IN_STORM
        at.env.stopping.set()
        handoff.close()


async def test_nothing_is_accepted_before_every_processor_has_reported(
    make_env: MakeEnvironment,
) -> None:
    async with running_acceptor(make_env) as at:
        first = await at.processor(
            0, OpenConnection(1, LISTENER, "10.0.0.1"), OpenConnection(2, LISTENER, "10.0.0.1")
        )
        await at.connect()
        assert at.counted(ACCEPTED.name) == 0
        await at.processor(1, OpenConnection(3, LISTENER, "10.0.0.2"))
        assert at.counted(ACCEPTED.name) == 1
        assert at.env.metrics.snapshot().gauges[COUNTED.name, (LISTENER,)] == 4
        first.close()
        await wait_all_tasks_blocked()
        assert at.env.metrics.snapshot().gauges[COUNTED.name, (LISTENER,)] in (1, 2)
        await at.connect(3)
        assert at.counted(ACCEPTED.name) == 4  # the other one continues


async def test_acceptor_stops_when_requested(make_env: MakeEnvironment) -> None:
    async with running_acceptor(make_env) as at:
        await at.processor(0)


async def test_connections_are_admitted_one_by_one_in_a_storm_only(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    source = MemorySource()
    limit = "kafka_connections_max_overrides=10.0.0.9:0"
    async with running_acceptor(make_env, 1, source, limit) as at:
        processor = await at.processor(0)

        async def come_in(count: int) -> float:
            began = trio.current_time()
            for _ in range(count):
                await source.connect()
            for _ in range(count):
                await processor.receive()
            return trio.current_time() - began

        assert await come_in(5) == 0
        for _ in range(AT_ONCE + 50):
            await source.connect("10.0.0.9")
        # The first connections find none delayed yet, and do not wait themselves.
        assert await come_in(5) == pytest.approx(4 * ADMIT_INTERVAL_S)
        await trio.sleep(2 * STORM_S)
        assert await come_in(5) == 0

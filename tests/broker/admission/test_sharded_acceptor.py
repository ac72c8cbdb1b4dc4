"""A processor accepts connections itself, and is linked to the other processors."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission import sharded_acceptor
from minibroker.broker.admission.connection_events import ConnectionEvents
from minibroker.broker.admission.rejected_connections import (
    ADMIT_INTERVAL_S,
    AT_ONCE,
    AcceptedConnection,
    DescriptorHealth,
)
from minibroker.broker.admission.sharded_acceptor import (
    BATCH_MESSAGES_MAX,
    OnAdmitted,
    ProcessorHello,
    ProcessorLinks,
    ShardedAcceptor,
)
from minibroker.broker.metadata.image import Image
from minibroker.broker.metrics.definitions import (
    ACCEPTED,
    ACCEPTOR_BLOCKED,
    CLOSED,
    COUNTED,
    CloseReason,
)
from minibroker.broker.metrics.log import ConnectionCloses, EventLog
from minibroker.broker.process.environment import PROCESSOR, Environment, tokens_name
from minibroker.broker.settings import Settings
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.addressing import MemorySource
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.rpc import ChannelClosed
from minibroker.runtime.stream import memory_stream_pair
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from tests.broker.process.conftest import MakeEnvironment
from tests.broker.process.shortage import RealTime, Short, conditions, frozen
from tests.simulation.client import SimulatedClient

LISTENER = "PLAINTEXT"
HELLO = ApiVersionsRequest(client_software_name="me", client_software_version="1")


@asynccontextmanager
async def sharded(
    directory: Path, clock: MockClock, *limits: str, processors: int = 2
) -> AsyncIterator[TaskBroker]:
    pairs = ["acceptor.mode=sharded", f"num.network.threads={processors}", *limits]
    settings = Settings.from_sources(pairs=pairs)
    broker = TaskBroker(settings, directory, clock=SimulatedClock(clock), seed=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        yield broker
        await broker.stop()


def gate_of(
    env: Environment,
    events: ConnectionEvents,
    log: EventLog,
    take: OnAdmitted,
    health: DescriptorHealth | None = None,
) -> ShardedAcceptor:
    closes = ConnectionCloses(env.metrics, log)
    health = health or DescriptorHealth(env, log)
    return ShardedAcceptor(env, events, closes, log, take, descriptor_health=health)


async def dial(broker: TaskBroker, part: int, host: str = "10.0.0.1") -> SimulatedClient:
    return SimulatedClient(await broker.sources[LISTENER].connect(host, part))


def figure(broker: TaskBroker, part: int, name: str, *labels: str) -> int:
    snapshot = broker.environment(f"processor-{part}").metrics.snapshot()
    series = (name, (LISTENER, *labels))
    return int({**snapshot.counters, **snapshot.gauges}.get(series, 0))


async def test_connection_over_limit_is_closed_and_counted(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with sharded(tmp_path, autojump_clock, "kafka_connections_max=1") as broker:
        first = await dial(broker, 0)
        await first.ask(HELLO, 4)
        late = await dial(broker, 1)
        await late.send_request(HELLO, 4)
        assert await late.wait_closed() == b""
        reason = CloseReason.DROPPED.value
        assert figure(broker, 1, CLOSED.name, reason) == 1
        assert [figure(broker, part, ACCEPTED.name) for part in (0, 1)] == [1, 1]
        assert [figure(broker, part, COUNTED.name) for part in (0, 1)] == [1, 0]
        first.close()
        await wait_all_tasks_blocked()
        assert figure(broker, 0, COUNTED.name) == 0
        await (await dial(broker, 1)).ask(HELLO, 4)


async def test_sharded_broker_has_no_acceptor(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with sharded(tmp_path, autojump_clock) as broker:
        assert "acceptor" not in broker.names
        for part in (0, 1):
            await (await dial(broker, part)).ask(HELLO, 4)


async def test_connection_ids_are_unique_across_processes_and_incarnations(
    make_env: MakeEnvironment,
) -> None:
    numbers = []
    for index in range(3):
        for life in (1, 2):
            env = make_env(
                "processor",
                index,
                processors=3,
                incarnation=life,
                listeners={LISTENER: MemorySource()},
            )
            log, events = EventLog("test"), ConnectionEvents(life, lambda: 0.0)
            made = gate_of(env, events, log, print)
            for _ in range(4):
                made._start_admission(LISTENER, memory_stream_pair()[1])
            happened = events.recent().events
            numbers += [each.number for each in happened if each.kind == "accepted"]
    assert len(set(numbers)) == len(numbers) == 24


async def test_connections_wait_while_the_token_home_is_down(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with sharded(tmp_path, autojump_clock, "kafka_connections_max=2") as broker:
        broker.kill("processor-0")
        clients = [await dial(broker, 1) for _ in range(3)]
        await wait_all_tasks_blocked()
        assert figure(broker, 1, COUNTED.name) == 0
        for client in clients[:2]:
            await client.ask(HELLO, 4)
        assert await clients[2].wait_closed() == b""


async def test_waiting_connections_are_bounded_and_the_rest_is_accepted_later(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharded_acceptor, "WAITING_MAX", 3)
    async with sharded(tmp_path, autojump_clock, "kafka_connections_max=9") as broker:
        broker.kill("processor-0")
        clients = [await dial(broker, 1) for _ in range(7)]
        await wait_all_tasks_blocked()
        assert figure(broker, 1, ACCEPTED.name) == 3
        for client in clients:
            await client.ask(HELLO, 4)
        assert figure(broker, 1, ACCEPTED.name) == 7
        assert figure(broker, 1, ACCEPTOR_BLOCKED.name) > 0


@pytest.mark.parametrize("way", ["stop", "kill"])
async def test_waiting_connections_are_closed_at_the_end(
    autojump_clock: MockClock, tmp_path: Path, way: str
) -> None:
    async with sharded(tmp_path, autojump_clock, "kafka_connections_max=9") as broker:
        broker.kill("processor-0")
        client = await dial(broker, 1)
        await wait_all_tasks_blocked()
        if way == "kill":
            broker.kill("processor-1")
        else:
            broker.environment("processor-1").stopping.set()
        assert await client.wait_closed() == b""


class RecordedLog:
    """A log's warnings."""

    def __init__(self) -> None:
        self.warnings: list[dict[str, object]] = []

    def warning(self, _message: str, **fields: object) -> None:
        self.warnings.append(fields)


def test_limits_without_effect_are_logged_once(make_env: MakeEnvironment) -> None:
    settings = Settings.from_sources(pairs=["acceptor.mode=sharded"])
    logs: list[RecordedLog] = []
    rate = {"connection_creation_rate": "5"}
    brokers = {"max.connections": "5", "kafka_connections_max": "5"}
    configs = {("ips", "10.0.0.1"): rate, ("brokers", "<default>"): brokers}
    for index in (0, 1):
        env = make_env("processor", index, settings=settings, processors=2)
        logs.append(RecordedLog())
        log = EventLog("test")
        made = gate_of(env, ConnectionEvents(1, lambda: 0.0), log, print)
        made._log = logs[-1]  # type: ignore[assignment]
        for number in (1, 2):
            made.on_image(Image(1, number, broker_configs_number=number, configs=configs))
        more = {**configs, ("ips", "::1"): rate}
        made.on_image(Image(1, 3, broker_configs_number=2, configs=more))
    assert logs[1].warnings == []
    assert [fields["limits"] for fields in logs[0].warnings] == [
        "max.connections, the quota of 10.0.0.1",
        "the quota of ::1",
    ]


async def test_descriptor_exhaustion_is_retried(
    autojump_clock: MockClock, make_env: MakeEnvironment
) -> None:
    class Exhausted(MemorySource):
        failures = 2

        async def accept(self):  # type: ignore[no-untyped-def]
            if self.failures:
                self.failures -= 1
                raise OSError(errno.ENOBUFS, "No buffer space available")
            return await super().accept()

    source = Exhausted()
    env = make_env("processor", 0, listeners={LISTENER: source})
    taken = []
    events = ConnectionEvents(1, lambda: 0.0)
    made = gate_of(env, events, EventLog("test"), lambda *who: taken.append(who))
    made.on_image(Image(1, 1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await source.connect()
        await trio.sleep(1)
        assert len(taken) == 1
        nursery.cancel_scope.cancel()


async def test_sharded_acceptor_without_descriptors_shows_it_and_recovers_on_a_frozen_clock(
    autojump_clock: MockClock, make_env: MakeEnvironment, real_time: RealTime
) -> None:
    source = Short(failures=30)
    env = make_env("processor", 0, listeners={LISTENER: source})
    taken: list[AcceptedConnection] = []
    health = DescriptorHealth(env, EventLog("test"))
    made = gate_of(
        env,
        ConnectionEvents(1, lambda: 0.0),
        EventLog("test"),
        lambda who, _: taken.append(who),
        health,
    )
    made.on_image(Image(1, 1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        nursery.start_soon(health.run)
        await source.connect()
        with frozen(autojump_clock):
            await real_time.pass_s(2)
            assert conditions(env) == ["descriptors_exhausted"]
            assert taken == []
            await real_time.pass_s(1)
            assert len(taken) == 1
            await real_time.pass_s(2)
            assert conditions(env) == []
        nursery.cancel_scope.cancel()


async def test_connections_are_admitted_one_by_one_during_a_storm(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    limit = "kafka_connections_max_overrides=10.0.0.9:0"
    async with sharded(tmp_path, autojump_clock, limit) as broker:
        source = broker.sources[LISTENER]
        stormers = [await source.connect("10.0.0.9", 0) for _ in range(AT_ONCE + 50)]
        began = trio.current_time()
        clients = [await dial(broker, 0) for _ in range(5)]
        for client in clients:
            await client.ask(HELLO, 4)
        waited = trio.current_time() - began
        assert waited == pytest.approx(4 * 2 * ADMIT_INTERVAL_S, abs=ADMIT_INTERVAL_S)
        for stormer in stormers:
            stormer.close()


class Life:
    """One process of a processor, and what its links reported."""

    def __init__(self, make_env: MakeEnvironment, index: int, life: int = 1, of: int = 2) -> None:
        env = make_env(PROCESSOR, index, processors=of, incarnation=life)
        self.heard: list[Any] = []
        self.peers = ProcessorLinks(
            env,
            lambda peer: self.heard.append(("up", peer)),
            lambda peer: self.heard.append(("down", peer)),
            lambda peer, message: self.heard.append((peer, message)),
        )
        self.scope = trio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            await self.peers.run()


@asynccontextmanager
async def living(*lives: Life) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        for life in lives:
            nursery.start_soon(life.run)
        await wait_all_tasks_blocked()
        yield nursery
        nursery.cancel_scope.cancel()


async def test_all_processors_are_linked_and_order_is_kept(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    lives = [Life(make_env, index, of=3) for index in range(3)]
    async with living(*lives):
        for me, life in enumerate(lives):
            assert sorted(life.heard) == [("up", peer) for peer in range(3) if peer != me]
            life.heard.clear()
        sent = list(range(3 * BATCH_MESSAGES_MAX))
        for number in sent:
            lives[1].peers.send(0, number)
            lives[1].peers.send(2, -number)
        await wait_all_tasks_blocked()
        assert lives[0].heard == [(1, number) for number in sent]
        assert lives[2].heard == [(1, -number) for number in sent]


@pytest.mark.parametrize("victim", [0, 1])
async def test_death_and_restart_of_peer_are_reported_once(
    make_env: MakeEnvironment, autojump_clock: MockClock, victim: int
) -> None:
    lives = [Life(make_env, index) for index in range(2)]
    other = lives[1 - victim]
    async with living(*lives) as nursery:
        lives[victim].scope.cancel()
        await wait_all_tasks_blocked()
        assert other.heard == [("up", victim), ("down", victim)]
        other.peers.send(victim, "lost")
        reborn = Life(make_env, victim, 2)
        nursery.start_soon(reborn.run)
        await wait_all_tasks_blocked()
        assert other.heard[2:] == [("up", victim)]
        assert reborn.heard == [("up", 1 - victim)]
        reborn.peers.send(1 - victim, "hello")
        await wait_all_tasks_blocked()
        assert other.heard[3:] == [(victim, "hello")]


async def test_restart_before_death_was_noticed_ends_the_former_link(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    life = Life(make_env, 0)
    async with living(life):
        channels = []
        for incarnation in (1, 2):
            channel = await life.peers._env.transport.connect(tokens_name(0))
            await channel.send(ProcessorHello(1, incarnation))
            assert await channel.receive() == ProcessorHello(0, 1)
            channels.append(channel)
        await wait_all_tasks_blocked()
        assert life.heard == [("up", 1), ("down", 1), ("up", 1)]
        with pytest.raises(ChannelClosed):
            await channels[0].receive()
        await channels[1].send(["alive"])
        await wait_all_tasks_blocked()
        assert life.heard[3:] == [(1, "alive")]


async def test_connection_attempt_of_dead_process_changes_nothing(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    life = Life(make_env, 0)
    async with living(life):
        transport = life.peers._env.transport
        alive = await transport.connect(tokens_name(0))
        await alive.send(ProcessorHello(1, 5))
        await wait_all_tasks_blocked()
        dead = await transport.connect(tokens_name(0))
        await dead.send(ProcessorHello(1, 4))
        with pytest.raises(ChannelClosed):
            await dead.receive()
        assert life.heard == [("up", 1)]

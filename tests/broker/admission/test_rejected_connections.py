"""Rejected connections are closed, recorded and counted; in a storm they are closed later."""

from __future__ import annotations

import errno
import math
import os
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission import rejected_connections
from minibroker.broker.admission.connection_events import ConnectionEvents, ExceededLimit
from minibroker.broker.admission.rejected_connections import (
    ADMIT_INTERVAL_S,
    CALM_S,
    CLOSED_MAX,
    LEAST_RECENTLY_USED_MAX,
    PER_S,
    PROCESSOR_CONNECTIONS_MAX,
    QUEUE,
    RETRY_S,
    TICK_S,
    AcceptedConnection,
    AcceptorNotices,
    CloseConnections,
    ConnectionsClosed,
    DescriptorHealth,
    LeastRecentlyUsed,
    LeastRecentlyUsedRequest,
    OpenConnection,
    ProcessorConnections,
    RejectedConnections,
)
from minibroker.broker.connections.limits import LastUse
from minibroker.broker.metrics.definitions import CLOSED, QUEUE_PEAK, QUEUE_USED, CloseReason
from minibroker.broker.metrics.log import ConnectionCloses, EventLog
from minibroker.broker.process.environment import ACCEPTOR, Environment
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.handoff import PACKET_BYTES_MAX, memory_handoff_pair
from minibroker.runtime.stream import MemoryStream, memory_stream_pair
from tests.broker.process.conftest import MakeEnvironment
from tests.broker.process.shortage import RealTime, conditions
from tests.broker.roles.running_processor import LISTENER, running_processor
from tests.runtime.test_system import no_descriptor_left

# ---------- Messages between acceptor and processor fit into one packet, and are delivered in order


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


PLAINTEXT = "PLAINTEXT"
REASON = CloseReason.DROPPED
LIMIT = ExceededLimit("kafka_connections_max", 1)
AT_ONCE = 3


class Rejecter:
    """Rejects clients, and counts those that were disconnected."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.events = ConnectionEvents(1, env.clock.now)
        closes = ConnectionCloses(env.metrics, EventLog("test"))
        self.rejected = RejectedConnections(env, self.events, closes, processor=2)
        self.clients: list[MemoryStream] = []

    def reject(self, count: int) -> None:
        for _ in range(count):
            client, connection = memory_stream_pair()
            self.clients.append(client)
            accepted = AcceptedConnection(
                PLAINTEXT, connection.local, connection.peer, len(self.clients)
            )
            self.rejected.reject(accepted, connection, REASON, LIMIT)

    def disconnected(self) -> int:
        return sum(client._incoming.ended for client in self.clients)

    def counted(self) -> int:
        counters = self.env.metrics.snapshot().counters
        return counters.get((CLOSED.name, (PLAINTEXT, REASON.value)), 0)

    def queue(self) -> tuple[float, float]:
        gauges = self.env.metrics.snapshot().gauges
        return gauges[QUEUE_USED.name, (QUEUE,)], gauges[QUEUE_PEAK.name, (QUEUE,)]


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejected_connections, "AT_ONCE", AT_ONCE)


@asynccontextmanager
async def running_rejecter(make_env: MakeEnvironment) -> AsyncIterator[Rejecter]:
    rejecter = Rejecter(make_env(ACCEPTOR))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rejecter.rejected.run)
        await wait_all_tasks_blocked()
        yield rejecter
        nursery.cancel_scope.cancel()


async def test_first_rejected_connections_are_closed_at_once_and_counted(
    make_env: MakeEnvironment,
) -> None:
    async with running_rejecter(make_env) as rejecter:
        rejecter.reject(AT_ONCE)
        assert rejecter.disconnected() == rejecter.counted() == AT_ONCE
        refusal = rejecter.events.recent().rejections[-1]
        assert (refusal.limit, refusal.event.reason) == (LIMIT, REASON.value)
        assert (refusal.event.kind, refusal.event.processor) == ("refused", 2)


async def test_delayed_rejections_are_recorded_at_once_and_counted_when_closed(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    held = round(PER_S * TICK_S)
    async with running_rejecter(make_env) as rejecter:
        rejecter.reject(AT_ONCE + held + 1)
        assert rejecter.disconnected() == rejecter.counted() == AT_ONCE
        assert rejecter.events.recent().rejections_total == AT_ONCE + held + 1
        assert rejecter.queue() == (held + 1, held + 1)
        await trio.sleep(TICK_S * 1.5)
        left = rejecter.queue()[0]
        assert rejecter.disconnected() == rejecter.counted() == AT_ONCE + held + 1 - left
        assert 0 < left < held + 1
        await trio.sleep(1)
        assert rejecter.disconnected() == rejecter.counted() == AT_ONCE + held + 1
        assert rejecter.queue() == (0, held + 1)


async def test_second_storm_is_reported_after_quiet_time(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_rejecter(make_env) as rejecter:
        for _ in range(3):
            before = rejecter.disconnected()
            rejecter.reject(AT_ONCE + 1)
            assert rejecter.disconnected() == before + AT_ONCE
            await trio.sleep(1)
            assert rejecter.disconnected() == len(rejecter.clients)


async def test_frozen_clock_does_not_delay_closes(
    make_env: MakeEnvironment, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = trio.Event()

    async def sleep_real(_clock: object, _seconds: float) -> None:
        await passed.wait()

    monkeypatch.setattr(SimulatedClock, "sleep_real", sleep_real)
    autojump_clock.autojump_threshold = math.inf
    async with running_rejecter(make_env) as rejecter:
        rejecter.reject(AT_ONCE + 1)
        await wait_all_tasks_blocked()
        assert rejecter.disconnected() == AT_ONCE
        passed.set()
        await wait_all_tasks_blocked()
        assert rejecter.disconnected() == AT_ONCE + 1


async def test_delayed_connections_are_closed_at_the_end(make_env: MakeEnvironment) -> None:
    async with running_rejecter(make_env) as rejecter:
        rejecter.reject(AT_ONCE + 4)
    assert rejecter.disconnected() == rejecter.counted() == AT_ONCE + 4


async def test_all_are_closed_where_their_descriptors_are_needed(make_env: MakeEnvironment) -> None:
    async with running_rejecter(make_env) as rejecter:
        rejecter.reject(AT_ONCE + 4)
        rejecter.rejected.close_all()
        assert rejecter.disconnected() == AT_ONCE + 4
        assert rejecter.queue()[0] == 0


async def test_acceptor_pauses_after_admission_during_a_storm(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_rejecter(make_env) as rejecter:
        rejecter.reject(AT_ONCE)
        await rejecter.rejected.pause()
        assert (rejecter.rejected.is_storm, trio.current_time()) == (False, 0)
        rejecter.reject(1)
        await rejecter.rejected.pause()
        assert (rejecter.rejected.is_storm, trio.current_time()) == (True, ADMIT_INTERVAL_S)


def shown(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records]


async def test_descriptor_health_of_repeated_failures_is_one_condition_and_two_lines(
    make_env: MakeEnvironment, real_time: RealTime, caplog: pytest.LogCaptureFixture
) -> None:
    env = make_env("processor")
    health = DescriptorHealth(env, EventLog("test"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(health.run)
        for _ in range(20):
            health.exhausted()
            await real_time.pass_s(CALM_S - 0.1)
            assert conditions(env) == ["descriptors_exhausted"]
        await real_time.pass_s(2 * CALM_S)
        assert conditions(env) == []
        health.exhausted()
        assert conditions(env) == ["descriptors_exhausted"]
        nursery.cancel_scope.cancel()
    started, ended = "descriptors are exhausted", "descriptors are available again"
    assert shown(caplog) == [started, ended, started]


async def test_descriptor_health_lasts_as_long_as_no_file_can_be_opened(
    make_env: MakeEnvironment, real_time: RealTime
) -> None:
    env = make_env("processor")
    health = DescriptorHealth(env, EventLog("test"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(health.run)
        with no_descriptor_left():
            health.exhausted()
            await real_time.pass_s(5 * CALM_S)
            assert conditions(env) == ["descriptors_exhausted"]
        await real_time.pass_s(2 * CALM_S)
        assert conditions(env) == []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (errno.EMFILE, ["this process has no descriptor left"]),
        (errno.ENFILE, ["the system has no descriptor left"]),
        (errno.ENOBUFS, []),
    ],
)
async def test_descriptor_health_of_failed_accept_names_the_limit(
    make_env: MakeEnvironment, autojump_clock: MockClock, error: int, found: list[str]
) -> None:
    env = make_env("acceptor")
    health = DescriptorHealth(env, EventLog("test"))
    await health.accept_failed(LISTENER, OSError(error, os.strerror(error)))
    assert trio.current_time() == pytest.approx(RETRY_S)
    texts = [each.text for each in env.conditions.all()]
    assert [whose in text for whose, text in zip(found, texts, strict=True)] == [True] * len(found)


async def test_processor_that_cannot_receive_a_connection_shows_it(
    make_env: MakeEnvironment,
) -> None:
    async with running_processor(make_env) as at:
        assert at.handoff is not None
        client = ("127.0.0.1", 40_000)
        await at.handoff.send(AcceptedConnection(LISTENER, ("127.0.0.1", 9092), client, 1))
        done, _ = await at.handoff.receive()
        await wait_all_tasks_blocked()
        assert isinstance(done, ConnectionsClosed)
        assert at.closed() == {CloseReason.LIMIT: 1}
        assert conditions(at.env) == ["descriptors_exhausted"]

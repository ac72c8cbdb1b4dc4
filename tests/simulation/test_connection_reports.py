"""Reports of connections of a complete broker, at the moment of each event.

The controller's backend is called as its HTTP server would, on a clock that stands still between
two steps: waiting, delayed and rejected connections are reported at once, and reported events are
not lost with the process that recorded them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.settings import Settings
from minibroker.lab.control.connections import Connection, ConnectionsView, list_connections
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from tests.simulation.client import SimulatedClient
from tests.simulation.surroundings import LISTENER, TWO_OF_EACH

HELLO = ApiVersionsRequest(client_software_name="me", client_software_version="1")


class ReportingBroker(TaskBroker):
    """A broker whose control API is called without HTTP."""

    async def look(self) -> ConnectionsView:
        """Return the report when all tasks are idle."""
        await wait_all_tasks_blocked()
        return await list_connections(self.control)

    async def dial(self, host: str) -> SimulatedClient:
        """Open a connection that sends nothing."""
        client = SimulatedClient(await self.sources[LISTENER].connect(host))
        await wait_all_tasks_blocked()
        return client


@asynccontextmanager
async def running(directory: Path, clock: MockClock, *pairs: str) -> AsyncIterator[ReportingBroker]:
    settings = Settings.from_sources(pairs=(*TWO_OF_EACH, *pairs))
    broker = ReportingBroker(settings, directory, clock=SimulatedClock(clock), seed=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        clock.autojump_threshold = float("inf")
        yield broker
        clock.autojump_threshold = 0
        await broker.stop()


def summary(seen: ConnectionsView) -> list[tuple[str, str | None, int]]:
    """Return the kind, reason and age of each event."""
    return [(each.kind, each.reason, each.ago_ms) for each in seen.connection_events]


def only(seen: ConnectionsView) -> Connection:
    """Return the only connection."""
    (connection,) = [each for processor in seen.processors for each in processor.connections]
    return connection


async def test_refusal_is_seen_with_its_moment(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock, "max.connections.per.ip=1") as broker:
        first = await broker.dial("10.0.0.1")
        autojump_clock.jump(2)
        second = await broker.dial("10.0.0.1")
        assert await second.wait_closed() == b""
        autojump_clock.jump(0.25)
        seen = await broker.look()
        (rejection,) = seen.rejections
        assert (rejection.ago_ms, rejection.listener) == (250, LISTENER)
        assert rejection.client_address == f"10.0.0.1:{second.stream.local[1]}"
        assert "max.connections.per.ip=1" in rejection.text
        (address,) = seen.addresses
        assert (address.ip, address.connections, address.limit) == ("10.0.0.1", 1, 1)
        connection = only(seen)
        assert (connection.age_ms, connection.idle_ms, connection.state) == (2250, 2250, "reading")
        await first.ask(HELLO, 4)
        (connection,) = [
            each for one in (await broker.look()).processors for each in one.connections
        ]
        assert (connection.age_ms, connection.idle_ms) == (2250, 0)
        assert summary(seen) == [
            ("accepted", None, 2250),
            ("handed", None, 2250),
            ("accepted", None, 250),
            ("refused", "max_connections_per_ip", 250),
        ]


async def test_connection_that_waits_for_slot_is_shown_as_waiting(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock, "max.connections=1") as broker:
        autojump_clock.jump(100.5 - trio.current_time())
        first = await broker.dial("10.0.0.1")
        await broker.dial("10.0.0.2")
        autojump_clock.jump(4)
        seen = await broker.look()
        assert (seen.total, seen.limit) == (1, 1)
        (listener,) = seen.listeners
        assert (listener.connections, listener.waiting, listener.held) == (1, 1, 0)
        assert listener.blocked_share == pytest.approx(4 / 9.5)
        assert summary(seen)[-1] == ("waiting", "max.connections", 4000)
        first.close()
        await wait_all_tasks_blocked()
        autojump_clock.jump(1)
        seen = await broker.look()
        (listener,) = seen.listeners
        assert (listener.connections, listener.waiting) == (1, 0)
        assert listener.blocked_share == pytest.approx(4 / 9.5)
        # Both at the same time of a frozen clock, so in either order.
        assert {(kind, ago_ms) for kind, _, ago_ms in summary(seen)[-2:]} == {
            ("closed", 1000),
            ("handed", 1000),
        }


async def test_delayed_connection_is_shown_until_it_is_decided(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock) as broker:
        await set_rate(broker, "10.0.0.7", 5.0)
        for _ in range(52):
            await broker.dial("10.0.0.7")
        seen = await broker.look()
        (listener,) = seen.listeners
        assert (listener.connections, listener.held, listener.waiting) == (51, 2, 0)
        address = next(each for each in seen.addresses if each.ip == "10.0.0.7")
        assert (address.connections, address.rate, address.rate_limit) == (50, 5.0, 5.0)
        autojump_clock.jump(0.199)
        assert (await broker.look()).listeners[0].held == 2
        autojump_clock.jump(0.001)
        seen = await broker.look()
        (listener,) = seen.listeners
        assert (listener.connections, listener.held) == (52, 0)
        (rejection,) = seen.rejections
        assert rejection.ago_ms == 0
        assert "the quota connection_creation_rate=5 of the ip 10.0.0.7" in rejection.text
        autojump_clock.jump(1)
        assert (await broker.look()).rejections[0].ago_ms == 1000


async def test_failed_authentication_is_distinguished_from_a_limit(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    pairs = (
        "listeners=PLAINTEXT://:9092,SASL_PLAINTEXT://:9093",
        "sasl.enabled.mechanisms=SCRAM-SHA-256",
        "connection.failed.authentication.delay.ms=700",
    )
    async with running(tmp_path, autojump_clock, *pairs) as broker:
        stream = await broker.sources["SASL_PLAINTEXT"].connect("10.0.0.1")
        await SimulatedClient(stream).send_request(MetadataRequest(topics=[]), 9)
        assert (await broker.look()).rejections == ()
        autojump_clock.jump(0.7)
        (rejection,) = (await broker.look()).rejections
        assert (rejection.ago_ms, rejection.reason) == (0, "authentication_failed")
        assert rejection.text.startswith("10.0.0.1 was rejected: authentication failed (")


async def set_rate(broker: ReportingBroker, ip: str, rate: float) -> None:
    """Give an address a quota."""
    entry = AlterClientQuotasRequestEntryData(
        entity=[EntityData(entity_type="ip", entity_name=ip)],
        ops=[OpData(key="connection_creation_rate", value=rate, remove=False)],
    )
    admin = await broker.dial("10.0.0.250")
    reply = await admin.ask(AlterClientQuotasRequest(entries=[entry], validate_only=False), 1)
    assert reply.entries[0].error_code == 0


async def test_processors_that_accept_for_themselves_are_seen_together(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    pairs = ("acceptor.mode=sharded", "num.network.threads=2", "kafka_connections_max_per_ip=2")
    async with running(tmp_path, autojump_clock, *pairs) as broker:
        for part in (0, 1, 0, 1):
            await broker.sources[LISTENER].connect("10.0.0.1", part)
            await wait_all_tasks_blocked()
        seen = await broker.look()
        assert (seen.mode, seen.total, seen.listeners[0].connections) == ("sharded", 2, 2)
        (address,) = seen.addresses
        assert (address.ip, address.connections, address.limit) == ("10.0.0.1", 2, 2)
        assert [each.reason for each in seen.rejections] == ["kafka_connections_max_per_ip"] * 2
        assert "it had 2 connections" in seen.rejections[0].text
        assert {each.kind for each in seen.connection_events} >= {"accepted", "handed", "refused"}
        # All have one home, so those of the other processor have to request tokens.
        assert "tokens" in {
            each.reason for each in seen.connection_events if each.kind == "waiting"
        }
        assert seen.listeners[0].waiting == 0
        broker.kill("processor-0")
        seen = await broker.look()
        assert (seen.mode, seen.total) == ("sharded", 1)
        autojump_clock.autojump_threshold = 0
        await broker.wait_ready()


@pytest.mark.parametrize("victim", ["acceptor", "processor-0", "processor-1", "controller"])
async def test_process_kill_loses_no_observed_event(
    victim: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock, "max.connections.per.ip=2") as broker:
        for _ in range(3):
            await broker.dial("10.0.0.1")
        before = await broker.look()
        broker.kill(victim)
        if victim != "controller":
            meanwhile = await broker.look()
            assert (
                meanwhile.connection_events[: len(before.connection_events)]
                == before.connection_events
            )
            assert [each.limit for each in meanwhile.listeners] == [None]
        autojump_clock.autojump_threshold = 0
        await broker.wait_ready()
        autojump_clock.autojump_threshold = float("inf")
        after = await broker.look()
        served = sum(each.connections_total for each in after.processors)
        assert after.total == served == (1 if "processor" in victim else 2)
        assert [each.text for each in after.rejections] == [each.text for each in before.rejections]
        numbers = [each.seq for each in after.connection_events]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        if victim == "controller":
            assert numbers[0] > before.connection_events[-1].seq
        else:
            assert numbers[0] == before.connection_events[0].seq

"""An acceptor that holds connections to limits, between clients and processors of the test's."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission import connection_quotas
from minibroker.broker.admission.connection_events import ExceededLimit
from minibroker.broker.admission.connection_quotas import (
    count_limit,
    count_limits,
    drop_limits,
    hosts_of,
    override_hosts,
    protected_listener,
    quota_hosts,
    rate_limit,
    rate_limits,
    rate_setting,
    slot_setting,
)
from minibroker.broker.admission.rejected_connections import (
    AcceptedConnection,
    CloseConnections,
    ConnectionsClosed,
    LeastRecentlyUsed,
    LeastRecentlyUsedRequest,
    OpenConnection,
    ProcessorConnections,
)
from minibroker.broker.connections.limits import (
    SLOTS,
    ConnectionCountLimits,
    ConnectionRateLimits,
    ExceededCount,
    LastUse,
)
from minibroker.broker.metadata.image import ConfigChanged, Image, Update
from minibroker.broker.metrics.definitions import (
    ACCEPT_RATE,
    ACCEPT_THROTTLE,
    ACCEPTOR_BLOCKED,
    BROKER_ACCEPT_RATE,
    CLOSED,
    COUNTED,
    IP_ACCEPT_THROTTLE,
    CloseReason,
)
from minibroker.broker.network.reports import AcceptorReport
from minibroker.broker.process.environment import (
    ACCEPTOR,
    CONTROLLER,
    Environment,
    handoff_name,
)
from minibroker.broker.process.messages import DetailsRequest, ImageApplied, RoleRegistered
from minibroker.broker.roles.acceptor import acceptor
from minibroker.broker.settings import Settings
from minibroker.runtime.addressing import MemorySource
from minibroker.runtime.handoff import Handoff
from minibroker.runtime.rpc import ChannelClosed, RpcConnection
from minibroker.runtime.stream import MemoryStream, StreamClosed
from tests.broker.process.conftest import MakeEnvironment

PLAINTEXT, EXTERNAL = "PLAINTEXT", "EXTERNAL"
TWO = (
    "listeners=PLAINTEXT://:9092,EXTERNAL://:9093",
    "listener.security.protocol.map=EXTERNAL:PLAINTEXT",
)
IP_RATE = "connection_creation_rate"


class Processor:
    """Takes connections and closes them on request, or when their clients do."""

    def __init__(self, open_quotas: QuotasHarness, handoff: Handoff) -> None:
        self.open_quotas = open_quotas
        self.handoff = handoff
        self.open: dict[int, tuple[AcceptedConnection, Any]] = {}
        self.asked: list[LeastRecentlyUsedRequest] = []

    async def run(self) -> None:
        while True:
            try:
                message, connection = await self.handoff.receive()
            except ChannelClosed:
                return  # The acceptor was stopped.
            if isinstance(message, AcceptedConnection):
                self.open[message.number] = (message, connection)
                await self.handoff.send(ConnectionsClosed(1, ()))
            elif isinstance(message, LeastRecentlyUsedRequest):
                self.asked.append(message)
                await self.handoff.send(LeastRecentlyUsed(tuple(self._offers(message))))
            else:
                assert isinstance(message, CloseConnections)
                for number in message.numbers:
                    await self.close(number)

    def _offers(self, wanted: LeastRecentlyUsedRequest) -> list[LastUse]:
        # The older the number the longer it has not been used.
        numbers = [n for n, (had, _) in self.open.items() if had.listener != wanted.protected]
        return [LastUse(float(number), number) for number in sorted(numbers)[: wanted.count_max]]

    async def close(self, number: int) -> None:
        _, connection = self.open.pop(number)
        connection.close()
        await self.handoff.send(ConnectionsClosed(0, (number,)))


def met(
    reason: str, setting: str, value: float, whose: str | None = None
) -> tuple[str, ExceededLimit]:
    """A reason and the limit behind it."""
    return reason, ExceededLimit(setting, value, whose)


class QuotasHarness:
    """The acceptor's neighbours."""

    def __init__(self, env: Environment, nursery: trio.Nursery) -> None:
        self.env = env
        self.nursery = nursery
        self.controller: RpcConnection | None = None
        self.changes = 0
        self.processors: list[Processor] = []

    async def processor(self, *present: OpenConnection) -> Processor:
        name = handoff_name(len(self.processors))
        handoff = await self.env.transport.listen_handoff(name).accept()
        await handoff.send(ProcessorConnections(present, more=False))
        made = Processor(self, handoff)
        self.processors.append(made)
        self.nursery.start_soon(made.run)
        await wait_all_tasks_blocked()
        return made

    async def connect(
        self, count: int = 1, host: str = "10.0.0.1", listener: str = PLAINTEXT
    ) -> list[MemoryStream]:
        source = self.env.listeners[listener]
        assert isinstance(source, MemorySource)
        clients = [await source.connect(host) for _ in range(count)]
        await wait_all_tasks_blocked()
        return clients

    async def configure(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        assert self.controller is not None
        self.changes += 1
        change = ConfigChanged(kind, name, config)
        await self.controller.request(Update(1, self.changes, (change,)))
        await wait_all_tasks_blocked()

    @property
    def open(self) -> list[int]:
        return sorted(number & 0xFFFF for each in self.processors for number in each.open)

    def closed(self) -> dict[str, int]:
        counters = self.env.metrics.snapshot().counters
        found: Counter[str] = Counter()
        for (name, labels), value in counters.items():
            if name == CLOSED.name:
                found[labels[1]] += value
        return found

    async def report(self) -> AcceptorReport:
        """Return the acceptor's report."""
        assert self.controller is not None
        found: AcceptorReport = await self.controller.request(DetailsRequest())
        return found

    async def rejections(self) -> list[tuple[str | None, ExceededLimit | None]]:
        """Return the reasons of rejections with their limits."""
        rejections = (await self.report()).recent.rejections
        return [(each.event.reason, each.limit) for each in rejections]

    async def reasons(self) -> list[str | None]:
        """Return the reasons of waits."""
        events = (await self.report()).recent.events
        return [each.reason for each in events if each.kind == "waiting"]

    def gauge(self, name: str, *labels: str) -> float | None:
        return self.env.metrics.snapshot().gauges.get((name, labels))

    def blocked_ms(self, listener: str = PLAINTEXT) -> float:
        counters = self.env.metrics.snapshot().counters
        return counters.get((ACCEPTOR_BLOCKED.name, (listener,)), 0) / 1e6


@asynccontextmanager
async def open_quotas(
    make_env: MakeEnvironment, *pairs: str, processors: int = 1
) -> AsyncIterator[QuotasHarness]:
    settings = Settings.from_sources(pairs=pairs)
    listeners = {each.name: MemorySource() for each in settings.client_listeners}
    env = make_env(ACCEPTOR, processors=processors, listeners=listeners, settings=settings)
    async with trio.open_nursery() as nursery:
        made = QuotasHarness(env, nursery)

        def welcome(request: Any) -> RoleRegistered | None:
            return (
                None
                if isinstance(request, ImageApplied)
                else RoleRegistered(Image(controller_epoch=1))
            )

        nursery.start_soon(acceptor, env)
        made.controller = RpcConnection(await env.transport.listen(CONTROLLER).accept(), welcome)
        nursery.start_soon(made.controller.run)
        yield made
        nursery.cancel_scope.cancel()


async def hung_up(client: MemoryStream) -> bool:
    """Whether the broker closed a connection, without a byte."""
    with trio.move_on_after(0):
        try:
            return await client.receive_into(memoryview(bytearray(1))) == 0
        except StreamClosed:
            return True
    return False


@pytest.mark.parametrize("setting", ["max.connections", "listener.name.plaintext.max.connections"])
async def test_at_the_limit_the_next_one_waits_for_a_slot(
    setting: str, make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with open_quotas(make_env, f"{setting}=3") as at:
        processor = await at.processor()
        clients = await at.connect(5)
        assert at.open == [1, 2, 3]
        assert not any([await hung_up(client) for client in clients])
        assert await at.reasons() == [setting]
        (listener,) = (await at.report()).figures.listeners
        assert (listener.connections, listener.waiting, listener.held) == (3, 1, 0)
        await trio.sleep(2)
        await processor.close(min(processor.open))
        await wait_all_tasks_blocked()
        assert at.open == [2, 3, 4]
        assert at.blocked_ms() == pytest.approx(2000)
        assert at.gauge(COUNTED.name, PLAINTEXT) == 3


async def test_connections_beyond_per_ip_limit_are_closed(
    make_env: MakeEnvironment,
) -> None:
    overrides = "max.connections.per.ip.overrides=10.0.0.2:1"
    async with open_quotas(make_env, "max.connections.per.ip=2", overrides) as at:
        processor = await at.processor()
        first = await at.connect(3)
        second = await at.connect(2, "10.0.0.2") + await at.connect(1, "::ffff:10.0.0.2")
        assert [await hung_up(client) for client in first] == [False, False, True]
        assert [await hung_up(client) for client in second] == [False, True, True]
        assert at.closed() == {CloseReason.PER_IP: 3}
        own = met("max_connections_per_ip", "max.connections.per.ip.overrides", 1, "10.0.0.2")
        assert await at.rejections() == [
            met("max_connections_per_ip", "max.connections.per.ip", 2),
            own,
            own,
        ]
        await processor.close(min(processor.open))
        await wait_all_tasks_blocked()
        (again,) = await at.connect()
        assert not await hung_up(again)
        assert at.blocked_ms() == 0


async def test_redpandas_limit_drops_where_kafkas_would_wait(make_env: MakeEnvironment) -> None:
    async with open_quotas(
        make_env,
        "max.connections=1",
        "kafka_connections_max=2",
        "kafka_connections_max_per_ip=1",
        *TWO,
        "inter.broker.listener.name=EXTERNAL",
    ) as at:
        await at.processor()
        clients = await at.connect() + await at.connect(2, "10.0.0.2")
        assert [await hung_up(client) for client in clients] == [False, False, False]
        assert at.open == [1]  # one waits, one is not accepted yet
        (third,) = await at.connect(1, "10.0.0.3", EXTERNAL)
        assert await hung_up(third)
        assert at.closed() == {CloseReason.DROPPED: 1}
        assert await at.rejections() == [met("kafka_connections_max", "kafka_connections_max", 2)]


async def test_redpandas_limit_of_an_address(make_env: MakeEnvironment) -> None:
    pairs = ("kafka_connections_max_per_ip=1", "kafka_connections_max_overrides=10.0.0.2:2")
    async with open_quotas(make_env, *pairs) as at:
        await at.processor()
        clients = await at.connect(2) + await at.connect(3, "10.0.0.2")
        hung = [await hung_up(client) for client in clients]
        assert hung == [False, True, False, False, True]
        assert at.closed() == {CloseReason.DROPPED_PER_IP: 2}
        reason = "kafka_connections_max_per_ip"
        assert await at.rejections() == [
            met(reason, reason, 1),
            met(reason, "kafka_connections_max_overrides", 2, "10.0.0.2"),
        ]


async def test_inter_broker_connection_evicts_least_recently_used(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    own = "listener.name.plaintext.max.connections=2"
    async with open_quotas(make_env, "max.connections=4", *TWO, own, processors=2) as at:
        for _ in range(2):
            await at.processor()
        await at.connect(4, listener=EXTERNAL)
        await at.connect(1)
        assert at.open == [2, 3, 4, 5]
        await at.connect(2)
        # The second takes another place; the third waits, as the listener has a limit, too.
        assert at.open == [3, 4, 5, 6]
        assert at.gauge(COUNTED.name, PLAINTEXT) == at.gauge(COUNTED.name, EXTERNAL) == 2
        await trio.sleep(2)
        assert at.blocked_ms() == 0  # so far nothing had to wait, nor is what waits counted yet
        owner = next(each for each in at.processors if 1 << 32 | 6 in each.open)
        await owner.close(1 << 32 | 6)
        await wait_all_tasks_blocked()
        assert at.open == [3, 4, 5, 7]
        assert at.blocked_ms() == pytest.approx(2000)
        assert {wanted.protected for each in at.processors for wanted in each.asked} == {PLAINTEXT}


async def test_lowered_limit_closes_excess_connections(
    make_env: MakeEnvironment,
) -> None:
    async with open_quotas(make_env, "max.connections=9", processors=2) as at:
        for _ in range(2):
            await at.processor()
        await at.connect(9)
        await at.configure("brokers", "<default>", {"max.connections": "4"})
        assert at.open == [6, 7, 8, 9]
        await at.configure("brokers", "1", {"max.connections": "6"})
        await at.connect(3)
        assert at.open == [6, 7, 8, 9, 10, 11]


async def test_lowered_listener_and_ip_limits_close_no_connection(
    make_env: MakeEnvironment,
) -> None:
    async with open_quotas(make_env) as at:
        await at.processor()
        await at.connect(4)
        lower = {"max.connections.per.ip": "1", "listener.name.plaintext.max.connections": "2"}
        await at.configure("brokers", "1", lower)
        assert at.open == [1, 2, 3, 4]


async def test_processor_dying_during_collection_does_not_block_it(
    make_env: MakeEnvironment,
) -> None:
    async with open_quotas(make_env, processors=2) as at:
        handoff = await at.env.transport.listen_handoff(handoff_name(0)).accept()
        await handoff.send(
            ProcessorConnections(
                tuple(OpenConnection(n, PLAINTEXT, "10.0.0.9") for n in (7, 8)), False
            )
        )
        at.processors.append(Processor(at, handoff))  # which does not run
        await at.processor()
        await at.connect(4)
        assert len(at.open) == 2  # those passed to the running processor
        await at.configure("brokers", "1", {"max.connections": "1"})
        assert len(at.open) == 2  # the other processor has not reported its connections yet
        handoff.close()
        await wait_all_tasks_blocked()
        assert len(at.open) == 1
        assert at.gauge(COUNTED.name, PLAINTEXT) == 1


async def test_all_listeners_that_wait_for_a_processor_get_slots(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with open_quotas(make_env, *TWO) as at:
        handoff = await at.env.transport.listen_handoff(handoff_name(0)).accept()
        await handoff.send(ProcessorConnections((), more=False))
        await at.connect(SLOTS + 1)
        await at.connect(1, listener=EXTERNAL)
        for _ in range(SLOTS):
            await handoff.receive()
        await trio.sleep(2)
        for _ in range(2):
            await handoff.send(ConnectionsClosed(1, ()))
        await wait_all_tasks_blocked()
        waited = [(await handoff.receive())[0].listener for _ in range(2)]
        assert sorted(waited) == [EXTERNAL, PLAINTEXT]
        assert at.blocked_ms(PLAINTEXT) == pytest.approx(2000)
        assert at.blocked_ms(EXTERNAL) == pytest.approx(2000)


async def test_restarted_acceptor_counts_open_connections(make_env: MakeEnvironment) -> None:
    async with open_quotas(make_env, "max.connections=2", "max.connections.per.ip=1") as at:
        processor = await at.processor(OpenConnection(7, PLAINTEXT, "10.0.0.1"))
        clients = await at.connect(1) + await at.connect(1, "10.0.0.2")
        assert [await hung_up(client) for client in clients] == [True, False]
        await processor.handoff.send(ConnectionsClosed(0, (7,)))
        await wait_all_tasks_blocked()
        assert at.gauge(COUNTED.name, PLAINTEXT) == 1


async def test_connection_above_rate_is_delayed(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    pairs = ("max.connection.creation.rate=5", "quota.window.num=2")
    async with open_quotas(make_env, *pairs) as at:
        await at.processor()
        autojump_clock.autojump_threshold = float("inf")
        await at.connect(7)
        assert len(at.open) == 5
        assert await at.reasons() == ["max.connection.creation.rate"]
        autojump_clock.jump(0.199)
        await wait_all_tasks_blocked()
        assert len(at.open) == 5
        autojump_clock.jump(0.001)
        await wait_all_tasks_blocked()
        assert len(at.open) == 6
        assert at.blocked_ms() == pytest.approx(200)
        assert at.gauge(ACCEPT_THROTTLE.name, PLAINTEXT) == pytest.approx(183.5, abs=20)
        assert at.gauge(BROKER_ACCEPT_RATE.name) == at.gauge(ACCEPT_RATE.name, PLAINTEXT, "")


async def test_rate_and_a_slot_are_waited_for_both(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    pairs = ("max.connection.creation.rate=2", "max.connections=2", "quota.window.num=2")
    async with open_quotas(make_env, *pairs) as at:
        processor = await at.processor()
        autojump_clock.autojump_threshold = float("inf")
        await at.connect(3)
        await processor.close(min(processor.open))
        await wait_all_tasks_blocked()
        assert at.open == [2]  # a slot, but not the time
        autojump_clock.jump(0.5)
        await wait_all_tasks_blocked()
        assert at.open == [2, 3]


@pytest.mark.parametrize("recheck", [True, False])
async def test_rate_limited_connection_is_delayed_then_admitted_or_closed(
    recheck: bool, make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with open_quotas(make_env, f"connection.ip.throttle.recheck={recheck}") as at:
        await at.processor()
        autojump_clock.autojump_threshold = float("inf")
        await at.configure("ips", "10.0.0.1", {IP_RATE: "5.0"})
        clients = await at.connect(52)
        (other,) = await at.connect(1, "10.0.0.2")  # waits for no other connection
        assert len(at.open) == 51
        assert not any([await hung_up(client) for client in [*clients, other]])
        report = await at.report()
        assert report.figures.listeners[0].held == 2
        held = [each.number & 0xFF for each in report.recent.events if each.kind == "held"]
        assert held == [51, 52]
        autojump_clock.jump(0.2)
        await wait_all_tasks_blocked()
        hung = [await hung_up(client) for client in clients[50:]]
        # Connections with the same deadline are checked in any order.
        assert sorted(hung) == ([False, True] if recheck else [True, True])
        assert at.closed() == {CloseReason.IP_RATE: 1 if recheck else 2}
        quota = met("ip_connection_creation_rate", "connection_creation_rate", 5, "10.0.0.1")
        assert set(await at.rejections()) == {quota}
        assert (await at.report()).figures.listeners[0].held == 0
        assert at.gauge(IP_ACCEPT_THROTTLE.name, PLAINTEXT) == 200
        assert at.gauge(ACCEPT_RATE.name, "", "10.0.0.1") == pytest.approx(5, abs=0.1)
        assert at.gauge(COUNTED.name, PLAINTEXT) == len(at.open) == (52 if recheck else 51)
        assert at.blocked_ms() == 0


async def test_zero_rate_rejects_address(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with open_quotas(make_env) as at:
        await at.processor()
        await at.configure("ips", "<default>", {IP_RATE: "0"})
        (client,) = await at.connect()
        await trio.sleep(1)
        await wait_all_tasks_blocked()
        assert await hung_up(client)
        assert at.gauge(COUNTED.name, PLAINTEXT) == 0
        quota = met("ip_connection_creation_rate", "connection_creation_rate", 0, "<default>")
        assert await at.rejections() == [quota]


async def test_delayed_connections_are_bounded(
    make_env: MakeEnvironment, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_quotas, "DELAYED_MAX", 2)
    async with open_quotas(make_env) as at:
        await at.processor()
        autojump_clock.autojump_threshold = float("inf")
        await at.configure("ips", "10.0.0.1", {IP_RATE: "0"})
        clients = await at.connect(3)
        assert [await hung_up(client) for client in clients] == [False, False, True]
        autojump_clock.jump(1)
        await wait_all_tasks_blocked()
        clients = await at.connect(1)
        assert not await hung_up(clients[0])


LISTENERS = ["PLAINTEXT", "INTERNAL"]
TWO_LISTENERS = "listeners=PLAINTEXT://:9092,INTERNAL://:9093"
MAP = "listener.security.protocol.map=INTERNAL:PLAINTEXT"


def made(*pairs: str) -> Settings:
    return Settings.from_sources(pairs=[TWO_LISTENERS, MAP, *pairs])


def find(host: str) -> list[str]:
    known = {"two.example": ["10.0.0.2", "::ffff:10.0.0.3"], "no.such": []}
    return known.get(host, [host])


def test_listener_inherits_broker_limit_unless_set() -> None:
    settings = made("max.connections=5", "listener.name.internal.max.connections=3")
    limits = count_limits(settings, LISTENERS, find)
    assert limits.total == limits.of_listener("PLAINTEXT") == 5
    assert limits.of_listener("INTERNAL") == 3
    settings = made(
        "max.connection.creation.rate=5", "listener.name.internal.max.connection.creation.rate=3"
    )
    rates = rate_limits(settings, {}, LISTENERS, find)
    assert rates.total == rates.of_listener("PLAINTEXT") == 5
    assert rates.of_listener("INTERNAL") == 3


def test_inter_broker_listener_is_protected_only_with_other_listeners() -> None:
    assert protected_listener(made(), LISTENERS) == "PLAINTEXT"
    settings = made("inter.broker.listener.name=internal")
    assert protected_listener(settings, LISTENERS) == "INTERNAL"
    assert protected_listener(settings, ["INTERNAL"]) is None
    assert protected_listener(made(), ["A", "B"]) is None


def test_hosts_are_resolved_and_unknown_ones_skipped() -> None:
    overrides = "max.connections.per.ip.overrides=two.example:2,::FFFF:10.0.0.4:4,::1:6,no.such:1"
    limits = count_limits(made(overrides), LISTENERS, find)
    assert limits.per_ip_overrides == {"10.0.0.2": 2, "10.0.0.3": 2, "10.0.0.4": 4, "::1": 6}


def test_redpandas_settings_are_limits_of_their_own() -> None:
    settings = made("kafka_connections_max=9", "kafka_connections_max_overrides=10.0.0.1:1")
    limits = count_limits(settings, LISTENERS, find)
    assert (limits.drop_total, limits.drop_per_ip) == (9, None)
    assert limits.drop_overrides == {"10.0.0.1": 1}


def test_rates_of_addresses_are_quotas_of_the_cluster() -> None:
    configs = {
        ("ips", "10.0.0.1"): {"connection_creation_rate": "5.0"},
        ("ips", "::ffff:10.0.0.9"): {"connection_creation_rate": "0"},
        ("ips", "<default>"): {"connection_creation_rate": "7"},
        ("ips", "10.0.0.3"): {"connection_creation_rate": "many"},
        ("ips", "10.0.0.4"): {"connection_creation_rate": "-1"},
        ("ips", "10.0.0.5"): {},
        ("users", "10.0.0.6"): {"connection_creation_rate": "5.0"},
        ("ips", "two.example"): {"connection_creation_rate": "8"},
        ("ips", "no.such"): {"connection_creation_rate": "9"},
    }
    rates = rate_limits(made(), configs, LISTENERS, find)
    assert rates.ips == {"10.0.0.1": 5, "10.0.0.9": 0, "10.0.0.2": 8, "10.0.0.3": 8}
    assert rates.ip_default == 7
    assert rate_limits(made(), {}, LISTENERS, find).ip_default is None


def test_hosts_of_are_the_hosts_with_own_limits() -> None:
    settings = made("max.connections.per.ip.overrides=two.example:2,10.0.0.1:1")
    configs = {
        ("ips", "<default>"): {"connection_creation_rate": "7"},
        ("ips", "three.example"): {"connection_creation_rate": "5.0"},
        ("ips", "four.example"): {"connection_creation_rate": "many"},
        ("users", "five.example"): {"connection_creation_rate": "5.0"},
    }
    assert hosts_of(settings, configs) == {"two.example", "10.0.0.1", "three.example"}


def test_redpanda_limits_normalize_addresses() -> None:
    overrides = "kafka_connections_max_overrides=::ffff:10.0.0.1:1,::0001:3"
    limits = drop_limits(made("kafka_connections_max_per_ip=9", "max.connections=7", overrides))
    assert (limits.drop_total, limits.drop_per_ip) == (None, 9)
    assert limits.drop_overrides == {"10.0.0.1": 1, "::1": 3}
    assert limits.total == 2**31 - 1


OWN = Settings.from_sources(
    pairs=[
        "listeners=INSIDE://:9092,OUTSIDE://:9093",
        "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "listener.name.outside.max.connections=5",
        "listener.name.outside.max.connection.creation.rate=6",
    ]
)
COUNTS = ConnectionCountLimits(
    per_ip=7,
    per_ip_overrides={"10.0.0.1": 1},
    drop_total=8,
    drop_per_ip=9,
    drop_overrides={"10.0.0.1": 2},
)


@pytest.mark.parametrize(
    ("refusal", "ip", "met"),
    [
        (ExceededCount.DROPPED, "10.0.0.1", ExceededLimit("kafka_connections_max", 8)),
        (
            ExceededCount.DROPPED_PER_IP,
            "10.0.0.2",
            ExceededLimit("kafka_connections_max_per_ip", 9),
        ),
        (
            ExceededCount.DROPPED_PER_IP,
            "10.0.0.1",
            ExceededLimit("kafka_connections_max_overrides", 2, "10.0.0.1"),
        ),
        (ExceededCount.PER_IP, "10.0.0.2", ExceededLimit("max.connections.per.ip", 7)),
        (
            ExceededCount.PER_IP,
            "10.0.0.1",
            ExceededLimit("max.connections.per.ip.overrides", 1, "10.0.0.1"),
        ),
    ],
)
def test_override_is_distinguished_from_the_default(
    refusal: ExceededCount, ip: str, met: ExceededLimit
) -> None:
    assert count_limit(COUNTS, refusal, ip) == met


def test_quota_of_address_is_distinguished_from_the_default() -> None:
    limits = ConnectionRateLimits(ips={"10.0.0.1": 2.5}, ip_default=4)
    own = ExceededLimit("connection_creation_rate", 2.5, "10.0.0.1")
    assert rate_limit(limits, "10.0.0.1") == own
    assert rate_limit(limits, "10.0.0.2") == ExceededLimit(
        "connection_creation_rate", 4, "<default>"
    )


def test_host_has_the_name_used_in_its_limit() -> None:
    known = {"here.test": ["10.0.0.1", "::ffff:10.0.0.2"], "::1": ["::1"]}
    pair = "max.connections.per.ip.overrides=here.test:1,[::1]:2"
    assert override_hosts(Settings.from_sources(pairs=[pair]), known.__getitem__) == {
        "10.0.0.1": "here.test",
        "10.0.0.2": "here.test",
    }
    configs: dict[tuple[str, str], dict[str, str]]
    configs = {("ips", "here.test"): {}, ("ips", "::1"): {}, ("brokers", "1"): {}}
    hosts = quota_hosts(configs, known.__getitem__)
    limits = ConnectionRateLimits(ips={"10.0.0.2": 2})
    assert rate_limit(limits, "10.0.0.2", hosts).whose == "here.test"
    assert count_limit(COUNTS, ExceededCount.PER_IP, "10.0.0.1", hosts).whose == "here.test"
    dropped = count_limit(COUNTS, ExceededCount.DROPPED_PER_IP, "10.0.0.1", hosts)
    assert dropped.whose == "10.0.0.1"  # those can't be given by name


def test_rejection_names_listener_limit_if_it_applied() -> None:
    assert slot_setting(OWN, "OUTSIDE", own=True) == "listener.name.outside.max.connections"
    assert slot_setting(OWN, "OUTSIDE", own=False) == "max.connections"
    assert slot_setting(OWN, "INSIDE", own=True) == "max.connections"
    rate = "max.connection.creation.rate"
    assert rate_setting(OWN, "OUTSIDE", own=True) == f"listener.name.outside.{rate}"
    assert rate_setting(OWN, "OUTSIDE", own=False) == rate
    assert rate_setting(OWN, "INSIDE", own=True) == rate

"""Half a minute of connection storm on a complete broker with all limits, on a mock clock.

Admissions are compared with a second implementation of rates to the millisecond, and with each
count limit at every event, as clients see it: a connection is open from its response until just
before its client closes it, so clients never see more than the broker has.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.connections.limits import ConnectionCounts
from minibroker.broker.metrics.definitions import COUNTED, OPEN
from minibroker.broker.settings import Settings
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from tests.simulation.client import SimulatedClient
from tests.simulation.rate_model import one_after_the_other
from tests.simulation.surroundings import TWO_OF_EACH
from tests.simulation.world import logged_errors, scheduled_by

RUNS = 2
STORM_S = 30
HELLO = ApiVersionsRequest(client_software_name="me", client_software_version="1")
PLAINTEXT, EXTERNAL = "PLAINTEXT", "EXTERNAL"
LISTENERS = (
    "listeners=PLAINTEXT://:9092,EXTERNAL://:9093",
    "listener.security.protocol.map=EXTERNAL:PLAINTEXT",
    "inter.broker.listener.name=PLAINTEXT",
)
ADMIN = "10.9.9.9"
PATIENCE_S = 5.0
CALM_S = 90.0
"""Until all clients that disconnected while they waited are accepted, one per second."""

BROKER_RATE = 20
LISTENER_RATES = {PLAINTEXT: 10, EXTERNAL: 15}
RATES = (
    f"max.connection.creation.rate={BROKER_RATE}",
    f"listener.name.plaintext.max.connection.creation.rate={LISTENER_RATES[PLAINTEXT]}",
    f"listener.name.external.max.connection.creation.rate={LISTENER_RATES[EXTERNAL]}",
)

TOTAL, PER_IP, DROP_TOTAL, DROP_PER_IP = 16, 4, 20, 5
OF_LISTENER = {PLAINTEXT: 6, EXTERNAL: 14}
SPECIAL, SPECIAL_PER_IP, DROP_SPECIAL, SPECIAL_DROP = "10.0.0.1", 2, "10.0.0.2", 3
IP_RATE, FAST, FAST_RATE = 3, "10.0.0.3", 6
COUNTS = (
    f"max.connections={TOTAL}",
    f"listener.name.plaintext.max.connections={OF_LISTENER[PLAINTEXT]}",
    f"listener.name.external.max.connections={OF_LISTENER[EXTERNAL]}",
    f"max.connections.per.ip={PER_IP}",
    f"max.connections.per.ip.overrides={SPECIAL}:{SPECIAL_PER_IP}",
    "max.connection.creation.rate=60",
    "listener.name.external.max.connection.creation.rate=50",
    "listener.name.plaintext.max.connection.creation.rate=20",
    f"kafka_connections_max={DROP_TOTAL}",
    f"kafka_connections_max_per_ip={DROP_PER_IP}",
    f"kafka_connections_max_overrides={DROP_SPECIAL}:{SPECIAL_DROP}",
)


def on_broker(
    directory: Path,
    seed: int,
    settings: tuple[str, ...],
    act: Callable[[TaskBroker], Awaitable[None]],
) -> None:
    """Runs a broker and what ``act``, a coroutine function, does to it; nothing goes wrong."""
    mock = MockClock(autojump_threshold=0)

    async def main() -> None:
        broker = TaskBroker(
            Settings.from_sources(pairs=[*TWO_OF_EACH, *LISTENERS, *settings]),
            directory,
            clock=SimulatedClock(mock),
            seed=seed,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.run)
            await act(broker)
            await trio.sleep(CALM_S)
            for name in (COUNTED.name, OPEN.name):
                assert sum(gauges(broker, name)) == 0, name
            await broker.stop()

    with scheduled_by(seed), logged_errors() as errors:
        trio.run(main, clock=mock)
    assert errors == []


def gauges(broker: TaskBroker, name: str) -> Iterator[float]:
    """A metric by process and listener."""
    for role in ("acceptor", "processor-0", "processor-1"):
        shown = broker.environment(role).metrics.snapshot().gauges
        yield from (shown.get((name, (listener,)), 0) for listener in OF_LISTENER)


def test_rates_match_the_reference_to_the_millisecond(seed: int, tmp_path: Path) -> None:
    came: dict[str, list[float]] = defaultdict(list)

    async def dial(broker: TaskBroker, listener: str, host: str) -> None:
        while True:
            client = SimulatedClient(await broker.sources[listener].connect(host))
            try:
                await client.ask(HELLO, 4)
                came[listener].append(trio.current_time())
            finally:
                client.close()

    async def act(broker: TaskBroker) -> None:
        with trio.move_on_after(STORM_S):
            async with trio.open_nursery() as nursery:
                for listener in LISTENER_RATES:
                    for number in range(8):
                        nursery.start_soon(dial, broker, listener, f"10.0.0.{number}")

    on_broker(tmp_path, seed, RATES, act)
    # The broker's rate applies to clients' connections only: the other listener is protected.
    for listener, limits in ((EXTERNAL, [BROKER_RATE, 15]), (PLAINTEXT, [10])):
        first = came[listener][0]
        times = [round((at - first) * 1000) for at in came[listener]]
        last_ms = STORM_S * 1000 - 1
        assert [at for at in times if at <= last_ms] == one_after_the_other(limits, last_ms)


class Watch:
    """Counts open connections as clients see them, and checks every limit at every event."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()
        self.by_host: Counter[str] = Counter()
        self.lately: dict[str, deque[float]] = defaultdict(deque)
        self.most: Counter[str] = Counter()
        self.served = 0

    def answered(self, listener: str, host: str) -> None:
        self.served += 1
        self.open[listener] += 1
        self.by_host[host] += 1
        self.most |= self.by_host | self.open
        assert self.open[listener] <= OF_LISTENER[listener]
        assert self.open.total() <= DROP_TOTAL
        assert self.by_host[host] <= (SPECIAL_PER_IP if host == SPECIAL else PER_IP)
        assert self.by_host[host] <= (SPECIAL_DROP if host == DROP_SPECIAL else DROP_PER_IP)
        self._came(host)

    def _came(self, host: str) -> None:
        now, lately = trio.current_time(), self.lately[host]
        lately.append(now)
        while lately[0] <= now - 10:
            lately.popleft()
        # The rate is taken over less than twelve seconds: eleven, and one that a sample lasts.
        assert len(lately) <= 12 * (FAST_RATE if host == FAST else IP_RATE)

    def closing(self, listener: str, host: str) -> None:
        self.open[listener] -= 1
        self.by_host[host] -= 1


async def limit_ips(broker: TaskBroker) -> None:
    client = SimulatedClient(await broker.sources[EXTERNAL].connect(ADMIN))
    entries = [
        AlterClientQuotasRequestEntryData(
            entity=[EntityData(entity_type="ip", entity_name=host)],
            ops=[OpData(key="connection_creation_rate", value=rate)],
        )
        for host, rate in ((None, IP_RATE), (FAST, FAST_RATE))
    ]
    await client.ask(AlterClientQuotasRequest(entries=entries, validate_only=False), 1)
    client.close()


class Storming:
    """Clients that come, stay a while or not, and go."""

    def __init__(self, broker: TaskBroker, watch: Watch, seed: int) -> None:
        self.broker = broker
        self.watch = watch
        self.random = Random(f"{seed} storm")

    async def client(self) -> None:
        random = Random(self.random.random())
        while True:
            listener = random.choice((EXTERNAL, EXTERNAL, EXTERNAL, PLAINTEXT))
            host = f"10.0.0.{random.randrange(12)}"
            await self.visit(listener, host, random.choice((0, 0, random.random() * 2)))
            await trio.sleep(random.random() / 50)

    async def visit(self, listener: str, host: str, stay_s: float) -> None:
        client = SimulatedClient(await self.broker.sources[listener].connect(host))
        try:
            with trio.move_on_after(PATIENCE_S):
                await client.ask(HELLO, 4)
                self.watch.answered(listener, host)
                try:
                    with trio.move_on_after(stay_s):
                        await client.wait_closed()  # allowed, in favour of a protected one
                finally:
                    self.watch.closing(listener, host)
        except StreamClosed:
            pass
        finally:
            client.close()


@pytest.mark.parametrize("run", range(RUNS))
def test_no_limit_is_exceeded_at_any_moment(
    seed: int, run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch()
    admit = ConnectionCounts.admit
    fullest = 0

    def checked(counts: ConnectionCounts, number: int) -> object:
        nonlocal fullest
        before = counts.by_listener().get(EXTERNAL, 0)
        refusal = admit(counts, number)
        # Only a protected connection is admitted over the total, and another one is closed for it.
        by_listener = counts.by_listener()
        assert counts.total <= TOTAL or by_listener.get(EXTERNAL, 0) == before
        assert all(counted <= OF_LISTENER[name] for name, counted in by_listener.items())
        assert counts.arrived <= DROP_TOTAL
        fullest = max(fullest, counts.total)
        return refusal

    monkeypatch.setattr(ConnectionCounts, "admit", checked)

    async def act(broker: TaskBroker) -> None:
        await limit_ips(broker)
        storming = Storming(broker, watch, seed + run)
        with trio.move_on_after(STORM_S):
            async with trio.open_nursery() as nursery:
                for _ in range(60):
                    nursery.start_soon(storming.client)

    on_broker(tmp_path, seed + run, COUNTS, act)
    assert watch.served > 300, f"seed {seed + run}"
    # They were all reached, or nothing would have been shown.
    assert fullest >= TOTAL
    assert watch.most[SPECIAL] == SPECIAL_PER_IP
    assert watch.most[DROP_SPECIAL] == SPECIAL_DROP
    assert max(watch.most[f"10.0.0.{number}"] for number in range(4, 12)) == PER_IP

"""Order of the checks of a new connection, what each records, and what wakes waiting ones."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission.connection_events import ConnectionEvents
from minibroker.broker.admission.rejected_connections import (
    CloseConnections,
    ConnectionsClosed,
    LeastRecentlyUsed,
    LeastRecentlyUsedRequest,
    ProcessorConnections,
)
from minibroker.broker.connections.limits import LastUse
from minibroker.broker.metrics.definitions import (
    ACCEPT_RATE,
    BROKER_ACCEPT_RATE,
    COUNTED,
    CloseReason,
)
from minibroker.broker.process.environment import handoff_name
from tests.broker.admission.test_connection_quotas import (
    EXTERNAL,
    IP_RATE,
    PLAINTEXT,
    TWO,
    QuotasHarness,
    hung_up,
    open_quotas,
)
from tests.broker.process.conftest import MakeEnvironment

RATE = "max.connection.creation.rate"
TWO_SAMPLES = "quota.window.num=2"
"""The rate is then measured over a second at least, so a burst of a second's worth is allowed."""


@pytest.fixture
def clock(autojump_clock: MockClock) -> MockClock:
    """A clock that the test turns."""
    autojump_clock.autojump_threshold = float("inf")
    return autojump_clock


async def pass_time(clock: MockClock, seconds: float) -> None:
    clock.jump(seconds)
    await wait_all_tasks_blocked()


async def test_connection_over_ip_limit_counts_in_the_rates(
    make_env: MakeEnvironment, clock: MockClock
) -> None:
    async with open_quotas(make_env, "max.connections.per.ip=1", TWO_SAMPLES) as at:
        await at.processor()
        await at.connect(3)
        assert at.closed() == {CloseReason.PER_IP: 2}
        assert at.gauge(BROKER_ACCEPT_RATE.name) == at.gauge(ACCEPT_RATE.name, PLAINTEXT, "") == 3


async def test_connection_rejected_by_redpandas_limits_is_in_no_rate(
    make_env: MakeEnvironment, clock: MockClock
) -> None:
    async with open_quotas(make_env, "kafka_connections_max=1", f"{RATE}=2", TWO_SAMPLES) as at:
        await at.processor()
        await at.connect(9)
        assert at.closed() == {CloseReason.DROPPED: 8}
        assert at.gauge(BROKER_ACCEPT_RATE.name) == 1
        assert at.blocked_ms() == 0


async def test_rate_is_waited_for_before_an_address_s_connections_are_counted(
    make_env: MakeEnvironment, clock: MockClock
) -> None:
    async with open_quotas(make_env, "max.connections.per.ip=1", f"{RATE}=2", TWO_SAMPLES) as at:
        await at.processor()
        *_, last = await at.connect(3)
        assert not await hung_up(last)
        await pass_time(clock, 0.499)
        assert not await hung_up(last)
        await pass_time(clock, 0.001)
        assert await hung_up(last)


async def test_ip_rate_is_checked_before_ip_count(
    make_env: MakeEnvironment, clock: MockClock
) -> None:
    async with open_quotas(make_env, "max.connections.per.ip=1") as at:
        await at.processor()
        await at.configure("ips", "10.0.0.1", {IP_RATE: "5"})
        *_, last = await at.connect(51)
        assert not await hung_up(last)  # delayed by its rate, or it would be closed as 49 others
        await pass_time(clock, 0.2)
        assert await hung_up(last)
        assert at.closed() == {CloseReason.PER_IP: 50}


async def test_connection_that_waits_for_slot_is_in_the_rates_once(
    make_env: MakeEnvironment, clock: MockClock
) -> None:
    async with open_quotas(make_env, "max.connections=1", TWO_SAMPLES) as at:
        processor = await at.processor()
        await at.connect(2)
        await processor.close(min(processor.open))
        await wait_all_tasks_blocked()
        assert at.open == [2]
        assert at.gauge(BROKER_ACCEPT_RATE.name) == 2


async def test_delayed_connection_waits_for_slot_after_its_delay(
    make_env: MakeEnvironment, clock: MockClock
) -> None:
    async with open_quotas(make_env, "max.connections=51") as at:
        processor = await at.processor()
        await at.configure("ips", "10.0.0.1", {IP_RATE: "5"})
        (held,) = (await at.connect(51))[50:]
        await at.connect(1, "10.0.0.2")
        await pass_time(clock, 0.2)
        assert len(at.open) == 51
        assert not await hung_up(held)
        await processor.close(min(processor.open))
        await wait_all_tasks_blocked()
        assert at.open == [*range(2, 53)]


@pytest.mark.parametrize("decided", ["held", "waiting"])
async def test_time_before_the_wait_is_counted(
    decided: str,
    make_env: MakeEnvironment,
    clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    note = ConnectionEvents.note

    def while_time_passes(self: ConnectionEvents, kind: Any, *args: Any, **more: Any) -> None:
        note(self, kind, *args, **more)
        if kind == decided:
            clock.jump(0.199)

    monkeypatch.setattr(ConnectionEvents, "note", while_time_passes)
    async with open_quotas(make_env, *([f"{RATE}=5"] if decided == "waiting" else [])) as at:
        await at.processor()
        if decided == "held":
            await at.configure("ips", "10.0.0.1", {IP_RATE: "5"})
        *_, last = await at.connect(51)
        assert len(at.open) == 50
        await pass_time(clock, 0.001)
        assert len(at.open) == 51
        assert not await hung_up(last)


async def test_connection_closed_after_delay_is_not_in_redpandas_count(
    make_env: MakeEnvironment, clock: MockClock
) -> None:
    async with open_quotas(make_env, "kafka_connections_max=1") as at:
        await at.processor()
        await at.configure("ips", "10.0.0.1", {IP_RATE: "0"})
        (held,) = await at.connect()
        assert await hung_up(*await at.connect(1, "10.0.0.2"))
        await pass_time(clock, 1)
        assert await hung_up(held)
        assert not await hung_up(*await at.connect(1, "10.0.0.2"))


async def test_excess_connection_is_closed_once_its_processor_has_it(
    make_env: MakeEnvironment,
) -> None:
    own = "listener.name.plaintext.max.connections=2"
    async with open_quotas(make_env, "max.connections=1", *TWO, own) as at:
        handoff = await at.env.transport.listen_handoff(handoff_name(0)).accept()
        await handoff.send(ProcessorConnections((), more=False))
        await at.connect(1, listener=EXTERNAL)
        (waiting, _) = await handoff.receive()
        await at.connect(1, listener=PLAINTEXT)
        result = [(await handoff.receive())[0] for _ in range(2)]
        # The least recently used are requested at once, not only when the new connection was taken.
        assert LeastRecentlyUsedRequest(1, PLAINTEXT) in result
        await handoff.send(LeastRecentlyUsed(()))
        await handoff.send(ConnectionsClosed(1, ()))
        assert (await handoff.receive())[0] == LeastRecentlyUsedRequest(1, PLAINTEXT)
        await handoff.send(LeastRecentlyUsed((LastUse(0, waiting.number),)))
        assert (await handoff.receive())[0] == CloseConnections((waiting.number,), 1)


async def test_raised_limit_admits_waiting_connections(make_env: MakeEnvironment) -> None:
    async with open_quotas(make_env, "max.connections=1") as at:
        await at.processor()
        await at.connect(3)
        assert at.open == [1]
        await at.configure("brokers", "1", {"max.connections": "2"})
        assert at.open == [1, 2]


async def test_raised_rate_does_not_shorten_a_wait(
    make_env: MakeEnvironment, clock: MockClock
) -> None:
    async with open_quotas(make_env, f"{RATE}=1", TWO_SAMPLES) as at:
        await at.processor()
        await at.connect(3)
        await at.configure("brokers", "1", {RATE: "1000"})
        await pass_time(clock, 0.999)
        assert at.open == [1]
        await pass_time(clock, 0.001)
        assert at.open == [1, 2, 3]


async def test_delayed_inter_broker_connection_is_not_in_the_broker_rate(
    make_env: MakeEnvironment, clock: MockClock
) -> None:
    async with open_quotas(make_env, *TWO, TWO_SAMPLES) as at:
        await at.processor()
        await at.configure("ips", "10.0.0.1", {IP_RATE: "1"})
        await at.connect(2, "10.0.0.2", EXTERNAL)
        await at.connect(3, listener=PLAINTEXT)
        assert at.gauge(BROKER_ACCEPT_RATE.name) == 2
        assert at.gauge(ACCEPT_RATE.name, PLAINTEXT, "") == 1


async def test_each_delayed_connection_is_closed_after_its_own_delay(
    make_env: MakeEnvironment, clock: MockClock
) -> None:
    never = "connection.ip.throttle.recheck=False"
    async with open_quotas(make_env, never, TWO_SAMPLES) as at:
        await at.processor()
        await at.configure("ips", "10.0.0.1", {IP_RATE: "1"})
        await at.configure("ips", "10.0.0.2", {IP_RATE: "5"})
        slow = (await at.connect(2))[1]
        fast = (await at.connect(6, "10.0.0.2"))[5]
        await pass_time(clock, 0.2)
        assert (await hung_up(slow), await hung_up(fast)) == (False, True)
        await pass_time(clock, 0.8)
        assert await hung_up(slow)


async def test_delayed_connection_is_closed_while_its_listener_waits(
    make_env: MakeEnvironment, clock: MockClock
) -> None:
    pairs = ("connection.ip.throttle.recheck=False", "max.connections=2", TWO_SAMPLES)
    async with open_quotas(make_env, *pairs) as at:
        await at.processor()
        await at.configure("ips", "10.0.0.1", {IP_RATE: "1"})
        held = (await at.connect(2))[1]
        await at.connect(2, "10.0.0.2")
        assert at.gauge(COUNTED.name, PLAINTEXT) == 2  # and one waits for a slot
        await pass_time(clock, 1)
        assert await hung_up(held)


async def test_delayed_connections_are_closed_when_the_broker_stops(
    make_env: MakeEnvironment, clock: MockClock
) -> None:
    async with open_quotas(make_env, TWO_SAMPLES) as at:
        await at.processor()
        await at.configure("ips", "10.0.0.1", {IP_RATE: "1"})
        served, held = await at.connect(2)
        at.env.stopping.set()
        await wait_all_tasks_blocked()
        assert (await hung_up(served), await hung_up(held)) == (False, True)


async def come_at_once(at: QuotasHarness, host: str, count: int = 60) -> int:
    """Return how many connections of an address are accepted without a delay."""
    before = at.gauge(COUNTED.name, PLAINTEXT) or 0
    await at.connect(count, host)
    return int((at.gauge(COUNTED.name, PLAINTEXT) or 0) - before)


async def test_rate_of_address_is_independent_of_the_default(
    make_env: MakeEnvironment, clock: MockClock
) -> None:
    async with open_quotas(make_env, "connection.ip.throttle.recheck=False", TWO_SAMPLES) as at:
        await at.processor()
        await at.configure("ips", "<default>", {IP_RATE: "50"})
        assert [await come_at_once(at, host) for host in ("10.0.0.1", "10.0.0.2")] == [50, 50]
        await pass_time(clock, 4)
        await at.configure("ips", "10.0.0.1", {IP_RATE: "30"})
        assert [await come_at_once(at, host) for host in ("10.0.0.1", "10.0.0.2")] == [30, 50]
        for default, others in (({IP_RATE: "20"}, 20), ({}, 60)):
            await pass_time(clock, 4)
            await at.configure("ips", "<default>", default)
            came = [await come_at_once(at, host) for host in ("10.0.0.1", "10.0.0.2")]
            assert came == [30, others]
        await pass_time(clock, 4)
        await at.configure("ips", "10.0.0.1", {})
        assert await come_at_once(at, "10.0.0.1") == 60


async def test_rate_and_a_number_hold_together(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with open_quotas(make_env, f"{RATE}=25", "max.connections=350", TWO_SAMPLES) as at:
        processor = await at.processor()
        began = trio.current_time()
        await at.connect(351)
        # 25 at once and then 25 a second, of which the last ones' turn comes in 13 seconds.
        await trio.sleep(12 - (trio.current_time() - began))
        assert len(at.open) == pytest.approx(25 * 12, abs=8 * 12)
        await trio.sleep(60)
        assert len(at.open) == 350
        await processor.close(min(processor.open))
        await wait_all_tasks_blocked()
        assert at.open == list(range(2, 352))

"""Eviction of slow requests that occupy a processor's request memory."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.runtime.arena import Arena
from minibroker.runtime.clock import SimulatedClock
from tests.broker.process.conftest import MakeEnvironment
from tests.broker.roles.running_processor import HELLO, running_processor
from tests.simulation.client import frame

LARGE = 1024 * 1024
LARGE_MAX = f"socket.request.max.bytes={LARGE}"


def large_hello() -> bytes:
    """A request padded to the maximum size."""
    body = frame(HELLO, 4)[4:].ljust(LARGE, b"\0")
    return LARGE.to_bytes(4, "big") + body


async def test_slow_claim_is_evicted_only_when_a_large_request_waits(
    make_env: MakeEnvironment, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_processor(make_env, LARGE_MAX, arena=Arena.create(LARGE, 1)) as at:
        slow = await at.connect()
        await slow.stream.send_all(large_hello()[:7])
        await trio.sleep(60)
        other = await at.connect()
        assert (await other.ask(HELLO, 4)).error_code == 0
        assert at.closed() == {}
        asked = trio.current_time()
        await other.stream.send_all(large_hello())
        await other.receive_frame()
        assert trio.current_time() - asked < 1
        assert at.closed() == {CloseReason.SLOW_CLIENT: 1}
    [text] = [
        vars(record)["fields"]["reason"] for record in caplog.records if "slow" in record.message
    ]
    assert text.startswith(f"3 bytes of a request of {LARGE} had arrived in 60.")


async def test_small_requests_are_answered_while_large_claims_wait_for_each_other(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env, LARGE_MAX, arena=Arena.create(LARGE, 1)) as at:
        for _ in range(40):
            attacker = await at.connect()
            await attacker.stream.send_all(large_hello()[:7])
        other = await at.connect()
        asked = trio.current_time()
        for _ in range(10):
            assert (await other.ask(HELLO, 4)).error_code == 0
        assert trio.current_time() == asked
        assert at.closed() == {}


async def test_claim_that_arrives_in_time_is_not_evicted(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env, LARGE_MAX, arena=Arena.create(LARGE, 1)) as at:
        slow, other = await at.connect(), await at.connect()
        data, pieces = large_hello(), 28
        size = -(-len(data) // pieces)
        for start in range(0, len(data), size):
            await slow.stream.send_all(data[start : start + size])
            if start == 0:
                await wait_all_tasks_blocked()
                at.nursery.start_soon(other.stream.send_all, data)
            await trio.sleep(1)
        for client in (slow, other):
            await client.receive_frame()
        assert at.closed() == {}


async def test_slow_claim_is_evicted_in_real_time_while_the_clock_is_frozen(
    make_env: MakeEnvironment, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_s = 1000.0

    async def sleep_real(_clock: SimulatedClock, seconds: float) -> None:
        nonlocal real_s
        real_s += seconds
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(SimulatedClock, "real_s", lambda _clock: real_s)
    monkeypatch.setattr(SimulatedClock, "sleep_real", sleep_real)
    async with running_processor(make_env, LARGE_MAX, arena=Arena.create(LARGE, 1)) as at:
        slow, other = await at.connect(), await at.connect()
        await slow.stream.send_all(large_hello()[:7])
        await wait_all_tasks_blocked()
        autojump_clock.autojump_threshold = float("inf")
        frozen = trio.current_time()
        await other.stream.send_all(large_hello())
        await other.receive_frame()
        assert at.closed() == {CloseReason.SLOW_CLIENT: 1}
        assert trio.current_time() == frozen
        assert real_s >= 1001
        autojump_clock.autojump_threshold = 0

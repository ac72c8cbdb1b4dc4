"""Batches that are larger than ten seconds of their consumer's quota."""

from __future__ import annotations

from trio.testing import MockClock

from tests.simulation.test_quotas import CLIENT, CONSUMER, Open, fetch, filled, records, serve

__all__ = ["serve"]


async def test_batch_above_ten_seconds_of_quota_is_never_fetched(
    serve: Open, autojump_clock: MockClock
) -> None:
    async with serve() as it:
        await filled(it, 20_000, 1)
        await it.set(CLIENT, **{CONSUMER: 1000})
        client = await it.connect()
        throttles = []
        for _ in range(60):
            response = await client.ask(fetch(0), 11)
            assert records(response) == b""
            throttles.append(response.throttle_time_ms)
        # Its bytes are returned to the quota each time, so every try finds the same counter.
        assert min(throttles) > 9_000
        assert it.ms > 9 * 60_000
        await it.set(CLIENT, **{CONSUMER: 2100})
        assert len(records(await client.ask(fetch(0), 11))) > 20_000

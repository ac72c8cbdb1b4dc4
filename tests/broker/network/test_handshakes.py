"""TLS handshakes that take too long, in real time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission.acceptor_messages import AcceptedConnection
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.client_connection import ClientConnection
from minibroker.broker.network.handshakes import SASL_S, TLS_S, authentications, tls_handshakes
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.stream import memory_stream_pair


def a_client(number: int) -> ClientConnection:
    stream = memory_stream_pair()[1]
    return ClientConnection(AcceptedConnection("SSL", stream.local, stream.peer, number), stream, 0)


async def test_handshake_that_takes_too_long_closes_only_its_connection(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    handshakes = tls_handshakes(SimulatedClock(autojump_clock))
    nursery.start_soon(handshakes.close_overdue)
    early, done, late = map(a_client, range(3))

    async def shake(client: ClientConnection, seconds: float) -> None:
        with client.scope, handshakes.track(client):
            await trio.sleep(seconds)

    nursery.start_soon(shake, early, 100)
    nursery.start_soon(shake, done, TLS_S - 1)
    await trio.sleep(3)
    nursery.start_soon(shake, late, 100)
    await trio.sleep(TLS_S - 2)
    assert early.scope.cancelled_caught
    assert early.close_reason is CloseReason.TLS_FAILED
    assert early.close_text == "the TLS handshake was not completed within 10 s"
    assert (done.scope.cancel_called, late.scope.cancel_called) == (False, False)
    await trio.sleep(3)
    assert late.scope.cancelled_caught
    assert not done.scope.cancel_called


async def test_handshake_timeout_uses_real_time(
    autojump_clock: MockClock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_s, passed = 50.0, trio.Event()
    slept: list[float] = []

    async def sleep_real(_clock: SimulatedClock, seconds: float) -> None:
        slept.append(seconds)
        await passed.wait()

    monkeypatch.setattr(SimulatedClock, "real_s", lambda _clock: real_s)
    monkeypatch.setattr(SimulatedClock, "sleep_real", sleep_real)
    handshakes = tls_handshakes(SimulatedClock(autojump_clock))
    nursery.start_soon(handshakes.close_overdue)
    client = a_client(1)
    with client.scope, handshakes.track(client):
        await trio.sleep(1000)
        assert not client.scope.cancel_called
        assert slept == [TLS_S]
        passed.set()
        await wait_all_tasks_blocked()
    assert client.scope.cancel_called


async def test_failed_authentication_is_answered_before_the_close(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    track = authentications(SimulatedClock(autojump_clock))
    nursery.start_soon(track.close_overdue)
    failed, stuck = a_client(1), a_client(2)
    with track.track(failed), track.track(stuck):
        track.ended(failed)
        await trio.sleep(SASL_S + 1)
        assert not failed.scope.cancel_called
        assert stuck.close_reason is CloseReason.AUTHENTICATION_FAILED
        assert stuck.close_text == "the client was not authenticated within 30 s"

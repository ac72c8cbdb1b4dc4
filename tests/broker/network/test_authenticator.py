"""Authentication of connections: what succeeds, what times out, when failures are answered."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission.rejected_connections import AcceptedConnection
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.authenticator import SASL_S, TLS_S, authentications, tls_handshakes
from minibroker.broker.network.client_connection import ClientConnection
from minibroker.broker.network.tls import TlsHandshakeFailed, TlsStream
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.stream import StreamClosed, memory_stream_pair
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.broker.network.certificates import client_context, keystore, truststore
from tests.broker.network.secured import HELLO, secured
from tests.simulation.client import SimulatedClient, frame

LISTENERS = "listeners=SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"


async def test_both_kinds_of_listener_are_served_side_by_side(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with secured(tmp_path, autojump_clock, LISTENERS) as at:
        for client in (await at.connect("SSL", client_context()), await at.connect("PLAINTEXT")):
            assert (await client.ask(HELLO, 4)).error_code == 0


async def test_silent_client_is_disconnected(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with secured(tmp_path, autojump_clock, LISTENERS) as at:
        began = trio.current_time()
        stream = await at.dial("SSL")
        assert await stream.receive_into(memoryview(bytearray(9))) == 0
        assert trio.current_time() - began == pytest.approx(TLS_S)
        assert await at.closed(CloseReason.TLS_FAILED) == ["SSL"]


async def test_bytes_that_are_no_tls_are_never_answered_by_an_api(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with secured(tmp_path, autojump_clock, LISTENERS) as at:
        began = trio.current_time()
        stream = await at.dial("SSL")
        await stream.send_all(frame(HELLO, 4))
        room = memoryview(bytearray(100))
        received = bytes(room[: await stream.receive_into(room)])
        assert received[:1] in (b"", b"\x15")  # nothing, or TLS's alert
        assert await stream.receive_into(room) == 0
        assert trio.current_time() - began == pytest.approx(0.1)
        assert await at.closed(CloseReason.TLS_FAILED) == ["SSL"]


@pytest.mark.parametrize("expired", [False, True])
async def test_client_certificate_is_requested(
    tmp_path: Path, autojump_clock: MockClock, expired: bool
) -> None:
    wanted = (f"ssl.truststore.location={truststore(tmp_path)}", "ssl.client.auth=required")
    async with secured(tmp_path, autojump_clock, LISTENERS, *wanted) as at:
        client = await at.connect("SSL", client_context("alice"))
        assert (await client.ask(HELLO, 4)).error_code == 0
        refused = client_context("alice" if expired else None, expired=expired)

        async def try_it() -> None:
            client = await at.connect("SSL", refused)
            await client.ask(HELLO, 4)

        with pytest.raises((StreamClosed, TlsHandshakeFailed)):
            await try_it()
        assert await at.closed(CloseReason.TLS_FAILED) == ["SSL"]


async def test_renewed_certificate_is_used_for_new_connections(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    def renew(location: Path) -> IncrementalAlterConfigsRequest:
        name = "listener.name.ssl.ssl.keystore.location"
        config = AlterableConfig(name=name, config_operation=0, value=str(location))
        resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[config])
        return IncrementalAlterConfigsRequest(resources=[resource])

    def seen(client: SimulatedClient) -> object:
        assert isinstance(client.stream, TlsStream)
        return client.stream.subject()

    allowed = "ssl.allow.dn.changes=true", "num.network.threads=3"
    async with secured(tmp_path, autojump_clock, LISTENERS, *allowed) as at:
        admin = await at.connect("PLAINTEXT")
        before = await at.connect("SSL", client_context())
        (tmp_path / "new").mkdir()
        assert (await admin.ask(renew(keystore(tmp_path / "new")), 1)).responses[0].error_code == 0
        after = [await at.connect("SSL", client_context()) for _ in range(6)]
        assert len({seen(client) for client in after}) == 1
        assert seen(after[0]) != seen(before)
        for client in (before, *after):
            assert (await client.ask(HELLO, 4)).error_code == 0
        (tmp_path / "bad.pem").touch()
        [refused] = (await admin.ask(renew(tmp_path / "bad.pem"), 1)).responses
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert "bad.pem (SSL): key and certificate can't be used" in refused.error_message
        assert seen(await at.connect("SSL", client_context())) == seen(after[0])


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

"""Connections to a broker with TLS, over real sockets."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from minibroker.broker.security.handshakes import Pem, client_context
from minibroker.broker.settings.types import HostPort, parse_host_port
from minibroker.lab.proxy.connection import UpstreamLost
from minibroker.lab.proxy.upstream import check_broker, connect
from minibroker.testing import MiniBroker
from tests.broker.network.certificates import authority, keystore, truststore

LOOPBACK = "127.0.0.1"
PASSWORD = "ssl.key.password"


@asynccontextmanager
async def echo(tls: ssl.SSLContext | None = None) -> AsyncIterator[HostPort]:
    """A server that sends back what it receives."""

    async def serve(stream: trio.SocketStream) -> None:
        both: Any = stream if tls is None else trio.SSLStream(stream, tls, server_side=True)
        try:
            while data := await both.receive_some():
                await both.send_all(data)
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(both)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host=LOOPBACK))
        yield HostPort(*listener.socket.getsockname()[:2])
        nursery.cancel_scope.cancel()


@pytest.fixture
def server(tmp_path: Path) -> ssl.SSLContext:
    """The context of a server for 127.0.0.1 and localhost."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keystore(tmp_path))
    return context


def trusting(folder: Path, *, checks_host: bool = True) -> ssl.SSLContext:
    return client_context(Pem(checks_host, truststore=str(truststore(folder))), PASSWORD)


async def reason_of(broker: HostPort, context: ssl.SSLContext) -> str:
    with pytest.raises(UpstreamLost) as raised:
        await connect(broker, context)
    return str(raised.value)


async def test_connection_with_tls_passes_bytes(server: ssl.SSLContext, tmp_path: Path) -> None:
    async with echo(server) as broker:
        stream = await connect(broker, trusting(tmp_path))
        assert stream.peer == broker
        for data in (b"one", b"x" * 300_000):
            received = memoryview(bytearray(len(data)))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, data)
                assert await stream.receive_exactly(received) == len(data)
            assert received == data
        stream.close()


async def test_certificate_must_be_trusted(server: ssl.SSLContext) -> None:
    async with echo(server) as broker:
        text = await reason_of(broker, client_context(Pem(checks_host=True), PASSWORD))
    assert text.startswith(f"broker {broker} can't be reached: its certificate is not trusted")
    assert "ssl.truststore.location" in text


async def test_certificate_must_be_that_of_the_host(tmp_path: Path) -> None:
    async with echo(context_for("other.example")) as broker:
        text = await reason_of(broker, trusting(tmp_path))
        assert "Use a host name in --upstream that its certificate contains" in text
        (await connect(broker, trusting(tmp_path, checks_host=False))).close()


def context_for(host: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert(host).configure_cert(context)
    return context


async def test_listener_without_tls_is_named(tmp_path: Path) -> None:
    async with echo() as broker:
        text = await reason_of(broker, trusting(tmp_path))
    assert "check that the port in --upstream is that of a TLS listener" in text


async def test_broker_that_disconnects_in_the_handshake_is_named(tmp_path: Path) -> None:
    async def close(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, close, 0, host=LOOPBACK))
        broker = HostPort(*listener.socket.getsockname()[:2])
        text = await reason_of(broker, trusting(tmp_path))
        nursery.cancel_scope.cancel()
    assert "the TLS handshake failed (the broker disconnected)" in text


async def test_handshake_has_a_limit_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibroker.lab.proxy.upstream.CONNECT_S", 0.05)

    async def wait(_: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, wait, 0, host=LOOPBACK))
        broker = HostPort(*listener.socket.getsockname()[:2])
        text = await reason_of(broker, trusting(tmp_path))
        nursery.cancel_scope.cancel()
    assert text.endswith("no connection within 0.05 s")


async def test_broker_answers_before_the_proxy_is_ready(minibroker: MiniBroker) -> None:
    await check_broker(parse_host_port(minibroker.bootstrap_servers), None)


async def test_listener_that_requires_tls_is_named(server: ssl.SSLContext) -> None:
    async with echo(server) as broker:
        with pytest.raises(UpstreamLost, match="requires TLS, name a file by --command-config"):
            await check_broker(broker, None)


async def test_listener_that_is_no_broker_is_named(tmp_path: Path, server: ssl.SSLContext) -> None:
    async with echo(server) as broker:
        with pytest.raises(UpstreamLost, match=r"it does not answer requests$"):
            await check_broker(broker, trusting(tmp_path))


async def test_listener_that_never_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibroker.lab.proxy.upstream.ANSWER_S", 0.05)
    with (
        socket.create_server((LOOPBACK, 0)) as silent,
        pytest.raises(UpstreamLost, match="it does not answer requests"),
    ):
        await check_broker(HostPort(*silent.getsockname()[:2]), None)

"""The client of the control API: lookup, requests and errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from minibroker.broker.settings.setting import HostPort
from minibroker.cli import control as module
from minibroker.cli.control import ControlClient, find_control
from minibroker.cli.output import CliError, ExitCode, InvalidUsage, Unreachable
from minibroker.client.connection import BootstrapServers
from minibroker.control_url import split
from minibroker.testing import MiniBroker

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@asynccontextmanager
async def server(*connections: list[bytes]) -> AsyncIterator[HostPort]:
    """Answer requests on the given number of connections, then stop listening."""

    async def serve() -> None:
        with listener.socket:
            for answers in connections:
                async with await listener.accept() as accepted:
                    for answer in answers:
                        await accepted.receive_some()
                        await accepted.send_all(answer)

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield HostPort("127.0.0.1", listener.socket.getsockname()[1])


async def ask(api: ControlClient) -> dict[str, Any]:
    return await trio.to_thread.run_sync(api.get, "v1", "connections")


async def test_control_client_keeps_its_connection() -> None:
    async with server([OK, OK]) as address:
        api = ControlClient(f"http://{address}")
        assert [await ask(api), await ask(api)] == [{}, {}]
        api.close()


async def test_control_client_reconnects_once() -> None:
    async with server([OK], [OK]) as address:
        api = ControlClient(f"http://{address}")
        assert [await ask(api), await ask(api)] == [{}, {}]
        api.close()


async def test_stopped_broker_and_unreachable_broker_have_different_errors() -> None:
    async with server([OK]) as address:
        api = ControlClient(f"http://{address}")
        await ask(api)
    with pytest.raises(
        CliError, match=rf"^the broker at http://{address} closed the connection$"
    ) as gone:
        await ask(api)
    assert gone.value.exit_code is ExitCode.REFUSED
    with pytest.raises(Unreachable, match="nothing listens on"):
        await ask(ControlClient(f"http://{address}"))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"\x00\x00\x00\x04what", "does not speak HTTP"),
        (b"HTTP/1.1 404 No\r\n\r\n{}", "is it the control API"),
        (
            b'HTTP/1.1 503 No\r\n\r\n{"error":{"message":"not now.","hint":"Try again."}}',
            "not now. Try again.",
        ),
    ],
)
async def test_invalid_response_is_reported(answer: bytes, why: str) -> None:
    async with server([answer]) as address:
        api = ControlClient(f"http://{address}")
        with pytest.raises(CliError, match=why):
            await ask(api)
        api.close()


@pytest.mark.parametrize("url", ["http://127.0.0.1:80", "127.0.0.1:80", "http://127.0.0.1:80/v1"])
def test_find_control_uses_the_given_url(url: str) -> None:
    assert find_control(url, BootstrapServers("unused")).url == "http://127.0.0.1:80"


def test_control_api_that_is_open_to_others_needs_the_token_of_its_url() -> None:
    servers = BootstrapServers("unused")
    with MiniBroker(settings={"control.listener": "0.0.0.0:0"}) as broker:
        assert broker.control.get("v1", "cluster")["cluster_id"]
        with broker.faults as faults:
            faults.add("observe", name="unused", api="Fetch").remove()
        found = find_control(broker.control_url, servers)
        with found:
            assert "cluster_id" in found.get("v1", "cluster")
        with find_control(split(broker.control_url).address, servers) as bare:
            assert "ready" in bare.get("v1", "health")
            with pytest.raises(CliError, match="no valid token"):
                bare.get("v1", "cluster")


def test_empty_control_token_admits_other_hosts_without_a_token() -> None:
    open_to_all = {"control.listener": "0.0.0.0:0", "control.token": ""}
    with MiniBroker(settings=open_to_all) as broker:
        assert "@" not in broker.control_url
        assert broker.control.get("v1", "cluster")["cluster_id"]


def test_find_control_rejects_invalid_url() -> None:
    with pytest.raises(InvalidUsage, match=r"--control http://nowhere: must be host:port"):
        find_control("http://nowhere", BootstrapServers("unused"))


def test_find_control_asks_the_broker_for_the_url(minibroker: MiniBroker) -> None:
    found = find_control(None, BootstrapServers(minibroker.bootstrap_servers))
    assert found.url == minibroker.control_url.rstrip("/")


def test_find_control_without_broker_names_the_option() -> None:
    with pytest.raises(Unreachable, match=r"nothing listens on .* or name the control API with"):
        find_control(None, BootstrapServers("127.0.0.1:1"))


@pytest.mark.parametrize(
    ("listens", "seen"),
    [
        ("0.0.0.0", "10.0.0.9"),
        ("::", "10.0.0.9"),
        ("", "10.0.0.9"),
        ("127.0.0.1", "127.0.0.1"),
        ("broker.example", "broker.example"),
    ],
)
def test_unspecified_address_becomes_the_broker_s_host(listens: str, seen: str) -> None:
    assert module._as_seen_from_here(HostPort(listens, 8080), "10.0.0.9") == (seen, 8080)

"""A control API is found, asked, missed and told from what is none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from minibroker.cli import control as module
from minibroker.cli.control import Control, find_control
from minibroker.cli.errors import CliError, ExitCode, Unreachable, UsageMistake
from minibroker.client.bootstrap import BootstrapServers
from minibroker.config.types import HostPort
from minibroker.testing import MiniBroker

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@asynccontextmanager
async def server(*connections: list[bytes]) -> AsyncIterator[HostPort]:
    """Answers one request after the other on each of so many connections, then listens no more."""

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


async def ask(api: Control) -> bytes:
    return await trio.to_thread.run_sync(api.get, "/v1/connections")


async def test_one_connection_serves_all_questions() -> None:
    async with server([OK, OK]) as address:
        api = Control(address)
        assert [await ask(api), await ask(api)] == [b"{}", b"{}"]
        api.close()


async def test_a_connection_that_broke_is_made_anew_once() -> None:
    async with server([OK], [OK]) as address:
        api = Control(address)
        assert [await ask(api), await ask(api)] == [b"{}", b"{}"]
        api.close()


async def test_a_broker_that_is_gone_is_told_from_one_that_never_was() -> None:
    async with server([OK]) as address:
        api = Control(address)
        await ask(api)
    with pytest.raises(CliError, match=rf"^the broker at http://{address} is gone$") as gone:
        await ask(api)
    assert gone.value.exit_code is ExitCode.REFUSED
    with pytest.raises(Unreachable, match="nothing listens on"):
        await ask(Control(address))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"\x00\x00\x00\x04what", "does not speak HTTP"),
        (b"HTTP/1.1 404 No\r\n\r\n{}", "is it the control API"),
        (
            b'HTTP/1.1 503 No\r\n\r\n{"error":{"message":"not now","hint":"Try again."}}',
            "not now Try again.",
        ),
    ],
)
async def test_what_is_no_answer_is_told(answer: bytes, why: str) -> None:
    async with server([answer]) as address:
        api = Control(address)
        with pytest.raises(CliError, match=why):
            await ask(api)
        api.close()


@pytest.mark.parametrize("url", ["http://127.0.0.1:80", "127.0.0.1:80", "http://127.0.0.1:80/v1"])
def test_it_may_be_named(url: str) -> None:
    assert find_control(url, BootstrapServers("unused")).url == "http://127.0.0.1:80"


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(UsageMistake, match=r"--control http://nowhere: must be host:port"):
        find_control("http://nowhere", BootstrapServers("unused"))


def test_a_broker_is_asked_where_it_is(minibroker: MiniBroker) -> None:
    found = find_control(None, BootstrapServers(minibroker.bootstrap_servers))
    assert found.url == minibroker.control_url.rstrip("/")


def test_without_a_broker_it_is_told_how_to_name_it() -> None:
    with pytest.raises(Unreachable, match=r"nothing listens on .* or name its control API with"):
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
def test_what_listens_everywhere_is_where_the_broker_is(listens: str, seen: str) -> None:
    assert module._as_seen_from_here(HostPort(listens, 8080), "10.0.0.9") == (seen, 8080)

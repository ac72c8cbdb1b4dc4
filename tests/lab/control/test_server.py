"""The HTTP server on real sockets: whole, bounded, hard to annoy, and without a clock."""

from __future__ import annotations

import errno
import json
import re
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from minibroker.lab.control.attach import listener_url, open_listener, serve
from minibroker.lab.control.operation import BODY_MAX_BYTES
from minibroker.lab.control.server import CONNECTIONS_MAX, HEAD_MAX_BYTES, LINGER_MAX_BYTES


class Served:
    """A served fake, and raw connections to it."""

    def __init__(self, listener: socket.socket) -> None:
        self.url = listener_url(listener)
        self.address = listener.getsockname()[:2]

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(*self.address)

    async def talk(self, data: bytes) -> bytes:
        """Send, close our side, and read to the end."""
        async with await self.connect() as stream:
            await stream.send_all(data)
            await stream.send_eof()
            return await read_all(stream)


async def read_all(stream: trio.SocketStream) -> bytes:
    return b"".join([data async for data in stream])


async def read_answer(stream: trio.SocketStream) -> tuple[int, bytes]:
    """One answer with a content-length, leaving the connection open."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await receive(stream)
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    while length is not None and len(body) < int(length[1]):
        body += await receive(stream)
    return int(head.split()[1]), body


async def receive(stream: trio.SocketStream) -> bytes:
    data = await stream.receive_some()
    assert data, "the connection was closed in the middle of an answer"
    return bytes(data)


def get(path: str = "/v1/cluster", *headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode()


def post(body: bytes, *headers: str, path: str = "/v1/clock") -> bytes:
    length = "" if any("Transfer" in header for header in headers) else "Content-Length: "
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", *headers]
    if length:
        lines.append(f"{length}{len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def start_serving(
    fake_broker: Any,
    listener: socket.socket,
    stopping: trio.Event,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    await serve(fake_broker, listener, stopping, task_status=task_status)


@pytest.fixture
async def served(fake_broker: Any, nursery: trio.Nursery) -> AsyncIterator[Served]:
    with open_listener("127.0.0.1", 0) as listener:
        stopping = trio.Event()
        await nursery.start(start_serving, fake_broker, listener, stopping)
        yield Served(listener)
        stopping.set()


async def test_client_is_served_on_one_persistent_connection(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url) as client:
        assert (await client.get("/v1/health")).json()["ready"] is True
        assert (await client.post("/v1/topics", json={"name": "t"})).status_code == 201
        assert (await client.delete("/v1/topics/t")).status_code == 204
        head = await client.head("/v1/health")
        assert (head.status_code, head.content) == (200, b"")
        assert (await client.post("/v1/reset", content=b"unwanted")).status_code == 200
        assert (await client.get("/v1/groups/team%2Fone")).json()["group_id"] == "team/one"
        assert (await client.get("/metrics")).status_code == 200


async def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    answers = await served.talk(get("/v1/health") + get("/nowhere") + get("/v1/topics"))
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"404", b"200"]


async def test_request_sent_byte_by_byte_is_answered(served: Served) -> None:
    async with await served.connect() as stream:
        for byte in post(b'{"advance_ms": 5}'):
            await stream.send_all(bytes([byte]))
        assert (await read_answer(stream))[0] == 200


async def test_chunked_body_after_100_continue_is_accepted(
    served: Served, fake_broker: Any
) -> None:
    async with await served.connect() as stream:
        head = post(b"", "Transfer-Encoding: chunked", "Expect: 100-continue")
        await stream.send_all(head)
        assert await receive(stream) == b"HTTP/1.1 100 \r\n\r\n"
        await stream.send_all(b'5\r\n{"fre\r\nc\r\neze": false}\r\n0\r\n\r\n')
        assert (await read_answer(stream))[0] == 200
    assert fake_broker.turns[0].freeze is False


async def test_absolute_form_request_target_is_accepted(served: Served) -> None:
    assert b"HTTP/1.1 200" in await served.talk(get("http://localhost/v1/health?x=1"))


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x17\x00\x12\x00\x03\x00\x00\x00\x01\x00\x04test",  # a Kafka client's
        b"GET /v1/health HTTP/1.1\r\n\r\n",
        b"GET /v1/health\r\n\r\n",
        get("/v1/health", "Host: twice"),
        post(b"", "Transfer-Encoding: chunked") + b"zz\r\n",
        b"POST /v1/clock HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/clock HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{}",
        b"\r\n" * 9000,
    ],
)
async def test_malformed_http_is_400_and_connection_closed(served: Served, data: bytes) -> None:
    answer = await served.talk(data)
    assert answer.startswith(b"HTTP/1.1 400")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "BAD_HTTP"
    assert error["message"]


async def test_too_large_head_is_431(served: Served) -> None:
    answer = await served.talk(get("/v1/health", "X: " + "x" * 2 * HEAD_MAX_BYTES))
    assert answer.startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("size", [BODY_MAX_BYTES + 1, LINGER_MAX_BYTES - 1024])
async def test_too_large_body_is_413_and_response_readable(served: Served, size: int) -> None:
    body = b" " * size
    answer = await served.talk(post(body))
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"BODY_TOO_LARGE" in answer


async def test_connection_closed_mid_request_does_not_affect_others(served: Served) -> None:
    for data in (b"", b"GET", get()[:-2], post(b"{}")[:-1]):
        async with await served.connect() as stream:
            await stream.send_all(data or b"\r\n")
    assert b"HTTP/1.1 200" in await served.talk(get())


async def test_connection_limit_closes_longest_idle_connection(served: Served) -> None:
    first = await served.connect()
    await first.send_all(get())
    await read_answer(first)
    idle = [await served.connect() for _ in range(CONNECTIONS_MAX - 1)]
    # Used again, the first is no longer the one idle for longest.
    await first.send_all(get())
    await read_answer(first)
    assert (await served.talk(get())).startswith(b"HTTP/1.1 200")
    await first.send_all(get())
    assert (await read_answer(first))[0] == 200
    assert await read_all(idle[0]) == b""
    for stream in (first, *idle):
        await stream.aclose()


async def test_connection_limit_never_closes_connection_with_active_request(
    served: Served, fake_broker: Any
) -> None:
    fake_broker.gate = trio.Event()
    working = [await served.connect() for _ in range(CONNECTIONS_MAX)]
    for stream in working:
        fake_broker.asked = trio.Event()
        await stream.send_all(get())
        await fake_broker.asked.wait()
    async with await served.connect() as refused:
        assert await read_all(refused) == b""
    fake_broker.gate.set()
    for stream in working:
        assert (await read_answer(stream))[0] == 200
        await stream.aclose()
    assert (await served.talk(get())).startswith(b"HTTP/1.1 200")


async def test_stop_finishes_active_requests_and_closes_idle_connections(
    fake_broker: Any, nursery: trio.Nursery
) -> None:
    fake_broker.gate = trio.Event()
    stopping, ended = trio.Event(), trio.Event()

    async def run(task_status: trio.TaskStatus[None]) -> None:
        await serve(fake_broker, listener, stopping, task_status=task_status)
        ended.set()

    with open_listener("127.0.0.1", 0) as listener:
        await nursery.start(run)
        served = Served(listener)
        working, idle = await served.connect(), await served.connect()
        await working.send_all(get())
        await fake_broker.asked.wait()
        stopping.set()
        assert await read_all(idle) == b""
        assert not ended.is_set()
        fake_broker.gate.set()
        assert (await read_answer(working))[0] == 200
        await ended.wait()
        await working.aclose()
        await idle.aclose()


async def test_jump_of_broker_clock_does_not_time_out_connections(
    served: Served, mock_clock: trio.testing.MockClock
) -> None:
    async with await served.connect() as stream:
        for _ in range(2):
            await stream.send_all(get())  # while the clock is frozen
            assert (await read_answer(stream))[0] == 200
            mock_clock.jump(10 * 365 * 86_400)


async def test_second_server_serves_on_same_socket(fake_broker: Any, nursery: trio.Nursery) -> None:
    with open_listener("127.0.0.1", 0) as listener:
        for _ in range(2):
            stopping = trio.Event()
            await nursery.start(start_serving, fake_broker, listener, stopping)
            assert b"HTTP/1.1 200" in await Served(listener).talk(get())
            stopping.set()


async def test_internal_error_is_500_and_keeps_connection_open(
    served: Served,
) -> None:
    async with await served.connect() as stream:
        await stream.send_all(post(b'{"name": "bug"}', path="/v1/topics"))
        status, body = await read_answer(stream)
        assert (status, b"secret" in body) == (500, False)
        await stream.send_all(get())
        assert (await read_answer(stream))[0] == 200


def test_listen_address_in_use_is_named_in_error() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match=f"can't listen on 127.0.0.1:{port}: Address already"):
            open_listener("127.0.0.1", port)


@pytest.mark.parametrize(("host", "shown"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "127.0.0.1")])
def test_listener_url_has_reachable_host(host: str, shown: str) -> None:
    with open_listener(host, 0) as listener:
        assert listener_url(listener) == f"http://{shown}:{listener.getsockname()[1]}"


async def test_server_out_of_descriptors_accepts_again_when_a_connection_is_idle(
    served: Served, fake_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.talk(get())
    failures = [OSError(errno.EMFILE, "Too many open files")] * 2
    accept = trio._socket._SocketType.accept

    async def fail(listening: Any) -> Any:
        await trio.lowlevel.wait_readable(listening)
        if failures:
            raise failures.pop()
        return await accept(listening)

    monkeypatch.setattr(trio._socket._SocketType, "accept", fail)
    # This one is taken by the call that was waiting already.
    fake_broker.gate, fake_broker.asked = trio.Event(), trio.Event()
    working = await served.connect()
    await working.send_all(get())
    await fake_broker.asked.wait()
    waiting = await served.connect()
    await waiting.send_all(get())
    await trio.testing.wait_all_tasks_blocked()
    fake_broker.gate.set()
    assert (await read_answer(working))[0] == 200
    assert (await read_answer(waiting))[0] == 200
    for stream in (working, waiting):
        await stream.aclose()

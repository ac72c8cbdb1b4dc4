"""Requests are answered exactly once, even if the peer fails."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.runtime.arena import StaleReferenceError
from minibroker.runtime.rpc import (
    Channel,
    Link,
    PeerFailed,
    PeerLost,
    RpcConnection,
    SocketChannel,
    memory_channel_pair,
    request_all,
)


class Peers:
    """Two conversations joined in memory, the second answering with ``handler``."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery

    def join(
        self, handler: Callable[[Any], Any], requests_max: int = 10
    ) -> tuple[RpcConnection, Channel]:
        here, there = memory_channel_pair()
        caller = RpcConnection(here, requests_max=requests_max)
        self.nursery.start_soon(caller.run)
        self.nursery.start_soon(RpcConnection(there, handler).run)
        return caller, there


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    async with trio.open_nursery() as nursery:
        yield Peers(nursery)
        nursery.cancel_scope.cancel()


async def test_request_gets_its_answer(peers: Peers) -> None:
    caller, _ = peers.join(lambda payload: payload * 2)
    assert await caller.request(21) == 42


async def test_on_sent_runs_before_response(peers: Peers) -> None:
    done: list[str] = []
    caller, channel = peers.join(lambda payload: done.append(f"answers {payload}"))
    await caller.request("one", on_sent=lambda: done.append("meanwhile"))
    assert done == ["meanwhile", "answers one"]
    assert channel.statistics().received == 1


async def test_awaitable_answers_do_not_delay_later_requests(peers: Peers) -> None:
    gate = trio.Event()

    async def slow() -> str:
        await gate.wait()
        return "slow"

    caller, _ = peers.join(lambda payload: slow() if payload == "slow" else payload)
    answers = []

    async def ask_slow() -> None:
        answers.append(await caller.request("slow"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_slow)
        await wait_all_tasks_blocked()
        answers.append(await caller.request("quick"))
        gate.set()
    assert answers == ["quick", "slow"]


async def test_failed_handler_is_reported_and_the_connection_continues(
    peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(payload: Any) -> Any:
        if payload == "bad":
            raise ValueError("no such thing")
        return payload

    caller, _ = peers.join(handler)
    with pytest.raises(PeerFailed, match="ValueError: no such thing"):
        await caller.request("bad")
    assert await caller.request("good") == "good"
    assert "a request handler failed" in caplog.text


@pytest.mark.parametrize("lives", [True, False], ids=["asker-lives", "asker-is-gone"])
@pytest.mark.parametrize("error", [StaleReferenceError("other life"), ValueError("a mistake")])
async def test_stale_reference_of_dead_peer_is_not_logged(
    lives: bool, error: Exception, peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(_payload: Any) -> Any:
        if not lives:
            caller.close()
        raise error

    caller, _ = peers.join(handler)
    with pytest.raises(PeerFailed if lives else PeerLost):
        await caller.request("where are the bytes?")
    await wait_all_tasks_blocked()
    expected = isinstance(error, StaleReferenceError) and not lives
    assert ("a request handler failed" in caplog.text) == (not expected)


async def test_requests_in_flight_fail_when_peer_dies(peers: Peers) -> None:
    async def handler() -> None:
        await trio.sleep_forever()

    caller, there = peers.join(lambda _payload: handler())
    async with trio.open_nursery() as nursery:

        async def expect_lost() -> None:
            with pytest.raises(PeerLost):
                await caller.request("never answered")

        nursery.start_soon(expect_lost)
        await wait_all_tasks_blocked()
        there.close()
    with pytest.raises(PeerLost):
        await caller.request("too late")


async def test_cancelled_request_is_cancelled_at_the_peer(peers: Peers) -> None:
    withdrawn = trio.Event()

    async def handler() -> None:
        try:
            await trio.sleep_forever()
        finally:
            withdrawn.set()

    caller, _ = peers.join(lambda _payload: handler())
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(caller.request, "slow")
            await wait_all_tasks_blocked()
            scope.cancel()
    await wait_all_tasks_blocked()
    assert withdrawn.is_set()


async def test_requests_beyond_the_limit_wait(peers: Peers) -> None:
    seen: list[int] = []
    gate = trio.Event()

    async def handler(payload: int) -> None:
        seen.append(payload)
        await gate.wait()

    caller, _ = peers.join(handler, requests_max=2)
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(caller.request, number)
        await wait_all_tasks_blocked()
        assert len(seen) == 2
        gate.set()
    assert sorted(seen) == [0, 1, 2, 3]


async def test_request_that_may_wait_does_not_count_for_the_limit(peers: Peers) -> None:
    async def handler(payload: str) -> str:
        if payload == "waits":
            await trio.sleep_forever()
        return payload

    caller, _ = peers.join(handler, requests_max=1)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(partial(caller.request, "waits", may_wait=True))
        await wait_all_tasks_blocked()
        with trio.fail_after(1):
            assert await caller.request("soon") == "soon"
        nursery.cancel_scope.cancel()


class Company:
    """Several peers, each behind a link of its own."""

    def __init__(
        self,
        nursery: trio.Nursery,
        handlers: list[Callable[[Any], Any]],
        requests_max: int = 10,
    ) -> None:
        self.nursery = nursery
        self.channels: dict[int, Channel] = {}
        """The peers' ends by place, for links dial in any order."""
        self.links = [
            Link(self._dialler(place, handler), _no_greeting, requests_max=requests_max)
            for place, handler in enumerate(handlers)
        ]
        for link in self.links:
            nursery.start_soon(link.run)

    def _dialler(
        self, place: int, handler: Callable[[Any], Any]
    ) -> Callable[[], Awaitable[Channel]]:
        async def connect() -> Channel:
            here, there = memory_channel_pair()
            self.channels[place] = there
            self.nursery.start_soon(RpcConnection(there, handler).run)
            return here

        return connect


async def _no_greeting(_: RpcConnection) -> None: ...


async def test_ask_together_returns_answers_in_order(
    nursery: trio.Nursery,
) -> None:
    gate = trio.Event()

    async def late(payload: Any) -> Any:
        await gate.wait()
        return ("late", payload)

    def early(payload: Any) -> Any:
        gate.set()
        return ("early", payload)

    company = Company(nursery, [late, early])
    answers = await request_all([(company.links[0], 1), (company.links[1], 2)])
    assert answers == [("late", 1), ("early", 2)]


async def test_first_only_withdraws_the_other_requests(
    nursery: trio.Nursery,
) -> None:
    withdrawn = trio.Event()

    async def never(_: Any) -> Any:
        try:
            await trio.sleep_forever()
        finally:
            withdrawn.set()

    company = Company(nursery, [never, lambda payload: payload])
    requests = [(company.links[0], "a"), (company.links[1], "b")]
    assert await request_all(requests, first_only=True) == [None, "b"]
    await wait_all_tasks_blocked()
    assert withdrawn.is_set()


async def test_joint_requests_that_may_wait_do_not_count_for_the_limit(
    nursery: trio.Nursery,
) -> None:
    async def handler(payload: str) -> str:
        if payload == "waits":
            await trio.sleep_forever()
        return payload

    company = Company(nursery, [handler, handler], requests_max=1)
    waiting = [(link, "waits") for link in company.links]
    for _ in range(3):
        nursery.start_soon(partial(request_all, waiting, may_wait=True))
    await wait_all_tasks_blocked()
    with trio.fail_after(1):
        assert await request_all([(link, "soon") for link in company.links]) == ["soon"] * 2


async def test_lost_peer_is_reported_when_the_others_have_answered(
    nursery: trio.Nursery,
) -> None:
    gate = trio.Event()
    answered = False

    async def late(_: Any) -> Any:
        nonlocal answered
        await gate.wait()
        answered = True

    async def never(_: Any) -> Any:
        await trio.sleep_forever()

    company = Company(nursery, [never, late])

    async def expect_lost() -> None:
        with pytest.raises(PeerLost):
            await request_all([(link, None) for link in company.links])
        assert answered

    async with trio.open_nursery() as asking:
        asking.start_soon(expect_lost)
        await wait_all_tasks_blocked()
        company.channels[0].close()
        await wait_all_tasks_blocked()
        gate.set()


async def test_asking_together_can_be_cancelled(nursery: trio.Nursery) -> None:
    withdrawn = []

    async def never(payload: Any) -> Any:
        try:
            await trio.sleep_forever()
        finally:
            withdrawn.append(payload)

    company = Company(nursery, [never, never])
    async with trio.open_nursery() as asking:
        asking.start_soon(request_all, [(link, index) for index, link in enumerate(company.links)])
        await wait_all_tasks_blocked()
        asking.cancel_scope.cancel()
    await wait_all_tasks_blocked()
    assert sorted(withdrawn) == [0, 1]


class Echo:
    """A peer that behaves like another process: a thread with its own loop."""

    def __init__(self) -> None:
        self.here, there = socket.socketpair()
        self._thread = threading.Thread(  # noqa: TID251 - stands for another process
            target=trio.run, args=(self._serve, there)
        )
        self._thread.start()

    @staticmethod
    async def _serve(there: socket.socket) -> None:
        await RpcConnection(SocketChannel(there), lambda payload: payload * 2).run()

    def join(self) -> None:
        self._thread.join()


async def test_polled_answer_is_returned_and_the_time_reported(nursery: trio.Nursery) -> None:
    echo = Echo()
    looked: list[int] = []
    connection = RpcConnection(SocketChannel(echo.here), on_polled=looked.append)
    nursery.start_soon(connection.run)
    for number in range(50):
        assert await connection.request(number, poll=True) == number * 2
    assert await connection.request("not looked for") == "not looked for" * 2
    assert len(looked) == 50
    assert min(looked) > 0
    connection.close()
    echo.join()


async def test_polling_delivers_answers_of_other_requests(nursery: trio.Nursery) -> None:
    echo = Echo()
    connection = RpcConnection(SocketChannel(echo.here))
    nursery.start_soon(connection.run)
    answers: list[int] = []

    async def request(number: int) -> None:
        answers.append(await connection.request(number, poll=number % 2 == 0))

    for _ in range(20):
        async with trio.open_nursery() as asking:
            for number in range(6):
                asking.start_soon(request, number)
    assert sorted(answers) == sorted(number * 2 for number in range(6) for _ in range(20))
    connection.close()
    echo.join()


async def test_polling_ends_when_peer_dies(nursery: trio.Nursery) -> None:
    here, there = socket.socketpair()
    connection = RpcConnection(SocketChannel(here))
    nursery.start_soon(connection.run)
    there.close()
    with pytest.raises(PeerLost):
        await connection.request("nobody there", poll=True)


async def test_polling_gives_up_and_sleeps_until_the_answer_arrives(nursery: trio.Nursery) -> None:
    here, there = socket.socketpair()
    connection = RpcConnection(SocketChannel(here))
    nursery.start_soon(connection.run)
    answers: list[str] = []

    async def request() -> None:
        answers.append(await connection.request("slow", poll=True))

    async with trio.open_nursery() as asking:
        asking.start_soon(request)
        await wait_all_tasks_blocked()
        asking.start_soon(RpcConnection(SocketChannel(there), lambda payload: payload).run)
        await wait_all_tasks_blocked()
        connection.close()
    assert answers == ["slow"]


async def test_unsendable_answer_is_a_failure_and_the_connection_continues(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, channel = peers.join(lambda payload: payload)
    send = channel.send

    async def fail_once(message: Any) -> None:
        if message[2] == "unsendable":
            raise TypeError("it cannot be pickled")
        await send(message)

    monkeypatch.setattr(channel, "send", fail_once)
    with pytest.raises(PeerFailed, match="TypeError: it cannot be pickled"):
        await caller.request("unsendable")
    assert await caller.request("fine") == "fine"

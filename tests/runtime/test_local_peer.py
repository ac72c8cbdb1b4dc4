"""A peer in the same process answers as a peer behind a link does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from minibroker.runtime.rpc import (
    Channel,
    Link,
    LocalPeer,
    RpcConnection,
    memory_channel_pair,
    request_all,
)


def remote(nursery: trio.Nursery, handler: Callable[[Any], Any]) -> Link:
    """A link to a peer with this handler."""

    async def connect() -> Channel:
        here, there = memory_channel_pair()
        nursery.start_soon(RpcConnection(there, handler).run)
        return here

    async def register(_: RpcConnection) -> None: ...

    link = Link(connect, register)
    nursery.start_soon(link.run)
    return link


async def forever(_payload: object) -> None:
    await trio.sleep_forever()


async def test_requests_to_local_and_other_peers_are_answered_in_order(
    nursery: trio.Nursery,
) -> None:
    async def later(payload: int) -> int:
        await trio.lowlevel.checkpoint()
        return payload + 1

    other = remote(nursery, lambda payload: payload * 10)
    requests: list[tuple[Link | LocalPeer, object]] = [
        (LocalPeer(later), 1),
        (other, 2),
        (LocalPeer(lambda payload: payload), 3),
    ]
    assert await request_all(requests) == [2, 20, 3]


def fails(_payload: object) -> None:
    raise ValueError("no")


async def fails_later(_payload: object) -> None:
    await trio.lowlevel.checkpoint()
    raise ValueError("no")


@pytest.mark.parametrize("handler", [fails, fails_later])
async def test_failure_of_a_local_peer_is_raised_when_all_have_answered(
    nursery: trio.Nursery, handler: Callable[[object], Awaitable[None] | None]
) -> None:
    answered: list[object] = []
    other = remote(nursery, answered.append)
    with pytest.raises(ValueError, match="no"):
        await request_all([(LocalPeer(handler), 1), (other, 2)])
    assert answered == [2]


async def test_first_answer_cancels_the_handler_of_a_local_peer(nursery: trio.Nursery) -> None:
    cancelled = trio.Event()

    async def waits(_payload: object) -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    other = remote(nursery, lambda payload: payload)
    assert await request_all([(LocalPeer(waits), 1), (other, 2)], first_only=True) == [None, 2]
    assert cancelled.is_set()


async def test_cancelled_requests_cancel_the_handler_of_a_local_peer(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    other = remote(nursery, forever)
    with trio.move_on_after(1) as scope:
        await request_all([(LocalPeer(forever), 1), (other, 2)])
    assert scope.cancelled_caught
